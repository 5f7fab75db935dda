/* The shortlist head of the draft layer, on the bundled model: rows of the model's own head for some tokens, as a file may carry them, added
 * to the opened artifact. Whatever the list holds, the text is the same and only acceptance moves: a list of all tokens in another order
 * accepts what no list accepts, a shorter one the same or less, one useless token next to nothing. */
#include "artifact/store.h"
#include "base/log.h"
#include "base/mem.h"
#include "runtime/engine_help.h"
#include "runtime/host.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
#define OUT 12 /* a sanitized step is fifty times as slow */
#else
#define OUT 40
#endif
static float *rows; /* of the list now in use: the artifact points into it */

/* Adds rows of the head for map[0..n). */
static void shortlist_add(struct lk_artifact *a, int32_t *map, size_t n)
{
    const struct lk_tensor *head = lk_artifact_find(a, "lm_head");
    struct lk_err e = {0};
    if (!head) head = lk_artifact_find(a, "embed_tokens");
    int64_t k = head->w.k;
    rows = lk_reallocarray(rows, n * (size_t)k, sizeof *rows);
    for (size_t i = 0; i < n; i++) lk_weight_row(&head->w, map[i], 0, k, rows + i * (size_t)k);
    struct lk_tensor t = {.name = "draft_head", .stored = "draft_head", .file = "memory", .n_dims = 2, .dims = {(int64_t)n, k},
                          .w = {.fmt = LK_FMT_F32, .n = (int64_t)n, .k = k, .data = rows}, .bytes = n * (size_t)k * 4};
    if (lk__artifact_add(a, &t, &e)) fail_msg("%s", e.text);
    a->draft_map = map;
    a->n_draft = n;
}

struct bench {
    struct lk_host h;
    int drafted, accepted;
};

static void bench_open(struct bench *b, int32_t *map, size_t n)
{
    const struct lk_opts_device dev = {.n = 1, .threads = 1};
    struct lk_host *h = &b->h;
    struct lk_err e = {0};
    struct lk_shape shape;
    size_t len;
    *b = (struct bench){.h.core.spare_slot = -1};
    int rc = lk_artifact_open(&h->artifact, BUNDLED, &e);
    const char *json = rc ? NULL : lk_artifact_text(h->artifact, "tokenizer.json", &len);
    if (!rc) rc = lk_tokenizer_open(&h->tok, json, len, &e);
    if (!rc && map) shortlist_add(h->artifact, map, n);
    if (!rc) rc = lk_shape_read(&shape, lk_artifact_config(h->artifact), &e);
    if (!rc) rc = lk_rank_device(&h->dev, &dev, 0, &e);
    if (!rc) h->dev->rough = 0; /* a list of all tokens equals no list only where both heads are exact */
    int vocab = rc ? 0 : lk_tokenizer_vocab(h->tok);
    const struct lk_model_opts mo = {.max_rows = 128, .max_lanes = 1, .max_pages = 20, .max_logit_rows = LK_ROUND_MAX,
                                     .vocab_used = vocab, .max_edits = LK_EDITS};
    if (!rc) rc = lk_model_open(&h->model, h->artifact, h->dev, &mo, &e);
    const struct lk_state_opts so = {.kv = LK_KV_I8, .n_pages = 20, .n_slots = 4, .n_ranks = 1, .max_record_rows = LK_ROUND_MAX};
    if (!rc) rc = lk_state_open(&h->state, h->dev, lk_model_shape(h->model), &so, &e);
    const struct lk_core_opts co = {.ctx = 1024, .parallel = 1, .chunk = 128, .draft = 1, .n_pages = 20, .n_slots = 4,
                                    .vocab_used = vocab, .turn_id = -1, .newline_id = -1, .prefix = {.n_pages = 20, .ram = 1 << 20}};
    if (!rc) rc = lk_core_init(&h->core, h->model, h->state, h->tok, &co, &e);
    if (rc) fail_msg("%s", e.text);
}

