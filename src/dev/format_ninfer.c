/* The storage layouts of .ninfer files (format.h): exact decode, and lk_repack, which lays them out anew for kernels. Every code fits the target
 * and every scale is copied, so no value changes:
 *
 *   q4_g64 -> q4 (bit 3 of each nibble flipped), q5_g64 and q6_g64 -> int8 in groups of 64, nvfp4_tiled -> nvfp4 (scales in row order),
 *   rows of two -> the format both parts share; q4 beside int8 becomes int8; parts that share nothing become F32. */
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
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

/* Filling goes by runs of rows, which the pool's threads share. */
struct fill {
    const struct lk_weight *w;
    uint8_t *to;
    int64_t rows; /* a part */
    const struct lk_rows *two; /* rows of two: p repacked */
    const struct lk_weight *p, *out;
    uint8_t *scale;
};

static void fill_run(struct lk_pool *pool, struct fill *f, int64_t n, int64_t each, lk_pool_fn fn)
{
    f->rows = each;
    int parts = (int)((n + each - 1) / each);
    if (pool)
        lk_pool_run(pool, parts, fn, f);
    else
        for (int i = 0; i < parts; i++) fn(f, i, 0);
}

static int64_t fill_end(const struct fill *f, int part, int64_t n)
{
    int64_t end = ((int64_t)part + 1) * f->rows;
    return end < n ? end : n;
}

static void q4_part(void *arg, int part, int worker)
{
    const struct fill *f = arg;
    size_t at = (size_t)(part * f->rows * (f->w->k / 2)), end = (size_t)(fill_end(f, part, f->w->n) * (f->w->k / 2));
    const uint8_t *from = f->w->data;
    for (; at < end; at++) f->to[at] = from[at] ^ 0x88;
}

