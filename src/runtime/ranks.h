/* Ranks: starts one process a device, opens the same model on each, and makes them a team that rank 0 (this process) leads.
 *
 *     lk_rank_device(&d, dev_opts, 0, &err);
 *     lk_ranks_start(&r, engine_opts, d, &mo, &so, hidden, &err);  // followers begin to load; fills mo.comm, so.rank, so.n_ranks
 *     lk_model_open(..., &mo); lk_state_open(..., &so);
 *     lk_ranks_ready(r, m, s, &err);                            // from here on calls on m and s happen on all ranks
 *     ...
 *     lk_ranks_stop(r);                                         // before state and model are closed
 *
 * With one device nothing is started and every call is a no-op, so callers have one path. A follower dies with its leader. */
#ifndef LK_RUNTIME_RANKS_H
#define LK_RUNTIME_RANKS_H

#include "args/options.h"
#include "base/err.h"
#include "model/model.h"
#include "model/state.h"
#include "tp/sweep.h"

struct lk_ranks;

/* `--devices auto`: the first GPU when this program and this machine have one, else the CPU, in a line where that may surprise. */
void lk_rank_devices_choose(struct lk_opts_device *o);
/* The device of rank i as --devices, --threads, --isa and --image say. */
int lk_rank_device(struct lk_dev **out, const struct lk_opts_device *o, int rank, struct lk_err *e);
int lk_ranks_start(struct lk_ranks **out, const struct lk_opts_engine *o, struct lk_dev *d, struct lk_model_opts *mo, struct lk_state_opts *so,
                   int hidden, struct lk_err *e);
int lk_ranks_ready(struct lk_ranks *r, struct lk_model *m, struct lk_state *s, struct lk_err *e);
/* While there has been no work for idle_s: LK_EDEVICE when a rank is gone or silent. NULL is fine. */
int lk_ranks_alive(struct lk_ranks *r, double idle_s, struct lk_err *e);
void lk_ranks_stop(struct lk_ranks *r); /* NULL is fine */
/* Bytes of memory that n CPU ranks share for their sums. */
size_t lk_ranks_bytes(int n, const struct lk_model_opts *mo, int hidden);

/* Measures the all-reduce between the devices of --devices, without a model's weights: for `bench tp`. */
int lk_ranks_sweep(struct lk_sweep *out, const struct lk_opts_engine *o, struct lk_dev *d, int hidden, struct lk_err *e);

/* The follower's whole life (the hidden subcommand). */
struct lk_follower_opts {
    int rank, fd;
    uint64_t nonce;
};
int lk_follower_run(const struct lk_opts_engine *o, const struct lk_follower_opts *f, struct lk_err *e);

#endif
