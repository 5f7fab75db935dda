/* What this card and its links do, measured: see dev/measure.h. Times are event times, medians of REPEAT; links are timed and then their
 * data is compared, byte for byte, with what was sent. */
#include "dev/measure.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"
#include "cuda/cublas.h"
#include "cuda/cuda_dev.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define READ_BYTES ((size_t)1 << 30)
#define READ_TILE  (256 * 8 * 16) /* bytes a CTA of measure_read */
#define REPEAT     7
#define GRAPH_LEN  500
#define GEMM       8192
#define CHAIN_BYTES ((size_t)16 << 20) /* about what a linear of the 27B reads */

struct rig {
    struct cu_dev *d;
    CUevent a, b;
    void *host;                 /* pinned, the largest link size */
    unsigned char *x, *y;       /* device, READ_BYTES each (or less on a small card) */
    size_t bytes;
};

static double median(double *t, int n)
{
    lk_sort_doubles(t, (size_t)n);
    return t[n / 2];
}

static void rig_close(struct rig *r)
{
    if (!r->d) return;
    if (r->host) r->d->drv->host_free(r->host);
    if (r->a) r->d->drv->event_destroy(r->a);
    if (r->b) r->d->drv->event_destroy(r->b);
    if (r->x) cu_free(r->d, r->x);
    if (r->y) cu_free(r->d, r->y);
    r->d->dev.close(&r->d->dev);
}

static int rig_open(struct rig *r, int index, size_t bytes, struct lk_err *e)
{
    struct lk_dev *dev;
    int rc = lk_cuda_open(&dev, index, NULL, e);
    if (rc) return rc;
    r->d = cu_of(dev);
    r->bytes = bytes;
    r->x = cu_alloc(r->d, r->bytes, "probe");
    r->y = cu_alloc(r->d, r->bytes, "probe");
    if (!r->x || !r->y) return lk_fail(e, LK_ENOMEM, "cuda:%d: no room for two buffers of %zu MB", index, bytes >> 20);
    if (cu_bad(r->d, r->d->drv->event_create(&r->a, CU_EVENT_DEFAULT), "event") || cu_bad(r->d, r->d->drv->event_create(&r->b, CU_EVENT_DEFAULT), "event") ||
        cu_bad(r->d, r->d->drv->host_alloc(&r->host, lk_link_bytes[LK_LINK_SIZES - 1], 0), "pinned memory"))
        return dev->sync(dev, e);
    return 0;
}

/* ms of what `issue` puts into the stream, `times` times over; median, divided by times. */
static double timed(struct rig *r, void (*issue)(struct rig *r, size_t n), size_t n, int times)
{
    double t[REPEAT];
    const struct cu_driver *v = r->d->drv;
    issue(r, n); /* warm */
    for (int i = 0; i < REPEAT; i++) {
        float ms = 0;
        cu_bad(r->d, v->event_record(r->a, r->d->stream), "event");
        for (int k = 0; k < times; k++) issue(r, n);
        cu_bad(r->d, v->event_record(r->b, r->d->stream), "event");
        cu_bad(r->d, v->event_sync(r->b), "event");
        cu_bad(r->d, v->event_ms(&ms, r->a, r->b), "event");
        t[i] = ms / times;
    }
    return median(t, REPEAT);
}

static void issue_read(struct rig *r, size_t n)
{
    cu_launch(r->d, "measure_read", (struct cu_grid){.gx = (unsigned)(n / READ_TILE), .bx = 256, .bytes = (double)n}, CU_ARGS(&r->x, &r->y));
}

static void issue_copy(struct rig *r, size_t n)
{
    cu_bad(r->d, r->d->drv->copy_d2d((CUdeviceptr)(uintptr_t)r->y, (CUdeviceptr)(uintptr_t)r->x, n, r->d->stream), "copy");
}

static void issue_empty(struct rig *r, size_t n)
{
    cu_launch(r->d, "measure_empty", (struct cu_grid){.gx = 1, .bx = 32}, NULL);
}

static void issue_gemm(struct rig *r, size_t n)
{
    int m = (int)n;
    cu_blas_mul(r->d, r->x, m, m, r->x + n * n * 2, m, m, 1.0f, 0, (float *)r->y, m);
}

static void issue_h2d(struct rig *r, size_t n)
{
    cu_bad(r->d, r->d->drv->copy_h2d((CUdeviceptr)(uintptr_t)r->x, r->host, n, r->d->stream), "copy");
}

static void issue_d2h(struct rig *r, size_t n)
{
    cu_bad(r->d, r->d->drv->copy_d2h(r->host, (CUdeviceptr)(uintptr_t)r->x, n, r->d->stream), "copy");
}

