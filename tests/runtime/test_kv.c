/* Long answers over INT8 KV beside BF16 KV on the bundled model: no collapse. Quantisation errors of one token are read by all later ones, so
 * an error that feeds itself shows in length: the text falls into a loop (few different 4-grams) or into noise (unlikely tokens).
 * 300 tokens here, 2,000 with LK_LONG=1 (tools/soak), at temperature 0.7 with a presence penalty, past any end token. Both texts are
 * scored by the same exact model (F32 KV). Greedy answers of both kinds are compared as well: a first difference is a near tie. */
#include "base/log.h"
#include "model/rig.h"
#include "runtime/engine_help.h"
#include "text/tokenizer.h"

#define OUT_MOST 2000
static const char *const starts[] = {"What does \"lighthouse\" mean?", "What does \"winter\" mean?", "What does \"engine\" mean?",
                                     "Write a Python function that reverses a string.", "Write a Python function that sorts a list.",
                                     "内核文档是什么？"};
enum { STARTS = sizeof starts / sizeof *starts };

static struct lk_engine *engine_kv(int kv)
{
    struct lk_opts_engine o = opts_small(BUNDLED);
    struct lk_engine *e;
    struct lk_err err = {0};
    o.kv = kv;
    o.ctx = 2304;
    o.parallel = 1;
    if (lk_engine_open(&e, &o, &err)) fail_msg("%s", err.text);
    return e;
}

/* The question as a conversation; ids[0..*n) */
static void ask(struct lk_engine *e, const char *question, int32_t *ids, int *n)
{
    struct lk_buf b = {0};
    struct lk_ids got = {0};
    struct lk_err err = {0};
    lk_buf_fmt(&b, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", question);
    assert_int_equal(lk_tokenizer_encode(lk_engine_tokenizer(e), b.data, b.len, LK_SPECIALS_ALL, &got, &err), 0);
    assert_true(got.n < 200);
    memcpy(ids, got.v, got.n * 4);
    *n = (int)got.n;
    lk_ids_free(&got);
    lk_buf_free(&b);
}

/* Appends `out` tokens. */
static void go_on(struct lk_engine *e, const struct lk_sampling *s, int32_t *ids, int n, int out)
{
    struct lk_request r = {.ids = ids, .n_ids = (size_t)n, .max_tokens = out, .draft = -2, .sampling = *s};
    struct result res = run_one(e, &r);
    if (res.code || res.n != out) fail_msg("%d tokens came: %s", res.n, res.text);
    memcpy(ids + n, res.ids, (size_t)out * 4);
    lk_free(res.ids);
}

/* Share of 4-grams that had not occurred before. */
static double fresh(const int32_t *ids, int n)
{
    int seen = 0;
    for (int i = 0; i + 4 <= n; i++)
        for (int j = 0; j < i; j++)
            if (!memcmp(ids + i, ids + j, 16)) {
                seen++;
                break;
            }
    return 1 - (double)seen / (n - 3);
}

static double nll_of(struct rig *r, const int32_t *ids, int from, int n)
{
    const struct lk_score_sink sink = {0};
    struct lk_err e = {0};
    double whole, head = 0;
    if (lk_score_run(r->c, ids, n, &sink, &whole, &e)) fail_msg("%s", e.text);
    if (from > 1 && lk_score_run(r->c, ids, from, &sink, &head, &e)) fail_msg("%s", e.text);
    return (whole - head) / (n - from);
}

static void long_answers_do_not_collapse(void **state)
{
    static const int kinds[] = {LK_OPT_KV_BF16, LK_OPT_KV_I8};
    static const char *const names[] = {"BF16", "INT8"};
    static int32_t ids[2][OUT_MOST + 200];
    int out = getenv("LK_LONG") ? OUT_MOST : 300, n = 0;
    double new4[2], late4[2], nll[2];
    struct rig r;
    struct lk_sampling s = {.temp = 0.7f, .top_p = 0.8f, .top_k = 20, .presence = 1.5f, .repetition = 1, .seed = 3};
    rig_open(&r, BUNDLED, &(struct rig_opts){.tokens = OUT_MOST + 200, .chunk = 256});
    for (int k = 0; k < 2; k++) {
        struct lk_engine *e = engine_kv(kinds[k]);
        ask(e, starts[0], ids[k], &n);
        go_on(e, &s, ids[k], n, out);
        lk_engine_close(e);
        new4[k] = fresh(ids[k] + n, out);
        late4[k] = fresh(ids[k] + n + out / 2, out / 2);
        nll[k] = nll_of(&r, ids[k], n, n + out);
        print_message("%s KV: %d tokens, %.1f %% of 4-grams new (second half alone %.1f %%), nll %.3f a token under F32 KV\n", names[k], out,
                      100 * new4[k], 100 * late4[k], nll[k]);
    }
    rig_close(&r);
    assert_true(new4[1] > 0.5 && new4[1] > 0.8 * new4[0]);
    assert_true(late4[1] > 0.5 && late4[1] > 0.8 * late4[0]);
    assert_true(nll[1] < 1.15 * nll[0] && nll[1] > 0.85 * nll[0]);
}

static void greedy_answers_stay_together(void **state)
{
    int out = getenv("LK_LONG") ? 256 : 40, alike = 0, whole = 0;
    struct lk_engine *bf16 = engine_kv(LK_OPT_KV_BF16), *i8 = engine_kv(LK_OPT_KV_I8);
    struct lk_sampling s;
    lk_sampling_init(&s);
    for (int i = 0; i < STARTS; i++) {
        int32_t a[600], b[600];
        int n, same = 0;
        ask(bf16, starts[i], a, &n);
        ask(i8, starts[i], b, &n);
        go_on(bf16, &s, a, n, out);
        go_on(i8, &s, b, n, out);
        while (same < out && a[n + same] == b[n + same]) same++;
        alike += same;
        whole += same == out;
    }
    print_message("greedy: %d of %d answers of %d tokens the same over INT8 and BF16 KV, the first difference after %.0f on average\n", whole,
                  STARTS, out, (double)alike / STARTS);
    assert_true(alike >= STARTS * out / 3);
    lk_engine_close(bf16);
    lk_engine_close(i8);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_answers_do_not_collapse), cmocka_unit_test(greedy_answers_stay_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
