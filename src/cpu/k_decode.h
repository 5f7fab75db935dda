/* Decoding weights: a cursor walks a row in blocks of 64 columns; a format's dec gives codes as f32
 * vectors and the scales that belong to them. Compiled once an instruction set.
 *
 * A weight is v[i] * s[class of i] (+ m[class], where the format has minimums), times 2^xexp of its
 * format: that power of two is multiplied into x instead, once a call. Values agree with
 * lk_weight_row to one rounding. A row's last columns, where k is no multiple of 64, go through the
 * oracle. E4m3 NaN codes are remembered (`nan`), and the row answers NaN, as the oracle does. */
#ifndef LK_CPU_K_DECODE_H
#define LK_CPU_K_DECODE_H

#include "cpu/k_codes.h"

#include <limits.h>

struct cur {
    const struct cpu_part *p;
    const uint8_t *d, *s; /* next codes; next scales, or the super-block's start */
    int64_t row, b, at;   /* b: next block; at: scale in use */
    int per, left;        /* blocks a scale; blocks until the next */
    vf sv;                /* scale in use */
#if defined(__AVX512F__)
    __mmask64 nan;
#elif defined(__AVX2__)
    __m256i top_u, top_s; /* largest code so far, read as unsigned and as signed */
#else
    int nan;
#endif
    float sc[16], mn[16]; /* a super-block's scales and negated minimums */
};

struct codes {
    vf v[NV], s[4], m[4];
    float four[4 * KB]; /* the oracle's decode of four blocks: it takes 256 columns at a time */
};

typedef void (*dec_fn)(struct cur *c, struct codes *o);
typedef void (*open_fn)(struct cur *c, int64_t b0);

/* How vectors share scales: the first or second half of a block; every other run; one each. */
enum cls { CLS_HALVES, CLS_ALT, CLS_EACH };

CPU_INLINE int cls_of(enum cls c, int i)
{
    if (c == CLS_HALVES) return i / (NV / 2);
    if (c == CLS_EACH) return i;
    return VW == 16 ? i % 2 : i / 2 % 2;
}

CPU_INLINE float dec_f16(const void *p)
{
#if defined(__AVX2__)
    return _cvtsh_ss(lk_get16(p));
#else
    return lk_f16_to_f32(lk_get16(p));
#endif
}

CPU_INLINE float dec_scale(const struct lk_weight *w, int64_t i)
{
    const char *s = w->scale;
    if (w->scale_dtype == LK_DT_F32) return lk_f32_from_bits(lk_get32(s + 4 * i));
    if (w->scale_dtype == LK_DT_BF16) return lk_bf16_to_f32(lk_get16(s + 2 * i));
    if (w->scale_dtype == LK_DT_F16) return dec_f16(s + 2 * i);
    return lk_dtype_get(w->scale_dtype, s, i);
}

/* The oracle's decode of block b, in the order of a format: tails. */
static void dec_oracle(const struct cpu_part *p, int64_t row, int64_t b, enum perm perm, vf *v)
{
    float nat[KB] = {0}, w[KB];
    int64_t left = p->w.k - b * KB;
    lk_weight_row(&p->w, row, b * KB, left < KB ? left : KB, nat);
    for (int i = 0; i < KB; i++) w[i] = nat[perm_place(perm, i)];
    for (int i = 0; i < NV; i++) v[i] = vf_load(w + i * VW);
}

/* ---- any format: the oracle ---- */

CPU_INLINE void open_any(struct cur *c, int64_t b0) {}

/* Rows and panels begin where a super-block of 256 does; decoded once, not once a block. */
CPU_INLINE void dec_any(struct cur *c, struct codes *o)
{
    if (!c->left) {
        int64_t n = (c->p->w.k / KB - c->b) * KB;
        lk_weight_row(&c->p->w, c->row, c->b * KB, n < 4 * KB ? n : 4 * KB, o->four);
    }
    for (int i = 0; i < NV; i++) o->v[i] = vf_load(o->four + c->left * KB + i * VW);
    c->left = (c->left + 1) & 3;
}

/* ---- plain numbers ---- */