static double graph_node_us(struct rig *r)
{
    struct lk_dev *dev = &r->d->dev;
    double t[REPEAT];
    struct lk_err e = {0};
    if (!dev->graph_begin(dev, 0x70726f6265ull)) {
        for (int i = 0; i < GRAPH_LEN; i++) issue_empty(r, 0);
        dev->graph_end(dev);
    }
    dev->sync(dev, &e);
    for (int i = 0; i < REPEAT; i++) {
        double t0 = lk_clock();
        if (!dev->graph_begin(dev, 0x70726f6265ull)) dev->graph_end(dev);
        dev->sync(dev, &e);
        t[i] = (lk_clock() - t0) * 1e6 / GRAPH_LEN;
    }
    return median(t, REPEAT);
}

/* The read of CHAIN_BYTES as one node of a graph of many, each of other memory, less what the bytes take at the full rate. */
static double chain_us(struct rig *r, double gbs)
{
    struct lk_dev *dev = &r->d->dev;
    double t[REPEAT];
    struct lk_err e = {0};
    unsigned char *x = r->x;
    for (int i = -2; i < REPEAT; i++) {
        double t0 = lk_clock();
        if (!dev->graph_begin(dev, 0x636861696eull)) {
            for (size_t at = 0; at + CHAIN_BYTES <= r->bytes; at += CHAIN_BYTES) {
                r->x = x + at;
                issue_read(r, CHAIN_BYTES);
            }
            r->x = x;
            dev->graph_end(dev);
        }
        dev->sync(dev, &e);
        if (i >= 0) t[i] = (lk_clock() - t0) * 1e6 / (double)(r->bytes / CHAIN_BYTES);
    }
    double us = median(t, REPEAT) - CHAIN_BYTES / gbs * 1e-3;
    return us > 0 ? us : 0;
}

static void pattern(void *p, size_t n, uint64_t seed)
{
    uint64_t *w = p;
    for (size_t i = 0; i < n / 8; i++) w[i] = (seed + i) * 0x9e3779b97f4a7c15ull;
}

static int pattern_right(const void *p, size_t n, uint64_t seed)
{
    const uint64_t *w = p;
    for (size_t i = 0; i < n / 8; i++)
        if (w[i] != (seed + i) * 0x9e3779b97f4a7c15ull) return 0;
    return 1;
}

static void links_measure(struct rig *r, struct lk_gpu_measure *m)
{
    struct lk_err e = {0};
    for (int i = 0; i < LK_LINK_SIZES; i++) {
        size_t n = lk_link_bytes[i];
        int times = n < (1 << 20) ? 50 : n < (1 << 28) ? 10 : 2;
        pattern(r->host, n, (uint64_t)i + 1);
        m->h2d[i].us = timed(r, issue_h2d, n, times) * 1e3;
        memset(r->host, 0, n);
        m->d2h[i].us = timed(r, issue_d2h, n, times) * 1e3;
        r->d->dev.sync(&r->d->dev, &e);
        m->h2d[i].ok = m->d2h[i].ok = pattern_right(r->host, n, (uint64_t)i + 1);
        m->d2d[i].us = timed(r, issue_copy, n, times) * 1e3;
        memset(r->host, 0, n);
        cu_bad(r->d, r->d->drv->copy_d2h(r->host, (CUdeviceptr)(uintptr_t)r->y, n, r->d->stream), "copy");
        r->d->dev.sync(&r->d->dev, &e);
        m->d2d[i].ok = pattern_right(r->host, n, (uint64_t)i + 1);
        m->d2d[i].gbs = (double)n / m->d2d[i].us * 1e-3;
        m->h2d[i].gbs = (double)n / m->h2d[i].us * 1e-3;
        m->d2h[i].gbs = (double)n / m->d2h[i].us * 1e-3;
    }
}

/* Random halves in [2^-15, 2): a matrix product of constants draws less power and runs 15 % faster than one of data. */
static void noise_fill(struct rig *r)
{
    size_t n = lk_link_bytes[LK_LINK_SIZES - 1];
    uint64_t *w = r->host;
    pattern(r->host, n, 12345);
    for (size_t i = 0; i < n / 8; i++) w[i] = (w[i] ^ w[i] >> 29) & 0xbbffbbffbbffbbffull;
    for (size_t at = 0; at + n <= r->bytes; at += n)
        cu_bad(r->d, r->d->drv->copy_h2d((CUdeviceptr)(uintptr_t)(r->x + at), r->host, n, r->d->stream), "copy");
}

int lk_cuda_measure_read(int index, double *gbs, struct lk_err *e)
{
    struct rig r = {0};
    int rc = rig_open(&r, index, READ_BYTES, e);
    *gbs = 0;
    if (!rc) {
        noise_fill(&r);
        *gbs = (double)r.bytes / timed(&r, issue_read, r.bytes, 4) * 1e-6;
        rc = r.d->dev.sync(&r.d->dev, e);
    }
    rig_close(&r);
    return rc;
}

