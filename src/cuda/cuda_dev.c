/* The CUDA device: open and close, memory, copies through pinned staging, the sticky error, and the cache of captured graphs.
 * Owns the stream, the staging buffers and every graph. Refuses, at open, a card it has no code for and, in check, a model
 * whose sizes no kernel takes; in a step it allocates nothing.
 *
 * Staging: a small upload (a step's ids, positions, page tables) goes through a ring of pinned slots, so that the host runs
 * ahead of the device without waiting; a large one through two 16 MiB buffers in turn. A slot is reused when the event
 * recorded behind its copy has passed. */
#include "cuda/cuda_dev.h"

#include "base/log.h"
#include "base/mem.h"
#include "cuda/cublas.h"
#include "cuda/cuda_mat.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int cu_bad(struct cu_dev *d, CUresult r, const char *what)
{
    if (r == CU_OK) return 0;
    if (!d->failed) {
        d->failed = 1;
        snprintf(d->fail_text, sizeof d->fail_text, "cuda:%d (%s): %s: %s", d->index, d->name, what,
                 cu_error_text(d->drv, r));
    }
    return 1;
}

void cu_refuse(struct cu_dev *d, const char *fmt, ...)
{
    if (d->failed) return;
    d->failed = 1;
    int n = snprintf(d->fail_text, sizeof d->fail_text, "cuda:%d (%s): ", d->index, d->name);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->fail_text + n, sizeof d->fail_text - (size_t)n, fmt, ap);
    va_end(ap);
}

static int report(struct cu_dev *d, struct lk_err *e)
{
    return d->failed ? lk_fail(e, LK_EDEVICE, "%s", d->fail_text) : 0;
}

/* memory ---------------------------------------------------------------------------------------------------------------- */

void *cu_alloc(struct cu_dev *d, size_t bytes, const char *what)
{
    CUdeviceptr p = 0;
    if (d->failed) return NULL;
    if (d->capturing) {
        cu_refuse(d, "%s: an allocation inside a step", what);
        return NULL;
    }
    d->drv->ctx_set(d->ctx);
    CUresult r = d->drv->mem_alloc(&p, bytes ? bytes : 16);
    if (r == CU_ERROR_OUT_OF_MEMORY) return NULL; /* the caller's to report: the device is well */
    return cu_bad(d, r, what) ? NULL : (void *)(uintptr_t)p;
}

void cu_free(struct cu_dev *d, void *p)
{
    if (!p) return;
    d->drv->ctx_set(d->ctx);
    d->drv->mem_free((CUdeviceptr)(uintptr_t)p); /* waits for the work that uses it */
}

static void *dev_alloc(struct lk_dev *ld, size_t bytes, const char *what)
{
    struct cu_dev *d = cu_of(ld);
    void *p = cu_alloc(d, bytes, what);
    if (p && bytes) cu_bad(d, d->drv->set_d8((CUdeviceptr)(uintptr_t)p, 0, bytes, d->stream), what);
    return p;
}

static void dev_free(struct lk_dev *d, void *p)
{
    cu_free(cu_of(d), p);
}

void *cu_scratch(struct cu_dev *d, size_t bytes)
{
    if (bytes <= d->scratch_bytes) return d->scratch;
    cu_refuse(d, "an op asks for %zu bytes of scratch, %zu were reserved", bytes, d->scratch_bytes);
    return NULL;
}

/* copies ---------------------------------------------------------------------------------------------------------------- */

static void copy_in(struct cu_dev *d, void *dst, const void *src, size_t bytes, unsigned char *pinned, CUevent free_ev)
{
    if (cu_bad(d, d->drv->event_sync(free_ev), "upload")) return;
    memcpy(pinned, src, bytes);
    if (cu_bad(d, d->drv->copy_h2d((CUdeviceptr)(uintptr_t)dst, pinned, bytes, d->stream), "upload")) return;
    cu_bad(d, d->drv->event_record(free_ev, d->stream), "upload");
}

