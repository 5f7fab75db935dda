/* The small ops: embed, norm, add, gather, argmax, topk. Compiled once an instruction set.
 *
 * argmax and topk cut a row of logits every TOP_COLS columns; a part keeps its own best and its own
 * sum, the parts are joined in order, so the result does not depend on the number of threads. */
#ifndef LK_CPU_K_VECTOR_H
#define LK_CPU_K_VECTOR_H

#include "cpu/cpu.h"
#include "cpu/simd.h"

enum { TOP_COLS = 8192, TOP_MAX = 256, ADD_PART = 16384 };

/* ---- rows ---- */

struct row_job {
    const struct lk_weight *w;
    const int32_t *ids;
    const float *x, *nw;
    float *y;
    float eps;
    int ldx, ldy, n;
};

static void embed_row(void *arg, int t, int worker)
{
    const struct row_job *j = arg;
    float *y = j->y + (size_t)t * (size_t)j->w->k;
    if (j->ids[t] < 0 || j->ids[t] >= j->w->n)
        memset(y, 0, (size_t)j->w->k * sizeof *y);
    else
        lk_weight_row(j->w, j->ids[t], 0, j->w->k, y);
}

static void k_embed(struct lk_dev *d, const struct lk_mat *m, const int32_t *ids, int T, float *x)
{
    struct row_job j = {.w = &m->parts[0].w, .ids = ids, .y = x};
    lk_pool_run(cpu_of(d)->pool, T, embed_row, &j);
}

static void norm_row(void *arg, int t, int worker)
{
    const struct row_job *j = arg;
    const float *x = j->x + (size_t)t * (size_t)j->ldx;
    float *y = j->y + (size_t)t * (size_t)j->ldy;
    int n = j->n / (4 * VW) * (4 * VW);
    vf s[4];
    for (int i = 0; i < 4; i++) s[i] = vf_set(0);
    for (int i = 0; i < n; i += 4 * VW)
        for (int u = 0; u < 4; u++)
            s[u] = vf_fma(vf_load(x + i + u * VW), vf_load(x + i + u * VW), s[u]);
    float ss = vf_sum(vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3])));
    for (int i = n; i < j->n; i++) ss += x[i] * x[i];
    float r = 1 / sqrtf(ss / (float)j->n + j->eps);
    for (int i = 0; i < n; i += VW)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), vf_set(r)), vf_load(j->nw + i)));
    for (int i = n; i < j->n; i++) y[i] = x[i] * r * j->nw[i];
}

static void k_norm_f32(struct lk_dev *d, const float *x, int ldx, const float *w, float eps, int T,
                       int n, float *y, int ldy)
{
    struct row_job j = {.x = x, .nw = w, .y = y, .eps = eps, .ldx = ldx, .ldy = ldy, .n = n};
    lk_pool_run(cpu_of(d)->pool, T, norm_row, &j);
}

static void k_norm(struct lk_dev *d, const float *x, const float *w, float eps, int T, int n,
                   void *h)
{
    k_norm_f32(d, x, n, w, eps, T, n, h, n);
}

struct add_job {
    float *y;
    const float *x;
    size_t n;
};

static void add_part(void *arg, int part, int worker)
{
    const struct add_job *j = arg;
    size_t i = (size_t)part * ADD_PART, end = j->n - i < ADD_PART ? j->n : i + ADD_PART;
    for (; i + VW <= end; i += VW) vf_store(j->y + i, vf_add(vf_load(j->y + i), vf_load(j->x + i)));
    for (; i < end; i++) j->y[i] += j->x[i];
}

static void k_add(struct lk_dev *d, float *y, const float *x, size_t n)
{
    struct add_job j = {y, x, n};
    lk_pool_run(cpu_of(d)->pool, (int)((n + ADD_PART - 1) / ADD_PART), add_part, &j);
}

/* ---- best of a row ---- */

struct top_part {
    float m, sum; /* largest, sum of e^(x - m) */
    int n;
    int32_t ids[TOP_MAX];
    float vals[TOP_MAX];
};

struct top_job {
    const float *logits;
    int n, ld, k, parts;
    struct top_part *p; /* [T][parts] */
};

/* Falling values, ties to the smaller id: the new one comes later, so it goes behind its equals. */
static void top_insert(struct top_part *p, int k, int32_t id, float v)
{
    int at = p->n < k ? p->n++ : k - 1;
    for (; at > 0 && v > p->vals[at - 1]; at--) {
        p->vals[at] = p->vals[at - 1];
        p->ids[at] = p->ids[at - 1];
    }
    p->vals[at] = v;
    p->ids[at] = id;
}

