/* Draft lengths: see policy.h. */
#include "runtime/policy.h"

#define STEP_ROWS ((int)(sizeof((struct lk_policy *)0)->step / sizeof(struct lk_times)) - 1)
#define ROW_SHARE 0.03 /* cost of one more row, in steps, before anything is measured: V100 0.383 ms in 33 ms, CPU 0.05 */
#define ROW_MOST 0.4   /* the most it can be: measured 0.1 for eight rows of BF16 on two AVX2 cores, 0.34 for 4-bit codes */
#define STAY 0.03      /* share of speed for which a lane changes its length: a median of seven still moves by 2 % */
#define KEEP 0.95f     /* memory of the running means: about twenty rounds */

void lk_policy_init(struct lk_policy *p, double pass_share)
{
    *p = (struct lk_policy){.lookup = {0.35f, 0.5f, 0.7f, 0.85f}, .pass_share = pass_share > 0 ? pass_share : 0.1};
}

static void times_add(struct lk_times *t, double seconds)
{
    t->s[t->n++ % LK_TIMES] = (float)seconds;
    if (t->n == 2 * LK_TIMES) t->n = LK_TIMES; /* the same slot next, and no overflow */
}

/* Median; 0: nothing measured. */
static double times_mid(const struct lk_times *t)
{
    float v[LK_TIMES];
    int n = t->n < LK_TIMES ? t->n : LK_TIMES;
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && v[j - 1] > t->s[i]; j--) v[j] = v[j - 1];
        v[j] = t->s[i];
    }
    return n ? (double)v[(n - 1) / 2] : 0;
}

void lk_policy_step(struct lk_policy *p, int rows, double seconds)
{
    if (p->no_clock || rows < 1 || rows > STEP_ROWS) return;
    times_add(&p->step[rows], seconds);
}

void lk_policy_pass(struct lk_policy *p, double seconds)
{
    if (p->no_clock) return;
    times_add(&p->pass, seconds);
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

static double clamp(double v, double lo, double hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* What was seen of the nearest count, plus a row's share for each row between. */
static double step_seen(const struct lk_policy *p, int rows)
{
    for (int d = 0; d < STEP_ROWS; d++) {
        double less = rows - d >= 1 ? times_mid(&p->step[rows - d]) : 0;
        double more = rows + d <= STEP_ROWS ? times_mid(&p->step[rows + d]) : 0;
        if (less > 0) return less * (1 + ROW_SHARE * d);
        if (more > 0) return more / (1 + ROW_SHARE * d);
    }
    return 1 + ROW_SHARE * rows;
}

double lk_policy_step_cost(const struct lk_policy *p, int rows)
{
    double one = step_seen(p, 1);
    return clamp(step_seen(p, rows), one, one * (1 + ROW_MOST * (rows - 1)));
}

double lk_policy_pass_cost(const struct lk_policy *p)
{
    double plain = step_seen(p, 1) * p->pass_share, seen = times_mid(&p->pass);
    return seen > 0 ? clamp(seen, plain / 2, plain * 2) : plain;
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
    double tokens = n, pass = lk_policy_pass_cost(p);
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
        double now = lk_policy_step_cost(p, used) + pass * depth, then = lk_policy_step_cost(p, used + 1) + pass * d;
        double stay = o[best].k < o[best].last ? 1 - STAY : 1 + STAY;
        if ((tokens + best_gain) * now <= tokens * then * stay) break;
        tokens += best_gain;
        o[best].k++;
        used++;
        depth = d;
    }
    for (int i = 0; i < n; i++)
        if (!o[i].k) o[i].from = LK_DRAFT_NONE;
}