static void dev_upload(struct lk_dev *ld, void *dst, const void *src, size_t bytes)
{
    struct cu_dev *d = cu_of(ld);
    if (d->failed || !bytes) return;
    if (d->capturing) {
        cu_refuse(d, "an upload inside a captured step");
        return;
    }
    d->drv->ctx_set(d->ctx);
    if (bytes <= CU_RING_BYTES) {
        int s = d->ring_next++ % CU_RING_SLOTS;
        copy_in(d, dst, src, bytes, d->ring + (size_t)s * CU_RING_BYTES, d->ring_free[s]);
        return;
    }
    for (size_t at = 0; at < bytes && !d->failed; at += CU_STAGE_BYTES) {
        int s = d->stage_next++ & 1;
        size_t n = bytes - at < CU_STAGE_BYTES ? bytes - at : CU_STAGE_BYTES;
        copy_in(d, (char *)dst + at, (const char *)src + at, n, d->stage[s], d->stage_free[s]);
    }
}

static int dev_download(struct lk_dev *ld, void *dst, const void *src, size_t bytes, struct lk_err *e)
{
    struct cu_dev *d = cu_of(ld);
    d->drv->ctx_set(d->ctx);
    for (size_t at = 0; at < bytes && !d->failed; at += CU_STAGE_BYTES) {
        int s = d->stage_next++ & 1;
        size_t n = bytes - at < CU_STAGE_BYTES ? bytes - at : CU_STAGE_BYTES;
        if (cu_bad(d, d->drv->event_sync(d->stage_free[s]), "download")) break;
        CUdeviceptr from = (CUdeviceptr)(uintptr_t)((const char *)src + at);
        if (cu_bad(d, d->drv->copy_d2h(d->stage[s], from, n, d->stream), "download")) break;
        if (cu_bad(d, d->drv->stream_sync(d->stream), "download")) break;
        memcpy((char *)dst + at, d->stage[s], n);
    }
    return report(d, e);
}

