/* The oracle: every op of dev/ops.h in the plainest scalar form, f64 sums, no blocking, no
 * instruction set. It stays for ever; the fast CPU kernels and the CUDA kernels answer to it.
 * Attention and the delta net lie in ref_attn.c and ref_gdn.c. Work is spread over the pool by
 * output row only, so sums have one order whatever the thread count. */
#include "cpu/cpu.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

static void ref_embed(struct lk_dev *d, const struct lk_mat *m, const int32_t *ids, int T, float *x)
{
    const struct lk_weight *w = &m->parts[0].w;
    for (int t = 0; t < T; t++) {
        float *y = x + (size_t)t * (size_t)w->k;
        if (ids[t] < 0 || ids[t] >= w->n)
            memset(y, 0, (size_t)w->k * sizeof *y);
        else
            lk_weight_row(w, ids[t], 0, w->k, y);
    }
}

static void ref_norm_f32(struct lk_dev *d, const float *x, int ldx, const float *w, float eps,
                         int T, int n, float *y, int ldy)
{
    for (int t = 0; t < T; t++) {
        const float *xr = x + (size_t)t * (size_t)ldx;
        float *yr = y + (size_t)t * (size_t)ldy;
        double ss = 0;
        for (int i = 0; i < n; i++) ss += (double)xr[i] * xr[i];
        double r = 1 / sqrt(ss / n + eps);
        for (int i = 0; i < n; i++) yr[i] = (float)(xr[i] * r * w[i]);
    }
}

static void ref_norm(struct lk_dev *d, const float *x, const float *w, float eps, int T, int n,
                     void *h)
{
    ref_norm_f32(d, x, n, w, eps, T, n, h, n);
}

static void ref_to_act(struct lk_dev *d, const float *x, int ldx, int T, int n, void *h)
{
    float *y = h;
    for (int t = 0; t < T; t++)
        memcpy(y + (size_t)t * (size_t)n, x + (size_t)t * (size_t)ldx, (size_t)n * sizeof *y);
}

/* Ops made of others; every instruction set takes its own. */
static void ref_norm_out(struct lk_dev *d, const struct lk_norm_out_args *a)
{
    const struct lk_ops *o = &cpu_of(d)->ops;
    size_t n = (size_t)a->n;
    o->norm_f32(d, a->x, a->n, a->w, a->eps, a->T, a->n, a->y, a->n);
    for (int i = 0; i < a->n_out; i++)
        memcpy((float *)a->h + (size_t)i * n, a->y + (size_t)a->rows[i] * n, n * sizeof *a->y);
}

static void ref_draft_in(struct lk_dev *d, const struct lk_draft_in_args *a)
{
    const struct lk_ops *o = &cpu_of(d)->ops;
    int n = a->n;
    for (int t = 0; t < a->T; t++) {
        float *h = (float *)a->h + (size_t)t * 2 * (size_t)n;
        o->embed(d, a->table, a->ids + t, 1, h);
        o->norm_f32(d, h, n, a->embed_norm, a->eps, 1, n, h, n);
        o->norm_f32(d, a->hidden + (size_t)a->rows[t] * (size_t)n, n, a->hidden_norm, a->eps, 1, n, h + n, n);
    }
}

void cpu_next_norm(struct lk_dev *d, const struct lk_linear_args *a)
{
    if (a->next.w) cpu_of(d)->ops.norm(d, a->y, a->next.w, a->next.eps, a->T, a->ldy, a->next.h);
}

/* ---- linear, gate_up: one part a weight row ---- */

static double ref_dot(const float *w, const float *x, int64_t k)
{
    double s = 0;
    for (int64_t i = 0; i < k; i++) s += (double)w[i] * x[i];
    return s;
}

struct lin_job {
    struct cpu_dev *c;
    const struct lk_weight *w;
    const struct lk_linear_args *a;
    int64_t col0; /* of this part in y */
};

static void lin_row(void *arg, int n, int worker)
{
    const struct lin_job *j = arg;
    const struct lk_weight *w = j->w;
    float *row = cpu_row(j->c, worker);
    lk_weight_row(w, n, 0, w->k, row);
    for (int t = 0; t < j->a->T; t++) {
        float *y = j->a->y + (size_t)t * (size_t)j->a->ldy + j->col0 + n;
        float v = (float)ref_dot(row, (const float *)j->a->x + (size_t)t * (size_t)w->k, w->k);
        *y = j->a->add ? *y + v : v;
    }
}

static void ref_linear(struct lk_dev *d, const struct lk_linear_args *a)
{
    struct cpu_dev *c = cpu_of(d);
    struct lin_job j = {c, NULL, a, 0};
    for (int p = 0; p < a->w->head.n_parts; p++) {
        j.w = &a->w->parts[p].w;
        lk_pool_run(c->pool, (int)j.w->n, lin_row, &j);
        j.col0 += j.w->n;
    }
    cpu_next_norm(d, a);
}