static void top_columns(void *arg, int part, int worker)
{
    const struct top_job *j = arg;
    const float *l = j->logits + (size_t)(part / j->parts) * (size_t)j->ld;
    struct top_part *p = j->p + part;
    int c0 = part % j->parts * TOP_COLS, c1 = j->n - c0 < TOP_COLS ? j->n : c0 + TOP_COLS, i = c0;
    vf mv = vf_set(-INFINITY), sv = vf_set(0);
    for (; i + VW <= c1; i += VW) mv = vf_max(mv, vf_load(l + i));
    p->m = vf_hmax(mv);
    for (; i < c1; i++) p->m = l[i] > p->m ? l[i] : p->m;
    for (i = c0; i + VW <= c1; i += VW)
        sv = vf_add(sv, vf_exp(vf_sub(vf_load(l + i), vf_set(p->m))));
    p->sum = vf_sum(sv);
    for (; i < c1; i++) p->sum += expf(l[i] - p->m);
    p->n = 0;
    for (i = c0; i < c1;) {
        float least = p->n < j->k ? -INFINITY : p->vals[j->k - 1];
        if (p->n == j->k) /* whole vectors without a better value are most of them */
            while (i + VW <= c1 && !(vf_hmax(vf_load(l + i)) > least)) i += VW;
        int end = i + VW < c1 ? i + VW : c1;
        for (; i < end; i++)
            if (p->n < j->k || l[i] > p->vals[j->k - 1]) top_insert(p, j->k, i, l[i]);
    }
}

static int top_parts(int n)
{
    return (n + TOP_COLS - 1) / TOP_COLS;
}

static void k_topk(struct lk_dev *d, const struct lk_topk_args *a)
{
    struct cpu_dev *c = cpu_of(d);
    struct top_job j = {a->logits,       a->n, a->ld, a->k < TOP_MAX ? a->k : TOP_MAX,
                        top_parts(a->n), NULL};
    for (int t = 0; t < a->T;
         t++) { /* a row at a time: 31 parts of 2 KB for the whole vocabulary */
        j.p = cpu_work(c, (size_t)j.parts * sizeof *j.p, "topk");
        if (!j.p) return;
        j.logits = a->logits + (size_t)t * (size_t)a->ld;
        lk_pool_run(c->pool, j.parts, top_columns, &j);
        struct top_part all = {.m = -INFINITY};
        for (int p = 0; p < j.parts; p++) {
            if (j.p[p].m > all.m) all.m = j.p[p].m;
            for (int i = 0; i < j.p[p].n; i++)
                if (all.n < j.k || j.p[p].vals[i] > all.vals[j.k - 1])
                    top_insert(&all, j.k, j.p[p].ids[i], j.p[p].vals[i]);
        }
        for (int p = 0; p < j.parts; p++) all.sum += j.p[p].sum * expf(j.p[p].m - all.m);
        for (int i = 0; i < a->k; i++) {
            a->ids[(size_t)t * (size_t)a->k + (size_t)i] = i < all.n ? a->id0 + all.ids[i] : -1;
            a->vals[(size_t)t * (size_t)a->k + (size_t)i] = i < all.n ? all.vals[i] : -INFINITY;
        }
        a->lse[t] = all.m + logf(all.sum);
    }
}

static void arg_columns(void *arg, int part, int worker)
{
    const struct top_job *j = arg;
    const float *l = j->logits;
    struct top_part *p = j->p + part;
    int c0 = part * TOP_COLS, c1 = j->n - c0 < TOP_COLS ? j->n : c0 + TOP_COLS, i = c0;
    vf mv = vf_set(-INFINITY);
    for (; i + VW <= c1; i += VW) mv = vf_max(mv, vf_load(l + i));
    p->m = vf_hmax(mv);
    for (; i < c1; i++) p->m = l[i] > p->m ? l[i] : p->m;
    for (i = c0; i < c1 - 1 && l[i] != p->m; i++) {
    }
    p->ids[0] = i;
}

static void k_argmax(struct lk_dev *d, const float *logits, int T, int n, int ld, int32_t id0,
                     int32_t *ids, float *val)
{
    struct cpu_dev *c = cpu_of(d);
    struct top_job j = {logits, n, ld, 1, top_parts(n), NULL};
    j.p = cpu_work(c, (size_t)j.parts * sizeof *j.p, "argmax");
    for (int t = 0; j.p && t < T; t++) {
        j.logits = logits + (size_t)t * (size_t)ld;
        lk_pool_run(c->pool, j.parts, arg_columns, &j);
        int best = 0;
        for (int p = 1; p < j.parts; p++)
            if (j.p[p].m > j.p[best].m) best = p;
        ids[t] = id0 + j.p[best].ids[0];
        if (val) val[t] = j.p[best].m;
    }
}

static size_t top_work_bytes(int vocab)
{
    return (size_t)top_parts(vocab) * sizeof(struct top_part);
}

#endif
