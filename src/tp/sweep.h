/* The all-reduce measured at all sizes: for `bench tp`. Collective: all ranks call with the same arguments, after the election. */
#ifndef LK_TP_SWEEP_H
#define LK_TP_SWEEP_H

#include "tp/elect.h"

#define LK_SWEEP_SIZES 10
static const size_t lk_sweep_kb[LK_SWEEP_SIZES] = {4, 10, 20, 40, 80, 160, 320, 1024, 5120, 20480};
#define LK_SWEEP_GRAPH_KB 320 /* up to here inside a graph, as in a decode step; longer ones as in prefill */

struct lk_sweep {
    struct lk_elect el;
    int n, n_ways;
    double us[LK_COMM_WAYS][LK_SWEEP_SIZES]; /* 0: this way is not used */
    /* one sum of a row after a common start, by the host's clock: how far apart ranks begin and end; medians and worst of many, us */
    double start_skew, start_worst, end_skew, end_worst;
};

int lk_sweep_run(struct lk_sweep *out, struct lk_comm *c, struct lk_dev *d, const struct lk_elect *el, double budget_s, struct lk_err *e);

#endif
