/* The CUDA end of an all-reduce: see dev/bridge.h. Owns this rank's inbox in device memory, the registration of the shared host pages, the
 * peers' inboxes as mapped here, and step counters. The kernels are comm.cu; what lies where is comm_shared.h.
 *
 * Peers in other processes are reached by IPC handles, in this process (the test-bed) by their pointers. Nothing is allocated after meet. */
#include "cuda/comm_shared.h"
#include "cuda/cuda_dev.h"
#include "cuda/cuda_nccl.h"
#include "dev/bridge.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Static_assert(COMM_FLAG_SECTION == 8192 + ((size_t)4 << 20), "lk_bridge_shared_bytes");
#define CARD_MAGIC 0x4b4e494c4b4cull /* "LKBRDG" */
#define DEVICE_WAYS 3                /* with kernels of our own */
#define NCCL_PIECE ((size_t)4 << 20) /* floats a rank that an NCCL call moves; longer sums are cut */

struct card {
    uint64_t magic;
    int pid, index;
    uint64_t inbox; /* its address in its own process */
    int has_ipc, has_nccl;
    struct cu_ipc ipc;
    char nccl[CU_NCCL_ID];
};
_Static_assert(sizeof(struct card) <= LK_BRIDGE_CARD, "a card must fit");

struct cu_bridge {
    struct lk_bridge base;
    struct cu_dev *d;
    char *shared;      /* host address of the shared pages */
    CUdeviceptr host;  /* the same for the device; 0: not registered */
    int registered;    /* by us */
    char *inbox, *stage;
    struct comm_cta *cta; /* [DEVICE_WAYS][COMM_CTAS] */
    struct comm_state *state;
    uint32_t *stop;
    CUdeviceptr stop_dev, peer[COMM_RANKS];
    int peer_ipc[COMM_RANKS];
    char nccl_id[CU_NCCL_ID];
    struct cu_nccl *nccl;
    size_t most, stage_floats;
    double patience_s;
};

static struct cu_bridge *bridge_of(struct lk_bridge *l)
{
    return (struct cu_bridge *)l;
}

static size_t inbox_bytes(int n)
{
    return (size_t)n * (COMM_FLAG_SECTION + COMM_LL_SECTION);
}

static void __attribute__((format(printf, 3, 4))) cannot(struct cu_bridge *l, int kind, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    l->base.usable[kind] = 0;
    vsnprintf(l->base.why[kind], sizeof l->base.why[kind], fmt, ap);
    va_end(ap);
}

/* ---- launches ---- */

static struct comm_args args_of(struct cu_bridge *l, enum lk_bridge_kind k, float *y, const float *partial, size_t count)
{
    int n = l->base.n, me = l->base.rank;
    size_t section = k == LK_BRIDGE_LL ? COMM_LL_SECTION : COMM_FLAG_SECTION;
    struct comm_args a = {.y = y, .partial = partial, .count = count, .rank = me, .n = n, .early = !l->base.shared_card,
                          .cta = l->cta + (size_t)k * COMM_CTAS, .state = l->state, .stop = (const uint32_t *)(uintptr_t)l->stop_dev,
                          .limit_ns = (uint64_t)(l->patience_s * 1e9)};
    size_t ll_at = k == LK_BRIDGE_LL ? (size_t)n * COMM_FLAG_SECTION : 0;
    for (int r = 0; r < n; r++) {
        CUdeviceptr from = k == LK_BRIDGE_MAILBOX ? l->host : (CUdeviceptr)(uintptr_t)l->inbox + ll_at;
        a.src[r] = (const char *)(uintptr_t)(from + (size_t)r * section);
        if (k != LK_BRIDGE_MAILBOX && r != me) a.dst[a.n_dst++] = (char *)(uintptr_t)(l->peer[r] + ll_at + (size_t)me * section);
    }
    if (k == LK_BRIDGE_MAILBOX) a.dst[a.n_dst++] = (char *)(uintptr_t)(l->host + (size_t)me * section);
    return a;
}

