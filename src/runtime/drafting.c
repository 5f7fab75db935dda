/* Drafting: after a step has settled, the draft layer catches up on the rows that stay and proposes the next round.
 *
 * Row p of the draft layer pairs the final hidden state of position p with token p + 1, and its logits speak of token p + 2. The first pass
 * takes all rows that stay; its last row gives draft 1. Each further pass feeds the layer its own hidden state and its last draft. */
#include "runtime/core.h"

#include "base/log.h"

#define PROBE_ROUNDS 32 /* a lane whose drafts did not pay tries one again that often */

/* Most drafts a lane can use: neither answer nor context may end inside them. */
static int draft_room(const struct lk_core *c, const struct lk_seq *q)
{
    int out = q->max_out - lk_seq_out(q) - 1, ctx = c->o.ctx - q->n_ids - 1;
    int k = out < ctx ? out : ctx;
    return k < 0 ? 0 : k < LK_LOOKUP_MAX ? k : LK_LOOKUP_MAX;
}

/* 1: this step lane drafts for the next round. */
static int drafts_now(const struct lk_seq *q)
{
    return q->phase == LK_SEQ_DECODE && q->finish == LK_FIN_NONE && q->draft != 0;
}

static void offer_make(struct lk_core *c, struct lk_seq *q, struct lk_offer *o)
{
    int room = draft_room(c, q), most = room < LK_DRAFT_MAX ? room : LK_DRAFT_MAX;
    *o = (struct lk_offer){.last = q->last_drafts, .accept = c->mtp ? q->accept : NULL, .max_mtp = c->mtp ? most : 0};
    if (q->draft < 0)
        o->n_lookup = lk_lookup_find(&c->lookup[q->lane], q->ids, q->n_ids, room, q->drafts, &o->match_len);
}

/* Decides length and source for every step lane: fixed lengths as asked, the others by the policy. */
static void plan(struct lk_core *c, int *k)
{
    struct lk_offer offers[LK_LANES];
    int who[LK_LANES], n = 0, rows = c->rows_max;
    for (int l = 0; l < LK_LANES; l++) rows -= c->lane[l] && c->lane[l]->phase == LK_SEQ_DECODE;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        k[l] = q->n_drafts = 0;
        q->draft_from = LK_DRAFT_NONE;
        if (!drafts_now(q)) continue;
        struct lk_offer o;
        offer_make(c, q, &o);
        if (q->draft > 0) {
            k[l] = q->draft < o.max_mtp ? q->draft : o.max_mtp;
            q->draft_from = k[l] ? LK_DRAFT_MTP : LK_DRAFT_NONE;
            rows -= k[l];
        } else {
            who[n] = l;
            offers[n++] = o;
        }
    }
    if (n) lk_policy_plan(&c->policy, offers, n, n + (rows > 0 ? rows : 0));
    for (int i = 0; i < n; i++) {
        struct lk_seq *q = c->step_seq[who[i]];
        struct lk_offer *o = &offers[i];
        q->probe = o->k ? 0 : q->probe + 1;
        if (q->probe >= PROBE_ROUNDS && o->max_mtp > 0) {
            q->probe = 0;
            o->k = 1;
            o->from = LK_DRAFT_MTP;
        }
        q->draft_from = o->from;
        q->match_len = o->match_len;
        q->last_drafts = o->k;
        k[who[i]] = o->from == LK_DRAFT_MTP ? o->k : 0;
        q->n_drafts = o->from == LK_DRAFT_LOOKUP ? o->k : 0;
    }
}

