/* Teams: see team.h. A public function of model.h or state.h is here: alone it is the rank's own function; on a leader it is publish,
 * the rank's own function, agree. Payloads are a header of eight int32 and the call's arrays, in order.
 *
 * What ranks agree on: the return code and row count, a hash of the step's integers as each rank sent them to its device, and a hash of what
 * must be equal everywhere (final hidden states after the last all-reduce, chosen ids, whole rows). */
#include "model/team.h"

#include "base/mem.h"
#include "model/inside.h"

#include <string.h>
#include <xxhash.h>

enum kind { END = 1, STEP, HEAD, FOLD, MTP, ARGMAX, LOGITS, TOPK, EDIT, SLOT_ZERO, SLOT_COPY, PAGE_COPY, PAGE_GET, PAGE_PUT, SLOT_GET, SLOT_PUT };
enum { HASH_ROWS = 16 }; /* hidden rows that are hashed; a longer step's last ones */

struct head {
    int32_t v[8];
};

struct lk_team {
    struct lk_model *m;
    struct lk_state *s;
    struct lk_plan *plan;
    struct lk_comm *comm;
    float *rows;    /* [HASH_ROWS][hidden] host */
    char *bytes;    /* one rank's page or slot, and behind it all ranks' */
    size_t bytes_cap;
    void *results;  /* a follower's copy of ids, values, rows */
};

size_t lk_team_plan_bytes(const struct lk_model_opts *o)
{
    size_t rows = (size_t)o->max_rows, step = rows * 6 + (size_t)o->max_pages + (size_t)o->max_lanes * 8;
    size_t edits = (size_t)o->max_edits * 4;
    return sizeof(struct head) + 4 * (step > edits ? step : edits) + 256;
}

/* ---- payloads ---- */

struct writer {
    char *at, *end;
};

static void put(struct writer *w, const void *p, size_t n)
{
    if (!n || (size_t)(w->end - w->at) < n) return;
    memcpy(w->at, p, n);
    w->at += n;
}

static struct writer begin(struct lk_team *t, struct head h)
{
    size_t cap;
    char *p = lk_plan_payload(t->plan, &cap);
    struct writer w = {p, p + cap};
    put(&w, &h, sizeof h);
    return w;
}

static int publish(struct lk_team *t, enum kind k, struct writer w, struct lk_err *e)
{
    size_t cap;
    char *p = lk_plan_payload(t->plan, &cap);
    return lk_plan_publish(t->plan, (uint32_t)k, (size_t)(w.at - p), e);
}

static const void *get(const char **p, size_t n)
{
    const void *at = *p;
    *p += n;
    return at;
}

/* ---- agreement ---- */

/* Ends the current plan: all ranks must have the same rc, count and hashes. Returns rc, or LK_EDEVICE. */
static int agree(struct lk_team *t, int rc, uint64_t in, uint64_t out, struct lk_err *e)
{
    if (rc == LK_EDEVICE) return rc;
    struct lk_record r = {.count = (uint32_t)rc, .hash_in = in, .hash_out = out};
    int bad = lk_plan_done(t->plan, &r, e);
    return bad ? bad : rc;
}

/* Hash of the last rows of a hidden-state array of n rows. */
static int rows_hash(struct lk_team *t, const float *x, int n, uint64_t *out, struct lk_err *e)
{
    struct lk_model *m = t->m;
    size_t h = (size_t)m->shape.hidden, k = (size_t)(n < HASH_ROWS ? n : HASH_ROWS);
    int rc = m->dev->download(m->dev, t->rows, x + ((size_t)n - k) * h, k * h * 4, e);
    if (!rc) *out = XXH3_64bits(t->rows, k * h * 4);
    return rc;
}

/* Sums made on a device: it digests every one of them, and all of x, by itself. A wait there that ended in vain stops the group. */
static int device_digest(struct lk_team *t, const float *x, int n, uint64_t *out, struct lk_err *e)
{
    struct lk_model *m = t->m;
    struct lk_err own = {0};
    int rc = t->comm->settle(t->comm, m->dev, x, (size_t)n * (size_t)m->shape.hidden, out, &own);
    if (!rc) return 0;
    lk_group_stop(t->comm->g, "%.400s", own.text);
    return lk_group_error(t->comm->g, e);
}

