/* The oracle of the gated delta net: convolution, gates, the recurrence token by token, gated norm.
 * Scalar; sums of a step are f64, the state is rounded to f32 after each token. Parts are (lane, v
 * head), each runs its tokens in order. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { D = 128 };

/* How a record row is laid out: see lk_gdn_record_bytes. */
struct rec {
    float *qkv, *k, *v, *g, *beta;
};

static struct rec rec_at(const void *record, int row, int hk, int hv)
{
    size_t c = (size_t)(2 * hk + hv) * D;
    struct rec r;
    r.qkv = (float *)((char *)(uintptr_t)record + lk_gdn_record_bytes(hk, hv) * (size_t)row);
    r.k = r.qkv + c;
    r.v = r.k + (size_t)hk * D;
    r.g = r.v + (size_t)hv * D;
    r.beta = r.g + hv;
    return r;
}

struct gdn_job {
    struct cpu_dev *c;
    const struct lk_gdn_args *a;
    float *qkv;   /* [T][C] after convolution, silu and the norms of q and k */
    float *spare; /* threads x 128 x 128: the state that RECORD throws away */
};

/* Input of the convolution `back` rows before row i of the lane (from the state when that is before
 * its first row). */
static const float *conv_in(const struct lk_gdn_args *a, const struct lk_lane *l, int i, int back)
{
    size_t c = (size_t)(2 * a->hk + a->hv) * D;
    int r = i - back;
    if (r >= 0) return a->proj + (size_t)(l->row0 + r) * (size_t)a->ld;
    return a->conv + ((size_t)l->slot * 3 + (size_t)(3 + r)) * c;
}

static void unit(float *x, double scale)
{
    double ss = 0;
    for (int i = 0; i < D; i++) ss += (double)x[i] * x[i];
    double r = scale / sqrt(ss + 1e-6);
    for (int i = 0; i < D; i++) x[i] = (float)(x[i] * r);
}

