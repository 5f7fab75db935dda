/* bandwidth: how large the buffers are on small and large machines, what a hiccup does to the figures, caches counted once, no memory. */
#include "base/bandwidth.h"
#include "base/err.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MB ((size_t)1 << 20)

static void buffers_pass_the_caches_and_leave_memory(void **state)
{
    static const struct {
        size_t cache;
        int threads;
        size_t free, want;
    } c[] = {
        {0, 1, 16384 * MB, 64 * MB},           /* no cache known */
        {8 * MB, 1, 16384 * MB, 64 * MB},      /* four times 8 MB is less than the least */
        {32 * MB, 2, 16384 * MB, 128 * MB},    /* four times the caches */
        {300 * MB, 32, 131072 * MB, 1200 * MB},
        {8 * MB, 16, 16384 * MB, 512 * MB},    /* 32 MB a thread */
        {768 * MB, 192, 1048576 * MB, 6144 * MB},
        {300 * MB, 1, 2048 * MB, 256 * MB},    /* little memory: both buffers take a quarter of it */
        {32 * MB, 4, 0, 64 * MB},              /* free memory not known */
        {SIZE_MAX, 1, 16384 * MB, 64 * MB},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) assert_int_equal(lk_bandwidth_bytes(c[i].cache, c[i].threads, c[i].free), c[i].want);
}

static void hiccups_move_the_median_at_most(void **state)
{
    double best, median, s[] = {0.020, 0.0025, 0.050, 0.0025, 0.004}, one[] = {0.5};
    lk_bandwidth_of(s, 5, 1e7, &best, &median);
    assert_true(best > 3.9999 && best < 4.0001); /* 10 MB in 2.5 ms */
    assert_true(median > 2.4999 && median < 2.5001);
    lk_bandwidth_of(one, 1, 1e9, &best, &median);
    assert_true(best == 2 && median == 2);
}

static void put(const char *root, int cpu, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/cpu%d", root, cpu), mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%d/cache", root, cpu), mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%d/cache/index3", root, cpu), mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%d/cache/index3/%s", root, cpu, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_shared_cache_counts_once(void **state)
{
    char root[] = "/tmp/laoka-cachesXXXXXX", rm[64];
    assert_non_null(mkdtemp(root));
    assert_int_equal(lk_cache_bytes(root), 0);
    for (int i = 0; i < 4; i++) {
        put(root, i, "shared_cpu_list", i % 2 ? "1,3\n" : "0,2\n");
        put(root, i, "size", "32768K\n");
    }
    assert_int_equal(lk_cache_bytes(root), 64 * MB);
    put(root, 9, "shared_cpu_list", "9-11\n"); /* a hole in the numbers; a size that is none */
    put(root, 9, "size", "nonsense\n");
    assert_int_equal(lk_cache_bytes(root), 64 * MB);
    snprintf(rm, sizeof rm, "rm -r %s", root);
    assert_int_equal(system(rm), 0);
}

static void measured_in_bounds(void **state)
{
    struct lk_pool *p = lk_pool_new(2);
    struct lk_bandwidth w = {0};
    assert_non_null(p);
    assert_int_equal(lk_bandwidth_measure(p, 0, &w), 0);
    assert_int_equal(w.passes, 3); /* no time: the least */
    assert_true(w.read_gbs > 0 && w.read_best_gbs >= w.read_gbs);
    assert_true(w.copy_gbs > 0 && w.copy_best_gbs >= w.copy_gbs);
    assert_true(w.bytes >= 2 * 4096 && w.bytes <= lk_mem_available());
    for (int i = 1; i <= 3; i++) {
        lk_mem_fail_at(i);
        assert_int_equal(lk_bandwidth_measure(p, 0, &w), LK_ENOMEM);
    }
    lk_mem_fail_at(0);
    lk_pool_free(p);
}

static void free_memory_is_known(void **state)
{
    size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), n = lk_mem_available();
    assert_true(n > 0 && n <= all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_pass_the_caches_and_leave_memory), cmocka_unit_test(hiccups_move_the_median_at_most),
        cmocka_unit_test(a_shared_cache_counts_once),               cmocka_unit_test(measured_in_bounds),
        cmocka_unit_test(free_memory_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