/* Agreement on a step or MTP call. */
static int agree_rows(struct lk_team *t, int rc, const struct ctl *c, const float *x, struct lk_err *e)
{
    uint64_t out = 0, in = rc ? 0 : XXH3_64bits(c->host, c->used * 4);
    if (!rc) rc = t->comm->settle ? device_digest(t, x, c->rows, &out, e) : rows_hash(t, x, c->rows, &out, e);
    return agree(t, rc, in, out, e);
}

/* ---- the calls, on every rank ---- */

static int do_step(struct lk_team *t, const struct lk_step *st, struct lk_err *e)
{
    return agree_rows(t, lk__model_step(t->m, t->s, st, e), &t->m->main, t->m->hidden, e);
}

static int do_mtp(struct lk_team *t, const struct lk_mtp_step *st, struct lk_err *e)
{
    return agree_rows(t, lk__model_mtp(t->m, t->s, st, e), &t->m->mtp, t->m->mtp_hidden, e);
}

static int do_argmax(struct lk_team *t, int32_t *ids, struct lk_err *e)
{
    int rc = lk__model_argmax(t->m, ids, e);
    return agree(t, rc, 0, rc ? 0 : XXH3_64bits(ids, (size_t)t->m->res.n * 4), e);
}

static int do_logits(struct lk_team *t, int row, float *out, struct lk_err *e)
{
    int rc = lk__model_logits(t->m, row, out, e);
    return agree(t, rc, 0, rc ? 0 : XXH3_64bits(out, (size_t)t->m->shape.vocab * 4), e);
}

static int do_topk(struct lk_team *t, int k, int32_t *ids, float *vals, float *lse, struct lk_err *e)
{
    int rc = lk__model_topk(t->m, k, ids, vals, lse, e);
    size_t n = (size_t)t->m->res.n;
    uint64_t h = rc ? 0 : XXH3_64bits(ids, n * (size_t)k * 4) ^ XXH3_64bits_withSeed(vals, n * (size_t)k * 4, 1) ^ XXH3_64bits_withSeed(lse, n * 4, 2);
    return agree(t, rc, 0, h, e);
}

/* One rank's bytes of a page or slot, gathered to all ranks' in `all`. */
static int do_get(struct lk_team *t, enum kind k, int32_t i, void *all, struct lk_err *e)
{
    size_t n = k == PAGE_GET ? lk__state_page_bytes(t->s) : lk__state_slot_bytes(t->s);
    int rc = k == PAGE_GET ? lk__state_page_get(t->s, i, t->bytes, e) : lk__state_slot_get(t->s, i, t->bytes, e);
    if (!rc) rc = t->comm->gather(t->comm, t->bytes, n, all, e);
    return agree(t, rc, 0, rc ? 0 : XXH3_64bits(all, n * (size_t)t->comm->n), e);
}

/* The leader's bytes of all ranks, broadcast; each rank takes its part. `all` is the leader's source, a follower's room. */
static int do_put(struct lk_team *t, enum kind k, int32_t i, void *all, struct lk_err *e)
{
    size_t n = k == PAGE_PUT ? lk__state_page_bytes(t->s) : lk__state_slot_bytes(t->s);
    int rc = t->comm->bcast(t->comm, all, n * (size_t)t->comm->n, e);
    const char *mine = (const char *)all + n * (size_t)t->comm->rank;
    if (!rc && k == PAGE_PUT) lk__state_page_put(t->s, i, mine);
    if (!rc && k == SLOT_PUT) lk__state_slot_put(t->s, i, mine);
    return agree(t, rc, 0, rc ? 0 : XXH3_64bits(all, n * (size_t)t->comm->n), e);
}

/* ---- follower ---- */

static int follow_step(struct lk_team *t, const struct head *h, const char *p, struct lk_err *e)
{
    size_t n = (size_t)h->v[1];
    struct lk_step st = {.flags = h->v[0] & ~LK_STEP_HIDDEN, .n_rows = h->v[1], .n_lanes = h->v[2], .n_pages = h->v[3], .n_logits = h->v[4]};
    st.lanes = get(&p, (size_t)st.n_lanes * sizeof *st.lanes);
    st.ids = get(&p, n * 4);
    st.logit_rows = get(&p, (size_t)st.n_logits * 4);
    st.rope = h->v[5] ? get(&p, 12 * n) : NULL;
    st.pages = get(&p, (size_t)st.n_pages * 4);
    return do_step(t, &st, e);
}

