/* The BF16 master opens: shape, names, formats, side files. Skips with one line where the master is absent. */
#include "artifact/artifact.h"
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DEMO LK_SHARED_DIR "/demo-model"

static void master_opens(void **state)
{
    if (lk_file_exists(DEMO) != 2) {
        printf("skipped: no BF16 master at %s\n", DEMO);
        skip();
    }
    struct lk_artifact *a;
    struct lk_err e = {0};
    if (lk_artifact_open(&a, DEMO, &e)) fail_msg("%s", e.text);
    const struct lk_config *c = lk_artifact_config(a);
    assert_string_equal(lk_artifact_kind(a), "huggingface");
    assert_int_equal(c->hidden, 256);
    assert_int_equal(c->inter, 768);
    assert_int_equal(c->layers, 8);
    assert_int_equal(c->vocab, 8192);
    assert_int_equal(c->n_q, 12);
    assert_int_equal(c->n_kv, 2);
    assert_int_equal(c->rope_dim, 64);
    assert_int_equal(c->hk, 2);
    assert_int_equal(c->hv, 6);
    assert_int_equal(c->full[3] + c->full[7], 2);
    assert_int_equal(c->full[0] + c->full[1] + c->full[2] + c->full[4], 0);
    assert_int_equal(c->section[2], 10);
    assert_int_equal(c->mtp_layers, 1);
    assert_int_equal(c->tied, 0);
    assert_int_equal(c->has_vision, 0);
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 8130);
    assert_int_equal(c->eos[1], 8128);
    const struct lk_gen_defaults *g = lk_artifact_gen(a);
    assert_int_equal(g->have, 1);
    assert_int_equal(g->top_k, 20);
    assert_true(g->top_p == 0.9);
    const struct lk_tensor *t = lk_artifact_find(a, "layers.3.self_attn.q_proj");
    assert_non_null(t);
    assert_int_equal(t->w.fmt, LK_FMT_BF16);
    assert_int_equal(t->dims[0], 12 * 512);
    assert_int_equal(t->dims[1], 256);
    t = lk_artifact_find(a, "layers.0.linear_attn.conv1d");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->w.k, 4);
    assert_non_null(lk_artifact_find(a, "layers.0.linear_attn.A_log"));
    assert_non_null(lk_artifact_find(a, "mtp.layers.0.mlp.down_proj"));
    assert_null(lk_artifact_find(a, "layers.8.input_layernorm"));
    size_t len, bytes = 0;
    assert_non_null(lk_artifact_text(a, "tokenizer.json", &len));
    assert_int_equal(len, 552827);
    assert_non_null(lk_artifact_text(a, "chat_template.jinja", &len));
    for (size_t i = 0; i < lk_artifact_count(a); i++) bytes += lk_artifact_at(a, i)->bytes;
    assert_int_equal(bytes, 43762904); /* the index's total_size */
    lk_artifact_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(master_opens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
