/* `bench ops`: times the op cases that are marked for it, one by one, on one device. A cell a case: size "T1", kind the op, run the case's name; "a round" is one
 * call. Bytes are those that a call must read; what the caches may serve of them is allowed for in the physics check. */
#ifndef LK_BENCH_OP_TIMES_H
#define LK_BENCH_OP_TIMES_H

#include "args/options.h"
#include "bench/table.h"

/* --only: part of a case's name or of its op's. --seconds: time spent on a case. gbs: read bandwidth of the device, 0 unknown. */
int lk_ops_run(const struct lk_opts *o, double gbs, struct lk_table *t, struct lk_err *e);

#endif
