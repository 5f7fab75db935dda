/* Cases of the small ops: norm, norm_f32, norm_out, to_act, add, gather, argmax, topk, edit. */
#include "cases/cases.h"

#include <math.h>
#include <string.h>

enum what { NORM, NORM_F32, NORM_OUT, TO_ACT, ADD, GATHER, ARGMAX, TOPK, EDIT };

/* p: 0 what, 1 T, 2 n, 3 extra stride, 4 k (topk), 5 ties */
struct vec {
    float *x, *w, *y, *z;
    void *h; /* of norm_out: the rows picked */
    int32_t *ids;
    int ldx;
};

static void vec_inputs(struct op_run *r, struct vec *v)
{
    const int *p = r->c->p;
    size_t nx = (size_t)p[1] * (size_t)v->ldx;
    float *x = ot_rand(r, nx, p[0] == TOPK || p[0] == ARGMAX ? 3 : 1);
    for (size_t i = 0; x && p[5] && i < nx; i++) x[i] = rintf(x[i]); /* many ties */
    v->x = ot_up(r, x, nx * 4);
    v->w = ot_up(r, ot_rand(r, (size_t)p[2], 1), (size_t)p[2] * 4);
}

static void vec_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct vec *v = r->fam = ot_host(r, sizeof *v);
    if (!v) return;
    v->ldx = p[2] + p[3];
    vec_inputs(r, v);
    size_t n = (size_t)p[1] * (size_t)(p[0] == TOPK ? p[4] : p[2]);
    v->y = p[0] == ADD ? ot_up(r, ot_rand(r, n, 1), n * 4) : ot_dev(r, n * 4);
    if (p[0] == EDIT) {
        float *rep = ot_host(r, 64 * 4), *add = ot_rand(r, 64, 1);
        int32_t *ids = ot_host(r, 128 * 4);
        for (int i = 0; ids && rep && i < 64; i++) {
            rep[i] = i % 3 ? 1.25f : 1;
            ids[i] = (int32_t)(ot_random() % (uint32_t)p[1]);
            ids[64 + i] = (i * 7) % p[2];
        }
        v->ids = ot_up(r, ids, 128 * 4);
        v->z = ot_up(r, rep, 64 * 4);
        v->w = ot_up(r, add, 64 * 4);
    } else {
        int32_t *rows = ot_host(r, n * 4);
        for (int i = 0; rows && i < p[1]; i++) rows[i] = (int32_t)(ot_random() % (uint32_t)p[1]);
        v->ids = ot_up(r, rows, n * 4);
        v->z = ot_dev(r, (size_t)p[1] * 4);
        if (p[0] == NORM_OUT) v->h = ot_dev(r, (size_t)(p[4] + 1) * (size_t)p[2] * r->d->act_bytes);
    }
}

static void vec_issue(struct op_run *r)
{
    const int *p = r->c->p;
    const struct vec *v = r->fam;
    const struct lk_ops *o = r->d->ops;
    struct lk_topk_args tk = {v->x, p[1], p[2], v->ldx, p[4], 1000, v->ids, v->y, v->z};
    struct lk_edit_args ed = {v->x, v->ldx, 64, v->ids, v->ids + 64, v->z, v->w};
    struct lk_norm_out_args no = {v->x, v->w, 1e-6f, p[1], p[2], p[4], v->y, v->ids, v->h};
    switch ((enum what)p[0]) {
    case NORM:
        o->norm(r->d, v->x, v->w, 1e-6f, p[1], p[2], v->y);
        break;
    case NORM_F32:
        o->norm_f32(r->d, v->x, v->ldx, v->w, 1e-6f, p[1], p[2], v->y, p[2]);
        break;
    case NORM_OUT:
        o->norm_out(r->d, &no);
        break;
    case TO_ACT:
        o->to_act(r->d, v->x, v->ldx, p[1], p[2], v->y);
        break;
    case ADD:
        o->add(r->d, v->y, v->x, (size_t)p[1] * (size_t)p[2]);
        break;
    case GATHER:
        o->gather(r->d, v->x, v->ldx, v->ids, p[1], p[2], v->y);
        break;
    case ARGMAX:
        o->argmax(r->d, v->x, p[1], p[2], v->ldx, 1000, v->ids, v->z);
        break;
    case TOPK:
        o->topk(r->d, &tk);
        break;
    case EDIT:
        o->edit(r->d, &ed);
        break;
    }
}

