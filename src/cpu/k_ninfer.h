/* The planes of .ninfer files as a kernel reads them in place (format.h): nibbles, the fifth and sixth bits of codes
 * in planes of their own, one F16 scale for 64 columns. Compiled once an instruction set, AVX2 and up; elsewhere
 * lk_repack makes bytes of them at load.
 *
 * 42 to 50 bytes for 64 weights instead of the 66 of int8, and no copy: a file of 0.86 GB is ready in 0.07 s, not
 * 0.61. The tiled scales of NVFP4 are still copied into rows: read where they lie, four bytes of every 512, they
 * made a decode 5 to 7 % slower, with or without fetching ahead. */
#ifndef LK_CPU_K_NINFER_H
#define LK_CPU_K_NINFER_H

#include "cpu/k_decode.h"

#if defined(__AVX2__)

/* high: bytes of upper bits for a block of 64 columns */
CPU_INLINE void open_planes(struct cur *c, int64_t b0, int high)
{
    const struct lk_weight *w = &c->p->w;
    c->at = c->row * (w->k / KB) + b0;
    c->d = (const uint8_t *)w->data + 32 * c->at;
    if (high) c->s = (const uint8_t *)w->zero + high * c->at;
}

CPU_INLINE void planes_scale(struct cur *c, struct codes *o)
{
    o->s[0] = vf_set(dec_f16((const uint8_t *)c->p->w.scale + 2 * c->at++));
}

CPU_INLINE void open_n4(struct cur *c, int64_t b0)
{
    open_planes(c, b0, 0);
}
CPU_INLINE void open_n5(struct cur *c, int64_t b0)
{
    open_planes(c, b0, 8);
}
CPU_INLINE void open_n6(struct cur *c, int64_t b0)
{
    open_planes(c, b0, 16);
}

CPU_INLINE void dec_n4(struct cur *c, struct codes *o)
{
    planes_scale(c, o);
    codes_nibbles(codes_32(c->d), LUT_N4, o->v);
    c->d += 32;
}

/* Bit c of eight bytes belongs to column c: byte i of the even columns' nibbles takes bit 2 i, of the odd ones'
 * bit 2 i + 1. It weighs -16, which is four ones above a nibble. */
CPU_INLINE void dec_n5(struct cur *c, struct codes *o)
{
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4,
                                            4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7),
                  even = _mm256_set1_epi32(0x40100401), odd = _mm256_set1_epi32((int)0x80200802),
                  four = _mm256_set1_epi8((char)0xf0);
    planes_scale(c, o);
    __m256i q = codes_32(c->d);
    __m256i h = _mm256_broadcastq_epi64(_mm_loadl_epi64((const void *)c->s));
    h = _mm256_shuffle_epi8(h, spread);
    __m256i a = _mm256_cmpeq_epi8(_mm256_and_si256(h, even), even);
    __m256i b = _mm256_cmpeq_epi8(_mm256_and_si256(h, odd), odd);
    a = _mm256_or_si256(codes_low(q), _mm256_and_si256(a, four));
    b = _mm256_or_si256(codes_high(q), _mm256_and_si256(b, four));
    codes_f32(a, b, o->v);
    c->d += 32;
    c->s += 8;
}

/* Two bits a column: nibble i of sixteen bytes belongs to columns 2 i (its lower half) and 2 i + 1. They weigh 16
 * and -32. */
CPU_INLINE void dec_n6(struct cur *c, struct codes *o)
{
    const char p = 16, m = -32, n = -16;
    const __m256i even = _mm256_setr_epi8(0, p, m, n, 0, p, m, n, 0, p, m, n, 0, p, m, n, 0, p, m,
                                          n, 0, p, m, n, 0, p, m, n, 0, p, m, n),
                  odd = _mm256_setr_epi8(0, 0, 0, 0, p, p, p, p, m, m, m, m, n, n, n, n, 0, 0, 0, 0,
                                         p, p, p, p, m, m, m, m, n, n, n, n);
    planes_scale(c, o);
    __m256i q = codes_32(c->d);
    __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)c->s));
    h = codes_low(_mm256_or_si256(h, _mm256_slli_epi16(h, 4)));
    __m256i a = _mm256_or_si256(codes_low(q), _mm256_shuffle_epi8(even, h));
    __m256i b = _mm256_or_si256(codes_high(q), _mm256_shuffle_epi8(odd, h));
    codes_f32(a, b, o->v);
    c->d += 32;
    c->s += 16;
}

#endif
#endif