static int follow_mtp(struct lk_team *t, const struct head *h, const char *p, struct lk_err *e)
{
    size_t n = (size_t)h->v[1];
    struct lk_mtp_step st = {.flags = h->v[0], .n_rows = h->v[1], .n_lanes = h->v[2], .n_pages = h->v[3], .n_logits = h->v[4], .hidden_from = h->v[6]};
    st.lanes = get(&p, (size_t)st.n_lanes * sizeof *st.lanes);
    st.ids = get(&p, n * 4);
    st.hidden_rows = get(&p, n * 4);
    st.logit_rows = get(&p, (size_t)st.n_logits * 4);
    st.rope = h->v[5] ? get(&p, 12 * n) : NULL;
    st.pages = get(&p, (size_t)st.n_pages * 4);
    return do_mtp(t, &st, e);
}

static int follow_edit(struct lk_team *t, const struct head *h, const char *p, struct lk_err *e)
{
    size_t n = (size_t)h->v[0] * 4;
    const int32_t *rows = get(&p, n), *ids = get(&p, n);
    const float *rep = get(&p, n), *add = get(&p, n);
    return agree(t, lk__model_edit(t->m, h->v[0], rows, ids, rep, add, e), 0, 0, e);
}

static int follow_topk(struct lk_team *t, int k, struct lk_err *e)
{
    size_t nk = (size_t)t->m->res.n * (size_t)(k > 0 && k <= LK_TOPK_MAX ? k : 0);
    int32_t *ids = t->results;
    float *vals = (float *)(ids + nk);
    return do_topk(t, k, ids, vals, vals + nk, e);
}

static int follow_one(struct lk_team *t, enum kind k, const struct head *h, const char *p, struct lk_err *e)
{
    switch (k) {
    case STEP: return follow_step(t, h, p, e);
    case MTP: return follow_mtp(t, h, p, e);
    case EDIT: return follow_edit(t, h, p, e);
    case HEAD: return agree(t, lk__model_head(t->m, h->v[0], (const int32_t *)p, h->v[1], e), 0, 0, e);
    case FOLD: return agree(t, lk__model_fold(t->m, t->s, (const int32_t *)p, h->v[0], e), 0, 0, e);
    case ARGMAX: return do_argmax(t, t->results, e);
    case LOGITS: return do_logits(t, h->v[0], t->results, e);
    case TOPK: return follow_topk(t, h->v[0], e);
    case SLOT_ZERO: return lk__state_slot_zero(t->s, h->v[0]), agree(t, 0, 0, 0, e);
    case SLOT_COPY: return lk__state_slot_copy(t->s, h->v[0], h->v[1]), agree(t, 0, 0, 0, e);
    case PAGE_COPY: return lk__state_page_copy(t->s, h->v[0], h->v[1]), agree(t, 0, 0, 0, e);
    case PAGE_GET:
    case SLOT_GET: return do_get(t, k, h->v[0], t->bytes + t->bytes_cap, e);
    case PAGE_PUT:
    case SLOT_PUT: return do_put(t, k, h->v[0], t->bytes + t->bytes_cap, e);
    case END: break;
    }
    return lk_fail(e, LK_EDEVICE, "tensor parallel: a plan of unknown kind %d: ranks of different builds", (int)k);
}

int lk_team_follow(struct lk_team *t, struct lk_err *e)
{
    for (;;) {
        uint32_t kind;
        const void *data;
        size_t bytes;
        struct lk_err one = {0}; /* a refused call is refused on all ranks alike and ends nothing */
        int rc = lk_plan_next(t->plan, &kind, &data, &bytes, e);
        if (rc) return rc;
        if (kind == END) return agree(t, 0, 0, 0, e);
        rc = follow_one(t, (enum kind)kind, data, (const char *)data + sizeof(struct head), &one);
        if (rc == LK_EDEVICE) return lk_fail(e, rc, "%s", one.text);
    }
}

/* ---- open and close ---- */

int lk_team_open(struct lk_team **out, struct lk_model *m, struct lk_state *s, struct lk_plan *p, struct lk_comm *c, struct lk_err *e)
{
    struct lk_team *t = lk_calloc(1, sizeof *t);
    if (!t) return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    t->m = m, t->s = s, t->plan = p, t->comm = c;
    size_t page = lk__state_page_bytes(s), slot = lk__state_slot_bytes(s);
    size_t topk = (size_t)m->o.max_logit_rows * (2 * LK_TOPK_MAX + 1) * 4, row = (size_t)m->shape.vocab * 4;
    t->bytes_cap = page > slot ? page : slot;
    t->rows = lk_calloc((size_t)HASH_ROWS * (size_t)m->shape.hidden, sizeof *t->rows);
    t->bytes = lk_malloc(t->bytes_cap * (size_t)(c->n + 1));
    t->results = lk_malloc(topk > row ? topk : row);
    if (!t->rows || !t->bytes || !t->results) {
        lk_team_close(t);
        return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory for %zu MB of state bytes", t->bytes_cap * (size_t)(c->n + 1) >> 20);
    }
    m->team = s->team = t;
    *out = t;
    return 0;
}