int lk_cuda_measure(int index, struct lk_gpu_measure *m, struct lk_err *e)
{
    struct rig r = {0};
    *m = (struct lk_gpu_measure){0};
    int rc = rig_open(&r, index, READ_BYTES, e);
    if (!rc) {
        m->has_code = 1;
        cu_blas_open(r.d);
        snprintf(m->image, sizeof m->image, "sm_%d", r.d->arch);
        noise_fill(&r);
        m->read_gbs = (double)r.bytes / timed(&r, issue_read, r.bytes, 4) * 1e-6;
        m->copy_gbs = 2 * (double)r.bytes / timed(&r, issue_copy, r.bytes, 4) * 1e-6;
        m->launch_us = timed(&r, issue_empty, 0, 500) * 1e3;
        m->graph_us = graph_node_us(&r);
        m->chain_us = chain_us(&r, m->read_gbs);
        if (r.d->blas) m->fp16_tflops = 2.0 * GEMM * GEMM * GEMM / timed(&r, issue_gemm, GEMM, 2) * 1e-9;
        links_measure(&r, m);
        rc = r.d->dev.sync(&r.d->dev, e);
    }
    rig_close(&r);
    return rc;
}

/* The peer calls are few and used here alone: taken from the library that is open already. */
struct peer_api {
    CUresult (*can)(int *, CUdevice, CUdevice);
    CUresult (*enable)(CUcontext, unsigned);
    CUresult (*copy)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream);
};

static int peer_api_open(struct peer_api *a, struct lk_err *e)
{
    static const char *const names[] = {"cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemcpyPeerAsync"};
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *slots[] = {&a->can, &a->enable, &a->copy};
    for (int i = 0; i < 3; i++) {
        void *f = lib ? dlsym(lib, names[i]) : NULL;
        if (!f) return lk_fail(e, LK_ESYS, "the CUDA driver has no %s", names[i]);
        memcpy(slots[i], &f, sizeof f);
    }
    return 0;
}

static int peer_size(struct rig *a, struct rig *b, const struct peer_api *api, int size, struct lk_link_measure *m, struct lk_err *e)
{
    size_t n = lk_link_bytes[size];
    struct lk_dev *da = &a->d->dev, *db = &b->d->dev;
    double t[REPEAT];
    int times = n < (1 << 20) ? 50 : n < (1 << 28) ? 10 : 2;
    a->d->drv->ctx_set(a->d->ctx);
    pattern(a->host, n, 77 + (uint64_t)size);
    issue_h2d(a, n);
    int rc = da->sync(da, e);
    for (int k = 0; k < REPEAT && !rc; k++) {
        float ms = 0;
        cu_bad(a->d, a->d->drv->event_record(a->a, a->d->stream), "event");
        for (int i = 0; i < times; i++) cu_bad(a->d, api->copy((CUdeviceptr)(uintptr_t)b->x, b->d->ctx, (CUdeviceptr)(uintptr_t)a->x, a->d->ctx, n, a->d->stream), "peer copy");
        cu_bad(a->d, a->d->drv->event_record(a->b, a->d->stream), "event");
        rc = da->sync(da, e);
        cu_bad(a->d, a->d->drv->event_ms(&ms, a->a, a->b), "event");
        t[k] = ms * 1e3 / times;
    }
    if (rc) return rc;
    m->us = median(t, REPEAT);
    m->gbs = (double)n / m->us * 1e-3;
    b->d->drv->ctx_set(b->d->ctx);
    memset(b->host, 0, n);
    issue_d2h(b, n);
    rc = db->sync(db, e);
    m->ok = !rc && pattern_right(b->host, n, 77 + (uint64_t)size);
    return rc;
}

int lk_cuda_measure_peer(int from, int to, struct lk_peer_measure *m, struct lk_err *e)
{
    struct rig a = {0}, b = {0};
    struct peer_api api;
    size_t most = lk_link_bytes[LK_LINK_SIZES - 1];
    *m = (struct lk_peer_measure){0};
    int rc = rig_open(&a, from, most, e);
    if (!rc) rc = rig_open(&b, to, most, e);
    if (!rc) rc = peer_api_open(&api, e);
    if (!rc) {
        api.can(&m->claimed, a.d->id, b.d->id);
        a.d->drv->ctx_set(a.d->ctx);
        if (m->claimed) api.enable(b.d->ctx, 0); /* refused or on already: the copies show what it is worth */
        m->proven = m->claimed;
        for (int i = 0; i < LK_LINK_SIZES && !rc; i++) {
            rc = peer_size(&a, &b, &api, i, &m->to[i], e);
            /* 4 KB in 49 ms was seen on a board whose driver reported the path as good */
            m->proven &= m->to[i].ok && (i > 0 || m->to[i].us < 1000);
        }
    }
    if (b.d) b.d->drv->ctx_set(b.d->ctx);
    rig_close(&b);
    if (a.d) a.d->drv->ctx_set(a.d->ctx);
    rig_close(&a);
    return rc;
}