CPU_INLINE void open_bytes(struct cur *c, int64_t b0, int bytes)
{
    c->d = (const uint8_t *)c->p->w.data + (c->row * c->p->w.k + b0 * KB) * bytes;
}

CPU_INLINE void open_f32(struct cur *c, int64_t b0)
{
    open_bytes(c, b0, 4);
}
CPU_INLINE void open_f16s(struct cur *c, int64_t b0)
{
    open_bytes(c, b0, 2);
}
CPU_INLINE void open_bf16(struct cur *c, int64_t b0)
{
    open_bytes(c, b0, 2);
}

CPU_INLINE void dec_f32(struct cur *c, struct codes *o)
{
    for (int i = 0; i < NV; i++) memcpy(o->v + i, c->d + 4 * i * VW, sizeof *o->v);
    c->d += 4 * KB;
}

CPU_INLINE void dec_f16s(struct cur *c, struct codes *o)
{
    for (int i = 0; i < NV; i++) o->v[i] = vf_f16(c->d + 2 * i * VW);
    c->d += 2 * KB;
}

CPU_INLINE void dec_bf16(struct cur *c, struct codes *o)
{
    for (int i = 0; i < NV; i++) o->v[i] = vf_bf16(c->d + 2 * i * VW);
    c->d += 2 * KB;
}

/* ---- one scale for whole blocks of 64 columns, or for half a block ---- */

/* row0: index of the row's first scale; cols: columns a scale */
CPU_INLINE void group_open(struct cur *c, int64_t row0, int64_t cols, int64_t b0)
{
    int64_t per = cols >= c->p->w.k ? INT_MAX : cols / KB; /* 0: groups of 32 */
    c->per = (int)per;
    c->at = per ? row0 + b0 / per : row0 + 2 * b0;
    c->left = per ? (int)(per - b0 % per) : 0;
    if (per) c->sv = vf_set(dec_scale(&c->p->w, c->at));
}

/* The scale of the next whole block. */
CPU_INLINE vf group_next(struct cur *c)
{
    if (__builtin_expect(!c->left--, 0)) {
        c->sv = vf_set(dec_scale(&c->p->w, ++c->at));
        c->left = c->per - 1;
    }
    return c->sv;
}

CPU_INLINE void int_open(struct cur *c, int64_t b0)
{
    const struct lk_weight *w = &c->p->w;
    group_open(c, c->row * ((w->k + w->group - 1) / w->group), w->group, b0);
}

CPU_INLINE void int_halves(struct cur *c, vf *s)
{
    if (c->per) {
        s[0] = s[1] = group_next(c);
        return;
    }
    s[0] = vf_set(dec_scale(&c->p->w, c->at));
    s[1] = vf_set(dec_scale(&c->p->w, c->at + 1));
    c->at += 2;
}

CPU_INLINE void open_i8(struct cur *c, int64_t b0)
{
    open_bytes(c, b0, 1);
    int_open(c, b0);
}
CPU_INLINE void open_ct8(struct cur *c, int64_t b0)
{
    open_i8(c, b0);
}

CPU_INLINE void dec_i8(struct cur *c, struct codes *o)
{
    int_halves(c, o->s);
    for (int i = 0; i < NV; i++) o->v[i] = vf_i8(c->d + i * VW);
    c->d += KB;
}

/* compressed-tensors 8 bit: code + 128; rows of whole words, no zero points (pick_int) */
CPU_INLINE void dec_ct8(struct cur *c, struct codes *o)
{
    int_halves(c, o->s);
    for (int i = 0; i < NV; i++) o->v[i] = vf_sub(vf_u8(c->d + i * VW), vf_set(128));
    c->d += KB;
}

/* ---- FP8: block_k is whole blocks of 64, or the whole row (lin_pick) ---- */

/* Codes as f16 with the exponent left alone are value / 256, denormals included, and that conversion
 * costs the same for all of them. (Straight to f32 by shifts is a fifth faster on Zen 3, but the
 * denormals it leaves to the multiplier cost 50 times the product on Intel: 10 GFLOP/s instead of
 * 600 on random codes.) */
