/* Launchers of the small ops (small.cu): grid sizes and bytes, nothing else. */
#include "cuda/cuda_mat.h"

#define THREADS 256
#define ROW_THREADS 1024 /* of norm_out and draft_in: a row a CTA */

static void op_embed(struct lk_dev *d, const struct lk_mat *table, const int32_t *ids, int T, float *x)
{
    const struct cu_mat *m = (const struct cu_mat *)table;
    const struct cu_seg *s = &m->segs[0];
    double bytes = (double)T * (s->units * s->unit_bytes / CU_TILE + 4.0 * s->k);
    cu_launch(cu_of(d), "embed", (struct cu_grid){.gx = (unsigned)T, .gy = cu_div(s->k, THREADS), .bx = THREADS, .bytes = bytes},
              CU_ARGS((void *)(uintptr_t)s, &ids, &T, &x));
}

static void op_norm(struct lk_dev *ld, const float *x, const float *w, float eps, int T, int n, void *h)
{
    struct cu_dev *d = cu_of(ld);
    float *r = T <= CU_NORM_ROWS ? d->norm->r : NULL;
    d->norm_tiles = 0;
    cu_launch(d, "norm_act", (struct cu_grid){.gx = (unsigned)T, .bx = THREADS, .flags = CU_PDL, .bytes = 6.0 * T * n + 4.0 * n},
              CU_ARGS(&x, &w, &eps, &n, &h, &r));
}

static void op_norm_f32(struct lk_dev *d, const float *x, int ldx, const float *w, float eps, int T, int n, float *y, int ldy)
{
    cu_launch(cu_of(d), "norm_f32", (struct cu_grid){.gx = (unsigned)T, .bx = THREADS, .flags = CU_PDL, .bytes = 8.0 * T * n + 4.0 * n},
              CU_ARGS(&x, &ldx, &w, &eps, &n, &y, &ldy));
}

/* Rows picked are few in a step; a scorer's many are copied by kernels of their own. */
static void op_norm_out(struct lk_dev *d, const struct lk_norm_out_args *a)
{
    struct lk_norm_out_args p = *a;
    int many = a->n_out > 64;
    if (many) p.n_out = 0;
    cu_launch(cu_of(d), "norm_out", (struct cu_grid){.gx = (unsigned)a->T, .bx = ROW_THREADS, .flags = CU_PDL, .bytes = 8.0 * a->T * a->n + 4.0 * a->n},
              CU_ARGS(&p.x, &p.w, &p.eps, &p.n, &p.y, &p.rows, &p.n_out, &p.h));
    if (many)
        cu_launch(cu_of(d), "pick_act", (struct cu_grid){.gx = cu_div(a->n, THREADS), .gy = (unsigned)a->n_out, .bx = THREADS, .flags = CU_PDL, .bytes = 6.0 * a->n_out * a->n},
                  CU_ARGS(&p.y, &p.rows, &p.n, &p.h));
}

/* No CU_PDL: the first kernel of a draft pass waits for all of the one before. */
static void op_draft_in(struct lk_dev *d, const struct lk_draft_in_args *a)
{
    struct lk_draft_in_args p = *a;
    const struct cu_seg *s = &((const struct cu_mat *)a->table)->segs[0];
    double bytes = (double)a->T * (s->units * s->unit_bytes / CU_TILE + 8.0 * s->k) + 8.0 * s->k;
    cu_launch(cu_of(d), "draft_in", (struct cu_grid){.gx = (unsigned)a->T, .gy = 2, .bx = ROW_THREADS, .bytes = bytes},
              CU_ARGS((void *)(uintptr_t)s, &p.ids, &p.embed_norm, &p.hidden, &p.rows, &p.hidden_norm, &p.eps, &p.h));
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
    o->norm_out = op_norm_out;
    o->draft_in = op_draft_in;
    o->to_act = op_to_act;
    o->add = op_add;
    o->gather = op_gather;
    o->edit = op_edit;
}