/* Eight bytes at a time: the nibbles of x one a byte, the first in the lowest. */
static uint64_t nibbles(uint32_t x)
{
    uint64_t y = (x | (uint64_t)x << 16) & 0x0000ffff0000ffffu;
    y = (y | y << 8) & 0x00ff00ff00ff00ffu;
    return (y | y << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/* b - off in each byte, 0 <= b < 128: the borrow is kept out by the top bit. */
static uint64_t bytes_less(uint64_t b, uint64_t off)
{
    const uint64_t top = 0x8080808080808080u, each = 0x0101010101010101u;
    return ((b | top) - off * each) ^ top;
}

/* The codes of a row's columns k .. k+7 as eight int8; k a multiple of 8. 5- and 6-bit codes, and 4-bit ones (q4 of either kind) that must
 * stand beside them. */
static uint64_t codes8(const struct lk_weight *w, int64_t row, int64_t k)
{
    uint32_t x;
    memcpy(&x, (const uint8_t *)w->data + row * (w->k / 2) + k / 2, 4);
    uint64_t q = nibbles(x);
    if (w->fmt == LK_FMT_Q4) return bytes_less(q, 8);
    if (w->fmt == LK_FMT_N_Q4) return bytes_less(q ^ 0x0808080808080808u, 8);
    if (w->fmt == LK_FMT_N_Q5) {
        uint64_t h = ((const uint8_t *)w->zero)[row * (w->k / 8) + k / 8]; /* bit i to byte i */
        h = ((h * 0x0101010101010101u & 0x8040201008040201u) + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
        return bytes_less((q | h << 4) ^ 0x1010101010101010u, 16);
    }
    uint16_t high;
    memcpy(&high, (const uint8_t *)w->zero + row * (w->k / 4) + k / 4, 2);
    uint64_t h = (high | (uint64_t)high << 24) & 0x000000ff000000ffu; /* as nibbles(), with fields of two bits */
    h = (h | h << 12) & 0x000f000f000f000fu;
    h = (h | h << 6) & 0x0303030303030303u;
    return bytes_less((q | h << 4) ^ 0x2020202020202020u, 32);
}

static void i8_part(void *arg, int part, int worker)
{
    const struct fill *f = arg;
    int64_t end = fill_end(f, part, f->w->n), k = f->w->k;
    for (int64_t r = part * f->rows; r < end; r++)
        for (int64_t i = 0; i < k; i += 8) {
            uint64_t c = codes8(f->w, r, i);
            memcpy(f->to + r * k + i, &c, 8);
        }
}

/* Codes and scales of a weight of one kind into its block. */
static void fill_ints(const struct lk_weight *w, struct lk_weight *out, uint8_t *block, struct lk_pool *pool)
{
    uint8_t *scale = block + block_data_bytes(out);
    struct fill f = {.w = w, .to = block};
    fill_run(pool, &f, w->n, 16, out->fmt == LK_FMT_Q4 ? q4_part : i8_part);
    memcpy(scale, w->scale, lk_weight_scale_bytes(w));
    out->data = block, out->scale = scale;
}

/* Scales of 128 rows: a tile holds four of each. */
static void tiled_part(void *arg, int part, int worker)
{
    const struct fill *f = arg;
    const uint8_t *from = f->w->scale;
    int64_t end = fill_end(f, part, f->w->n), groups = f->w->k / 16;
    for (int64_t r = part * f->rows; r < end; r++)
        for (int64_t g = 0, at = tiled_at(f->w, r, 0); g < groups; g += 4, at += 512) memcpy(f->to + r * groups + g, from + at, 4);
}

static void two_part(void *arg, int part, int worker)
{
    const struct fill *f = arg;
    const struct lk_weight *p = f->p;
    size_t db = lk_weight_data_bytes(p) / (size_t)p->n, sb = lk_weight_scale_bytes(p) / (size_t)p->n;
    int64_t end = fill_end(f, part, f->out->n);
    for (int64_t row = part * f->rows; row < end; row++) {
        int64_t at = row;
        const struct lk_weight *w = &p[rows_at(f->two, &at) - f->two->part];
        memcpy(f->to + (size_t)row * db, (const uint8_t *)w->data + (size_t)at * db, db);
        if (sb) memcpy(f->scale + (size_t)row * sb, (const uint8_t *)w->scale + (size_t)at * sb, sb);
    }
}

static void decode_part(void *arg, int part, int worker)
{
    const struct fill *f = arg;
    int64_t end = fill_end(f, part, f->w->n), k = f->w->k;
    for (int64_t r = part * f->rows; r < end; r++) lk_weight_row(f->w, r, 0, k, (float *)f->to + r * k);
}

static void interleave(const struct lk_rows *r, const struct lk_weight p[2], struct lk_weight *out, uint8_t *block, struct lk_pool *pool)
{
    struct fill f = {.to = block, .scale = block + block_data_bytes(out), .two = r, .p = p, .out = out};
    fill_run(pool, &f, out->n, 16, two_part);
    out->data = block;
    out->scale = lk_weight_scale_bytes(out) ? f.scale : NULL;
}

static int widen(struct lk_weight *p, const struct lk_weight *other, void **own, struct lk_pool *pool, struct lk_err *e)
{
    if (!must_widen(p, other)) return 0;
    struct lk_weight wide = *p;
    wide.fmt = LK_FMT_I8;
    size_t n = block_data_bytes(&wide) + lk_weight_scale_bytes(&wide);
    uint8_t *to = lk_aligned(n);
    if (!to) return lk_fail(e, LK_ENOMEM, "no memory for %zu bytes of repacked weights", n);
    fill_ints(p, &wide, to, pool);
    lk_free(*own);
    *own = to;
    *p = wide;
    return 0;
}

static int fill_rows(const struct lk_weight *w, struct lk_weight *out, void *block, struct lk_pool *pool, struct lk_err *e)
{
    const struct lk_rows *r = w->data;
    struct lk_weight p[2];
    void *mine[2] = {NULL, NULL};
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) rc = lk_repack(&r->part[i], &p[i], &mine[i], pool, e);
    for (int i = 0; i < 2 && !rc; i++) rc = widen(&p[i], &p[1 - i], &mine[i], pool, e);
    if (!rc && same_kind(&p[0], &p[1]) && is_by_rows(&p[0]))
        interleave(r, p, out, block, pool);
    else if (!rc)
        fill_run(pool, &(struct fill){.w = w, .to = block}, w->n, 16, decode_part);
    lk_free(mine[0]);
    lk_free(mine[1]);
    return rc;
}

int lk_repack(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_pool *pool, struct lk_err *e)
{
    size_t n = lk_repack_plan(w, out);
    int rc = 0;
    *own = NULL;
    if (!n) return 0;
    void *to = lk_aligned(n);
    if (!to) return lk_fail(e, LK_ENOMEM, "no memory for %zu bytes of repacked weights", n);
    if (w->fmt == LK_FMT_N_Q4 || w->fmt == LK_FMT_N_Q5 || w->fmt == LK_FMT_N_Q6) fill_ints(w, out, to, pool);
    if (w->fmt == LK_FMT_NVFP4_T) out->scale = to, fill_run(pool, &(struct fill){.w = w, .to = to}, w->n, 128, tiled_part);
    if (w->fmt == LK_FMT_ROWS) out->data = to, rc = fill_rows(w, out, to, pool, e);
    if (rc)
        lk_free(to);
    else
        *own = to;
    return rc;
}
