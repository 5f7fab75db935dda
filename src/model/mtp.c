/* The draft layer. Hidden state of position p and the token after it give a guess for the token after that:
 *     x = fc [norm(embedding) | norm(hidden)];  x = layer(x);  y = norm(x);  logits = head(y)
 * y is kept, so that a guess can be made from a guess. The layer has KV pages of its own under the same page numbers. */
#include "model/inside.h"

#include "base/mem.h"

enum { GRAPH_MTP = 3 };

static void issue(struct lk_model *m, struct lk_state *s, const struct lk_mtp_step *st, enum which_head head)
{
    struct lk_dev *d = m->dev;
    const struct lk_batch *b = &m->mtp.batch;
    int T = st->n_rows, H = m->shape.hidden;
    int want = st->flags & (LK_STEP_LOGITS | LK_STEP_ARGMAX) ? st->n_logits : 0;
    struct lk_draft_in_args in = {.table = m->w.embed, .ids = b->ids, .rows = m->mtp.hidden_rows,
                                  .hidden = st->hidden_from ? m->mtp_hidden : m->hidden,
                                  .embed_norm = m->w.mtp_embed_norm, .hidden_norm = m->w.mtp_hidden_norm,
                                  .eps = m->shape.eps, .T = T, .n = H, .h = m->mid};
    d->ops->draft_in(d, &in);
    struct lk_linear_args fc = {.w = m->w.fc, .x = m->mid, .y = m->x, .T = T, .ldy = H};
    d->ops->linear(d, &fc);
    d->ops->norm(d, m->x, m->w.mtp.in_norm, m->shape.eps, T, H, m->h);
    lk__layer(m, s, &m->w.mtp, b, 0, m->o.draft_window, NULL);
    lk__final_norm(m, m->w.mtp_norm, T, m->mtp_hidden, m->mtp.logit_rows, want);
    if (want) lk__head(m, want, head, st->flags & LK_STEP_ARGMAX);
}

static int check(const struct lk_model *m, const struct lk_state *s, const struct lk_mtp_step *st, struct lk_err *e)
{
    if (!m->shape.mtp || s->n_kv_layers <= m->shape.n_full)
        return lk_fail(e, LK_EREQUEST, "this model was opened without its MTP layer");
    int limit = st->hidden_from ? m->mtp_rows : m->main.rows;
    for (int i = 0; i < st->n_rows && st->n_rows <= m->o.max_rows; i++)
        if (st->hidden_rows[i] < 0 || st->hidden_rows[i] >= limit)
            return lk_fail(e, LK_EREQUEST, "mtp: hidden row %d: expected 0 to %d, found %d", i, limit - 1,
                           st->hidden_rows[i]);
    return 0;
}

int lk__model_mtp(struct lk_model *m, struct lk_state *s, const struct lk_mtp_step *st, struct lk_err *e)
{
    int rc = check(m, s, st, e);
    if (rc) return rc;
    const struct lk_step rows = {.n_rows = st->n_rows, .n_lanes = st->n_lanes, .n_pages = st->n_pages,
                                 .n_logits = st->n_logits, .ids = st->ids, .lanes = st->lanes,
                                 .pages = st->pages, .logit_rows = st->logit_rows, .rope = st->rope};
    enum which_head head = st->flags & LK_STEP_FULL ? HEAD_OWN : m->w.draft_head ? HEAD_SHORT : m->w.rough_head ? HEAD_ROUGH : HEAD_OWN;
    lk_mem_guard_begin("model mtp");
    rc = lk__ctl_fill(m, s, &m->mtp, &rows, st->hidden_rows, e);
    if (!rc) {
        int graph = st->n_rows <= m->dev->small_rows;
        uint64_t key = lk__graph_key(s, &m->mtp, GRAPH_MTP + (st->hidden_from != 0), st->flags);
        if (!graph || !m->dev->graph_begin(m->dev, key)) {
            issue(m, s, st, head);
            if (graph) m->dev->graph_end(m->dev);
        }
        int want = st->flags & (LK_STEP_LOGITS | LK_STEP_ARGMAX) && st->n_logits;
        lk__results_set(m, want ? st->n_logits : 0, head == HEAD_SHORT, want && st->flags & LK_STEP_ARGMAX);
        m->mtp_rows = st->n_rows;
        rc = lk__comm_status(m, e);
    }
    lk_mem_guard_end();
    return rc;
}
