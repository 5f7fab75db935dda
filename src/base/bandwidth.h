/* This machine's memory bandwidth, measured: what a decode step is judged against. Buffers are far larger than the caches. */
#ifndef LK_BASE_BANDWIDTH_H
#define LK_BASE_BANDWIDTH_H

#include "base/pool.h"

#include <stddef.h>

#define LK_BANDWIDTH_PASSES 128

/* Bytes a second, 1e9. Best is the fastest pass, what STREAM reports and what a speed is held against: interference only ever makes a pass slower,
 * and nothing reads memory faster. A median well below it: something else was using the memory. */
struct lk_bandwidth {
    double read_gbs, read_best_gbs;
    double copy_gbs, copy_best_gbs; /* memcpy, read plus written */
    size_t bytes;                   /* of a pass */
    int passes;                     /* of the kind that had fewer */
};
/* Reads by all threads of the pool for `seconds`, then copies as long: 3 passes at least, LK_BANDWIDTH_PASSES at most. Negative: no memory. */
int lk_bandwidth_measure(struct lk_pool *p, double seconds, struct lk_bandwidth *out);

/* Bytes of one of the two buffers: past `cache` bytes of last-level caches, within a part of `free` bytes of memory (0: not known). */
size_t lk_bandwidth_bytes(size_t cache, int threads, size_t free);
/* Fastest and median of n passes over `bytes`, from their seconds, which are sorted in place. */
void lk_bandwidth_of(double *s, int n, double bytes, double *best, double *median);
/* All third-level caches of the machine together; 0: the system does not say. cpus: a folder in the form of the system's, NULL for that. */
size_t lk_cache_bytes(const char *cpus);

#endif