void lk_team_close(struct lk_team *t)
{
    if (!t) return;
    if (t->m) t->m->team = NULL;
    if (t->s) t->s->team = NULL;
    lk_free(t->rows);
    lk_free(t->bytes);
    lk_free(t->results);
    lk_free(t);
}

int lk_team_end(struct lk_team *t, struct lk_err *e)
{
    int rc = publish(t, END, begin(t, (struct head){{0}}), e);
    return rc ? rc : agree(t, 0, 0, 0, e);
}

/* ---- the public functions ---- */

int lk_model_step(struct lk_model *m, struct lk_state *s, const struct lk_step *st, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t) return lk__model_step(m, s, st, e);
    size_t n = (size_t)(st->n_rows > 0 ? st->n_rows : 0);
    struct writer w = begin(t, (struct head){{st->flags, st->n_rows, st->n_lanes, st->n_pages, st->n_logits, st->rope != NULL}});
    put(&w, st->lanes, (size_t)st->n_lanes * sizeof *st->lanes);
    put(&w, st->ids, n * 4);
    put(&w, st->logit_rows, (size_t)st->n_logits * 4);
    if (st->rope) put(&w, st->rope, 12 * n);
    put(&w, st->pages, (size_t)st->n_pages * 4);
    int rc = publish(t, STEP, w, e);
    return rc ? rc : do_step(t, st, e);
}

int lk_model_mtp(struct lk_model *m, struct lk_state *s, const struct lk_mtp_step *st, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t) return lk__model_mtp(m, s, st, e);
    size_t n = (size_t)(st->n_rows > 0 ? st->n_rows : 0);
    struct writer w = begin(t, (struct head){{st->flags, st->n_rows, st->n_lanes, st->n_pages, st->n_logits, st->rope != NULL, st->hidden_from}});
    put(&w, st->lanes, (size_t)st->n_lanes * sizeof *st->lanes);
    put(&w, st->ids, n * 4);
    put(&w, st->hidden_rows, n * 4);
    put(&w, st->logit_rows, (size_t)st->n_logits * 4);
    if (st->rope) put(&w, st->rope, 12 * n);
    put(&w, st->pages, (size_t)st->n_pages * 4);
    int rc = publish(t, MTP, w, e);
    return rc ? rc : do_mtp(t, st, e);
}

int lk_model_head(struct lk_model *m, int n, const int32_t *rows, int flags, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t || n < 1 || n > m->o.max_logit_rows) return lk__model_head(m, n, rows, flags, e);
    struct writer w = begin(t, (struct head){{n, flags}});
    put(&w, rows, (size_t)n * 4);
    int rc = publish(t, HEAD, w, e);
    return rc ? rc : agree(t, lk__model_head(m, n, rows, flags, e), 0, 0, e);
}

int lk_model_fold(struct lk_model *m, struct lk_state *s, const int32_t *keep, int n_lanes, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t || n_lanes < 0 || n_lanes > m->o.max_lanes) return lk__model_fold(m, s, keep, n_lanes, e);
    struct writer w = begin(t, (struct head){{n_lanes}});
    put(&w, keep, (size_t)n_lanes * 4);
    int rc = publish(t, FOLD, w, e);
    return rc ? rc : agree(t, lk__model_fold(m, s, keep, n_lanes, e), 0, 0, e);
}

int lk_model_argmax(struct lk_model *m, int32_t *ids, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t) return lk__model_argmax(m, ids, e);
    int rc = publish(t, ARGMAX, begin(t, (struct head){{0}}), e);
    return rc ? rc : do_argmax(t, ids, e);
}

int lk_model_logits(struct lk_model *m, int row, float *out, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t) return lk__model_logits(m, row, out, e);
    int rc = publish(t, LOGITS, begin(t, (struct head){{row}}), e);
    return rc ? rc : do_logits(t, row, out, e);
}

