/* Groups: see group.h. Segment layout: header | plan area | reduce area | bridge area, each page-aligned. */
#include "tp/group.h"

#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GROUP_MAGIC 0x315054414b414f4cull /* "LOAKATP1" */
#define SLICE_NS    20000000              /* sleep slice: a dead peer is seen within 20 ms */
#define SPINS       4000                  /* about 40 us: the usual skew of two ranks in a decode step */

struct group_rank {
    struct lk_word joined; /* 1: here, 2: left in order */
    atomic_int pid;
    atomic_llong beat_ms; /* when it last slept in a wait; monotonic clock, the same for all processes */
};

struct group_hdr {
    uint64_t magic, nonce, bytes, plan_bytes, reduce_bytes, bridge_bytes;
    uint32_t n;
    double patience_s;
    atomic_uint stop; /* 0: working; 1: someone writes the reason; 2: stopped */
    char reason[512];
    struct group_rank rank[LK_MAX_RANKS];
};

struct lk_group {
    struct group_hdr *hdr;
    int fd, rank, n, spins;
    int pidfd[LK_MAX_RANKS]; /* -1: not opened yet */
    size_t plan_at, reduce_at, bridge_at;
};

static size_t page_up(size_t n)
{
    return (n + 4095) & ~(size_t)4095;
}

static int group_map(struct lk_group *g, size_t bytes, struct lk_err *e)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
    if (p == MAP_FAILED)
        return lk_fail(e, LK_ENOMEM, "tensor parallel: cannot map %zu bytes of shared memory: %s", bytes,
                       strerror(errno));
    g->hdr = p;
    return 0;
}

static void group_enter(struct lk_group *g, int rank)
{
    g->rank = rank;
    g->n = (int)g->hdr->n;
    g->plan_at = page_up(sizeof *g->hdr);
    g->reduce_at = g->plan_at + page_up(g->hdr->plan_bytes);
    g->bridge_at = g->reduce_at + page_up(g->hdr->reduce_bytes);
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    g->spins = g->n <= cores ? SPINS : 50; /* more ranks than cores: spinning only keeps the peer off its core */
    atomic_store(&g->hdr->rank[rank].pid, getpid());
    lk_word_set(&g->hdr->rank[rank].joined, 1);
}

static struct lk_group *group_new(void)
{
    struct lk_group *g = lk_calloc(1, sizeof *g);
    if (!g) return NULL;
    g->fd = -1;
    for (int i = 0; i < LK_MAX_RANKS; i++) g->pidfd[i] = -1;
    return g;
}

int lk_group_create(struct lk_group **out, const struct lk_group_opts *o, struct lk_err *e)
{
    *out = NULL;
    if (o->n < 1 || o->n > LK_MAX_RANKS)
        return lk_fail(e, LK_EUSAGE, "tensor parallel: %d ranks, expected 1 to %d", o->n, LK_MAX_RANKS);
    struct lk_group *g = group_new();
    if (!g) return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    size_t bytes = page_up(sizeof *g->hdr) + page_up(o->plan_bytes) + page_up(o->reduce_bytes) + page_up(o->bridge_bytes);
    g->fd = memfd_create("laoka-group", MFD_CLOEXEC);
    if (g->fd < 0 || ftruncate(g->fd, (off_t)bytes)) {
        lk_fail(e, LK_ESYS, "tensor parallel: cannot make %zu bytes of shared memory: %s", bytes, strerror(errno));
        goto fail;
    }
    if (group_map(g, bytes, e)) goto fail;
    struct group_hdr *h = g->hdr;
    *h = (struct group_hdr){.bytes = bytes, .plan_bytes = o->plan_bytes, .reduce_bytes = o->reduce_bytes,
                            .bridge_bytes = o->bridge_bytes, .n = (uint32_t)o->n, .patience_s = o->patience_s};
    if (getrandom(&h->nonce, sizeof h->nonce, 0) != sizeof h->nonce) h->nonce = (uint64_t)(lk_clock() * 1e9);
    h->nonce |= 1;
    h->magic = GROUP_MAGIC;
    group_enter(g, 0);
    *out = g;
    return 0;
fail:
    lk_group_leave(g);
    return e ? e->code : LK_ESYS;
}

