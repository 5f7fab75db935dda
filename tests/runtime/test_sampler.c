/* sampler: filters against a plain re-statement, exact distribution (chi-square), coupling, order of ties, hostile rows. */
#include "base/mem.h"
#include "runtime/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 50
static struct lk_cand scratch[4096];

static void row_make(float *row, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) row[i] = (float)(6 * lk_sample_uniform(seed, 7, i) - 3);
}

static void greedy_and_ties(void **state)
{
    float row[5] = {1, 3, NAN, 3, -INFINITY};
    struct lk_sampling s;
    lk_sampling_init(&s);
    assert_int_equal(lk_sample_row(&s, row, 5, 0, scratch), 1);
    int32_t ids[] = {1, 3, 0};
    float vals[] = {3, 3, 1};
    assert_int_equal(lk_sample_sorted(&s, ids, vals, 3, 0), 1);
    float none[3] = {-INFINITY, NAN, -INFINITY};
    assert_int_equal(lk_sample_row(&s, none, 3, 0, scratch), -1);
    s.temp = 1;
    assert_int_equal(lk_sample_row(&s, none, 3, 0, scratch), -1);
    assert_int_equal(lk_sample_top(row, 5, 4, scratch), 3);
    assert_int_equal(scratch[0].id, 1);
    assert_int_equal(scratch[1].id, 3);
    assert_int_equal(scratch[2].id, 0);
}

/* The filters as the documents state them, one after the other over a fully sorted list. */
static void plain_probs(const struct lk_sampling *s, const float *row, int n, double *p)
{
    int order[N], keep = n;
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (row[order[j]] > row[order[i]]) {
                int t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
    for (int i = 0; i < n; i++) p[i] = 0;
    if (s->top_k > 0 && s->top_k < keep) keep = s->top_k;
    double total = 0, cum = 0;
    for (int i = 0; i < keep; i++) total += exp(row[order[i]] / s->temp);
    int nucleus = 0;
    while (nucleus < keep && (nucleus == 0 || s->top_p >= 1 || cum < s->top_p))
        cum += exp(row[order[nucleus++]] / s->temp) / total;
    keep = nucleus;
    double best = exp(row[order[0]] / s->temp), sum = 0;
    for (int i = 0; i < keep; i++) {
        double w = exp(row[order[i]] / s->temp);
        if (i > 0 && w < s->min_p * best) break;
        p[order[i]] = w;
        sum += w;
    }
    for (int i = 0; i < n; i++) p[i] /= sum;
}

static const struct lk_sampling settings[] = {
    {.temp = 1, .top_p = 1, .repetition = 1},
    {.temp = 0.7f, .top_p = 0.8f, .top_k = 20, .repetition = 1},
    {.temp = 1.3f, .top_p = 0.95f, .repetition = 1},
    {.temp = 0.6f, .top_p = 1, .min_p = 0.1f, .repetition = 1},
    {.temp = 2, .top_p = 0.9f, .top_k = 7, .min_p = 0.2f, .repetition = 1},
    {.temp = 1, .top_p = 0, .repetition = 1},
};

static void filters_agree(void **state)
{
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++)
        for (uint64_t r = 0; r < 50; r++) {
            float row[N], prob[N];
            double want[N];
            row_make(row, N, r);
            plain_probs(&settings[k], row, N, want);
            lk_sample_probs(&settings[k], row, N, prob, scratch);
            for (int i = 0; i < N; i++) assert_true(fabs(prob[i] - want[i]) < 1e-6);
        }
}

/* Device candidates and whole row must give the same token for the same draw. */
static void sorted_is_row(void **state)
{
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++)
        for (uint64_t r = 0; r < 500; r++) {
            float row[N], vals[N];
            int32_t ids[N];
            row_make(row, N, r);
            int m = lk_sample_top(row, N, N, scratch);
            for (int i = 0; i < m; i++) {
                ids[i] = scratch[i].id;
                vals[i] = scratch[i].val;
            }
            struct lk_sampling s = settings[k];
            s.seed = r * 31;
            assert_int_equal(lk_sample_sorted(&s, ids, vals, m, r), lk_sample_row(&s, row, N, r, scratch));
        }
}

/* 20,000 draws, chi-square at p > 0.001 (by the Wilson-Hilferty cube: 3.09 deviations), seed fixed. */
static void draws_are_exact(void **state)
{
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
        float row[N], prob[N];
        double count[N] = {0}, chi = 0;
        int df = -1, draws = 20000;
        row_make(row, N, 5);
        struct lk_sampling s = settings[k];
        s.seed = 20260401 + k;
        lk_sample_probs(&s, row, N, prob, scratch);
        for (int i = 0; i < draws; i++) {
            int32_t id = lk_sample_row(&s, row, N, (uint64_t)i, scratch);
            assert_true(id >= 0 && id < N && prob[id] > 0);
            count[id]++;
        }
        for (int i = 0; i < N; i++)
            if (prob[i] > 0) {
                double want = prob[i] * (double)draws;
                chi += (count[i] - want) * (count[i] - want) / want;
                df++;
            }
        double z = df ? (cbrt(chi / df) - (1 - 2.0 / (9 * df))) / sqrt(2.0 / (9 * df)) : 0;
        if (z > 3.09) fail_msg("settings %zu: chi-square %g at %d degrees: z %g", k, chi, df, z);
    }
}

