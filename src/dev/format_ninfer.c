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

/* ---- repacking ---- */

static int no_memory(struct lk_err *e, size_t bytes)
{
    return lk_fail(e, LK_ENOMEM, "no memory for %zu bytes of repacked weights", bytes);
}

static int repack_q4(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    size_t n = lk_weight_data_bytes(w);
    uint8_t *to = *own = lk_aligned(n);
    const uint8_t *from = w->data;
    if (!to) return no_memory(e, n);
    for (size_t i = 0; i < n; i++) to[i] = from[i] ^ 0x88;
    out->fmt = LK_FMT_Q4, out->data = to;
    return 0;
}

/* 5- and 6-bit codes, and 4-bit ones (q4 of either kind) that must stand beside them. */
static int repack_i8(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    size_t n = (size_t)w->n * (size_t)w->k;
    int8_t *to = *own = lk_aligned(n);
    if (!to) return no_memory(e, n);
    for (int64_t r = 0; r < w->n; r++)
        for (int64_t k = 0; k < w->k; k++)
            *to++ = (int8_t)(w->fmt == LK_FMT_Q4 ? (((const uint8_t *)w->data)[r * (w->k / 2) + k / 2] >> (k & 1 ? 4 : 0) & 15) - 8
                                                 : code_at(w, r, k));
    out->fmt = LK_FMT_I8, out->data = *own, out->zero = NULL;
    return 0;
}

static int repack_tiled(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    size_t n = lk_weight_scale_bytes(w);
    uint8_t *to = *own = lk_aligned(n);
    const uint8_t *from = w->scale;
    if (!to) return no_memory(e, n);
    for (int64_t r = 0; r < w->n; r++)
        for (int64_t g = 0; g < w->k / 16; g++) *to++ = from[tiled_at(w, r, g)];
    out->fmt = LK_FMT_NVFP4, out->scale = *own;
    return 0;
}

static int repack_f32(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    size_t n = (size_t)w->n * (size_t)w->k * sizeof(float);
    float *to = *own = lk_aligned(n);
    if (!to) return no_memory(e, n);
    for (int64_t r = 0; r < w->n; r++) lk_weight_row(w, r, 0, w->k, to + r * w->k);
    *out = (struct lk_weight){.fmt = LK_FMT_F32, .n = w->n, .k = w->k, .data = to, .global = 1};
    return 0;
}

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

static void interleave(const struct lk_rows *r, const struct lk_weight p[2], struct lk_weight *out, uint8_t *data, uint8_t *scale)
{
    size_t db = lk_weight_data_bytes(&p[0]) / (size_t)p[0].n, sb = lk_weight_scale_bytes(&p[0]) / (size_t)p[0].n;
    for (int64_t row = 0; row < out->n; row++) {
        int64_t at = row;
        const struct lk_weight *w = &p[rows_at(r, &at) - r->part];
        memcpy(data + (size_t)row * db, (const uint8_t *)w->data + (size_t)at * db, db);
        if (sb) memcpy(scale + (size_t)row * sb, (const uint8_t *)w->scale + (size_t)at * sb, sb);
    }
    out->data = data;
    out->scale = sb ? scale : NULL;
}

/* q4 in groups of 64 -> int8 in groups of 64, so that both parts are of one kind. */
static int widen(struct lk_weight p[2], void *own[2], struct lk_err *e)
{
    for (int i = 0; i < 2; i++) {
        if (p[i].fmt != LK_FMT_Q4 || p[1 - i].fmt != LK_FMT_I8 || p[i].group != p[1 - i].group || p[i].scale_dtype != p[1 - i].scale_dtype) continue;
        void *old = own[i];
        struct lk_weight wide = p[i];
        int rc = repack_i8(&p[i], &wide, &own[i], e);
        lk_free(old);
        if (rc) return rc;
        p[i] = wide;
    }
    return 0;
}

static int repack_rows(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    const struct lk_rows *r = w->data;
    struct lk_weight p[2];
    void *mine[2] = {NULL, NULL};
    int rc = lk_repack(&r->part[0], &p[0], &mine[0], e);
    if (!rc) rc = lk_repack(&r->part[1], &p[1], &mine[1], e);
    if (!rc) rc = widen(p, mine, e);
    if (!rc && same_kind(&p[0], &p[1]) && is_by_rows(&p[0])) {
        *out = p[0];
        out->n = w->n;
        size_t db = (lk_weight_data_bytes(out) + 63) / 64 * 64, sb = lk_weight_scale_bytes(out);
        uint8_t *block = *own = lk_aligned(db + sb);
        if (block)
            interleave(r, p, out, block, block + db);
        else
            rc = no_memory(e, db + sb);
    } else if (!rc) {
        rc = repack_f32(w, out, own, e);
    }
    lk_free(mine[0]);
    lk_free(mine[1]);
    return rc;
}

int lk_repack(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_err *e)
{
    *own = NULL;
    *out = *w;
    switch (w->fmt) {
    case LK_FMT_N_Q4: return repack_q4(w, out, own, e);
    case LK_FMT_N_Q5:
    case LK_FMT_N_Q6: return repack_i8(w, out, own, e);
    case LK_FMT_NVFP4_T: return repack_tiled(w, out, own, e);
    case LK_FMT_ROWS: return repack_rows(w, out, own, e);
    default: return 0;
    }
}

enum lk_fmt lk_repack_fmt(const struct lk_weight *w)
{
    if (w->fmt == LK_FMT_N_Q4) return LK_FMT_Q4;
    if (w->fmt == LK_FMT_N_Q5 || w->fmt == LK_FMT_N_Q6) return LK_FMT_I8;
    if (w->fmt == LK_FMT_NVFP4_T) return LK_FMT_NVFP4;
    if (w->fmt != LK_FMT_ROWS) return w->fmt;
    const struct lk_rows *r = w->data;
    enum lk_fmt a = lk_repack_fmt(&r->part[0]), b = lk_repack_fmt(&r->part[1]);
    int ints = (a == LK_FMT_Q4 || a == LK_FMT_I8) && (b == LK_FMT_Q4 || b == LK_FMT_I8);
    return a == b ? a : ints ? LK_FMT_I8 : LK_FMT_F32;
}
