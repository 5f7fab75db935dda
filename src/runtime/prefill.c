/* Prefill: one chunk of one lane's prompt. Chunks end at absolute multiples of the chunk size and at the places where state is
 * snapshotted, so that a prompt is cut the same whoever else runs. The short tail behind the last turn header is a recorded step: its
 * rows have the same bits as decode, and folding it twice leaves the state before the last token as well. Being no different from
 * rows of decode, a tail is taken along by a decode round that has room (round.c), at hardly any cost: the weights are read once. */
#include "runtime/core.h"

#include "base/mem.h"

static int chunk_end(const struct lk_core *c, const struct lk_seq *q)
{
    int end = (q->n_done / c->o.chunk + 1) * c->o.chunk;
    for (int i = 0; i < q->n_cuts; i++)
        if (q->cuts[i] > q->n_done && q->cuts[i] < end) end = q->cuts[i];
    return end < q->n_prompt ? end : q->n_prompt;
}

static int is_cut(const struct lk_seq *q, int pos)
{
    for (int i = 0; i < q->n_cuts; i++)
        if (q->cuts[i] == pos) return 1;
    return pos % LK_SNAP_EVERY == 0;
}

void core_step_reset(struct lk_core *c)
{
    c->n_lanes = c->n_rows = c->n_pages = c->n_logits = c->n_edits = 0;
}

void core_step_lane(struct lk_core *c, struct lk_seq *q, const int32_t *ids, int n, int pos0, int want)
{
    int l = c->n_lanes++;
    c->step_seq[l] = q;
    c->row_count[l] = n;
    c->whole[l] = 0;
    c->lanes[l] = (struct lk_lane){.row0 = c->n_rows, .rows = n, .pos0 = pos0, .page0 = c->n_pages, .slot = q->slot};
    for (int i = 0; i < n; i++) c->ids[c->n_rows + i] = ids[i];
    for (int i = 0; i < q->n_pages; i++) c->pages[c->n_pages + i] = q->pages[i];
    c->logit0[l] = want ? c->n_logits : -1;
    for (int i = want == 2 ? 0 : n - 1; want && i < n; i++) c->logit_rows[c->n_logits++] = c->n_rows + i;
    c->n_rows += n;
    c->n_pages += q->n_pages;
}

int core_tail(const struct lk_core *c, const struct lk_seq *q)
{
    int n = q->n_prompt - q->n_done;
    return chunk_end(c, q) == q->n_prompt && n <= c->rows_max && q->n_cuts && q->cuts[q->n_cuts - 1] <= q->n_done ? n : 0;
}

int core_tail_snapshot(struct lk_core *c, int l, struct lk_err *e)
{
    struct lk_seq *q = c->step_seq[l];
    int32_t keep[LK_LANES] = {0};
    int n = c->lanes[l].rows, end = c->lanes[l].pos0 + n;
    if (n < 2) return 0; /* that state was the chunk's before */
    keep[l] = n - 1;
    lk_state_slot_copy(c->state, c->spare_slot, q->slot);
    int rc = lk_model_fold(c->model, c->state, keep, c->n_lanes, e);
    if (rc) return rc;
    int depth = lk_mem_guard_pause();
    lk_prefix_keep(c->prefix, q->ids, end - 1, q->pages, q->slot, NULL);
    lk_mem_guard_resume(depth);
    lk_state_slot_copy(c->state, q->slot, c->spare_slot);
    return 0;
}

int core_first(struct lk_core *c, int l, struct lk_err *e)
{
    struct lk_seq *q = c->step_seq[l];
    struct lk_err mine = {0};
    int32_t id = core_choose(c, l, 0, &mine);
    q->phase = LK_SEQ_DECODE;
    q->n_done = q->n_prompt;
    if (id >= 0) {
        core_commit(c, q, id);
        return 0;
    }
    if (mine.code == LK_EDEVICE) return lk_fail(e, mine.code, "%s", mine.text);
    q->n_done--; /* the invariant of DECODE: one id is not in the state; this sequence ends here */
    lk_seq_fail(q, &mine);
    return 0;
}

/* The prompt is through: candidates, then the first token of the answer. */
static int first_token(struct lk_core *c, struct lk_err *e)
{
    c->row_count[0] = 1; /* one logit row */
    core_edits(c, 0, NULL, 0);
    int rc = core_fetch(c, 0, e);
    return rc ? rc : core_first(c, 0, e);
}

int core_prefill(struct lk_core *c, struct lk_seq *q, struct lk_err *e)
{
    struct lk_err mine = {0};
    int start = q->n_done, end = chunk_end(c, q), n = end - start, last = end == q->n_prompt;
    if (core_pages_ensure(c, q, end + (last ? LK_DRAFT_MAX + 1 : 0), &mine) || lk_seq_reserve(q, LK_ROUND_MAX + 1)) {
        if (!mine.code) lk_fail(&mine, LK_ENOMEM, "out of memory for the answer");
        lk_seq_fail(q, &mine);
        return 0;
    }
    int tail = core_tail(c, q);
    int32_t all = n;
    core_step_reset(c);
    core_step_lane(c, q, q->ids + start, n, start, last);
    struct lk_step st = {.flags = (last ? LK_STEP_LOGITS : 0) | (tail ? LK_STEP_RECORD : 0),
                         .n_rows = c->n_rows, .n_lanes = 1, .n_pages = c->n_pages, .n_logits = c->n_logits,
                         .ids = c->ids, .lanes = c->lanes, .pages = c->pages, .logit_rows = c->logit_rows};
    lk_mem_guard_begin("prefill");
    int rc = lk_model_step(c->model, c->state, &st, e);
    lk_mem_guard_end();
    if (!rc && tail) rc = core_tail_snapshot(c, 0, e);
    if (!rc && tail) rc = lk_model_fold(c->model, c->state, &all, 1, e);
    if (rc) return rc;
    lk_mem_guard_begin("prefill");
    q->n_done = end;
    if (last) rc = first_token(c, e);
    c->row_count[0] = n;
    if (!rc) rc = core_draft(c, e);
    lk_mem_guard_end();
    if (!rc && !last && is_cut(q, end)) lk_prefix_keep(c->prefix, q->ids, end, q->pages, q->slot, NULL);
    return rc;
}