int lk_group_join(struct lk_group **out, int fd, uint64_t nonce, int rank, struct lk_err *e)
{
    *out = NULL;
    struct lk_group *g = group_new();
    if (!g) return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    g->fd = fd;
    struct stat st;
    if (fstat(fd, &st) || st.st_size < (off_t)sizeof *g->hdr) {
        lk_fail(e, LK_EINPUT, "tensor parallel: descriptor %d is no group segment", fd);
        goto fail;
    }
    if (group_map(g, (size_t)st.st_size, e)) goto fail;
    const struct group_hdr *h = g->hdr;
    if (h->magic != GROUP_MAGIC || h->nonce != nonce || h->bytes != (uint64_t)st.st_size || rank < 1 ||
        rank >= (int)h->n) {
        lk_fail(e, LK_EINPUT, "tensor parallel: rank %d may not join: the segment is of another group or build", rank);
        munmap(g->hdr, (size_t)st.st_size);
        g->hdr = NULL;
        goto fail;
    }
    group_enter(g, rank);
    *out = g;
    return 0;
fail:
    lk_group_leave(g);
    return e ? e->code : LK_EINPUT;
}

void lk_group_leave(struct lk_group *g)
{
    if (!g) return;
    if (g->hdr) {
        lk_word_set(&g->hdr->rank[g->rank].joined, 2);
        munmap(g->hdr, (size_t)g->hdr->bytes);
    }
    for (int i = 0; i < LK_MAX_RANKS; i++)
        if (g->pidfd[i] >= 0) close(g->pidfd[i]);
    if (g->fd >= 0) close(g->fd);
    lk_free(g);
}

int lk_group_n(const struct lk_group *g)
{
    return g->n;
}

int lk_group_rank(const struct lk_group *g)
{
    return g->rank;
}

int lk_group_fd(const struct lk_group *g)
{
    return g->fd;
}

uint64_t lk_group_nonce(const struct lk_group *g)
{
    return g->hdr->nonce;
}

int lk_group_ready(struct lk_group *g, double seconds, struct lk_err *e)
{
    double end = lk_clock() + seconds;
    for (int r = 0; r < g->n; r++)
        while (!lk_word_get(&g->hdr->rank[r].joined)) {
            if (lk_group_stopped(g)) return lk_group_error(g, e);
            if (lk_clock() > end) {
                lk_group_stop(g, "rank %d did not start within %.0f s", r, seconds);
                return lk_group_error(g, e);
            }
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
    return 0;
}

void lk_group_stop(struct lk_group *g, const char *fmt, ...)
{
    unsigned zero = 0;
    struct group_hdr *h = g->hdr;
    if (!atomic_compare_exchange_strong(&h->stop, &zero, 1)) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->reason, sizeof h->reason, fmt, ap);
    va_end(ap);
    atomic_store_explicit(&h->stop, 2, memory_order_release); /* the reason is whole before it may be read */
}

int lk_group_stopped(const struct lk_group *g)
{
    return atomic_load_explicit(&g->hdr->stop, memory_order_acquire) != 0;
}

double lk_group_patience(const struct lk_group *g)
{
    return g->hdr->patience_s;
}

