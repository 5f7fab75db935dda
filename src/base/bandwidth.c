/* Memory bandwidth: see bandwidth.h. One part a thread, as STREAM does it: a C library stores past the caches only in long
 * copies, so copies of small slices read what they overwrite and look a third slower. */
#include "base/bandwidth.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CPUS_MAX 4096

enum { STREAMS = 8, LINE = 64 };
typedef uint64_t vec __attribute__((vector_size(16)));

struct pass {
    char *a, *b;
    size_t each;    /* bytes of a part */
    uint64_t *sums; /* one a part: keeps the loads alive */
};

/* Eight places at once, a line at each: a core's prefetchers follow several streams. With one alone a weight kernel, which reads a few rows side by side,
 * would pass the "bound", and eight sums of 32 bytes, which spill, read 40 % less than these four in registers (Zen 3, one thread). */
static uint64_t part_sum(const char *p, size_t bytes)
{
    size_t apart = bytes / STREAMS / LINE * LINE;
    vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (size_t i = 0; i < apart; i += LINE)
        for (size_t k = 0; k < STREAMS; k++) {
            const vec *v = (const vec *)(p + k * apart + i);
            s0 += v[0], s1 += v[1], s2 += v[2], s3 += v[3];
        }
    vec t = s0 ^ s1 ^ s2 ^ s3;
    return t[0] ^ t[1];
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

void lk_bandwidth_of(double *s, int n, double bytes, double *best, double *median)
{
    lk_sort_doubles(s, (size_t)n);
    *best = bytes / s[0] * 1e-9;
    *median = bytes / s[n / 2] * 1e-9;
}

static int passes_time(struct lk_pool *pool, int parts, lk_pool_fn fn, struct pass *p, double seconds, double *s)
{
    int n = 0;
    lk_pool_run(pool, parts, fn, p); /* warm: page tables and clocks */
    for (double begin = lk_clock(), t0 = begin; n < LK_BANDWIDTH_PASSES && (n < 3 || t0 - begin < seconds); n++) {
        lk_pool_run(pool, parts, fn, p);
        double t = lk_clock();
        s[n] = t - t0;
        t0 = t;
    }
    return n;
}

/* What fmt says of the number in a file; dflt: no such file, no such number. */
static size_t file_number(const char *root, int cpu, const char *name, const char *fmt, size_t dflt)
{
    char path[256];
    size_t v;
    snprintf(path, sizeof path, "%.128s/cpu%d/cache/index3/%s", root, cpu, name);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, fmt, &v) != 1) v = dflt;
    if (f) fclose(f);
    return v;
}

size_t lk_cache_bytes(const char *cpus)
{
    const char *root = cpus ? cpus : "/sys/devices/system/cpu";
    long one = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t all = 0;
    for (int i = 0; i < CPUS_MAX; i++) /* a cache counts at the first of the processors that share it */
        if (file_number(root, i, "shared_cpu_list", "%zu", SIZE_MAX) == (size_t)i) {
            size_t kb = file_number(root, i, "size", "%zuK", 0);
            all += kb < (size_t)1 << 30 ? kb << 10 : 0;
        }
    return all || cpus || one < 0 ? all : (size_t)one;
}

/* STREAM's rule, four times the caches: at twice, half of a buffer may still be there when the next pass comes. Passes of a few milliseconds would
 * time how threads wake up, so each thread gets 32 MB at least. Both buffers stay within a quarter of what is free (64 MB each where
 * that is not known). */
size_t lk_bandwidth_bytes(size_t cache, int threads, size_t free)
{
    size_t n = (size_t)64 << 20, own = (size_t)threads << 25, most = free ? free / 8 : n;
    if (own > n) n = own;
    if (cache < SIZE_MAX / 4 && 4 * cache > n) n = 4 * cache;
    return n < most ? n : most;
}

int lk_bandwidth_measure(struct lk_pool *pool, double seconds, struct lk_bandwidth *out)
{
    int parts = lk_pool_threads(pool), rc = LK_ENOMEM;
    size_t each = lk_bandwidth_bytes(lk_cache_bytes(NULL), parts, lk_mem_available()) / (size_t)parts / 4096 * 4096 + 4096, all = (size_t)parts * each;
    struct pass p = {lk_aligned(all), lk_aligned(all), each, lk_calloc((size_t)parts, sizeof *p.sums)};
    if (p.a && p.b && p.sums) {
        double s[LK_BANDWIDTH_PASSES];
        lk_pool_run(pool, parts, part_fill, &p);
        int n = passes_time(pool, parts, part_read, &p, seconds, s);
        lk_bandwidth_of(s, n, (double)all, &out->read_best_gbs, &out->read_gbs);
        int m = passes_time(pool, parts, part_copy, &p, seconds, s);
        lk_bandwidth_of(s, m, 2 * (double)all, &out->copy_best_gbs, &out->copy_gbs);
        out->bytes = all;
        out->passes = n < m ? n : m;
        rc = 0;
    }
    lk_free(p.a);
    lk_free(p.b);
    lk_free(p.sums);
    return rc;
}