static void own_reduce(struct cu_bridge *l, enum lk_bridge_kind k, float *y, const float *partial, size_t count)
{
    struct comm_args a = args_of(l, k, y, partial, count);
    size_t unit = k == LK_BRIDGE_LL ? 512 : 1024, each = (count + COMM_CTAS - 1) / COMM_CTAS;
    size_t slice = (each + unit - 1) / unit * unit;
    if (slice > COMM_SLICE) slice = COMM_SLICE;
    if (slice < unit) slice = unit;
    a.slice = (uint32_t)slice;
    size_t blocks = (count + slice - 1) / slice;
    if (blocks > COMM_CTAS) blocks = COMM_CTAS;
    if (!blocks) blocks = 1;
    struct cu_grid g = {.gx = (unsigned)blocks, .bx = COMM_THREADS, .flags = CU_PDL, .bytes = (double)count * 4 * (l->base.n + 2)};
    cu_launch(l->d, k == LK_BRIDGE_LL ? "comm_ll" : "comm_flag", g, CU_ARGS(&a));
}

static void nccl_reduce(struct cu_bridge *l, float *y, const float *partial, size_t count)
{
    struct cu_dev *d = l->d;
    struct comm_state *state = l->state;
    int n = l->base.n;
    for (size_t at = 0; at < count && !d->failed; at += l->stage_floats) {
        size_t c = count - at < l->stage_floats ? count - at : l->stage_floats;
        const float *stage = (const float *)l->stage;
        float *to = y + at;
        d->drv->ctx_set(d->ctx);
        int rc = cu_nccl_gather(l->nccl, partial + at, (float *)l->stage, c, d->stream);
        if (rc) {
            cu_refuse(d, "libnccl: gather of %zu floats: %s", c, cu_nccl_text(l->nccl, rc));
            return;
        }
        unsigned blocks = cu_div((int64_t)c, COMM_THREADS * 4);
        if (blocks > 1024) blocks = 1024;
        cu_launch(d, "comm_sum", (struct cu_grid){.gx = blocks, .bx = COMM_THREADS, .bytes = (double)c * 4 * (n + 2)},
                  CU_ARGS(&to, &stage, &c, &c, &n, &state));
    }
}

static void bridge_reduce_add(struct lk_bridge *base, enum lk_bridge_kind k, float *y, const float *partial, size_t count)
{
    struct cu_bridge *l = bridge_of(base);
    if (count % 4 || count > l->most || !base->usable[k] || (k == LK_BRIDGE_NCCL && !l->nccl))
        cu_refuse(l->d, "all-reduce of %zu floats over %s: not possible here", count, lk_bridge_name(k));
    else if (k == LK_BRIDGE_NCCL)
        nccl_reduce(l, y, partial, count);
    else
        own_reduce(l, k, y, partial, count);
}

static int bridge_settle(struct lk_bridge *base, const float *x, size_t count, uint64_t *digest, struct lk_err *e)
{
    struct cu_bridge *l = bridge_of(base);
    struct cu_dev *d = l->d;
    struct comm_state s, *state = l->state;
    if (x) {
        unsigned blocks = cu_div((int64_t)count, COMM_THREADS * 4);
        if (blocks > 256) blocks = 256;
        cu_launch(d, "comm_digest", (struct cu_grid){.gx = blocks, .bx = COMM_THREADS, .flags = CU_PDL, .bytes = (double)count * 4},
                  CU_ARGS(&x, &count, &state));
    }
    if (d->dev.download(&d->dev, &s, state, sizeof s, e)) return LK_EDEVICE;
    *digest = s.digest;
    d->dev.fill(&d->dev, state, 0, sizeof s.digest);
    if (!s.bad) return 0;
    if (s.bad == COMM_STOPPED)
        return lk_fail(e, LK_EDEVICE, "rank %d was stopped while it waited for rank %u at step %u of an all-reduce", base->rank, s.bad_peer, s.bad_step);
    return lk_fail(e, LK_EDEVICE, "rank %d waited %.1f s for rank %u at step %u of an all-reduce", base->rank, l->patience_s, s.bad_peer, s.bad_step);
}

