/* Opening and closing a model: check, bind, and every buffer a step will ever use. Sizes stand in one place,
 * open_buffers; a step only moves inside them. */
#include "model/inside.h"

#include "base/mem.h"

#include <string.h>

#define MIN_ROWS 16

static int check_opts(const struct lk_model_opts *o, struct lk_err *e)
{
    if (o->max_rows < MIN_ROWS || o->max_rows > 1 << 20)
        return lk_fail(e, LK_EINPUT, "rows a step: expected %d to %d, found %d", MIN_ROWS, 1 << 20, o->max_rows);
    if (o->max_lanes < 1 || o->max_lanes > 64)
        return lk_fail(e, LK_EINPUT, "sequences a step: expected 1 to 64, found %d", o->max_lanes);
    if (o->max_pages < 1 || o->max_pages > 1 << 24)
        return lk_fail(e, LK_EINPUT, "pages a step: expected 1 to %d, found %d", 1 << 24, o->max_pages);
    int most = o->max_rows < 2 * LK_EDITS_MAX ? o->max_rows : 2 * LK_EDITS_MAX;
    if (o->max_logit_rows < 1 || o->max_logit_rows > most)
        return lk_fail(e, LK_EINPUT, "logit rows a step: expected 1 to %d, found %d", most, o->max_logit_rows);
    return 0;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* One buffer of a step: where it is kept and how large. */
struct room {
    void *at; /* of a field that holds a pointer to the device; NULL: host memory, taken by open_buffers itself */
    size_t n, each;
    const char *what;
};
enum { MAX_ROOMS = 24 };

static size_t host_words(const struct lk_model *m)
{
    return (size_t)m->o.max_logit_rows * (2 * LK_TOPK_MAX + 1) * (size_t)(m->n_ranks + 1) + 4 * LK_EDITS_MAX;
}

static size_t row_parts(const struct lk_model *m)
{
    return m->n_ranks > 1 || m->w.draft_head ? ((size_t)m->n_ranks + 1) * (size_t)m->head_ld : 0;
}

/* Every buffer a step will ever use: what is opened, and what lk_model_need counts. Returns how many. */
static int rooms(struct lk_model *m, struct room r[MAX_ROOMS])
{
    size_t rows = (size_t)m->o.max_rows, lr = (size_t)m->o.max_logit_rows, h = (size_t)m->shape.hidden;
    size_t act = m->dev->act_bytes;
    int n = 0, attn = m->local.n_q * LK_HEAD, gdn = m->local.hv * m->local.gdn_dim;
    int ld = max_int((m->local.n_q * 2 + m->local.n_kv * 2) * LK_HEAD,
                     lk_conv_channels(&m->local) + gdn + 2 * m->local.hv);
    int mid = max_int(max_int(attn, gdn), (int)m->local.inter);
    m->proj_ld = ld;
    r[n++] = (struct room){&m->x, rows * h, 4, "residual"};
    r[n++] = (struct room){&m->hidden, rows * h, 4, "final hidden"};
    r[n++] = (struct room){&m->h, rows * h, act, "normed input"};
    r[n++] = (struct room){&m->proj, rows * (size_t)m->proj_ld, 4, "projections"};
    r[n++] = (struct room){&m->mid, rows * (size_t)max_int(mid, 2 * m->shape.hidden), act, "mixer output"};
    if (m->n_ranks > 1) r[n++] = (struct room){&m->part, rows * h, 4, "partial sums"};
    if (m->shape.mtp) r[n++] = (struct room){&m->mtp_hidden, rows * h, 4, "draft hidden"};
    r[n++] = (struct room){&m->head_x, lr * h, 4, "head input"};
    r[n++] = (struct room){&m->head_h, lr * h, act, "head input"};
    r[n++] = (struct room){&m->logits, lr * (size_t)m->head_ld, 4, "logits"};
    r[n++] = (struct room){&m->arg_ids, 2 * lr, 4, "greedy ids"};
    r[n++] = (struct room){&m->top_ids, lr * LK_TOPK_MAX, 4, "candidate ids"};
    r[n++] = (struct room){&m->top_vals, lr * LK_TOPK_MAX, 4, "candidate values"};
    r[n++] = (struct room){&m->top_lse, lr, 4, "candidate sums"};
    r[n++] = (struct room){&m->edit_ids, 2 * LK_EDITS_MAX, 4, "edit ids"};
    r[n++] = (struct room){&m->edit_vals, 2 * LK_EDITS_MAX, 4, "edit values"};
    r[n++] = (struct room){NULL, host_words(m), 4, "candidates of all ranks"};
    r[n++] = (struct room){NULL, row_parts(m), 4, "rows of all ranks"};
    r[n++] = (struct room){NULL, lk__ctl_words(m), 4 * 4, "integers of a step"}; /* of steps and drafts, host and device */
    return n;
}

static int open_buffers(struct lk_model *m, struct lk_err *e)
{
    struct room r[MAX_ROOMS];
    int n = rooms(m, r), fail = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes;
        void *p = NULL;
        if (!r[i].at) continue;
        if (!lk_mul_size(r[i].n, r[i].each, &bytes)) p = m->dev->alloc(m->dev, bytes, r[i].what);
        memcpy(r[i].at, &p, sizeof p); /* fields of several pointer types */
        fail |= !p;
    }
    m->host = lk_calloc(host_words(m), sizeof *m->host);
    if (row_parts(m)) m->row_parts = lk_calloc(row_parts(m), sizeof *m->row_parts);
    if (fail || !m->host || (row_parts(m) && !m->row_parts))
        return lk_fail(e, LK_ENOMEM, "no memory for the buffers of a step of %d rows; use a smaller --chunk",
                       m->o.max_rows);
    int rc = lk__ctl_open(m, &m->main, e);
    return rc ? rc : lk__ctl_open(m, &m->mtp, e);
}

