/* Times attention, the gated delta net and sampling of the CUDA backend at the 27B's shapes: microseconds an op from a
 * captured graph (so without launch cost from the host), then the share of each kernel. Prints one CSV line a case:
 *   bench_cuda_ops [--device N] [--image sm_70] [--only TEXT] [--tp N]
 * op, case, us an op, GB it must move, GB/s, TFLOP/s. Caches are random and larger than the L2; short cases rotate. */
#include "base/mem.h"
#include "base/num.h"
#include "cuda/cuda_dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_Q = 24, N_KV = 4, HK = 16, HV = 48, VOCAB = 248320, MAX_ROWS = 4096, GDN_LAYERS = 8 };

struct bench {
    struct lk_dev *d;
    const char *only;
    int n_q, n_kv, hk, hv;
    uint64_t key;
    float *proj; /* [MAX_ROWS][ld], random */
    int ld;
    void *out, *kv[3];
    float *consts, *logits;
    uint8_t *section;
    int32_t *rope, *pages, *ids;
    struct lk_lane *lanes;
    float *state, *conv;
    void *record;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what, const struct lk_err *e)
{
    fprintf(stderr, "bench_cuda_ops: %s: %s\n", what, e ? e->text : "out of memory");
    exit(1);
}

static void *alloc(struct bench *b, size_t bytes)
{
    void *p = b->d->alloc(b->d, bytes, "bench");
    if (!p) die("device memory", NULL);
    return p;
}

static float noise(void)
{
    static uint64_t s = 88172645463325252u;
    float x = 0;
    for (int i = 0; i < 3; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        x += (float)(s >> 40) * 0x1p-24f;
    }
    return (x - 1.5f) * 2;
}

/* n floats of noise, made of one block of up to 1M and copies of it */
static float *random_f32(struct bench *b, size_t n)
{
    size_t block = n < 1u << 20 ? n : 1u << 20;
    float *h = lk_malloc(block * 4), *p = alloc(b, n * 4);
    if (!h) die("memory", NULL);
    for (size_t i = 0; i < block; i++) h[i] = noise();
    b->d->upload(b->d, p, h, block * 4);
    lk_free(h);
    for (size_t at = block; at < n; at += block)
        b->d->copy(b->d, p + at, p, (n - at < block ? n - at : block) * 4);
    return p;
}

static void *random_kv(struct bench *b, enum lk_kv_kind kind, int pages)
{
    size_t bytes = lk_kv_page_bytes(kind, b->n_kv), half = lk_kv_half_bytes(kind, b->n_kv);
    size_t elems = (size_t)b->n_kv * LK_PAGE * LK_HEAD;
    int block = 16;
    char *h = lk_malloc(bytes * (size_t)block), *p = alloc(b, bytes * (size_t)pages);
    if (!h) die("memory", NULL);
    for (int i = 0; i < 2 * block; i++) {
        char *q = h + (size_t)i * half;
        for (size_t j = 0; j < elems; j++) {
            float v = noise();
            uint16_t w = lk_f32_to_bf16(v);
            if (kind == LK_KV_I8) q[j] = (char)(int8_t)(v * 40);
            if (kind == LK_KV_BF16) memcpy(q + 2 * j, &w, 2);
        }
        for (size_t j = 0; kind == LK_KV_I8 && j < elems / LK_KV_GROUP; j++) {
            uint16_t s = lk_f32_to_f16(0.02f + (float)(j % 7) * 0.001f);
            memcpy(q + elems + 2 * j, &s, 2);
        }
    }
    for (int i = 0; i < pages; i += block) {
        int n = pages - i < block ? pages - i : block;
        if (i)
            b->d->copy(b->d, p + (size_t)i * bytes, p, bytes * (size_t)n);
        else
            b->d->upload(b->d, p, h, bytes * (size_t)n);
    }
    lk_free(h);
    return p;
}

