/* The engine on 2 and 4 CPU ranks answers as on one: greedy ids of 50 prompts, alone and batched, with drafts and without, cold and
 * warm; heads that divide and KV heads that must be replicated. And a fault of any kind ends in an error, never in other ids. */
#include "runtime/engine_help.h"

#include "base/log.h"
#include "model/toy.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { PROMPTS = 50, NEW = 12, TOY_PROMPTS = 12 };

static const char *const words[PROMPTS] = {
    "river", "lighthouse", "anchor", "apple", "bridge", "candle", "desert", "engine", "feather", "garden", "hammer", "island", "jacket",
    "kettle", "ladder", "mirror", "needle", "ocean", "paper", "quarry", "ribbon", "saddle", "table", "umbrella", "valley", "window", "yarn",
    "zebra", "autumn", "barley", "copper", "dragon", "ember", "forest", "glacier", "harbour", "ivory", "jungle", "kernel", "lantern",
    "marble", "nectar", "orchard", "pebble", "quilt", "raven", "silver", "thunder", "velvet", "willow"};

struct prompt {
    struct lk_ids ids;
    struct result want;
};
static struct prompt prompts[PROMPTS];

static struct lk_opts_engine opts_ranks(const char *model, int n)
{
    struct lk_opts_engine o = opts_small(model);
    o.ctx = 512;
    o.dev.n = n;
    o.dev.threads = n == 1 ? 2 : 1;
    o.dev.program = LK_BINARY;
    o.dev.patience_s = 60;
    for (int i = 0; i < n; i++) o.dev.at[i].index = i;
    return o;
}

static struct lk_engine *engine_open(const struct lk_opts_engine *o)
{
    struct lk_engine *e = NULL;
    struct lk_err err = {0};
    if (lk_engine_open(&e, o, &err)) fail_msg("%s", err.text);
    return e;
}

static struct lk_request request_of(const struct prompt *p, int draft)
{
    struct lk_request r = {.ids = p->ids.v, .n_ids = p->ids.n, .max_tokens = NEW, .draft = draft};
    lk_sampling_init(&r.sampling);
    r.sampling.temp = 0;
    return r;
}

static void prompts_make(const char *model)
{
    struct lk_buf path = {0}, json = {0}, text = {0};
    struct lk_tokenizer *t;
    struct lk_err e = {0};
    lk_path_join(&path, model, "tokenizer.json");
    assert_int_equal(lk_file_read(&json, path.data, 1 << 24, &e), 0);
    assert_int_equal(lk_tokenizer_open(&t, json.data, json.len, &e), 0);
    for (int i = 0; i < PROMPTS; i++) {
        lk_buf_reset(&text);
        lk_buf_fmt(&text, "<|im_start|>user\nWhat does \"%s\" mean?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", words[i]);
        assert_int_equal(lk_tokenizer_encode(t, text.data, text.len, LK_SPECIALS_ALL, &prompts[i].ids, &e), 0);
    }
    lk_tokenizer_close(t);
    lk_buf_free(&path);
    lk_buf_free(&json);
    lk_buf_free(&text);
}

static void same(const struct prompt *p, const struct result *got, const char *how)
{
    if (got->n != p->want.n || memcmp(got->ids, p->want.ids, (size_t)got->n * sizeof *got->ids))
        fail_msg("%s: prompt of %zu tokens: %d ids that are not those of one device (%d): %s", how, p->ids.n, got->n, p->want.n, got->text);
}

static void run_alone(struct lk_engine *e, struct prompt *p, int n, int draft, const char *how)
{
    for (int i = 0; i < n; i++) {
        struct lk_request r = request_of(&p[i], draft);
        struct result res = run_one(e, &r);
        if (how)
            same(&p[i], &res, how);
        else
            p[i].want = res;
        if (how) lk_free(res.ids);
    }
}

static void run_together(struct lk_engine *e, struct prompt *p, int n, int draft, const char *how)
{
    uint64_t ids[PROMPTS];
    struct result res[PROMPTS];
    struct lk_err err = {0};
    for (int i = 0; i < n; i++) {
        struct lk_request r = request_of(&p[i], draft);
        ids[i] = lk_engine_submit(e, &r, &err);
        assert_true(ids[i] != 0);
    }
    run_all(e, ids, res, n);
    for (int i = 0; i < n; i++) {
        same(&p[i], &res[i], how);
        lk_free(res[i].ids);
    }
}

