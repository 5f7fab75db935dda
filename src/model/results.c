/* What a step left: greedy ids, candidates, whole rows, hidden states; and sparse edits before they are read. This is the
 * only file of src/model that waits for the device. A rank holds its columns of the vocabulary: ids and candidates are
 * exchanged as a few words a row, whole rows only when somebody asks. Shortlist ids leave here as tokens. */
#include "model/inside.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

static int32_t token_of(const struct lk_model *m, int32_t id)
{
    return m->res.draft && id >= 0 && id < m->w.draft_rows ? m->w.draft_map[id] : id;
}

/* Is candidate (va, ia) before (vb, ib)? Larger value first, then the smaller id; NaN last. */
static int before(float va, int32_t ia, float vb, int32_t ib)
{
    if (va != va || vb != vb) return va == va;
    return va > vb || (va == vb && ia < ib);
}

/* Best of all ranks' [ids n | values n]; -1 where a rank's best is no number: its row is not to be believed. */
static void argmax_merge(const int32_t *all, int n, int ranks, int32_t *ids)
{
    for (int t = 0; t < n; t++) {
        float best = 0;
        ids[t] = -1;
        for (int r = 0; r < ranks; r++) {
            const int32_t *at = all + (size_t)r * 2 * (size_t)n;
            float v;
            memcpy(&v, at + n + t, 4);
            if (v != v) {
                ids[t] = -1;
                break;
            }
            if (r && !before(v, at[t], best, ids[t])) continue;
            best = v, ids[t] = at[t];
        }
    }
}

int lk__model_argmax(struct lk_model *m, int32_t *ids, struct lk_err *e)
{
    struct lk_dev *d = m->dev;
    int n = m->res.n, alone = m->n_ranks == 1;
    if (!m->res.argmax_done && n) {
        d->ops->argmax(d, m->logits, n, m->res.used, m->head_ld, m->res.id0, m->arg_ids, (float *)(m->arg_ids + n));
        m->res.argmax_done = 1;
    }
    int32_t *mine = m->host, *all = alone ? mine : mine + 2 * n;
    int rc = d->download(d, mine, m->arg_ids, (size_t)n * 8, e);
    if (!rc && !alone) rc = m->comm->gather(m->comm, mine, (size_t)n * 8, all, e);
    if (rc) return rc;
    argmax_merge(all, n, m->n_ranks, ids);
    for (int t = 0; t < n; t++) ids[t] = token_of(m, ids[t]);
    return 0;
}

int lk__model_logits(struct lk_model *m, int row, float *out, struct lk_err *e)
{
    if (row < 0 || row >= m->res.n)
        return lk_fail(e, LK_EREQUEST, "logits of row %d: the last call left %d", row, m->res.n);
    const float *from = m->logits + (size_t)row * (size_t)m->head_ld;
    size_t bytes = (size_t)m->res.cols * 4;
    if (m->n_ranks == 1 && !m->res.draft) return m->dev->download(m->dev, out, from, bytes, e);
    float *mine = m->row_parts, *all = mine + m->head_ld;
    int rc = m->dev->download(m->dev, mine, from, bytes, e), ld = m->head_ld;
    if (!rc && m->n_ranks > 1) rc = m->comm->gather(m->comm, mine, (size_t)ld * 4, all, e);
    if (rc) return rc;
    if (m->n_ranks == 1) memcpy(all, mine, bytes);
    for (int i = 0; m->res.draft && i < m->shape.vocab; i++) out[i] = -INFINITY;
    for (int r = 0; r < m->n_ranks; r++) {
        struct lk_ranges part;
        lk_shard(&m->dims, LK_PART_VOCAB, m->res.whole, r, m->n_ranks, &part);
        for (int64_t i = 0; i < part.total; i++)
            out[token_of(m, (int32_t)(part.r[0].at + i))] = all[(size_t)r * (size_t)ld + (size_t)i];
    }
    return 0;
}

/* Candidates of all ranks, [n_ranks][ids n*k | values n*k | lse n], into the k best of each row and one sum. */
static void topk_merge(struct lk_model *m, int k, const int32_t *all, int32_t *ids, float *vals, float *lse)
{
    size_t n = (size_t)m->res.n, block = n * (2 * (size_t)k + 1);
    for (size_t t = 0; t < n; t++) {
        int at[LK_MAX_RANKS] = {0};
        for (int j = 0; j < k; j++) {
            int best = -1;
            float bv = 0;
            int32_t bi = 0;
            for (int r = 0; r < m->n_ranks; r++) {
                if (at[r] == k) continue;
                const int32_t *p = all + (size_t)r * block + t * (size_t)k + (size_t)at[r];
                float v;
                memcpy(&v, p + n * (size_t)k, 4);
                if (best >= 0 && !before(v, *p, bv, bi)) continue;
                best = r, bv = v, bi = *p;
            }
            at[best]++;
            ids[t * (size_t)k + (size_t)j] = bi;
            vals[t * (size_t)k + (size_t)j] = bv;
        }
        double top = -INFINITY, sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int r = 0; r < m->n_ranks; r++) {
                float l;
                memcpy(&l, all + (size_t)r * block + 2 * n * (size_t)k + t, 4);
                if (pass == 0 && (double)l > top) top = (double)l;
                if (pass == 1) sum += exp((double)l - top);
            }
        lse[t] = (float)(top + log(sum));
    }
}

