/* Every weight format against the values its publisher's library reads (tests/reference/artifact.py): a Hugging Face folder with each
 * layout, a GGUF file with each block type, and the quantisers of convert against compressed-tensors. All comparisons are exact. */
#include "artifact/artifact.h"
#include "artifact/encode.h"
#include "artifact/safetensors.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VECTORS LK_SOURCE_DIR "/tests/vectors/artifact/"

struct want { /* a safetensors file of expected values */
    struct raw_table t;
    struct lk_arena mem;
    struct lk_map map;
};

static void want_open(struct want *w, const char *path)
{
    struct lk_err e = {0};
    *w = (struct want){0};
    if (lk_map_open(&w->map, path, &e) || lk__safetensors_read(&w->t, &w->mem, w->map.data, w->map.size, path, &e)) fail_msg("%s", e.text);
}

static void want_close(struct want *w)
{
    lk__raw_free(&w->t);
    lk_arena_free(&w->mem);
    lk_map_close(&w->map);
}

static const void *want_get(const struct want *w, const char *name)
{
    const struct raw_tensor *r = lk__raw_find(&w->t, name);
    assert_non_null(r);
    return r->data;
}

/* All rows whole, and one row in odd pieces. */
static void tensor_equals(const struct lk_tensor *t, const struct raw_tensor *r)
{
    const struct lk_weight *w = &t->w;
    assert_int_equal(w->n, r->dims[0]);
    assert_int_equal(w->k, r->dims[1]);
    float *row = malloc((size_t)w->k * sizeof *row), *piece = malloc((size_t)w->k * sizeof *piece);
    for (int64_t n = 0; n < w->n; n++) {
        lk_weight_row(w, n, 0, w->k, row);
        for (int64_t k = 0; k < w->k; k++) {
            float x;
            memcpy(&x, r->data + (n * w->k + k) * 4, 4);
            if (row[k] != x) fail_msg("%s (%s) [%d, %d]: expected %.9g, found %.9g", t->name, lk_fmt_info(w->fmt)->name, (int)n, (int)k, (double)x, (double)row[k]);
        }
    }
    lk_weight_row(w, w->n - 1, 0, w->k, row);
    for (int64_t k = 0, step = 1; k < w->k; k += step, step = step % 37 + 3) {
        int64_t m = step < w->k - k ? step : w->k - k;
        lk_weight_row(w, w->n - 1, k, m, piece);
        assert_memory_equal(piece, row + k, (size_t)m * sizeof *piece);
    }
    assert_int_equal(t->bytes, lk_weight_bytes(w));
    free(row);
    free(piece);
}

static void file_equals(const char *path, const char *values, const enum lk_fmt *fmts, size_t n)
{
    struct want w;
    struct lk_artifact *a;
    struct lk_err e = {0};
    want_open(&w, values);
    if (lk_artifact_open(&a, path, &e)) fail_msg("%s", e.text);
    assert_int_equal(w.t.n, n);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%zu.mlp.up_proj", i);
        const struct lk_tensor *t = lk_artifact_find(a, name);
        const struct raw_tensor *r = lk__raw_find(&w.t, name);
        assert_non_null(t);
        assert_non_null(r);
        assert_string_equal(lk_fmt_info(t->w.fmt)->name, lk_fmt_info(fmts[i])->name);
        tensor_equals(t, r);
    }
    lk_artifact_close(a);
    want_close(&w);
}

static void huggingface_formats_are_exact(void **state)
{
    static const enum lk_fmt f[] = {LK_FMT_F32, LK_FMT_BF16, LK_FMT_F16, LK_FMT_NVFP4, LK_FMT_NVFP4, LK_FMT_FP8, LK_FMT_FP8, LK_FMT_I8,
                                    LK_FMT_Q4, LK_FMT_CT4, LK_FMT_CT4, LK_FMT_CT8, LK_FMT_GPTQ4, LK_FMT_GPTQ4, LK_FMT_GPTQ8, LK_FMT_AWQ4};
    file_equals(VECTORS "formats", VECTORS "formats.f32.safetensors", f, sizeof f / sizeof *f);
}

static void gguf_types_are_exact(void **state)
{
    static const enum lk_fmt f[] = {
        LK_FMT_F32, LK_FMT_F16, LK_FMT_BF16, LK_FMT_GG_Q8_0, LK_FMT_GG_Q6_K, LK_FMT_GG_Q5_K, LK_FMT_GG_Q4_K, LK_FMT_GG_Q3_K, LK_FMT_GG_Q2_K,
        LK_FMT_GG_Q4_0, LK_FMT_GG_Q4_1, LK_FMT_GG_Q5_0, LK_FMT_GG_Q5_1, LK_FMT_GG_IQ4_NL, LK_FMT_GG_IQ4_XS, LK_FMT_GG_IQ3_S,
        LK_FMT_GG_IQ3_XXS, LK_FMT_GG_IQ2_S, LK_FMT_GG_IQ2_XS, LK_FMT_GG_IQ2_XXS, LK_FMT_GG_MXFP4};
    file_equals(VECTORS "all.gguf", VECTORS "gguf.f32.safetensors", f, sizeof f / sizeof *f);
}

