/* `bench tp`: what the link between the ranks of --devices does, what a round of this model pays for it, and where n ranks part from one. */
#ifndef LK_BENCH_TP_RUN_H
#define LK_BENCH_TP_RUN_H

#include "args/options.h"
#include "base/err.h"

/* Latency by size and transport, bandwidth, skew; and one line: what a faster link would bring. gbs: read bandwidth of a device, 0 unknown. */
int lk_tp_run(const struct lk_opts *o, double gbs, struct lk_err *e);
/* The residual stream after every layer, n = 1 against n = the devices given: smallest cosine and largest difference of a layer's rows. */
int lk_tp_layers(const struct lk_opts *o, struct lk_err *e);

#endif