static int check_device(struct lk_model *m, struct lk_err *e)
{
    const struct lk_shape *s = &m->shape;
    const struct lk_dev_need need = {
        .hidden = s->hidden, .inter = (int)m->local.inter, .n_q = m->local.n_q, .n_kv = m->local.n_kv,
        .head_dim = s->head_dim, .rope_dim = s->rope_dim, .hk = m->local.hk, .hv = m->local.hv,
        .gdn_dim = s->gdn_dim, .conv_k = s->conv_k, .vocab = s->vocab, .max_rows = m->o.max_rows,
        .max_lanes = m->o.max_lanes,
        .max_ctx = m->o.max_pages < s->max_ctx / LK_PAGE ? m->o.max_pages * LK_PAGE : s->max_ctx,
    };
    return m->dev->check(m->dev, &need, e);
}

/* Ids at and above vocab_used never win; every rank needs one that can. */
static int check_used(struct lk_model *m, struct lk_err *e)
{
    int least = (m->n_ranks - 1) * m->head_ld + 1;
    if (!m->o.vocab_used) m->o.vocab_used = m->shape.vocab;
    if (m->o.vocab_used >= least && m->o.vocab_used <= m->shape.vocab) return 0;
    return lk_fail(e, LK_EINPUT, "used vocabulary: expected %d to %d tokens, found %d", least, m->shape.vocab,
                   m->o.vocab_used);
}

