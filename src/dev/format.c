/* Weight formats: names, sizes, and the exact scalar decode of each (see format.h). This file owns the table; the decodes of
 * packed integer layouts stand in format_int.c, those of GGUF blocks in format_gguf.c. Nothing here checks bounds: a loader hands
 * out a struct lk_weight only after it has proved that its bytes are there.
 *
 * Products are taken in f32. Where a publisher's library multiplies in the scale's own type (BF16, F16), its value is ours
 * rounded once to that type: code x scale is exact in f32 for every 8-bit code and 16-bit scale. */
#include "dev/format.h"

#include "base/num.h"
#include "dev/format_row.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[LK_DT_COUNT] = {
    [LK_DT_NONE] = {"none", 0},       [LK_DT_F32] = {"F32", 4},         [LK_DT_F16] = {"F16", 2},
    [LK_DT_BF16] = {"BF16", 2},       [LK_DT_F8E4M3] = {"F8_E4M3", 1},  [LK_DT_E8M0] = {"F8_E8M0", 1},
    [LK_DT_U8] = {"U8", 1},           [LK_DT_I8] = {"I8", 1},           [LK_DT_I16] = {"I16", 2},
    [LK_DT_I32] = {"I32", 4},         [LK_DT_I64] = {"I64", 8},         [LK_DT_F64] = {"F64", 8},
    [LK_DT_BOOL] = {"BOOL", 1},       [LK_DT_F8E5M2] = {"F8_E5M2", 1},
};

const char *lk_dtype_name(enum lk_dtype t)
{
    return t >= 0 && t < LK_DT_COUNT ? dtypes[t].name : "?";
}

size_t lk_dtype_bytes(enum lk_dtype t)
{
    return t >= 0 && t < LK_DT_COUNT ? dtypes[t].bytes : 0;
}

float lk_dtype_get(enum lk_dtype t, const void *base, int64_t i)
{
    const unsigned char *p = (const unsigned char *)base + (size_t)i * lk_dtype_bytes(t);
    switch (t) {
    case LK_DT_F32: return lk_f32_from_bits(lk_get32(p));
    case LK_DT_F16: return lk_f16_to_f32(lk_get16(p));
    case LK_DT_BF16: return lk_bf16_to_f32(lk_get16(p));
    case LK_DT_F8E4M3: return lk_e4m3_to_f32(*p);
    case LK_DT_E8M0: return lk_e8m0_to_f32(*p);
    case LK_DT_F8E5M2: return lk_f16_to_f32((uint16_t)(*p << 8)); /* e5m2 is the upper half of an f16 */
    case LK_DT_U8:
    case LK_DT_BOOL: return *p;
    case LK_DT_I8: return (float)(int8_t)*p;
    case LK_DT_I16: return (float)(int16_t)lk_get16(p);
    case LK_DT_I32: return (float)(int32_t)lk_get32(p);
    case LK_DT_I64: return (float)(int64_t)lk_get64(p);
    case LK_DT_F64: {
        double d;
        memcpy(&d, p, 8);
        return (float)d;
    }
    default: return 0;
    }
}

static void row_plain(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    enum lk_dtype t = w->fmt == LK_FMT_F32 ? LK_DT_F32 : w->fmt == LK_FMT_F16 ? LK_DT_F16 : LK_DT_BF16;
    for (int64_t i = 0; i < count; i++) out[i] = lk_dtype_get(t, w->data, row * w->k + k0 + i);
}

static void row_fp8(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const uint8_t *d = (const uint8_t *)w->data + row * w->k;
    int64_t per_row = (w->k + w->block_k - 1) / w->block_k, s0 = row / w->block_n * per_row;
    for (int64_t k = k0; k < k0 + count; k++)
        *out++ = lk_e4m3_to_f32(d[k]) * lk_dtype_get(w->scale_dtype, w->scale, s0 + k / w->block_k);
}

static void row_nvfp4(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const uint8_t *d = (const uint8_t *)w->data + row * (w->k / 2);
    const uint8_t *s = (const uint8_t *)w->scale + row * (w->k / 16);
    for (int64_t k = k0; k < k0 + count; k++) {
        float g = lk_e4m3_to_f32(s[k / 16]);
        g = w->global_div ? g / w->global : g * w->global;
        *out++ = lk_e2m1_to_f32(d[k / 2] >> (k & 1 ? 4 : 0) & 15) * g;
    }
}

static void row_i8(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const int8_t *d = (const int8_t *)w->data + row * w->k;
    int64_t s0 = row * ((w->k + w->group - 1) / w->group);
    for (int64_t k = k0; k < k0 + count; k++)
        *out++ = (float)d[k] * lk_dtype_get(w->scale_dtype, w->scale, s0 + k / w->group);
}

