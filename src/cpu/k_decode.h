/* Decoding weights: 64 columns of a row become f32 vectors, with exactly the values of
 * lk_weight_row. Compiled once an instruction set.
 *
 * The columns of a block of 64 come in an order that suits the unpacking (4-bit codes above all);
 * `perm` of a format says which column stands at each place, and x is laid out in the same order
 * once a call. A row's last columns, where k is no multiple of 64, go through the oracle. E4m3 NaN
 * codes read as +-480: no file holds them. */
#ifndef LK_CPU_K_DECODE_H
#define LK_CPU_K_DECODE_H

#include "cpu/cpu.h"
#include "cpu/simd.h"

#define KB 64        /* columns a block */
#define NV (KB / VW) /* vectors a block */

/* Column (0..63) at place i of the block, by class. NATURAL: i. */
enum perm { PERM_NATURAL, PERM_PAIRS, PERM_SPLIT32, PERM_SPLIT64, PERM_COUNT };

typedef void (*dec_fn)(const struct cpu_part *p, int64_t row, int64_t b, vf *v);
static uint8_t perm_place(enum perm c, int i);

CPU_INLINE float dec_scale(const struct lk_weight *w, int64_t i)
{
    const char *s = w->scale;
    if (w->scale_dtype == LK_DT_F32) return lk_f32_from_bits(lk_get32(s + 4 * i));
    if (w->scale_dtype == LK_DT_BF16) return lk_bf16_to_f32(lk_get16(s + 2 * i));
    return lk_dtype_get(w->scale_dtype, s, i);
}

CPU_INLINE float dec_f16(const void *p)
{
#if defined(__AVX2__)
    return _cvtsh_ss(lk_get16(p));
#else
    return lk_f16_to_f32(lk_get16(p));
#endif
}

/* The oracle's decode: formats without a kernel, and tails. */
CPU_INLINE void dec_oracle(const struct cpu_part *p, int64_t row, int64_t b, const uint8_t *perm,
                           vf *v)
{
    float nat[KB] = {0}, w[KB];
    int64_t left = p->w.k - b * KB;
    lk_weight_row(&p->w, row, b * KB, left < KB ? left : KB, nat);
    for (int i = 0; i < KB; i++) w[i] = nat[perm[i]];
    for (int i = 0; i < NV; i++) v[i] = vf_load(w + i * VW);
}

CPU_INLINE void dec_any(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    float w[KB];
    lk_weight_row(&p->w, row, b * KB, KB, w);
    for (int i = 0; i < NV; i++) v[i] = vf_load(w + i * VW);
}

CPU_INLINE void dec_f32(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + (row * p->w.k + b * KB) * 4;
    for (int i = 0; i < NV; i++) memcpy(v + i, d + 4 * i * VW, sizeof *v);
}

CPU_INLINE void dec_f16s(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + (row * p->w.k + b * KB) * 2;
    for (int i = 0; i < NV; i++) v[i] = vf_f16(d + 2 * i * VW);
}

CPU_INLINE void dec_bf16(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + (row * p->w.k + b * KB) * 2;
    for (int i = 0; i < NV; i++) v[i] = vf_bf16(d + 2 * i * VW);
}

/* block_k is whole blocks of 64, or the whole row (dec_pick) */
CPU_INLINE void dec_fp8(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + row * p->w.k + b * KB;
    int64_t per_row = (p->w.k + p->w.block_k - 1) / p->w.block_k;
    float s = dec_scale(&p->w, row / p->w.block_n * per_row + b * KB / p->w.block_k);
    vf s256 = vf_set(s * 256); /* exact: a power of two */
    for (int i = 0; i < NV; i++) v[i] = vf_mul(vf_e4m3_256(d + i * VW), s256);
}

/* Scale i of the two half blocks: one number when a group covers 64 columns, else groups of 32. */
CPU_INLINE void dec_scale_halves(const struct lk_weight *w, int64_t row, int64_t b, float s[2])
{
    int64_t per_row = (w->k + w->group - 1) / w->group, at = row * per_row + b * KB / w->group;
    s[0] = dec_scale(w, at);
    s[1] = w->group == 32 ? dec_scale(w, at + 1) : s[0];
}

CPU_INLINE void dec_i8(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + row * p->w.k + b * KB;
    float s[2];
    dec_scale_halves(&p->w, row, b, s);
    for (int i = 0; i < NV; i++) v[i] = vf_mul(vf_i8(d + i * VW), vf_set(s[i * VW / 32]));
}

/* compressed-tensors 8 bit: code + 128; rows of whole words, no zero points (pick_int) */
CPU_INLINE void dec_ct8(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + row * p->w.k + b * KB;
    float s[2];
    dec_scale_halves(&p->w, row, b, s);
    for (int i = 0; i < NV; i++)
        v[i] = vf_mul(vf_sub(vf_u8(d + i * VW), vf_set(128)), vf_set(s[i * VW / 32]));
}

