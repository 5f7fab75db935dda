/* What `laoka probe` is held against: plain copies and reads of memory, sharing no code with it. On the CPU: a sum, STREAM's copy (a loop of
 * plain stores, which reads the line it is about to overwrite) and the C library's memcpy (which stores past the caches), own threads, each on its own part. On a GPU: cuMemcpyDtoD, and copy and read kernels in PTX, timed by events. Copies count read plus written.
 * --peer: copies from the one card to the other, by the driver and by a kernel that stores into the other's memory (as NCCL's direct path does), data checked.
 *   bench_copy [--threads N] [--mb 512] [--cuda INDEX [--peer INDEX]]       median and best of 31 on the CPU, of 9 on a GPU
 *   bench_copy --json ...                                                  CPU only: {"threads": N, "read_gbs": best, "copy_gbs": best, "memcpy_gbs": best} */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TIMES     9
#define CPU_TIMES 31

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double bytes, double *s, int times)
{
    qsort(s, (size_t)times, sizeof *s, by_value);
    printf("%-28s %9.1f GB/s (best %.1f)\n", what, bytes / s[times / 2] * 1e-9, bytes / s[0] * 1e-9);
}

/* ---- CPU ---- */

enum kind { READ, COPY, MEMCPY };

struct part {
    double *a, *b;
    size_t n;
    enum kind kind;
    double sum, begin[CPU_TIMES], end[CPU_TIMES];
    pthread_barrier_t *bar;
};

typedef double two __attribute__((vector_size(16), may_alias));

/* Eight chains of adds, for one alone is bound by the latency of an add, over four places at once, for a core's prefetchers follow several streams and one
 * alone reads up to a fifth less. */
static double sum_of(const double *a, size_t n)
{
    size_t q = n / 4 / 4 * 4;
    const two *p = (const two *)a, *e = (const two *)(a + q), *v = e, *w = (const two *)(a + 2 * q), *x = (const two *)(a + 3 * q);
    two s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    for (; p < e; p += 2, v += 2, w += 2, x += 2) {
        s0 += p[0], s1 += p[1], s2 += v[0], s3 += v[1];
        s4 += w[0], s5 += w[1], s6 += x[0], s7 += x[1];
    }
    two s = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
    return s[0] + s[1];
}

static void loop_copy(double *b, const double *a, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i += 4) {
        two x = *(const two *)(a + i), y = *(const two *)(a + i + 2);
        __asm__("" ::: "memory"); /* or the compiler sees a memcpy here */
        *(two *)(b + i) = x, *(two *)(b + i + 2) = y;
    }
}

static void *part_run(void *arg)
{
    struct part *p = arg;
    for (size_t i = 0; i < p->n; i++) p->a[i] = (double)i, p->b[i] = 0; /* first touch where it is used */
    for (int k = -1; k < CPU_TIMES; k++) {
        pthread_barrier_wait(p->bar);
        double t = now(), sum = 0;
        if (p->kind == READ)
            sum = sum_of(p->a, p->n);
        else if (p->kind == COPY)
            loop_copy(p->b, p->a, p->n);
        else
            memcpy(p->b, p->a, p->n * sizeof *p->a);
        p->sum += sum;
        if (k >= 0) p->begin[k] = t, p->end[k] = now();
    }
    return NULL;
}

/* From the first thread's begin to the last one's end: one thread's own clock begins late when the barrier wakes it late, and the best of many passes would
 * be the one that cheats most. */
static double pass_seconds(const struct part *p, int threads, int k)
{
    double begin = p->begin[k], end = p->end[k];
    for (int i = 1; i < threads; i++) {
        if (p[i].begin[k] < begin) begin = p[i].begin[k];
        if (p[i].end[k] > end) end = p[i].end[k];
    }
    return end - begin;
}

