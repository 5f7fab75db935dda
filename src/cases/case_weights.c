/* Random weights of every format for the op cases: bytes as a file would hold them, scales set so
 * that values are about 1/sqrt(k). All codes of a format occur, NaN codes of e4m3 excepted (no file
 * holds them). */
#include "cases/cases.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

/* Where the f16 scales of a GGUF block lie, and the largest code they multiply. */
static const struct {
    enum lk_fmt f;
    int at[2];
    float top;
} gg[] = {
    {LK_FMT_GG_Q4_0, {0, -1}, 8},      {LK_FMT_GG_Q4_1, {0, 2}, 15},
    {LK_FMT_GG_Q5_0, {0, -1}, 16},     {LK_FMT_GG_Q5_1, {0, 2}, 31},
    {LK_FMT_GG_Q8_0, {0, -1}, 127},    {LK_FMT_GG_Q2_K, {80, 82}, 45},
    {LK_FMT_GG_Q3_K, {108, -1}, 128},  {LK_FMT_GG_Q4_K, {0, 2}, 945},
    {LK_FMT_GG_Q5_K, {0, 2}, 1953},    {LK_FMT_GG_Q6_K, {208, -1}, 4096},
    {LK_FMT_GG_IQ4_NL, {0, -1}, 127},  {LK_FMT_GG_IQ4_XS, {0, -1}, 4064},
    {LK_FMT_GG_IQ3_S, {0, -1}, 465},   {LK_FMT_GG_IQ3_XXS, {0, -1}, 480},
    {LK_FMT_GG_IQ2_S, {0, -1}, 167},   {LK_FMT_GG_IQ2_XS, {0, -1}, 167},
    {LK_FMT_GG_IQ2_XXS, {0, -1}, 167},
};

static void *random_bytes(struct op_run *r, size_t n)
{
    uint8_t *b = ot_host(r, n + 4); /* odd starts: files promise no alignment */
    if (!b) return NULL;
    for (size_t i = 0; i + 4 <= n + 4; i += 4) {
        uint32_t v = ot_random();
        memcpy(b + i, &v, 4);
    }
    return b;
}

static void put16(void *p, size_t i, uint16_t v)
{
    memcpy((char *)p + 2 * i, &v, 2);
}

static void fill_plain(struct op_run *r, struct lk_weight *w, float s)
{
    size_t n = (size_t)(w->n * w->k);
    void *b = random_bytes(r, n * (w->fmt == LK_FMT_F32 ? 4 : 2));
    w->data = b;
    for (size_t i = 0; b && i < n; i++) {
        float v = (float)ot_normal() * s;
        if (w->fmt == LK_FMT_F32)
            memcpy((char *)b + 4 * i, &v, 4);
        else
            put16(b, i, w->fmt == LK_FMT_F16 ? lk_f32_to_f16(v) : lk_f32_to_bf16(v));
    }
}

/* n_s scales around s in the weight's scale type */
static void *fill_scales(struct op_run *r, enum lk_dtype t, size_t n_s, float s)
{
    char *b = ot_host(r, n_s * lk_dtype_bytes(t));
    for (size_t i = 0; b && i < n_s; i++) {
        float v = s * (0.5f + (float)ot_random() * 0x1p-32f);
        if (t == LK_DT_F32)
            memcpy(b + 4 * i, &v, 4);
        else
            put16(b, i, t == LK_DT_F16 ? lk_f32_to_f16(v) : lk_f32_to_bf16(v));
    }
    return b;
}

static void fill_e4m3(struct op_run *r, uint8_t *b, size_t n, int positive)
{
    for (size_t i = 0; b && i < n; i++) {
        if (positive) b[i] = (uint8_t)(48 + b[i] % 24); /* 0.5 to 3.75, as scales are */
        if ((b[i] & 0x7f) == 0x7f) b[i] ^= 1;
    }
}

