/* From a step's logits to tokens. Three ways, by what a lane asks for: the device's argmax (greedy, nothing else), its top-k after sparse
 * edits (penalties, bias, sampling with top-k), or whole rows on the host (grammar, logprobs, no top-k). All three give the same
 * token for the same logits. Row i of a lane is judged as if its first i drafts were accepted, and is looked at only then. */
#include "runtime/core.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

#define DRAFT_CANDS 64 /* a draft needs no exact tail */

static int has_penalty(const struct lk_sampling *s)
{
    return s->presence != 0 || s->frequency != 0 || s->repetition != 1;
}

void core_count(struct lk_core *c, struct lk_seq *q, int32_t id, int sign)
{
    if (!has_penalty(&q->sampling)) return;
    struct lk_counts *k = &c->counts[q->lane];
    if (!k->seen[id]) k->list[k->n++] = id;
    k->seen[id] |= LK_SEEN_LISTED;
    k->gen[id] += sign;
}

/* What the penalties do to token id. A listed token may stand at 0: a draft that was taken back. */
static void penalty(const struct lk_sampling *s, const struct lk_counts *k, int32_t id, float *rep, float *add)
{
    int gen = k->gen[id];
    *rep = gen > 0 || k->seen[id] & LK_SEEN_PROMPT ? s->repetition : 1;
    *add = gen > 0 ? -s->presence - s->frequency * (float)gen : 0;
}

/* Edits of one logit row into the step's list; -1 when the list is full. A token with both a penalty and a bias gets two edits. */
static int edits_row(struct lk_core *c, struct lk_seq *q, int row)
{
    const struct lk_sampling *s = &q->sampling;
    const struct lk_counts *k = &c->counts[q->lane];
    int n = c->n_edits, most = (has_penalty(s) ? k->n : 0) + s->n_bias;
    if (n + most > LK_EDITS) return -1;
    for (int i = 0; has_penalty(s) && i < k->n; i++) {
        float rep, add;
        int32_t id = k->list[i];
        penalty(s, k, id, &rep, &add);
        if (rep == 1 && add == 0) continue;
        c->edit_rows[n] = row;
        c->edit_ids[n] = id;
        c->edit_rep[n] = rep;
        c->edit_add[n++] = add;
    }
    for (int i = 0; i < s->n_bias; i++) {
        c->edit_rows[n] = row;
        c->edit_ids[n] = s->bias[i].id;
        c->edit_rep[n] = 1;
        c->edit_add[n++] = s->bias[i].add;
    }
    c->n_edits = n;
    return 0;
}

static int wants_whole(const struct lk_seq *q)
{
    return q->grammar.self || q->n_logprobs || lk_sampling_wants_row(&q->sampling);
}

void core_edits(struct lk_core *c, int l, const int32_t *drafts, int draft)
{
    struct lk_seq *q = c->step_seq[l];
    int rows = draft ? 1 : c->row_count[l];
    if ((c->whole[l] = !draft && wants_whole(q))) return; /* edited on the host, row by row */
    if (!has_penalty(&q->sampling) && !q->sampling.n_bias) return;
    int n0 = c->n_edits, rc = 0, i = 0;
    for (; i < rows; i++) {
        if (i > 0) core_count(c, q, drafts[i - 1], 1);
        if ((rc = edits_row(c, q, c->logit0[l] + i))) break;
    }
    if (i == rows) i--;
    for (; i > 0; i--) core_count(c, q, drafts[i - 1], -1);
    if (rc) c->n_edits = n0;
    if (rc && !draft) c->whole[l] = 1; /* for a draft, no edits only make a worse draft */
}

/* Candidates a lane needs of each of its rows. */
static int wants_cands(const struct lk_seq *q, int draft)
{
    if (q->sampling.temp <= 0) return 1;
    return q->sampling.top_k > 0 && q->sampling.top_k <= LK_TOPK_MAX ? q->sampling.top_k : draft ? DRAFT_CANDS : 1;
}