CPU_INLINE void dec_q8_0(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + (row * (p->w.k / 32) + b * 2) * 34;
    vf s[2] = {vf_set(dec_f16(d)), vf_set(dec_f16(d + 34))};
    for (int i = 0; i < NV; i++) {
        int h = i * VW / 32;
        v[i] = vf_mul(vf_i8(d + h * 34 + 2 + i * VW % 32), s[h]);
    }
}

/* 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K super-block */
CPU_INLINE void dec_k4_scale(const uint8_t *q, int j, float *sc, float *m)
{
    int s = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
    int n = j < 4 ? q[j + 4] & 63 : (q[j + 4] >> 4) | (q[j] >> 6) << 4;
    *sc = (float)s;
    *m = (float)n;
}

/* Q5_K: low nibbles are sub-block 2j, high ones 2j+1; the fifth bit of sub-block s is bit s of qh.
 */
CPU_INLINE void dec_q5_k(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *s = (const uint8_t *)p->w.data + (row * (p->w.k / 256) + b / 4) * 176;
    const uint8_t *qh = s + 16, *qs = s + 48 + b % 4 * 32;
    int j = (int)(b % 4) * 2;
    uint8_t c[KB];
    for (int i = 0; i < 32; i++) {
        c[i] = (uint8_t)((qs[i] & 15) | (qh[i] >> j & 1) << 4);
        c[i + 32] = (uint8_t)(qs[i] >> 4 | (qh[i] >> (j + 1) & 1) << 4);
    }
    float d = dec_f16(s), dmin = dec_f16(s + 2);
    for (int h = 0; h < 2; h++) {
        float sc, m;
        dec_k4_scale(s + 4, j + h, &sc, &m);
        vf ds = vf_set(d * sc), dm = vf_set(dmin * m);
        for (int i = h * NV / 2; i < (h + 1) * NV / 2; i++)
            v[i] = vf_sub(vf_mul(ds, vf_u8(c + i * VW)), dm);
    }
}

/* Q6_K: a half super-block is 128 columns; block b%2 of it takes the low (0) or high (1) nibbles of
 * 64 bytes. */
CPU_INLINE void dec_q6_k(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *s = (const uint8_t *)p->w.data + (row * (p->w.k / 256) + b / 4) * 210;
    int half = (int)(b % 4) / 2, high = (int)(b % 2);
    const uint8_t *ql = s + half * 64, *qh = s + 128 + half * 32;
    const int8_t *sc = (const int8_t *)s + 192 + half * 8 + high * 4;
    int8_t c[KB];
    for (int i = 0; i < 32; i++) {
        c[i] = (int8_t)(((ql[i] >> 4 * high & 15) | (qh[i] >> 4 * high & 3) << 4) - 32);
        c[i + 32] =
            (int8_t)(((ql[i + 32] >> 4 * high & 15) | (qh[i] >> (4 * high + 2) & 3) << 4) - 32);
    }
    float d = dec_f16(s + 208);
    for (int i = 0; i < NV; i++) v[i] = vf_mul(vf_set(d * sc[i * VW / 16]), vf_i8(c + i * VW));
}

/* ---- 4-bit codes by table ---- */

#if defined(__AVX2__)

enum lut { LUT_E2M1, LUT_Q4, LUT_U4, LUT_IQ4, LUT_MX4, LUT_COUNT };

#endif

#if defined(__AVX512F__)

static const float lut_f32[LUT_COUNT][16] = {
    [LUT_E2M1] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6},
    [LUT_Q4] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    [LUT_U4] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    [LUT_IQ4] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    [LUT_MX4] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
};

/* v[0], v[1]: low and high nibbles of the first 16 bytes; v[2], v[3] of the next. The permute reads
 * 4 bits of a lane. */
CPU_INLINE void nib64(const void *a, const void *b, enum lut t, vf *v)
{
    vf lut = vf_load(lut_f32[t]);
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(a)),
            y = _mm512_cvtepu8_epi32(_mm_loadu_si128(b));
    v[0] = _mm512_permutexvar_ps(x, lut);
    v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), lut);
    v[2] = _mm512_permutexvar_ps(y, lut);
    v[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(y, 4), lut);
}

/* Scales of the quarters of a block (16 columns each) where columns are pairs: v[0], v[1] hold
 * columns 0..31. */
CPU_INLINE void nib_scale_pairs(const float *s0, const float *s1, const float *s2, const float *s3,
                                vf *s)
{
    s[0] = s[1] = _mm512_insertf32x8(_mm512_set1_ps(*s0), _mm256_set1_ps(*s1), 1);
    s[2] = s[3] = _mm512_insertf32x8(_mm512_set1_ps(*s2), _mm256_set1_ps(*s3), 1);
}

