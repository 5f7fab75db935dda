/* A decode round: every ready lane moves by one token and by as many of its drafts as the target agrees with.
 *
 * Each lane enters the verify step with its last token and its drafts. Row i's token is chosen exactly as it would be without drafts (same
 * logits, same edits, same noise: choose.c); the draft is accepted when it is that token. So text and logprobs are the target's own whatever
 * was drafted. Rejection sampling with an inverse draw would accept a little more often at high temperature, but its text would depend on
 * the draft length, which --draft auto takes from the clock: the same seed would no longer give the same text.
 * Recurrent state is recorded, then folded over what was accepted; then the draft layer catches up on the accepted rows and
 * drafts the next round, from its own distribution under the same edits and the same noise. */
#include "runtime/core.h"

#include "base/log.h"
#include "base/mem.h"

#define ALARM_ROUNDS 200

/* Most drafts this lane can use: answer and context must not end inside them. */
static int draft_room(const struct lk_core *c, const struct lk_seq *q)
{
    int out = q->max_out - lk_seq_out(q) - 1, ctx = c->o.ctx - q->n_ids - 1;
    int k = out < ctx ? out : ctx;
    return k < 0 ? 0 : k;
}

static int cut_to(int k, int most)
{
    return k < most ? k : most;
}

/* Prompts that are but for a short end go along, while there are rows. What has no pages waits for its own chunk, which says so. */
static void round_tails(struct lk_core *c)
{
    for (int l = 0; l < LK_LANES; l++) {
        struct lk_seq *q = c->lane[l];
        if (!q || q->phase != LK_SEQ_PREFILL || q->finish != LK_FIN_NONE) continue;
        int n = core_tail(c, q);
        if (!n || n > c->rows_max - c->n_rows || lk_seq_reserve(q, LK_ROUND_MAX + 1)) continue;
        if (core_pages_ensure(c, q, q->n_prompt + LK_DRAFT_MAX + 1, NULL)) continue;
        core_step_lane(c, q, q->ids + q->n_done, n, q->n_done, 1);
        c->row_count[c->n_lanes - 1] = 1; /* one logit row */
    }
}

/* Lanes of this round, their drafts cut to the rows the device keeps batch-invariant; pages and room for tokens. */
static int round_build(struct lk_core *c)
{
    int n = 0, rows = 0, widest;
    struct lk_seq *ready[LK_LANES];
    for (int l = 0; l < LK_LANES; l++) {
        struct lk_seq *q = c->lane[l];
        if (!q || q->phase != LK_SEQ_DECODE || q->finish != LK_FIN_NONE) continue;
        struct lk_err e = {0};
        q->n_drafts = cut_to(q->n_drafts, draft_room(c, q));
        if (lk_seq_reserve(q, LK_ROUND_MAX + 1)) lk_fail(&e, LK_ENOMEM, "out of memory for the answer");
        if (!e.code && core_pages_ensure(c, q, q->n_ids + q->n_drafts + LK_DRAFT_MAX + 1, NULL)) {
            q->n_drafts = 0; /* the last page may still do for single tokens */
            core_pages_ensure(c, q, q->n_ids, &e);
        }
        if (e.code) {
            lk_seq_fail(q, &e);
            continue;
        }
        ready[n++] = q;
        rows += 1 + q->n_drafts;
    }
    for (; rows > c->rows_max; rows--) {
        widest = 0;
        for (int i = 1; i < n; i++)
            if (ready[i]->n_drafts > ready[widest]->n_drafts) widest = i;
        ready[widest]->n_drafts--;
    }
    core_step_reset(c);
    for (int i = 0; i < n; i++) {
        int32_t ids[LK_ROUND_MAX];
        ids[0] = ready[i]->ids[ready[i]->n_done];
        for (int k = 0; k < ready[i]->n_drafts; k++) ids[1 + k] = ready[i]->drafts[k];
        core_step_lane(c, ready[i], ids, 1 + ready[i]->n_drafts, ready[i]->n_done, 2);
    }
    if (n) round_tails(c);
    return n;
}

static int forced(const struct lk_core *c, const struct lk_seq *q)
{
    return c->force_accept >= 0 && lk_sample_uniform(q->sampling.seed, (uint64_t)q->n_ids, -1) < c->force_accept;
}

