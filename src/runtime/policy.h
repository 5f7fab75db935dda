/* How far to draft: measured acceptance against measured cost.
 *
 * One verify step of R rows costs step(R) seconds: the median of the last few, a row count; unknown counts are read off the nearest known
 * one. One pass of the draft layer costs `pass`. Other programs disturb a clock, so no measurement is believed further than what the work
 * can be: more rows cost no less than one row and at most ROW_MOST more each, a pass between half and twice its bytes' share of a step.
 * A round yields 1 token a lane plus what is accepted. Drafts are added one by one, best gain first, while they raise tokens per
 * second of the whole round; a lane leaves the length of its last round only for a gain that noise does not make. Whatever comes out, the
 * text is the same (sampler.h), so that the clock may decide. */
#ifndef LK_RUNTIME_POLICY_H
#define LK_RUNTIME_POLICY_H

#include "runtime/seq.h"

#define LK_TIMES 7
struct lk_times { /* the last few measurements */
    float s[LK_TIMES];
    int n; /* ever made */
};

struct lk_policy {
    struct lk_times step[LK_ROUND_MAX * 8 + 1]; /* seconds of a verify step by rows */
    struct lk_times pass;                       /* seconds of one draft pass */
    double pass_share;                          /* bytes of a draft pass, in those of a step of one row */
    float lookup[4];                   /* accepted share by match length 4-5, 6-8, 9-15, 16+ */
    int no_clock;                      /* tests: costs stay as assumed, so that a run can be repeated */
};
void lk_policy_init(struct lk_policy *p, double pass_share);
void lk_policy_step(struct lk_policy *p, int rows, double seconds);
void lk_policy_pass(struct lk_policy *p, double seconds);
/* What became of a sequence's drafts: n offered, the first `accepted` taken. */
void lk_policy_learn(struct lk_policy *p, struct lk_seq *q, int accepted);
float lk_policy_lookup(const struct lk_policy *p, int match_len);

/* One lane's offer, and the answer. */
struct lk_offer {
    const float *accept; /* MTP acceptance by depth; NULL: no draft layer */
    int max_mtp;         /* most drafts the layer may make here */
    int n_lookup, match_len;
    int last;            /* drafts of the lane's last round */
    int k;               /* out: drafts */
    enum lk_draft_from from;
};
/* Seconds as the plan believes them. */
double lk_policy_step_cost(const struct lk_policy *p, int rows);
double lk_policy_pass_cost(const struct lk_policy *p);
/* rows: most rows of the verify step, all lanes. */
void lk_policy_plan(const struct lk_policy *p, struct lk_offer *o, int n, int rows);

#endif