static void dev_copy(struct lk_dev *ld, void *dst, const void *src, size_t bytes)
{
    struct cu_dev *d = cu_of(ld);
    if (d->failed || !bytes) return;
    d->drv->ctx_set(d->ctx);
    cu_bad(d, d->drv->copy_d2d((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, bytes, d->stream), "copy");
}

static void dev_fill(struct lk_dev *ld, void *dst, int byte, size_t bytes)
{
    struct cu_dev *d = cu_of(ld);
    if (d->failed || !bytes) return;
    d->drv->ctx_set(d->ctx);
    cu_bad(d, d->drv->set_d8((CUdeviceptr)(uintptr_t)dst, (unsigned char)byte, bytes, d->stream), "fill");
}

static int dev_sync(struct lk_dev *ld, struct lk_err *e)
{
    struct cu_dev *d = cu_of(ld);
    d->drv->ctx_set(d->ctx);
    if (!d->failed) cu_bad(d, d->drv->stream_sync(d->stream), "sync");
    return report(d, e);
}

/* graphs ---------------------------------------------------------------------------------------------------------------- */

static int graph_begin(struct lk_dev *ld, uint64_t key)
{
    struct cu_dev *d = cu_of(ld);
    if (d->failed || d->prof || d->no_graphs) return 0;
    d->drv->ctx_set(d->ctx);
    for (int i = 0; i < CU_GRAPHS; i++) {
        struct cu_graph *g = &d->graphs[i];
        if (!g->exec || g->key != key) continue;
        g->used = ++d->clock;
        d->graph_launches = g->nodes;
        cu_bad(d, d->drv->graph_launch(g->exec, d->stream), "graph launch");
        return 1;
    }
    if (cu_bad(d, d->drv->capture_begin(d->stream, CU_CAPTURE_THREAD_LOCAL), "graph capture")) return 0;
    d->capturing = 1;
    d->capture_key = key;
    return 0;
}

static void graph_end(struct lk_dev *ld)
{
    struct cu_dev *d = cu_of(ld);
    if (!d->capturing) return;
    d->capturing = 0;
    CUgraph graph = NULL;
    CUresult r = d->drv->capture_end(d->stream, &graph);
    if (cu_bad(d, r, "graph capture")) return;
    struct cu_graph *g = d->graphs;
    for (int i = 1; i < CU_GRAPHS && g->exec; i++)
        if (!d->graphs[i].exec || d->graphs[i].used < g->used) g = &d->graphs[i];
    if (g->exec) d->drv->graph_exec_destroy(g->exec);
    *g = (struct cu_graph){.key = d->capture_key, .used = ++d->clock};
    d->drv->graph_nodes(graph, NULL, &g->nodes);
    d->graph_launches = g->nodes;
    r = d->drv->graph_instantiate(&g->exec, graph, 0);
    d->drv->graph_destroy(graph);
    if (cu_bad(d, r, "graph instantiate")) {
        g->exec = NULL;
        return;
    }
    cu_bad(d, d->drv->graph_launch(g->exec, d->stream), "graph launch");
}

static void graph_reset(struct lk_dev *ld)
{
    struct cu_dev *d = cu_of(ld);
    d->drv->ctx_set(d->ctx);
    d->drv->stream_sync(d->stream);
    for (int i = 0; i < CU_GRAPHS; i++)
        if (d->graphs[i].exec) d->drv->graph_exec_destroy(d->graphs[i].exec);
    memset(d->graphs, 0, sizeof d->graphs);
}

/* open, check, close ---------------------------------------------------------------------------------------------------- */

static void dev_info(struct lk_dev *ld, struct lk_dev_info *out)
{
    struct cu_dev *d = cu_of(ld);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s, sm_%d%s", d->name, d->sm, d->arch == 70 && d->sm > 70 ? " (Volta code)" : "");
    out->is_cuda = 1;
    out->index = d->index;
    d->drv->ctx_set(d->ctx);
    d->drv->mem_info(&out->mem_free, &out->mem_total);
}

/* One scratch region for all ops: the largest need of any. */
static size_t scratch_need(struct cu_dev *d, const struct lk_dev_need *n)
{
    size_t most = cu_linear_scratch(d, n);
    size_t a = cu_attn_scratch(d, n);
    if (a > most) most = a;
    size_t g = cu_gdn_scratch(d, n);
    if (g > most) most = g;
    size_t t = cu_topk_scratch(d, n);
    if (t > most) most = t;
    return most;
}

static int dev_check(struct lk_dev *ld, const struct lk_dev_need *n, struct lk_err *e)
{
    struct cu_dev *d = cu_of(ld);
    if (cu_attn_check(d, n, e)) return e ? e->code : LK_EINPUT;
    if (cu_gdn_check(d, n, e)) return e ? e->code : LK_EINPUT;
    if (n->max_rows > CU_SMALL_ROWS) cu_blas_open(d);
    size_t want = scratch_need(d, n);
    if (want > d->scratch_bytes) {
        cu_free(d, d->scratch);
        d->scratch_bytes = 0;
        d->scratch = cu_alloc(d, want, "scratch");
        if (!d->scratch)
            return d->failed ? report(d, e) : lk_fail(e, LK_ENOMEM, "cuda:%d: no room for %zu bytes of workspace", d->index, want);
        d->scratch_bytes = want;
    }
    d->need = *n;
    d->checked = 1;
    return report(d, e);
}

static void dev_close(struct lk_dev *ld)
{
    struct cu_dev *d = cu_of(ld);
    if (!d) return;
    d->drv->ctx_set(d->ctx);
    if (d->stream) graph_reset(ld);
    cu_prof_off(ld);
    cu_blas_close(d);
    cu_free(d, d->scratch);
    cu_free(d, d->count);
    cu_free(d, d->norm);
    cu_free(d, d->padded);
    for (int i = 0; i < 2; i++) {
        if (d->stage[i]) d->drv->host_free(d->stage[i]);
        if (d->stage_free[i]) d->drv->event_destroy(d->stage_free[i]);
    }
    if (d->ring) d->drv->host_free(d->ring);
    for (int i = 0; i < CU_RING_SLOTS; i++)
        if (d->ring_free[i]) d->drv->event_destroy(d->ring_free[i]);
    cu_modules_free(d);
    if (d->stream) d->drv->stream_destroy(d->stream);
    if (d->ctx) d->drv->ctx_release(d->id);
    lk_free(d);
}

static int staging_init(struct cu_dev *d, struct lk_err *e)
{
    const struct cu_driver *f = d->drv;
    cu_bad(d, f->stream_create(&d->stream, CU_STREAM_NON_BLOCKING), "stream");
    for (int i = 0; i < 2 && !d->failed; i++) {
        cu_bad(d, f->host_alloc((void **)&d->stage[i], CU_STAGE_BYTES, 0), "pinned staging memory");
        cu_bad(d, f->event_create(&d->stage_free[i], CU_EVENT_DISABLE_TIMING), "event");
    }
    if (!d->failed) cu_bad(d, f->host_alloc((void **)&d->ring, CU_RING_SLOTS * CU_RING_BYTES, 0), "pinned staging memory");
    for (int i = 0; i < CU_RING_SLOTS && !d->failed; i++)
        cu_bad(d, f->event_create(&d->ring_free[i], CU_EVENT_DISABLE_TIMING), "event");
    return report(d, e);
}

/* What ops keep between their kernels; counts and norms start at zero. */
static int kept_init(struct cu_dev *d, struct lk_err *e)
{
    d->count = dev_alloc(&d->dev, CU_COUNTS * sizeof *d->count, "counts");
    d->norm = dev_alloc(&d->dev, sizeof *d->norm, "norms");
    d->padded = cu_alloc(d, (size_t)CU_SMALL_ROWS * CU_ODD_K * 2, "padded rows");
    if ((!d->count || !d->norm || !d->padded) && !d->failed)
        return lk_fail(e, LK_ENOMEM, "cuda:%d: no device memory left", d->index);
    return report(d, e);
}

static int card_open(struct cu_dev *d, struct lk_err *e)
{
    const struct cu_driver *f = d->drv;
    int n = 0, major = 0, minor = 0, smem = 0, l2 = 0;
    CUresult r = f->device_count(&n);
    if (r != CU_OK || d->index < 0 || d->index >= n)
        return lk_fail(e, LK_EINPUT, "cuda:%d: there is no such card (%d found); use --devices cpu or another number", d->index, n);
    cu_bad(d, f->device_get(&d->id, d->index), "device");
    cu_bad(d, f->device_name(d->name, sizeof d->name, d->id), "device name");
    cu_bad(d, f->device_attr(&major, CU_ATTR_CC_MAJOR, d->id), "device attribute");
    cu_bad(d, f->device_attr(&minor, CU_ATTR_CC_MINOR, d->id), "device attribute");
    cu_bad(d, f->device_attr(&d->n_sm, CU_ATTR_SM_COUNT, d->id), "device attribute");
    cu_bad(d, f->device_attr(&smem, CU_ATTR_SMEM_OPTIN, d->id), "device attribute");
    cu_bad(d, f->device_attr(&l2, CU_ATTR_L2_BYTES, d->id), "device attribute");
    d->sm = major * 10 + minor;
    d->smem_optin = (size_t)smem;
    d->l2_bytes = (size_t)l2;
    if (!d->failed && !cu_bad(d, f->ctx_retain(&d->ctx, d->id), "context")) cu_bad(d, f->ctx_set(d->ctx), "context");
    return report(d, e);
}

static void fill_table(struct cu_dev *d)
{
    struct lk_dev *l = &d->dev;
    l->ops = &d->ops;
    l->act_bytes = 2;
    l->small_rows = CU_SMALL_ROWS;
    l->close = dev_close;
    l->info = dev_info;
    l->check = dev_check;
    l->alloc = dev_alloc;
    l->free = dev_free;
    l->upload = dev_upload;
    l->download = dev_download;
    l->copy = dev_copy;
    l->fill = dev_fill;
    l->sync = dev_sync;
    l->mat_load = cu_mat_load;
    l->mat_free = cu_mat_free;
    l->graph_begin = graph_begin;
    l->graph_end = graph_end;
    l->graph_reset = graph_reset;
    cu_small_ops(d);
    cu_linear_ops(d);
    cu_attn_ops(d);
    cu_gdn_ops(d);
    cu_topk_ops(d);
}

int lk_cuda_open(struct lk_dev **out, int index, const char *image, struct lk_err *e)
{
    *out = NULL;
    const struct cu_driver *drv = cu_driver(e);
    if (!drv) return e ? e->code : LK_EINPUT;
    struct cu_dev *d = lk_calloc(1, sizeof *d);
    if (!d) return lk_fail(e, LK_ENOMEM, "cuda:%d: out of memory", index);
    d->drv = drv;
    d->index = index;
    int rc = card_open(d, e);
    if (!rc) rc = cu_modules_load(d, image, e);
    if (!rc) rc = staging_init(d, e);
    if (!rc) rc = kept_init(d, e);
    if (!rc) {
        fill_table(d);
        *out = &d->dev;
        return 0;
    }
    dev_close(&d->dev);
    return rc;
}

int lk_cuda_count(void)
{
    int n = 0;
    const struct cu_driver *drv = cu_driver(NULL);
    return drv && drv->device_count(&n) == CU_OK ? n : 0;
}
