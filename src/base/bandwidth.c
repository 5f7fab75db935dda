/* Memory bandwidth: see bandwidth.h. One part a thread, as STREAM does it: a C library stores past the caches only in long
 * copies, so copies of small slices read what they overwrite and look a third slower. */
#include "base/bandwidth.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t vec __attribute__((vector_size(32)));

struct pass {
    char *a, *b;
    size_t each;    /* bytes of a part */
    uint64_t *sums; /* one a part: keeps the loads alive */
};

/* Four places at once, two loads of 32 bytes at each: a core's prefetchers follow several streams, and with one alone a weight kernel, which
 * reads a few rows side by side, would pass the "bound" by 5 %. */
static uint64_t part_sum(const char *p, size_t bytes)
{
    size_t quarter = bytes / 4 / sizeof(vec);
    const vec *v = (const vec *)p;
    vec s[8] = {{0}};
    for (size_t i = 0; i + 2 <= quarter; i += 2)
        for (size_t j = 0; j < 8; j++) s[j] += v[j / 2 * quarter + i + j % 2];
    vec t = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
    return t[0] ^ t[1] ^ t[2] ^ t[3];
}

static void part_fill(void *arg, int part, int worker)
{
    struct pass *p = arg;
    memset(p->a + (size_t)part * p->each, part, p->each);
    memset(p->b + (size_t)part * p->each, 1, p->each);
}

static void part_read(void *arg, int part, int worker)
{
    struct pass *p = arg;
    p->sums[part] += part_sum(p->a + (size_t)part * p->each, p->each);
}

static void part_copy(void *arg, int part, int worker)
{
    struct pass *p = arg;
    memcpy(p->b + (size_t)part * p->each, p->a + (size_t)part * p->each, p->each);
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double pass_median(struct lk_pool *pool, int parts, lk_pool_fn fn, struct pass *p, int repeat, double *fastest)
{
    double t[32];
    if (repeat > 32) repeat = 32;
    lk_pool_run(pool, parts, fn, p); /* warm: page tables and clocks */
    for (int i = 0; i < repeat; i++) {
        double t0 = lk_clock();
        lk_pool_run(pool, parts, fn, p);
        t[i] = lk_clock() - t0;
    }
    qsort(t, (size_t)repeat, sizeof *t, double_compare);
    *fastest = t[0];
    return t[repeat / 2];
}

/* A quarter GB, or twice the last cache: on a host with 300 MB of it a quarter GB mostly stays there. Passes of a few milliseconds would time how
 * threads wake up, so each thread gets 32 MB at least. */
static size_t bytes_enough(int parts)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t n = (size_t)256 << 20, own = (size_t)parts << 25;
    if (cache > 0 && 2 * (size_t)cache > n) n = 2 * (size_t)cache;
    if (own > n) n = own;
    return n < (size_t)1 << 30 ? n : (size_t)1 << 30;
}

int lk_bandwidth_measure(struct lk_pool *pool, size_t bytes, int repeat, struct lk_bandwidth *out)
{
    int parts = lk_pool_threads(pool), rc = LK_ENOMEM;
    size_t each = (bytes ? bytes : bytes_enough(parts)) / (size_t)parts / 4096 * 4096 + 4096, all = (size_t)parts * each;
    struct pass p = {lk_aligned(all), lk_aligned(all), each, lk_calloc((size_t)parts, sizeof *p.sums)};
    if (p.a && p.b && p.sums) {
        lk_pool_run(pool, parts, part_fill, &p);
        double fastest;
        out->read_gbs = (double)all / pass_median(pool, parts, part_read, &p, repeat, &fastest) * 1e-9;
        out->read_best_gbs = (double)all / fastest * 1e-9;
        out->copy_gbs = 2 * (double)all / pass_median(pool, parts, part_copy, &p, repeat, &fastest) * 1e-9;
        rc = 0;
    }
    lk_free(p.a);
    lk_free(p.b);
    lk_free(p.sums);
    return rc;
}
