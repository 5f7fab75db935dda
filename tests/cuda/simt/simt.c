/* A libcuda.so.1 without a card: one V100 whose kernels (translate, simt.h) run as fibers on one host thread. With it the op
 * suite, the loader and a whole model run their Volta code on any machine, under a debugger too.
 *
 * Device memory comes filled with 0xFF and ends at a page that may not be touched, so what is read before it is written, or behind
 * the end, shows. Dynamic shared memory likewise, for every block. A block whose threads wait in different places, or return while
 * others wait for the warp, ends the program with the kernel's name. Captured graphs are lists of what was issued.
 * FAKE_CUDA_FAIL=n: the n-th launch fails (sticky errors). */
#define _GNU_SOURCE
#include "simt_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define STACK 65536
#define POISON ((size_t)32 << 20) /* of an allocation: more costs time only */
#define MAX_THREADS 1024
enum state { RUN, WARP, BLOCK, DONE };

struct fiber {
    struct simt_lane lane; /* first: simt_me points here */
    void *sp;
    enum state state;
};

/* The one SM. */
static struct {
    struct fiber f[MAX_THREADS];
    struct simt_warp warp[MAX_THREADS / 32];
    char *stacks;
    void *sched_sp;
    struct fiber *cur;
    unsigned char *smem;
    size_t smem_bytes;
} sm;

EXPORT struct simt_lane *simt_me;
EXPORT struct simt_dim simt_block, simt_grid, simt_block_dim;

static _Noreturn void die(const char *what, const char *name)
{
    fprintf(stderr, "simt: %s in kernel %s\n", what, name);
    abort();
}

/* fibers ---------------------------------------------------------------------------------------------------------------------- */

