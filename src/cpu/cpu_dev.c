/* The CPU as a device: memory, the thread pool, the choice of an instruction set, and the sticky
 * error. It knows no op; kernels fill the table. Work buffers are reserved in check and mat_load,
 * so that a step allocates nothing. */
#include "cpu/cpu.h"
#include "cpu/cpu_mat.h"
#include "cpu/kern.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

int cpu_buf_grow(struct cpu_buf *b, size_t bytes, const char *what, struct lk_err *e)
{
    if (bytes <= b->bytes) return 0;
    void *p = lk_aligned(bytes);
    if (!p) return lk_fail(e, LK_ENOMEM, "cpu: no memory for %s (%zu bytes)", what, bytes);
    lk_free(b->p);
    b->p = p;
    b->bytes = bytes;
    return 0;
}

void *cpu_work(struct cpu_dev *c, size_t bytes, const char *op)
{
    if (bytes <= c->work.bytes && c->work.p) return c->work.p;
    lk_fail(&c->err, LK_EDEVICE, "cpu: op %s needs %zu bytes of work memory, check reserved %zu",
            op, bytes, c->work.bytes);
    return NULL;
}

float *cpu_row(struct cpu_dev *c, int worker)
{
    return (float *)c->row.p + (size_t)worker * (size_t)c->max_k;
}

static int rows_reserved(const struct cpu_dev *c)
{
    return c->need.max_rows > CPU_SMALL_ROWS ? c->need.max_rows : CPU_SMALL_ROWS;
}

int cpu_reserve_k(struct cpu_dev *c, int64_t k, struct lk_err *e)
{
    if (k <= c->max_k) return 0;
    int64_t k16 = (k + 15) / 16 * 16;
    size_t bytes;
    if (lk_mul_size((size_t)k16 * sizeof(float), (size_t)c->threads, &bytes))
        return lk_fail(e, LK_ENOMEM, "cpu: a weight row of %lld columns is too long", (long long)k);
    int rc = cpu_buf_grow(&c->row, bytes, "weight rows", e);
    if (!rc && c->kern)
        rc = cpu_buf_grow(&c->work, c->kern->linear_work(k16, rows_reserved(c)), "step work", e);
    if (!rc) c->max_k = k16;
    return rc;
}

static void cpu_close(struct lk_dev *d)
{
    if (!d) return;
    struct cpu_dev *c = cpu_of(d);
    lk_pool_free(c->pool);
    lk_free(c->row.p);
    lk_free(c->work.p);
    lk_free(c->worker.p);
    lk_free(c);
}

static void cpu_info(struct lk_dev *d, struct lk_dev_info *out)
{
    struct cpu_dev *c = cpu_of(d);
    struct sysinfo si;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "cpu (%d thread%s, %s)", c->threads,
             c->threads == 1 ? "" : "s", c->isa);
    out->work = c->row.bytes + c->work.bytes + c->worker.bytes;
    if (sysinfo(&si)) return;
    out->mem_total = (size_t)si.totalram * si.mem_unit;
    out->mem_free = (size_t)(si.freeram + si.bufferram) * si.mem_unit;
}

/* Everything the ops of a step will need, for the sizes in c->need. */
static int cpu_reserve(struct cpu_dev *c, struct lk_err *e)
{
    const struct lk_dev_need *n = &c->need;
    int64_t k = n->hidden > n->inter ? n->hidden : n->inter;
    size_t work = c->kern ? c->kern->work(n, c->threads) : cpu_ref_work(n, c->threads);
    int rc = cpu_buf_grow(&c->work, work, "step work", e);
    if (!rc && c->kern)
        rc = cpu_buf_grow(&c->work,
                          c->kern->linear_work(k > c->max_k ? k : c->max_k, rows_reserved(c)),
                          "step work", e);
    if (!rc && c->kern) {
        size_t each = c->kern->worker(n);
        rc = cpu_buf_grow(&c->worker, each * (size_t)c->threads, "thread work", e);
        if (!rc) c->worker_bytes = each;
    }
    return rc ? rc : cpu_reserve_k(c, k, e);
}

static int cpu_check(struct lk_dev *d, const struct lk_dev_need *n, struct lk_err *e)
{
    struct cpu_dev *c = cpu_of(d);
    if (n->head_dim != LK_HEAD)
        return lk_fail(e, LK_EINPUT, "cpu: attention head size must be %d, the model has %d",
                       LK_HEAD, n->head_dim);
    if (n->gdn_dim != 128 || n->conv_k != 4)
        return lk_fail(e, LK_EINPUT,
                       "cpu: delta net head size must be 128 and its convolution 4 wide, the model "
                       "has %d and %d",
                       n->gdn_dim, n->conv_k);
    if (n->n_kv < 1 || n->n_q < 1 || n->n_q % n->n_kv)
        return lk_fail(e, LK_EINPUT, "cpu: %d query heads do not divide over %d kv heads", n->n_q,
                       n->n_kv);
    if (n->hk < 1 || n->hv < 1 || n->hv % n->hk)
        return lk_fail(e, LK_EINPUT, "cpu: %d value heads do not divide over %d key heads", n->hv,
                       n->hk);
    if (n->rope_dim < 2 || n->rope_dim > LK_HEAD || n->rope_dim % 2)
        return lk_fail(e, LK_EINPUT,
                       "cpu: rotated dimensions must be even and at most %d, the model has %d",
                       LK_HEAD, n->rope_dim);
    if (n->max_rows < 1 || n->max_lanes < 1)
        return lk_fail(e, LK_EINPUT, "cpu: a step of %d rows and %d lanes", n->max_rows,
                       n->max_lanes);
    c->need = *n;
    return cpu_reserve(c, e);
}

