/* Speed of the linears on a card, by shape of the 27B, format and rows: microseconds a launch inside a captured graph, GB/s, the share of
 * the card's own read bandwidth measured just before, and the cost against one row. CSV on stdout.
 *   bench_cuda [--device N] [--image sm_70] [--only TEXT] [--rows 1,2,4,8,16]
 * Every shape is loaded several times and used in turn, so that nothing comes from the L2. Weights are random codes. */
#include "base/log.h"
#include "base/mem.h"
#include "cuda/cuda_dev.h"
#include "dev/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LK_CUDA

#define REPEATS 11
#define COPIES_BYTES 500e6
#define MAX_COPIES 24

static const struct shape {
    const char *name;
    enum lk_fmt fmt;
    int n, k, glu, group;
} shapes[] = {
    {"gate_up", LK_FMT_NVFP4, 17408, 5120, 1, 16}, {"down", LK_FMT_NVFP4, 5120, 17408, 0, 16},
    {"gate_up", LK_FMT_FP8, 17408, 5120, 1, 0},    {"down", LK_FMT_FP8, 5120, 17408, 0, 0},
    {"gdn_in", LK_FMT_FP8, 16384, 5120, 0, 0},     {"attn_in", LK_FMT_FP8, 14336, 5120, 0, 0},
    {"out", LK_FMT_FP8, 5120, 6144, 0, 0},         {"out128", LK_FMT_FP8, 5120, 6144, 0, 128},
    {"head", LK_FMT_I8, 248320, 5120, 0, 5120},    {"ab", LK_FMT_BF16, 96, 5120, 0, 0},
    {"attn_in", LK_FMT_BF16, 14336, 5120, 0, 0},   {"gate_up", LK_FMT_Q4, 17408, 5120, 1, 64},
    {"down", LK_FMT_Q4, 5120, 17408, 0, 64},       {"down/2", LK_FMT_NVFP4, 5120, 8704, 0, 16},
    {"gate_up/2", LK_FMT_NVFP4, 8704, 5120, 1, 16}, {"out/2", LK_FMT_FP8, 5120, 3072, 0, 0},
};

struct bench {
    struct lk_dev *d;
    unsigned char *host; /* random bytes, used as codes of every weight */
    size_t host_bytes;
    float *scales;
    void *x, *y;
    double read_gbs;
    const int *rows;
    int n_rows;
};

static uint32_t rnd(void)
{
    static uint64_t s = 88172645463325252u;
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return (uint32_t)(s >> 32);
}

static struct lk_weight weight(struct bench *b, const struct shape *s)
{
    struct lk_weight w = {.fmt = s->fmt, .n = s->n, .k = s->k, .data = b->host, .scale = b->scales, .scale_dtype = LK_DT_F32, .group = s->group, .global = 1e-4f};
    if (s->fmt == LK_FMT_FP8) w.block_n = s->group ? s->group : 1, w.block_k = s->group ? s->group : s->k;
    if (s->fmt == LK_FMT_NVFP4) w.scale = b->host;
    return w;
}

static double time_rows(struct bench *b, struct lk_mat **m, int copies, const struct shape *s, int T, int launches)
{
    struct cu_dev *d = cu_of(b->d);
    CUevent ev[2];
    double us[REPEATS];
    for (int i = 0; i < 2; i++) d->drv->event_create(&ev[i], CU_EVENT_DEFAULT);
    double warm = lk_clock() + (T == b->rows[0] ? 0.4 : 0.05); /* loading left the card idle: its clocks need this long */
    for (int r = 0; r < REPEATS; r += lk_clock() > warm) {
        float ms = 0;
        d->drv->event_record(ev[0], d->stream);
        if (!b->d->graph_begin(b->d, (uint64_t)T)) {
            for (int i = 0; i < launches; i++) {
                const struct lk_mat *w = m[i % copies];
                struct lk_linear_args a = {.w = w, .x = b->x, .y = b->y, .T = T, .ldy = s->n};
                struct lk_gate_up_args g = {.w = w, .x = b->x, .out = b->y, .T = T};
                if (s->glu)
                    b->d->ops->gate_up(b->d, &g);
                else
                    b->d->ops->linear(b->d, &a);
            }
            b->d->graph_end(b->d);
        }
        d->drv->event_record(ev[1], d->stream);
        d->drv->event_sync(ev[1]);
        d->drv->event_ms(&ms, ev[0], ev[1]);
        us[r] = ms * 1e3 / launches;
    }
    b->d->graph_reset(b->d);
    for (int i = 0; i < 2; i++) d->drv->event_destroy(ev[i]);
    for (int i = 1; i < REPEATS; i++)
        for (int j = i; j && us[j] < us[j - 1]; j--) {
            double t = us[j];
            us[j] = us[j - 1], us[j - 1] = t;
        }
    return us[REPEATS / 2];
}