static void two_ranks_answer_as_one(void **state)
{
    const char *model = model_any();
    if (!model) return;
    prompts_make(model);
    struct lk_opts_engine o = opts_ranks(model, 1);
    struct lk_engine *e = engine_open(&o);
    run_alone(e, prompts, PROMPTS, 0, NULL);
    lk_engine_close(e);
    o = opts_ranks(model, 2);
    e = engine_open(&o);
    for (int draft = 0; draft <= 3; draft += 3) { /* all eight rows: draft 0 and 3, alone and batched, cold and warm */
        struct lk_err err = {0};
        char how[64];
        for (int row = 0; row < 4; row++) {
            int together = row / 2, warm = row % 2;
            if (!warm) assert_int_equal(lk_engine_forget(e, &err), 0);
            snprintf(how, sizeof how, "two ranks, draft %d, %s, %s", draft, together ? "batched" : "alone", warm ? "warm" : "cold");
            (together ? run_together : run_alone)(e, prompts, PROMPTS, draft, how);
            print_message("%s: %d prompts, all ids those of one device\n", how, PROMPTS);
        }
    }
    lk_engine_close(e);
    for (int i = 0; i < PROMPTS; i++) {
        lk_ids_free(&prompts[i].ids);
        lk_free(prompts[i].want.ids);
    }
}

static void toy_prompts(struct prompt *p)
{
    memset(p, 0, TOY_PROMPTS * sizeof *p);
    for (int i = 0; i < TOY_PROMPTS; i++)
        for (int j = 0; j < 5 + i * 13 % 80; j++) lk_ids_add(&p[i].ids, (int32_t)(toy_rand(77, (uint64_t)(i * 1000 + j)) % TOY_VOCAB));
}

static void four_ranks_answer_as_one(void **state)
{
    static const char *const names[] = {"27b-mix", "bf16"}; /* 4 KV heads divide; 2 are replicated */
    for (int k = 0; k < 2; k++) {
        const struct toy *t = NULL;
        for (int i = 0; i < TOYS; i++)
            if (!strcmp(toys[i].name, names[k])) t = &toys[i];
        assert_non_null(t);
        const char *dir = toy_write(t);
        struct prompt p[TOY_PROMPTS];
        toy_prompts(p);
        struct lk_opts_engine o = opts_ranks(dir, 1);
        struct lk_engine *e = engine_open(&o);
        run_alone(e, p, TOY_PROMPTS, 0, NULL);
        lk_engine_close(e);
        o = opts_ranks(dir, 4);
        e = engine_open(&o);
        run_alone(e, p, TOY_PROMPTS, 0, "four ranks, cold");
        run_alone(e, p, 4, 3, "four ranks, warm, draft 3");
        run_together(e, p, TOY_PROMPTS, 3, "four ranks, batched");
        lk_engine_close(e);
        for (int i = 0; i < TOY_PROMPTS; i++) {
            lk_ids_free(&p[i].ids);
            lk_free(p[i].want.ids);
        }
        toy_remove(dir);
    }
}

/* With a fault on the follower a request ends in an error or with ids that were agreed on before it; never with others. */
static void faults_never_answer_wrong(void **state)
{
    static const char *const kinds[] = {"token", "position", "skip", "zero", "flip", "late"};
    const struct toy *t = &toys[0];
    const char *dir = toy_write(t);
    struct prompt p[TOY_PROMPTS];
    toy_prompts(p);
    struct lk_opts_engine o = opts_ranks(dir, 1);
    struct lk_engine *e = engine_open(&o);
    run_alone(e, p, TOY_PROMPTS, 0, NULL);
    lk_engine_close(e);
    for (int k = 0; k < 6; k++)
        for (int step = 4; step < 80; step = step * 2 + 3) {
            char fault[32];
            snprintf(fault, sizeof fault, "%s:%d", kinds[k], step);
            o = opts_ranks(dir, 2);
            o.dev.fault = fault;
            o.dev.patience_s = 0.5;
            struct lk_err err = {0};
            if (lk_engine_open(&e, &o, &err)) continue; /* the fault came while the ranks opened */
            int failed = 0;
            for (int i = 0; i < TOY_PROMPTS && !failed; i++) {
                struct lk_request r = request_of(&p[i], 0);
                struct result res = run_one(e, &r);
                for (int j = 0; j < res.n; j++)
                    if (res.ids[j] != p[i].want.ids[j]) fail_msg("%s: a wrong token was given out", fault);
                failed = res.n < p[i].want.n;
                lk_free(res.ids);
            }
            lk_engine_close(e);
            if (!failed && strcmp(kinds[k], "late")) fail_msg("%s: the fault was not noticed", fault);
        }
    for (int i = 0; i < TOY_PROMPTS; i++) {
        lk_ids_free(&p[i].ids);
        lk_free(p[i].want.ids);
    }
    toy_remove(dir);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_answer_as_one),
        cmocka_unit_test(four_ranks_answer_as_one),
        cmocka_unit_test(faults_never_answer_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
