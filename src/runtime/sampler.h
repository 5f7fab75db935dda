/* From logits to a token. Pure functions of (settings, logits, position): no state, no clock, no threads.
 *
 * The draw is the Gumbel form: of the candidates that pass the filters, the one with the largest logit/temp + g wins, where
 * g = -log(-log u) and u is a hash of (seed, position, token id). That is an exact draw from the filtered distribution, and it has a
 * property the usual inverse draw lacks: two distributions that are alike and share the noise mostly pick the same token.
 * So the draft layer draws with the same noise, a draft is accepted when the target's own draw is that token, and text
 * never depends on whether, how far or by what it was drafted (runtime/round.c). */
#ifndef LK_RUNTIME_SAMPLER_H
#define LK_RUNTIME_SAMPLER_H

#include "base/err.h"
#include "runtime/sampling.h"

#include <stddef.h>
#include <stdint.h>

#define LK_TOPK_MAX 256 /* candidates a device returns a row; a larger or no top-k takes the whole row */

/* Off-values: greedy, nothing filtered. */
void lk_sampling_init(struct lk_sampling *s);
/* LK_EREQUEST naming the field, its value and the range. vocab: ids a bias may name. */
int lk_sampling_check(const struct lk_sampling *s, int vocab, struct lk_err *e);
/* 1: the draw needs more of a row than its LK_TOPK_MAX best. */
int lk_sampling_wants_row(const struct lk_sampling *s);

/* Uniform in (0, 1) for this draw and token: counter-based, so any position may be asked in any order. */
double lk_sample_uniform(uint64_t seed, uint64_t pos, int32_t id);

/* Chooses among n candidates sorted by logit (largest first, ties by id); takes the first top_k when top_k is set.
 * With temp 0 the first. -1: no candidate is above -infinity. */
int32_t lk_sample_sorted(const struct lk_sampling *s, const int32_t *ids, const float *vals, int n, uint64_t pos);

/* Whole rows. scratch holds n candidates. */
struct lk_cand {
    float val;
    int32_t id;
};
int32_t lk_sample_row(const struct lk_sampling *s, const float *row, int n, uint64_t pos, struct lk_cand *scratch);
/* Largest of a row, ties to the smaller id; NaN never wins; -1 when all are -infinity. */
int32_t lk_sample_argmax(const float *row, int n);
/* The filtered probabilities themselves, into prob[n] (0 for what is filtered out). For tests and reports. */
void lk_sample_probs(const struct lk_sampling *s, const float *row, int n, float *prob, struct lk_cand *scratch);

/* One edit of a row: l = l > 0 ? l / rep : l * rep, then += add. */
static inline float lk_sample_edit(float l, float rep, float add)
{
    if (rep != 1.0f) l = l > 0 ? l / rep : l * rep;
    return l + add;
}
/* log sum exp of a row in f64, fixed order */
double lk_sample_lse(const float *row, int n);
/* The k largest of a row, sorted, into out; returns how many (less than k when others are -infinity). */
int lk_sample_top(const float *row, int n, int k, struct lk_cand *out);

#endif
