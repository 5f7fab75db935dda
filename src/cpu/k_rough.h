/* A rough mat (cpu_rough.c): its copy of the weights, made at load, and its product, x in 8 bits with one scale a group of 64, integer products, f32 sums over groups. Compiled
 * once an instruction set; all of them add groups in the same order, lanes aside. Drafts alone may read it. */
#ifndef LK_CPU_K_ROUGH_H
#define LK_CPU_K_ROUGH_H

#include "cpu/cpu_mat.h"
#include "cpu/k_gemm.h"

#include <float.h>

enum { ROUGH_ROWS = 64, ROUGH_MAX_G = ROUGH_MAX_K / ROUGH_G }; /* rows of a part; groups of the longest row */

/* One row of x: codes, scale and 8 x the sum of the codes times that scale (weights are codes - 8), a group. */
struct rough_x {
    int8_t *q;
    float *scale, *eight;
};

struct rough_job {
    const struct cpu_part *p;
    struct rough_x x;
    float *y;
    int add;
};

static size_t rough_work_bytes(int64_t k)
{
    return (size_t)k + 2 * (size_t)(k / ROUGH_G) * sizeof(float);
}

static void rough_pack(const float *x, int64_t k, struct rough_x *o)
{
    for (int64_t g = 0; g < k / ROUGH_G; g++, x += ROUGH_G) {
        float most = 0;
        for (int i = 0; i < ROUGH_G; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        float inv = most > 0 && most <= FLT_MAX ? 127 / most : 0;
        int sum = 0;
        for (int i = 0; i < ROUGH_G; i++) {
            int v = (int)lrintf(x[i] * inv);
            o->q[g * ROUGH_G + i] = (int8_t)v;
            sum += v;
        }
        o->scale[g] = most <= FLT_MAX ? most / 127 : NAN;
        o->eight[g] = 8 * (float)sum * o->scale[g];
    }
}

/* ---- the copy ---- */

#if defined(__AVX2__)

/* 32 numbers to codes 0..15 in the bytes of a vector, in order; NaN: 0 */
CPU_INLINE __m256i rough_codes(const float *x, __m256 inv)
{
    const __m256 half = _mm256_set1_ps(8.5f), zero = _mm256_setzero_ps(), top = _mm256_set1_ps(15);
    __m256i q[4];
    for (int i = 0; i < 4; i++) {
        __m256 v = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inv), half);
        q[i] = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(v, zero), top)); /* max gives its second where the first is NaN */
    }
    __m256i b = _mm256_packus_epi16(_mm256_packus_epi32(q[0], q[1]), _mm256_packus_epi32(q[2], q[3]));
    return _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The largest of a group, with its sign; of two with the same size the first. NaN counts for nothing. */
CPU_INLINE float rough_most(const float *x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 m = _mm256_setzero_ps();
    for (int i = 0; i < ROUGH_G; i += 8) m = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), m);
    m = _mm256_max_ps(m, _mm256_permute2f128_ps(m, m, 1));
    m = _mm256_max_ps(m, _mm256_shuffle_ps(m, m, 0x4e));
    m = _mm256_max_ps(m, _mm256_shuffle_ps(m, m, 0xb1));
    for (int i = 0; i < ROUGH_G; i += 8) {
        __m256 same = _mm256_cmp_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), m, _CMP_EQ_OQ);
        int at = _mm256_movemask_ps(same);
        if (at) return x[i + __builtin_ctz((unsigned)at)];
    }
    return 0; /* all NaN */
}

CPU_INLINE void rough_store(const float *x, float inv, uint8_t *codes)
{
    const __m256 v = _mm256_set1_ps(inv);
    __m256i lo = rough_codes(x, v), hi = rough_codes(x + 32, v);
    _mm256_storeu_si256((__m256i *)codes, _mm256_or_si256(lo, _mm256_slli_epi16(hi, 4)));
}

#else