int lk_group_pidfd(struct lk_group *g, int r)
{
    int pid = atomic_load(&g->hdr->rank[r].pid);
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

int lk_group_left(struct lk_group *g, int r)
{
    return lk_word_get(&g->hdr->rank[r].joined) == 2;
}

int lk_group_error(const struct lk_group *g, struct lk_err *e)
{
    for (int i = 0; i < 1000 && atomic_load_explicit(&g->hdr->stop, memory_order_acquire) == 1; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return lk_fail(e, LK_EDEVICE, "tensor parallel stopped: %s", g->hdr->reason);
}

void lk_word_set(struct lk_word *w, uint32_t v)
{
    atomic_store_explicit(&w->v, v, memory_order_release); /* data before the word */
    /* full fence: the store above is seen before sleepers is read, so a sleeper either counts here or sees v */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&w->sleepers, memory_order_relaxed))
        syscall(SYS_futex, &w->v, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint32_t lk_word_get(struct lk_word *w)
{
    return atomic_load_explicit(&w->v, memory_order_acquire);
}

/* 1 when the peer's process has ended. A pidfd turns readable at exit, also of a zombie. */
static int peer_gone(struct lk_group *g, int peer)
{
    if (peer < 0 || peer == g->rank) return 0;
    struct group_rank *r = &g->hdr->rank[peer];
    if (lk_word_get(&r->joined) == 2) return 1;
    if (g->pidfd[peer] < 0) {
        int pid = atomic_load(&r->pid);
        if (pid <= 0) return 0;
        g->pidfd[peer] = (int)syscall(SYS_pidfd_open, pid, 0);
        if (g->pidfd[peer] < 0) return errno == ESRCH;
    }
    struct pollfd p = {.fd = g->pidfd[peer], .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static int word_reached(struct lk_word *w, uint32_t v)
{
    return (int32_t)(lk_word_get(w) - v) >= 0;
}

static long long now_ms(void)
{
    return (long long)(lk_clock() * 1e3);
}

int lk_group_alive(struct lk_group *g, double idle_s, struct lk_err *e)
{
    if (lk_group_stopped(g)) return lk_group_error(g, e);
    for (int r = 0; r < g->n; r++) {
        double silent = (double)(now_ms() - atomic_load_explicit(&g->hdr->rank[r].beat_ms, memory_order_relaxed)) * 1e-3;
        if (r == g->rank) continue;
        if (silent > idle_s) silent = idle_s; /* before that it may have worked, or found all it waited for at once */
        if (peer_gone(g, r)) lk_group_stop(g, "rank %d ended while there was no work", r);
        if (silent > g->hdr->patience_s) lk_group_stop(g, "rank %d was silent for %.1f s while there was no work", r, silent);
        if (lk_group_stopped(g)) return lk_group_error(g, e);
    }
    return 0;
}

static void word_sleep(struct lk_group *g, struct lk_word *w, uint32_t v)
{
    struct timespec slice = {0, SLICE_NS};
    atomic_store_explicit(&g->hdr->rank[g->rank].beat_ms, now_ms(), memory_order_relaxed);
    atomic_fetch_add(&w->sleepers, 1);
    uint32_t seen = lk_word_get(w);
    if ((int32_t)(seen - v) < 0) syscall(SYS_futex, &w->v, FUTEX_WAIT, seen, &slice, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

int lk_word_wait(struct lk_group *g, struct lk_word *w, uint32_t v, int patient, int peer, const char *what,
                 struct lk_err *e)
{
    for (int i = 0; i < g->spins; i++) {
        if (word_reached(w, v)) return 0;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    double t0 = lk_clock();
    while (!word_reached(w, v)) {
        if (lk_group_stopped(g)) return lk_group_error(g, e);
        if (peer_gone(g, peer)) {
            if (word_reached(w, v)) return 0; /* it finished this before it went */
            lk_group_stop(g, "rank %d ended while rank %d waited for it: %s", peer, g->rank, what);
            return lk_group_error(g, e);
        }
        double waited = lk_clock() - t0;
        if (!patient && waited > g->hdr->patience_s) {
            lk_group_stop(g, "rank %d waited %.1f s for rank %d: %s", g->rank, waited, peer, what);
            return lk_group_error(g, e);
        }
        word_sleep(g, w, v);
    }
    return 0;
}

void *lk_group_plan_area(struct lk_group *g, size_t *bytes)
{
    *bytes = g->hdr->plan_bytes;
    return (char *)g->hdr + g->plan_at;
}

void *lk_group_reduce_area(struct lk_group *g, size_t *bytes)
{
    *bytes = g->hdr->reduce_bytes;
    return (char *)g->hdr + g->reduce_at;
}

void *lk_group_bridge_area(struct lk_group *g, size_t *bytes)
{
    *bytes = g->hdr->bridge_bytes;
    return (char *)g->hdr + g->bridge_at;
}
