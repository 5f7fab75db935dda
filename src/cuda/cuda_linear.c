/* Linears: one small launch a segment for up to 32 rows; beyond that de-quantised f16 tiles and cuBLAS, or, without cuBLAS, the small
 * kernel in steps of 32 rows. Owns the choice; the kernels are in linear.cu and small.cu. */
#include "cuda/cublas.h"
#include "cuda/cuda_mat.h"

/* Wide products work on slices of this many rows of W at most; the slice as f16 plus, for gate_up, two f32 results. */
#define WIDE_ROWS 8192
#define WIDE_GLU_ROWS 4096

static const char *const kernel_names[2][CU_FMT_COUNT + 1][3] = {
    {{"lin_f16_t1", "lin_f16_t2", "lin_f16_t4"},
     {"lin_i8_t1", "lin_i8_t2", "lin_i8_t4"},
     {"lin_i8g_t1", "lin_i8g_t2", "lin_i8g_t4"},
     {"lin_fp8_t1", "lin_fp8_t2", "lin_fp8_t4"},
     {"lin_nvfp4_t1", "lin_nvfp4_t2", "lin_nvfp4_t4"},
     {"lin_q4_t1", "lin_q4_t2", "lin_q4_t4"},
     {"lin_q4m_t1", "lin_q4m_t2", "lin_q4m_t4"},
     {"lin_fp8b_t1", "lin_fp8b_t2", "lin_fp8b_t4"}},
    {{"glu_f16_t1", "glu_f16_t2", "glu_f16_t4"},
     {"glu_i8_t1", "glu_i8_t2", "glu_i8_t4"},
     {"glu_i8g_t1", "glu_i8g_t2", "glu_i8g_t4"},
     {"glu_fp8_t1", "glu_fp8_t2", "glu_fp8_t4"},
     {"glu_nvfp4_t1", "glu_nvfp4_t2", "glu_nvfp4_t4"},
     {"glu_q4_t1", "glu_q4_t2", "glu_q4_t4"},
     {"glu_q4m_t1", "glu_q4m_t2", "glu_q4m_t4"},
     {"glu_fp8b_t1", "glu_fp8b_t2", "glu_fp8b_t4"}},
};

static void small_launch(struct cu_dev *d, const struct cu_seg *s, const void *x, void *y, int T, int ldy, int add, int glu)
{
    int f = s->fmt == CU_FP8 && s->blk_scale ? CU_FMT_COUNT : s->fmt;
    const char *name = kernel_names[glu][f][T <= 8 ? 0 : T <= 16 ? 1 : 2];
    struct cu_linear_par p = {.s = *s, .x = x, .y = y, .T = T, .ldx = s->units * CU_KU, .ldy = ldy, .add = add};
    double bytes = (double)s->tiles * s->units * s->unit_bytes + 2.0 * T * s->k + (glu ? 1.0 : 4.0 + 4.0 * add) * T * s->n;
    struct cu_grid g = {.gx = (unsigned)s->tiles, .bx = CU_WARPS * 32, .flags = CU_PDL, .bytes = bytes};
    cu_launch(d, name, g, CU_ARGS(&p));
}

static void small_linear(struct cu_dev *d, const struct cu_mat *m, const void *x, float *y, int T, int ldy, int add)
{
    for (int i = 0; i < m->n_segs; i++) small_launch(d, &m->segs[i], x, y, T, ldy, add, 0);
}

/* Rows [r0, r0 + n) of a segment's packed rows as f16 times mul; mul 0: without their row scale, which is one number then. half: rows of
 * gate (0) or up (1), -1 neither. */
static void dequant(struct cu_dev *d, const struct cu_seg *s, int r0, int n, int half, float mul, void *out)
{
    double bytes = (double)n * s->k * 2 + (double)n / CU_TILE * s->units * s->unit_bytes;
    cu_launch(d, "dequant_rows", (struct cu_grid){.gx = (unsigned)n, .bx = 256, .bytes = bytes}, CU_ARGS((void *)(uintptr_t)s, &r0, &n, &half, &mul, &out));
}

static size_t wide_bytes(const struct lk_dev_need *n)
{
    size_t k = (size_t)(n->inter > n->hidden ? n->inter : n->hidden);
    if ((size_t)n->n_q * (size_t)n->head_dim > k) k = (size_t)n->n_q * (size_t)n->head_dim;
    if ((size_t)n->hv * (size_t)n->gdn_dim > k) k = (size_t)n->hv * (size_t)n->gdn_dim;
    if (2 * (size_t)n->hidden > k) k = 2 * (size_t)n->hidden; /* the draft layer's joint input */
    return (WIDE_ROWS * k * 2 + 255) / 256 * 256;
}