static uint8_t perm_place(enum perm c, int i)
{
    int vec = i / 16, lane = i % 16, byte = vec / 2 * 16 + lane, high = vec % 2;
    if (c == PERM_PAIRS) return (uint8_t)(2 * byte + high);
    if (c == PERM_SPLIT64) return (uint8_t)(byte + 32 * high);
    return (uint8_t)i; /* SPLIT32: low nibbles of 16 bytes, then the high ones: natural */
}

/* Scale of vector i when low nibbles take lo and high ones hi (SPLIT64), or first and second 32
 * columns (SPLIT32) */
CPU_INLINE vf nib_by_nibble(int i, float lo, float hi)
{
    return vf_set(i % 2 ? hi : lo);
}
CPU_INLINE vf nib_by_half(int i, float first, float second)
{
    return vf_set(i / 2 ? second : first);
}
CPU_INLINE vf nib_pairs_by_half(int i, float first, float second)
{
    return vf_set(i / 2 ? second : first);
}

#elif defined(__AVX2__)

/* Every table value is exact in bf16: one shuffle gives its low byte, one its high byte. */
static const uint8_t lut_bytes[LUT_COUNT][2][16] = {
    [LUT_E2M1] = {{0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0},
                  {0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0,
                   0xc0, 0xc0}},
    [LUT_Q4] = {{0, 0xe0, 0xc0, 0xa0, 0x80, 0x40, 0, 0x80, 0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0,
                 0xe0},
                {0xc1, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf, 0, 0x3f, 0x40, 0x40, 0x40, 0x40,
                 0x40, 0x40}},
    [LUT_U4] = {{0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60,
                 0x70},
                {0, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
                 0x41, 0x41}},
    [LUT_IQ4] = {{0xfe, 0xd0, 0xa6, 0x82, 0x44, 0x0c, 0xb0, 0x20, 0x80, 0x50, 0xc8, 0x18, 0x54,
                  0x8a, 0xb2, 0xe2},
                 {0xc2, 0xc2, 0xc2, 0xc2, 0xc2, 0xc2, 0xc1, 0xc1, 0x3f, 0x41, 0x41, 0x42, 0x42,
                  0x42, 0x42, 0x42}},
    [LUT_MX4] = {{0, 0x80, 0, 0x40, 0x80, 0xc0, 0, 0x40, 0, 0x80, 0, 0x40, 0x80, 0xc0, 0, 0x40},
                 {0, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0,
                  0xc1, 0xc1}},
};

CPU_INLINE void nib32(__m256i code, enum lut t, vf *v)
{
    __m256i tl = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)lut_bytes[t][0]));
    __m256i th = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)lut_bytes[t][1]));
    __m256i l = _mm256_shuffle_epi8(tl, code), h = _mm256_shuffle_epi8(th, code);
    __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h),
            top = _mm256_set1_epi32((int)0xffff0000);
    v[0] = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    v[1] = _mm256_castsi256_ps(_mm256_and_si256(a, top));
    v[2] = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    v[3] = _mm256_castsi256_ps(_mm256_and_si256(b, top));
}

/* v[0..3]: low nibbles of 16 bytes at a (lanes 0..3) and 16 at b (lanes 4..7), v[4..7]: the high
 * ones. */
CPU_INLINE void nib64(const void *a, const void *b, enum lut t, vf *v)
{
    __m256i x =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b), 1);
    __m256i low = _mm256_set1_epi8(15);
    nib32(_mm256_and_si256(x, low), t, v);
    nib32(_mm256_and_si256(_mm256_srli_epi16(x, 4), low), t, v + 4);
}

/* s0..s3 point at four equal floats each */
CPU_INLINE void nib_scale_pairs(const float *s0, const float *s1, const float *s2, const float *s3,
                                vf *s)
{
    vf even = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(s0)), _mm_loadu_ps(s2), 1);
    vf odd = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(s1)), _mm_loadu_ps(s3), 1);
    s[0] = s[1] = s[4] = s[5] = even;
    s[2] = s[3] = s[6] = s[7] = odd;
}

static uint8_t perm_place(enum perm c, int i)
{
    int vec = i / 8, lane = i % 8, high = vec / 4;
    int byte = lane / 4 * 16 + vec % 4 / 2 * 8 + lane % 4 * 2 + vec % 2;
    if (c == PERM_PAIRS) return (uint8_t)(2 * byte + high);
    if (c == PERM_SPLIT64) return (uint8_t)(byte + 32 * high);
    if (c == PERM_SPLIT32) return (uint8_t)(byte / 16 * 32 + byte % 16 + 16 * high);
    return (uint8_t)i;
}