/* ---- memory: zero pages come from the system when first touched; the block's true start lies just
 * before it ---- */

static void *cpu_alloc(struct lk_dev *d, size_t bytes, const char *what)
{
    size_t all;
    if (lk_add_size(bytes, 128, &all)) return NULL;
    char *raw = lk_calloc(1, all);
    if (!raw) return NULL;
    char *p = (char *)(((uintptr_t)raw + 64 + 63) & ~(uintptr_t)63);
    memcpy(p - sizeof raw, &raw, sizeof raw);
    return p;
}

static void cpu_free(struct lk_dev *d, void *p)
{
    if (!p) return;
    void *raw;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    lk_free(raw);
}

static void cpu_upload(struct lk_dev *d, void *dst, const void *src, size_t bytes)
{
    if (bytes) memcpy(dst, src, bytes);
}

static int cpu_sync(struct lk_dev *d, struct lk_err *e)
{
    struct cpu_dev *c = cpu_of(d);
    return c->err.code ? lk_fail(e, LK_EDEVICE, "%s", c->err.text) : 0;
}

static int cpu_download(struct lk_dev *d, void *dst, const void *src, size_t bytes,
                        struct lk_err *e)
{
    if (bytes) memcpy(dst, src, bytes);
    return cpu_sync(d, e);
}

static void cpu_copy(struct lk_dev *d, void *dst, const void *src, size_t bytes)
{
    if (bytes) memmove(dst, src, bytes);
}

static void cpu_fill(struct lk_dev *d, void *dst, int byte, size_t bytes)
{
    if (bytes) memset(dst, byte, bytes);
}

/* ---- graphs: none ---- */

static int cpu_graph_begin(struct lk_dev *d, uint64_t key)
{
    return 0;
}

static void cpu_graph_none(struct lk_dev *d) {}

/* ---- instruction sets, best first ---- */

static const struct cpu_kern *const kerns[] = {
#if defined(__x86_64__)
    &cpu_kern_avx512,
    &cpu_kern_avx2,
#endif
    &cpu_kern_scalar,
};
enum { N_KERNS = sizeof kerns / sizeof *kerns };

static int cpu_pick(struct cpu_dev *c, const char *isa, struct lk_err *e)
{
    if (isa && !strcmp(isa, "ref")) {
        c->isa = "ref";
        cpu_ref_ops(&c->ops);
        return 0;
    }
    for (int i = 0; i < N_KERNS; i++) {
        if (isa && strcmp(isa, kerns[i]->name)) continue;
        if (!kerns[i]->usable()) {
            if (isa) return lk_fail(e, LK_EINPUT, "cpu: this processor has no %s", isa);
            continue;
        }
        c->kern = kerns[i];
        c->isa = c->kern->name;
        c->base.rough = 0.5 + 2.0 / ROUGH_G;
        c->kern->ops(&c->ops);
        return 0;
    }
    return lk_fail(e, LK_EINPUT,
                   "cpu: no instruction set \"%s\"; one of: ref, scalar, avx2, avx512", isa);
}

int lk_cpu_open(struct lk_dev **out, int threads, const char *isa, struct lk_err *e)
{
    *out = NULL;
    struct cpu_dev *c = lk_calloc(1, sizeof *c);
    if (!c) return lk_fail(e, LK_ENOMEM, "cpu: no memory for the device");
    c->base = (struct lk_dev){
        .ops = &c->ops,
        .act_bytes = sizeof(float),
        .small_rows = CPU_SMALL_ROWS,
        .close = cpu_close,
        .info = cpu_info,
        .check = cpu_check,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .upload = cpu_upload,
        .download = cpu_download,
        .copy = cpu_copy,
        .fill = cpu_fill,
        .sync = cpu_sync,
        .mat_load = cpu_mat_load,
        .in_place = cpu_in_place,
        .mat_free = cpu_mat_free,
        .graph_begin = cpu_graph_begin,
        .graph_end = cpu_graph_none,
        .graph_reset = cpu_graph_none,
    };
    int rc = cpu_pick(c, isa, e);
    if (!rc) {
        c->pool = lk_pool_new(threads);
        if (!c->pool) rc = lk_fail(e, LK_ENOMEM, "cpu: cannot start %d threads", threads);
    }
    if (rc) {
        cpu_close(&c->base);
        return rc;
    }
    c->threads = lk_pool_threads(c->pool);
    *out = &c->base;
    return 0;
}
