/* This machine's memory bandwidth, measured: what a decode step is judged against. Buffers are far larger than the caches. */
#ifndef LK_BASE_BANDWIDTH_H
#define LK_BASE_BANDWIDTH_H

#include "base/pool.h"

#include <stddef.h>

struct lk_bandwidth {
    double read_gbs;      /* bytes read a second, 1e9: what decode can expect */
    double read_best_gbs; /* the fastest pass: a bound that a speed is held against, for nothing reads faster */
    double copy_gbs;      /* bytes read plus bytes written, memcpy */
};
/* bytes: buffer size, 0: past the caches, a quarter GB to 1 GB. Medians of `repeat` passes (32 at most) over the whole buffer by all threads of the pool. Negative: no memory. */
int lk_bandwidth_measure(struct lk_pool *p, size_t bytes, int repeat, struct lk_bandwidth *out);

#endif