static float rough_most(const float *x)
{
    float most = 0;
    for (int i = 0; i < ROUGH_G; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    return most;
}

static void rough_store(const float *x, float inv, uint8_t *codes)
{
    int q[ROUGH_G];
    for (int i = 0; i < ROUGH_G; i++) {
        float v = x[i] * inv + 8.5f;
        q[i] = v >= 15 ? 15 : v > 0 ? (int)v : 0; /* NaN: 0 */
    }
    for (int i = 0; i < ROUGH_G / 2; i++) codes[i] = (uint8_t)(q[i] | q[i + ROUGH_G / 2] << 4);
}

#endif

/* Row `row` of a weight of whole groups, as codes and scales: decoded by the format's own kernel. */
static void k_rough_row(const struct cpu_part *p, int64_t row, uint8_t *codes, uint16_t *scales)
{
    p = cpu_turn(p, &row);
    enum perm perm = fmts[p->kern].f->perm;
    int64_t groups = p->w.k / ROUGH_G;
    float w[WK], nat[ROUGH_G];
    for (int64_t g = 0; g < groups; g += WK / ROUGH_G) {
        int n = groups - g < WK / ROUGH_G ? (int)(groups - g) : WK / ROUGH_G;
        fmts[p->kern].panel(p, row, 1, g, n, w);
        for (int i = 0; i < n; i++, codes += ROUGH_G / 2) {
            const float *x = w + i * ROUGH_G;
            for (int c = 0; perm != PERM_NATURAL && c < KB; c++) nat[perm_place(perm, c)] = x[c];
            if (perm != PERM_NATURAL) x = nat;
            scales[g + i] = lk_f32_to_f16(rough_most(x) / -8);
            float s = lk_f16_to_f32(scales[g + i]);
            rough_store(x, s != 0 && isfinite(s) ? 1 / s : 0, codes);
        }
    }
}

/* ---- the product ---- */

#if defined(__AVX2__)

CPU_INLINE float rough_dot(const uint8_t *c, const float *ws, const struct rough_x *x, int groups)
{
    const __m256i nib = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    __m256 acc = _mm256_setzero_ps();
    const int8_t *q = x->q;
    for (int g = 0; g < groups; g++, c += ROUGH_G / 2, q += ROUGH_G) {
        __m256i v = _mm256_loadu_si256((const __m256i *)c);
        __builtin_prefetch(c + AHEAD);
        __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(v, nib), _mm256_loadu_si256((const __m256i *)q));
        __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(v, 4), nib),
                                         _mm256_loadu_si256((const __m256i *)(q + 32)));
        __m256 d = _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_add_epi16(a, b), one));
        acc = _mm256_fmadd_ps(d, _mm256_set1_ps(ws[g] * x->scale[g]), acc);
    }
    float lanes[8], s = 0;
    _mm256_storeu_ps(lanes, acc);
    for (int i = 0; i < 8; i++) s += lanes[i];
    return s;
}

CPU_INLINE void rough_scales(const uint16_t *s, int groups, float *ws)
{
    int g = 0;
    for (; g + 8 <= groups; g += 8)
        _mm256_storeu_ps(ws + g, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + g))));
    for (; g < groups; g++) ws[g] = lk_f16_to_f32(s[g]);
}

#else

static float rough_dot(const uint8_t *c, const float *ws, const struct rough_x *x, int groups)
{
    float s = 0;
    for (int g = 0; g < groups; g++, c += ROUGH_G / 2) {
        const int8_t *q = x->q + g * ROUGH_G;
        int d = 0;
        for (int i = 0; i < ROUGH_G / 2; i++) d += (c[i] & 15) * q[i] + (c[i] >> 4) * q[i + ROUGH_G / 2];
        s += (float)d * (ws[g] * x->scale[g]);
    }
    return s;
}

static void rough_scales(const uint16_t *s, int groups, float *ws)
{
    for (int g = 0; g < groups; g++) ws[g] = lk_f16_to_f32(s[g]);
}

#endif

static void rough_part(void *arg, int part, int worker)
{
    const struct rough_job *j = arg;
    const struct lk_weight *w = &j->p->w;
    int groups = (int)(w->k / ROUGH_G);
    int64_t end = (int64_t)(part + 1) * ROUGH_ROWS;
    float ws[ROUGH_MAX_G];
    for (int64_t r = (int64_t)part * ROUGH_ROWS; r < end && r < w->n; r++) {
        rough_scales((const uint16_t *)w->scale + r * groups, groups, ws);
        float v = rough_dot((const uint8_t *)w->data + r * w->k / 2, ws, &j->x, groups);
        for (int g = 0; g < groups; g++) v -= ws[g] * j->x.eight[g];
        j->y[r] = j->add ? j->y[r] + v : v;
    }
}

static void k_rough(struct lk_dev *d, const struct lk_linear_args *a)
{
    struct cpu_dev *c = cpu_of(d);
    int64_t k = a->w->head.k;
    char *work = cpu_work(c, rough_work_bytes(k), "linear of drafts");
    if (!work) return;
    struct rough_job j = {.x = {(int8_t *)work, (float *)(work + k), (float *)(work + k) + k / ROUGH_G}, .add = a->add};
    for (int t = 0; t < a->T; t++) {
        rough_pack((const float *)a->x + t * k, k, &j.x);
        j.y = a->y + (int64_t)t * a->ldy;
        for (int p = 0; p < a->w->head.n_parts; p++) {
            j.p = a->w->parts + p;
            lk_pool_run(c->pool, (int)((j.p->w.n + ROUGH_ROWS - 1) / ROUGH_ROWS), rough_part, &j);
            j.y += j.p->w.n;
        }
    }
}

#endif