#define FP8_XEXP 8
CPU_INLINE void fp8_codes(struct cur *c, vf *v)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    const char z = -1;
    const __m256i spread = _mm256_setr_epi8(z, 0, z, 1, z, 2, z, 3, z, 4, z, 5, z, 6, z, 7, z, 8, z,
                                            9, z, 10, z, 11, z, 12, z, 13, z, 14, z, 15);
    for (int i = 0; i < 4; i++) {
        __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(c->d + 16 * i)));
        x = _mm256_srai_epi16(_mm256_shuffle_epi8(x, spread), 1);
        x = _mm256_and_si256(x, _mm256_set1_epi16((short)0xbfff));
        v[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
        v[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
    }
#else
    for (int i = 0; i < NV; i++) v[i] = vf_e4m3_256(c->d + i * VW);
#endif
}

#if defined(__AVX512F__)

CPU_INLINE void fp8_look(struct cur *c)
{
    __m512i m = _mm512_set1_epi8(127), x = _mm512_loadu_si512(c->d);
    c->nan |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(x, m), m);
}
CPU_INLINE void fp8_clear(struct cur *c)
{
    c->nan = 0;
}
CPU_INLINE int fp8_nan(const struct cur *c)
{
    return c->nan != 0;
}

#elif defined(__AVX2__)

CPU_INLINE void fp8_look(struct cur *c)
{
    for (int i = 0; i < 2; i++) {
        __m256i x = codes_32(c->d + 32 * i);
        c->top_u = _mm256_max_epu8(c->top_u, x);
        c->top_s = _mm256_max_epi8(c->top_s, x);
    }
}
CPU_INLINE void fp8_clear(struct cur *c)
{
    c->top_u = c->top_s = _mm256_setzero_si256();
}
CPU_INLINE int fp8_nan(const struct cur *c) /* 0xff or 0x7f was there */
{
    __m256i u = _mm256_cmpeq_epi8(c->top_u, _mm256_set1_epi8(-1));
    __m256i s = _mm256_cmpeq_epi8(c->top_s, _mm256_set1_epi8(127));
    return _mm256_movemask_epi8(_mm256_or_si256(u, s)) != 0;
}

#else

CPU_INLINE void fp8_look(struct cur *c)
{
    for (int i = 0; i < KB; i++) c->nan |= (c->d[i] & 127) == 127;
}
CPU_INLINE void fp8_clear(struct cur *c)
{
    c->nan = 0;
}
CPU_INLINE int fp8_nan(const struct cur *c)
{
    return c->nan;
}

#endif

CPU_INLINE void open_fp8(struct cur *c, int64_t b0)
{
    const struct lk_weight *w = &c->p->w;
    open_bytes(c, b0, 1);
    fp8_clear(c);
    group_open(c, c->row / w->block_n * ((w->k + w->block_k - 1) / w->block_k), w->block_k, b0);
}

CPU_INLINE void dec_fp8(struct cur *c, struct codes *o)
{
    o->s[0] = group_next(c);
    fp8_codes(c, o->v);
    fp8_look(c);
    c->d += KB;
}

/* ---- GGUF ---- */

/* n: columns a block, of `bytes` bytes */
CPU_INLINE void gg_open(struct cur *c, int64_t b0, int n, int bytes)
{
    c->s = (const uint8_t *)c->p->w.data + (c->row * (c->p->w.k / n) + b0 * KB / n) * bytes;
    c->left = (int)(b0 % 4); /* block of the super-block, where there is one */
}

CPU_INLINE void open_q8_0(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 32, 34);
    c->d = c->s;
}

CPU_INLINE void dec_q8_0(struct cur *c, struct codes *o)
{
    for (int h = 0; h < 2; h++) {
        o->s[h] = vf_set(dec_f16(c->d + 34 * h));
        for (int i = 0; i < NV / 2; i++)
            o->v[h * NV / 2 + i] = vf_i8(c->d + 34 * h + 2 + i * VW);
    }
    c->d += 68;
}

#if defined(__AVX2__)

/* ---- 4-bit codes ---- */

