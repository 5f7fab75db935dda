/* A vector of floats and the few operations that the kernels are written in. One text of a kernel
 * is compiled once an instruction set (isa_scalar.c, isa_avx2.c, isa_avx512.c): 4, 8 or 16 lanes.
 * The 4-lane form uses the compiler's own vectors and runs anywhere. Sums over lanes have one fixed
 * order a width. Loads and stores need no alignment. */
#ifndef LK_CPU_SIMD_H
#define LK_CPU_SIMD_H

#include "base/num.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define CPU_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)

#define VW 16
typedef __m512 vf;
CPU_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
CPU_INLINE void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
CPU_INLINE vf vf_set(float a)
{
    return _mm512_set1_ps(a);
}
CPU_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
CPU_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
CPU_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
CPU_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
CPU_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
CPU_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
CPU_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
CPU_INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, 0x08);
}
/* a * 2^n for whole n in the range of normal results */
CPU_INLINE vf vf_scale2(vf a, vf n)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
CPU_INLINE vf vf_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
CPU_INLINE vf vf_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
CPU_INLINE vf vf_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
CPU_INLINE vf vf_u8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p)));
}
/* e4m3 codes as f16 with the exponent left alone: value / 256, exact, denormals included */
CPU_INLINE vf vf_e4m3_256(const void *p)
{
    __m256i h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 8);
    h = _mm256_and_si256(_mm256_srai_epi16(h, 1), _mm256_set1_epi16((short)0xbfff));
    return _mm512_cvtph_ps(h);
}
CPU_INLINE __m128 vf_half(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

#elif defined(__AVX2__)

#define VW 8
typedef __m256 vf;
CPU_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
CPU_INLINE void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
CPU_INLINE vf vf_set(float a)
{
    return _mm256_set1_ps(a);
}
CPU_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
CPU_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
CPU_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
CPU_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
CPU_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
CPU_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
CPU_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
CPU_INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
CPU_INLINE vf vf_scale2(vf a, vf n)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
CPU_INLINE vf vf_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
CPU_INLINE vf vf_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
CPU_INLINE vf vf_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}
CPU_INLINE vf vf_u8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)));
}
CPU_INLINE __m128 vf_half(vf a)
{
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

#else

#define VW 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
CPU_INLINE vf vf_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
CPU_INLINE void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}
CPU_INLINE vf vf_set(float a)
{
    return (vf){a, a, a, a};
}
CPU_INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}
CPU_INLINE vf vf_sub(vf a, vf b)
{
    return a - b;
}
CPU_INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}
CPU_INLINE vf vf_div(vf a, vf b)
{
    return a / b;
}
CPU_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
CPU_INLINE vf vf_max(vf a, vf b)
{
    vi m = a > b;
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}
CPU_INLINE vf vf_min(vf a, vf b)
{
    vi m = a < b;
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}
/* to nearest even by the width of the mantissa; |a| < 2^22 */
CPU_INLINE vf vf_round(vf a)
{
    return (a + 12582912.0f) - 12582912.0f;
}
CPU_INLINE vf vf_scale2(vf a, vf n)
{
    return (vf)((vi)a + (__builtin_convertvector(n, vi) << 23));
}
CPU_INLINE vf vf_bf16(const void *p)
{
    const char *b = p;
    return (vf){lk_bf16_to_f32(lk_get16(b)), lk_bf16_to_f32(lk_get16(b + 2)),
                lk_bf16_to_f32(lk_get16(b + 4)), lk_bf16_to_f32(lk_get16(b + 6))};
}
CPU_INLINE vf vf_f16(const void *p)
{
    const char *b = p;
    return (vf){lk_f16_to_f32(lk_get16(b)), lk_f16_to_f32(lk_get16(b + 2)),
                lk_f16_to_f32(lk_get16(b + 4)), lk_f16_to_f32(lk_get16(b + 6))};
}
CPU_INLINE vf vf_i8(const void *p)
{
    const int8_t *b = p;
    return (vf){b[0], b[1], b[2], b[3]};
}
CPU_INLINE vf vf_u8(const void *p)
{
    const uint8_t *b = p;
    return (vf){b[0], b[1], b[2], b[3]};
}
CPU_INLINE vf vf_e4m3_256(const void *p)
{
    const uint8_t *b = p;
    vf a;
    for (int i = 0; i < VW; i++)
        a[i] = lk_f16_to_f32((uint16_t)((b[i] & 0x80) << 8 | (b[i] & 0x7f) << 7));
    return a;
}
typedef vf vf4;
CPU_INLINE vf vf_half(vf a)
{
    return a;
}

#endif

/* Sum over lanes: halves are added down to four lanes, those as (0+2) + (1+3). */
CPU_INLINE float vf_sum(vf a)
{
    float s[4];
#if defined(__AVX2__)
    _mm_storeu_ps(s, vf_half(a));
#else
    vf_store(s, a);
#endif
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* y[i] += sum over lanes of a_i, the same order and bits as vf_sum */
CPU_INLINE void vf_sum4_add(float *y, vf a, vf b, vf c, vf d)
{
#if defined(__AVX2__)
    __m128 p = vf_half(a), q = vf_half(b), r = vf_half(c), s = vf_half(d);
    __m128 pq = _mm_add_ps(_mm_movelh_ps(p, q), _mm_movehl_ps(q, p)); /* p0+p2 p1+p3 q0+q2 q1+q3 */
    __m128 rs = _mm_add_ps(_mm_movelh_ps(r, s), _mm_movehl_ps(s, r));
    __m128 even = _mm_shuffle_ps(pq, rs, 0x88), odd = _mm_shuffle_ps(pq, rs, 0xdd);
    _mm_storeu_ps(y, _mm_add_ps(_mm_loadu_ps(y), _mm_add_ps(even, odd)));
#else
    y[0] += vf_sum(a);
    y[1] += vf_sum(b);
    y[2] += vf_sum(c);
    y[3] += vf_sum(d);
#endif
}

CPU_INLINE float vf_hmax(vf a)
{
    float s[VW], m;
    vf_store(s, a);
    m = s[0];
    for (int i = 1; i < VW; i++) m = s[i] > m ? s[i] : m;
    return m;
}

/* e^x, 2 units in the last place; 0 below -87.3, capped at 88.3. x = n ln2 + r, |r| <= ln2/2, a
 * degree 6 series. */
CPU_INLINE vf vf_exp(vf x)
{
    vf lo = vf_set(-87.33654f), c = vf_min(vf_max(x, lo), vf_set(88.37f));
    vf n = vf_round(vf_mul(c, vf_set(1.44269504f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), c);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_fma(r, vf_set(1.3888889e-3f), vf_set(8.3333333e-3f));
    p = vf_fma(p, r, vf_set(4.1666667e-2f));
    p = vf_fma(p, r, vf_set(1.6666667e-1f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(vf_mul(p, r), r, vf_add(r, vf_set(1)));
    return vf_scale2(p, n);
}

/* x / (1 + e^-x) */
CPU_INLINE vf vf_silu(vf x)
{
    return vf_div(x, vf_add(vf_set(1), vf_exp(vf_sub(vf_set(0), x))));
}

CPU_INLINE vf vf_sigmoid(vf x)
{
    return vf_div(vf_set(1), vf_add(vf_set(1), vf_exp(vf_sub(vf_set(0), x))));
}

#endif
