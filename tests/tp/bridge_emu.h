/* A bridge without a GPU: the very text of the kernels (cuda/comm_body.h) run by host threads, a few blocks of a few threads, over inboxes
 * in memory that forked ranks share. What a card adds (its memory model, its clocks) is not here; the protocol is. */
#ifndef TESTS_TP_BRIDGE_EMU_H
#define TESTS_TP_BRIDGE_EMU_H

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "dev/bridge.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define COMM_FN static inline
struct comm_f4 {
    float x, y, z, w;
};
struct comm_f2 {
    float x, y;
};
struct comm_ll {
    uint32_t d0, f0, d1, f1;
};
static _Thread_local struct {
    uint32_t tid, threads, cta, ctas;
    pthread_barrier_t *barrier;
} emu;
static inline uint32_t comm_tid(void) { return emu.tid; }
static inline uint32_t comm_threads(void) { return emu.threads; }
static inline uint32_t comm_cta(void) { return emu.cta; }
static inline uint32_t comm_ctas(void) { return emu.ctas; }
static inline void comm_barrier(void) { pthread_barrier_wait(emu.barrier); }
static inline void comm_pause(void) { sched_yield(); }
static inline void comm_fence(void) { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
static inline uint64_t comm_now(void) { return (uint64_t)(lk_clock() * 1e9); }
static inline uint32_t comm_bits(float v) { return lk_bits_from_f32(v); }
static inline float comm_float(uint32_t u) { return lk_f32_from_bits(u); }
static inline uint32_t comm_ld32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void comm_st32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline uint32_t comm_cas32(uint32_t *p, uint32_t want, uint32_t v)
{
    __atomic_compare_exchange_n(p, &want, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return want;
}
/* relaxed, word by word: no more order than a card gives */
static inline void comm_st128(struct comm_f4 *p, struct comm_f4 v)
{
    uint32_t *to = (uint32_t *)p, w[4];
    memcpy(w, &v, sizeof w);
    for (int i = 3; i >= 0; i--) comm_st32(to + i, w[i]);
}
static inline struct comm_f4 comm_ld128(const struct comm_f4 *p)
{
    uint32_t w[4];
    struct comm_f4 v;
    for (int i = 0; i < 4; i++) w[i] = comm_ld32((const uint32_t *)p + i);
    memcpy(&v, w, sizeof v);
    return v;
}
/* two halves of 8 bytes, the second one first */
static inline void comm_stll(struct comm_ll *p, struct comm_ll v)
{
    uint64_t w[2];
    memcpy(w, &v, sizeof w);
    __atomic_store_n((uint64_t *)p + 1, w[1], __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)p, w[0], __ATOMIC_RELAXED);
}
static inline struct comm_ll comm_ldll(const struct comm_ll *p)
{
    struct comm_ll v;
    uint64_t w[2] = {__atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED), __atomic_load_n((const uint64_t *)p + 1, __ATOMIC_RELAXED)};
    memcpy(&v, w, sizeof v);
    return v;
}
static inline void comm_hash_add(unsigned long long *to, uint64_t h) { __atomic_fetch_add(to, h, __ATOMIC_RELAXED); }

#include "cuda/comm_body.h"

enum { EMU_BLOCKS = 2, EMU_THREADS = 3, EMU_SLICE = 48, EMU_WAYS = 3 };

struct emu_bridge {
    struct lk_bridge base;
    char *host, *inbox[LK_BRIDGE_RANKS]; /* all shared by the ranks */
    struct comm_cta cta[EMU_WAYS][COMM_CTAS];
    struct comm_state state;
    uint32_t stop;
    double patience_s;
    int broken_peer; /* this rank cannot map the others' memory */
};