/* ---- faults, stop, reset ---- */

/* Nothing is in flight: the block's own step says where "from now" is. */
static void bridge_fault(struct lk_bridge *base, enum lk_bridge_kind k, enum lk_bridge_fault f, uint32_t step)
{
    struct cu_bridge *l = bridge_of(base);
    struct lk_dev *d = base->dev;
    struct comm_cta *block = l->cta + (size_t)k * COMM_CTAS, now;
    struct lk_err e = {0};
    if (k >= DEVICE_WAYS || d->download(d, &now, block, sizeof now, &e)) return;
    uint32_t v[2] = {(uint32_t)f, step ? now.step + step : 0};
    d->upload(d, &block->fault, v, sizeof v);
}

static void bridge_stop(struct lk_bridge *base)
{
    struct cu_bridge *l = bridge_of(base);
    __atomic_store_n(l->stop, 1, __ATOMIC_RELEASE);
}

static void bridge_reset(struct lk_bridge *base, double patience_s)
{
    struct cu_bridge *l = bridge_of(base);
    struct lk_dev *d = base->dev;
    struct lk_err e = {0};
    l->patience_s = patience_s;
    d->fill(d, l->inbox, 0, inbox_bytes(base->n));
    d->fill(d, l->state, 0, sizeof *l->state);
    for (size_t i = 0; i < DEVICE_WAYS * COMM_CTAS; i++) { /* the faults stay */
        static const uint32_t zero = 0;
        if (i % COMM_CTAS == 0) d->upload(d, &l->cta[i].step, &zero, 4);
        else d->fill(d, l->cta + i, 0, sizeof *l->cta);
    }
    memset(l->shared + (size_t)base->rank * COMM_FLAG_SECTION, 0, COMM_FLAG_SECTION);
    d->sync(d, &e); /* a failure is sticky and comes back at the next settle */
}

/* ---- open and close ---- */

static void bridge_leave(struct lk_bridge *base)
{
    struct cu_bridge *l = bridge_of(base);
    struct cu_dev *d = l->d;
    d->drv->ctx_set(d->ctx);
    if (d->stream) d->drv->stream_sync(d->stream);
    cu_nccl_close(l->nccl, d->failed || *l->stop);
    l->nccl = NULL;
    for (int r = 0; r < base->n; r++) {
        if (l->peer[r] && l->peer_ipc[r]) d->drv->ipc_close(l->peer[r]);
        l->peer[r] = 0;
        l->peer_ipc[r] = 0;
    }
}

static void bridge_close(struct lk_bridge *base)
{
    struct cu_bridge *l = bridge_of(base);
    if (!l) return;
    if (l->stop) bridge_leave(base);
    struct cu_dev *d = l->d;
    d->drv->ctx_set(d->ctx);
    if (l->registered) d->drv->host_unregister(l->shared);
    if (l->stop) d->drv->host_free(l->stop);
    cu_free(d, l->inbox);
    cu_free(d, l->stage);
    cu_free(d, l->cta);
    cu_free(d, l->state);
    lk_free(l);
}

static void bridge_card(struct lk_bridge *base, void *out)
{
    struct cu_bridge *l = bridge_of(base);
    struct card c = {.magic = CARD_MAGIC, .pid = getpid(), .index = l->d->index, .inbox = (uint64_t)(uintptr_t)l->inbox};
    l->d->drv->ctx_set(l->d->ctx);
    CUresult r = l->d->drv->ipc_get(&c.ipc, (CUdeviceptr)(uintptr_t)l->inbox);
    c.has_ipc = r == CU_OK;
    c.has_nccl = !cu_nccl_id(c.nccl, base->why[LK_BRIDGE_NCCL], sizeof base->why[LK_BRIDGE_NCCL]);
    memset(out, 0, LK_BRIDGE_CARD);
    memcpy(out, &c, sizeof c);
}