/* Takes tokens row by row until one differs from its draft or ends the answer; returns how many, or negative (device). */
static int lane_accept(struct lk_core *c, int l, struct lk_err *e)
{
    struct lk_seq *q = c->step_seq[l];
    int took = 0, accepted = 0;
    for (int i = 0; i <= q->n_drafts; i++) {
        struct lk_err mine = {0};
        int32_t id = core_choose(c, l, i, &mine);
        if (id < 0 && mine.code == LK_EDEVICE) return lk_fail(e, mine.code, "%s", mine.text);
        if (id < 0) {
            lk_seq_fail(q, &mine);
            break;
        }
        if (i < q->n_drafts && forced(c, q)) id = q->drafts[i];
        int n = q->n_drafts;
        int ended = core_commit(c, q, id);
        took += q->finish != LK_FIN_ERROR;
        int agreed = i < n && id == q->drafts[i];
        accepted += agreed;
        if (ended || !agreed) break;
    }
    int offered = c->row_count[l] - 1;
    q->n_drafts = offered;
    if (offered) lk_policy_learn(&c->policy, q, accepted);
    q->t.rounds++;
    q->t.draft_n += offered;
    q->t.draft_n_accepted += accepted;
    c->drafts += (uint64_t)offered;
    c->drafts_accepted += (uint64_t)accepted;
    if (offered && q->draft_from == LK_DRAFT_MTP) c->perfect_rounds = accepted == offered ? c->perfect_rounds + 1 : 0;
    q->n_drafts = 0;
    return took;
}

static void alarm_perfect(struct lk_core *c)
{
    if (c->perfect_rounds < ALARM_ROUNDS) c->perfect_said = 0;
    if (c->perfect_rounds < ALARM_ROUNDS || c->perfect_said || c->force_accept >= 0) return;
    c->perfect_said = 1;
    lk_log_warn("every draft of the last %d rounds was accepted: either the text repeats itself or drafts and answers come "
                "from the same place; compare with --draft 0", ALARM_ROUNDS);
}

/* Tokens of all lanes, and how many rows of each stay. */
static int round_accept(struct lk_core *c, int32_t *keep, struct lk_err *e)
{
    for (int l = 0; l < c->n_lanes; l++) {
        int tail = c->step_seq[l]->phase == LK_SEQ_PREFILL, took = c->lanes[l].rows;
        int rc = tail ? core_first(c, l, e) : (took = lane_accept(c, l, e));
        if (rc < 0) return rc;
        c->row_count[l] = keep[l] = took;
    }
    return 0;
}

/* tails: of the lanes, those from here on */
static int round_fold(struct lk_core *c, const int32_t *keep, int tails, struct lk_err *e)
{
    int rc = 0;
    for (int l = tails; !rc && l < c->n_lanes; l++) rc = core_tail_snapshot(c, l, e);
    return rc ? rc : lk_model_fold(c->model, c->state, keep, c->n_lanes, e);
}

int core_round(struct lk_core *c, struct lk_err *e)
{
    int tails = round_build(c);
    if (!tails) return 0;
    int record = c->n_rows > c->n_lanes, greedy = 1;
    for (int l = 0; l < c->n_lanes; l++) {
        struct lk_seq *q = c->step_seq[l];
        core_edits(c, l, q->drafts, 0);
        greedy &= q->sampling.temp <= 0 && !c->whole[l];
    }
    struct lk_step st = {.flags = LK_STEP_LOGITS | (record ? LK_STEP_RECORD : 0) |
                                  (greedy && !c->n_edits ? LK_STEP_ARGMAX : 0),
                         .n_rows = c->n_rows, .n_lanes = c->n_lanes, .n_pages = c->n_pages, .n_logits = c->n_logits,
                         .ids = c->ids, .lanes = c->lanes, .pages = c->pages, .logit_rows = c->logit_rows};
    double t0 = lk_clock();
    lk_mem_guard_begin("decode round");
    int rc = lk_model_step(c->model, c->state, &st, e), n_rows = c->n_rows;
    if (!rc) rc = core_fetch(c, 0, e);
    lk_policy_step(&c->policy, n_rows, lk_clock() - t0);
    int32_t keep[LK_LANES] = {0};
    if (!rc) rc = round_accept(c, keep, e);
    if (!rc && record) rc = round_fold(c, keep, tails, e);
    for (int l = 0; !rc && l < tails; l++) c->step_seq[l]->n_done += record ? keep[l] : 1;
    c->rounds++;
    if (!rc) rc = core_draft(c, e);
    lk_mem_guard_end();
    alarm_perfect(c);
    return rc;
}
