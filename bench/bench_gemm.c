/* Prefill products against OpenBLAS sgemm on the same shapes in the same run, alternating, medians of 5: bench_gemm [THREADS].
 * OpenBLAS (Debian package libopenblas0) is opened at run time and multiplies f32 weights; ours reads the weights in their own format.
 * Shapes are the 0.8B's: hidden 1,024, MLP 3,584, 512 rows. */
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/sort.h"
#include "dev/ops.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                         float beta, float *c, int ldc);
/* OpenBLAS's workers go on spinning for tens of milliseconds after a product: whoever is timed next shares a core with them, and on two
 * cores lost half its speed (0.57 where 1.1 is true). So both sides start after a pause that lets every spinner fall asleep. */
enum { SETTLE_NS = 250000000 };
enum { T = 512, REPEAT = 5, ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

static double timed_start(void)
{
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
    return lk_clock();
}

static float noise(uint64_t i)
{
    i = (i + 1) * 0x9e3779b97f4a7c15ull;
    return (float)((double)(i >> 40) / (1 << 24) - 0.5);
}

static sgemm_fn sgemm_open(int threads)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    void *f = lib ? dlsym(lib, "cblas_sgemm") : NULL, *set = lib ? dlsym(lib, "openblas_set_num_threads") : NULL;
    sgemm_fn sgemm = NULL;
    void (*set_threads)(int) = NULL;
    memcpy(&sgemm, &f, sizeof f);
    memcpy(&set_threads, &set, sizeof set);
    if (set_threads) set_threads(threads);
    return sgemm;
}

static void shape_run(struct lk_dev *d, sgemm_fn sgemm, int n, int k)
{
    float *w = lk_aligned((size_t)n * k * 4), *x = lk_aligned((size_t)T * k * 4), *y = lk_aligned((size_t)T * n * 4);
    uint16_t *wb = lk_aligned((size_t)n * k * 2);
    struct lk_err e = {0};
    struct lk_mat *m = NULL;
    double ours[REPEAT], theirs[REPEAT], flops = 2.0 * T * n * k;
    if (!w || !x || !y || !wb) return;
    for (size_t i = 0; i < (size_t)n * k; i++) {
        wb[i] = lk_f32_to_bf16(noise(i));
        w[i] = lk_bf16_to_f32(wb[i]);
    }
    for (size_t i = 0; i < (size_t)T * k; i++) x[i] = noise(i + 7777);
    struct lk_weight lw = {.fmt = LK_FMT_BF16, .n = n, .k = k, .data = wb, .global = 1};
    if (d->mat_load(d, LK_MAT_STACK, &lw, 1, &m, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    struct lk_linear_args a = {.w = m, .x = x, .y = y, .T = T, .ldy = n};
    for (int i = -1; i < REPEAT; i++) {
        double t0 = timed_start();
        d->ops->linear(d, &a);
        double t1 = lk_clock(), t2 = timed_start();
        if (sgemm) sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, T, n, k, 1, x, k, w, k, 0, y, n);
        double t3 = lk_clock();
        if (i >= 0) ours[i] = t1 - t0, theirs[i] = t3 - t2;
    }
    lk_sort_doubles(ours, REPEAT);
    lk_sort_doubles(theirs, REPEAT);
    double go = flops / ours[REPEAT / 2] * 1e-9, gt = sgemm ? flops / theirs[REPEAT / 2] * 1e-9 : 0;
    printf("  %d x %d x %d: laoka bf16 %.1f GFLOP/s", T, n, k, go);
    if (sgemm) printf(", OpenBLAS sgemm %.1f GFLOP/s, ratio %.2f", gt, go / gt);
    printf("\n");
    d->mat_free(d, m);
    lk_free(w);
    lk_free(x);
    lk_free(y);
    lk_free(wb);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : lk_cores();
    struct lk_dev *d;
    struct lk_err e = {0};
    if (lk_cpu_open(&d, threads, NULL, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    struct lk_dev_need need = {.hidden = 1024, .inter = 3584, .n_q = 8, .n_kv = 2, .head_dim = 256, .rope_dim = 64, .hk = 16, .hv = 16,
                               .gdn_dim = 128, .conv_k = 4, .vocab = 8192, .max_rows = T, .max_lanes = 1};
    if (d->check(d, &need, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    sgemm_fn sgemm = sgemm_open(threads);
    printf("prefill products, %d thread%s%s\n", threads, threads == 1 ? "" : "s", sgemm ? "" : " (no libopenblas.so.0: install libopenblas0 to compare)");
    shape_run(d, sgemm, 3584, 1024);
    shape_run(d, sgemm, 1024, 3584);
    shape_run(d, sgemm, 6144, 1024);
    d->close(d);
    return 0;
}