/* One captured graph of `reps` ops, replayed until 60 ms have passed; microseconds an op. */
static double time_op(struct bench *b, void (*issue)(struct bench *, void *, int), void *arg, int reps)
{
    struct lk_err e = {0};
    uint64_t key = ++b->key;
    double best = 1e30, t0 = now();
    for (int i = 0; i < reps; i++) issue(b, arg, i); /* raises limits, warms */
    if (b->d->sync(b->d, &e)) die("op", &e);
    for (int i = 0; i < 12 && (i < 4 || now() - t0 < 0.12); i++) {
        double t = now();
        if (!b->d->graph_begin(b->d, key)) {
            for (int j = 0; j < reps; j++) issue(b, arg, j);
            b->d->graph_end(b->d);
        }
        if (b->d->sync(b->d, &e)) die("graph", &e);
        t = now() - t;
        if (i >= 2 && t < best) best = t;
    }
    return best / reps * 1e6;
}

static void kernels(struct bench *b, void (*issue)(struct bench *, void *, int), void *arg)
{
    struct cu_prof_row rows[16];
    struct lk_err e = {0};
    if (cu_prof_on(b->d, &e)) die("profile", &e);
    for (int i = 0; i < 3; i++) issue(b, arg, i);
    cu_prof_read(b->d, rows, 16);
    for (int i = 0; i < 5; i++) issue(b, arg, i);
    int n = cu_prof_read(b->d, rows, 16);
    for (int i = 0; i < n; i++) printf("#   %-22s %9.2f us\n", rows[i].name, rows[i].ms * 1000 / (double)rows[i].calls);
    cu_prof_off(b->d);
}

static void report(struct bench *b, const char *op, const char *name, double us, double bytes, double flops)
{
    printf("%s,%s,%.2f,%.4f,%.0f,%.1f\n", op, name, us, bytes * 1e-9, bytes / us * 1e-3, flops / us * 1e-6);
}

/* ---- attention ---- */

static void attn_issue(struct bench *b, void *arg, int i)
{
    b->d->ops->attn(b->d, arg);
}

static void set_lanes(struct bench *b, int lanes, int rows, int pos0)
{
    struct lk_lane l[16] = {{0}};
    for (int i = 0; i < lanes; i++) l[i] = (struct lk_lane){.row0 = i * rows, .rows = rows, .pos0 = pos0, .slot = i, .keep = rows};
    b->d->upload(b->d, b->lanes, l, sizeof l);
}

static void bench_attn(struct bench *b, enum lk_kv_kind kind, int ctx, int rows, int window)
{
    char name[64];
    static const char *const kinds[] = {"i8", "bf16", "f32"};
    snprintf(name, sizeof name, "attn-%s ctx%d T%d win%d", kinds[kind], ctx, rows, window);
    if (b->only && !strstr(name, b->only)) return;
    set_lanes(b, 1, rows, ctx - rows);
    struct lk_batch bt = {.n_rows = rows, .n_lanes = 1, .max_ctx = ctx, .rope = b->rope, .lanes = b->lanes, .pages = b->pages};
    struct lk_attn_args a = {.b = &bt, .proj = b->proj, .ld = b->ld, .q_norm = b->consts, .k_norm = b->consts, .eps = 1e-6f,
                             .n_q = b->n_q, .n_kv = b->n_kv, .rope_dim = 64, .inv_freq = b->consts + 1024,
                             .section = b->section, .kv_kind = kind, .kv = b->kv[kind], .window = window, .out = b->out};
    int keys = window && window < ctx ? window : ctx;
    double bytes = (double)keys * (double)lk_kv_page_bytes(kind, b->n_kv) / LK_PAGE;
    double flops = ((double)keys - 0.5 * rows) * rows * b->n_q * LK_HEAD * 4;
    double us = time_op(b, attn_issue, &a, rows > 16 ? 2 : 8);
    report(b, "attn", name, us, bytes, flops);
    kernels(b, attn_issue, &a);
}

/* ---- gated delta net ---- */