#if defined(__AVX512F__)
enum { RUN_NS = 2 }; /* scales of SPLIT32, and of PAIRS in groups of 32 */
CPU_INLINE void scales_run(float a, float b, vf *s)
{
    s[0] = vf_set(a);
    s[1] = vf_set(b);
}
#else
enum { RUN_NS = 1 };
CPU_INLINE void scales_run(float a, float b, vf *s)
{
    s[0] = vf_halves(a, b);
}
#endif

CPU_INLINE void open_nvfp4(struct cur *c, int64_t b0)
{
    const struct lk_weight *w = &c->p->w;
    c->d = (const uint8_t *)w->data + c->row * (w->k / 2) + b0 * 32;
    c->s = (const uint8_t *)w->scale + c->row * (w->k / 16) + b0 * 4;
}

/* p->table: 256 x 4 floats, e4m3 scale over or times the global one, as the oracle rounds it */
CPU_INLINE void dec_nvfp4(struct cur *c, struct codes *o)
{
    const float *t = c->p->table, *a = t + 4 * c->s[0], *b = t + 4 * c->s[1],
                *e = t + 4 * c->s[2], *f = t + 4 * c->s[3];
#if defined(__AVX512F__)
    o->s[0] = vf_halves(*a, *b);
    o->s[1] = vf_halves(*e, *f);
#else
    o->s[0] = perm_pick(a, e);
    o->s[1] = perm_pick(b, f);
#endif
    codes_nibbles(codes_32(c->d), LUT_E2M1, o->v);
    c->d += 32;
    c->s += 4;
}

CPU_INLINE void open_q4(struct cur *c, int64_t b0)
{
    const struct lk_weight *w = &c->p->w;
    c->d = (const uint8_t *)w->data + c->row * (w->k / 2) + b0 * 32;
    int_open(c, b0);
}

CPU_INLINE void dec_q4(struct cur *c, struct codes *o)
{
    if (c->per) {
        o->s[0] = o->s[1] = group_next(c);
    } else {
        scales_run(dec_scale(&c->p->w, c->at), dec_scale(&c->p->w, c->at + 1), o->s);
        c->at += 2;
    }
    codes_nibbles(codes_32(c->d), LUT_Q4, o->v);
    c->d += 32;
}

/* Two blocks of 32 columns: a scale of `head` bytes, 16 bytes of codes each. */
CPU_INLINE void dec_two32(struct cur *c, int head, float a, float b, enum lut t, struct codes *o)
{
    scales_run(a, b, o->s);
    codes_nibbles(codes_16x2(c->d + head, c->d + 2 * head + 16), t, o->v);
    c->d += 2 * (head + 16);
}

CPU_INLINE void open_q4_0(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 32, 18);
    c->d = c->s;
}
CPU_INLINE void open_iq4_nl(struct cur *c, int64_t b0)
{
    open_q4_0(c, b0);
}
CPU_INLINE void open_mxfp4(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 32, 17);
    c->d = c->s;
}

CPU_INLINE void dec_q4_0(struct cur *c, struct codes *o)
{
    dec_two32(c, 2, dec_f16(c->d), dec_f16(c->d + 18), LUT_Q4, o);
}

CPU_INLINE void dec_iq4_nl(struct cur *c, struct codes *o)
{
    dec_two32(c, 2, dec_f16(c->d), dec_f16(c->d + 18), LUT_IQ4, o);
}

/* ---- 32 columns a block with a minimum, or with fifth bits ---- */

/* The scales of two runs where each class of vectors looks for its own (formats with minimums). */
CPU_INLINE void run_both(float a, float b, vf *s)
{
#if defined(__AVX512F__)
    s[0] = vf_set(a);
    s[1] = vf_set(b);
#else
    s[0] = s[1] = vf_halves(a, b);
#endif
}

/* Byte i of a half is 16 where that half's word has bit i (high: i + 16). */
CPU_INLINE __m256i fifth_bits(uint32_t a, uint32_t b, const int high)
{
    const char u = (char)(2 * high), v = (char)(2 * high + 1);
    const __m256i pick = _mm256_setr_epi8(u, u, u, u, u, u, u, u, v, v, v, v, v, v, v, v, u, u, u, u,
                                          u, u, u, u, v, v, v, v, v, v, v, v);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32((int)a)),
                                        _mm_set1_epi32((int)b), 1);
    x = _mm256_and_si256(_mm256_shuffle_epi8(x, pick), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(16));
}

