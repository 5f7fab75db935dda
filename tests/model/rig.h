/* A model on the CPU with everything a test of src/model needs around it. */
#ifndef LK_TESTS_MODEL_RIG_H
#define LK_TESTS_MODEL_RIG_H

#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/model.h"
#include "model/score.h"
#include "model/state.h"
#include "tp/comm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MASTER LK_SHARED_DIR "/demo-model"

struct rig {
    struct lk_artifact *a;
    struct lk_dev *d;
    struct lk_model *m;
    struct lk_state *s;
    struct lk_score *c;
    int vocab, hidden, layers;
};

struct rig_opts {
    int tokens, chunk, threads, slots, record, lanes;
    enum lk_kv_kind kv;
    int i8; /* kv 0 stands for F32, the default; this says INT8 */
    const char *isa;
    struct lk_comm *comm;
};

/* 0, or a negative code with e filled and nothing left open. Zero fields take the defaults: 512 tokens, chunk 64, one thread, F32. */
static inline int rig_try(struct rig *r, const char *path, const struct rig_opts *o, struct lk_err *e)
{
    memset(r, 0, sizeof *r);
    int tokens = o->tokens ? o->tokens : 512, chunk = o->chunk ? o->chunk : 64, lanes = o->lanes ? o->lanes : 1;
    int rows = chunk < 16 ? 16 : chunk, pages = (tokens + LK_PAGE - 1) / LK_PAGE * lanes;
    int rc = lk_artifact_open(&r->a, path, e);
    if (!rc) rc = lk_cpu_open(&r->d, o->threads ? o->threads : 1, o->isa, e);
    const struct lk_model_opts mo = {.max_rows = rows, .max_lanes = lanes, .max_pages = pages,
                                     .max_logit_rows = rows, .comm = o->comm};
    if (!rc) rc = lk_model_open(&r->m, r->a, r->d, &mo, e);
    if (rc) return rc;
    const struct lk_shape *p = lk_model_shape(r->m);
    const struct lk_state_opts so = {.kv = o->kv == LK_KV_I8 && !o->i8 ? LK_KV_F32 : o->kv, .n_pages = pages + 4,
                                     .n_slots = o->slots ? o->slots : lanes, .max_record_rows = o->record,
                                     .rank = o->comm ? o->comm->rank : 0, .n_ranks = o->comm ? o->comm->n : 1};
    rc = lk_state_open(&r->s, r->d, p, &so, e);
    if (!rc) rc = lk_score_open(&r->c, r->m, r->s, tokens, chunk, rows, e);
    r->vocab = p->vocab, r->hidden = p->hidden, r->layers = p->layers;
    return rc;
}

static inline void rig_open(struct rig *r, const char *path, const struct rig_opts *o)
{
    struct lk_err e = {0};
    if (rig_try(r, path, o, &e)) fail_msg("%s", e.text);
}

static inline void rig_close(struct rig *r)
{
    lk_score_close(r->c);
    lk_state_close(r->s);
    lk_model_close(r->m);
    if (r->d) r->d->close(r->d);
    lk_artifact_close(r->a);
    memset(r, 0, sizeof *r);
}

/* Everything a score gives, in memory. */
struct kept {
    struct rig *r;
    int n;
    float *logits, *hidden, *mtp; /* [n][vocab], [layers+1][n][hidden], [n-1][vocab]; NULL: not wanted */
    double nll;
};

static inline int kept_logits(void *arg, int row, const float *x, struct lk_err *e)
{
    struct kept *k = arg;
    memcpy(k->logits + (size_t)row * (size_t)k->r->vocab, x, (size_t)k->r->vocab * 4);
    return 0;
}

static inline int kept_hidden(void *arg, int layer, int row, const float *x, struct lk_err *e)
{
    struct kept *k = arg;
    memcpy(k->hidden + ((size_t)layer * (size_t)k->n + (size_t)row) * (size_t)k->r->hidden, x, (size_t)k->r->hidden * 4);
    return 0;
}