struct gate_job {
    struct cpu_dev *c;
    const struct lk_gate_up_args *a;
};

static void gate_row(void *arg, int i, int worker)
{
    const struct gate_job *j = arg;
    const struct lk_weight *g = &j->a->w->parts[0].w, *u = &j->a->w->parts[1].w;
    float *row = cpu_row(j->c, worker), *out = j->a->out;
    for (int t = 0; t < j->a->T; t++) { /* decodes twice a row: plain beats fast here */
        const float *x = (const float *)j->a->x + (size_t)t * (size_t)g->k;
        lk_weight_row(g, i, 0, g->k, row);
        double gv = ref_dot(row, x, g->k);
        lk_weight_row(u, i, 0, u->k, row);
        double uv = ref_dot(row, x, u->k);
        out[(size_t)t * (size_t)g->n + (size_t)i] = (float)(gv / (1 + exp(-gv)) * uv);
    }
}

static void ref_gate_up(struct lk_dev *d, const struct lk_gate_up_args *a)
{
    struct gate_job j = {cpu_of(d), a};
    lk_pool_run(j.c->pool, (int)a->w->parts[0].w.n, gate_row, &j);
}

/* ---- plain vectors ---- */

static void ref_add(struct lk_dev *d, float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void ref_gather(struct lk_dev *d, const float *x, int ldx, const int32_t *rows, int n_out,
                       int n, float *y)
{
    for (int i = 0; i < n_out; i++)
        memcpy(y + (size_t)i * (size_t)n, x + (size_t)rows[i] * (size_t)ldx, (size_t)n * sizeof *y);
}

static void ref_argmax(struct lk_dev *d, const float *logits, int T, int n, int ld, int32_t id0,
                       int32_t *ids, float *val)
{
    for (int t = 0; t < T; t++) {
        const float *l = logits + (size_t)t * (size_t)ld;
        int best = 0;
        for (int i = 1; i < n; i++)
            if (l[i] > l[best]) best = i;
        ids[t] = id0 + best;
        if (val) val[t] = l[best];
    }
}

/* Keeps the k best in falling order by insertion; strict comparison leaves ties to the smaller id.
 */
static void topk_row(const float *l, int n, int k, int32_t id0, int32_t *ids, float *vals)
{
    int have = 0;
    for (int i = 0; i < n; i++) {
        if (have == k && !(l[i] > vals[k - 1])) continue;
        int p = have < k ? have++ : k - 1;
        for (; p > 0 && l[i] > vals[p - 1]; p--) {
            vals[p] = vals[p - 1];
            ids[p] = ids[p - 1];
        }
        vals[p] = l[i];
        ids[p] = id0 + i;
    }
    for (; have < k; have++) {
        vals[have] = -INFINITY;
        ids[have] = -1;
    }
}

static void ref_topk(struct lk_dev *d, const struct lk_topk_args *a)
{
    for (int t = 0; t < a->T; t++) {
        const float *l = a->logits + (size_t)t * (size_t)a->ld;
        topk_row(l, a->n, a->k, a->id0, a->ids + (size_t)t * (size_t)a->k,
                 a->vals + (size_t)t * (size_t)a->k);
        float m = l[0];
        for (int i = 1; i < a->n; i++)
            if (l[i] > m) m = l[i];
        double s = 0;
        for (int i = 0; i < a->n; i++) s += exp((double)l[i] - m);
        a->lse[t] = (float)(m + log(s));
    }
}

static void ref_edit(struct lk_dev *d, const struct lk_edit_args *a)
{
    for (int i = 0; i < a->n_edits; i++) {
        float *l = a->logits + (size_t)a->rows[i] * (size_t)a->ld + a->ids[i];
        float v = *l > 0 ? *l / a->rep[i] : *l * a->rep[i];
        *l = v + a->add[i];
    }
}

size_t cpu_ref_work(const struct lk_dev_need *n, int threads)
{
    size_t q = (size_t)n->n_q * LK_HEAD, qkv = (size_t)(2 * n->hk + n->hv) * 128;
    return ((size_t)n->max_rows * (q > qkv ? q : qkv) + (size_t)threads * 128 * 128) *
           sizeof(float);
}

void cpu_ref_ops(struct lk_ops *o)
{
    *o = (struct lk_ops){
        .embed = ref_embed,
        .norm = ref_norm,
        .norm_f32 = ref_norm_f32,
        .norm_out = ref_norm_out,
        .draft_in = ref_draft_in,
        .to_act = ref_to_act,
        .linear = ref_linear,
        .gate_up = ref_gate_up,
        .attn = cpu_ref_attn,
        .gdn = cpu_ref_gdn,
        .gdn_fold = cpu_ref_gdn_fold,
        .add = ref_add,
        .gather = ref_gather,
        .argmax = ref_argmax,
        .topk = ref_topk,
        .edit = ref_edit,
    };
}