static void fill_fp8(struct op_run *r, struct lk_weight *w, float s, int64_t group)
{
    w->block_n = group == w->k ? 1 : group > 0 ? group : w->n;
    w->block_k = group > 0 ? group : w->k;
    w->scale_dtype = group == w->k ? LK_DT_F32 : LK_DT_BF16;
    uint8_t *b = random_bytes(r, (size_t)(w->n * w->k));
    fill_e4m3(r, b, (size_t)(w->n * w->k), 0);
    w->data = b;
    size_t sn = (size_t)((w->n + w->block_n - 1) / w->block_n),
           sk = (size_t)((w->k + w->block_k - 1) / w->block_k);
    w->scale = fill_scales(r, w->scale_dtype, sn * sk, s / 100);
}

static void fill_nvfp4(struct op_run *r, struct lk_weight *w, float s)
{
    int64_t tile = w->fmt == LK_FMT_NVFP4_T ? 128 : 1; /* rows whose scales lie together */
    size_t n_s = (size_t)((w->n + tile - 1) / tile * tile * (w->k / 16));
    uint8_t *sc = random_bytes(r, n_s);
    fill_e4m3(r, sc, n_s, 1);
    w->data = random_bytes(r, (size_t)(w->n * w->k / 2));
    w->scale = sc;
    w->scale_dtype = LK_DT_F8E4M3;
    w->global_div = (uint8_t)(w->n & 1 || tile > 1); /* both conventions */
    w->global = w->global_div ? 6 / s : s / 6;
}

static void fill_int(struct op_run *r, struct lk_weight *w, float s, int64_t group)
{
    int wide = w->fmt == LK_FMT_I8 || w->fmt == LK_FMT_CT8 || w->fmt == LK_FMT_GPTQ8;
    int planes = w->fmt >= LK_FMT_N_Q4 && w->fmt <= LK_FMT_N_Q6;
    w->group = group > 0 ? group : w->k;
    w->scale_dtype = planes || w->fmt == LK_FMT_GPTQ4 || w->fmt == LK_FMT_AWQ4 ? LK_DT_F16 : LK_DT_BF16;
    w->data = random_bytes(r, lk_weight_data_bytes(w));
    w->scale = fill_scales(r, w->scale_dtype, (size_t)(w->n * ((w->k + w->group - 1) / w->group)),
                           s / (wide ? 80 : w->fmt == LK_FMT_N_Q6 ? 20 : w->fmt == LK_FMT_N_Q5 ? 10 : 5));
    if (planes && w->fmt != LK_FMT_N_Q4) w->zero = random_bytes(r, lk_weight_zero_bytes(w));
    if (w->fmt >= LK_FMT_GPTQ4 && w->fmt <= LK_FMT_AWQ4)
        w->zero =
            random_bytes(r, (size_t)((w->k + w->group - 1) / w->group * ((w->n + 3) / 4)) * 4);
}

static void fill_gguf(struct op_run *r, struct lk_weight *w, float s)
{
    const struct lk_fmt_info *f = lk_fmt_info(w->fmt);
    size_t blocks = (size_t)(w->n * (w->k / f->block));
    uint8_t *b = random_bytes(r, blocks * (size_t)f->block_bytes);
    w->data = b;
    for (size_t i = 0; b && i < blocks; i++, b += f->block_bytes) {
        if (w->fmt == LK_FMT_GG_MXFP4) b[0] = (uint8_t)(118 + b[0] % 4);
        for (size_t g = 0; g < sizeof gg / sizeof *gg; g++)
            for (int a = 0; gg[g].f == w->fmt && a < 2 && gg[g].at[a] >= 0; a++)
                put16(b + gg[g].at[a], 0, lk_f32_to_f16((float)ot_normal() * s / gg[g].top * 2));
    }
}

void ot_weight(struct op_run *r, struct lk_weight *w, enum lk_fmt f, int64_t n, int64_t k,
               int64_t group)
{
    float s = 1 / sqrtf((float)k);
    *w = (struct lk_weight){.fmt = f, .n = n, .k = k, .global = 1};
    if (f >= LK_FMT_F32 && f <= LK_FMT_BF16)
        fill_plain(r, w, s);
    else if (f == LK_FMT_FP8)
        fill_fp8(r, w, s, group);
    else if (f == LK_FMT_NVFP4 || f == LK_FMT_NVFP4_T)
        fill_nvfp4(r, w, s);
    else if (lk_fmt_info(f)->block)
        fill_gguf(r, w, s);
    else
        fill_int(r, w, s, group);
    if (!w->data) r->failed = 1;
}
