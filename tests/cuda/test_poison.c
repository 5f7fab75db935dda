/* Memory that holds anything: all free memory of the card is filled with 0xFF before the model is loaded, and every logprob must have the
 * bits it had without. Skips with one line where there is no card (or, in a build without GPU code, no backend). */
#include "runtime/engine_help.h"

#include "base/log.h"
#include "dev/dev.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define OUT 48
#define TOP 20
#define CHUNKS 512

struct answer {
    int n;
    int32_t ids[OUT], top[OUT][TOP];
    float lp[OUT], top_lp[OUT][TOP];
};

static void answer_take(struct answer *a, const struct lk_event *ev)
{
    for (int i = 0; i < ev->n_tokens && a->n < OUT; i++, a->n++) {
        const struct lk_logprob *l = ev->logprobs + i;
        a->ids[a->n] = ev->tokens[i];
        a->lp[a->n] = l->lp;
        for (int t = 0; t < TOP && t < l->n_top; t++) {
            a->top[a->n][t] = l->top_ids[t];
            a->top_lp[a->n][t] = l->top_lp[t];
        }
    }
}

/* A prompt of 300 tokens (chunked prefill), then 48 greedy ones with drafts, over INT8 pages. */
static void answer_of(const char *model, struct answer *a)
{
    struct lk_opts_engine o = opts_small(model);
    struct lk_engine *e;
    struct lk_err err = {0};
    int32_t ids[300];
    o.dev.at[0].is_cuda = 1;
    o.kv = LK_OPT_KV_I8;
    memset(a, 0, sizeof *a);
    if (lk_engine_open(&e, &o, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < 300; i++) ids[i] = 100 + i * 7 % 900;
    struct lk_request r = {.ids = ids, .n_ids = 300, .max_tokens = OUT, .logprobs = TOP, .draft = -1};
    lk_sampling_init(&r.sampling);
    if (!lk_engine_submit(e, &r, &err)) fail_msg("%s", err.text);
    for (int done = 0; !done;) {
        struct lk_event ev;
        if (lk_engine_next(e, &ev, 120) != 1) fail_msg("no event within 120 s");
        if (ev.kind == LK_EV_ERROR) fail_msg("%s", ev.text);
        if (ev.kind == LK_EV_TOKENS) answer_take(a, &ev);
        done = ev.kind == LK_EV_DONE;
    }
    lk_engine_close(e);
}

/* Fills what is free, in pieces that get smaller, and gives it back. */
static size_t poison(struct lk_dev *d)
{
    void *piece[CHUNKS];
    size_t total = 0, size = (size_t)1 << 30;
    int n = 0;
    while (n < CHUNKS && size >= (size_t)1 << 20) {
        piece[n] = d->alloc(d, size, "poison");
        if (!piece[n]) {
            size /= 2;
            continue;
        }
        d->fill(d, piece[n++], 0xff, size);
        total += size;
    }
    assert_int_equal(d->sync(d, NULL), 0);
    while (n) d->free(d, piece[--n]);
    return total;
}

static void poisoned_memory_changes_nothing(void **state)
{
    const char *model = model_any();
    struct lk_dev *d;
    struct lk_err err = {0};
    static struct answer clean, dirty;
    if (!model) return;
    if (lk_cuda_open(&d, 0, NULL, &err)) {
        print_message("skipped: %s\n", err.text);
        return;
    }
    answer_of(model, &clean);
    size_t bytes = poison(d);
    answer_of(model, &dirty);
    print_message("%.1f GB filled with 0xff; %d tokens, %d logprobs each\n", (double)bytes * 1e-9, dirty.n, TOP);
    assert_true(clean.n > 0 && bytes > 0);
    assert_memory_equal(&clean, &dirty, sizeof clean);
    d->close(d);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(poisoned_memory_changes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