/* n rows of `have` candidates into rows of k, in place: nobody, worth minus infinity, behind them. */
static void widen(int32_t *ids, float *vals, size_t n, size_t have, size_t k)
{
    for (size_t i = n * k; have < k && i-- > 0;) {
        size_t from = i / k * have + i % k;
        ids[i] = i % k < have ? ids[from] : -1;
        vals[i] = i % k < have ? vals[from] : -INFINITY;
    }
}

int lk__model_topk(struct lk_model *m, int k, int32_t *ids, float *vals, float *lse, struct lk_err *e)
{
    struct lk_dev *d = m->dev;
    size_t n = (size_t)m->res.n, nk = n * (size_t)(k > 0 ? k : 0);
    if (k < 1 || k > LK_TOPK_MAX)
        return lk_fail(e, LK_EREQUEST, "candidates a row: expected 1 to %d, found %d", LK_TOPK_MAX, k);
    int have = k < m->res.used ? k : m->res.used; /* a shortlist, or a rank's end of the vocabulary, may have fewer */
    struct lk_topk_args a = {.logits = m->logits, .T = (int)n, .n = m->res.used, .ld = m->head_ld, .k = have,
                             .id0 = m->res.id0, .ids = m->top_ids, .vals = m->top_vals, .lse = m->top_lse};
    d->ops->topk(d, &a);
    int alone = m->n_ranks == 1;
    int32_t *mine = m->host, *all = mine + n * (2 * (size_t)k + 1), *my_ids = alone ? ids : mine;
    float *my_vals = alone ? vals : (float *)mine + nk;
    int rc = d->download(d, my_ids, m->top_ids, n * (size_t)have * 4, e);
    if (!rc) rc = d->download(d, my_vals, m->top_vals, n * (size_t)have * 4, e);
    if (!rc) rc = d->download(d, alone ? (void *)lse : mine + 2 * nk, m->top_lse, n * 4, e);
    if (!rc) widen(my_ids, my_vals, n, (size_t)have, (size_t)k);
    if (!rc && !alone) rc = m->comm->gather(m->comm, mine, n * (2 * (size_t)k + 1) * 4, all, e);
    if (rc) return rc;
    if (!alone) topk_merge(m, k, all, ids, vals, lse);
    for (size_t i = 0; i < nk; i++) ids[i] = lse[i / (size_t)k] != lse[i / (size_t)k] ? -1 : token_of(m, ids[i]);
    return 0;
}

/* The column of token id on this rank, or -1: another rank's, or not in the shortlist. */
static int32_t column_of(const struct lk_model *m, int32_t id)
{
    if (id < 0 || id >= m->shape.vocab) return -1;
    if (m->res.draft) id = m->w.draft_inverse[id];
    return id >= m->res.id0 && id < m->res.id0 + m->res.cols ? id - m->res.id0 : -1;
}

static void edit_send(struct lk_model *m, int n)
{
    struct lk_dev *d = m->dev;
    if (!n) return;
    for (int half = 0; half < 2; half++) {
        int at = half * LK_EDITS_MAX;
        d->upload(d, m->edit_ids + at, m->host + at, (size_t)n * 4);
        d->upload(d, m->edit_vals + at, m->host + 2 * LK_EDITS_MAX + at, (size_t)n * 4);
    }
    struct lk_edit_args a = {.logits = m->logits, .ld = m->head_ld, .n_edits = n, .rows = m->edit_ids,
                             .ids = m->edit_ids + LK_EDITS_MAX, .rep = m->edit_vals,
                             .add = m->edit_vals + LK_EDITS_MAX};
    d->ops->edit(d, &a);
}

int lk__model_edit(struct lk_model *m, int n, const int32_t *rows, const int32_t *ids, const float *rep,
                  const float *add, struct lk_err *e)
{
    int32_t *words = m->host;
    int part = 0;
    for (int i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= m->res.n)
            return lk_fail(e, LK_EREQUEST, "edit of row %d: the last call left %d", rows[i], m->res.n);
        int32_t col = column_of(m, ids[i]);
        if (col < 0) continue;
        words[part] = rows[i], words[LK_EDITS_MAX + part] = col;
        memcpy(words + 2 * LK_EDITS_MAX + part, rep + i, 4);
        memcpy(words + 3 * LK_EDITS_MAX + part, add + i, 4);
        if (++part == LK_EDITS_MAX) edit_send(m, part), part = 0;
    }
    edit_send(m, part);
    m->res.argmax_done = 0;
    return 0;
}

int lk_model_hidden(struct lk_model *m, int row0, int n, float *out, struct lk_err *e)
{
    if (row0 < 0 || n < 0 || row0 > m->main.rows - n)
        return lk_fail(e, LK_EREQUEST, "hidden rows %d to %d: the last step had %d", row0, row0 + n, m->main.rows);
    size_t h = (size_t)m->shape.hidden;
    return m->dev->download(m->dev, out, m->hidden + (size_t)row0 * h, (size_t)n * h * sizeof *out, e);
}
