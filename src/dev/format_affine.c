/* Formats whose values are code * scale + min with small integer codes: which they are, and the scale and min of a run of columns. With
 * lk_weight_row this is enough to lay a matrix out anew without a second decoder: code = (value - min) / scale. A backend that packs
 * groups of 32 columns uses it. */
#include "base/num.h"
#include "dev/format.h"

#include <stddef.h>

int lk_weight_affine(const struct lk_weight *w, struct lk_affine *a)
{
    static const struct lk_affine table[LK_FMT_COUNT] = {
        [LK_FMT_CT4] = {32, 0, 15, 1},       [LK_FMT_GPTQ4] = {32, 0, 15, 1},      [LK_FMT_AWQ4] = {32, 0, 15, 1},
        [LK_FMT_GG_Q4_0] = {32, -8, 7, 0},   [LK_FMT_GG_Q4_1] = {32, 0, 15, 1},    [LK_FMT_GG_Q5_0] = {32, -16, 15, 0},
        [LK_FMT_GG_Q5_1] = {32, 0, 31, 1},   [LK_FMT_GG_Q8_0] = {32, -128, 127, 0}, [LK_FMT_GG_Q2_K] = {16, 0, 3, 1},
        [LK_FMT_GG_Q3_K] = {16, -4, 3, 0},   [LK_FMT_GG_Q4_K] = {32, 0, 15, 1},    [LK_FMT_GG_Q5_K] = {32, 0, 31, 1},
        [LK_FMT_GG_Q6_K] = {16, -32, 31, 0}, [LK_FMT_GG_IQ4_NL] = {32, -127, 113, 0}, [LK_FMT_GG_IQ4_XS] = {32, -127, 113, 0},
        [LK_FMT_GG_IQ3_S] = {32, -15, 15, 0}, [LK_FMT_GG_IQ3_XXS] = {32, -62, 62, 0}, [LK_FMT_GG_IQ2_S] = {16, -43, 43, 0},
        [LK_FMT_GG_IQ2_XS] = {16, -43, 43, 0}, [LK_FMT_GG_IQ2_XXS] = {32, -43, 43, 0}, [LK_FMT_GG_MXFP4] = {32, -12, 12, 0}};
    *a = table[w->fmt];
    if (!a->run) return 0;
    if (w->fmt <= LK_FMT_AWQ4 && (w->gidx || w->group <= 0 || w->group % a->run)) a->run = 0;
    return a->run;
}

static float half_at(const uint8_t *p)
{
    return lk_f16_to_f32(lk_get16(p));
}

/* Bits [at, at + bits) of the little-endian word i at p */
static int field(const void *p, int64_t i, int at, int bits)
{
    return (int)(lk_get32((const uint8_t *)p + i * 4) >> at & ((1u << bits) - 1));
}

static void int_run(const struct lk_weight *w, int64_t row, int64_t k, float *scale, float *min)
{
    static const uint8_t awq[8] = {0, 16, 4, 20, 8, 24, 12, 28};
    int64_t g = k / w->group, groups = (w->k + w->group - 1) / w->group, words = (w->n + 7) / 8;
    int z = 8;
    if (w->fmt == LK_FMT_CT4) {
        if (w->zero) z = field(w->zero, row / 8 * groups + g, (int)(row % 8) * 4, 4);
        *scale = lk_dtype_get(w->scale_dtype, w->scale, row * groups + g);
    } else {
        z = field(w->zero, g * words + row / 8, w->fmt == LK_FMT_AWQ4 ? awq[row % 8] : (int)(row % 8) * 4, 4) + w->zero_plus1;
        *scale = lk_dtype_get(w->scale_dtype, w->scale, g * w->n + row);
    }
    *min = -(float)z * *scale;
}

/* The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K */
static void k4_run(const uint8_t *b, int j, float *scale, float *min)
{
    const uint8_t *p = b + 4;
    int sc = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    int m = j < 4 ? p[j + 4] & 63 : (p[j + 4] >> 4) | (p[j] >> 6) << 4;
    *scale = half_at(b) * (float)sc;
    *min = -half_at(b + 2) * (float)m;
}

static float q3_scale(const uint8_t *b, int s)
{
    const uint8_t *sc = b + 96;
    int lo = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4, hi = sc[8 + s % 4] >> s / 4 * 2 & 3;
    return half_at(b + 108) * (float)((lo | hi << 4) - 32);
}

/* Column j of block b */
static void block_run(enum lk_fmt f, const uint8_t *b, int j, float *scale, float *min)
{
    float d = half_at(b);
    int ib = j / 32, odd = ib % 2 * 4, half = j % 32 / 16 * 4;
    *min = 0;
    switch (f) {
    case LK_FMT_GG_Q4_1:
    case LK_FMT_GG_Q5_1: *scale = d, *min = half_at(b + 2); break;
    case LK_FMT_GG_Q4_K:
    case LK_FMT_GG_Q5_K: k4_run(b, ib, scale, min); break;
    case LK_FMT_GG_Q2_K: *scale = half_at(b + 80) * (float)(b[j / 16] & 15), *min = -half_at(b + 82) * (float)(b[j / 16] >> 4); break;
    case LK_FMT_GG_Q3_K: *scale = q3_scale(b, j / 16); break;
    case LK_FMT_GG_Q6_K: *scale = half_at(b + 208) * (float)(int8_t)b[192 + j / 16]; break;
    case LK_FMT_GG_IQ4_XS: *scale = d * (float)(((b[4 + ib / 2] >> odd & 15) | (lk_get16(b + 2) >> ib * 2 & 3) << 4) - 32); break;
    case LK_FMT_GG_IQ3_S: *scale = d * (float)(1 + 2 * (b[106 + ib / 2] >> odd & 15)); break;
    case LK_FMT_GG_IQ3_XXS: *scale = d * (0.5f + (float)(lk_get32(b + 66 + ib * 4) >> 28)) * 0.5f; break;
    case LK_FMT_GG_IQ2_S: *scale = d * (0.5f + (float)(b[74 + ib] >> half & 15)) * 0.25f; break;
    case LK_FMT_GG_IQ2_XS: *scale = d * (0.5f + (float)(b[66 + ib] >> half & 15)) * 0.25f; break;
    case LK_FMT_GG_IQ2_XXS: *scale = d * (0.5f + (float)(lk_get32(b + 2 + ib * 8 + 4) >> 28)) * 0.25f; break;
    case LK_FMT_GG_MXFP4: *scale = lk_f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23); break;
    default: *scale = d; break;
    }
}

void lk_weight_run(const struct lk_weight *w, int64_t row, int64_t k, float *scale, float *min)
{
    const struct lk_fmt_info *f = lk_fmt_info(w->fmt);
    if (f->block)
        block_run(w->fmt, (const uint8_t *)w->data + (row * (w->k / f->block) + k / f->block) * f->block_bytes, (int)(k % f->block), scale, min);
    else
        int_run(w, row, k, scale, min);
}
