/* Times the op cases that are marked for it, on a device named on the command line:
 *   bench_ops [--device cpu|avx2|cuda:N] [--image NAME] [--threads N] [--only TEXT] [--seconds S]
 * --cpu-time 1: processor time of one thread instead of the clock, for a machine that others use
 * too. A line a case: microseconds (median of rounds), GB/s of what must be read and its share of
 * this device's read bandwidth (CPU: measured here by base/bandwidth.c with the same threads),
 * GFLOP/s. */
#include "base/bandwidth.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cases/cases.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double read_bandwidth(int threads)
{
    struct lk_pool *pool = lk_pool_new(threads);
    struct lk_bandwidth bw = {0};
    if (pool) lk_bandwidth_measure(pool, 0, 7, &bw);
    lk_pool_free(pool);
    return bw.read_gbs * 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int cpu_time; /* with one thread only: the pool's waiting counts too */

static double now(void)
{
    struct timespec t;
    if (!cpu_time) return lk_clock();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double time_case(struct op_run *r, double seconds)
{
    enum { ROUNDS = 9 };
    double t[ROUNDS], one = 0;
    for (int warm = 0; warm < 2; warm++) {
        double t0 = now();
        r->c->f->issue(r);
        r->d->sync(r->d, NULL);
        one = now() - t0;
    }
    int n = (int)(seconds / ROUNDS / (one > 1e-7 ? one : 1e-7));
    if (n < 1) n = 1;
    for (int i = 0; i < ROUNDS; i++) {
        double t0 = now();
        for (int k = 0; k < n; k++) r->c->f->issue(r);
        r->d->sync(r->d, NULL);
        t[i] = (now() - t0) / n;
    }
    qsort(t, ROUNDS, sizeof *t, by_value);
    return t[ROUNDS / 2];
}

static void bench_case(const struct op_case *c, struct lk_dev *d, double bandwidth, double seconds)
{
    struct op_run r;
    double bytes, flops;
    ot_run_begin(&r, c, d);
    if (!r.failed) {
        double t = time_case(&r, seconds);
        c->f->cost(c, &bytes, &flops);
        printf("%-64s %10.1f us %7.2f GB/s", c->name, t * 1e6, bytes / t / 1e9);
        if (bandwidth > 0) printf(" %5.1f %%", 100 * bytes / t / bandwidth);
        printf(" %9.1f GFLOP/s\n", flops / t / 1e9);
    }
    ot_run_end(&r);
}

int main(int argc, char **argv)
{
    const char *device = "cpu", *image = NULL, *only = NULL;
    int threads = 0;
    double seconds = 0.5;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--device")) device = v;
        if (!strcmp(argv[i], "--image")) image = v;
        if (!strcmp(argv[i], "--only")) only = v;
        if (!strcmp(argv[i], "--threads")) threads = atoi(v);
        if (!strcmp(argv[i], "--seconds")) seconds = atof(v);
        if (!strcmp(argv[i], "--cpu-time")) cpu_time = atoi(v);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cpu_time) threads = 1;
    struct op_table table;
    struct lk_dev *d;
    struct lk_dev_info info;
    struct lk_err e = {0};
    if (ot_table_all(&table) < 1 || ot_open(&d, device, image, threads, &e)) {
        fprintf(stderr, "bench_ops: %s\n", e.text);
        return 1;
    }
    d->info(d, &info);
    double bandwidth = info.is_cuda ? 0 : read_bandwidth(threads);
    printf("%s, read bandwidth %.1f GB/s\n", info.name, bandwidth / 1e9);
    for (int i = 0; i < table.n; i++)
        if ((table.v[i].use & OP_BENCH) && (!only || strstr(table.v[i].name, only)))
            bench_case(table.v + i, d, bandwidth, seconds);
    d->close(d);
    ot_table_free(&table);
    return 0;
}
