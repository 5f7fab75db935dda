/* The bundled model against transformers on its de-quantised weights (tests/reference/bundled.py): logits and MTP logits of four
 * prompts at every position, and greedy ids. */
#include "model/rig.h"

#include <jansson.h>

#define BUNDLED LK_SOURCE_DIR "/models/demo"
#define STORED  LK_SOURCE_DIR "/tests/vectors/model/bundled"
#define TOLERANCE 2e-3

/* Every step-th value of the rows; returns how many were compared. */
static size_t compare(const float *got, int rows, int vocab, int step, const float *want, double *worst)
{
    size_t n = 0;
    for (int t = 0; t < rows; t++)
        for (int v = 0; v < vocab; v += step) {
            double d = fabs((double)got[(size_t)t * (size_t)vocab + (size_t)v] - (double)want[n++]);
            if (!(d <= *worst)) *worst = d == d ? d : INFINITY;
        }
    return n;
}

static void bundled_model_equals_the_reference(void **state)
{
    struct rig r;
    struct lk_map f32;
    struct lk_err e = {0};
    json_error_t je;
    json_t *js = json_load_file(STORED ".json", 0, &je), *p;
    assert_non_null(js);
    if (lk_map_open(&f32, STORED ".f32", &e)) fail_msg("%s", e.text);
    rig_open(&r, BUNDLED, &(struct rig_opts){.tokens = 128, .chunk = 64, .threads = lk_cores()});
    int step = (int)json_integer_value(json_object_get(js, "step"));
    size_t i, at = 0;
    double worst = 0;
    json_array_foreach(json_object_get(js, "prompts"), i, p) {
        int32_t ids[64], want[64], got[64];
        const json_t *a = json_object_get(p, "ids"), *g = json_object_get(p, "greedy");
        int n = (int)json_array_size(a), n_greedy = (int)json_array_size(g);
        assert_true(n > 0 && n <= 64 && n_greedy > 0 && n_greedy <= 64);
        for (int j = 0; j < n; j++) ids[j] = (int32_t)json_integer_value(json_array_get(a, (size_t)j));
        for (int j = 0; j < n_greedy; j++) want[j] = (int32_t)json_integer_value(json_array_get(g, (size_t)j));
        struct kept k;
        kept_run(&k, &r, ids, n, 0, 1);
        const float *stored = (const float *)f32.data;
        at += compare(k.logits, n, r.vocab, step, stored + at, &worst);
        at += compare(k.mtp, n - 1, r.vocab, step, stored + at, &worst);
        struct line l;
        line_open(&l, &r);
        assert_int_equal(line_greedy(&l, ids, n, 64, got, n_greedy, -1), n_greedy);
        assert_memory_equal(got, want, (size_t)n_greedy * sizeof *got);
        line_close(&l);
        kept_free(&k);
    }
    printf("%zu values: %.1e of %.0e used, greedy ids equal\n", at, worst, TOLERANCE);
    assert_int_equal(at * 4, f32.size);
    assert_true(worst <= TOLERANCE);
    rig_close(&r);
    lk_map_close(&f32);
    json_decref(js);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bundled_model_equals_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