int core_fetch(struct lk_core *c, int draft, struct lk_err *e)
{
    int k = 0, rc = 0;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        if (c->logit0[l] < 0) continue;
        if (c->whole[l]) continue;
        int need = wants_cands(q, draft);
        if (need > k) k = need;
    }
    c->got_k = k;
    if (!k) return 0;
    if (k > c->o.vocab_used) k = c->got_k = c->o.vocab_used;
    if (c->n_edits) rc = lk_model_edit(c->model, c->n_edits, c->edit_rows, c->edit_ids, c->edit_rep, c->edit_add, e);
    if (!rc && k == 1 && !c->n_edits) return lk_model_argmax(c->model, c->got_ids, e);
    return rc ? rc : lk_model_topk(c->model, k, c->got_ids, c->got_vals, c->got_lse, e);
}

static void row_logprob(struct lk_core *c, struct lk_seq *q, int32_t id, const struct lk_logprob *top)
{
    struct lk_logprob *p = &q->logprobs[lk_seq_out(q)];
    *p = *top;
    p->lp = p->lp > -INFINITY ? c->row[id] - p->lp : -INFINITY;
    for (int i = 0; i < p->n_top; i++) p->top_lp[i] -= top->lp;
}

static int grammar_mask(const struct lk_grammar *g, uint32_t *bits, int n)
{
    int depth = lk_mem_guard_pause(), some = g->self ? g->mask(g->self, bits, n) : 0;
    lk_mem_guard_resume(depth);
    return some;
}

static int32_t choose_whole(struct lk_core *c, struct lk_seq *q, int row, struct lk_err *e)
{
    const struct lk_counts *k = &c->counts[q->lane];
    struct lk_logprob top = {0};
    int n = c->o.vocab_used;
    if (lk_model_logits(c->model, row, c->row, e)) return -1;
    if (q->n_logprobs) { /* the target's own: before penalties, mask and temperature */
        top.lp = (float)lk_sample_lse(c->row, n);
        top.n_top = lk_sample_top(c->row, n, q->n_logprobs, c->cands);
        for (int i = 0; i < top.n_top; i++) {
            top.top_ids[i] = c->cands[i].id;
            top.top_lp[i] = c->cands[i].val;
        }
    }
    float raw_lse = top.lp;
    for (int i = 0; has_penalty(&q->sampling) && i < k->n; i++) {
        float rep, add, *v = &c->row[k->list[i]];
        penalty(&q->sampling, k, k->list[i], &rep, &add);
        *v = lk_sample_edit(*v, rep, add);
    }
    for (int i = 0; i < q->sampling.n_bias; i++) c->row[q->sampling.bias[i].id] += q->sampling.bias[i].add;
    if (grammar_mask(&q->grammar, c->mask, n))
        for (int i = 0; i < n; i++)
            if (!(c->mask[i / 32] >> (i % 32) & 1)) c->row[i] = -INFINITY;
    int32_t id = lk_sample_row(&q->sampling, c->row, n, (uint64_t)q->n_ids, c->cands);
    if (id >= 0 && q->n_logprobs) {
        if (lk_model_logits(c->model, row, c->row, e)) return -1;
        top.lp = raw_lse;
        row_logprob(c, q, id, &top);
    }
    return id;
}

int32_t core_choose(struct lk_core *c, int l, int i, struct lk_err *e)
{
    struct lk_seq *q = c->step_seq[l];
    int row = c->logit0[l] + i;
    int32_t id;
    if (c->whole[l]) {
        id = choose_whole(c, q, row, e);
    } else if (c->got_k == 1 || q->sampling.temp <= 0) {
        id = c->got_ids[(size_t)row * (size_t)c->got_k];
    } else {
        size_t at = (size_t)row * (size_t)c->got_k;
        id = lk_sample_sorted(&q->sampling, c->got_ids + at, c->got_vals + at, c->got_k, (uint64_t)q->n_ids);
    }
    if (id < 0 && !q->grammar.self && !q->sampling.n_bias) {
        lk_fail(e, LK_ESYS, "the model's logits are no numbers after %d tokens: a damaged model file or device", q->n_ids);
        return -1;
    }
    if (id < 0 || id >= c->o.vocab_used) {
        lk_fail(e, LK_EREQUEST, "no token may follow: grammar and bias forbid all %d", c->o.vocab_used);
        return -1;
    }
    return id;
}
