/* Worker pool: see pool.h.
 *
 * A job is published by bumping `epoch` (release); workers take part numbers from `next` and count
 * themselves out in `left`. The caller waits until every worker has left, so the job's fields are
 * never written while a worker may read them.
 * Spin length: with no more threads than cores workers spin about 50 us, which covers the gap between two
 * ops of a decode step; with more threads than cores they sleep at once. */
#include "base/pool.h"

#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#if defined(__x86_64__)
#define CPU_RELAX() __builtin_ia32_pause()
#else
#define CPU_RELAX() ((void)0)
#endif

struct lk_pool {
    int threads, n_started, spin;
    pthread_t *ids;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_uint epoch; /* odd steps are jobs; written under lock */
    atomic_int next, left, stop;
    int n_parts;
    lk_pool_fn fn;
    void *arg;
};

struct worker_arg {
    struct lk_pool *pool;
    int id;
};

int lk_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

static void pool_take(struct lk_pool *p, int worker)
{
    int part;
    while ((part = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n_parts)
        p->fn(p->arg, part, worker);
}

/* Waits for an epoch other than seen; returns it. */
static unsigned pool_wait_job(struct lk_pool *p, unsigned seen)
{
    for (int i = 0; i < p->spin; i++) {
        unsigned e = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (e != seen) return e;
        CPU_RELAX();
    }
    pthread_mutex_lock(&p->lock);
    unsigned e;
    while ((e = atomic_load_explicit(&p->epoch, memory_order_acquire)) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return e;
}

static void *pool_worker(void *varg)
{
    struct worker_arg a = *(struct worker_arg *)varg;
    lk_free(varg);
    struct lk_pool *p = a.pool;
    unsigned seen = 0;
    for (;;) {
        seen = pool_wait_job(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        pool_take(p, a.id);
        /* release: the caller that sees left == 0 sees every part's writes */
        if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static int pool_start(struct lk_pool *p)
{
    for (int i = 1; i < p->threads; i++) {
        struct worker_arg *a = lk_malloc(sizeof *a);
        if (!a) return -1;
        *a = (struct worker_arg){p, i};
        if (pthread_create(&p->ids[i], NULL, pool_worker, a)) {
            lk_free(a);
            return -1;
        }
        p->n_started++;
    }
    return 0;
}

struct lk_pool *lk_pool_new(int threads)
{
    struct lk_pool *p = lk_calloc(1, sizeof *p);
    if (!p) return NULL;
    int cores = lk_cores();
    p->threads = threads > 0 ? threads : cores;
    p->spin = p->threads <= cores ? 20000 : 0;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->ids = lk_calloc((size_t)p->threads, sizeof *p->ids);
    if (!p->ids || pool_start(p)) {
        lk_pool_free(p);
        return NULL;
    }
    return p;
}

static void pool_publish(struct lk_pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void lk_pool_free(struct lk_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, 1);
    pool_publish(p);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    lk_free(p->ids);
    lk_free(p);
}

int lk_pool_threads(const struct lk_pool *p)
{
    return p->threads;
}

void lk_pool_run(struct lk_pool *p, int n_parts, lk_pool_fn fn, void *arg)
{
    if (p->threads == 1 || n_parts <= 1) {
        for (int i = 0; i < n_parts; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_parts = n_parts;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->left, p->n_started, memory_order_relaxed);
    pool_publish(p);
    pool_take(p, 0);
    for (int i = 0; i < p->spin; i++) {
        if (!atomic_load_explicit(&p->left, memory_order_acquire)) return;
        CPU_RELAX();
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load_explicit(&p->left, memory_order_acquire)) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