static void vec_fetch(struct op_run *r)
{
    const int *p = r->c->p;
    const struct vec *v = r->fam;
    size_t T = (size_t)p[1], n = T * (size_t)p[2];
    switch ((enum what)p[0]) {
    case NORM:
    case TO_ACT:
        ot_out_act(r, "h", v->y, n, r->c->tol);
        break;
    case NORM_OUT:
        ot_out_act(r, "h", v->h, (size_t)p[4] * (size_t)p[2], r->c->tol);
        /* fall through */
    case NORM_F32:
    case ADD:
    case GATHER:
        ot_out_f32(r, "y", v->y, n, r->c->tol);
        break;
    case ARGMAX:
        ot_out_i32(r, "ids", v->ids, T);
        ot_out_f32(r, "val", v->z, T, 0);
        break;
    case TOPK:
        ot_out_i32(r, "ids", v->ids, T * (size_t)p[4]);
        ot_out_f32(r, "vals", v->y, T * (size_t)p[4], 0);
        ot_out_f32(r, "lse", v->z, T, r->c->tol);
        break;
    case EDIT:
        ot_out_f32(r, "logits", v->x, T * (size_t)v->ldx, r->c->tol);
        break;
    }
}

static void vec_cost(const struct op_case *c, double *bytes, double *flops)
{
    double n = (double)c->p[1] * c->p[2];
    *bytes = c->p[0] == ARGMAX || c->p[0] == TOPK ? 4 * n : 8 * n;
    *flops = 0;
}

static const struct op_family vector[] = {
    [NORM] = {"norm", vec_setup, vec_issue, vec_fetch, vec_cost},
    [NORM_F32] = {"norm_f32", vec_setup, vec_issue, vec_fetch, vec_cost},
    [NORM_OUT] = {"norm_out", vec_setup, vec_issue, vec_fetch, vec_cost},
    [TO_ACT] = {"to_act", vec_setup, vec_issue, vec_fetch, vec_cost},
    [ADD] = {"add", vec_setup, vec_issue, vec_fetch, vec_cost},
    [GATHER] = {"gather", vec_setup, vec_issue, vec_fetch, vec_cost},
    [ARGMAX] = {"argmax", vec_setup, vec_issue, vec_fetch, vec_cost},
    [TOPK] = {"topk", vec_setup, vec_issue, vec_fetch, vec_cost},
    [EDIT] = {"edit", vec_setup, vec_issue, vec_fetch, vec_cost},
};

static void vec_add(struct op_table *t, int use, enum what w, int T, int n, int extra, int k,
                    int ties)
{
    static const double tol[] = {[NORM] = 1e-6, [NORM_F32] = 1e-6, [NORM_OUT] = 1e-6, [TOPK] = 1e-6, [EDIT] = 2e-7};
    double own = w < sizeof tol / sizeof *tol ? tol[w] : 0;
    struct op_case *c = ot_add(t, vector + w, use, own,
                               own > 0 ? "f32 sums and functions, a few units in the last place"
                                       : "a copy or a comparison: exact",
                               "%s T%d n%d+%d k%d ties%d", vector[w].op, T, n, extra, k, ties);
    int p[12] = {(int)w, T, n, extra, k, ties};
    if (c) memcpy(c->p, p, sizeof p);
}

void cases_vector(struct op_table *t)
{
    static const int n[] = {1, 7, 8, 31, 128, 1000, 1024, 2560, 5120};
    for (enum what w = NORM; w <= GATHER; w++)
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            int extra = w == NORM || w == NORM_OUT || w == ADD ? 0 : 5 * (int)(i % 3);
            int picked = w != NORM_OUT ? 0 : n[i] == 1000 ? 70 : 1 + (int)(i % 3);
            vec_add(t, OP_CHECK | (n[i] >= 1024 ? OP_BENCH : 0), w, 1 + 8 * (int)(i % 3), n[i],
                    extra, picked, 0);
        }
    static const int v[] = {1, 2, 3, 9, 255, 256, 4097, 8192, 8193, 62080, 248320};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        for (int ties = 0; ties < 2; ties++) {
            int use = OP_CHECK | (v[i] == 248320 && !ties ? OP_BENCH : 0), T = v[i] > 60000 ? 1 : 3;
            vec_add(t, use, ARGMAX, T, v[i], 3, 0, ties);
            vec_add(t, use, TOPK, T, v[i], 3, v[i] < 40 ? v[i] : 40, ties);
            vec_add(t, OP_CHECK, TOPK, T, v[i], 0, v[i] < 256 ? v[i] : 256, ties);
            vec_add(t, OP_CHECK, TOPK, T, v[i], 1, 1, ties);
        }
    vec_add(t, OP_CHECK, TOPK, 2, 10, 0, 20, 0); /* fewer columns than k: ids -1, values -inf */
    vec_add(t, OP_CHECK, EDIT, 4, 1000, 7, 0, 0);
}