/* The best in GB/s; prints a line unless quiet. */
static double cpu_run(int threads, size_t bytes, enum kind kind, int quiet)
{
    static const char *const names[] = {"read", "copy by a loop", "copy by memcpy"};
    struct part *p = calloc((size_t)threads, sizeof *p);
    pthread_t *id = calloc((size_t)threads, sizeof *id);
    size_t each = bytes / (size_t)threads / sizeof(double) / 8 * 8;
    double *a = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), *b = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    pthread_barrier_t bar;
    if (!p || !id || !a || !b || pthread_barrier_init(&bar, NULL, (unsigned)threads)) exit(1);
    for (int i = 0; i < threads; i++) p[i].a = a + each * (size_t)i, p[i].b = b + each * (size_t)i, p[i].n = each, p[i].kind = kind, p[i].bar = &bar;
    for (int i = 1; i < threads; i++)
        if (pthread_create(&id[i], NULL, part_run, &p[i])) exit(1);
    part_run(&p[0]);
    for (int i = 1; i < threads; i++) pthread_join(id[i], NULL);
    double moved = (double)(each * (size_t)threads * sizeof *a) * (kind == READ ? 1 : 2), best = 1e9, s[CPU_TIMES];
    for (int k = 0; k < CPU_TIMES; k++) {
        s[k] = pass_seconds(p, threads, k);
        if (s[k] < best) best = s[k];
    }
    char what[64];
    snprintf(what, sizeof what, "CPU %s, %d thread%s", names[kind], threads, threads > 1 ? "s" : "");
    if (!quiet) report(what, moved, s, CPU_TIMES);
    free(a), free(b), free(p), free(id);
    return moved / best * 1e-9;
}

static int cpu_all(int threads, size_t bytes, int json)
{
    double v[3];
    for (int k = READ; k <= MEMCPY; k++) v[k] = cpu_run(threads, bytes, (enum kind)k, json);
    if (json) printf("{\"threads\": %d, \"read_gbs\": %.3f, \"copy_gbs\": %.3f, \"memcpy_gbs\": %.3f}\n", threads, v[READ], v[COPY], v[MEMCPY]);
    return 0;
}

/* ---- GPU: the driver by its names, nothing of src/cuda ---- */

static const char ptx[] =
    ".version 6.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 n)\n{\n"
    " .reg .pred %p; .reg .u32 %c, %t, %s; .reg .u64 %to, %from, %i, %n, %step, %o, %a, %b; .reg .u32 %v0, %v1, %v2, %v3;\n"
    " ld.param.u64 %to, [to]; ld.param.u64 %from, [from]; ld.param.u64 %n, [n];\n"
    " mov.u32 %c, %ctaid.x; mov.u32 %t, %tid.x; mov.u32 %s, %ntid.x; mad.lo.u32 %c, %c, %s, %t; cvt.u64.u32 %i, %c;\n"
    " mov.u32 %t, %nctaid.x; mul.lo.u32 %s, %s, %t; cvt.u64.u32 %step, %s;\n"
    "L: setp.ge.u64 %p, %i, %n; @%p bra E;\n"
    " shl.b64 %o, %i, 4; add.u64 %a, %from, %o; add.u64 %b, %to, %o;\n"
    " ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%a]; st.global.v4.u32 [%b], {%v0, %v1, %v2, %v3};\n"
    " add.u64 %i, %i, %step; bra L;\nE: ret;\n}\n"
    ".visible .entry read(.param .u64 to, .param .u64 from, .param .u64 n)\n{\n"
    " .reg .pred %p, %q; .reg .u32 %c, %t, %s, %x; .reg .u64 %to, %from, %i, %n, %step, %o, %a, %j; .reg .u32 %v0, %v1, %v2, %v3, %w0, %w1, %w2, %w3;\n"
    " ld.param.u64 %to, [to]; ld.param.u64 %from, [from]; ld.param.u64 %n, [n]; mov.u32 %x, 0;\n"
    " mov.u32 %c, %ctaid.x; mov.u32 %t, %tid.x; mov.u32 %s, %ntid.x; mad.lo.u32 %c, %c, %s, %t; cvt.u64.u32 %i, %c;\n"
    " mov.u32 %t, %nctaid.x; mul.lo.u32 %s, %s, %t; cvt.u64.u32 %step, %s; shl.b64 %o, %step, 4;\n"
    "L: setp.ge.u64 %p, %i, %n; @%p bra E;\n"
    " shl.b64 %a, %i, 4; add.u64 %a, %from, %a;\n"
    " ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%a]; add.u64 %a, %a, %o; add.u64 %j, %i, %step; setp.lt.u64 %q, %j, %n;\n"
    " mov.u32 %w0, 0; mov.u32 %w1, 0; mov.u32 %w2, 0; mov.u32 %w3, 0; @%q ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%a];\n"
    " xor.b32 %x, %x, %v0; xor.b32 %x, %x, %v1; xor.b32 %x, %x, %v2; xor.b32 %x, %x, %v3;\n"
    " xor.b32 %x, %x, %w0; xor.b32 %x, %x, %w1; xor.b32 %x, %x, %w2; xor.b32 %x, %x, %w3;\n"
    " add.u64 %i, %i, %step; add.u64 %i, %i, %step; bra L;\n"
    "E: setp.ne.u32 %p, %x, 305419896; @%p bra R; st.global.u32 [%to], %x;\nR: ret;\n}\n";