struct gdn_case {
    struct lk_gdn_args a;
    struct lk_gdn_fold_args f;
    float *state; /* of the layer folded */
    int fold;
};

static void gdn_issue(struct bench *b, void *arg, int i)
{
    struct gdn_case c = *(struct gdn_case *)arg;
    size_t layer = (size_t)(i % GDN_LAYERS) * 16 * (size_t)b->hv * 16384; /* more states than the L2 holds */
    c.a.state += layer;
    float *state = c.state + layer;
    c.f.state = &state;
    if (c.fold)
        b->d->ops->gdn_fold(b->d, &c.f);
    else
        b->d->ops->gdn(b->d, &c.a);
}

static void bench_gdn(struct bench *b, int rows, int lanes, enum lk_gdn_mode mode, int fold)
{
    char name[64];
    snprintf(name, sizeof name, "gdn-%s T%d lanes%d", fold ? "fold" : mode ? "record" : "run", rows, lanes);
    if (b->only && !strstr(name, b->only)) return;
    set_lanes(b, lanes, rows, 1000);
    struct lk_batch bt = {.n_rows = rows * lanes, .n_lanes = lanes, .max_ctx = 2000, .rope = b->rope, .lanes = b->lanes};
    struct gdn_case c = {.fold = fold};
    c.a = (struct lk_gdn_args){.b = &bt, .proj = b->proj, .ld = b->ld, .hk = b->hk, .hv = b->hv, .conv_w = b->consts,
                               .a_coef = b->consts + 50000, .dt_bias = b->consts + 51000, .norm_w = b->consts, .eps = 1e-6f,
                               .state = b->state, .conv = b->conv, .mode = mode, .record = b->record, .out = b->out};
    c.state = b->state;
    c.f = (struct lk_gdn_fold_args){.b = &bt, .hk = b->hk, .hv = b->hv, .n_layers = 1, .conv = &b->conv, .record = &b->record};
    double bytes = (double)lanes * b->hv * 65536.0 * (mode == LK_GDN_RECORD && !fold ? 1 : 2);
    double us = time_op(b, gdn_issue, &c, rows > 16 ? 2 : 16);
    report(b, "gdn", name, us, bytes, 7.0 * rows * lanes * b->hv * 16384);
    kernels(b, gdn_issue, &c);
}

/* ---- sampling ---- */

static void topk_issue(struct bench *b, void *arg, int i)
{
    b->d->ops->topk(b->d, arg);
}

static void argmax_issue(struct bench *b, void *arg, int i)
{
    const struct lk_topk_args *t = arg;
    b->d->ops->argmax(b->d, t->logits, t->T, t->n, t->ld, 0, t->ids, t->vals);
}

static void bench_topk(struct bench *b, int T, int k)
{
    char name[64];
    snprintf(name, sizeof name, "%s T%d k%d", k ? "topk" : "argmax", T, k);
    if (b->only && !strstr(name, b->only)) return;
    struct lk_topk_args a = {b->logits, T, VOCAB, VOCAB, k ? k : 1, 0, b->ids, b->consts + 60000, b->consts + 59000};
    void (*issue)(struct bench *, void *, int) = k ? topk_issue : argmax_issue;
    report(b, k ? "topk" : "argmax", name, time_op(b, issue, &a, 8), (double)T * VOCAB * 4, 0);
    kernels(b, issue, &a);
}