static void row_q4(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const uint8_t *d = (const uint8_t *)w->data + row * (w->k / 2);
    int64_t s0 = row * ((w->k + w->group - 1) / w->group);
    for (int64_t k = k0; k < k0 + count; k++) {
        int c = (d[k / 2] >> (k & 1 ? 4 : 0) & 15) - 8;
        *out++ = (float)c * lk_dtype_get(w->scale_dtype, w->scale, s0 + k / w->group);
    }
}

static const struct {
    struct lk_fmt_info info;
    void (*row)(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);
} fmts[LK_FMT_COUNT] = {
    [LK_FMT_NONE] = {{"none", 0, 0, 0}, NULL},
    [LK_FMT_F32] = {{"f32", 0, 0, 32}, row_plain},
    [LK_FMT_F16] = {{"f16", 0, 0, 16}, row_plain},
    [LK_FMT_BF16] = {{"bf16", 0, 0, 16}, row_plain},
    [LK_FMT_FP8] = {{"fp8", 0, 0, 8}, row_fp8},
    [LK_FMT_NVFP4] = {{"nvfp4", 0, 0, 4.5f}, row_nvfp4},
    [LK_FMT_I8] = {{"int8", 0, 0, 8}, row_i8},
    [LK_FMT_Q4] = {{"q4", 0, 0, 4.25f}, row_q4},
    [LK_FMT_CT4] = {{"w4a16", 0, 0, 4.125f}, lk__row_ct},
    [LK_FMT_CT8] = {{"w8a16", 0, 0, 8.125f}, lk__row_ct},
    [LK_FMT_GPTQ4] = {{"gptq4", 0, 0, 4.16f}, lk__row_gptq},
    [LK_FMT_GPTQ8] = {{"gptq8", 0, 0, 8.19f}, lk__row_gptq},
    [LK_FMT_AWQ4] = {{"awq4", 0, 0, 4.16f}, lk__row_awq},
    [LK_FMT_GG_Q4_0] = {{"q4_0", 32, 18, 4.5f}, lk__row_gguf},
    [LK_FMT_GG_Q4_1] = {{"q4_1", 32, 20, 5.0f}, lk__row_gguf},
    [LK_FMT_GG_Q5_0] = {{"q5_0", 32, 22, 5.5f}, lk__row_gguf},
    [LK_FMT_GG_Q5_1] = {{"q5_1", 32, 24, 6.0f}, lk__row_gguf},
    [LK_FMT_GG_Q8_0] = {{"q8_0", 32, 34, 8.5f}, lk__row_gguf},
    [LK_FMT_GG_Q2_K] = {{"q2_k", 256, 84, 2.625f}, lk__row_gguf},
    [LK_FMT_GG_Q3_K] = {{"q3_k", 256, 110, 3.4375f}, lk__row_gguf},
    [LK_FMT_GG_Q4_K] = {{"q4_k", 256, 144, 4.5f}, lk__row_gguf},
    [LK_FMT_GG_Q5_K] = {{"q5_k", 256, 176, 5.5f}, lk__row_gguf},
    [LK_FMT_GG_Q6_K] = {{"q6_k", 256, 210, 6.5625f}, lk__row_gguf},
    [LK_FMT_GG_IQ4_NL] = {{"iq4_nl", 32, 18, 4.5f}, lk__row_gguf},
    [LK_FMT_GG_IQ4_XS] = {{"iq4_xs", 256, 136, 4.25f}, lk__row_gguf},
    [LK_FMT_GG_IQ3_S] = {{"iq3_s", 256, 110, 3.4375f}, lk__row_gguf},
    [LK_FMT_GG_IQ3_XXS] = {{"iq3_xxs", 256, 98, 3.0625f}, lk__row_gguf},
    [LK_FMT_GG_IQ2_S] = {{"iq2_s", 256, 82, 2.5625f}, lk__row_gguf},
    [LK_FMT_GG_IQ2_XS] = {{"iq2_xs", 256, 74, 2.3125f}, lk__row_gguf},
    [LK_FMT_GG_IQ2_XXS] = {{"iq2_xxs", 256, 66, 2.0625f}, lk__row_gguf},
    [LK_FMT_GG_MXFP4] = {{"mxfp4", 32, 17, 4.25f}, lk__row_gguf},
    [LK_FMT_N_Q4] = {{"q4_g64", 0, 0, 4.25f}, lk__row_ninfer},
    [LK_FMT_N_Q5] = {{"q5_g64", 0, 0, 5.25f}, lk__row_ninfer},
    [LK_FMT_N_Q6] = {{"q6_g64", 0, 0, 6.25f}, lk__row_ninfer},
    [LK_FMT_NVFP4_T] = {{"nvfp4_tiled", 0, 0, 4.5f}, lk__row_nvfp4_tiled},
    [LK_FMT_ROWS] = {{"rows of two", 0, 0, 0}, lk__row_rows},
};

