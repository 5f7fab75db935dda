/* One step: token rows through the layers. All integers of a step travel in one upload to fixed addresses; after that the
 * ops are issued in order and nothing is read back, so that a small step can be captured once and replayed. What changes
 * the launches without standing in device memory is in the graph key. */
#include "model/inside.h"

#include "base/mem.h"

#include <string.h>

enum { GRAPH_STEP = 1, GRAPH_FOLD = 2 };

/* ---- the step's integers ---- */

/* lanes | logit rows | hidden rows | ids | rope[3] | pages; pages last, because only their used part is sent */
struct layout {
    size_t logit, hidden, ids, rope, pages;
};

static struct layout ctl_layout(const struct lk_model *m, int rows)
{
    struct layout l;
    int small = rows <= m->dev->small_rows && m->dev->small_rows < m->o.max_rows;
    size_t cap = (size_t)(small ? m->dev->small_rows : m->o.max_rows);
    size_t logits = (size_t)m->o.max_logit_rows < cap ? (size_t)m->o.max_logit_rows : cap;
    l.logit = (size_t)m->o.max_lanes * (sizeof(struct lk_lane) / 4);
    l.hidden = l.logit + logits;
    l.ids = l.hidden + cap;
    l.rope = l.ids + cap;
    l.pages = l.rope + 3 * cap;
    return l;
}

size_t lk__ctl_words(const struct lk_model *m)
{
    return ctl_layout(m, m->o.max_rows).pages + (size_t)m->o.max_pages;
}

int lk__ctl_open(struct lk_model *m, struct ctl *c, struct lk_err *e)
{
    c->cap = lk__ctl_words(m);
    c->dev = m->dev->alloc(m->dev, c->cap * 4, "step integers");
    c->host = lk_calloc(c->cap, 4);
    return c->dev && c->host ? 0 : lk_fail(e, LK_ENOMEM, "no memory for the integers of a step");
}

static int check_lane(const struct lk_model *m, const struct lk_state *s, const struct lk_step *st,
                      int i, int row0, struct lk_err *e)
{
    const struct lk_lane *l = st->lanes + i;
    int64_t end = (int64_t)l->pos0 + l->rows, pages = (end + LK_PAGE - 1) / LK_PAGE;
    if (l->row0 != row0 || l->rows < 0 || l->rows > st->n_rows - row0)
        return lk_fail(e, LK_EREQUEST, "lane %d: rows %d at %d do not follow the lane before", i, l->rows, l->row0);
    if (l->pos0 < 0 || end > m->shape.max_ctx)
        return lk_fail(e, LK_EREQUEST, "lane %d: position %lld is past the model's context of %d tokens", i,
                       (long long)end, m->shape.max_ctx);
    if (l->page0 < 0 || l->page0 + pages > st->n_pages)
        return lk_fail(e, LK_EREQUEST, "lane %d: position %lld has no page in its table", i, (long long)end);
    for (int64_t p = 0; p < pages; p++) {
        int32_t page = st->pages[l->page0 + p];
        if (page < 0 || page >= s->o.n_pages)
            return lk_fail(e, LK_EREQUEST, "lane %d: page %d is not in the pool of %d", i, page, s->o.n_pages);
    }
    if (l->slot < 0 || l->slot >= s->o.n_slots)
        return lk_fail(e, LK_EREQUEST, "lane %d: state slot %d is not in the pool of %d", i, l->slot, s->o.n_slots);
    return 0;
}

static int check_rows(const int32_t *rows, int n, int limit, const char *what, struct lk_err *e)
{
    for (int i = 0; i < n; i++)
        if (rows[i] < 0 || rows[i] >= limit)
            return lk_fail(e, LK_EREQUEST, "%s %d: expected 0 to %d, found %d", what, i, limit - 1, rows[i]);
    return 0;
}

static int check_step(const struct lk_model *m, const struct lk_state *s, const struct lk_step *st,
                      struct lk_err *e)
{
    if (st->n_rows < 1 || st->n_rows > m->o.max_rows || st->n_lanes < 1 || st->n_lanes > m->o.max_lanes ||
        st->n_pages < 1 || st->n_pages > m->o.max_pages || st->n_logits < 0 ||
        st->n_logits > m->o.max_logit_rows || st->n_logits > st->n_rows)
        return lk_fail(e, LK_EREQUEST,
                       "step of %d rows, %d lanes, %d pages, %d logit rows: the model was opened for %d, %d, %d, %d",
                       st->n_rows, st->n_lanes, st->n_pages, st->n_logits, m->o.max_rows, m->o.max_lanes,
                       m->o.max_pages, m->o.max_logit_rows);
    int row0 = 0, rc = check_rows(st->ids, st->n_rows, m->shape.vocab, "token", e);
    for (int i = 0; i < st->n_lanes && !rc; i++) {
        rc = check_lane(m, s, st, i, row0, e);
        row0 += st->lanes[i].rows;
    }
    if (!rc && row0 != st->n_rows)
        rc = lk_fail(e, LK_EREQUEST, "step of %d rows: the lanes hold %d", st->n_rows, row0);
    return rc ? rc : check_rows(st->logit_rows, st->n_logits, st->n_rows, "logit row", e);
}