static void setup(struct bench *b, int index, const char *image, int tp)
{
    struct lk_err e = {0};
    if (lk_cuda_open(&b->d, index, image, &e)) die("open", &e);
    b->n_q = N_Q / tp, b->n_kv = N_KV / tp, b->hk = HK / tp, b->hv = HV / tp;
    struct lk_dev_need need = {.hidden = 5120, .inter = 17408 / tp, .n_q = b->n_q, .n_kv = b->n_kv, .head_dim = 256,
                               .rope_dim = 64, .hk = b->hk, .hv = b->hv, .gdn_dim = 128, .conv_k = 4, .vocab = VOCAB,
                               .max_rows = MAX_ROWS, .max_lanes = 16};
    if (b->d->check(b->d, &need, &e)) die("check", &e);
    b->ld = 16480;
    b->proj = random_f32(b, (size_t)MAX_ROWS * (size_t)b->ld);
    b->consts = random_f32(b, 70000);
    b->logits = random_f32(b, 16 * (size_t)VOCAB);
    b->out = alloc(b, (size_t)MAX_ROWS * 6144 * 2);
    b->rope = alloc(b, 3 * MAX_ROWS * 4);
    b->section = alloc(b, 32);
    b->lanes = alloc(b, 16 * sizeof *b->lanes);
    b->ids = alloc(b, 16 * 256 * 4);
    b->state = alloc(b, (size_t)GDN_LAYERS * 16 * (size_t)b->hv * 65536);
    b->conv = alloc(b, (size_t)16 * 3 * 10240 * 4);
    b->record = alloc(b, lk_gdn_record_bytes(b->hk, b->hv) * 64);
    int n = LK_PAGE * 4096 / LK_PAGE;
    int32_t *pages = lk_malloc((size_t)n * 4);
    if (!pages) die("memory", NULL);
    for (int i = 0; i < n; i++) pages[i] = (int32_t)((unsigned)i * 2731u % (unsigned)n); /* scattered */
    b->pages = alloc(b, (size_t)n * 4);
    b->d->upload(b->d, b->pages, pages, (size_t)n * 4);
    lk_free(pages);
    b->kv[LK_KV_I8] = random_kv(b, LK_KV_I8, n);
    b->kv[LK_KV_BF16] = random_kv(b, LK_KV_BF16, n);
    if (b->d->sync(b->d, &e)) die("setup", &e);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    const char *image = NULL;
    int index = 0, tp = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) index = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--image")) image = argv[i + 1];
        if (!strcmp(argv[i], "--only")) b.only = argv[i + 1];
        if (!strcmp(argv[i], "--tp")) tp = atoi(argv[i + 1]);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    setup(&b, index, image, tp < 1 ? 1 : tp);
    printf("op,case,us,gb,gb_s,tflop_s\n");
    static const int ctx[] = {8192, 32768, 131072, 262144}, T[] = {1, 2, 4, 8, 16};
    for (int c = 0; c < 4; c++)
        for (int t = 0; t < 5; t++) bench_attn(&b, LK_KV_I8, ctx[c], T[t], 0);
    bench_attn(&b, LK_KV_I8, 262144, 1, 4096);
    for (int c = 0; c < 4; c += 2) bench_attn(&b, LK_KV_BF16, ctx[c], 1, 0), bench_attn(&b, LK_KV_BF16, ctx[c], 4, 0);
    bench_attn(&b, LK_KV_I8, 4096, 4096, 0);
    bench_attn(&b, LK_KV_I8, 8192, 4096, 0);
    bench_attn(&b, LK_KV_I8, 32768, 4096, 0);
    bench_attn(&b, LK_KV_I8, 131072, 4096, 0);
    bench_attn(&b, LK_KV_BF16, 32768, 4096, 0);
    for (int t = 0; t < 5; t++) bench_gdn(&b, T[t], 1, LK_GDN_RUN, 0), bench_gdn(&b, T[t], 1, LK_GDN_RECORD, 0);
    bench_gdn(&b, 4, 1, LK_GDN_RUN, 1);
    bench_gdn(&b, 1, 8, LK_GDN_RUN, 0);
    bench_gdn(&b, 512, 1, LK_GDN_RUN, 0);
    bench_gdn(&b, 4096, 1, LK_GDN_RUN, 0);
    bench_topk(&b, 1, 0), bench_topk(&b, 4, 0), bench_topk(&b, 1, 20), bench_topk(&b, 4, 20), bench_topk(&b, 4, 256);
    b.d->close(b.d);
    return 0;
}