/* Two rows that differ a little pick the same token nearly as often as their distributions overlap. */
static void noise_couples(void **state)
{
    float a[N], b[N], pa[N], pb[N];
    row_make(a, N, 5);
    for (int i = 0; i < N; i++) b[i] = a[i] + (float)(0.6 * lk_sample_uniform(9, 9, i) - 0.3);
    struct lk_sampling s = settings[0];
    lk_sample_probs(&s, a, N, pa, scratch);
    lk_sample_probs(&s, b, N, pb, scratch);
    double tv = 0;
    for (int i = 0; i < N; i++) tv += fabs(pa[i] - pb[i]) / 2;
    int same = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        s.seed = 3;
        same += lk_sample_row(&s, a, N, i, scratch) == lk_sample_row(&s, b, N, i, scratch);
    }
    assert_true(same / 20000.0 > (1 - tv) / (1 + tv) - 0.01); /* the bound of shared-noise draws */
}

static void depends_on_seed_and_position_only(void **state)
{
    float row[N];
    row_make(row, N, 1);
    struct lk_sampling s = settings[0];
    int differ = 0;
    for (uint64_t p = 0; p < 200; p++) {
        s.seed = 1;
        int32_t a = lk_sample_row(&s, row, N, p, scratch);
        s.seed = 2;
        int32_t b = lk_sample_row(&s, row, N, p, scratch);
        s.seed = 1;
        assert_int_equal(a, lk_sample_row(&s, row, N, p, scratch));
        differ += a != b;
    }
    assert_true(differ > 100);
}

static void large_rows(void **state)
{
    static float row[4096];
    row_make(row, 4096, 2);
    struct lk_sampling s = {.temp = 5, .top_p = 0.999f, .repetition = 1, .seed = 1}; /* nucleus over 1,024 */
    static float prob[4096];
    lk_sample_probs(&s, row, 4096, prob, scratch);
    int kept = 0;
    for (int i = 0; i < 4096; i++) kept += prob[i] > 0;
    assert_true(kept > 3500 && kept < 4096);
    double lse = 0;
    for (int i = 0; i < 4096; i++) lse += exp(row[i]);
    assert_true(fabs(lk_sample_lse(row, 4096) - log(lse)) < 1e-9);
}

/* The winner of a row is the largest logit/temp - log(-log u) of all, though most candidates are passed over unseen. */
static void nobody_who_wins_is_passed_over(void **state)
{
    static float row[4096];
    for (uint64_t c = 0; c < 3000; c++) {
        int n = 2 + (int)(4094 * lk_sample_uniform(c, 1, 0));
        double wide = 40 * lk_sample_uniform(c, 2, 0), best = -INFINITY;
        int32_t want = -1;
        struct lk_sampling s;
        lk_sampling_init(&s);
        s.temp = (float)(0.05 + 2 * lk_sample_uniform(c, 3, 0));
        s.seed = c;
        for (int i = 0; i < n; i++) row[i] = (float)(wide * lk_sample_uniform(c, 4, i));
        for (int i = 0; i < n; i++) {
            double v = row[i] / (double)s.temp - log(-log(lk_sample_uniform(s.seed, 9, i)));
            if (v > best) best = v, want = i;
        }
        assert_int_equal(lk_sample_row(&s, row, n, 9, scratch), want);
    }
    struct lk_sampling s;
    lk_sampling_init(&s);
    s.temp = 1;
    float odd[4] = {1, INFINITY, 2, INFINITY};
    assert_int_equal(lk_sample_row(&s, odd, 4, 9, scratch) % 2, 1);
}

static void bad_values_are_named(void **state)
{
    struct lk_err e = {0};
    struct lk_sampling s;
    lk_sampling_init(&s);
    assert_int_equal(lk_sampling_check(&s, 10, &e), 0);
    s.top_p = NAN;
    assert_int_equal(lk_sampling_check(&s, 10, &e), LK_EREQUEST);
    assert_non_null(strstr(e.text, "top_p"));
    lk_sampling_init(&s);
    lk_err_clear(&e);
    struct lk_bias b = {10, 1};
    s.bias = &b;
    s.n_bias = 1;
    assert_int_equal(lk_sampling_check(&s, 10, &e), LK_EREQUEST);
    assert_non_null(strstr(e.text, "token 10"));
    assert_true(lk_sample_edit(2, 2, 1) == 2 && lk_sample_edit(-2, 2, 1) == -3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_and_ties), cmocka_unit_test(filters_agree),
        cmocka_unit_test(sorted_is_row),   cmocka_unit_test(draws_are_exact),
        cmocka_unit_test(noise_couples),   cmocka_unit_test(depends_on_seed_and_position_only),
        cmocka_unit_test(large_rows),      cmocka_unit_test(bad_values_are_named),
        cmocka_unit_test(nobody_who_wins_is_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
