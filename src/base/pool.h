/* Worker pool: a fixed set of threads that run one job at a time, cut in parts. The caller is worker 0
 * and takes part. Which worker runs a part is not fixed, so a part must not depend on it: results are the
 * same for any number of threads as long as a part's own result does not depend on the others.
 * Workers spin for a short while between jobs (a decode step is hundreds of jobs), then sleep; a job waits for no worker that has not begun,
 * so on a busy machine, or with more threads than cores, the caller does more of it itself. */
#ifndef LK_BASE_POOL_H
#define LK_BASE_POOL_H

struct lk_pool;
/* part: 0..n_parts-1; worker: 0..threads-1, for scratch memory only */
typedef void (*lk_pool_fn)(void *arg, int part, int worker);

/* threads <= 0: one a core this process may use. NULL when no thread can be had. */
struct lk_pool *lk_pool_new(int threads);
void lk_pool_free(struct lk_pool *p); /* NULL is fine */
int lk_pool_threads(const struct lk_pool *p);
/* Runs fn for every part and returns when all are done. One caller at a time. No allocation. */
void lk_pool_run(struct lk_pool *p, int n_parts, lk_pool_fn fn, void *arg);
/* Cores this process may run on (affinity), at least 1. */
int lk_cores(void);

#endif