/* Answers three questions; the tokens of all three one after another. */
static void ask(struct bench *b, const struct lk_sampling *s, int draft, int32_t *out)
{
    static const char *const questions[] = {"What does \"lighthouse\" mean?", "Write a Python function that reverses a string.",
                                            "What does \"winter\" mean?"};
    for (int i = 0; i < 3; i++) {
        struct lk_buf text = {0};
        struct lk_ids ids = {0};
        struct lk_err e = {0};
        struct lk_seq *q;
        lk_buf_fmt(&text, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", questions[i]);
        assert_int_equal(lk_tokenizer_encode(b->h.tok, text.data, text.len, LK_SPECIALS_ALL, &ids, &e), 0);
        struct lk_request r = {.ids = ids.v, .n_ids = ids.n, .max_tokens = OUT, .draft = draft, .sampling = *s};
        assert_int_equal(lk_seq_new(&q, &r, b->h.core.o.vocab_used, 1024, &e), 0);
        assert_int_equal(lk_core_admit(&b->h.core, q, &e), 0);
        while (q->phase != LK_SEQ_DONE) assert_int_equal(lk_core_turn(&b->h.core, &e), 1);
        assert_int_equal(lk_seq_out(q), OUT);
        memcpy(out + i * OUT, q->ids + ids.n, OUT * sizeof *out);
        b->drafted += q->t.draft_n;
        b->accepted += q->t.draft_n_accepted;
        lk_core_release(&b->h.core, q);
        lk_seq_free(q);
        lk_ids_free(&ids);
        lk_buf_free(&text);
    }
}

static struct lk_bias bias = {0, 2.5f};
static struct lk_sampling settings[] = {
    {.temp = 0, .top_p = 1, .repetition = 1},
    {.temp = 0.7f, .top_p = 0.8f, .top_k = 20, .presence = 1.5f, .repetition = 1, .seed = 11},
    {.temp = 1, .top_p = 1, .repetition = 1.1f, .seed = 5, .bias = &bias, .n_bias = 1},
};
enum { SETTINGS = sizeof settings / sizeof *settings };
static int32_t plain[SETTINGS][3 * OUT];
static double no_list;

/* Greedy acceptance with one draft a round. Every setting's text is compared, with 1 and 4 drafts. */
static double acceptance(int32_t *map, size_t n)
{
    struct bench b;
    int32_t out[3 * OUT];
    double rate = 0;
    bench_open(&b, map, n);
    for (int k = 0; k < SETTINGS; k++)
        for (int draft = 1; draft <= 4; draft += 3) {
            b.drafted = b.accepted = 0;
            ask(&b, &settings[k], draft, out);
            for (int i = 0; i < 3 * OUT; i++)
                if (out[i] != plain[k][i])
                    fail_msg("list of %zu, setting %d, draft %d: token %d is %d, not %d", n, k, draft, i, out[i], plain[k][i]);
            assert_true(b.drafted > 0);
            if (k == 0 && draft == 1) rate = (double)b.accepted / b.drafted;
        }
    lk_host_close(&b.h);
    lk_free(map);
    print_message("list of %5zu tokens: %.3f accepted\n", n, rate);
    return rate;
}

static void text_does_not_depend_on_the_list(void **state)
{
    struct bench b;
    bench_open(&b, NULL, 0);
    size_t vocab = (size_t)b.h.core.o.vocab_used;
    bias.id = (int32_t)vocab - 300;
    for (int k = 0; k < SETTINGS; k++) ask(&b, &settings[k], 0, plain[k]);
    lk_host_close(&b.h);
    no_list = acceptance(NULL, 0);
    int32_t *all = lk_calloc(vocab, sizeof *all), *half = lk_calloc(vocab, sizeof *half), *one = lk_calloc(1, sizeof *one);
    size_t n_half = 0;
    for (size_t i = 0; i < vocab; i++) all[i] = (int32_t)((i * 4099 + 17) % vocab); /* 4,099 is prime: every token once */
    for (size_t i = 0; i < vocab; i++)
        if ((int32_t)i != bias.id && (i < 1500 || i % 3 == 0)) half[n_half++] = (int32_t)i;
    one[0] = 7;
    assert_true(n_half < vocab / 2 + 500);
    double every = acceptance(all, vocab), some = acceptance(half, n_half), none = acceptance(one, 1);
    assert_true(every > no_list - 1e-9 && every < no_list + 1e-9);
    assert_true(some <= no_list && some > 0.2);
    assert_true(none < 0.1);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_does_not_depend_on_the_list)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    lk_free(rows);
    return rc;
}
