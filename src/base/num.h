/* Number formats, exact scalar conversions. These are the definition; kernels use faster tricks and
 * are tested against these for every code. */
#ifndef LK_BASE_NUM_H
#define LK_BASE_NUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float lk_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t lk_bits_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float lk_bf16_to_f32(uint16_t h)
{
    return lk_f32_from_bits((uint32_t)h << 16);
}

/* round to nearest even; NaN stays NaN */
static inline uint16_t lk_f32_to_bf16(float f)
{
    uint32_t u = lk_bits_from_f32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

static inline float lk_f16_to_f32(uint16_t h)
{
    uint32_t s = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
    if (e == 31) return lk_f32_from_bits(s | 0x7f800000u | m << 13);
    if (e == 0) { /* zero and denormals: m * 2^-24 is exact in f32 */
        float f = (float)m * 0x1p-24f;
        return s ? -f : f;
    }
    return lk_f32_from_bits(s | (e + 112) << 23 | m << 13);
}

/* round to nearest even; overflow becomes infinity */
static inline uint16_t lk_f32_to_f16(float f)
{
    uint32_t u = lk_bits_from_f32(f), s = (u >> 16) & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(s | 0x7e00);
    if (a >= 0x477ff000u) return (uint16_t)(s | 0x7c00); /* >= 65520 */
    if (a < 0x38800000u) {                               /* denormal result: units of 2^-24 */
        float r = nearbyintf(lk_f32_from_bits(a) * 0x1p24f);
        return (uint16_t)(s | (uint32_t)r);
    }
    a += 0xfffu + ((a >> 13) & 1);
    return (uint16_t)(s | ((a - 0x38000000u) >> 13));
}

/* OCP e4m3fn: bias 7, no infinity, 0x7f and 0xff are NaN, largest 448 */
static inline float lk_e4m3_to_f32(uint8_t c)
{
    int e = (c >> 3) & 15, m = c & 7;
    float f;
    if (e == 15 && m == 7)
        f = NAN;
    else if (e == 0)
        f = (float)m * 0x1p-9f;
    else
        f = lk_f32_from_bits((uint32_t)(e + 120) << 23 | (uint32_t)m << 20);
    return c & 0x80 ? -f : f;
}

/* round to nearest even, saturating at 448; NaN becomes 0x7f */
static inline uint8_t lk_f32_to_e4m3(float f)
{
    uint32_t u = lk_bits_from_f32(f);
    uint8_t s = (uint8_t)((u >> 24) & 0x80);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint8_t)(s | 0x7f);
    float a = lk_f32_from_bits(u);
    if (a >= 464.0f) return (uint8_t)(s | 0x7e);
    if (a < 0x1p-6f) return (uint8_t)(s | (uint8_t)nearbyintf(a * 0x1p9f));
    u += 0x7ffffu + ((u >> 20) & 1);
    uint32_t c = (u >> 20) - (120u << 3);
    return (uint8_t)(s | (c > 0x7e ? 0x7e : c));
}

/* e2m1: sign, two exponent bits, one mantissa bit: 0 .5 1 1.5 2 3 4 6 */
static inline float lk_e2m1_to_f32(uint8_t c)
{
    static const float v[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return c & 8 ? -v[c & 7] : v[c & 7];
}

/* e8m0 (MXFP4 scale): 2^(c-127), 0xff is NaN */
static inline float lk_e8m0_to_f32(uint8_t c)
{
    return c == 0xff ? NAN : c == 0 ? 0x1p-127f : lk_f32_from_bits((uint32_t)c << 23);
}

static inline uint16_t lk_get16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline uint32_t lk_get32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint64_t lk_get64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

#endif
