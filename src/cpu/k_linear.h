/* linear and gate_up. Compiled once an instruction set. Up to 16 rows of x take the small product
 * (k_rows.h), more the wide one (k_gemm.h). Parts are blocks of weight rows of fixed size, so the
 * number of threads changes nothing. */
#ifndef LK_CPU_K_LINEAR_H
#define LK_CPU_K_LINEAR_H

#include "cpu/k_gemm.h"
#include "cpu/k_rough.h"

/* ---- small ---- */

static void small_one(const struct lin_job *j, const struct cpu_part *p, int64_t row, int rows, float *sum)
{
    p = cpu_turn(p, &row);
    fmts[p->kern].small(p, row, rows, j->x, j->ldx, j->T, sum);
}

static void small_part(void *arg, int part, int worker)
{
    const struct lin_job *j = arg;
    int64_t row = (int64_t)part * SN;
    int rows = j->p->w.n - row < SN ? (int)(j->p->w.n - row) : SN;
    float s[2][CPU_SMALL_ROWS * SN];
    small_one(j, j->p, row, rows, s[0]);
    if (j->gate) {
        small_one(j, j->p + 1, row, rows, s[1]);
        for (int i = rows; i < SN; i++) /* whole vectors below; these lanes are not stored */
            for (int t = 0; t < j->T; t++) s[0][t * SN + i] = s[1][t * SN + i] = 0;
    }
    for (int t = 0; t < j->T; t++) {
        float *y = j->y + (int64_t)t * j->ldy + row, *v = s[0] + t * SN;
        if (j->gate)
            for (int i = 0; i < SN; i += VW)
                vf_store(v + i, vf_mul(vf_silu(vf_load(v + i)), vf_load(s[1] + t * SN + i)));
        for (int i = 0; i < rows; i++) y[i] = j->add ? y[i] + v[i] : v[i];
    }
}

/* Lays x out for one part's format and runs its row blocks. */
static void lin_run(struct lin_job *j, const float *x, float *packed, int64_t k)
{
    const struct shape *f = fmts[j->p->kern].f;
    int wide = j->T > CPU_SMALL_ROWS, step = wide ? WN : SN;
    j->ldx = k_padded(k);
    j->x = packed;
    if (wide) {
        struct pack_job pj = {x, packed, k, j->T, f->perm};
        lk_pool_run(j->c->pool, (int)quads_of(j->T), pack_quad, &pj);
#if defined(__AVX2__)
    } else if (f->ints) {
        for (int t = 0; t < j->T; t++) ints_pack(x + t * k, k, packed + t * j->ldx);
#endif
    } else if (f->perm == PERM_NATURAL && !f->xexp && k % KB == 0) {
        j->x = x;
    } else {
        float m = ldexpf(1, f->xexp);
        for (int t = 0; t < j->T; t++) pack_row(x + t * k, k, f->perm, m, packed + t * j->ldx);
    }
    int blocks = (int)((j->p->w.n + step - 1) / step);
    j->slices = wide ? gemm_slices(j, blocks) : 1;
    lk_pool_run(j->c->pool, blocks * j->slices, wide ? gemm_part : small_part, j);
}

static float *lin_begin(struct lin_job *j, struct lk_dev *d, int64_t k, const char *op)
{
    j->c = cpu_of(d);
    if (j->T > CPU_SMALL_ROWS && j->c->worker_bytes < lin_worker_bytes(j->T)) {
        lk_fail(&j->c->err, LK_EDEVICE, "cpu: op %s got %d rows, check reserved less", op, j->T);
        return NULL;
    }
    return cpu_work(j->c, lin_work_bytes(k, j->T), op);
}

static void k_linear(struct lk_dev *d, const struct lk_linear_args *a)
{
    struct lin_job j = {.y = a->y, .T = a->T, .ldy = a->ldy, .add = a->add};
    if (a->w->head.kind == LK_MAT_ROUGH) {
        k_rough(d, a);
        return;
    }
    float *packed = a->T > 0 ? lin_begin(&j, d, a->w->head.k, "linear") : NULL;
    if (!packed) return;
    for (int p = 0; p < a->w->head.n_parts; p++) {
        j.p = a->w->parts + p;
        lin_run(&j, a->x, packed, a->w->head.k);
        j.y += j.p->w.n;
    }
    cpu_next_norm(d, a);
}

/* Gate and up may differ in format but not in the order of their columns (mat_load sees to it). */
static void k_gate_up(struct lk_dev *d, const struct lk_gate_up_args *a)
{
    struct lin_job j = {
        .p = a->w->parts, .y = a->out, .T = a->T, .ldy = (int)a->w->parts[0].w.n, .gate = 1};
    float *packed = a->T > 0 ? lin_begin(&j, d, a->w->head.k, "gate_up") : NULL;
    if (packed) lin_run(&j, a->x, packed, a->w->head.k);
}

#endif
