/* Exact bit tricks from stored codes to pairs of f16: no conversion instruction, no rounding. Each function takes one 32-bit
 * word as pack.h lays it and gives half2 registers of adjacent columns. The matching encoders (pack.cu) stand here too, so
 * that the two are read side by side. */
#ifndef LK_CUDA_DEQUANT_CUH
#define LK_CUDA_DEQUANT_CUH

#include <stdint.h>

__device__ static inline uint32_t h2_mul(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ static inline uint32_t h2_add(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ static inline uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

__device__ static inline uint32_t h2_lo(uint32_t a) /* both halves = the low one */
{
    uint32_t r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(r) : "r"(a)); /* folds into the multiply */
    return r;
}

__device__ static inline uint32_t h2_hi(uint32_t a)
{
    uint32_t r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(r) : "r"(a));
    return r;
}

/* e2m1 -> f16 * 2^-14: exponent and mantissa fall into bits 11..9, 0.5 becomes an exact denormal. Half layout: magnitudes of
 * pairs 0..3 at bits 11-9, 8-6, 5-3, 2-0; signs at 15, 12, 14, 13 (pairs 0 and 1 need one mask, 2 and 3 two). */
__device__ static inline void fp4_pairs(uint32_t w, uint32_t p[4])
{
    p[0] = w & 0x8e008e00u;
    p[1] = (w << 3) & 0x8e008e00u;
    p[2] = (w & 0x40384038u) * 66 & 0x8e008e00u; /* by 6 and by 1: no two bits of the sum that count lie on each other */
    p[3] = (w & 0x20072007u) * 516 & 0x8e008e00u; /* by 9 and by 2 */
}

__device__ static inline uint32_t fp4_word(const uint8_t c[8]) /* columns 0..7 */
{
    const int mag[4] = {9, 6, 3, 0}, sign[4] = {15, 12, 14, 13};
    uint32_t w = 0;
    for (int i = 0; i < 8; i++) {
        int h = (i & 1) * 16, j = i >> 1;
        w |= (uint32_t)(c[i] & 7) << (mag[j] + h) | (uint32_t)(c[i] >> 3 & 1) << (sign[j] + h);
    }
    return w;
}

/* e4m3 -> f16 * 2^-8. Half layout: columns 0 (or 1): sign 15, magnitude 13-7; columns 2 (or 3): sign 14, magnitude 6-0. */
__device__ static inline void fp8_pairs(uint32_t w, uint32_t p[2])
{
    p[0] = w & 0xbf80bf80u;
    p[1] = ((w << 7) & 0x3f803f80u) | ((w << 1) & 0x80008000u);
}

__device__ static inline uint32_t fp8_word(const uint8_t c[4])
{
    uint32_t w = 0;
    for (int i = 0; i < 4; i++) {
        int h = (i & 1) * 16, s = i < 2 ? 15 : 14, m = i < 2 ? 7 : 0;
        w |= (uint32_t)(c[i] & 0x7f) << (m + h) | (uint32_t)(c[i] >> 7) << (s + h);
    }
    return w;
}

/* byte u = code + 128 under the high byte 0x64 is f16 1024 + u; minus 1152 is the code */
__device__ static inline void i8_pairs(uint32_t w, uint32_t p[2])
{
    p[0] = h2_add(__byte_perm(w, 0x64646464u, 0x4140), 0xe480e480u);
    p[1] = h2_add(__byte_perm(w, 0x64646464u, 0x4342), 0xe480e480u);
}

/* nibble n | 0x6400 is f16 1024 + n. Nibble j of each half is the pair j. bias: -(1024 + 8) or -1024 */
__device__ static inline void q4_pairs(uint32_t w, uint32_t bias, uint32_t p[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) p[j] = h2_add(((w >> (4 * j)) & 0x000f000fu) | 0x64006400u, bias);
}

__device__ static inline uint32_t q4_word(const uint8_t c[8])
{
    uint32_t w = 0;
    for (int i = 0; i < 8; i++) w |= (uint32_t)(c[i] & 15) << (4 * (i >> 1) + 16 * (i & 1));
    return w;
}

#endif