static int run_shape(struct bench *b, const struct shape *s, struct lk_err *e)
{
    struct lk_mat *m[MAX_COPIES] = {0};
    struct lk_weight w[2] = {weight(b, s), weight(b, s)};
    int copies = 1, rc = 0;
    for (int i = 0; i < copies && !rc; i++) {
        rc = b->d->mat_load(b->d, s->glu ? LK_MAT_GATE_UP : LK_MAT_STACK, w, 1 + s->glu, &m[i], e);
        if (!rc && !i) copies = 1 + (int)(COPIES_BYTES / (double)lk_mat_head(m[0])->bytes);
        if (copies > MAX_COPIES) copies = MAX_COPIES;
    }
    double one = 0;
    for (int i = 0; i < b->n_rows && !rc; i++) {
        double us = time_rows(b, m, copies, s, b->rows[i], copies < 12 ? copies * 4 : copies * 2), gbs = (double)lk_mat_head(m[0])->bytes / us / 1e3;
        if (!i) one = us;
        printf("%s,%s,%d,%d,%d,%.2f,%.0f,%.3f,%.3f\n", s->name, lk_fmt_info(s->fmt)->name, s->n, s->k, b->rows[i], us, gbs, gbs / b->read_gbs, us / one);
        rc = b->d->sync(b->d, e);
    }
    for (int i = 0; i < copies; i++) b->d->mat_free(b->d, m[i]);
    return rc;
}

static int prepare(struct bench *b, struct lk_err *e)
{
    b->host_bytes = (size_t)248320 * 5120;
    b->host = lk_malloc(b->host_bytes);
    b->scales = lk_malloc((size_t)2 << 20 << 3);
    uint16_t *x = lk_malloc(32 * 17408 * 2);
    if (!b->host || !b->scales || !x) return lk_fail(e, LK_ENOMEM, "no memory");
    for (size_t i = 0; i < b->host_bytes; i += 4) {
        uint32_t v = rnd() & 0x77777777u; /* no NaN code of e4m3 */
        memcpy(b->host + i, &v, 4);
    }
    for (size_t i = 0; i < (size_t)4 << 20; i++) b->scales[i] = 1e-3f * (float)(1 + rnd() % 7);
    for (size_t i = 0; i < 32 * 17408; i++) x[i] = (uint16_t)(0x2c00 | (rnd() & 0x83ff));
    b->x = b->d->alloc(b->d, 32 * 17408 * 2, "x");
    b->y = b->d->alloc(b->d, (size_t)32 * 248320 * 4, "y");
    if (!b->x || !b->y) return lk_fail(e, LK_ENOMEM, "no device memory");
    b->d->upload(b->d, b->x, x, 32 * 17408 * 2);
    lk_free(x);
    return 0;
}

int main(int argc, char **argv)
{
    static int rows[8] = {1, 2, 4, 8, 16};
    struct bench b = {.rows = rows, .n_rows = 5};
    struct lk_err e = {0};
    struct lk_gpu_measure g;
    const char *only = NULL, *image = NULL;
    int index = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) index = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--only")) only = argv[i + 1];
        if (!strcmp(argv[i], "--image")) image = argv[i + 1];
        if (!strcmp(argv[i], "--rows")) {
            b.n_rows = 0;
            for (char *p = argv[i + 1]; p && b.n_rows < 8; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) rows[b.n_rows++] = atoi(p);
        }
    }
    int rc = lk_cuda_measure(index, &g, &e);
    if (!rc) rc = lk_cuda_open(&b.d, index, image, &e);
    if (!rc) rc = prepare(&b, &e);
    b.read_gbs = g.read_gbs;
    if (!rc) printf("# %s: read %.0f GB/s, copy %.0f GB/s, f16 product %.0f TFLOP/s, launch %.2f us, graph node %.2f us\n", cu_of(b.d)->name, g.read_gbs, g.copy_gbs, g.fp16_tflops, g.launch_us, g.graph_us);
    if (!rc) printf("shape,format,n,k,rows,us,gbs,share,against_one_row\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !rc; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s %s", shapes[i].name, lk_fmt_info(shapes[i].fmt)->name);
        if (!only || strstr(key, only)) rc = run_shape(&b, &shapes[i], &e);
    }
    if (rc) fprintf(stderr, "%s\n", e.text);
    return rc != 0;
}

#else
int main(void)
{
    fprintf(stderr, "bench_cuda: built without GPU code; `make CUDA=1`\n");
    return 0;
}
#endif
