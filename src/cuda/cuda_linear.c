/* Linears: one small launch a segment for up to 32 rows; beyond that de-quantised f16 tiles and cuBLAS, or, without cuBLAS, the small
 * kernel in steps of 32 rows. Owns the choice; the kernels are in linear.cu and small.cu. */
#include "cuda/cublas.h"
#include "cuda/cuda_mat.h"

/* Wide products work on slices of W, d->wide_rows at most: the slice as f16 and, for gate_up, its f32 result. A whole matrix (36,864 rows of the
 * 27B, 1 GB of scratch) on cards with 64 GB, since the last wave of a product's tiles is seldom full; else 8,192. */
#define WIDE_ROWS 8192
#define WIDE_ROWS_LARGE 36864
#define LARGE_CARD ((size_t)64 << 30)

#define NAMES(prefix)                                                                                                      \
    {                                                                                                                      \
        {prefix "f16_t1", prefix "f16_t2", prefix "f16_t4"}, {prefix "i8_t1", prefix "i8_t2", prefix "i8_t4"},             \
            {prefix "i8g_t1", prefix "i8g_t2", prefix "i8g_t4"}, {prefix "fp8_t1", prefix "fp8_t2", prefix "fp8_t4"},      \
            {prefix "nvfp4_t1", prefix "nvfp4_t2", prefix "nvfp4_t4"}, {prefix "q4_t1", prefix "q4_t2", prefix "q4_t4"},   \
            {prefix "q4m_t1", prefix "q4m_t2", prefix "q4m_t4"}, {prefix "fp8b_t1", prefix "fp8b_t2", prefix "fp8b_t4"},   \
    }
enum { LIN, GLU, PAIR };
static const char *const kernel_names[3][CU_FMT_COUNT + 1][3] = {NAMES("lin_"), NAMES("glu_"), NAMES("pair_")};
static const char *const unpack_names[CU_FMT_COUNT + 1] = {"unpack_f16", "unpack_i8",  "unpack_i8g", "unpack_fp8",
                                                           "unpack_nvfp4", "unpack_q4", "unpack_q4m", "unpack_fp8b"};

static int kernel_fmt(const struct cu_seg *s)
{
    return s->fmt == CU_FP8 && s->blk_scale ? CU_FMT_COUNT : s->fmt;
}

static double seg_bytes(const struct cu_seg *s)
{
    return (double)s->tiles * s->units * s->unit_bytes;
}

/* The f16 segment behind segment `at`, when it is small enough to run beside it (the gates of a delta net: 1 MB beside 84). */
static const struct cu_seg *side_of(const struct cu_mat *m, int at)
{
    const struct cu_seg *s = &m->segs[at], *f = at + 1 < m->n_segs ? s + 1 : NULL;
    return f && f->fmt == CU_F16 && s->fmt != CU_F16 && seg_bytes(f) * 4 < seg_bytes(s) ? f : NULL;
}

/* Shared memory of a launch's warps: rings from sm_80 on, below two places of sums. */
static unsigned linear_smem(const struct cu_dev *d, const struct cu_seg *s, const struct cu_seg *side)
{
    int a_warp = CU_RING(s->fmt);
    if (side && CU_RING(CU_F16) > a_warp) a_warp = CU_RING(CU_F16);
    return (unsigned)(CU_WARPS * (d->arch < 80 ? 2304 : a_warp));
}

/* May the norm of y stay unfinished? */
static int leaves_norm(const struct cu_mat *m, const struct lk_linear_args *a)
{
    return a->next.w && a->T <= CU_NORM_ROWS && m->n_segs == 1 && m->segs[0].tiles <= CU_NORM_TILES;
}

/* T up to 32 rows. */
static void small_launch(struct cu_dev *d, const struct cu_mat *m, const struct lk_linear_args *a, int glu)
{
    int nt = a->T <= 8 ? 0 : a->T <= 16 ? 1 : 2;
    for (int i = 0; i < m->n_segs; i++) {
        const struct cu_seg *s = &m->segs[i], *side = side_of(m, i);
        struct cu_linear_par p = {.s = *s, .T = a->T, .ldx = s->units * CU_KU, .ldy = a->ldy, .add = a->add, .x = a->x, .y = a->y,
                                  .norm = d->norm, .norm_tiles = a->normed ? d->norm_tiles : 0,
                                  .sums_at = (int32_t)linear_smem(d, s, side)};
        if (leaves_norm(m, a)) p.next_w = a->next.w, p.next_h = a->next.h, p.next_eps = a->next.eps;
        unsigned sums = d->arch < 80 ? 0 : 4u * (unsigned)(a->T * p.norm_tiles);
        double bytes = seg_bytes(s) + 2.0 * a->T * s->k + (glu ? 1.0 : 4.0 + 4.0 * a->add) * a->T * s->n;
        if (side) p.side = *side, bytes += seg_bytes(side), i++;
        struct cu_grid g = {.gx = (unsigned)(s->tiles + p.side.tiles), .bx = CU_WARPS * 32, .smem = (unsigned)p.sums_at + sums, .flags = CU_PDL, .bytes = bytes};
        cu_launch(d, kernel_names[side ? PAIR : glu][kernel_fmt(s)][nt], g, CU_ARGS(&p));
    }
}

