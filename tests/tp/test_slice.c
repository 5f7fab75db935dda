/* Parts of weights: for every format, any legal cut of rows or columns decodes to the same numbers as the whole, a cut inside a group
 * is refused, and the parts of all ranks cover a tensor once. */
#include "base/mem.h"
#include "tp/shard.h"
#include "tp/slice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 512
#define K 512

static unsigned char data[N * K * 4], scale[N * K], zero[N * K];

static void fill(unsigned char *p, size_t n, unsigned mask, unsigned base)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (unsigned char)(base + (x >> 24 & mask));
    }
}

/* row_step, col_step: least legal cut */
struct kind {
    struct lk_weight w;
    int row_step, col_step;
};

static const struct kind kinds[] = {
    {{.fmt = LK_FMT_F32}, 1, 1},
    {{.fmt = LK_FMT_BF16}, 1, 1},
    {{.fmt = LK_FMT_FP8, .scale_dtype = LK_DT_BF16, .block_n = 128, .block_k = 128}, 128, 128},
    {{.fmt = LK_FMT_FP8, .scale_dtype = LK_DT_BF16, .block_n = 1, .block_k = K}, 1, 1},
    {{.fmt = LK_FMT_FP8, .scale_dtype = LK_DT_F32, .block_n = N, .block_k = K}, 1, 1},
    {{.fmt = LK_FMT_NVFP4, .global = 3.0f, .global_div = 1}, 1, 16},
    {{.fmt = LK_FMT_I8, .scale_dtype = LK_DT_BF16, .group = K}, 1, 1},
    {{.fmt = LK_FMT_I8, .scale_dtype = LK_DT_BF16, .group = 32}, 1, 32},
    {{.fmt = LK_FMT_Q4, .scale_dtype = LK_DT_F16, .group = 64}, 1, 64},
    {{.fmt = LK_FMT_CT4, .scale_dtype = LK_DT_BF16, .group = 32}, 1, 32},
    {{.fmt = LK_FMT_CT4, .scale_dtype = LK_DT_BF16, .group = 128, .zero = zero}, 8, 128},
    {{.fmt = LK_FMT_CT8, .scale_dtype = LK_DT_BF16, .group = 32, .zero = zero}, 4, 32},
    {{.fmt = LK_FMT_GPTQ4, .scale_dtype = LK_DT_F16, .group = 128, .zero = zero, .zero_plus1 = 1}, 8, 128},
    {{.fmt = LK_FMT_GPTQ8, .scale_dtype = LK_DT_F16, .group = 128, .zero = zero}, 4, 128},
    {{.fmt = LK_FMT_AWQ4, .scale_dtype = LK_DT_F16, .group = 128, .zero = zero}, 8, 128},
    {{.fmt = LK_FMT_GG_Q8_0}, 1, 32},
    {{.fmt = LK_FMT_GG_Q4_K}, 1, 256},
    {{.fmt = LK_FMT_GG_Q6_K}, 1, 256},
    {{.fmt = LK_FMT_N_Q4, .scale_dtype = LK_DT_F16, .group = 64}, 1, 64},
    {{.fmt = LK_FMT_N_Q5, .scale_dtype = LK_DT_F16, .group = 64, .zero = zero}, 1, 64},
    {{.fmt = LK_FMT_N_Q6, .scale_dtype = LK_DT_F16, .group = 64, .zero = zero}, 1, 64},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static struct lk_weight weight(const struct kind *k)
{
    struct lk_weight w = k->w;
    w.n = N, w.k = K, w.data = data;
    if (!w.global) w.global = 1;
    if (w.scale_dtype || w.fmt == LK_FMT_NVFP4) w.scale = scale;
    /* codes that decode to plain numbers: no NaN scales, small exponents */
    fill(data, sizeof data, w.fmt == LK_FMT_F32 || w.fmt == LK_FMT_BF16 ? 0x3f : 0x7f, 0);
    fill(zero, sizeof zero, 0xff, 0);
    fill(scale, sizeof scale, 0x07, 0x38);
    if (w.fmt == LK_FMT_FP8) fill(data, sizeof data, 0x3f, 0);
    return w;
}

static void same(const struct kind *k, const struct lk_ranges *r)
{
    struct lk_weight w = weight(k), part;
    struct lk_err e = {0};
    void *own;
    static float whole[K], got[K];
    if (lk_slice(&w, r, &part, &own, &e)) fail_msg("format %d axis %d at %lld: %s", (int)w.fmt, r->axis, (long long)r->r[0].at, e.text);
    assert_int_equal(part.n, r->axis ? N : r->total);
    assert_int_equal(part.k, r->axis ? r->total : K);
    struct lk_weight said;
    size_t block;
    assert_int_equal(lk_slice_plan(&w, r, &said, &block, &e), 0);
    assert_int_equal(!block, !own);
    assert_true(said.n == part.n && said.k == part.k && lk_weight_bytes(&said) == lk_weight_bytes(&part));
    int64_t row = 0;
    for (int i = 0; i < (r->axis ? 1 : r->n); i++) {
        int64_t at = r->axis ? 0 : r->r[i].at, n = r->axis ? N : r->r[i].count;
        for (int64_t j = 0; j < n; j++, row++) {
            int64_t col = 0;
            lk_weight_row(&w, at + j, 0, K, whole);
            lk_weight_row(&part, row, 0, part.k, got);
            for (int c = 0; c < (r->axis ? r->n : 1); c++) {
                int64_t from = r->axis ? r->r[c].at : 0, count = r->axis ? r->r[c].count : K;
                assert_memory_equal(got + col, whole + from, (size_t)count * 4);
                col += count;
            }
        }
    }
    lk_free(own);
}

static struct lk_ranges one(int axis, int64_t at, int64_t count)
{
    struct lk_ranges r = {.axis = axis, .n = 1, .total = count};
    r.r[0].at = at, r.r[0].count = count;
    return r;
}

static void parts_decode_as_the_whole(void **state)
{
    for (int i = 0; i < KINDS; i++) {
        const struct kind *k = kinds + i;
        struct lk_ranges two = {.axis = 0, .n = 2, .total = 256};
        two.r[0].at = 0, two.r[0].count = 128;
        two.r[1].at = 384, two.r[1].count = 128;
        struct lk_ranges cols = two;
        cols.axis = 1;
        struct lk_ranges step = one(0, k->row_step, k->row_step), cstep = one(1, k->col_step, k->col_step);
        struct lk_ranges half = one(0, N / 2, N / 2), chalf = one(1, K / 2, K / 2), all = one(0, 0, N);
        same(k, &two);
        if (k->col_step <= 128) same(k, &cols);
        same(k, &step);
        same(k, &cstep);
        same(k, &half);
        same(k, &chalf);
        same(k, &all);
    }
}

static void cuts_inside_a_group_are_refused(void **state)
{
    for (int i = 0; i < KINDS; i++) {
        const struct kind *k = kinds + i;
        struct lk_weight w = weight(k), part;
        for (int axis = 0; axis < 2; axis++) {
            int unit = axis ? k->col_step : k->row_step;
            if (unit == 1) continue;
            struct lk_ranges r = one(axis, unit / 2, unit);
            struct lk_err e = {0};
            void *own;
            assert_int_equal(lk_slice(&w, &r, &part, &own, &e), LK_EINPUT);
            assert_non_null(strstr(e.text, "group"));
        }
        struct lk_ranges r = one(0, N - 1, 2);
        struct lk_err e = {0};
        void *own;
        assert_int_equal(lk_slice(&w, &r, &part, &own, &e), LK_EINPUT);
    }
}

static const struct lk_shard_dims models[] = {
    {24, 4, 256, 16, 48, 128, 0, 17408, 248320}, {24, 4, 256, 16, 48, 128, 1, 17408, 248320},
    {8, 2, 256, 16, 16, 128, 0, 3584, 248320},   {12, 2, 256, 2, 6, 128, 0, 768, 8192},
    {16, 4, 256, 16, 32, 128, 1, 9216, 248320},  {8, 2, 256, 2, 16, 128, 1, 512, 256},
    {8, 2, 256, 2, 16, 128, 0, 512, 256},
};

static int64_t whole_of(const struct lk_shard_dims *d, enum lk_part p)
{
    int64_t of[] = {[LK_PART_WHOLE] = 77, [LK_PART_Q] = d->n_q * 512, [LK_PART_KV] = d->n_kv * 256, [LK_PART_O] = d->n_q * 256,
                    [LK_PART_QKV] = (2 * d->hk + d->hv) * 128, [LK_PART_V] = d->hv * 128, [LK_PART_VHEAD] = d->hv,
                    [LK_PART_OUT] = d->hv * 128, [LK_PART_INTER] = d->inter, [LK_PART_DOWN] = d->inter, [LK_PART_VOCAB] = d->vocab};
    return of[p];
}

/* Every element belongs to exactly one rank, or to as many as share a replicated head; sizes are those of lk_shard_local. */
static void ranks_cover_each_tensor(void **state)
{
    static unsigned char seen[300000];
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (int n = 1; n <= 8; n++) {
            const struct lk_shard_dims *d = models + m;
            if (lk_shard_check(d, n, NULL)) continue;
            for (enum lk_part p = LK_PART_WHOLE; p <= LK_PART_VOCAB; p++) {
                int64_t whole = whole_of(d, p), kv_share = n > d->n_kv ? n / d->n_kv : 1, k_share = n > d->hk ? n / d->hk : 1;
                memset(seen, 0, sizeof seen);
                for (int i = 0; i < n; i++) {
                    struct lk_ranges r;
                    struct lk_shard_dims l;
                    lk_shard(d, p, whole, i, n, &r);
                    lk_shard_local(d, i, n, &l);
                    assert_int_equal(r.total, whole_of(&l, p));
                    for (int j = 0; j < r.n; j++)
                        for (int64_t x = r.r[j].at; x < r.r[j].at + r.r[j].count; x++) seen[x]++;
                }
                for (int64_t x = 0; x < whole; x++) {
                    int64_t want = p == LK_PART_WHOLE ? n : p == LK_PART_KV ? kv_share
                                   : p == LK_PART_QKV && x < 2 * d->hk * 128 ? k_share : 1;
                    if (seen[x] != want) fail_msg("model %zu, n %d, part %d, element %lld: %d ranks", m, n, (int)p, (long long)x, seen[x]);
                }
            }
        }
}

/* A rank's value heads use its own key heads, in its own numbering. */
static void value_heads_stay_with_their_key_heads(void **state)
{
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (int n = 1; n <= 8; n++) {
            const struct lk_shard_dims *d = models + m;
            if (lk_shard_check(d, n, NULL)) continue;
            for (int i = 0; i < n; i++) {
                struct lk_ranges v, k;
                struct lk_shard_dims l;
                int head = 0;
                lk_shard_local(d, i, n, &l);
                lk_shard(d, LK_PART_VHEAD, d->hv, i, n, &v);
                lk_shard(d, LK_PART_QKV, whole_of(d, LK_PART_QKV), i, n, &k);
                int64_t k0 = k.r[0].at / 128;
                for (int j = 0; j < v.n; j++)
                    for (int64_t x = v.r[j].at; x < v.r[j].at + v.r[j].count; x++, head++) {
                        int64_t mine = d->tiled ? head % l.hk : head / (l.hv / l.hk);
                        int64_t theirs = d->tiled ? x % d->hk : x / (d->hv / d->hk);
                        assert_int_equal(k0 + mine, theirs);
                    }
            }
        }
}

static void what_does_not_divide_is_named(void **state)
{
    struct lk_err e = {0};
    assert_int_equal(lk_shard_check(models + 3, 4, &e), LK_EINPUT); /* hv = 6 */
    assert_non_null(strstr(e.text, "4 devices"));
    assert_non_null(strstr(e.text, "found 6"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_decode_as_the_whole),
        cmocka_unit_test(cuts_inside_a_group_are_refused),
        cmocka_unit_test(ranks_cover_each_tensor),
        cmocka_unit_test(value_heads_stay_with_their_key_heads),
        cmocka_unit_test(what_does_not_divide_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
