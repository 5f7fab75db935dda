/* probe: card variants, throttling and missing permission through a fake NVML; the architectures in a fat binary; the report is whole
 * whatever is missing, and its JSON parses. */
#include "base/mem.h"
#include "base/num.h"
#include "probe/probe.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int nvml(const char *scenario, struct lk_nvml *n, struct lk_err *e)
{
    setenv("FAKE_NVML", scenario, 1);
    lk_err_clear(e);
    return lk_nvml_read(n, LK_FAKE_NVML, e);
}

static void variants_are_told_apart(void **state)
{
    static const struct {
        const char *scenario, *word;
        double read;
    } want[] = {
        {"sxm2", "V100 SXM2", 878},
        {"pg500", "PG500-216", 1058},
        {"pcie", "V100 PCIe", 810},
        {"sxm2-16", "needs two", 878},
        {"hot", "too hot (hardware)", 878},
        {"pcie", "8 of 16 lanes", 810},
        {"pcie", "ECC is off", 810},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct lk_nvml n;
        struct lk_err e = {0};
        struct lk_variant v;
        assert_int_equal(nvml(want[i].scenario, &n, &e), 0);
        assert_int_equal(n.n, 1);
        lk_variant_judge(&n.gpu[0], &v);
        assert_non_null(strstr(v.verdict, want[i].word));
        assert_true(v.read_gbs == want[i].read);
        assert_string_equal(n.gpu[0].pci, "00000000:3B:00.0");
    }
}

static void what_is_missing_is_said(void **state)
{
    struct lk_nvml n;
    struct lk_err e = {0};
    assert_int_equal(nvml("no-permission", &n, &e), LK_ESYS);
    assert_non_null(strstr(e.text, "no permission"));
    assert_int_equal(nvml("no-driver", &n, &e), LK_ESYS);
    assert_non_null(strstr(e.text, "driver not loaded"));
    assert_int_equal(nvml("none", &n, &e), 0);
    assert_int_equal(n.n, 0);
    assert_int_equal(nvml("refused", &n, &e), 0);
    assert_int_equal(n.gpu[0].mem_mhz, -1);
    assert_non_null(strstr(n.gpu[0].missing, "memory clock"));
    assert_non_null(strstr(n.gpu[0].missing, "throttle reasons"));
    lk_err_clear(&e);
    assert_int_equal(lk_nvml_read(&n, "/no/such/library.so", &e), LK_ESYS);
}

static void entry_put(unsigned char *p, int kind, unsigned arch, unsigned payload)
{
    memset(p, 0, 64);
    p[0] = (unsigned char)kind;
    memcpy(p + 4, &(uint32_t){64}, 4);
    memcpy(p + 8, &(uint64_t){payload}, 8);
    memcpy(p + 28, &arch, 4);
}

static void fatbin_archs_are_read(void **state)
{
    unsigned char b[1024] = {0}, *c = b + 100;
    memcpy(c, (unsigned char[]){0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0}, 8);
    memcpy(c + 8, &(uint64_t){64 + 32 + 64 + 16}, 8);
    entry_put(c + 16, 2, 70, 32);
    entry_put(c + 16 + 96, 1, 90, 16);
    struct lk_nccl_facts f = {0};
    lk_fatbin_archs(&f, b, sizeof b);
    assert_int_equal(f.n_archs, 1);
    assert_int_equal(f.archs[0], 70);
    assert_int_equal(f.ptx[0], 90);
    assert_true(lk_nccl_runs(&f, 70) && lk_nccl_runs(&f, 75) && !lk_nccl_runs(&f, 80) && lk_nccl_runs(&f, 100));
    for (size_t n = 0; n < sizeof b; n++) { /* cut anywhere: no read past the end (ASan watches) */
        unsigned char *cut = lk_malloc(n);
        assert_non_null(cut);
        memcpy(cut, b, n);
        struct lk_nccl_facts g = {0};
        lk_fatbin_archs(&g, cut, n);
        lk_free(cut);
    }
}

static double memory_of(const void *f, double ctx, int n)
{
    return (20e9 + 40e3 * ctx) / n;
}

static double round_of(const void *f, double ctx, int draft, int n)
{
    return (16e9 + 33e3 * ctx + draft * 1e9) / n;
}

static double kernels_of(const void *f, int draft, int n)
{
    return 600 + 20 * draft;
}

static double reduces_of(const void *f, int draft)
{
    return 128 + draft;
}

static void forecast_follows_the_bytes(void **state)
{
    struct lk_probe_model m = {"m", memory_of, round_of, kernels_of, reduces_of, NULL, 1};
    struct lk_probe_machine w = {.mem = 32e9, .gbs = 900};
    struct lk_forecast_cell c;
    lk_probe_cell(&m, 32768, 1, &w, &c);
    assert_true(c.fits);
    assert_true(c.most.plain > 52.6 && c.most.plain < 52.8); /* 900e9 / (16e9 + 33e3 * 32768) */
    assert_true(c.most.code > c.most.zh && c.most.zh > c.most.plain);
    assert_true(c.expected.plain == 0); /* nothing measured, nothing expected */
    w.kernel_us = 5, w.reduce_us = 10;
    lk_probe_cell(&m, 32768, 1, &w, &c); /* 18.979 ms of bytes at the full rate, 3 ms of kernels */
    assert_true(c.expected.plain > 38.5 && c.expected.plain < 38.7);
    lk_probe_cell(&m, 32768, 2, &w, &c); /* half the bytes, the same kernels, 1.28 ms of sums */
    assert_true(c.expected.plain > 63.6 && c.expected.plain < 63.8);
    w.mem = 16e9;
    lk_probe_cell(&m, 262144, 1, &w, &c);
    assert_false(c.fits);
    assert_true(c.most.plain == 0 && c.expected.plain == 0);
}

static void report_is_whole(void **state)
{
    static const char *const scenarios[] = {"sxm2", "refused", "no-permission", "none"};
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        struct lk_probe *p = lk_calloc(1, sizeof *p);
        struct lk_buf b = {0};
        assert_non_null(p);
        setenv("FAKE_NVML", scenarios[i], 1);
        lk_probe_gather(p, LK_FAKE_NVML);
        p->model = (struct lk_probe_model){"m", memory_of, round_of, kernels_of, reduces_of, NULL, 1};
        assert_true(p->cpu.n_points > 0 && p->cpu.points[0].bw.read_gbs > 0);
        assert_int_equal(lk_probe_text(p, &b), 0);
        assert_non_null(strstr(b.data, "CPU "));
        assert_non_null(strstr(b.data, "GPU "));
        assert_non_null(strstr(b.data, "MODEL"));
        lk_buf_reset(&b);
        assert_int_equal(lk_probe_json(p, &b), 0);
        json_t *j = json_loads(b.data, 0, NULL);
        assert_non_null(j);
        assert_int_equal(json_array_size(json_object_get(j, "gpus")), i < 2);
        json_decref(j);
        lk_buf_free(&b);
        lk_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_are_told_apart),   cmocka_unit_test(what_is_missing_is_said),
        cmocka_unit_test(fatbin_archs_are_read),     cmocka_unit_test(forecast_follows_the_bytes),
        cmocka_unit_test(report_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
