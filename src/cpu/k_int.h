/* The small product of the K-quants in whole numbers: a super-block's 256 codes times x without
 * turning one of them into a float. Compiled once an instruction set, AVX2 and up (256 bits in
 * both).
 *
 * x is not rounded to 8 bits: 256 columns share a scale, each becomes a whole number of 24 bits,
 * kept as three planes of signed bytes. That is an f32's own precision below the largest of the
 * 256, so the cases of tests/ops keep their tolerance (two planes, 16 bits, would cost 3e-5 of rms,
 * and the tolerance is 2e-5). Unsigned codes times a plane are pairs of bytes (at most 63 x 128 x
 * 2: no saturation), pairs times the 6- or 8-bit scale of their group add up in 32 bits (at
 * most 3.4e7), and one conversion a super-block and plane follows. Whole numbers add up the same in
 * any order; floats meet in one order whatever T: batch-invariant. */
#ifndef LK_CPU_K_INT_H
#define LK_CPU_K_INT_H

#include "cpu/k_decode.h"

enum {
    SN = CPU_ROWS,    /* weight rows of a small part: 16 x 17408 bf16 is 557 KB, read once */
    INT_AHEAD = 2048, /* bytes to fetch ahead: see AHEAD in k_rows.h */
    XQ = 256,         /* columns a block */
    XQ_TOP = 8355000, /* below 0x7f7f7f, the largest number of three signed digits */
};

struct xq { /* 256 columns of x; as long as their floats, so that packed x keeps its size */
    int8_t digit[3][XQ]; /* x / scale = digit[0] + 256 digit[1] + 65536 digit[2] */
    float sum16[16], sum32[8], scale;
    char pad[1024 - 3 * XQ - 25 * 4];
};

#if defined(__AVX2__)

_Static_assert(sizeof(struct xq) == XQ * sizeof(float), "a block of x changes its length");

/* ---- x ---- */

CPU_INLINE float m256_sum(__m256 a)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* The largest |x|; NaN where one of them is no finite number. */
static float xq_most(const float *x)
{
    __m256 most = _mm256_setzero_ps(), odd = most, sign = _mm256_set1_ps(-0.0f);
    for (int i = 0; i < XQ; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        most = _mm256_max_ps(most, _mm256_andnot_ps(sign, v));
        odd = _mm256_fmadd_ps(v, _mm256_setzero_ps(), odd); /* infinity x 0 is NaN */
    }
    float s[8], top = 0;
    _mm256_storeu_ps(s, most);
    for (int i = 0; i < 8; i++) top = s[i] > top ? s[i] : top;
    return top + m256_sum(odd);
}

/* 32 columns: four vectors of whole numbers to three planes of bytes. */
CPU_INLINE void xq_planes(const __m256i *v, int8_t (*plane)[XQ])
{
    const __m256i flip = _mm256_set1_epi32(0x808080),
                  by_plane = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                              0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                  order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i d[4];
    for (int i = 0; i < 4;
         i++) { /* a borrow from digit to digit is what adding and flipping 0x80 does */
        d[i] = _mm256_xor_si256(_mm256_add_epi32(v[i], flip), flip);
        d[i] = _mm256_shuffle_epi8(d[i], by_plane);
    }
    __m256i ab = _mm256_unpacklo_epi32(d[0], d[1]), cd = _mm256_unpacklo_epi32(d[2], d[3]);
    __m256i top =
        _mm256_unpacklo_epi64(_mm256_unpackhi_epi32(d[0], d[1]), _mm256_unpackhi_epi32(d[2], d[3]));
    __m256i p[3] = {_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd), top};
    for (int i = 0; i < 3; i++)
        _mm256_storeu_si256((__m256i *)(void *)plane[i], _mm256_permutevar8x32_epi32(p[i], order));
}

CPU_INLINE int m256_sum_i(__m256i a)
{
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    h = _mm_add_epi32(h, _mm_unpackhi_epi64(h, h));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_srli_epi64(h, 32)));
}

/* A block of x; what is below 2^-100 counts as 0, a number that is not finite makes every product
 * NaN. */
