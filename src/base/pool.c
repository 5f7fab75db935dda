/* Worker pool: see pool.h.
 *
 * One word, `state`, is the whole protocol: a job number, a bit "open" and how many workers are inside.
 *   caller: writes the job, opens it (release), works itself until no part is left, shuts it, waits until nobody is inside
 *   worker: joins an open job it has not seen (acquire), takes parts until none is left, leaves (release)
 * A worker that comes late finds the job shut and stays out, so a job never waits for a thread that the kernel has not scheduled: with more
 * threads than free cores the caller simply does more of it. The job's fields are not written while a worker is inside.
 * Everyone spins at most 50 us, which covers the gap between two ops of a decode step, then sleeps on a futex; with more threads
 * than cores they sleep at once. */
#include "base/pool.h"

#include "base/log.h"
#include "base/mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define CPU_RELAX() __builtin_ia32_pause()
#else
#define CPU_RELAX() ((void)0)
#endif

#define SPIN_S 50e-6
enum { INSIDE = 0xfff, OPEN = 0x1000, JOB = 0x2000 }; /* state: workers inside, open, job number from here up */

struct lk_pool {
    int threads, n_started, spins;
    pthread_t *ids;
    _Alignas(64) atomic_uint state;
    atomic_int sleepers; /* workers that sleep on state */
    _Alignas(64) atomic_uint out; /* counted up to wake a caller that sleeps */
    atomic_int caller_sleeps, stop;
    _Alignas(64) atomic_int next;
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

static void futex_wait(atomic_uint *word, unsigned seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* One turn of a spinning wait that began with *end = 0: 1 while it may go on. The clock is read every 16th time. */
static int spin(const struct lk_pool *p, double *end, unsigned *turns)
{
    if (!p->spins) return 0;
    if (*end <= 0) *end = lk_clock() + SPIN_S;
    CPU_RELAX();
    return ++*turns % 16 || lk_clock() < *end;
}

/* Waits for a job not yet seen and joins it; its number. */
static unsigned job_join(struct lk_pool *p, unsigned seen)
{
    double end = 0;
    unsigned turns = 0;
    for (;;) {
        unsigned s = atomic_load(&p->state);
        if (s & OPEN && (s / JOB != seen || atomic_load(&p->stop))) {
            if (atomic_compare_exchange_weak(&p->state, &s, s + 1)) return s / JOB;
            continue;
        }
        if (spin(p, &end, &turns)) continue;
        atomic_fetch_add(&p->sleepers, 1); /* before the kernel compares state: who opens a job after that sees a sleeper */
        futex_wait(&p->state, s);
        atomic_fetch_sub(&p->sleepers, 1);
        end = 0;
    }
}

static void *pool_worker(void *varg)
{
    struct worker_arg a = *(struct worker_arg *)varg;
    lk_free(varg);
    struct lk_pool *p = a.pool;
    unsigned seen = 0;
    for (;;) {
        seen = job_join(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        pool_take(p, a.id);
        unsigned left = atomic_fetch_sub(&p->state, 1) - 1;
        if (!(left & (OPEN | INSIDE)) && atomic_load(&p->caller_sleeps)) {
            atomic_fetch_add(&p->out, 1);
            futex_wake(&p->out, 1);
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
    struct lk_pool *p = lk_aligned(sizeof *p);
    if (!p) return NULL;
    memset(p, 0, sizeof *p);
    int cores = lk_cores();
    p->threads = threads > 0 ? threads : cores;
    if (p->threads > INSIDE) p->threads = INSIDE;
    p->spins = p->threads <= cores;
    p->ids = lk_calloc((size_t)p->threads, sizeof *p->ids);
    if (!p->ids || pool_start(p)) {
        lk_pool_free(p);
        return NULL;
    }
    return p;
}

static void job_open(struct lk_pool *p, int wanted)
{
    unsigned s = atomic_load_explicit(&p->state, memory_order_relaxed);
    unsigned job = s / JOB + 1;
    if (job > UINT_MAX / JOB) job = 1; /* 0 is what a fresh worker has seen */
    atomic_store(&p->state, job * JOB | OPEN);
    if (atomic_load(&p->sleepers)) futex_wake(&p->state, wanted);
}

void lk_pool_free(struct lk_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, 1);
    job_open(p, INT_MAX);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->ids[i], NULL);
    lk_free(p->ids);
    lk_free(p);
}

int lk_pool_threads(const struct lk_pool *p)
{
    return p->threads;
}

/* No worker is inside afterwards: all parts are done and all their writes are seen. */
static void job_shut(struct lk_pool *p)
{
    double end = 0;
    unsigned turns = 0;
    unsigned s = atomic_fetch_and(&p->state, ~(unsigned)OPEN) & ~(unsigned)OPEN;
    while (s & INSIDE) {
        if (!spin(p, &end, &turns)) {
            atomic_store(&p->caller_sleeps, 1);
            unsigned seen = atomic_load(&p->out);
            if (atomic_load(&p->state) & INSIDE) futex_wait(&p->out, seen);
            atomic_store(&p->caller_sleeps, 0);
        }
        s = atomic_load(&p->state);
    }
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
    job_open(p, n_parts - 1);
    pool_take(p, 0);
    job_shut(p);
}