/* One pass; reads the drafts of lanes whose logit0 is set. */
static int pass(struct lk_core *c, struct lk_lane *lanes, int n_lanes, int from, struct lk_err *e)
{
    struct lk_mtp_step st = {.flags = c->n_logits ? LK_STEP_LOGITS : 0,
                             .n_rows = c->n_rows, .n_lanes = n_lanes, .n_pages = c->n_pages, .n_logits = c->n_logits,
                             .hidden_from = from, .ids = c->ids, .hidden_rows = c->hidden_rows, .lanes = lanes,
                             .pages = c->pages, .logit_rows = c->logit_rows};
    int rc = lk_model_mtp(c->model, c->state, &st, e);
    if (rc || !c->n_logits) return rc;
    c->n_edits = 0;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        c->whole[l] = 0;
        if (c->logit0[l] < 0) continue;
        for (int i = 0; i < q->n_drafts; i++) core_count(c, q, q->drafts[i], 1);
        core_edits(c, l, NULL, 1);
        for (int i = 0; i < q->n_drafts; i++) core_count(c, q, q->drafts[i], -1);
    }
    if ((rc = core_fetch(c, 1, e))) return rc;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        if (c->logit0[l] < 0) continue;
        size_t at = (size_t)c->logit0[l] * (size_t)c->got_k;
        int32_t id = c->got_k == 1 || q->sampling.temp <= 0
                         ? c->got_ids[at]
                         : lk_sample_sorted(&q->sampling, c->got_ids + at, c->got_vals + at, c->got_k,
                                            (uint64_t)(q->n_ids + q->n_drafts));
        if (id >= 0 && id < c->o.vocab_used) q->drafts[q->n_drafts++] = id;
    }
    return 0;
}

/* First pass: the rows of the last step that stay (row_count of each lane). last_row[l]: its last row in this pass. */
static int catch_up(struct lk_core *c, const int *k, int *last_row, struct lk_err *e)
{
    struct lk_lane lanes[LK_LANES];
    int n = 0;
    c->n_rows = c->n_logits = 0;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        int rows = c->row_count[l], row0 = c->lanes[l].row0, pos0 = c->lanes[l].pos0;
        c->logit0[l] = -1;
        while (rows > 0 && pos0 + rows >= q->n_ids) rows--; /* no next token (an error cut it short) */
        if (rows < 1) continue;
        lanes[n] = c->lanes[l];
        lanes[n].row0 = c->n_rows;
        lanes[n++].rows = rows;
        for (int i = 0; i < rows; i++) {
            c->ids[c->n_rows] = q->ids[pos0 + i + 1];
            c->hidden_rows[c->n_rows++] = row0 + i;
        }
        last_row[l] = c->n_rows - 1;
        if (k[l] < 1) continue;
        c->logit0[l] = c->n_logits;
        c->logit_rows[c->n_logits++] = last_row[l];
    }
    return n ? pass(c, lanes, n, 0, e) : 0;
}

/* Pass j (from 2): lanes that want a j-th draft, one row each. */
static int deepen(struct lk_core *c, const int *k, int j, int *last_row, struct lk_err *e)
{
    struct lk_lane lanes[LK_LANES];
    int n = 0;
    c->n_rows = c->n_logits = 0;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        c->logit0[l] = -1;
        if (k[l] < j || q->n_drafts != j - 1) continue;
        lanes[n] = c->lanes[l];
        lanes[n].row0 = c->n_rows;
        lanes[n].rows = 1;
        lanes[n++].pos0 = q->n_done + j - 2;
        c->ids[c->n_rows] = q->drafts[j - 2];
        c->hidden_rows[c->n_rows] = last_row[l];
        last_row[l] = c->n_rows;
        c->logit0[l] = c->n_logits;
        c->logit_rows[c->n_logits++] = c->n_rows++;
    }
    return n ? pass(c, lanes, n, 1, e) : 0;
}

int core_draft(struct lk_core *c, struct lk_err *e)
{
    int k[LK_LANES], last_row[LK_LANES] = {0}, deepest = 0;
    plan(c, k);
    if (!c->mtp) return 0;
    for (int l = 0; l < c->n_lanes; l++)
        if (k[l] > deepest) deepest = k[l];
    double t0 = lk_clock();
    int rc = catch_up(c, k, last_row, e);
    for (int j = 2; !rc && j <= deepest; j++) rc = deepen(c, k, j, last_row, e);
    if (!rc && deepest > 0) lk_policy_pass(&c->policy, (lk_clock() - t0) / deepest);
    return rc;
}