/* Maps a peer's inbox; text says why not. */
static int peer_open(struct cu_bridge *l, int r, const struct card *c, char *text, size_t cap)
{
    const struct cu_driver *f = l->d->drv;
    int can = 1;
    if (c->index != l->d->index) {
        CUdevice dev = 0;
        CUcontext ctx = NULL;
        f->device_get(&dev, c->index);
        if (f->peer_can(&can, l->d->id, dev) != CU_OK || !can) {
            snprintf(text, cap, "the driver reports no peer access from cuda:%d to cuda:%d", l->d->index, c->index);
            return -1;
        }
        if (c->pid == getpid() && f->ctx_retain(&ctx, dev) == CU_OK) { /* the other device is open here: this does not outlive it */
            CUresult e = f->peer_enable(ctx, 0);
            f->ctx_release(dev);
            if (e != CU_OK && e != CU_ERROR_PEER_ACCESS_ALREADY) {
                snprintf(text, cap, "peer access from cuda:%d to cuda:%d: %s", l->d->index, c->index, cu_error_text(f, e));
                return -1;
            }
        }
    }
    if (c->pid == getpid()) {
        l->peer[r] = (CUdeviceptr)c->inbox;
        return 0;
    }
    CUresult e = c->has_ipc ? f->ipc_open(&l->peer[r], c->ipc, CU_IPC_LAZY_PEER) : 1;
    if (e == CU_OK) {
        l->peer_ipc[r] = 1;
        return 0;
    }
    l->peer[r] = 0;
    snprintf(text, cap, "the memory of rank %d cannot be mapped: %s", r, c->has_ipc ? cu_error_text(f, e) : "it has no IPC handle");
    return -1;
}

static int bridge_meet(struct lk_bridge *base, const void *cards, struct lk_err *e)
{
    struct cu_bridge *l = bridge_of(base);
    char text[160];
    int nccl = !base->why[LK_BRIDGE_NCCL][0];
    l->d->drv->ctx_set(l->d->ctx);
    base->usable[LK_BRIDGE_PUSH] = base->usable[LK_BRIDGE_LL] = 1;
    for (int r = 0; r < base->n; r++) {
        struct card c;
        memcpy(&c, (const char *)cards + (size_t)r * LK_BRIDGE_CARD, sizeof c);
        if (c.magic != CARD_MAGIC) return lk_fail(e, LK_EDEVICE, "rank %d: its card is not of this build", r);
        if (r == 0) memcpy(l->nccl_id, c.nccl, sizeof c.nccl);
        for (int q = 0; q < r; q++) { /* any two on one card */
            struct card o;
            memcpy(&o, (const char *)cards + (size_t)q * LK_BRIDGE_CARD, sizeof o);
            if (o.index == c.index) base->shared_card = 1;
        }
        nccl &= c.has_nccl;
        if (r == base->rank || !peer_open(l, r, &c, text, sizeof text)) continue;
        cannot(l, LK_BRIDGE_PUSH, "%s", text);
        cannot(l, LK_BRIDGE_LL, "%s", text);
    }
    base->usable[LK_BRIDGE_NCCL] = nccl && !base->shared_card;
    if (base->shared_card) cannot(l, LK_BRIDGE_NCCL, "libnccl takes one rank a card");
    return l->d->dev.sync(&l->d->dev, e);
}

static int bridge_nccl_open(struct lk_bridge *base, struct lk_err *e)
{
    struct cu_bridge *l = bridge_of(base);
    l->stage_floats = l->most < NCCL_PIECE ? l->most : NCCL_PIECE;
    l->stage = cu_alloc(l->d, l->stage_floats * (size_t)base->n * 4, "NCCL staging");
    if (!l->stage) cannot(l, LK_BRIDGE_NCCL, "no device memory for its staging");
    /* all ranks go in, or the others wait for ever: without memory this one still answers the call */
    if (cu_nccl_open(&l->nccl, l->nccl_id, base->rank, base->n, base->why[LK_BRIDGE_NCCL], sizeof base->why[LK_BRIDGE_NCCL]))
        base->usable[LK_BRIDGE_NCCL] = 0;
    return l->d->dev.sync(&l->d->dev, e);
}

