/* Launchers of the small ops (small.cu): grid sizes and bytes, nothing else. */
#include "cuda/cuda_mat.h"

#define THREADS 256
#define ARGMAX_PARTS 64

static void op_embed(struct lk_dev *d, const struct lk_mat *table, const int32_t *ids, int T, float *x)
{
    const struct cu_mat *m = (const struct cu_mat *)table;
    const struct cu_seg *s = &m->segs[0];
    double bytes = (double)T * (s->units * s->unit_bytes / CU_TILE + 4.0 * s->k);
    cu_launch(cu_of(d), "embed", (struct cu_grid){.gx = (unsigned)T, .gy = cu_div(s->k, 1024), .bx = THREADS, .bytes = bytes},
              CU_ARGS((void *)(uintptr_t)s, &ids, &T, &x));
}

static void op_norm(struct lk_dev *d, const float *x, const float *w, float eps, int T, int n, void *h)
{
    cu_launch(cu_of(d), "norm_act", (struct cu_grid){.gx = (unsigned)T, .bx = THREADS, .flags = CU_PDL, .bytes = 6.0 * T * n + 4.0 * n},
              CU_ARGS(&x, &w, &eps, &n, &h));
}

static void op_norm_f32(struct lk_dev *d, const float *x, int ldx, const float *w, float eps, int T, int n, float *y, int ldy)
{
    cu_launch(cu_of(d), "norm_f32", (struct cu_grid){.gx = (unsigned)T, .bx = THREADS, .flags = CU_PDL, .bytes = 8.0 * T * n + 4.0 * n},
              CU_ARGS(&x, &ldx, &w, &eps, &n, &y, &ldy));
}

static void op_to_act(struct lk_dev *d, const float *x, int ldx, int T, int n, void *h)
{
    cu_launch(cu_of(d), "to_act",
              (struct cu_grid){.gx = cu_div(n, THREADS), .gy = (unsigned)T, .bx = THREADS, .flags = CU_PDL, .bytes = 6.0 * T * n},
              CU_ARGS(&x, &ldx, &n, &h));
}

static void op_add(struct lk_dev *d, float *y, const float *x, size_t n)
{
    cu_launch(cu_of(d), "add_f32", (struct cu_grid){.gx = cu_div((int64_t)n, THREADS), .bx = THREADS, .flags = CU_PDL, .bytes = 12.0 * (double)n},
              CU_ARGS(&y, &x, &n));
}

static void op_gather(struct lk_dev *d, const float *x, int ldx, const int32_t *rows, int n_out, int n, float *y)
{
    cu_launch(cu_of(d), "gather_rows",
              (struct cu_grid){.gx = cu_div(n, THREADS), .gy = (unsigned)n_out, .bx = THREADS, .flags = CU_PDL, .bytes = 8.0 * n_out * n},
              CU_ARGS(&x, &ldx, &rows, &n, &y));
}

static void op_argmax(struct lk_dev *ld, const float *logits, int T, int n, int ld_, int32_t id0, int32_t *ids, float *val)
{
    struct cu_dev *d = cu_of(ld);
    int parts = n >= ARGMAX_PARTS * 512 ? ARGMAX_PARTS : (int)cu_div(n, 512);
    for (int t = 0; t < T; t += CU_SMALL_ROWS) { /* scratch holds the winners of 32 rows */
        int m = T - t < CU_SMALL_ROWS ? T - t : CU_SMALL_ROWS;
        void *best = d->winners;
        const float *l = logits + (size_t)t * (size_t)ld_;
        int32_t *out = ids + t;
        float *v = val ? val + t : NULL;
        cu_launch(d, "argmax_part",
                  (struct cu_grid){.gx = (unsigned)parts, .gy = (unsigned)m, .bx = THREADS, .flags = CU_PDL, .bytes = 4.0 * m * n},
                  CU_ARGS(&l, &n, &ld_, &best));
        cu_launch(d, "argmax_last", (struct cu_grid){.gx = (unsigned)m, .bx = 64, .flags = CU_PDL, .bytes = 8.0 * m * parts},
                  CU_ARGS(&best, &parts, &l, &ld_, &id0, &out, &v));
    }
}

static void op_edit(struct lk_dev *d, const struct lk_edit_args *a)
{
    if (a->n_edits <= 0) return;
    struct lk_edit_args p = *a;
    cu_launch(cu_of(d), "edit_logits",
              (struct cu_grid){.gx = cu_div(a->n_edits, THREADS), .bx = THREADS, .flags = CU_PDL, .bytes = 24.0 * a->n_edits},
              CU_ARGS(&p.logits, &p.ld, &p.n_edits, &p.rows, &p.ids, &p.rep, &p.add));
}

void cu_small_ops(struct cu_dev *d)
{
    struct lk_ops *o = &d->ops;
    o->embed = op_embed;
    o->norm = op_norm;
    o->norm_f32 = op_norm_f32;
    o->to_act = op_to_act;
    o->add = op_add;
    o->gather = op_gather;
    o->argmax = op_argmax;
    o->edit = op_edit;
}