/* Everything before the first weight: sizes, shares, the device's consent. */
static int prepare(struct lk_model *m, const struct lk_artifact *a, struct lk_err *e)
{
    if (lk_artifact_ranks(a) && lk_artifact_ranks(a) != m->n_ranks)
        return lk_fail(e, LK_EINPUT, "%s: rank files for %d devices, found %d; name that many with --devices", lk_artifact_path(a),
                       lk_artifact_ranks(a), m->n_ranks);
    int rc = lk_shape_read(&m->shape, lk_artifact_config(a), e);
    if (rc) return lk_err_prefix(e, "%s", lk_artifact_path(a));
    /* Many quantised copies leave the MTP tensors out though config.json still counts the layer. */
    if (m->o.no_mtp || !lk_artifact_find(a, "mtp.fc")) m->shape.mtp = 0;
    m->dims = lk_shape_dims(&m->shape);
    rc = lk_shard_check(&m->dims, m->n_ranks, e);
    if (rc) return rc;
    lk_shard_local(&m->dims, m->rank, m->n_ranks, &m->local);
    /* lk_shard_local gives this rank's columns; the last rank's may be fewer, so the widest share sets the stride */
    struct lk_shard_dims first;
    lk_shard_local(&m->dims, 0, m->n_ranks, &first);
    m->head_ld = (int)first.vocab;
    rc = check_used(m, e);
    return rc ? rc : check_device(m, e);
}

int lk_model_need(struct lk_model_need *out, const struct lk_artifact *a, struct lk_dev *d, const struct lk_model_opts *o,
                  int rank, int n_ranks, struct lk_err *e)
{
    struct room r[MAX_ROOMS];
    *out = (struct lk_model_need){0};
    int rc = check_opts(o, e);
    if (rc) return rc;
    struct lk_model *m = lk_calloc(1, sizeof *m);
    if (!m) return lk_fail(e, LK_ENOMEM, "no memory for a model");
    m->dev = d, m->o = *o, m->rank = rank, m->n_ranks = n_ranks > 1 ? n_ranks : 1;
    rc = prepare(m, a, e);
    if (!rc) rc = lk__weights_count(m, a, out, e);
    for (int i = rc ? 0 : rooms(m, r); i > 0; i--) out->step += r[i - 1].n * r[i - 1].each;
    lk_model_close(m);
    return rc;
}

int lk_model_open(struct lk_model **out, const struct lk_artifact *a, struct lk_dev *d,
                  const struct lk_model_opts *o, struct lk_err *e)
{
    int rc = check_opts(o, e);
    if (rc) return rc;
    struct lk_model *m = lk_calloc(1, sizeof *m);
    if (!m) return lk_fail(e, LK_ENOMEM, "no memory for a model");
    m->dev = d, m->o = *o, m->comm = o->comm;
    m->n_ranks = o->comm && o->comm->n > 1 ? o->comm->n : 1;
    m->rank = m->n_ranks > 1 ? o->comm->rank : 0;
    rc = prepare(m, a, e);
    if (!rc) rc = lk__weights_bind(m, a, e);
    if (!rc) rc = open_buffers(m, e);
    if (rc) {
        lk_model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

static void ctl_close(struct lk_model *m, struct ctl *c)
{
    if (c->dev) m->dev->free(m->dev, c->dev);
    lk_free(c->host);
}

void lk_model_close(struct lk_model *m)
{
    if (!m) return;
    m->dev->graph_reset(m->dev);
    void *dev[] = {m->x, m->hidden, m->h, m->proj, m->mid, m->part, m->mtp_hidden, m->head_x, m->head_h,
                   m->logits, m->arg_ids, m->top_ids, m->top_vals, m->top_lse, m->edit_ids,
                   m->edit_vals};
    for (size_t i = 0; i < sizeof dev / sizeof dev[0]; i++)
        if (dev[i]) m->dev->free(m->dev, dev[i]);
    ctl_close(m, &m->main);
    ctl_close(m, &m->mtp);
    lk__weights_free(m);
    lk_free(m->host);
    lk_free(m->row_parts);
    lk_free(m);
}

const struct lk_shape *lk_model_shape(const struct lk_model *m)
{
    return &m->shape;
}

struct lk_dev *lk_model_dev(const struct lk_model *m)
{
    return m->dev;
}

size_t lk_model_step_bytes(const struct lk_model *m)
{
    return m->w.step_bytes;
}

size_t lk_model_mtp_bytes(const struct lk_model *m)
{
    return m->w.mtp_bytes;
}