/* A kernel that is loaded at its first launch would wait for the device, and the device for a peer that waits for us. */
static void warm_up(struct cu_bridge *l)
{
    struct cu_dev *d = l->d;
    struct comm_args a = {.n = 1, .slice = 4, .cta = l->cta, .state = l->state, .stop = (const uint32_t *)(uintptr_t)l->stop_dev};
    struct cu_grid g = {.gx = 1, .bx = COMM_THREADS};
    struct comm_state *state = l->state;
    float *none = NULL;
    size_t zero = 0;
    int one = 1;
    cu_launch(d, "comm_flag", g, CU_ARGS(&a));
    cu_launch(d, "comm_ll", g, CU_ARGS(&a));
    cu_launch(d, "comm_sum", g, CU_ARGS(&none, &none, &zero, &zero, &one, &state));
    cu_launch(d, "comm_digest", g, CU_ARGS(&none, &zero, &state));
}

static int bridge_memory(struct cu_bridge *l, struct lk_err *e)
{
    struct cu_dev *d = l->d;
    struct lk_dev *ld = &d->dev;
    size_t bytes = (inbox_bytes(l->base.n) + ((size_t)2 << 20) - 1) >> 21 << 21; /* whole 2 MB blocks: an IPC handle shares its block */
    l->inbox = ld->alloc(ld, bytes, "all-reduce inbox");
    l->cta = ld->alloc(ld, DEVICE_WAYS * COMM_CTAS * sizeof *l->cta, "all-reduce steps");
    l->state = ld->alloc(ld, sizeof *l->state, "all-reduce state");
    if (!l->inbox || !l->cta || !l->state) return lk_fail(e, LK_ENOMEM, "cuda:%d: no memory for the all-reduce", d->index);
    if (cu_bad(d, d->drv->host_alloc((void **)&l->stop, 64, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP), "all-reduce stop word")) return ld->sync(ld, e);
    *l->stop = 0;
    cu_bad(d, d->drv->host_pointer(&l->stop_dev, l->stop, 0), "all-reduce stop word");
    CUresult r = d->drv->host_register(l->shared, lk_bridge_shared_bytes(l->base.n), CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    l->registered = r == CU_OK;
    if (r == CU_OK || r == CU_ERROR_HOST_REGISTERED) r = d->drv->host_pointer(&l->host, l->shared, 0);
    l->base.usable[LK_BRIDGE_MAILBOX] = r == CU_OK;
    if (r != CU_OK) cannot(l, LK_BRIDGE_MAILBOX, "the shared pages cannot be registered: %s", cu_error_text(d->drv, r));
    warm_up(l);
    return ld->sync(ld, e);
}

int lk_cuda_bridge_open(struct lk_bridge **out, struct lk_dev *dev, int rank, int n, void *shared, size_t most, struct lk_err *e)
{
    *out = NULL;
    if (n < 1 || n > COMM_RANKS) return lk_fail(e, LK_EUSAGE, "all-reduce: %d ranks, expected 1 to %d", n, COMM_RANKS);
    struct cu_bridge *l = lk_calloc(1, sizeof *l);
    if (!l) return lk_fail(e, LK_ENOMEM, "no memory for the all-reduce");
    l->d = cu_of(dev);
    l->shared = shared;
    l->most = most;
    l->patience_s = 5;
    l->base = (struct lk_bridge){.dev = dev, .rank = rank, .n = n, .card = bridge_card, .meet = bridge_meet, .nccl_open = bridge_nccl_open,
                               .reduce_add = bridge_reduce_add, .settle = bridge_settle, .reset = bridge_reset, .fault = bridge_fault,
                               .stop = bridge_stop, .leave = bridge_leave, .close = bridge_close};
    l->d->drv->ctx_set(l->d->ctx);
    int rc = bridge_memory(l, e);
    if (rc) {
        bridge_close(&l->base);
        return rc;
    }
    *out = &l->base;
    return 0;
}
