/* base: number formats for every code, pool, buffers, allocation failure, atomic file writes. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static void num_round_trips(void **state)
{
    for (unsigned i = 0; i < 65536; i++) {
        float b = lk_bf16_to_f32((uint16_t)i), h = lk_f16_to_f32((uint16_t)i);
        if (b == b) assert_int_equal(lk_f32_to_bf16(b), i);
        if (h == h) assert_int_equal(lk_f32_to_f16(h), i);
    }
    for (unsigned i = 0; i < 256; i++) {
        float f = lk_e4m3_to_f32((uint8_t)i);
        if (f == f) assert_int_equal(lk_f32_to_e4m3(f), i);
    }
    assert_true(lk_e4m3_to_f32(0x7e) == 448.0f);
    assert_int_equal(lk_f32_to_e4m3(1e9f), 0x7e);
    assert_int_equal(lk_f32_to_e4m3(0x1p-10f), 0); /* tie to even: half of the least */
    assert_int_equal(lk_f32_to_e4m3(0x1.8p-9f), 2); /* 1.5 units ties to 2 */
    assert_int_equal(lk_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(lk_f32_to_f16(65520.0f), 0x7c00);
}

static void pool_add(void *arg, int part, int worker)
{
    atomic_fetch_add((atomic_long *)arg, part + 1);
}

static void pool_runs_every_part_once(void **state)
{
    for (int threads = 1; threads <= 4; threads++) {
        struct lk_pool *p = lk_pool_new(threads);
        assert_non_null(p);
        for (int rep = 0; rep < 300; rep++) {
            atomic_long sum = 0;
            lk_pool_run(p, 100, pool_add, &sum);
            assert_int_equal(atomic_load(&sum), 5050);
        }
        lk_pool_free(p);
    }
}

struct squares {
    int n, hit[64];
};

static void pool_square(void *arg, int part, int worker)
{
    struct squares *s = arg;
    for (volatile int i = 0; i < part % 7 * 50; i++) { } /* uneven parts: workers come and leave late */
    s->hit[part] += part * s->n;
}

/* Jobs on the stack, one after another without a pause, of every length, on more threads than cores: a worker that touches a job after it was
 * shut, or a part run twice, shows in the next job's numbers (and under ThreadSanitizer). */
static void pool_jobs_do_not_mix(void **state)
{
    struct lk_pool *p = lk_pool_new(7);
    assert_non_null(p);
    for (int rep = 1; rep < 3000; rep++) {
        struct squares s = {.n = rep};
        int n = 1 + rep * 37 % 64;
        lk_pool_run(p, n, pool_square, &s);
        for (int i = 0; i < 64; i++) assert_int_equal(s.hit[i], i < n ? i * rep : 0);
    }
    lk_pool_free(p);
}

static void buf_survives_no_memory(void **state)
{
    struct lk_buf b = {0};
    assert_int_equal(lk_buf_str(&b, "abc"), 0);
    lk_mem_fail_at(1);
    char big[4096] = {0};
    assert_int_not_equal(lk_buf_add(&b, big, sizeof big), 0);
    assert_true(b.failed);
    assert_string_equal(b.data, "abc");
    lk_mem_fail_at(0);
    lk_buf_reset(&b);
    lk_buf_fmt(&b, "%d-%s", 7, "x");
    assert_string_equal(b.data, "7-x");
    lk_buf_free(&b);
}

static void file_write_is_atomic(void **state)
{
    char path[] = "/tmp/laoka-base-XXXXXX";
    close(mkstemp(path));
    struct lk_err e = {0};
    assert_int_equal(lk_file_write(path, "hello", 5, &e), 0);
    struct lk_buf b = {0};
    assert_int_equal(lk_file_read(&b, path, 100, &e), 0);
    assert_string_equal(b.data, "hello");
    assert_int_not_equal(lk_file_read(&b, path, 4, &e), 0); /* larger than allowed */
    lk_buf_free(&b);
    unlink(path);
    lk_err_clear(&e);
    assert_int_not_equal(lk_file_write("/no/such/folder/x", "a", 1, &e), 0);
    assert_int_equal(e.code, LK_ESYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(num_round_trips),
        cmocka_unit_test(pool_runs_every_part_once), cmocka_unit_test(pool_jobs_do_not_mix),
        cmocka_unit_test(buf_survives_no_memory),
        cmocka_unit_test(file_write_is_atomic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