void simt_switch(void **save, void *to);
__asm__(".text\n.globl simt_switch\n.hidden simt_switch\nsimt_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void yield(enum state s)
{
    struct fiber *f = sm.cur;
    f->state = s;
    simt_switch(&f->sp, sm.sched_sp);
}

EXPORT void simt_warp_wait(void)
{
    yield(WARP);
}

EXPORT void simt_block_wait(void)
{
    yield(BLOCK);
}

EXPORT uint8_t *simt_dynamic_shared(void)
{
    return sm.smem;
}

static struct {
    const struct simt_kernel *k;
    void **args;
    struct simt_dim grid, block;
    unsigned smem;
} job;

static void fiber_main(void)
{
    job.k->call(job.args);
    yield(DONE);
    abort();
}

static void fiber_start(unsigned i)
{
    struct fiber *f = sm.f + i;
    void **top = (void **)(sm.stacks + (size_t)(i + 1) * STACK) - 1; /* ret leaves rsp as a call does: 8 off 16 */
    *--top = (void *)fiber_main;
    top -= 6;
    f->sp = top;
    f->state = RUN;
    f->lane.thread = (struct simt_dim){i % job.block.x, i / job.block.x, 0};
    f->lane.warp = sm.warp + i / 32;
    f->lane.turn = 0;
}

/* Runs a warp until its living lanes all wait for the block, or are gone. */
static int warp_run(unsigned lane0, unsigned n)
{
    for (;;) {
        unsigned count[4] = {0};
        for (unsigned i = lane0; i < lane0 + n; i++) {
            struct fiber *f = sm.f + i;
            if (f->state == RUN) {
                sm.cur = f;
                simt_me = &f->lane;
                simt_switch(&sm.sched_sp, f->sp);
            }
            count[f->state]++;
        }
        if (!count[WARP]) return count[BLOCK] > 0;
        if (count[BLOCK] || count[DONE]) die("lanes of a warp wait in different places", job.k->name);
        for (unsigned i = lane0; i < lane0 + n; i++) sm.f[i].state = RUN;
    }
}

static void block_run(void)
{
    unsigned n = job.block.x * job.block.y;
    memset(sm.smem, 0xff, job.smem);
    for (unsigned i = 0; i < n; i++) fiber_start(i);
    for (int waiting = 1; waiting;) {
        waiting = 0;
        for (unsigned i = 0; i < n; i += 32) waiting |= warp_run(i, n - i < 32 ? n - i : 32);
        for (unsigned i = 0; i < n && waiting; i++)
            if (sm.f[i].state == BLOCK) sm.f[i].state = RUN;
    }
}

static unsigned char *guarded(size_t bytes)
{
    size_t room = (bytes + 4095) / 4096 * 4096;
    unsigned char *p = mmap(NULL, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    mprotect(p + room, 4096, PROT_NONE);
    return p + (room - (bytes + 15) / 16 * 16);
}

static void unguard(unsigned char *p, size_t bytes)
{
    size_t room = (bytes + 4095) / 4096 * 4096;
    munmap(p - (room - (bytes + 15) / 16 * 16), room + 4096);
}

static int env_int(const char *name, int def)
{
    const char *v = getenv(name);
    return v ? atoi(v) : def;
}

static void run(const struct simt_kernel *k, struct simt_dim grid, struct simt_dim block, unsigned smem, void **args)
{
    job.k = k, job.args = args, job.grid = grid, job.block = block, job.smem = smem;
    if (block.x * block.y > MAX_THREADS || smem > 98304) die("too many threads or too much shared memory", k->name);
    if (!sm.stacks) sm.stacks = mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sm.smem_bytes != smem || !sm.smem) {
        if (sm.smem) unguard(sm.smem, sm.smem_bytes);
        sm.smem = guarded(smem);
        sm.smem_bytes = smem;
    }
    simt_grid = grid;
    simt_block_dim = block;
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; i++) {
        simt_block = (struct simt_dim){i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
        block_run();
    }
}

/* kernels by name --------------------------------------------------------------------------------------------------------------- */

static const struct simt_kernel *tables[64];
static int table_n[64], n_tables;

EXPORT void simt_register(const struct simt_kernel *k, int n)
{
    if (n_tables == 64) abort();
    tables[n_tables] = k;
    table_n[n_tables++] = n;
}

/* the driver's functions, as driver.h lists them ---------------------------------------------------------------------------------- */

typedef unsigned long long ptr;
enum kind { LAUNCH, COPY, FILL };
struct node {
    enum kind kind;
    const struct simt_kernel *k;
    struct simt_dim grid, block;
    unsigned smem;
    void *dst;
    const void *src;
    size_t bytes;
    unsigned char value;
    unsigned char *args; /* copies of the arguments, one behind the other at multiples of 16 */
};
struct graph {
    struct node *v;
    size_t n, cap;
};
static struct graph *capture;
static int launches;

static void node_do(const struct node *n)
{
    if (n->kind == COPY) memmove(n->dst, n->src, n->bytes);
    if (n->kind == FILL) memset(n->dst, n->value, n->bytes);
    if (n->kind != LAUNCH) return;
    void *args[16];
    size_t at = 0;
    for (int i = 0; i < n->k->n_args; i++) {
        args[i] = n->args + at;
        at += (n->k->sizes[i] + 15) / 16 * 16;
    }
    run(n->k, n->grid, n->block, n->smem, args);
}

static int issue(struct node n, void **args)
{
    if (n.kind == LAUNCH) {
        size_t at = 0;
        n.args = malloc(8192);
        for (int i = 0; i < n.k->n_args; i++) {
            memcpy(n.args + at, args[i], n.k->sizes[i]);
            at += (n.k->sizes[i] + 15) / 16 * 16;
        }
    }
    if (!capture) {
        node_do(&n);
        free(n.args);
        return 0;
    }
    if (capture->n == capture->cap) capture->v = realloc(capture->v, (capture->cap = 2 * capture->cap + 64) * sizeof *capture->v);
    capture->v[capture->n++] = n;
    return 0;
}

struct mem {
    unsigned char *p;
    size_t bytes;
};
static struct mem *mems;
static size_t n_mems, cap_mems;

#define FN(name, args) EXPORT int name args; EXPORT int name args
#define OK0(name, ...) FN(name, (__VA_ARGS__)) { return 0; }
OK0(cuInit, unsigned f)
OK0(cuDevicePrimaryCtxRelease_v2, int d)
OK0(cuCtxSetCurrent, void *c)
OK0(cuStreamDestroy_v2, void *s)
OK0(cuStreamSynchronize, void *s)
OK0(cuStreamWaitEvent, void *s, void *e, unsigned f)
OK0(cuEventDestroy_v2, void *e)
OK0(cuEventRecord, void *e, void *s)
OK0(cuEventSynchronize, void *e)
OK0(cuModuleUnload, void *m)
OK0(cuFuncSetAttribute, void *f, int a, int v)
OK0(cuCtxEnablePeerAccess, void *c, unsigned f)
FN(cuDriverGetVersion, (int *v)) { *v = 12040; return 0; }
FN(cuGetErrorName, (int r, const char **s)) { *s = r ? "CUDA_ERROR_FAKE" : "CUDA_SUCCESS"; return 0; }
FN(cuGetErrorString, (int r, const char **s)) { *s = "made up by the test"; return 0; }
FN(cuDeviceGetCount, (int *n)) { *n = 1; return 0; }
FN(cuDeviceGet, (int *d, int i)) { *d = i; return 0; }
FN(cuDeviceGetName, (char *s, int n, int d)) { snprintf(s, (size_t)n, "a CPU that runs Volta code"); return 0; }
FN(cuDeviceGetAttribute, (int *v, int a, int d)) { *v = a == 75 ? 7 : a == 76 ? 0 : a == 16 ? 80 : a == 97 ? 98304 : 6 << 20; return 0; }
FN(cuDevicePrimaryCtxRetain, (void **c, int d)) { *c = (void *)1; return 0; }
FN(cuMemGetInfo_v2, (size_t *f, size_t *t)) { *f = *t = (size_t)1 << 34; return 0; }
FN(cuMemAlloc_v2, (ptr *p, size_t n))
{
    unsigned char *m = n < (size_t)1 << 34 ? guarded(n) : NULL;
    if (!m) return 2;
    memset(m, 0xff, n < POISON ? n : POISON);
    if (n_mems == cap_mems) mems = realloc(mems, (cap_mems = 2 * cap_mems + 256) * sizeof *mems);
    mems[n_mems++] = (struct mem){m, n};
    *p = (ptr)m;
    return 0;
}
FN(cuMemFree_v2, (ptr p))
{
    for (size_t i = n_mems; i-- > 0;)
        if (mems[i].p == (unsigned char *)p) {
            unguard(mems[i].p, mems[i].bytes);
            mems[i] = mems[--n_mems];
            return 0;
        }
    return 1;
}
FN(cuMemHostAlloc, (void **p, size_t n, unsigned f)) { *p = malloc(n); return *p ? 0 : 2; }
FN(cuMemFreeHost, (void *p)) { free(p); return 0; }
FN(cuMemHostRegister_v2, (void *p, size_t n, unsigned f)) { return 0; }
FN(cuMemHostUnregister, (void *p)) { return 0; }
FN(cuMemHostGetDevicePointer_v2, (ptr *d, void *p, unsigned f)) { *d = (ptr)p; return 0; }
struct ipc { char bytes[64]; };
FN(cuIpcGetMemHandle, (struct ipc *h, ptr p)) { memset(h, 0, sizeof *h); memcpy(h, &p, sizeof p); return 0; }
FN(cuIpcOpenMemHandle_v2, (ptr *p, struct ipc h, unsigned f)) { return 1; }
FN(cuIpcCloseMemHandle, (ptr p)) { return 0; }
static int copy(void *d, const void *s, size_t n) { return issue((struct node){.kind = COPY, .dst = d, .src = s, .bytes = n}, NULL); }
FN(cuMemcpyHtoDAsync_v2, (ptr d, const void *s, size_t n, void *st)) { return copy((void *)d, s, n); }
FN(cuMemcpyDtoHAsync_v2, (void *d, ptr s, size_t n, void *st)) { return copy(d, (void *)s, n); }
FN(cuMemcpyDtoDAsync_v2, (ptr d, ptr s, size_t n, void *st)) { return copy((void *)d, (void *)s, n); }
FN(cuMemcpyPeerAsync, (ptr d, void *dc, ptr s, void *sc, size_t n, void *st)) { return copy((void *)d, (void *)s, n); }
FN(cuDeviceCanAccessPeer, (int *v, int a, int b)) { *v = 1; return 0; }
FN(cuMemsetD8Async, (ptr d, unsigned char v, size_t n, void *st)) { return issue((struct node){.kind = FILL, .dst = (void *)d, .value = v, .bytes = n}, NULL); }
FN(cuStreamCreate, (void **s, unsigned f)) { *s = (void *)2; return 0; }
FN(cuStreamBeginCapture_v2, (void *s, int mode)) { capture = calloc(1, sizeof *capture); return !capture; }
FN(cuStreamEndCapture, (void *s, void **g)) { *g = capture; capture = NULL; return !*g; }
FN(cuGraphInstantiateWithFlags, (void **e, void *g, unsigned long long f)) { *e = g; return 0; }
FN(cuGraphDestroy, (void *g)) { return 0; } /* the instance is the same object */
FN(cuGraphExecDestroy, (void *e))
{
    struct graph *g = e;
    for (size_t i = 0; i < g->n; i++) free(g->v[i].args);
    free(g->v);
    free(g);
    return 0;
}
FN(cuGraphLaunch, (void *e, void *s))
{
    for (size_t i = 0; i < ((struct graph *)e)->n; i++) node_do(((struct graph *)e)->v + i);
    return 0;
}
FN(cuGraphGetNodes, (void *g, void *n, size_t *count)) { *count = ((struct graph *)g)->n; return 0; }
FN(cuEventCreate, (void **e, unsigned f)) { *e = (void *)5; return 0; }
FN(cuEventElapsedTime, (float *ms, void *a, void *b)) { *ms = 1; return 0; }
FN(cuModuleLoadData, (void **m, const void *image)) { *m = (void *)6; return 0; }
FN(cuModuleGetFunction, (void **f, void *m, const char *name))
{
    for (int t = 0; t < n_tables; t++)
        for (int i = 0; i < table_n[t]; i++)
            if (!strcmp(tables[t][i].name, name)) {
                *f = (void *)(tables[t] + i);
                return 0;
            }
    return 500;
}
FN(cuFuncGetAttribute, (int *v, int a, void *f)) { *v = 0; return 0; }
FN(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, void *f, int t, size_t s)) { *n = 1; return 0; }
FN(cuLaunchKernel, (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned smem, void *st, void **args, void **ex))
{
    if (++launches == env_int("FAKE_CUDA_FAIL", 0)) return 719;
    return issue((struct node){.kind = LAUNCH, .k = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .smem = smem}, args);
}
