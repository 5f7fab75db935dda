/* The storage layouts of .ninfer files (format.h): exact decode, and lk_repack, which lays them out anew for kernels. Every code fits the target
 * and every scale is copied, so no value changes:
 *
 *   q4_g64 -> q4 (bit 3 of each nibble flipped), q5_g64 and q6_g64 -> int8 in groups of 64, nvfp4_tiled -> nvfp4 (scales in row order),
 *   rows of two -> the format both parts share; q4 beside int8 becomes int8; parts that share nothing become F32. */
#include "base/mem.h"
#include "base/num.h"
#include "dev/format_row.h"

/* The code of column k: 4, 5 or 6 bits, two's complement. */
static int code_at(const struct lk_weight *w, int64_t row, int64_t k)
{
    int q = ((const uint8_t *)w->data)[row * (w->k / 2) + k / 2] >> (k & 1 ? 4 : 0) & 15;
    if (w->fmt == LK_FMT_N_Q4) return (q ^ 8) - 8;
    if (w->fmt == LK_FMT_N_Q5) {
        int h = ((const uint8_t *)w->zero)[row * (w->k / 8) + k / 8] >> (k % 8) & 1;
        return ((q | h << 4) ^ 16) - 16;
    }
    int h = ((const uint8_t *)w->zero)[row * (w->k / 4) + k / 4] >> (k % 4 * 2) & 3;
    return ((q | h << 4) ^ 32) - 32;
}

void lk__row_ninfer(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    for (int64_t k = k0; k < k0 + count; k++)
        *out++ = (float)code_at(w, row, k) * lk_dtype_get(LK_DT_F16, w->scale, row * (w->k / 64) + k / 64);
}

