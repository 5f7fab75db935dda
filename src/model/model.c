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

static void *take(struct lk_model *m, size_t n, size_t each, const char *what, int *failed)
{
    size_t bytes;
    void *p = NULL;
    if (!lk_mul_size(n, each, &bytes)) p = m->dev->alloc(m->dev, bytes, what);
    if (!p) *failed = 1;
    return p;
}

static int open_buffers(struct lk_model *m, struct lk_err *e)
{
    size_t rows = (size_t)m->o.max_rows, lr = (size_t)m->o.max_logit_rows, h = (size_t)m->shape.hidden;
    size_t act = m->dev->act_bytes;
    int fail = 0, attn = m->local.n_q * LK_HEAD, gdn = m->local.hv * m->local.gdn_dim;
    int ld = max_int((m->local.n_q * 2 + m->local.n_kv * 2) * LK_HEAD,
                     lk_conv_channels(&m->local) + gdn + 2 * m->local.hv);
    int mid = max_int(max_int(attn, gdn), (int)m->local.inter);
    m->proj_ld = max_int(ld, 2 * m->shape.hidden); /* MTP lays [embedding | hidden] there */
    m->x = take(m, rows * h, 4, "residual", &fail);
    m->hidden = take(m, rows * h, 4, "final hidden", &fail);
    m->h = take(m, rows * h, act, "normed input", &fail);
    m->proj = take(m, rows * (size_t)m->proj_ld, 4, "projections", &fail);
    m->mid = take(m, rows * (size_t)max_int(mid, 2 * m->shape.hidden), act, "mixer output", &fail);
    if (m->n_ranks > 1) m->part = take(m, rows * h, 4, "partial sums", &fail);
    if (m->shape.mtp) m->mtp_hidden = take(m, rows * h, 4, "draft hidden", &fail);
    m->head_x = take(m, lr * h, 4, "head input", &fail);
    m->head_h = take(m, lr * h, act, "head input", &fail);
    m->logits = take(m, lr * (size_t)m->head_ld, 4, "logits", &fail);
    m->arg_ids = take(m, 2 * lr, 4, "greedy ids", &fail);
    m->top_ids = take(m, lr * LK_TOPK_MAX, 4, "candidate ids", &fail);
    m->top_vals = take(m, lr * LK_TOPK_MAX, 4, "candidate values", &fail);
    m->top_lse = take(m, lr, 4, "candidate sums", &fail);
    m->edit_ids = take(m, 2 * LK_EDITS_MAX, 4, "edit ids", &fail);
    m->edit_vals = take(m, 2 * LK_EDITS_MAX, 4, "edit values", &fail);
    size_t words = lr * (2 * LK_TOPK_MAX + 1) * (size_t)(m->n_ranks + 1) + 4 * LK_EDITS_MAX;
    int gathers = m->n_ranks > 1 || m->w.draft_head;
    m->host = lk_calloc(words, sizeof *m->host);
    if (gathers) m->row_parts = lk_calloc((size_t)m->n_ranks + 1, (size_t)m->head_ld * 4);
    if (fail || !m->host || (gathers && !m->row_parts))
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

static int open_all(struct lk_model *m, const struct lk_artifact *a, struct lk_err *e)
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
    if (!rc) rc = check_device(m, e);
    if (!rc) rc = lk__weights_bind(m, a, e);
    return rc ? rc : open_buffers(m, e);
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
    rc = open_all(m, a, e);
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