static void gdn_conv_row(const struct gdn_job *j, const struct lk_lane *l, int i)
{
    const struct lk_gdn_args *a = j->a;
    int c = (2 * a->hk + a->hv) * D;
    float *y = j->qkv + (size_t)(l->row0 + i) * (size_t)c;
    const float *in[4];
    for (int b = 0; b < 4; b++) in[3 - b] = conv_in(a, l, i, b);
    for (int ch = 0; ch < c; ch++) {
        double s = 0;
        for (int b = 0; b < 4; b++) s += (double)a->conv_w[(size_t)ch * 4 + (size_t)b] * in[b][ch];
        y[ch] = (float)(s / (1 + exp(-s)));
    }
    for (int h = 0; h < a->hk; h++) {
        unit(y + h * D, 1 / sqrt((double)D));
        unit(y + (a->hk + h) * D, 1);
    }
    if (a->mode != LK_GDN_RECORD) return;
    struct rec r = rec_at(a->record, l->row0 + i, a->hk, a->hv);
    memcpy(r.qkv, in[3], (size_t)c * sizeof *y);
    memcpy(r.k, y + a->hk * D, (size_t)a->hk * D * sizeof *y);
    memcpy(r.v, y + 2 * a->hk * D, (size_t)a->hv * D * sizeof *y);
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* One token of one head: S = e^g S; S += k (beta (v - S^T k))^T; o = S^T q (o may be NULL). */
static void gdn_token(float *S, const float *q, const float *k, const float *v, float g, float beta,
                      double *o)
{
    double m[D] = {0}, eg = exp((double)g);
    for (int i = 0; i < D; i++)
        for (int n = 0; n < D; n++) m[n] += eg * S[i * D + n] * k[i];
    for (int i = 0; i < D; i++)
        for (int n = 0; n < D; n++)
            S[i * D + n] = (float)(eg * S[i * D + n] + k[i] * (beta * (v[n] - m[n])));
    if (!o) return;
    for (int n = 0; n < D; n++) o[n] = 0;
    for (int i = 0; i < D; i++)
        for (int n = 0; n < D; n++) o[n] += (double)S[i * D + n] * q[i];
}

static void gdn_gated_norm(const struct lk_gdn_args *a, const double *o, const float *z, float *out)
{
    double ss = 0;
    for (int i = 0; i < D; i++) ss += o[i] * o[i];
    double r = 1 / sqrt(ss / D + a->eps);
    for (int i = 0; i < D; i++)
        out[i] = (float)(a->norm_w[i] * o[i] * r * (z[i] / (1 + exp(-(double)z[i]))));
}

static int k_head(int hk, int hv, int tiled, int v_head)
{
    return tiled ? v_head % hk : v_head / (hv / hk);
}

static void gdn_head(void *arg, int part, int worker)
{
    const struct gdn_job *j = arg;
    const struct lk_gdn_args *a = j->a;
    const struct lk_lane *l = a->b->lanes + part / a->hv;
    int h = part % a->hv, kh = k_head(a->hk, a->hv, a->tiled, h);
    size_t c = (size_t)(2 * a->hk + a->hv) * D;
    float *S = a->state + ((size_t)l->slot * (size_t)a->hv + (size_t)h) * D * D;
    if (a->mode == LK_GDN_RECORD) {
        float *copy = j->spare + (size_t)worker * D * D;
        memcpy(copy, S, sizeof *S * D * D);
        S = copy;
    }
    for (int i = 0; i < l->rows; i++) {
        size_t row = (size_t)(l->row0 + i);
        const float *p = a->proj + row * (size_t)a->ld, *y = j->qkv + row * c;
        const float *z = p + c + (size_t)h * D, *ba = p + c + (size_t)a->hv * D;
        const float *k = y + (size_t)(a->hk + kh) * D, *v = y + (size_t)(2 * a->hk + h) * D;
        float beta = (float)(1 / (1 + exp(-(double)ba[h])));
        float g = (float)(a->a_coef[h] * softplus((double)ba[a->hv + h] + a->dt_bias[h]));
        double o[D];
        gdn_token(S, y + (size_t)kh * D, k, v, g, beta, o);
        gdn_gated_norm(a, o, z, (float *)a->out + (row * (size_t)a->hv + (size_t)h) * D);
        if (a->mode == LK_GDN_RECORD) {
            struct rec r = rec_at(a->record, (int)row, a->hk, a->hv);
            r.g[h] = g;
            r.beta[h] = beta;
        }
    }
}

/* The window after `rows` more inputs: the last three of (old three, new rows). */
static void conv_advance(float *conv, int rows, size_t c, const float *in, size_t ld)
{
    for (int b = 0; b < 3; b++) {
        int r = rows - 3 + b;
        const float *src = r >= 0 ? in + (size_t)r * ld : conv + (size_t)(3 + r) * c;
        if (src != conv + (size_t)b * c) memmove(conv + (size_t)b * c, src, c * sizeof *conv);
    }
}

void cpu_ref_gdn(struct lk_dev *d, const struct lk_gdn_args *a)
{
    struct gdn_job j = {cpu_of(d), a, NULL, NULL};
    const struct lk_batch *b = a->b;
    size_t c = (size_t)(2 * a->hk + a->hv) * D, n = (size_t)b->n_rows * c;
    j.qkv = cpu_work(j.c, (n + (size_t)j.c->threads * D * D) * sizeof(float), "gdn");
    if (!j.qkv) return;
    j.spare = j.qkv + n;
    for (int l = 0; l < b->n_lanes; l++)
        for (int i = 0; i < b->lanes[l].rows; i++) gdn_conv_row(&j, b->lanes + l, i);
    lk_pool_run(j.c->pool, b->n_lanes * a->hv, gdn_head, &j);
    if (a->mode == LK_GDN_RECORD) return;
    for (int l = 0; l < b->n_lanes; l++) {
        const struct lk_lane *ln = b->lanes + l;
        conv_advance(a->conv + (size_t)ln->slot * 3 * c, ln->rows, c,
                     a->proj + (size_t)ln->row0 * (size_t)a->ld, (size_t)a->ld);
    }
}

struct fold_job {
    const struct lk_gdn_fold_args *a;
    int layer;
};

static void fold_head(void *arg, int part, int worker)
{
    const struct fold_job *j = arg;
    const struct lk_gdn_fold_args *a = j->a;
    const struct lk_lane *l = a->b->lanes + part / a->hv;
    int h = part % a->hv, kh = k_head(a->hk, a->hv, a->tiled, h);
    float *S = a->state[j->layer] + ((size_t)l->slot * (size_t)a->hv + (size_t)h) * D * D;
    for (int i = 0; i < l->keep; i++) {
        struct rec r = rec_at(a->record[j->layer], l->row0 + i, a->hk, a->hv);
        gdn_token(S, NULL, r.k + (size_t)kh * D, r.v + (size_t)h * D, r.g[h], r.beta[h], NULL);
    }
}

void cpu_ref_gdn_fold(struct lk_dev *d, const struct lk_gdn_fold_args *a)
{
    size_t c = (size_t)(2 * a->hk + a->hv) * D,
           ld = lk_gdn_record_bytes(a->hk, a->hv) / sizeof(float);
    for (int i = 0; i < a->n_layers; i++) {
        struct fold_job j = {a, i};
        lk_pool_run(cpu_of(d)->pool, a->b->n_lanes * a->hv, fold_head, &j);
        for (int l = 0; l < a->b->n_lanes; l++) {
            const struct lk_lane *ln = a->b->lanes + l;
            if (ln->keep > 0)
                conv_advance(a->conv[i] + (size_t)ln->slot * 3 * c, ln->keep, c,
                             rec_at(a->record[i], ln->row0, a->hk, a->hv).qkv, ld);
        }
    }
}