/* Up to 64, then four sizes an octave: few graphs, and no grid more than a quarter too large. */
static int ctx_bucket(int64_t ctx)
{
    int64_t step = 64;
    while (step * 8 < ctx) step *= 2;
    return (int)((ctx + step - 1) / step * step);
}

static void fill_rope(const struct lk_step *st, int32_t *rope)
{
    size_t n = (size_t)st->n_rows;
    if (st->rope) {
        memcpy(rope, st->rope, 3 * n * sizeof *rope);
        return;
    }
    for (int i = 0; i < st->n_lanes; i++)
        for (int r = 0; r < st->lanes[i].rows; r++) rope[st->lanes[i].row0 + r] = st->lanes[i].pos0 + r;
    memcpy(rope + n, rope, n * sizeof *rope);
    memcpy(rope + 2 * n, rope, n * sizeof *rope);
}

int lk__ctl_fill(struct lk_model *m, const struct lk_state *s, struct ctl *c, const struct lk_step *st,
                 const int32_t *hidden_rows, struct lk_err *e)
{
    int rc = check_step(m, s, st, e);
    if (rc) return rc;
    struct layout l = ctl_layout(m, st->n_rows);
    size_t n = (size_t)st->n_rows;
    int64_t ctx = 1;
    for (int i = 0; i < st->n_lanes; i++)
        if (st->lanes[i].rows && st->lanes[i].pos0 + st->lanes[i].rows > ctx)
            ctx = st->lanes[i].pos0 + st->lanes[i].rows;
    memcpy(c->host, st->lanes, (size_t)st->n_lanes * sizeof *st->lanes);
    if (st->n_logits) memcpy(c->host + l.logit, st->logit_rows, (size_t)st->n_logits * 4);
    if (hidden_rows) memcpy(c->host + l.hidden, hidden_rows, n * 4);
    memcpy(c->host + l.ids, st->ids, n * 4);
    fill_rope(st, c->host + l.rope);
    memcpy(c->host + l.pages, st->pages, (size_t)st->n_pages * 4);
    m->dev->upload(m->dev, c->dev, c->host, (l.pages + (size_t)st->n_pages) * 4);
    c->batch = (struct lk_batch){.n_rows = st->n_rows, .n_lanes = st->n_lanes, .max_ctx = ctx_bucket(ctx),
                                 .ids = c->dev + l.ids, .rope = c->dev + l.rope,
                                 .lanes = (const struct lk_lane *)c->dev, .pages = c->dev + l.pages};
    c->logit_rows = c->dev + l.logit;
    c->hidden_rows = c->dev + l.hidden;
    c->rows = st->n_rows, c->logits = st->n_logits;
    c->used = l.pages + (size_t)st->n_pages;
    return 0;
}