/* Rows [r0, r0 + n) of a segment (packed order, whole tiles) as f16 times mul; mul 0: without their row scale, which is one number then. */
static void unpack(struct cu_dev *d, const struct cu_seg *s, int r0, int n, float mul, void *out)
{
    int tile0 = r0 / CU_TILE;
    struct cu_grid g = {.gx = cu_div(s->units, 32), .gy = cu_div(n, CU_TILE), .bx = 256, .flags = CU_PDL,
                        .bytes = (double)n * s->k * 2 + (double)n / CU_TILE * s->units * s->unit_bytes};
    cu_launch(d, unpack_names[kernel_fmt(s)], g, CU_ARGS((void *)(uintptr_t)s, &tile0, &mul, &out));
}

/* Bytes of the largest slice: k columns of n rows. */
static size_t wide_bytes(const struct cu_dev *d, size_t n, size_t k)
{
    if (n > (size_t)d->wide_rows) n = (size_t)d->wide_rows;
    return ((n + CU_TILE) * k * 2 + 255) / 256 * 256;
}

/* How many parts from `at` on one product makes: neighbours in y and in the packed tiles, under one multiplier. */
static int joined(const struct cu_mat *m, int at)
{
    int n = 1;
    for (const struct cu_part *p = &m->parts[at]; at + n < m->head.n_parts; n++) {
        const struct cu_part *a = &m->parts[at + n - 1], *b = a + 1;
        if (b->seg != p->seg || a->n % CU_TILE || b->mul != p->mul || b->one_scale != p->one_scale) break;
    }
    return n;
}

static void wide_linear(struct cu_dev *d, const struct cu_mat *m, const struct lk_linear_args *a)
{
    for (int i = 0; i < m->head.n_parts;) {
        const struct cu_part *p = &m->parts[i];
        const struct cu_seg *s = &m->segs[p->seg];
        int rows = 0;
        for (int k = joined(m, i); k; k--) rows += m->parts[i++].n;
        for (int r = 0; r < rows; r += d->wide_rows) {
            int n = rows - r < d->wide_rows ? rows - r : d->wide_rows;
            void *w = cu_scratch(d, (size_t)(n + CU_TILE) * (size_t)s->k * 2);
            if (!w) return;
            unpack(d, s, p->tile0 * CU_TILE + r, n, p->mul, w);
            cu_blas_mul(d, w, n, s->k, a->x, s->k, a->T, p->mul > 0 ? 1.0f / p->mul : p->one_scale, a->add, a->y + p->col + r, a->ldy);
        }
    }
}

/* The small kernels read whole units of x: rows of other lengths (toys and tests; the models' are multiples of 64) are padded with zeros,
 * 32 rows at a time, in d->padded. */
static const void *pad_x(struct cu_dev *d, const struct cu_mat *m, const void *x, int T)
{
    int k = (int)m->head.k, kp = m->segs[0].units * CU_KU;
    void *out = d->padded;
    if (k == kp) return x;
    cu_launch(d, "pad_rows", (struct cu_grid){.gx = cu_div(kp, 256), .gy = (unsigned)T, .bx = 256, .bytes = 4.0 * T * k}, CU_ARGS(&x, &k, &kp, &out));
    return out;
}

/* By the small kernels, 32 rows at a time. */
static void stepped(struct cu_dev *d, const struct lk_linear_args *all, size_t y_bytes, int glu)
{
    const struct cu_mat *m = (const struct cu_mat *)all->w;
    for (int t = 0; t < all->T; t += CU_SMALL_ROWS) {
        struct lk_linear_args a = *all;
        a.T = all->T - t < CU_SMALL_ROWS ? all->T - t : CU_SMALL_ROWS;
        a.x = pad_x(d, m, (const uint16_t *)all->x + (size_t)t * (size_t)m->head.k, a.T);
        a.y = (float *)(void *)((char *)all->y + (size_t)t * (size_t)a.ldy * y_bytes);
        small_launch(d, m, &a, glu);
    }
}