typedef uint64_t devptr;
static struct {
    int (*init)(unsigned), (*dev)(int *, int), (*retain)(void **, int), (*set)(void *), (*alloc)(devptr *, size_t), (*fill)(devptr, unsigned, size_t);
    int (*copy)(devptr, devptr, size_t, void *), (*load)(void **, const void *), (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*back)(void *, devptr, size_t), (*can)(int *, int, int), (*enable)(void *, unsigned);
    int (*event)(void **, unsigned), (*record)(void *, void *), (*wait)(void *), (*ms)(float *, void *, void *);
} cu;

static int driver_open(void)
{
    static const char *const names[] = {"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemsetD32_v2", "cuMemcpyDtoDAsync_v2",
                                        "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuMemcpyDtoH_v2", "cuDeviceCanAccessPeer",
                                        "cuCtxEnablePeerAccess", "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"};
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), **slot = (void **)&cu;
    for (size_t i = 0; lib && i < sizeof names / sizeof *names; i++)
        if (!(slot[i] = dlsym(lib, names[i]))) return -1;
    return lib ? 0 : -1;
}

static void must(int rc, const char *what)
{
    if (!rc) return;
    fprintf(stderr, "bench_copy: %s failed with %d\n", what, rc);
    exit(1);
}

static void gpu_time(const char *what, void *fn, devptr to, devptr from, size_t bytes, int factor)
{
    void *a, *b;
    uint64_t n = bytes / 16;
    double s[TIMES];
    must(cu.event(&a, 0) || cu.event(&b, 0), "event");
    for (int k = -1; k < TIMES; k++) {
        void *args[] = {&to, &from, &n};
        float ms;
        must(cu.record(a, NULL), "record");
        must(fn ? cu.launch(fn, 132 * 16, 1, 1, 512, 1, 1, 0, NULL, args, NULL) : cu.copy(to, from, bytes, NULL), what);
        must(cu.record(b, NULL) || cu.wait(b) || cu.ms(&ms, a, b), "wait");
        if (k >= 0) s[k] = ms * 1e-3;
    }
    report(what, (double)bytes * factor, s, TIMES);
}

/* Seconds of one of `times` copies in a row, median. */
static double peer_time(void *fn, devptr to, devptr from, size_t bytes, int times)
{
    void *a, *b;
    uint64_t n = bytes / 16;
    double s[TIMES];
    unsigned grid = (unsigned)(n / 512 > 1056 ? 1056 : n / 512 ? n / 512 : 1);
    must(cu.event(&a, 0) || cu.event(&b, 0), "event");
    for (int k = -1; k < TIMES; k++) {
        void *args[] = {&to, &from, &n};
        float ms;
        must(cu.record(a, NULL), "record");
        for (int i = 0; i < times; i++) must(fn ? cu.launch(fn, grid, 1, 1, 512, 1, 1, 0, NULL, args, NULL) : cu.copy(to, from, bytes, NULL), "peer copy");
        must(cu.record(b, NULL) || cu.wait(b) || cu.ms(&ms, a, b), "wait");
        if (k >= 0) s[k] = ms * 1e-3 / times;
    }
    qsort(s, TIMES, sizeof *s, by_value);
    return s[TIMES / 2];
}