static void xq_block(const float *x, struct xq *o)
{
    float most = xq_most(x), scale = most >= 0x1p-100f ? most / XQ_TOP : 0;
    __m256 inv = _mm256_set1_ps(scale > 0 ? XQ_TOP / most : 0);
    for (int i = 0; i < XQ; i += 32) {
        __m256i v[4];
        for (int j = 0; j < 4; j++)
            v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), inv));
        int8_t(*at)[XQ] = (int8_t(*)[XQ])(void *)(o->digit[0] + i);
        xq_planes(v, at);
        int a = m256_sum_i(_mm256_add_epi32(v[0], v[1])),
            b = m256_sum_i(_mm256_add_epi32(v[2], v[3]));
        o->sum16[i / 16] = (float)a * scale;
        o->sum16[i / 16 + 1] = (float)b * scale;
        o->sum32[i / 32] = (float)(a + b) * scale;
    }
    o->scale = most >= 0 ? scale : NAN;
}

/* One row, k whole blocks */
static void ints_pack(const float *x, int64_t k, float *dst)
{
    for (int64_t i = 0; i < k; i += XQ) xq_block(x + i, (struct xq *)(void *)(dst + i));
}

/* ---- weights ---- */

enum int_fmt { INT_Q4_K, INT_Q5_K, INT_Q6_K };

struct int_head {  /* of a super-block */
    __m256i scale; /* i16: group g (32 columns) is lane g of either half; Q6_K: its first 16 columns
                      below, the others above */
    __m256 min[2]; /* f32: minus the minimum of each group; Q6_K: what the offset 32 of the codes
                      comes to, 16 columns each */
    float d;
};

CPU_INLINE void head_k4(const uint8_t *s, struct int_head *h)
{
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    uint32_t a = lk_get32(s + 4), b = lk_get32(s + 8), e = lk_get32(s + 12);
    uint64_t sc = (uint64_t)((e & four) | (a >> 6 & two) << 4) << 32 | (a & six);
    uint64_t mn = (uint64_t)((e >> 4 & four) | (b >> 6 & two) << 4) << 32 | (b & six);
    h->d = dec_f16(s);
    h->scale = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)sc)));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)mn)));
    h->min[0] = _mm256_mul_ps(m, _mm256_set1_ps(-dec_f16(s + 2)));
}

CPU_INLINE void head_q6(const uint8_t *s, struct int_head *h)
{
    __m128i sc = _mm_loadu_si128((const __m128i *)(const void *)(s + 192));
    h->d = dec_f16(s + 208);
    h->scale = _mm256_cvtepi8_epi16(
        _mm_shuffle_epi8(sc, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
    __m256 off = _mm256_set1_ps(-32 * h->d);
    h->min[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)), off);
    h->min[1] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(sc, 8))), off);
}

/* Codes of columns 64 j .. 64 j + 63, two groups */
CPU_INLINE void int_codes(enum int_fmt f, const uint8_t *s, int j, __m256i *q)
{
    if (f == INT_Q6_K) {
        const __m256i bits = _mm256_set1_epi8(48);
        const uint8_t *low = s + j / 2 * 64;
        int by = j % 2 * 4;
        __m256i h = codes_32(s + 128 + j / 2 * 32);
        __m256i ha = by ? h : _mm256_slli_epi16(h, 4),
                hb = by ? _mm256_srli_epi16(h, 2) : _mm256_slli_epi16(h, 2);
        __m256i a = codes_32(low), b = codes_32(low + 32);
        q[0] = _mm256_or_si256(by ? codes_high(a) : codes_low(a), _mm256_and_si256(ha, bits));
        q[1] = _mm256_or_si256(by ? codes_high(b) : codes_low(b), _mm256_and_si256(hb, bits));
        return;
    }
    __m256i c = codes_32(s + (f == INT_Q4_K ? 16 : 48) + 32 * j);
    q[0] = codes_low(c);
    q[1] = codes_high(c);
    if (f == INT_Q4_K) return;
    const __m256i bit = _mm256_set1_epi8(16);
    __m256i h = codes_32(s + 16); /* bit g of a byte belongs to group g */
    __m256i a = j < 2 ? _mm256_slli_epi16(h, j ? 2 : 4) : j == 2 ? h : _mm256_srli_epi16(h, 2);
    __m256i b = j < 2 ? _mm256_slli_epi16(h, j ? 1 : 3) : _mm256_srli_epi16(h, j == 2 ? 1 : 3);
    q[0] = _mm256_or_si256(q[0], _mm256_and_si256(a, bit));
    q[1] = _mm256_or_si256(q[1], _mm256_and_si256(b, bit));
}

/* ---- the product ---- */

CPU_INLINE __m256i xq_load(const struct xq *x, int plane, int at)
{
    return _mm256_load_si256((const __m256i *)(const void *)(x->digit[plane] + at));
}

/* An empty instruction that "changes" a sum: without it gcc makes a tree of the sums and spills its
 * leaves, 48 stores a super-block. */