static void gguf_texts_and_config(void **state)
{
    struct lk_artifact *a;
    struct lk_err e = {0};
    if (lk_artifact_open(&a, VECTORS "all.gguf", &e)) fail_msg("%s", e.text);
    const struct lk_config *c = lk_artifact_config(a);
    assert_string_equal(lk_artifact_kind(a), "gguf");
    assert_int_equal(c->layers, 21);
    assert_int_equal(c->hidden, 512);
    assert_int_equal(c->vocab, 261);
    assert_int_equal(c->tied, 1);
    assert_int_equal(c->norm_plus_one, 0);
    assert_int_equal(c->a_is_coef, 1);
    assert_int_equal(c->gdn_tiled, 1);
    assert_int_equal(c->section[2], 10);
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 258);
    assert_int_equal(c->eos[1], 257);
    size_t n;
    const char *s = lk_artifact_text(a, "chat_template.jinja", &n);
    assert_int_equal(n, 14);
    assert_memory_equal(s, "{{ messages }}", 14);
    s = lk_artifact_text(a, "tokenizer.json", &n);
    assert_non_null(s);
    struct lk_tokenizer *t;
    if (lk_tokenizer_open(&t, s, n, &e)) fail_msg("%s", e.text);
    struct lk_ids ids = {0};
    assert_int_equal(lk_tokenizer_encode(t, "ab<think>b", 10, LK_SPECIALS_ALL, &ids, &e), 0);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.v[0], 256);
    assert_int_equal(ids.v[1], 259);
    assert_int_equal(ids.v[2], 98);
    assert_int_equal(lk_tokenizer_is_special(t, 258), 1);
    assert_int_equal(lk_tokenizer_is_special(t, 259), 2);
    lk_ids_free(&ids);
    lk_tokenizer_close(t);
    lk_artifact_close(a);
}

static void quantisers_match_compressed_tensors(void **state)
{
    struct want w;
    want_open(&w, VECTORS "encode.safetensors");
    float x[64], amax = 0, global, scale, out[64], want[64];
    const unsigned char *rows = want_get(&w, "x");
    for (int r = 0; r < 8; r++) {
        memcpy(x, rows + r * 256, 256);
        if (lk_amax(x, 64) > amax) amax = lk_amax(x, 64);
    }
    memcpy(&global, want_get(&w, "nvfp4.global"), 4);
    assert_true(lk_nvfp4_global(amax) == global);
    for (int r = 0; r < 8; r++) {
        uint8_t packed[32], scales[4], codes[64];
        memcpy(x, rows + r * 256, 256);
        lk_encode_nvfp4(x, 64, global, packed, scales);
        assert_memory_equal(packed, (const char *)want_get(&w, "nvfp4.packed") + r * 32, 32);
        assert_memory_equal(scales, (const char *)want_get(&w, "nvfp4.scale") + r * 4, 4);
        struct lk_weight q = {.fmt = LK_FMT_NVFP4, .n = 1, .k = 64, .data = packed, .scale = scales, .group = 16, .global = global,
                              .global_div = 1, .scale_dtype = LK_DT_F8E4M3};
        lk_weight_row(&q, 0, 0, 64, out);
        memcpy(want, (const char *)want_get(&w, "nvfp4.value") + r * 256, 256);
        for (int i = 0; i < 64; i++) assert_true(out[i] == want[i]);
        lk_encode_fp8(x, 64, codes, &scale);
        assert_memory_equal(codes, (const char *)want_get(&w, "fp8.codes") + r * 64, 64);
        assert_memory_equal(&scale, (const char *)want_get(&w, "fp8.scale") + r * 4, 4);
        q = (struct lk_weight){.fmt = LK_FMT_FP8, .n = 1, .k = 64, .data = codes, .scale = &scale, .block_n = 1, .block_k = 64,
                               .scale_dtype = LK_DT_F32};
        lk_weight_row(&q, 0, 0, 64, out);
        memcpy(want, (const char *)want_get(&w, "fp8.value") + r * 256, 256);
        for (int i = 0; i < 64; i++) assert_true(out[i] == want[i]);
    }
    want_close(&w);
}

static void q4_keeps_what_it_can(void **state)
{
    float x[64], out[64];
    uint8_t packed[32];
    uint16_t scale[1];
    for (int i = 0; i < 64; i++) x[i] = (float)(i % 16 - 8) * 0.5f; /* representable: codes -8..7 at scale 0.5 */
    lk_encode_q4(x, 64, 64, packed, scale);
    struct lk_weight q = {.fmt = LK_FMT_Q4, .n = 1, .k = 64, .data = packed, .scale = scale, .group = 64, .scale_dtype = LK_DT_BF16};
    lk_weight_row(&q, 0, 0, 64, out);
    for (int i = 0; i < 64; i++) assert_true(out[i] == x[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huggingface_formats_are_exact), cmocka_unit_test(gguf_types_are_exact),
        cmocka_unit_test(gguf_texts_and_config),         cmocka_unit_test(quantisers_match_compressed_tensors),
        cmocka_unit_test(q4_keeps_what_it_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