/* Where the scale of (row, group of 16) lies. */
static int64_t tiled_at(const struct lk_weight *w, int64_t row, int64_t g)
{
    return ((row / 128) * (w->k / 64) + g / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + g % 4;
}

void lk__row_nvfp4_tiled(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const uint8_t *d = (const uint8_t *)w->data + row * (w->k / 2), *s = w->scale;
    for (int64_t k = k0; k < k0 + count; k++)
        *out++ = lk_e2m1_to_f32(d[k / 2] >> (k & 1 ? 4 : 0) & 15) * (lk_e4m3_to_f32(s[tiled_at(w, row, k / 16)]) / w->global);
}

static const struct lk_weight *rows_at(const struct lk_rows *r, int64_t *row)
{
    int64_t period = r->run[0] + r->run[1], i = *row / period, o = *row % period;
    int second = o >= r->run[0];
    *row = i * r->run[second] + (second ? o - r->run[0] : o);
    return &r->part[second];
}

void lk__row_rows(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const struct lk_weight *p = rows_at(w->data, &row);
    lk_weight_row(p, row, k0, count, out);
}

/* ---- repacking: the plan says what comes out and how large its block is, the rest fills it ---- */

static int same_kind(const struct lk_weight *a, const struct lk_weight *b)
{
    return a->fmt == b->fmt && a->group == b->group && a->scale_dtype == b->scale_dtype && a->global == b->global &&
           a->global_div == b->global_div && a->block_n == b->block_n && a->block_k == b->block_k;
}

/* Formats whose rows are runs of bytes in data and scale. */
static int is_by_rows(const struct lk_weight *w)
{
    return w->fmt == LK_FMT_F32 || w->fmt == LK_FMT_F16 || w->fmt == LK_FMT_BF16 || w->fmt == LK_FMT_NVFP4 || w->fmt == LK_FMT_I8 ||
           w->fmt == LK_FMT_Q4 || (w->fmt == LK_FMT_FP8 && w->block_n == 1);
}

/* q4 that stands beside int8 of the same groups becomes int8, so that both are of one kind. */
static int must_widen(const struct lk_weight *p, const struct lk_weight *other)
{
    return p->fmt == LK_FMT_Q4 && other->fmt == LK_FMT_I8 && p->group == other->group && p->scale_dtype == other->scale_dtype;
}

/* Bytes of the data in a block that scales follow. */
static size_t block_data_bytes(const struct lk_weight *w)
{
    return (lk_weight_data_bytes(w) + 63) / 64 * 64;
}

static size_t plan_rows(const struct lk_weight *w, struct lk_weight *out)
{
    const struct lk_rows *r = w->data;
    struct lk_weight p[2];
    for (int i = 0; i < 2; i++) lk_repack_plan(&r->part[i], &p[i]);
    for (int i = 0; i < 2; i++)
        if (must_widen(&p[i], &p[1 - i])) p[i].fmt = LK_FMT_I8;
    if (same_kind(&p[0], &p[1]) && is_by_rows(&p[0])) {
        *out = p[0];
        out->n = w->n;
        return block_data_bytes(out) + lk_weight_scale_bytes(out);
    }
    *out = (struct lk_weight){.fmt = LK_FMT_F32, .n = w->n, .k = w->k, .data = w->data, .global = 1};
    return lk_weight_data_bytes(out);
}

size_t lk_repack_plan(const struct lk_weight *w, struct lk_weight *out)
{
    *out = *w;
    switch (w->fmt) {
    case LK_FMT_N_Q4:
    case LK_FMT_N_Q5:
    case LK_FMT_N_Q6: /* scales are copied too: in place, 1/16 of the bytes would keep most of the file's pages */
        out->fmt = w->fmt == LK_FMT_N_Q4 ? LK_FMT_Q4 : LK_FMT_I8, out->zero = NULL;
        return block_data_bytes(out) + lk_weight_scale_bytes(out);
    case LK_FMT_NVFP4_T: out->fmt = LK_FMT_NVFP4; return lk_weight_scale_bytes(w);
    case LK_FMT_ROWS: return plan_rows(w, out);
    default: return 0;
    }
}

enum lk_fmt lk_repack_fmt(const struct lk_weight *w)
{
    struct lk_weight out;
    lk_repack_plan(w, &out);
    return out.fmt;
}

static void fill_q4(const struct lk_weight *w, uint8_t *to)
{
    const uint8_t *from = w->data;
    size_t n = lk_weight_data_bytes(w);
    for (size_t i = 0; i < n; i++) to[i] = from[i] ^ 0x88;
}

/* 5- and 6-bit codes, and 4-bit ones (q4 of either kind) that must stand beside them. */
static void fill_i8(const struct lk_weight *w, int8_t *to)
{
    for (int64_t r = 0; r < w->n; r++)
        for (int64_t k = 0; k < w->k; k++)
            *to++ = (int8_t)(w->fmt == LK_FMT_Q4 ? (((const uint8_t *)w->data)[r * (w->k / 2) + k / 2] >> (k & 1 ? 4 : 0) & 15) - 8
                                                 : code_at(w, r, k));
}

/* Codes and scales of a weight of one kind into its block. */
static void fill_ints(const struct lk_weight *w, struct lk_weight *out, uint8_t *block)
{
    uint8_t *scale = block + block_data_bytes(out);
    if (w->fmt == LK_FMT_N_Q4)
        fill_q4(w, block);
    else
        fill_i8(w, (int8_t *)block);
    memcpy(scale, w->scale, lk_weight_scale_bytes(w));
    out->data = block, out->scale = scale;
}

static void fill_tiled(const struct lk_weight *w, uint8_t *to)
{
    const uint8_t *from = w->scale;
    for (int64_t r = 0; r < w->n; r++)
        for (int64_t g = 0; g < w->k / 16; g++) *to++ = from[tiled_at(w, r, g)];
}

static void interleave(const struct lk_rows *r, const struct lk_weight p[2], struct lk_weight *out, uint8_t *block)
{
    size_t db = lk_weight_data_bytes(&p[0]) / (size_t)p[0].n, sb = lk_weight_scale_bytes(&p[0]) / (size_t)p[0].n;
    uint8_t *scale = block + block_data_bytes(out);
    for (int64_t row = 0; row < out->n; row++) {
        int64_t at = row;
        const struct lk_weight *w = &p[rows_at(r, &at) - r->part];
        memcpy(block + (size_t)row * db, (const uint8_t *)w->data + (size_t)at * db, db);
        if (sb) memcpy(scale + (size_t)row * sb, (const uint8_t *)w->scale + (size_t)at * sb, sb);
    }
    out->data = block;
    out->scale = sb ? scale : NULL;
}

static int widen(struct lk_weight *p, const struct lk_weight *other, void **own, struct lk_err *e)
{
    if (!must_widen(p, other)) return 0;
    struct lk_weight wide = *p;
    wide.fmt = LK_FMT_I8;
    size_t n = block_data_bytes(&wide) + lk_weight_scale_bytes(&wide);
    uint8_t *to = lk_aligned(n);
    if (!to) return lk_fail(e, LK_ENOMEM, "no memory for %zu bytes of repacked weights", n);
    fill_ints(p, &wide, to);
    lk_free(*own);
    *own = to;
    *p = wide;
    return 0;
}

static int fill_rows(const struct lk_weight *w, struct lk_weight *out, void *block, struct lk_err *e)
{
    const struct lk_rows *r = w->data;
    struct lk_weight p[2];
    void *mine[2] = {NULL, NULL};
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) rc = lk_repack(&r->part[i], &p[i], &mine[i], e);
    for (int i = 0; i < 2 && !rc; i++) rc = widen(&p[i], &p[1 - i], &mine[i], e);
    if (!rc && same_kind(&p[0], &p[1]) && is_by_rows(&p[0]))
        interleave(r, p, out, block);
    else if (!rc)
        for (int64_t i = 0; i < w->n; i++) lk_weight_row(w, i, 0, w->k, (float *)block + i * w->k);
    lk_free(mine[0]);
    lk_free(mine[1]);
    return rc;
}

int lk_repack(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    size_t n = lk_repack_plan(w, out);
    int rc = 0;
    *own = NULL;
    if (!n) return 0;
    void *to = lk_aligned(n);
    if (!to) return lk_fail(e, LK_ENOMEM, "no memory for %zu bytes of repacked weights", n);
    if (w->fmt == LK_FMT_N_Q4 || w->fmt == LK_FMT_N_Q5 || w->fmt == LK_FMT_N_Q6) fill_ints(w, out, to);
    if (w->fmt == LK_FMT_NVFP4_T) out->scale = to, fill_tiled(w, to);
    if (w->fmt == LK_FMT_ROWS) out->data = to, rc = fill_rows(w, out, to, e);
    if (rc)
        lk_free(to);
    else
        *own = to;
    return rc;
}