/* Scales and minima of two blocks that begin with d and m. */
CPU_INLINE void scales_mins(const uint8_t *a, const uint8_t *b, struct codes *o)
{
    run_both(dec_f16(a) / CODE_UNIT, dec_f16(b) / CODE_UNIT, o->s);
    run_both(dec_f16(a + 2), dec_f16(b + 2), o->m);
}

/* d, m, 16 bytes of codes */
CPU_INLINE void open_q4_1(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 32, 20);
    c->d = c->s;
}

CPU_INLINE void dec_q4_1(struct cur *c, struct codes *o)
{
    const uint8_t *a = c->d, *b = a + 20;
    scales_mins(a, b, o);
    __m256i q = codes_16x2(a + 4, b + 4);
    codes_f32(codes_low(q), codes_high(q), o->v);
    c->d += 40;
}

/* The 5-bit codes of two blocks whose fifth bits lie at qa and qb, 16 bytes of the others behind them. */
CPU_INLINE void codes_five(const uint8_t *qa, const uint8_t *qb, int off, vf *v)
{
    uint32_t ha = lk_get32(qa), hb = lk_get32(qb);
    __m256i q = codes_16x2(qa + 4, qb + 4), less = _mm256_set1_epi8((char)off);
    __m256i lo = _mm256_or_si256(codes_low(q), fifth_bits(ha, hb, 0));
    __m256i hi = _mm256_or_si256(codes_high(q), fifth_bits(ha, hb, 1));
    codes_f32(_mm256_sub_epi8(lo, less), _mm256_sub_epi8(hi, less), v);
}

/* d, fifth bits, 16 bytes of codes */
CPU_INLINE void open_q5_0(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 32, 22);
    c->d = c->s;
}

CPU_INLINE void dec_q5_0(struct cur *c, struct codes *o)
{
    scales_run(dec_f16(c->d), dec_f16(c->d + 22), o->s);
    codes_five(c->d + 2, c->d + 24, 16, o->v);
    c->d += 44;
}

/* d, m, fifth bits, 16 bytes of codes */
CPU_INLINE void open_q5_1(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 32, 24);
    c->d = c->s;
}

CPU_INLINE void dec_q5_1(struct cur *c, struct codes *o)
{
    const uint8_t *a = c->d, *b = a + 24;
    scales_mins(a, b, o);
    codes_five(a + 4, b + 4, 0, o->v);
    c->d += 48;
}

CPU_INLINE float dec_mx_scale(uint8_t e) /* 2^(e-128): the table holds doubled values */
{
    return lk_f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

CPU_INLINE void dec_mxfp4(struct cur *c, struct codes *o)
{
    dec_two32(c, 1, dec_mx_scale(c->d[0]), dec_mx_scale(c->d[17]), LUT_E2M1, o);
}

/* ---- super-blocks of 256: c->left counts 0..3 through one, c->s is its start ---- */

CPU_INLINE void k_next(struct cur *c, int bytes)
{
    c->left = (c->left + 1) & 3;
    if (!c->left) c->s += bytes;
}

CPU_INLINE void open_iq4_xs(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 256, 136);
}

CPU_INLINE void dec_iq4_xs(struct cur *c, struct codes *o)
{
    const uint8_t *s = c->s, *q = s + 8 + c->left * 32;
    int j = c->left, high = lk_get16(s + 2) >> 4 * j;
    float d = dec_f16(s) / CODE_UNIT;
    float a = d * (float)(((s[4 + j] & 15) | (high & 3) << 4) - 32);
    float b = d * (float)((s[4 + j] >> 4 | (high >> 2 & 3) << 4) - 32);
    scales_run(a, b, o->s);
    codes_nibbles(codes_16x2(q, q + 16), LUT_IQ4, o->v);
    k_next(c, 136);
}

