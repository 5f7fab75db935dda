/* Judging a cell: see cell.h. */
#include "bench/cell.h"

#include "base/sort.h"

#include <stdio.h>
#include <string.h>

/* A server may round and a network may add; more than this much faster than the clock allows is a lie. */
#define LIE_FACTOR 1.15
#define LIE_SLACK  0.05 /* seconds: one scheduling hiccup of either side */
#define LATE_SLACK 0.4  /* seconds late although every wait is an ordinary one */
#define HELD_SLACK 1.0  /* seconds late, whatever the waits: a server's front, or this side, can wait 0.4 s for a core of a busy machine */

const char *lk_cell_mark_name(enum lk_cell_mark m)
{
    static const char *const names[] = {"ok", "FAILED", "LIES", "IMPOSSIBLE"};
    return names[m];
}

/* Rounds of the answer: each gives one token and what was accepted. */
static void rounds_judge(struct lk_cell *c, const struct lk_call *k, double answer_s)
{
    c->accept = c->ms_round = c->tokens_round = -1;
    double rounds = k->predicted_n;
    if (k->draft_n > 0 && k->draft_accepted >= 0) {
        c->accept = k->draft_accepted / k->draft_n;
        rounds -= k->draft_accepted;
    }
    if (rounds < 1 || answer_s <= 0) return;
    c->tokens_round = k->predicted_n / rounds;
    c->ms_round = answer_s * 1e3 / rounds;
}

/* The drafts a round that the counts imply, rounded to a whole number. */
static int draft_length(const struct lk_call *k)
{
    double rounds = k->predicted_n - (k->draft_accepted > 0 ? k->draft_accepted : 0);
    return k->draft_n > 0 && rounds > 0 ? (int)(k->draft_n / rounds + 0.5) : 0;
}

void lk_cell_bytes(struct lk_cell *c, double bytes, int draft, const struct lk_physics *p)
{
    c->gb_round = bytes * 1e-9;
    c->gbs = bytes / c->ms_round * 1e-6;
    if (p->gbs <= 0) return;
    double floor_ms = bytes / (p->gbs * 1e9) * 1e3;
    if (c->ms_round >= floor_ms * 0.97) return; /* the bandwidth itself is measured to a few percent */
    c->mark = LK_CELL_IMPOSSIBLE;
    snprintf(c->note, sizeof c->note, "a round reads %.3f GB (draft %d, %.0f tokens of context); at %.1f GB/s that takes %.3f ms, reported: %.3f ms",
             bytes * 1e-9, draft, c->prompt_n, p->gbs, floor_ms, c->ms_round);
}

static void physics_judge(struct lk_cell *c, const struct lk_call *k, const struct lk_physics *p)
{
    if (!p || !p->round || c->ms_round <= 0 || c->prompt_n < 0) return;
    int draft = draft_length(k);
    lk_cell_bytes(c, p->round(p->f, c->prompt_n, draft), draft, p);
}

/* What the answer took without its hiccups: the four longest waits count as an average one. A speed that was made up shows in every wait;
 * a process that did not get a core shows in a few. */
static double steady_seconds(const struct lk_call *k)
{
    double seen = k->last - k->ttft, s = seen, mean = k->chunks > 1 ? seen / (k->chunks - 1) : 0;
    for (size_t i = 0; i < sizeof k->waits / sizeof *k->waits; i++)
        if (k->waits[i] > mean) s -= k->waits[i] - mean;
    return s;
}

/* Tokens came later than the server says: by half of the time at any length, or by seconds. */
static int late(double took, double claimed, double slack)
{
    return took > claimed * LIE_FACTOR + LIE_SLACK && took - claimed > slack;
}

/* 1 when the server's own times cannot be. The client's clock sees at least what the server did. */
static int lies_judge(struct lk_cell *c, const struct lk_call *k)
{
    double seen = k->last - k->ttft, claimed = k->predicted_ms / 1e3, steady = steady_seconds(k);
    if (k->predicted_ms >= 0 && k->predicted_n > 1 &&
        (late(steady, claimed, 2 * claimed <= steady ? 0 : LATE_SLACK) || late(seen, claimed, HELD_SLACK))) {
        c->mark = LK_CELL_LIES;
        snprintf(c->note, sizeof c->note, "the server says %.0f tokens in %.3f s; here they took %.3f s to arrive", k->predicted_n, claimed, seen);
        return 1;
    }
    if (k->prompt_ms >= 0 && k->prompt_ms / 1e3 > k->total * LIE_FACTOR + LIE_SLACK) {
        c->mark = LK_CELL_LIES;
        snprintf(c->note, sizeof c->note, "the server says %.3f s of prefill; the whole request took %.3f s", k->prompt_ms / 1e3, k->total);
        return 1;
    }
    return 0;
}

void lk_cell_judge(struct lk_cell *c, const struct lk_call *k, const struct lk_physics *p)
{
    c->prompt_n = k->prompt_n;
    c->cached_n = k->cached_n;
    c->predicted_n = k->predicted_n >= 0 ? k->predicted_n : k->chunks;
    c->ttft_s = k->chunks ? k->ttft : -1;
    c->tps = c->prefill_tps = c->accept = c->ms_round = c->tokens_round = c->gb_round = c->gbs = c->gflops = -1;
    snprintf(c->finish, sizeof c->finish, "%s", k->finish);
    c->mark = LK_CELL_OK;
    c->note[0] = 0;
    if (k->end != LK_CALL_OK) {
        c->mark = LK_CELL_FAILED;
        snprintf(c->note, sizeof c->note, "%s%s%s", lk_call_end_name(k->end), k->why[0] ? ": " : "", k->why);
        return;
    }
    double seen = k->last - k->ttft, answer_s = k->predicted_ms > 0 ? k->predicted_ms / 1e3 : seen;
    if (k->predicted_ms > 0 && k->predicted_n > 0)
        c->tps = k->predicted_n / answer_s;
    else if (c->predicted_n > 1 && seen > 0)
        c->tps = (c->predicted_n - 1) / seen;
    double fresh = k->prompt_n - (k->cached_n > 0 ? k->cached_n : 0), prefill_s = k->prompt_ms > 0 ? k->prompt_ms / 1e3 : k->ttft;
    if (fresh > 0 && prefill_s > 0) c->prefill_tps = fresh / prefill_s;
    rounds_judge(c, k, answer_s);
    if (!lies_judge(c, k)) physics_judge(c, k, p);
}

void lk_spread_make(struct lk_spread *s, double *v, int n)
{
    *s = (struct lk_spread){.n = n};
    if (!n) return;
    lk_sort_doubles(v, (size_t)n);
    for (int i = 0; i < n; i++) s->mean += v[i] / n;
    s->min = v[0];
    s->max = v[n - 1];
    s->median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
