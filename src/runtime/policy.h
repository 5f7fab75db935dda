/* How far to draft: measured acceptance against measured cost.
 *
 * One verify step of R rows costs step(R) seconds (running mean a row count; unknown counts are read off the nearest known one),
 * one pass of the draft layer costs `pass`. A round yields 1 token a lane plus what is accepted. Drafts are added one by one, best gain
 * first, while they raise tokens per second of the whole round. Whatever comes out, the text is the same (sampler.h), so that the
 * clock may decide. */
#ifndef LK_RUNTIME_POLICY_H
#define LK_RUNTIME_POLICY_H

#include "runtime/seq.h"

struct lk_policy {
    double step[LK_ROUND_MAX * 8 + 1]; /* seconds of a verify step by rows; 0: not seen */
    double pass;                       /* seconds of one draft pass */
    float lookup[4];                   /* accepted share by match length 4-5, 6-8, 9-15, 16+ */
    int no_clock;                      /* tests: costs stay as assumed, so that a run can be repeated */
};
void lk_policy_init(struct lk_policy *p);
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
    int k;               /* out: drafts */
    enum lk_draft_from from;
};
/* rows: most rows of the verify step, all lanes. */
void lk_policy_plan(const struct lk_policy *p, struct lk_offer *o, int n, int rows);

#endif