CPU_INLINE vf nib_by_nibble(int i, float lo, float hi)
{
    return vf_set(i / 4 ? hi : lo);
}
CPU_INLINE vf nib_lanes(float first, float second)
{
    return _mm256_insertf128_ps(_mm256_set1_ps(first), _mm_set1_ps(second), 1);
}
CPU_INLINE vf nib_by_half(int i, float first, float second)
{
    return nib_lanes(first, second);
}
CPU_INLINE vf nib_pairs_by_half(int i, float first, float second)
{
    return nib_lanes(first, second);
}

#else

static uint8_t perm_place(enum perm c, int i)
{
    return (uint8_t)i;
}

#endif

#if defined(__AVX2__)

/* p->table: 256 x 4 floats, e4m3 scale over or times the global one, as the oracle rounds it */
CPU_INLINE void dec_nvfp4(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + row * (p->w.k / 2) + b * 32;
    const uint8_t *s = (const uint8_t *)p->w.scale + row * (p->w.k / 16) + b * 4;
    vf sv[NV];
    nib64(d, d + 16, LUT_E2M1, v);
    nib_scale_pairs(p->table + 4 * s[0], p->table + 4 * s[1], p->table + 4 * s[2],
                    p->table + 4 * s[3], sv);
    for (int i = 0; i < NV; i++) v[i] = vf_mul(v[i], sv[i]);
}

CPU_INLINE void dec_q4(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const char *d = (const char *)p->w.data + row * (p->w.k / 2) + b * 32;
    float s[2];
    dec_scale_halves(&p->w, row, b, s);
    nib64(d, d + 16, LUT_Q4, v);
    for (int i = 0; i < NV; i++) v[i] = vf_mul(v[i], nib_pairs_by_half(i, s[0], s[1]));
}

/* Two blocks of 32: `at` bytes of scale, then 16 bytes of codes each. */
CPU_INLINE void dec_two32(const uint8_t *x, const uint8_t *y, float sx, float sy, enum lut t, vf *v)
{
    nib64(x, y, t, v);
    for (int i = 0; i < NV; i++) v[i] = vf_mul(v[i], nib_by_half(i, sx, sy));
}

CPU_INLINE void dec_q4_0(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *d = (const uint8_t *)p->w.data + (row * (p->w.k / 32) + b * 2) * 18;
    dec_two32(d + 2, d + 20, dec_f16(d), dec_f16(d + 18), LUT_Q4, v);
}

CPU_INLINE void dec_iq4_nl(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *d = (const uint8_t *)p->w.data + (row * (p->w.k / 32) + b * 2) * 18;
    dec_two32(d + 2, d + 20, dec_f16(d), dec_f16(d + 18), LUT_IQ4, v);
}

CPU_INLINE float dec_mx_scale(uint8_t e) /* 2^(e-128): the table holds doubled values */
{
    return lk_f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

CPU_INLINE void dec_mxfp4(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *d = (const uint8_t *)p->w.data + (row * (p->w.k / 32) + b * 2) * 17;
    dec_two32(d + 1, d + 18, dec_mx_scale(d[0]), dec_mx_scale(d[17]), LUT_MX4, v);
}

CPU_INLINE void dec_iq4_xs(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *s = (const uint8_t *)p->w.data + (row * (p->w.k / 256) + b / 4) * 136;
    int j = (int)(b % 4), high = lk_get16(s + 2) >> 4 * j;
    float d = dec_f16(s);
    float a = d * (float)(((s[4 + j] & 15) | (high & 3) << 4) - 32);
    float c = d * (float)((s[4 + j] >> 4 | (high >> 2 & 3) << 4) - 32);
    dec_two32(s + 8 + j * 32, s + 24 + j * 32, a, c, LUT_IQ4, v);
}

CPU_INLINE void dec_q4_k(const struct cpu_part *p, int64_t row, int64_t b, vf *v)
{
    const uint8_t *s = (const uint8_t *)p->w.data + (row * (p->w.k / 256) + b / 4) * 144,
                  *q = s + 16 + b % 4 * 32;
    float d = dec_f16(s), dmin = dec_f16(s + 2), sc[2], m[2];
    for (int h = 0; h < 2; h++) dec_k4_scale(s + 4, (int)(b % 4) * 2 + h, sc + h, m + h);
    nib64(q, q + 16, LUT_U4, v);
    for (int i = 0; i < NV; i++) {
        vf ds = nib_by_nibble(i, d * sc[0], d * sc[1]),
           dm = nib_by_nibble(i, dmin * m[0], dmin * m[1]);
        v[i] = vf_sub(vf_mul(ds, v[i]), dm);
    }
}

#endif
#endif
