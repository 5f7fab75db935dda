/* Codes of a weight in registers: bytes become f32 lanes, 4-bit codes become bytes, and the order in
 * which the columns of a block of 64 come out. Compiled once an instruction set; k_decode.h holds
 * what each format makes of it.
 *
 * x is laid out once a call in the order of a format's codes (perm_block), so that no code is moved
 * between lanes after it was read. */
#ifndef LK_CPU_K_CODES_H
#define LK_CPU_K_CODES_H

#include "cpu/cpu.h"
#include "cpu/simd.h"

#define KB 64        /* columns a block */
#define NV (KB / VW) /* vectors a block */

/* NATURAL: as stored. QUADS: 32 bytes, then 32 more. SPLIT32: two runs of 16 bytes that hold 32
 * columns each. PAIRS: 32 bytes, even columns low. */
enum perm { PERM_NATURAL, PERM_QUADS, PERM_SPLIT32, PERM_PAIRS };

enum lut { LUT_E2M1, LUT_Q4, LUT_N4, LUT_IQ4, LUT_COUNT };

/* Values of 4-bit codes as bytes; e2m1 doubled. */
static const int8_t lut_bytes[LUT_COUNT][16] __attribute__((aligned(16), unused)) = {
    [LUT_E2M1] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    [LUT_Q4] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
    [LUT_N4] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1},
    [LUT_IQ4] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
};

/* ---- 64 signed bytes, as two vectors of 32, to f32 times CODE_UNIT ---- */

#if defined(__AVX512F__)

#define CODE_UNIT 1.0f
#define CODE_XEXP 0
CPU_INLINE void codes_f32(__m256i a, __m256i b, vf *v)
{
    v[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(a)));
    v[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(a, 1)));
    v[2] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(b)));
    v[3] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(b, 1)));
}

#elif defined(__AVX2__)

/* A byte in the top of a lane is the code times 2^24: one shuffle instead of a widening that
 * crosses lanes. Vector j of 32 bytes holds bytes 4j..4j+3 and 16+4j..16+4j+3. */
#define CODE_UNIT 16777216.0f
#define CODE_XEXP (-24)
CPU_INLINE __m256i codes_top(__m256i a, int j)
{
    const char z = -1;
    int i = 4 * j;
    return _mm256_shuffle_epi8(
        a, _mm256_setr_epi8(z, z, z, (char)i, z, z, z, (char)(i + 1), z, z, z, (char)(i + 2), z, z,
                            z, (char)(i + 3), z, z, z, (char)i, z, z, z, (char)(i + 1), z, z, z,
                            (char)(i + 2), z, z, z, (char)(i + 3)));
}

CPU_INLINE void codes_f32(__m256i a, __m256i b, vf *v)
{
    for (int j = 0; j < 4; j++) v[j] = _mm256_cvtepi32_ps(codes_top(a, j));
    for (int j = 0; j < 4; j++) v[4 + j] = _mm256_cvtepi32_ps(codes_top(b, j));
}

#endif

#if defined(__AVX2__)

CPU_INLINE __m256i codes_32(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* 16 bytes at a, 16 at b */
CPU_INLINE __m256i codes_16x2(const void *a, const void *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b),
                                   1);
}

CPU_INLINE __m256i codes_low(__m256i x)
{
    return _mm256_and_si256(x, _mm256_set1_epi8(15));
}

CPU_INLINE __m256i codes_high(__m256i x)
{
    return codes_low(_mm256_srli_epi16(x, 4));
}

CPU_INLINE __m256i codes_lut(__m256i x, enum lut t)
{
    __m256i l = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)lut_bytes[t]));
    return _mm256_shuffle_epi8(l, x);
}

/* both nibbles of 32 bytes through a table */
CPU_INLINE void codes_nibbles(__m256i x, enum lut t, vf *v)
{
    codes_f32(codes_lut(codes_low(x), t), codes_lut(codes_high(x), t), v);
}

/* 8 unsigned bytes to f32, times d */
CPU_INLINE void codes_scales(uint64_t bytes, float d, float *out)
{
    __m128i b = _mm_cvtsi64_si128((long long)bytes);
    __m256 f = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b));
    _mm256_storeu_ps(out, _mm256_mul_ps(f, _mm256_set1_ps(d)));
}

#endif

/* ---- scale vectors ---- */

#if defined(__AVX512F__)
CPU_INLINE vf vf_halves(float a, float b)
{
    return _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
}
#elif defined(__AVX2__)
CPU_INLINE vf vf_halves(float a, float b)
{
    return _mm256_insertf128_ps(_mm256_set1_ps(a), _mm_set1_ps(b), 1);
}
#endif

/* ---- the order of columns ---- */

/* Column (0..63) at place i of a block. */
static inline int perm_place(enum perm c, int i)
{
#if defined(__AVX512F__)
    int half = i / 32, lane = i % 32; /* codes of a half come as stored */
    if (c == PERM_PAIRS) return 2 * lane + half;
    if (c == PERM_SPLIT32) return lane / 16 * 32 + lane % 16 + 16 * half;
    return i;
#else
    int half = i / 32, j = i % 32 / 8, lane = i % 8;
    int byte = lane / 4 * 16 + 4 * j + lane % 4; /* of the half's 32 */
    if (VW != 8 || c == PERM_NATURAL) return i;
    if (c == PERM_PAIRS) return 2 * byte + half;
    if (c == PERM_SPLIT32) return byte / 16 * 32 + byte % 16 + 16 * half;
    return half * 32 + byte;
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)

/* four floats at a, four at b */
CPU_INLINE vf perm_pick(const float *a, const float *b)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}

/* A block of x in order c, times m. The general form below says the same column by column. */
CPU_INLINE void perm_block(const float *x, enum perm c, vf m, float *out)
{
    for (int j = 0; j < 4; j++) {
        vf lo, hi;
        if (c == PERM_PAIRS) {
            vf a = perm_pick(x + 8 * j, x + 32 + 8 * j),
               b = perm_pick(x + 8 * j + 4, x + 36 + 8 * j);
            lo = _mm256_shuffle_ps(a, b, 0x88);
            hi = _mm256_shuffle_ps(a, b, 0xdd);
        } else if (c == PERM_SPLIT32) {
            lo = perm_pick(x + 4 * j, x + 32 + 4 * j);
            hi = perm_pick(x + 16 + 4 * j, x + 48 + 4 * j);
        } else if (c == PERM_QUADS) {
            lo = perm_pick(x + 4 * j, x + 16 + 4 * j);
            hi = perm_pick(x + 32 + 4 * j, x + 48 + 4 * j);
        } else {
            lo = vf_load(x + 8 * j);
            hi = vf_load(x + 32 + 8 * j);
        }
        vf_store(out + 8 * j, vf_mul(lo, m));
        vf_store(out + 32 + 8 * j, vf_mul(hi, m));
    }
}

#else

CPU_INLINE void perm_block(const float *x, enum perm c, vf m, float *out)
{
    float t[KB];
    if (c == PERM_NATURAL)
        memcpy(t, x, sizeof t);
    else
        for (int i = 0; i < KB; i++) t[i] = x[perm_place(c, i)];
    for (int i = 0; i < KB; i += VW) vf_store(out + i, vf_mul(vf_load(t + i), m));
}

#endif
#endif