const struct lk_fmt_info *lk_fmt_info(enum lk_fmt f)
{
    return &fmts[f >= 0 && f < LK_FMT_COUNT ? f : LK_FMT_NONE].info;
}

enum lk_fmt lk_fmt_find(const char *name)
{
    for (int f = LK_FMT_NONE + 1; f < LK_FMT_COUNT; f++)
        if (!strcmp(fmts[f].info.name, name)) return (enum lk_fmt)f;
    return LK_FMT_NONE;
}

enum lk_dtype lk_dtype_find(const char *name)
{
    for (int t = LK_DT_NONE + 1; t < LK_DT_COUNT; t++)
        if (!strcmp(dtypes[t].name, name)) return (enum lk_dtype)t;
    return LK_DT_NONE;
}

static size_t ceil_div(int64_t a, int64_t b)
{
    return (size_t)((a + b - 1) / b);
}

size_t lk_weight_data_bytes(const struct lk_weight *w)
{
    size_t n = (size_t)w->n, k = (size_t)w->k;
    const struct lk_fmt_info *f = lk_fmt_info(w->fmt);
    switch (w->fmt) {
    case LK_FMT_NONE: return 0;
    case LK_FMT_F32: return n * k * 4;
    case LK_FMT_F16:
    case LK_FMT_BF16: return n * k * 2;
    case LK_FMT_FP8:
    case LK_FMT_I8: return n * k;
    case LK_FMT_NVFP4:
    case LK_FMT_NVFP4_T:
    case LK_FMT_N_Q4:
    case LK_FMT_N_Q5:
    case LK_FMT_N_Q6:
    case LK_FMT_Q4: return n * (k / 2);
    case LK_FMT_CT4: return n * ceil_div(w->k, 8) * 4;
    case LK_FMT_CT8: return n * ceil_div(w->k, 4) * 4;
    case LK_FMT_GPTQ4: return ceil_div(w->k, 8) * n * 4;
    case LK_FMT_GPTQ8: return ceil_div(w->k, 4) * n * 4;
    case LK_FMT_AWQ4: return k * ceil_div(w->n, 8) * 4;
    default: return f->block ? n * (k / (size_t)f->block) * (size_t)f->block_bytes : 0;
    }
}

static size_t weight_groups(const struct lk_weight *w)
{
    return w->group > 0 ? ceil_div(w->k, w->group) : 0;
}

size_t lk_weight_scale_bytes(const struct lk_weight *w)
{
    size_t s = lk_dtype_bytes(w->scale_dtype);
    switch (w->fmt) {
    case LK_FMT_FP8: return ceil_div(w->n, w->block_n) * ceil_div(w->k, w->block_k) * s;
    case LK_FMT_NVFP4:
    case LK_FMT_NVFP4_T: return (size_t)w->n * (size_t)(w->k / 16);
    case LK_FMT_N_Q4:
    case LK_FMT_N_Q5:
    case LK_FMT_N_Q6:
    case LK_FMT_I8:
    case LK_FMT_Q4:
    case LK_FMT_CT4:
    case LK_FMT_CT8:
    case LK_FMT_GPTQ4:
    case LK_FMT_GPTQ8:
    case LK_FMT_AWQ4: return (size_t)w->n * weight_groups(w) * s;
    default: return 0;
    }
}

size_t lk_weight_zero_bytes(const struct lk_weight *w)
{
    if (w->fmt == LK_FMT_N_Q5 || w->fmt == LK_FMT_N_Q6) return (size_t)w->n * (size_t)(w->k / (w->fmt == LK_FMT_N_Q5 ? 8 : 4));
    return ceil_div(w->n, w->fmt == LK_FMT_CT8 || w->fmt == LK_FMT_GPTQ8 ? 4 : 8) * weight_groups(w) * 4;
}

size_t lk_weight_bytes(const struct lk_weight *w)
{
    const struct lk_rows *r = w->fmt == LK_FMT_ROWS ? w->data : NULL;
    if (r) return lk_weight_bytes(&r->part[0]) + lk_weight_bytes(&r->part[1]);
    size_t zero = w->zero ? lk_weight_zero_bytes(w) : 0, gidx = w->gidx ? (size_t)w->k * 4 : 0;
    return lk_weight_data_bytes(w) + lk_weight_scale_bytes(w) + zero + gidx;
}

void lk_weight_row(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    if (w->fmt > LK_FMT_NONE && w->fmt < LK_FMT_COUNT) fmts[w->fmt].row(w, row, k0, count, out);
}