static int data_is(devptr at, size_t bytes, uint32_t want)
{
    uint32_t *h = malloc(bytes);
    int ok = h && !cu.back(h, at, bytes);
    for (size_t i = 0; ok && i < bytes / 4; i++) ok = h[i] == want;
    free(h);
    return ok;
}

static int peer_run(int from, int to)
{
    static const size_t sizes[] = {4096, 65536, 1 << 20, 1 << 24, 1 << 28};
    int da, db, can = 0;
    void *ca, *cb, *mod, *copy;
    devptr x, y;
    if (driver_open()) {
        fprintf(stderr, "bench_copy: no CUDA driver here\n");
        return 1;
    }
    must(cu.init(0) || cu.dev(&da, from) || cu.dev(&db, to) || cu.retain(&cb, db) || cu.set(cb) || cu.alloc(&y, 1 << 28), "second card");
    must(cu.retain(&ca, da) || cu.set(ca) || cu.alloc(&x, 1 << 28) || cu.load(&mod, ptx) || cu.function(&copy, mod, "copy"), "first card");
    must(cu.can(&can, da, db), "peer question");
    if (can) cu.enable(cb, 0);
    printf("peer %d to %d: access %s by the driver\n", from, to, can ? "claimed" : "not claimed");
    for (int kernel = 0; kernel <= can; kernel++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint32_t mark = 0x9e3779b9u + (uint32_t)(i * 2 + (size_t)kernel);
            must(cu.set(ca) || cu.fill(x, mark, sizes[i] / 4), "fill");
            double s = peer_time(kernel ? copy : NULL, y, x, sizes[i], sizes[i] < 1 << 24 ? 50 : 4);
            must(cu.set(cb), "context");
            printf("  %-8s %9zu B %10.2f us %8.2f GB/s %s\n", kernel ? "kernel" : "driver", sizes[i], s * 1e6, (double)sizes[i] / s * 1e-9, data_is(y, sizes[i], mark) ? "data right" : "DATA WRONG");
        }
    return 0;
}

static int gpu_run(int index, size_t bytes)
{
    int dev;
    void *ctx, *mod, *copy, *read;
    devptr x, y;
    if (driver_open()) {
        fprintf(stderr, "bench_copy: no CUDA driver here\n");
        return 1;
    }
    must(cu.init(0) || cu.dev(&dev, index) || cu.retain(&ctx, dev) || cu.set(ctx), "context");
    must(cu.alloc(&x, bytes) || cu.alloc(&y, bytes) || cu.fill(x, 0x9e3779b9u, bytes / 4), "memory");
    must(cu.load(&mod, ptx), "PTX");
    must(cu.function(&copy, mod, "copy") || cu.function(&read, mod, "read"), "function");
    gpu_time("GPU cuMemcpyDtoD", NULL, y, x, bytes, 2);
    gpu_time("GPU copy kernel", copy, y, x, bytes, 2);
    gpu_time("GPU read kernel", read, y, x, bytes, 1);
    return 0;
}

int main(int argc, char **argv)
{
    int threads = (int)sysconf(_SC_NPROCESSORS_ONLN), cuda = -1, peer = -1, json = 0;
    size_t mb = 0;
    if (argc > 1 && !strcmp(argv[1], "--json")) json = 1, argc--, argv++;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--mb")) mb = (size_t)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--cuda")) cuda = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--peer")) peer = atoi(argv[i + 1]);
    }
    if (threads < 1) threads = 1;
    if (cuda >= 0 && peer >= 0) return peer_run(cuda, peer);
    if (cuda >= 0) return gpu_run(cuda, (mb ? mb : 1024) << 20);
    return cpu_all(threads, (mb ? mb : 256) << 20, json);
}
