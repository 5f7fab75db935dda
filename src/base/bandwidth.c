/* Memory bandwidth: see bandwidth.h. One part a thread, as STREAM does it: a C library stores past the caches only in long
 * copies, so copies of small slices read what they overwrite and look a third slower. */
#include "base/bandwidth.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t vec __attribute__((vector_size(32)));

struct pass {
    char *a, *b;
    size_t each;    /* bytes of a part */
    uint64_t *sums; /* one a part: keeps the loads alive */
};

/* 8 independent streams of 32 bytes: enough loads in flight to fill the line buffers of one core */
static uint64_t part_sum(const char *p, size_t bytes)
{
    const vec *v = (const vec *)p;
    vec s[8] = {{0}};
    for (size_t i = 0; i < bytes / sizeof(vec); i += 8)
        for (int j = 0; j < 8; j++) s[j] += v[i + (size_t)j];
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

static double pass_median(struct lk_pool *pool, int parts, lk_pool_fn fn, struct pass *p, int repeat)
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
    return t[repeat / 2];
}

int lk_bandwidth_measure(struct lk_pool *pool, size_t bytes, int repeat, struct lk_bandwidth *out)
{
    int parts = lk_pool_threads(pool), rc = LK_ENOMEM;
    size_t each = (bytes ? bytes : (size_t)256 << 20) / (size_t)parts / 4096 * 4096 + 4096, all = (size_t)parts * each;
    struct pass p = {lk_aligned(all), lk_aligned(all), each, lk_calloc((size_t)parts, sizeof *p.sums)};
    if (p.a && p.b && p.sums) {
        lk_pool_run(pool, parts, part_fill, &p);
        out->read_gbs = (double)all / pass_median(pool, parts, part_read, &p, repeat) * 1e-9;
        out->copy_gbs = 2 * (double)all / pass_median(pool, parts, part_copy, &p, repeat) * 1e-9;
        rc = 0;
    }
    lk_free(p.a);
    lk_free(p.b);
    lk_free(p.sums);
    return rc;
}