uint64_t lk__graph_key(const struct lk_state *s, const struct ctl *c, int kind, int flags)
{
    const uint64_t v[] = {(uint64_t)kind, (uint64_t)flags, (uint64_t)c->rows, (uint64_t)c->logits,
                          (uint64_t)c->batch.n_lanes, (uint64_t)c->batch.max_ctx, (uint64_t)(uintptr_t)s};
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        h = (h ^ v[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* ---- layers ---- */

/* x += act W^T, then h = norm(x) by next_norm unless that is NULL. Several ranks hold columns of W: their partial sums meet first, in rank order. */
static void add_linear(struct lk_model *m, const struct lk_mat *w, const void *act, int T, const float *next_norm)
{
    struct lk_dev *d = m->dev;
    int alone = m->n_ranks == 1, H = m->shape.hidden;
    struct lk_linear_args a = {.w = w, .x = act, .y = alone ? m->x : m->part, .T = T, .ldy = H, .add = alone};
    if (alone) a.next = (struct lk_next_norm){next_norm, m->shape.eps, m->h};
    d->ops->linear(d, &a);
    if (alone) return;
    if (!m->comm_err.code) /* else the group has stopped: nothing more is sent, the step reports it */
        m->comm->reduce_add(m->comm, d, m->x, m->part, (size_t)T * (size_t)H, &m->comm_err);
    if (next_norm) d->ops->norm(d, m->x, next_norm, m->shape.eps, T, H, m->h);
}

static void mix_attn(struct lk_model *m, const struct lk_state *s, const struct layer *l,
                     const struct lk_batch *b, int window)
{
    struct lk_attn_args a = {
        .b = b, .proj = m->proj, .ld = m->proj_ld, .q_norm = l->q_norm, .k_norm = l->k_norm,
        .eps = m->shape.eps, .n_q = m->local.n_q, .n_kv = m->local.n_kv, .rope_dim = m->shape.rope_dim,
        .inv_freq = m->w.inv_freq, .section = m->w.section, .kv_kind = s->o.kv, .kv = s->kv[l->index],
        .window = window, .out = m->mid,
    };
    m->dev->ops->attn(m->dev, &a);
}

static void mix_gdn(struct lk_model *m, const struct lk_state *s, const struct layer *l,
                    const struct lk_batch *b, int record)
{
    struct lk_gdn_args a = {
        .b = b, .proj = m->proj, .ld = m->proj_ld, .hk = m->local.hk, .hv = m->local.hv,
        .tiled = m->local.tiled, .conv_w = l->conv_w, .a_coef = l->a_coef, .dt_bias = l->dt_bias,
        .norm_w = l->gdn_norm, .eps = m->shape.eps, .state = s->gdn[l->index], .conv = s->conv[l->index],
        .mode = record ? LK_GDN_RECORD : LK_GDN_RUN, .record = s->record[l->index], .out = m->mid,
    };
    m->dev->ops->gdn(m->dev, &a);
}

void lk__layer(struct lk_model *m, const struct lk_state *s, const struct layer *l, const struct lk_batch *b,
               int record, int window, const float *next_norm)
{
    struct lk_dev *d = m->dev;
    int T = b->n_rows;
    struct lk_linear_args in = {.w = l->proj, .x = m->h, .y = m->proj, .T = T, .ldy = m->proj_ld, .normed = 1};
    d->ops->linear(d, &in);
    if (l->full)
        mix_attn(m, s, l, b, window);
    else
        mix_gdn(m, s, l, b, record);
    add_linear(m, l->out, m->mid, T, l->post_norm);
    struct lk_gate_up_args mlp = {.w = l->gate_up, .x = m->h, .out = m->mid, .T = T, .normed = 1};
    d->ops->gate_up(d, &mlp);
    add_linear(m, l->down, m->mid, T, next_norm);
}

/* ---- head ---- */

void lk__results_set(struct lk_model *m, int n, int draft, int argmax)
{
    struct lk_ranges r;
    int whole = draft ? m->w.draft_rows : m->shape.vocab;
    lk_shard(&m->dims, LK_PART_VOCAB, whole, m->rank, m->n_ranks, &r);
    m->res = (struct results){.n = n, .draft = draft, .argmax_done = argmax, .whole = whole,
                              .id0 = r.n ? (int32_t)r.r[0].at : whole, .cols = (int)r.total};
    m->res.used = m->res.cols;
    if (!draft && m->res.id0 + m->res.cols > m->o.vocab_used) m->res.used = m->o.vocab_used - m->res.id0;
}

void lk__head(struct lk_model *m, int n, enum which_head head, int argmax)
{
    struct lk_dev *d = m->dev;
    const struct lk_mat *mats[] = {m->w.head, m->w.draft_head, m->w.rough_head};
    lk__results_set(m, n, head == HEAD_SHORT, argmax);
    struct lk_linear_args a = {.w = mats[head], .x = m->head_h, .y = m->logits, .T = n, .ldy = m->head_ld};
    d->ops->linear(d, &a);
    if (argmax)
        d->ops->argmax(d, m->logits, n, m->res.used, m->head_ld, m->res.id0, m->arg_ids,
                       (float *)(m->arg_ids + n));
}

void lk__final_norm(struct lk_model *m, const float *w, int T, float *hidden, const int32_t *rows, int n)
{
    struct lk_norm_out_args a = {.x = m->x, .w = w, .eps = m->shape.eps, .T = T, .n = m->shape.hidden, .n_out = n,
                                 .y = hidden, .rows = rows, .h = m->head_h};
    m->dev->ops->norm_out(m->dev, &a);
}

/* ---- the step ---- */

static void issue(struct lk_model *m, struct lk_state *s, const struct lk_step *st)
{
    struct lk_dev *d = m->dev;
    const struct lk_batch *b = &m->main.batch;
    const struct layer *l = m->w.layers, *end = l + m->shape.layers;
    int T = st->n_rows, H = m->shape.hidden, tap = st->flags & LK_STEP_HIDDEN && st->tap != NULL;
    int want = st->flags & (LK_STEP_LOGITS | LK_STEP_ARGMAX) ? st->n_logits : 0;
    d->ops->embed(d, m->w.embed, b->ids, T, m->x);
    if (tap) st->tap(st->tap_arg, 0, m->x, T);
    d->ops->norm(d, m->x, l->in_norm, m->shape.eps, T, H, m->h);
    for (int i = 1; l < end; i++, l++) {
        lk__layer(m, s, l, b, st->flags & LK_STEP_RECORD, 0, l + 1 < end ? l[1].in_norm : NULL);
        if (tap) st->tap(st->tap_arg, i, m->x, T);
    }
    lk__final_norm(m, m->w.norm, T, m->hidden, m->main.logit_rows, want);
    if (tap) st->tap(st->tap_arg, m->shape.layers, m->hidden, T);
    if (want) lk__head(m, want, HEAD_OWN, st->flags & LK_STEP_ARGMAX);
}

int lk__comm_status(const struct lk_model *m, struct lk_err *e)
{
    return m->comm_err.code ? lk_fail(e, m->comm_err.code, "%s", m->comm_err.text) : 0;
}

int lk__model_step(struct lk_model *m, struct lk_state *s, const struct lk_step *st, struct lk_err *e)
{
    if (st->flags & LK_STEP_RECORD && st->n_rows > s->o.max_record_rows)
        return lk_fail(e, LK_EREQUEST, "a recorded step of %d rows: the state was opened for %d", st->n_rows,
                       s->o.max_record_rows);
    lk_mem_guard_begin("model step");
    int rc = lk__ctl_fill(m, s, &m->main, st, NULL, e);
    if (!rc) {
        int graph = st->n_rows <= m->dev->small_rows && !(st->flags & LK_STEP_HIDDEN);
        uint64_t key = lk__graph_key(s, &m->main, GRAPH_STEP, st->flags);
        if (!graph || !m->dev->graph_begin(m->dev, key)) {
            issue(m, s, st);
            if (graph) m->dev->graph_end(m->dev);
        }
        int want = st->flags & (LK_STEP_LOGITS | LK_STEP_ARGMAX) && st->n_logits;
        lk__results_set(m, want ? st->n_logits : 0, 0, want && st->flags & LK_STEP_ARGMAX);
        m->recorded = st->flags & LK_STEP_RECORD ? st->n_rows : 0;
        rc = lk__comm_status(m, e);
    }
    lk_mem_guard_end();
    return rc;
}

int lk__model_head(struct lk_model *m, int n, const int32_t *rows, int flags, struct lk_err *e)
{
    if (n < 1 || n > m->o.max_logit_rows)
        return lk_fail(e, LK_EREQUEST, "logit rows: expected 1 to %d, found %d", m->o.max_logit_rows, n);
    int rc = check_rows(rows, n, m->main.rows, "logit row", e);
    if (rc) return rc;
    lk_mem_guard_begin("model head");
    /* the step's own list may be shorter than n; the edit list is free between calls */
    struct lk_dev *d = m->dev;
    int H = m->shape.hidden;
    d->upload(d, m->edit_ids, rows, (size_t)n * sizeof *rows);
    d->ops->gather(d, m->hidden, H, m->edit_ids, n, H, m->head_x);
    d->ops->to_act(d, m->head_x, H, n, H, m->head_h);
    lk__head(m, n, HEAD_OWN, flags & LK_STEP_ARGMAX);
    lk_mem_guard_end();
    return 0;
}

int lk__model_fold(struct lk_model *m, struct lk_state *s, const int32_t *keep, int n_lanes, struct lk_err *e)
{
    struct ctl *c = &m->main;
    if (!m->recorded || n_lanes != c->batch.n_lanes)
        return lk_fail(e, LK_EREQUEST, "fold of %d lanes: the last step recorded %d", n_lanes,
                       m->recorded ? c->batch.n_lanes : 0);
    struct lk_lane *lanes = (struct lk_lane *)c->host;
    for (int i = 0; i < n_lanes; i++)
        if (keep[i] < 0 || keep[i] > lanes[i].rows)
            return lk_fail(e, LK_EREQUEST, "fold: lane %d: expected 0 to %d rows, found %d", i, lanes[i].rows, keep[i]);
    for (int i = 0; i < n_lanes; i++) lanes[i].keep = keep[i];
    struct lk_dev *d = m->dev;
    lk_mem_guard_begin("model fold");
    d->upload(d, c->dev, c->host, (size_t)n_lanes * sizeof *lanes);
    int graph = c->rows <= d->small_rows;
    if (!graph || !d->graph_begin(d, lk__graph_key(s, c, GRAPH_FOLD, 0))) {
        struct lk_gdn_fold_args a = {.b = &c->batch, .hk = m->local.hk, .hv = m->local.hv, .tiled = m->local.tiled,
                                     .n_layers = m->shape.n_gdn, .state = s->gdn, .conv = s->conv, .record = s->record};
        d->ops->gdn_fold(d, &a);
        if (graph) d->graph_end(d);
    }
    lk_mem_guard_end();
    return 0;
}