int lk_model_topk(struct lk_model *m, int k, int32_t *ids, float *vals, float *lse, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t) return lk__model_topk(m, k, ids, vals, lse, e);
    int rc = publish(t, TOPK, begin(t, (struct head){{k}}), e);
    return rc ? rc : do_topk(t, k, ids, vals, lse, e);
}

int lk_model_edit(struct lk_model *m, int n, const int32_t *rows, const int32_t *ids, const float *rep, const float *add, struct lk_err *e)
{
    struct lk_team *t = m->team;
    if (!t || n <= 0) return lk__model_edit(m, n, rows, ids, rep, add, e);
    int rc = 0;
    for (int at = 0; at < n && !rc; at += m->o.max_edits) { /* a plan holds max_edits */
        int c = n - at < m->o.max_edits ? n - at : m->o.max_edits;
        struct writer w = begin(t, (struct head){{c}});
        put(&w, rows + at, (size_t)c * 4);
        put(&w, ids + at, (size_t)c * 4);
        put(&w, rep + at, (size_t)c * 4);
        put(&w, add + at, (size_t)c * 4);
        rc = publish(t, EDIT, w, e);
        if (!rc) rc = agree(t, lk__model_edit(m, c, rows + at, ids + at, rep + at, add + at, e), 0, 0, e);
    }
    return rc;
}

/* A state call that cannot fail alone; on a stopped group the next step reports the stop. */
static void state_call(struct lk_team *t, enum kind k, int32_t a, int32_t b)
{
    struct lk_err e = {0};
    if (publish(t, k, begin(t, (struct head){{a, b}}), &e)) return;
    if (k == SLOT_ZERO) lk__state_slot_zero(t->s, a);
    if (k == SLOT_COPY) lk__state_slot_copy(t->s, a, b);
    if (k == PAGE_COPY) lk__state_page_copy(t->s, a, b);
    agree(t, 0, 0, 0, &e);
}

int lk_state_slot_alloc(struct lk_state *s, int32_t *slot)
{
    int rc = lk__state_slot_alloc(s, slot);
    if (!rc && s->team) state_call(s->team, SLOT_ZERO, *slot, 0);
    return rc;
}

void lk_state_slot_zero(struct lk_state *s, int32_t slot)
{
    if (s->team)
        state_call(s->team, SLOT_ZERO, slot, 0);
    else
        lk__state_slot_zero(s, slot);
}

void lk_state_slot_copy(struct lk_state *s, int32_t dst, int32_t src)
{
    if (s->team)
        state_call(s->team, SLOT_COPY, dst, src);
    else
        lk__state_slot_copy(s, dst, src);
}

void lk_state_page_copy(struct lk_state *s, int32_t dst, int32_t src)
{
    if (s->team)
        state_call(s->team, PAGE_COPY, dst, src);
    else
        lk__state_page_copy(s, dst, src);
}

size_t lk_state_page_bytes(const struct lk_state *s)
{
    return lk__state_page_bytes(s) * (size_t)s->o.n_ranks;
}

size_t lk_state_slot_bytes(const struct lk_state *s)
{
    return lk__state_slot_bytes(s) * (size_t)s->o.n_ranks;
}

static int state_get(struct lk_team *t, enum kind k, int32_t i, void *host, struct lk_err *e)
{
    int rc = publish(t, k, begin(t, (struct head){{i}}), e);
    return rc ? rc : do_get(t, k, i, host, e);
}

static void state_put(struct lk_team *t, enum kind k, int32_t i, const void *host)
{
    struct lk_err e = {0};
    if (!publish(t, k, begin(t, (struct head){{i}}), &e)) do_put(t, k, i, (void *)host, &e);
}

int lk_state_page_get(struct lk_state *s, int32_t page, void *host, struct lk_err *e)
{
    return s->team ? state_get(s->team, PAGE_GET, page, host, e) : lk__state_page_get(s, page, host, e);
}

void lk_state_page_put(struct lk_state *s, int32_t page, const void *host)
{
    if (s->team)
        state_put(s->team, PAGE_PUT, page, host);
    else
        lk__state_page_put(s, page, host);
}

int lk_state_slot_get(struct lk_state *s, int32_t slot, void *host, struct lk_err *e)
{
    return s->team ? state_get(s->team, SLOT_GET, slot, host, e) : lk__state_slot_get(s, slot, host, e);
}

void lk_state_slot_put(struct lk_state *s, int32_t slot, const void *host)
{
    if (s->team)
        state_put(s->team, SLOT_PUT, slot, host);
    else
        lk__state_slot_put(s, slot, host);
}
