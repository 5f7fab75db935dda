/* Matrix and users: see grid.h. */
#include "bench/grid.h"

#include "base/log.h"
#include "base/mem.h"
#include "bench/blocks.h"
#include "bench/words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int kind_read(const struct lk_grid *g, const char *word, enum lk_block_kind *k, struct lk_err *e)
{
    *k = !strcmp(word, "code") ? LK_BLOCK_CODE : !strcmp(word, "zh") ? LK_BLOCK_ZH : LK_BLOCK_FILE;
    if (*k == LK_BLOCK_FILE && (strcmp(word, "file") || !g->text)) return lk_fail(e, LK_EUSAGE, "--kinds %s: expected code, zh, or file with --text-file", word);
    return 0;
}

static double given(double v, double otherwise)
{
    return isnan(v) ? otherwise : v;
}

/* The request: the field's sampling unless flags say otherwise, thinking off, a fixed seed. */
static char *body_make(const struct lk_grid *g, const char *prompt, int seed)
{
    const struct lk_opts_sampling *s = &g->o->sampling;
    json_t *j = json_pack("{s:s, s:[{s:s, s:s}], s:b, s:{s:b}, s:i, s:f, s:f, s:i, s:f, s:i, s:{s:b}}", "model", g->target->model, "messages", "role", "user", "content",
                          prompt, "stream", 1, "stream_options", "include_usage", 1, "max_tokens", g->o->bench.new_tokens, "temperature",
                          given(s->temp, 0.7), "top_p", given(s->top_p, 0.8), "top_k", s->top_k < 0 ? 20 : s->top_k, "presence_penalty",
                          given(s->presence, 1.5), "seed", seed, "chat_template_kwargs", "enable_thinking", 0);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL, *out = text ? lk_strdup(text) : NULL;
    free(text);
    json_decref(j);
    return out;
}

static int call_make(const struct lk_grid *g, struct lk_call *k, enum lk_block_kind kind, int tokens, long long offset, int seed, int *count, struct lk_err *e)
{
    struct lk_buf prompt = {0};
    int rc = lk_blocks_make(kind, g->text, tokens, offset, g->tok, &prompt, count, e);
    if (!rc && !(k->body = body_make(g, prompt.data, seed))) rc = lk_fail(e, LK_ENOMEM, "no memory for a prompt of %d tokens", tokens);
    lk_buf_free(&prompt);
    return rc;
}

static int cell_run(const struct lk_grid *g, struct lk_cell *c, enum lk_block_kind kind, long long offset, int seed, struct lk_err *e)
{
    struct lk_call k = {0};
    int count = 0, rc = call_make(g, &k, kind, c->tokens, offset, seed, &count, e);
    if (!rc) rc = lk_calls_run(g->target->url, g->o->bench.api_key, &k, 1, g->stall_s, NULL, NULL, e);
    if (!rc && k.prompt_n < 0 && count > 0) k.prompt_n = count; /* a server that says nothing of itself: by our tokenizer, template not counted */
    if (!rc) lk_cell_judge(c, &k, &g->physics);
    lk_call_free(&k);
    return rc;
}

/* Runs of one size and kind: seed 1 cold, seed 2 on the stored prefix, further seeds for the robust row. */
static int pair_run(const struct lk_grid *g, struct lk_table *t, const struct lk_cell *like, long long offset, struct lk_progress *bar, struct lk_err *e)
{
    enum lk_block_kind kind;
    int runs = g->o->bench.seeds > 1 ? 2 + g->o->bench.seeds : 2, rc = kind_read(g, like->kind, &kind, e);
    for (int r = 0; r < runs && !rc; r++) {
        struct lk_cell c = *like;
        if (r < 2)
            snprintf(c.run, sizeof c.run, "%s", r ? "warm" : "cold");
        else
            snprintf(c.run, sizeof c.run, "seed%d", r - 1);
        const struct lk_cell *old = g->o->bench.resume ? lk_table_find(t, c.size, c.kind, c.run) : NULL;
        if (!old || old->mark != LK_CELL_OK) {
            rc = cell_run(g, &c, kind, offset, r + 1, e);
            if (!rc && lk_table_add(t, &c)) rc = lk_fail(e, LK_ENOMEM, "no memory for the table");
            if (!rc && g->o->bench.out) rc = lk_table_save(t, g->o->bench.out, 0, e);
            lk_log_info("%s %s %s: %s %s%.1f tok/s, first token %.2f s", c.size, c.kind, c.run, lk_cell_mark_name(c.mark), c.note[0] ? c.note : "", c.tps, c.ttft_s);
        }
        lk_progress_set(bar, bar->done + 1);
    }
    return rc;
}