static inline int kept_mtp(void *arg, int row, const float *x, struct lk_err *e)
{
    struct kept *k = arg;
    memcpy(k->mtp + (size_t)row * (size_t)k->r->vocab, x, (size_t)k->r->vocab * 4);
    return 0;
}

static inline void *rig_floats(size_t n)
{
    void *p = calloc(n, 4);
    assert_non_null(p);
    return p;
}

static inline void kept_run(struct kept *k, struct rig *r, const int32_t *ids, int n, int hidden, int mtp)
{
    struct lk_err e = {0};
    memset(k, 0, sizeof *k);
    k->r = r, k->n = n;
    k->logits = rig_floats((size_t)n * (size_t)r->vocab);
    if (hidden) k->hidden = rig_floats((size_t)(r->layers + 1) * (size_t)n * (size_t)r->hidden);
    if (mtp) k->mtp = rig_floats((size_t)n * (size_t)r->vocab);
    const struct lk_score_sink sink = {.arg = k, .logits = kept_logits, .hidden = hidden ? kept_hidden : NULL,
                                       .mtp = mtp ? kept_mtp : NULL};
    if (lk_score_run(r->c, ids, n, &sink, &k->nll, &e)) fail_msg("%s", e.text);
}

static inline void kept_free(struct kept *k)
{
    free(k->logits);
    free(k->hidden);
    free(k->mtp);
    memset(k, 0, sizeof *k);
}

/* One sequence driven by hand: pages taken as it grows. */
struct line {
    struct rig *r;
    int32_t pages[64], slot;
    int n_pages, at;
};

static inline void line_open(struct line *l, struct rig *r)
{
    memset(l, 0, sizeof *l);
    l->r = r;
    assert_int_equal(lk_state_slot_alloc(r->s, &l->slot), 0);
}

static inline void line_close(struct line *l)
{
    while (l->n_pages) lk_state_page_unref(l->r->s, l->pages[--l->n_pages]);
    lk_state_slot_free(l->r->s, l->slot);
}

static inline void line_reach(struct line *l, int tokens)
{
    for (; l->n_pages * LK_PAGE < tokens; l->n_pages++)
        assert_int_equal(lk_state_page_alloc(l->r->s, l->pages + l->n_pages), 0);
}

/* n tokens in one step; rows 0..n-1 all give logits when flags ask. Advances unless RECORD. */
static inline void line_step(struct line *l, const int32_t *ids, int n, int flags)
{
    struct lk_err e = {0};
    int32_t rows[1024];
    line_reach(l, l->at + n);
    for (int i = 0; i < n; i++) rows[i] = i;
    const struct lk_lane lane = {.rows = n, .pos0 = l->at, .slot = l->slot};
    const struct lk_step st = {.flags = flags, .n_rows = n, .n_lanes = 1, .n_pages = l->n_pages,
                               .n_logits = flags & (LK_STEP_LOGITS | LK_STEP_ARGMAX) ? n : 0, .ids = ids, .lanes = &lane,
                               .pages = l->pages, .logit_rows = rows};
    if (lk_model_step(l->r->m, l->r->s, &st, &e)) fail_msg("%s", e.text);
    if (!(flags & LK_STEP_RECORD)) l->at += n;
}

/* Greedy from a prompt; returns how many ids were made (a stop id is the last). */
static inline int line_greedy(struct line *l, const int32_t *ids, int n, int chunk, int32_t *out, int max, int32_t stop)
{
    struct lk_err e = {0};
    int32_t best[1024];
    int made = 0, last = 0;
    for (int at = 0; at < n; at += last) {
        last = n - at < chunk ? n - at : chunk;
        line_step(l, ids + at, last, LK_STEP_ARGMAX);
    }
    while (made < max) {
        if (lk_model_argmax(l->r->m, best, &e)) fail_msg("%s", e.text);
        out[made++] = best[last - 1];
        if (out[made - 1] == stop || made == max) break;
        last = 1;
        line_step(l, out + made - 1, 1, LK_STEP_ARGMAX);
    }
    return made;
}

/* Largest absolute difference; NaN counts as infinite. */
static inline double rig_gap(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d == d ? d : INFINITY;
    }
    return worst;
}

static inline int rig_best(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

#endif
