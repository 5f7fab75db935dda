/* What a model costs, computed from its tensor directory: bytes a rank holds and bytes a decode step reads. The one place with this
 * arithmetic: `inspect` prints it, `probe` turns it into tokens a second, `bench` checks results against it.
 *
 * Two bills of decode, both in bytes: weights (the same at any context) and state (KV grows with context; the GDN state is read and
 * written once a step). Bound: tokens a second <= bandwidth / (weights + state) * tokens a round. */
#ifndef LK_MODEL_FORECAST_H
#define LK_MODEL_FORECAST_H

#include "artifact/artifact.h"
#include "dev/kv.h"

#include <stddef.h>

struct lk_forecast {
    /* whole model, bytes */
    double weights;      /* all text tensors, as stored */
    double step;         /* read by one decode step: layers, final norm, head; no embedding table */
    double mtp;          /* read by one draft pass: MTP layer and draft head (the shortlist when there is one); 0 without MTP */
    double replicated;   /* of `weights`: what every rank holds whole (embedding, norms); of a rank file all, it is cut already */
    double kv_token;     /* KV of one token over the full-attention layers */
    double kv_token_mtp; /* and in the MTP layer */
    double gdn;          /* recurrent and convolution state of one sequence */
    int n_kv, n_full, n_gdn;
};
void lk_forecast_make(struct lk_forecast *f, const struct lk_artifact *a, enum lk_kv_kind kv);

/* Bytes on each of n ranks for one sequence of ctx tokens; extra_slots more GDN states (snapshots). Excludes workspace. KV heads are
 * replicated when n exceeds them. */
double lk_forecast_memory(const struct lk_forecast *f, double ctx, int n, int extra_slots);
/* Bytes one round moves on each of n ranks: verify of 1 + draft tokens at ctx, then the draft passes, the fold of the GDN state. */
double lk_forecast_round(const struct lk_forecast *f, double ctx, int draft, int n);

/* Kernels that a round launches one after the other on each of n GPUs: what each costs besides its bytes is paid so often. */
double lk_forecast_kernels(const struct lk_forecast *f, int draft, int n);
/* Sums over all ranks in a round. */
double lk_forecast_reduces(const struct lk_forecast *f, int draft);

#endif