int lk_grid_matrix(const struct lk_grid *g, struct lk_table *t, struct lk_err *e)
{
    struct lk_words sizes, kinds;
    struct lk_progress bar;
    int rc = lk_words_split(&sizes, g->o->bench.sizes, "--sizes", e);
    if (!rc) rc = lk_words_split(&kinds, g->o->bench.kinds, "--kinds", e);
    if (rc) return rc;
    int runs = g->o->bench.seeds > 1 ? 2 + g->o->bench.seeds : 2;
    lk_progress_begin(&bar, "matrix", "cells", (uint64_t)(sizes.n * kinds.n * runs));
    for (int i = 0; i < sizes.n && !rc; i++)
        for (int k = 0; k < kinds.n && !rc; k++) {
            struct lk_cell like = {0};
            snprintf(like.size, sizeof like.size, "%s", sizes.at[i]);
            snprintf(like.kind, sizeof like.kind, "%s", kinds.at[k]);
            rc = lk_size_read(sizes.at[i], "--sizes", &like.tokens, e);
            if (!rc) rc = pair_run(g, t, &like, g->offset + 100000ll * i, &bar, e);
        }
    lk_progress_end(&bar);
    return rc;
}

static void users_progress(void *arg, int done)
{
    lk_progress_set(arg, (uint64_t)done);
}

/* Everybody's row, and one for all together. */
static int users_judge(const struct lk_grid *g, struct lk_table *t, const struct lk_call *calls, int n, const char *size, int tokens, struct lk_err *e)
{
    double out = 0, wall = 0;
    int failed = 0;
    struct lk_cell all = {.tokens = tokens, .prompt_n = -1, .cached_n = -1, .ttft_s = -1, .prefill_tps = -1, .accept = -1, .ms_round = -1, .tokens_round = -1, .gb_round = -1, .gbs = -1, .gflops = -1};
    for (int i = 0; i < n; i++) {
        struct lk_cell c = {.tokens = tokens};
        snprintf(c.size, sizeof c.size, "%s", size);
        snprintf(c.kind, sizeof c.kind, "%s", g->o->bench.mode);
        snprintf(c.run, sizeof c.run, "user%d", i + 1);
        lk_cell_judge(&c, &calls[i], NULL);
        if (calls[i].end == LK_CALL_DROPPED) c.mark = LK_CELL_OK; /* it left on purpose */
        failed += c.mark != LK_CELL_OK;
        if (c.predicted_n > 0) out += c.predicted_n;
        if (calls[i].start_at + calls[i].total > wall) wall = calls[i].start_at + calls[i].total;
        if (lk_table_add(t, &c)) return lk_fail(e, LK_ENOMEM, "no memory for the table");
    }
    snprintf(all.size, sizeof all.size, "%s", size);
    snprintf(all.kind, sizeof all.kind, "%s", g->o->bench.mode);
    snprintf(all.run, sizeof all.run, "all %d", n);
    all.predicted_n = out;
    all.tps = wall > 0 ? out / wall : -1;
    if (failed) {
        all.mark = LK_CELL_FAILED;
        snprintf(all.note, sizeof all.note, "%d of %d users were not served", failed, n);
    }
    return lk_table_add(t, &all) ? lk_fail(e, LK_ENOMEM, "no memory for the table") : 0;
}

int lk_grid_users(const struct lk_grid *g, struct lk_table *t, struct lk_err *e)
{
    const char *mode = g->o->bench.mode;
    struct lk_words sizes;
    int tokens, count, n = g->o->bench.users, rc = lk_words_split(&sizes, g->o->bench.sizes, "--sizes", e);
    if (!rc) rc = lk_size_read(sizes.at[0], "--sizes", &tokens, e);
    if (!rc && strcmp(mode, "load") && strcmp(mode, "burst") && strcmp(mode, "drop")) rc = lk_fail(e, LK_EUSAGE, "--mode %s: expected load, burst or drop", mode);
    if (rc) return rc;
    struct lk_call *calls = lk_calloc((size_t)n, sizeof *calls);
    struct lk_progress bar;
    if (!calls) return lk_fail(e, LK_ENOMEM, "no memory for %d users", n);
    lk_progress_begin(&bar, "users", "answers", (uint64_t)n);
    for (int i = 0; i < n && !rc; i++) {
        rc = call_make(g, &calls[i], i % 2 ? LK_BLOCK_ZH : LK_BLOCK_CODE, tokens, g->offset + 1000ll * (i + 1) + 7, i + 1, &count, e);
        calls[i].start_at = strcmp(mode, "load") ? 0 : 0.25 * i; /* load: one after the other; burst, drop: all at once */
        if (!strcmp(mode, "drop") && i % 2) calls[i].drop_after = 10;
    }
    if (!rc) rc = lk_calls_run(g->target->url, g->o->bench.api_key, calls, n, g->stall_s, users_progress, &bar, e);
    if (!rc) rc = users_judge(g, t, calls, n, sizes.at[0], tokens, e);
    lk_progress_end(&bar);
    for (int i = 0; i < n; i++) lk_call_free(&calls[i]);
    lk_free(calls);
    return rc;
}

int lk_grid_marked(const struct lk_table *t)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) n += t->cells[i].mark != LK_CELL_OK;
    return n;
}