#define IN_ORDER(v) __asm__("" : "+x"(v))

/* 32 codes and their scale against column 32 g and on of x, into a sum a plane */
CPU_INLINE void int_group(__m256i q, __m256i scale, const struct xq *x, int g, __m256i *a)
{
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) {
        __m256i v = _mm256_maddubs_epi16(q, xq_load(x, i, 32 * g));
        v = _mm256_madd_epi16(v, scale);
        a[i] = g ? _mm256_add_epi32(a[i], v) : v;
        IN_ORDER(a[i]);
    }
}

/* The planes' sums of a super-block, and its minimums times the sums of x */
CPU_INLINE void int_fold(enum int_fmt f, const struct int_head *h, const struct xq *x,
                         const __m256i *a, __m256 *acc, __m256 *off)
{
    __m256 v =
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[1]), _mm256_set1_ps(256), _mm256_cvtepi32_ps(a[0]));
    v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[2]), _mm256_set1_ps(65536), v);
    *acc = _mm256_fmadd_ps(v, _mm256_set1_ps(h->d * x->scale), *acc);
    if (f == INT_Q6_K) {
        *off = _mm256_fmadd_ps(h->min[0], _mm256_loadu_ps(x->sum16), *off);
        *off = _mm256_fmadd_ps(h->min[1], _mm256_loadu_ps(x->sum16 + 8), *off);
    } else {
        *off = _mm256_fmadd_ps(h->min[0], _mm256_loadu_ps(x->sum32), *off);
    }
}

/* x: rows of blocks, ldx of them apart; super-block s against block b of T rows */
CPU_INLINE void int_block(enum int_fmt f, const uint8_t *s, const struct xq *x, int64_t ldx,
                          const int T, __m256 *acc, __m256 *off)
{
    __m256i a[4][3], q[2];
    struct int_head h;
    if (f == INT_Q6_K)
        head_q6(s, &h);
    else
        head_k4(s, &h);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        if (g % 2 == 0) int_codes(f, s, g / 2, q);
        __m256i pick = _mm256_set1_epi16((short)(2 * g | (2 * g + 1) << 8));
        __m256i scale = _mm256_shuffle_epi8(h.scale, pick);
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) int_group(q[g % 2], scale, x + t * ldx, g, a[t]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) int_fold(f, &h, x + t * ldx, a[t], acc + t, off + t);
}

/* sum[t * SN + r], like small_rows, for one constant T up to 4: 12 sums of 16 registers */
CPU_INLINE void int_rows(enum int_fmt f, int bytes, const struct cpu_part *p, int64_t row, int rows,
                         const float *xf, int64_t ldx, const int T, float *sum)
{
    const struct xq *x = (const void *)xf;
    int64_t nb = p->w.k / XQ;
    const uint8_t *s = (const uint8_t *)p->w.data + row * nb * bytes;
    for (int r = 0; r < rows; r++) {
        __m256 acc[4], off[4];
        for (int t = 0; t < T; t++) acc[t] = off[t] = _mm256_setzero_ps();
        for (int64_t b = 0; b < nb; b++, s += bytes) {
            for (int i = 0; i < bytes; i += 64) __builtin_prefetch(s + INT_AHEAD + i);
            int_block(f, s, x + b, ldx / XQ, T, acc, off);
        }
        for (int t = 0; t < T; t++) sum[t * SN + r] = m256_sum(_mm256_add_ps(acc[t], off[t]));
    }
}

#define INT_FORMAT(name, f, bytes)                                                                 \
    static void ints_##name(const struct cpu_part *p, int64_t row, int rows, const float *x,       \
                            int64_t ldx, int T, float *sum)                                        \
    {                                                                                              \
        for (int t; T > 0; T -= t, x += t * ldx, sum += t * SN) {                                  \
            t = T >= 4 ? 4 : T >= 2 ? 2 : 1;                                                       \
            if (t == 4)                                                                            \
                int_rows(f, bytes, p, row, rows, x, ldx, 4, sum);                                  \
            else if (t == 2)                                                                       \
                int_rows(f, bytes, p, row, rows, x, ldx, 2, sum);                                  \
            else                                                                                   \
                int_rows(f, bytes, p, row, rows, x, ldx, 1, sum);                                  \
        }                                                                                          \
    }

INT_FORMAT(q4_k, INT_Q4_K, 144)
INT_FORMAT(q5_k, INT_Q5_K, 176)
INT_FORMAT(q6_k, INT_Q6_K, 210)

#endif
#endif
