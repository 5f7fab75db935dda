/* Draft lengths: see policy.h. */
#include "runtime/policy.h"

#define STEP_ROWS ((int)(sizeof((struct lk_policy *)0)->step / sizeof(double)) - 1)
#define ROW_SHARE 0.03 /* cost of one more row, in steps, before anything is measured: V100 0.383 ms in 33 ms, CPU more */
#define KEEP 0.9f      /* memory of the running means: about ten rounds */

void lk_policy_init(struct lk_policy *p)
{
    *p = (struct lk_policy){.lookup = {0.35f, 0.5f, 0.7f, 0.85f}};
}

/* A running mean that leans to the fast side: a step is only ever slow because something else ran. */
static void mean_add(double *mean, double seconds)
{
    double w = seconds < *mean ? 0.4 : 0.1;
    *mean = *mean > 0 ? (1 - w) * *mean + w * seconds : seconds;
}

void lk_policy_step(struct lk_policy *p, int rows, double seconds)
{
    if (p->no_clock || rows < 1 || rows > STEP_ROWS) return;
    mean_add(&p->step[rows], seconds);
}

void lk_policy_pass(struct lk_policy *p, double seconds)
{
    if (p->no_clock) return;
    mean_add(&p->pass, seconds);
}

static int match_class(int len)
{
    return len < 6 ? 0 : len < 9 ? 1 : len < 16 ? 2 : 3;
}

float lk_policy_lookup(const struct lk_policy *p, int match_len)
{
    return p->lookup[match_class(match_len)];
}

void lk_policy_learn(struct lk_policy *p, struct lk_seq *q, int accepted)
{
    for (int i = 0; i < q->n_drafts && i <= accepted; i++) {
        float *a = q->draft_from == LK_DRAFT_LOOKUP ? &p->lookup[match_class(q->match_len)]
                   : i < LK_DRAFT_MAX               ? &q->accept[i]
                                                    : 0;
        if (a) *a = KEEP * *a + (1 - KEEP) * (float)(i < accepted);
    }
}

/* Seconds of a step of `rows`, from what was seen: the nearest count plus a row's share for each row between. */
static double step_cost(const struct lk_policy *p, int rows)
{
    for (int d = 0; d <= STEP_ROWS; d++) {
        if (rows - d >= 1 && p->step[rows - d] > 0) return p->step[rows - d] * (1 + ROW_SHARE * d);
        if (rows + d <= STEP_ROWS && p->step[rows + d] > 0) {
            double f = 1 - ROW_SHARE * d;
            return p->step[rows + d] * (f > 0.5 ? f : 0.5);
        }
    }
    return 1 + ROW_SHARE * rows;
}

static double offer_gain(const struct lk_policy *p, const struct lk_offer *o, enum lk_draft_from from, int depth)
{
    double g = 1;
    for (int i = 0; i <= depth; i++)
        g *= from == LK_DRAFT_LOOKUP ? lk_policy_lookup(p, o->match_len) : o->accept[i < LK_DRAFT_MAX ? i : LK_DRAFT_MAX - 1];
    return g;
}

/* A look-up is taken when its expected length beats that of the draft layer at full depth; it costs no pass. */
static void offer_source(const struct lk_policy *p, struct lk_offer *o)
{
    double look = 0, mtp = 0;
    for (int i = 0; i < o->n_lookup; i++) look += offer_gain(p, o, LK_DRAFT_LOOKUP, i);
    for (int i = 0; o->accept && i < o->max_mtp; i++) mtp += offer_gain(p, o, LK_DRAFT_MTP, i);
    o->from = look > mtp ? LK_DRAFT_LOOKUP : mtp > 0 ? LK_DRAFT_MTP : LK_DRAFT_NONE;
    o->k = 0;
}

void lk_policy_plan(const struct lk_policy *p, struct lk_offer *o, int n, int rows)
{
    double tokens = n, base = step_cost(p, n);
    double pass = p->pass > 0 ? p->pass : base * 0.1;
    int used = n, depth = 0; /* depth: draft passes so far; lanes at the same depth share one */
    for (int i = 0; i < n; i++) offer_source(p, &o[i]);
    while (used < rows) {
        int best = -1;
        double best_gain = 0;
        for (int i = 0; i < n; i++) {
            int most = o[i].from == LK_DRAFT_LOOKUP ? o[i].n_lookup : o[i].from == LK_DRAFT_MTP ? o[i].max_mtp : 0;
            if (o[i].k >= most) continue;
            double g = offer_gain(p, &o[i], o[i].from, o[i].k);
            if (g > best_gain) {
                best_gain = g;
                best = i;
            }
        }
        if (best < 0) break;
        int d = o[best].from == LK_DRAFT_MTP && o[best].k + 1 > depth ? o[best].k + 1 : depth;
        double now = step_cost(p, used) + pass * depth, then = step_cost(p, used + 1) + pass * d;
        if ((tokens + best_gain) * now <= tokens * then) break;
        tokens += best_gain;
        o[best].k++;
        used++;
        depth = d;
    }
    for (int i = 0; i < n; i++)
        if (!o[i].k) o[i].from = LK_DRAFT_NONE;
}