static void op_linear(struct lk_dev *ld, const struct lk_linear_args *a)
{
    struct cu_dev *d = cu_of(ld);
    const struct cu_mat *m = (const struct cu_mat *)a->w;
    if (a->T > CU_SMALL_ROWS && d->blas)
        wide_linear(d, m, a);
    else
        stepped(d, a, 4, 0);
    if (leaves_norm(m, a))
        d->norm_tiles = m->segs[0].tiles;
    else if (a->next.w)
        d->ops.norm(ld, a->y, a->next.w, a->next.eps, a->T, a->ldy, a->next.h);
}

/* Gate and up lie 16 rows and 16 rows in a tile: one product makes both, and its columns stand in that order. */
static void wide_gate_up(struct cu_dev *d, const struct cu_mat *m, const struct lk_gate_up_args *a)
{
    const struct cu_seg *s = &m->segs[0];
    const struct cu_part *p = m->parts;
    int inter = p[0].n, rows = s->tiles * CU_TILE;
    float ag = p[0].mul > 0 ? 1.0f / p[0].mul : p[0].one_scale, au = p[1].mul > 0 ? 1.0f / p[1].mul : p[1].one_scale;
    for (int r = 0; r < rows; r += d->wide_rows) {
        int n = rows - r < d->wide_rows ? rows - r : d->wide_rows, cols = inter - r / 2 < n / 2 ? inter - r / 2 : n / 2;
        size_t wb = ((size_t)n * (size_t)s->k * 2 + 255) / 256 * 256;
        char *w = cu_scratch(d, wb + (size_t)a->T * (size_t)n * 4);
        if (!w) return;
        const float *y = (const float *)(void *)(w + wb);
        uint16_t *out = (uint16_t *)a->out + r / 2;
        unpack(d, s, r, n, p[0].mul, w);
        cu_blas_mul(d, w, n, s->k, a->x, s->k, a->T, 1, 0, (float *)(void *)(w + wb), n);
        cu_launch(d, "glu_act", (struct cu_grid){.gx = cu_div(cols, 1024), .gy = (unsigned)a->T, .bx = 256, .bytes = 10.0 * a->T * cols},
                  CU_ARGS(&y, &n, &ag, &au, &cols, &out, &inter));
    }
}

static void op_gate_up(struct lk_dev *ld, const struct lk_gate_up_args *a)
{
    struct cu_dev *d = cu_of(ld);
    const struct cu_mat *m = (const struct cu_mat *)a->w;
    if (a->T > CU_SMALL_ROWS && d->blas) {
        wide_gate_up(d, m, a);
        return;
    }
    struct lk_linear_args l = {.w = a->w, .x = a->x, .y = a->out, .T = a->T, .ldy = m->parts[0].n, .normed = a->normed};
    stepped(d, &l, 2, 1);
}

size_t cu_linear_scratch(struct cu_dev *d, const struct lk_dev_need *n)
{
    if (!d->blas || n->max_rows <= CU_SMALL_ROWS) return 0;
    size_t total = 0, free_now = 0, h = (size_t)n->hidden, inter = (size_t)n->inter, most;
    d->drv->mem_info(&free_now, &total);
    d->wide_rows = total >= LARGE_CARD ? WIDE_ROWS_LARGE : WIDE_ROWS;
    size_t q = (size_t)n->n_q * (size_t)n->head_dim, kv = (size_t)n->n_kv * (size_t)n->head_dim, v = (size_t)n->hv * (size_t)n->gdn_dim;
    size_t cols = (2 * inter + CU_TILE) < (size_t)d->wide_rows ? 2 * inter + CU_TILE : (size_t)d->wide_rows;
    const size_t need[] = {wide_bytes(d, 2 * q + 2 * kv, h), wide_bytes(d, 2 * (size_t)n->hk * (size_t)n->gdn_dim + 2 * v, h), wide_bytes(d, (size_t)n->vocab, h),
                           wide_bytes(d, h, q), wide_bytes(d, h, v), wide_bytes(d, h, inter), wide_bytes(d, h, 2 * h), /* the draft layer's joint input */
                           wide_bytes(d, 2 * inter, h) + (size_t)n->max_rows * cols * 4};
    most = wide_bytes(d, WIDE_ROWS, inter > 2 * h ? inter : 2 * h); /* whatever else is asked */
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) most = need[i] > most ? need[i] : most;
    return most;
}

void cu_linear_ops(struct cu_dev *d)
{
    d->ops.linear = op_linear;
    d->ops.gate_up = op_gate_up;
}