/* Before the fork: memory for all ranks. */
struct emu_memory {
    char *host, *inbox[LK_BRIDGE_RANKS];
};
static inline void emu_memory_make(struct emu_memory *m, int n)
{
    size_t in = (size_t)n * (COMM_FLAG_SECTION + COMM_LL_SECTION);
    m->host = mmap(NULL, (size_t)n * COMM_FLAG_SECTION, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int r = 0; r < n; r++) m->inbox[r] = mmap(NULL, in, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}
static inline void emu_memory_free(struct emu_memory *m, int n)
{
    munmap(m->host, (size_t)n * COMM_FLAG_SECTION);
    for (int r = 0; r < n; r++) munmap(m->inbox[r], (size_t)n * (COMM_FLAG_SECTION + COMM_LL_SECTION));
}

struct emu_job {
    struct comm_args a;
    struct comm_scratch sh;
    pthread_barrier_t barrier;
    uint32_t cta, ctas;
    int ll;
};
struct emu_thread {
    struct emu_job *j;
    uint32_t tid;
};

static void *emu_run(void *arg)
{
    struct emu_thread *t = arg;
    emu.tid = t->tid, emu.threads = EMU_THREADS, emu.cta = t->j->cta, emu.ctas = t->j->ctas, emu.barrier = &t->j->barrier;
    if (t->j->ll)
        comm_ll_body(&t->j->a, &t->j->sh);
    else
        comm_flag_body(&t->j->a, &t->j->sh);
    return NULL;
}

static void emu_reduce_add(struct lk_bridge *base, enum lk_bridge_kind k, float *y, const float *partial, size_t count)
{
    struct emu_bridge *l = (struct emu_bridge *)base;
    size_t section = k == LK_BRIDGE_LL ? COMM_LL_SECTION : COMM_FLAG_SECTION, ll_at = k == LK_BRIDGE_LL ? (size_t)base->n * COMM_FLAG_SECTION : 0;
    static struct emu_job jobs[EMU_BLOCKS];
    static struct emu_thread th[EMU_BLOCKS][EMU_THREADS];
    pthread_t id[EMU_BLOCKS][EMU_THREADS];
    uint32_t blocks = count > EMU_SLICE ? EMU_BLOCKS : 1;
    for (uint32_t b = 0; b < blocks; b++) {
        struct emu_job *j = jobs + b;
        *j = (struct emu_job){.cta = b, .ctas = blocks, .ll = k == LK_BRIDGE_LL};
        j->a = (struct comm_args){.y = y, .partial = partial, .count = count, .slice = EMU_SLICE, .rank = base->rank, .n = base->n, .cta = l->cta[k],
                                  .state = &l->state, .stop = &l->stop, .limit_ns = (uint64_t)(l->patience_s * 1e9)};
        for (int r = 0; r < base->n; r++) {
            j->a.src[r] = (k == LK_BRIDGE_MAILBOX ? l->host : l->inbox[base->rank] + ll_at) + (size_t)r * section;
            if (k != LK_BRIDGE_MAILBOX && r != base->rank) j->a.dst[j->a.n_dst++] = l->inbox[r] + ll_at + (size_t)base->rank * section;
        }
        if (k == LK_BRIDGE_MAILBOX) j->a.dst[j->a.n_dst++] = l->host + (size_t)base->rank * section;
        pthread_barrier_init(&j->barrier, NULL, EMU_THREADS);
        for (uint32_t t = 0; t < EMU_THREADS; t++) {
            th[b][t] = (struct emu_thread){j, t};
            pthread_create(&id[b][t], NULL, emu_run, &th[b][t]);
        }
    }
    for (uint32_t b = 0; b < blocks; b++) {
        for (int t = 0; t < EMU_THREADS; t++) pthread_join(id[b][t], NULL);
        pthread_barrier_destroy(&jobs[b].barrier);
    }
}

static int emu_settle(struct lk_bridge *base, const float *x, size_t count, uint64_t *digest, struct lk_err *e)
{
    struct emu_bridge *l = (struct emu_bridge *)base;
    *digest = l->state.digest;
    l->state.digest = 0;
    if (!l->state.bad) return 0;
    return lk_fail(e, LK_EDEVICE, "rank %d %s for rank %u at step %u of an all-reduce", base->rank,
                   l->state.bad == COMM_STOPPED ? "was stopped while it waited" : "waited", l->state.bad_peer, l->state.bad_step);
}

static void emu_card(struct lk_bridge *l, void *out) { memset(out, l->rank + 1, LK_BRIDGE_CARD); }
static int emu_meet(struct lk_bridge *base, const void *cards, struct lk_err *e)
{
    struct emu_bridge *l = (struct emu_bridge *)base;
    for (int r = 0; r < base->n; r++)
        if (((const char *)cards)[(size_t)r * LK_BRIDGE_CARD] != r + 1) return lk_fail(e, LK_EDEVICE, "cards are mixed up");
    base->usable[LK_BRIDGE_MAILBOX] = 1;
    base->usable[LK_BRIDGE_PUSH] = base->usable[LK_BRIDGE_LL] = !l->broken_peer;
    for (int k = LK_BRIDGE_PUSH; k < LK_BRIDGE_KINDS; k++) snprintf(base->why[k], sizeof base->why[k], "%s", k == LK_BRIDGE_NCCL ? "no libnccl" : "no peer memory");
    return 0;
}
static int emu_nccl_open(struct lk_bridge *l, struct lk_err *e) { return lk_fail(e, LK_EDEVICE, "there is no libnccl here"); }
static void emu_reset(struct lk_bridge *base, double patience_s)
{
    struct emu_bridge *l = (struct emu_bridge *)base;
    l->patience_s = patience_s;
    for (int k = 0; k < EMU_WAYS; k++)
        for (int b = 0; b < COMM_CTAS; b++) l->cta[k][b].step = 0;
    memset(&l->state, 0, sizeof l->state);
    memset(l->inbox[base->rank], 0, (size_t)base->n * (COMM_FLAG_SECTION + COMM_LL_SECTION));
    memset(l->host + (size_t)base->rank * COMM_FLAG_SECTION, 0, COMM_FLAG_SECTION);
}
/* As if `step` steps had been made: the state just before the counter wraps. All ranks, nothing in flight. */
static inline void emu_start_at(struct emu_bridge *l, int way, uint32_t step)
{
    for (int b = 0; b < COMM_CTAS; b++) {
        l->cta[way][b].step = step;
        for (int r = 0; r < l->base.n; r++) {
            char *from = way == LK_BRIDGE_MAILBOX ? l->host : l->inbox[l->base.rank];
            if (way != LK_BRIDGE_LL) *(uint32_t *)(from + (size_t)r * COMM_FLAG_SECTION + (size_t)b * COMM_LINE) = step;
        }
    }
}
static void emu_fault(struct lk_bridge *base, enum lk_bridge_kind k, enum lk_bridge_fault f, uint32_t at)
{
    struct emu_bridge *l = (struct emu_bridge *)base;
    l->cta[k][0].fault = (uint32_t)f;
    l->cta[k][0].fault_at = at ? l->cta[k][0].step + at : 0;
}
static void emu_stop(struct lk_bridge *l) { __atomic_store_n(&((struct emu_bridge *)l)->stop, 1, __ATOMIC_RELEASE); }
static void emu_leave(struct lk_bridge *l) {}
static void emu_close(struct lk_bridge *l) { lk_free(l); }

static inline struct lk_bridge *emu_bridge_open(const struct emu_memory *m, int rank, int n)
{
    struct emu_bridge *l = lk_calloc(1, sizeof *l);
    l->base = (struct lk_bridge){.rank = rank, .n = n, .card = emu_card, .meet = emu_meet, .nccl_open = emu_nccl_open, .reduce_add = emu_reduce_add,
                               .settle = emu_settle, .reset = emu_reset, .fault = emu_fault, .stop = emu_stop, .leave = emu_leave, .close = emu_close};
    l->host = m->host;
    memcpy(l->inbox, m->inbox, sizeof l->inbox);
    l->patience_s = 2;
    return &l->base;
}

#endif