/* 6-bit scales and minimums of a Q4_K or Q5_K super-block */
CPU_INLINE void k4_scales(struct cur *c)
{
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
    uint32_t a = lk_get32(c->s + 4), b = lk_get32(c->s + 8), e = lk_get32(c->s + 12);
    uint64_t sc = (e & four) | (a >> 6 & two) << 4, mn = (e >> 4 & four) | (b >> 6 & two) << 4;
    codes_scales(sc << 32 | (a & six), dec_f16(c->s) / CODE_UNIT, c->sc);
    codes_scales(mn << 32 | (b & six), -dec_f16(c->s + 2), c->mn);
}

CPU_INLINE void k4_begin(struct cur *c)
{
    if (c->left) k4_scales(c); /* a cursor that starts inside */
}

CPU_INLINE void k4_take(struct cur *c, struct codes *o)
{
    if (!c->left) k4_scales(c);
    for (int h = 0; h < 2; h++) {
        o->s[h] = vf_set(c->sc[2 * c->left + h]);
        o->m[h] = vf_set(c->mn[2 * c->left + h]);
    }
}

CPU_INLINE void open_q4_k(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 256, 144);
    k4_begin(c);
}

CPU_INLINE void dec_q4_k(struct cur *c, struct codes *o)
{
    k4_take(c, o);
    __m256i q = codes_32(c->s + 16 + c->left * 32);
    codes_f32(codes_low(q), codes_high(q), o->v);
    k_next(c, 144);
}

CPU_INLINE void open_q5_k(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 256, 176);
    k4_begin(c);
}

/* low nibbles are sub-block 2j, high ones 2j+1; the fifth bit of sub-block s is bit s of qh */
CPU_INLINE void dec_q5_k(struct cur *c, struct codes *o)
{
    k4_take(c, o);
    __m256i q = codes_32(c->s + 48 + c->left * 32), bit = _mm256_set1_epi8(16);
    __m256i h = _mm256_srl_epi16(codes_32(c->s + 16), _mm_cvtsi32_si128(2 * c->left));
    __m256i a = _mm256_and_si256(_mm256_slli_epi16(h, 4), bit);
    __m256i b = _mm256_and_si256(_mm256_slli_epi16(h, 3), bit);
    codes_f32(_mm256_or_si256(codes_low(q), a), _mm256_or_si256(codes_high(q), b), o->v);
    k_next(c, 176);
}

CPU_INLINE void q6_scales(struct cur *c)
{
    float d = dec_f16(c->s + 208) / CODE_UNIT;
    for (int i = 0; i < 16; i += VW) vf_store(c->sc + i, vf_mul(vf_set(d), vf_i8(c->s + 192 + i)));
}

CPU_INLINE void open_q6_k(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 256, 210);
    if (c->left) q6_scales(c);
}

#if defined(__AVX512F__)
#define Q6_NS 4
#define Q6_CLS CLS_EACH
CPU_INLINE void q6_take(const float *sc, vf *s)
{
    for (int i = 0; i < 4; i++) s[i] = vf_set(sc[i]);
}
#else
#define Q6_NS 2
#define Q6_CLS CLS_HALVES
CPU_INLINE void q6_take(const float *sc, vf *s)
{
    s[0] = vf_halves(sc[0], sc[1]);
    s[1] = vf_halves(sc[2], sc[3]);
}
#endif

/* A half super-block is 128 columns: its first block takes the low nibbles of 64 bytes, the second
 * the high ones, each two bits of 32 bytes of qh for 32 columns. */
CPU_INLINE void dec_q6_k(struct cur *c, struct codes *o)
{
    if (!c->left) q6_scales(c);
    int half = c->left / 2, high = c->left % 2;
    __m128i by = _mm_cvtsi32_si128(4 * high);
    __m256i bits = _mm256_set1_epi8(48), off = _mm256_set1_epi8(32);
    __m256i h = _mm256_srl_epi16(codes_32(c->s + 128 + half * 32), by);
    __m256i a = codes_low(_mm256_srl_epi16(codes_32(c->s + half * 64), by));
    __m256i b = codes_low(_mm256_srl_epi16(codes_32(c->s + half * 64 + 32), by));
    a = _mm256_or_si256(a, _mm256_and_si256(_mm256_slli_epi16(h, 4), bits));
    b = _mm256_or_si256(b, _mm256_and_si256(_mm256_slli_epi16(h, 2), bits));
    q6_take(c->sc + 4 * c->left, o->s);
    codes_f32(_mm256_sub_epi8(a, off), _mm256_sub_epi8(b, off), o->v);
    k_next(c, 210);
}

