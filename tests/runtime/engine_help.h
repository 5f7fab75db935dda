/* Opening an engine on the demo model and running requests to their end, for tests. The bundled model of the repo when it is there, else
 * the BF16 master beside the repo; a test skips with one line when neither is. */
#ifndef LK_TESTS_ENGINE_HELP_H
#define LK_TESTS_ENGINE_HELP_H

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/mem.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#define PATIENCE 1200.0 /* seconds for an event: a sanitized step is fifty times as slow, and the machine may be busy */
#else
#define PATIENCE 120.0
#endif
#define MASTER LK_SHARED_DIR "/demo-model"
#define BUNDLED LK_SOURCE_DIR "/models/demo"

static inline const char *model_any(void)
{
    if (lk_file_exists(BUNDLED "/config.json")) return BUNDLED;
    if (lk_file_exists(MASTER "/config.json")) return MASTER;
    printf("skipped: neither %s nor %s is there\n", BUNDLED, MASTER);
    return NULL;
}

static inline struct lk_opts_engine opts_small(const char *model)
{
    return (struct lk_opts_engine){.model = model, .dev = {.n = 1, .threads = 1}, .kv = LK_OPT_KV_F32, .ctx = 2048,
                                   .parallel = 4, .draft = -1, .prefix_ram = 64 << 20};
}

struct result {
    int32_t *ids;
    int n, n_logprobs;
    enum lk_finish finish;
    int stop_index, code, progress;
    struct lk_timings t;
    char text[768];
};

static void result_add(struct result *r, const struct lk_event *ev)
{
    if (ev->kind == LK_EV_PROGRESS) r->progress++;
    if (ev->kind == LK_EV_TOKENS) {
        r->ids = lk_reallocarray(r->ids, (size_t)(r->n + ev->n_tokens), sizeof *r->ids);
        memcpy(r->ids + r->n, ev->tokens, (size_t)ev->n_tokens * sizeof *r->ids);
        r->n += ev->n_tokens;
        if (ev->logprobs) r->n_logprobs += ev->n_tokens;
    }
    if (ev->kind == LK_EV_DONE || ev->kind == LK_EV_ERROR) {
        r->finish = ev->finish;
        r->stop_index = ev->stop_index;
        r->code = ev->code;
        r->t = ev->t;
        snprintf(r->text, sizeof r->text, "%s", ev->text ? ev->text : "");
    }
}

/* Waits until all n requests ended. ids[i] 0: skipped. */
static inline void run_all(struct lk_engine *e, const uint64_t *ids, struct result *res, int n)
{
    int left = 0;
    memset(res, 0, sizeof *res * (size_t)n);
    for (int i = 0; i < n; i++) left += ids[i] != 0;
    while (left > 0) {
        struct lk_event ev;
        if (lk_engine_next(e, &ev, PATIENCE) != 1) {
            printf("no event within 120 s\n");
            return;
        }
        for (int i = 0; i < n; i++)
            if (ids[i] == ev.id) result_add(&res[i], &ev);
        left -= ev.kind == LK_EV_DONE || ev.kind == LK_EV_ERROR;
    }
}

static inline struct result run_one(struct lk_engine *e, const struct lk_request *r)
{
    struct lk_err err = {0};
    struct result res = {0};
    uint64_t id = lk_engine_submit(e, r, &err);
    if (id) run_all(e, &id, &res, 1);
    else snprintf(res.text, sizeof res.text, "%s", err.text);
    return res;
}

/* An array of ids out of parsed JSON; lk_free. */
static inline int32_t *ids_read(const json_t *a, size_t *n)
{
    *n = json_array_size(a);
    int32_t *ids = lk_calloc(*n ? *n : 1, sizeof *ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return ids;
}

#endif