static void wide_linear(struct cu_dev *d, const struct cu_mat *m, const struct lk_linear_args *a)
{
    for (int i = 0; i < m->head.n_parts; i++) {
        const struct cu_part *p = &m->parts[i];
        const struct cu_seg *s = &m->segs[p->seg];
        for (int r = 0; r < p->n; r += WIDE_ROWS) {
            int n = p->n - r < WIDE_ROWS ? p->n - r : WIDE_ROWS;
            void *w = cu_scratch(d, (size_t)n * (size_t)s->k * 2);
            if (!w) return;
            dequant(d, s, p->tile0 * CU_TILE + r, n, -1, p->mul, w);
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

static void stepped_linear(struct cu_dev *d, const struct cu_mat *m, const struct lk_linear_args *a)
{
    for (int t = 0; t < a->T; t += CU_SMALL_ROWS) {
        int n = a->T - t < CU_SMALL_ROWS ? a->T - t : CU_SMALL_ROWS;
        const void *x = pad_x(d, m, (const uint16_t *)a->x + (size_t)t * (size_t)m->head.k, n);
        small_linear(d, m, x, a->y + (size_t)t * (size_t)a->ldy, n, a->ldy, a->add);
    }
}

static void op_linear(struct lk_dev *ld, const struct lk_linear_args *a)
{
    struct cu_dev *d = cu_of(ld);
    const struct cu_mat *m = (const struct cu_mat *)a->w;
    if (a->T > CU_SMALL_ROWS && d->blas)
        wide_linear(d, m, a);
    else
        stepped_linear(d, m, a);
}

static void wide_gate_up(struct cu_dev *d, const struct cu_mat *m, const struct lk_gate_up_args *a)
{
    const struct cu_seg *s = &m->segs[0];
    int inter = m->parts[0].n;
    for (int r = 0; r < inter; r += WIDE_GLU_ROWS) {
        int n = inter - r < WIDE_GLU_ROWS ? inter - r : WIDE_GLU_ROWS;
        size_t wb = ((size_t)n * (size_t)s->k * 2 + 255) / 256 * 256, yb = (size_t)a->T * (size_t)n * 4;
        char *w = cu_scratch(d, wb + 2 * yb);
        if (!w) return;
        for (int h = 0; h < 2; h++) {
            dequant(d, s, r, n, h, m->parts[h].mul, w);
            float alpha = m->parts[h].mul > 0 ? 1.0f / m->parts[h].mul : m->parts[h].one_scale;
            cu_blas_mul(d, w, n, s->k, a->x, s->k, a->T, alpha, 0, (float *)(w + wb + (size_t)h * yb), n);
        }
        const float *g = (const float *)(w + wb), *u = (const float *)(w + wb + yb);
        uint16_t *out = (uint16_t *)a->out + r;
        cu_launch(d, "glu_act", (struct cu_grid){.gx = cu_div(n, 256), .gy = (unsigned)a->T, .bx = 256, .bytes = 10.0 * a->T * n},
                  CU_ARGS(&g, &u, &n, &out, &inter));
    }
}

static void op_gate_up(struct lk_dev *ld, const struct lk_gate_up_args *a)
{
    struct cu_dev *d = cu_of(ld);
    const struct cu_mat *m = (const struct cu_mat *)a->w;
    size_t inter = (size_t)m->parts[0].n, k = (size_t)m->head.k;
    if (a->T > CU_SMALL_ROWS && d->blas) {
        wide_gate_up(d, m, a);
        return;
    }
    for (int t = 0; t < a->T; t += CU_SMALL_ROWS) {
        int n = a->T - t < CU_SMALL_ROWS ? a->T - t : CU_SMALL_ROWS;
        const void *x = pad_x(d, m, (const uint16_t *)a->x + (size_t)t * k, n);
        small_launch(d, &m->segs[0], x, (uint16_t *)a->out + (size_t)t * inter, n, (int)inter, 0, 1);
    }
}

size_t cu_linear_scratch(struct cu_dev *d, const struct lk_dev_need *n)
{
    if (!d->blas || n->max_rows <= CU_SMALL_ROWS) return 0;
    size_t glu = (size_t)WIDE_GLU_ROWS * (size_t)n->hidden * 2 + 256 + (size_t)n->max_rows * WIDE_GLU_ROWS * 8, w = wide_bytes(n);
    return glu > w ? glu : w;
}

void cu_linear_ops(struct cu_dev *d)
{
    d->ops.linear = op_linear;
    d->ops.gate_up = op_gate_up;
}