/* Two bits a code: 32 bytes hold 128 columns, 32 in each pair of bits; 16 columns share a scale. */
CPU_INLINE __m256i codes_pair(__m256i q, int shift)
{
    return _mm256_and_si256(_mm256_srl_epi16(q, _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(3));
}

/* 16 bytes of a scale (low) and a minimum (high), codes, d and dmin */
CPU_INLINE void q2_scales(struct cur *c)
{
    const uint64_t four = 0x0f0f0f0f0f0f0f0fu;
    float d = dec_f16(c->s + 80) / CODE_UNIT, m = -dec_f16(c->s + 82);
    for (int i = 0; i < 16; i += 8) {
        uint64_t x = lk_get32(c->s + i) | (uint64_t)lk_get32(c->s + i + 4) << 32;
        codes_scales(x & four, d, c->sc + i);
        codes_scales(x >> 4 & four, m, c->mn + i);
    }
}

CPU_INLINE void open_q2_k(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 256, 84);
    if (c->left) q2_scales(c);
}

CPU_INLINE void dec_q2_k(struct cur *c, struct codes *o)
{
    if (!c->left) q2_scales(c);
    __m256i q = codes_32(c->s + 16 + c->left / 2 * 32);
    int shift = c->left % 2 * 4;
    q6_take(c->sc + 4 * c->left, o->s);
    q6_take(c->mn + 4 * c->left, o->m);
    codes_f32(codes_pair(q, shift), codes_pair(q, shift + 2), o->v);
    k_next(c, 84);
}

/* 16 scales of 6 bits, less 32: their upper two bits lie in the last of three words */
CPU_INLINE void q3_scales(struct cur *c)
{
    const uint32_t four = 0x0f0f0f0f, two = 0x03030303, top = 0x80808080;
    uint32_t a = lk_get32(c->s + 96), b = lk_get32(c->s + 100), h = lk_get32(c->s + 104);
    uint32_t six[4] = {(a & four) | (h & two) << 4, (b & four) | (h >> 2 & two) << 4,
                       (a >> 4 & four) | (h >> 4 & two) << 4, (b >> 4 & four) | (h >> 6 & two) << 4};
    for (int i = 0; i < 4; i++) six[i] = ((six[i] | top) - 0x20202020) ^ top;
    float d = dec_f16(c->s + 108) / CODE_UNIT;
    for (int i = 0; i < 16; i += VW)
        vf_store(c->sc + i, vf_mul(vf_set(d), vf_i8((const uint8_t *)six + i)));
}

CPU_INLINE void open_q3_k(struct cur *c, int64_t b0)
{
    gg_open(c, b0, 256, 110);
    if (c->left) q3_scales(c);
}

/* The third bit of 32 columns is one bit of 32 bytes at the start; where it is clear, 4 is taken off. */
CPU_INLINE void dec_q3_k(struct cur *c, struct codes *o)
{
    if (!c->left) q3_scales(c);
    __m256i q = codes_32(c->s + 32 + c->left / 2 * 32), four = _mm256_set1_epi8(4);
    __m256i h = _mm256_srl_epi16(codes_32(c->s), _mm_cvtsi32_si128(2 * c->left));
    int shift = c->left % 2 * 4;
    __m256i a = _mm256_or_si256(codes_pair(q, shift), _mm256_and_si256(_mm256_slli_epi16(h, 2), four));
    __m256i b = _mm256_or_si256(codes_pair(q, shift + 2), _mm256_and_si256(_mm256_slli_epi16(h, 1), four));
    q6_take(c->sc + 4 * c->left, o->s);
    codes_f32(_mm256_sub_epi8(a, four), _mm256_sub_epi8(b, four), o->v);
    k_next(c, 110);
}

#endif
#endif
