/* The gated delta net. Compiled once an instruction set.
 *
 * Convolution first, cut by channels; then a part is a lane's v head. Rows go one by one, also in a
 * long run: bits are equal whatever their number, recorded or not. The chunked (WY) form that the
 * GPU takes would save nothing here: with chunks of 64 it is 65,536 multiply-adds a row and head (3 x
 * 128 x 128 and 4 x 32 x 128), the recurrence 65,536 operations on a strip that lies in the L1. The
 * recurrence takes 4 vectors of v at a time through all rows: that strip of the state (16 KB at 8
 * lanes) stays in L1, as a copy without gaps where rows are several. */
#ifndef LK_CPU_K_GDN_H
#define LK_CPU_K_GDN_H

#include "cpu/cpu.h"
#include "cpu/simd.h"

enum {
    GD = 128,
    GDN_STRIP = 4 * VW, /* values of v at a time */
    GDN_CHANNELS = 256, /* channels a convolution part */
    GDN_C = 64,         /* rows a chunk */
};

struct gdn_run {
    struct cpu_dev *c;
    const struct lk_gdn_args *a;
    float *qkv; /* [T][C] convolved */
    int ch;     /* C */
};

struct gdn_rec { /* a record row: see lk_gdn_record_bytes */
    float *qkv, *k, *v, *g, *beta;
};

static struct gdn_rec gdn_rec_at(const void *record, int row, int hk, int hv)
{
    struct gdn_rec r;
    r.qkv = (float *)((char *)(uintptr_t)record + lk_gdn_record_bytes(hk, hv) * (size_t)row);
    r.k = r.qkv + (size_t)(2 * hk + hv) * GD;
    r.v = r.k + (size_t)hk * GD;
    r.g = r.v + (size_t)hv * GD;
    r.beta = r.g + hv;
    return r;
}

/* ---- convolution ---- */

/* The window of some channels after `rows` inputs: the last three of (old three, new). */
static void gdn_conv_advance(float *conv, int c, int ch0, int n, int rows, const float *in,
                             size_t ld)
{
    for (int b = 0; b < 3; b++) {
        int r = rows - 3 + b;
        const float *src =
            r >= 0 ? in + (size_t)r * ld + ch0 : conv + (size_t)(3 + r) * (size_t)c + ch0;
        float *dst = conv + (size_t)b * (size_t)c + ch0;
        if (src != dst) memcpy(dst, src, (size_t)n * sizeof *dst);
    }
}

static void gdn_conv_lane(const struct gdn_run *r, const struct lk_lane *l, int ch0, int n,
                          float (*w)[GDN_CHANNELS])
{
    const struct lk_gdn_args *a = r->a;
    float *conv = a->conv + (size_t)l->slot * 3 * (size_t)r->ch;
    const float *in = a->proj + (size_t)l->row0 * (size_t)a->ld;
    for (int i = 0; i < l->rows; i++) {
        const float *x[4];
        for (int b = 0; b < 4; b++) {
            int at = i - 3 + b;
            x[b] = at >= 0 ? in + (size_t)at * (size_t)a->ld + ch0
                           : conv + (size_t)(3 + at) * (size_t)r->ch + ch0;
        }
        float *y = r->qkv + (size_t)(l->row0 + i) * (size_t)r->ch + ch0;
        for (int c = 0; c < n; c += VW) { /* C is a multiple of 128, and so are the parts */
            vf s = vf_mul(vf_load(w[0] + c), vf_load(x[0] + c));
            for (int b = 1; b < 4; b++) s = vf_fma(vf_load(w[b] + c), vf_load(x[b] + c), s);
            vf_store(y + c, vf_silu(s));
        }
        if (a->mode == LK_GDN_RECORD)
            memcpy(gdn_rec_at(a->record, l->row0 + i, a->hk, a->hv).qkv + ch0, x[3],
                   (size_t)n * sizeof *y);
    }
    if (a->mode == LK_GDN_RUN) gdn_conv_advance(conv, r->ch, ch0, n, l->rows, in, (size_t)a->ld);
}

static void gdn_conv_part(void *arg, int part, int worker)
{
    const struct gdn_run *r = arg;
    float w[4][GDN_CHANNELS];
    int ch0 = part * GDN_CHANNELS, n = r->ch - ch0 < GDN_CHANNELS ? r->ch - ch0 : GDN_CHANNELS;
    for (int c = 0; c < n; c++)
        for (int b = 0; b < 4; b++) w[b][c] = r->a->conv_w[(size_t)(ch0 + c) * 4 + (size_t)b];
    for (int l = 0; l < r->a->b->n_lanes; l++) gdn_conv_lane(r, r->a->b->lanes + l, ch0, n, w);
}

/* ---- one head ---- */

static void gdn_unit(const float *x, float scale, float *y)
{
    vf s = vf_set(0);
    for (int i = 0; i < GD; i += VW) s = vf_fma(vf_load(x + i), vf_load(x + i), s);
    vf r = vf_set(scale / sqrtf(vf_sum(s) + 1e-6f));
    for (int i = 0; i < GD; i += VW) vf_store(y + i, vf_mul(vf_load(x + i), r));
}

/* One row through a strip of the state: S = e S; m = S^T k; S += k (beta (v - m))^T; o = S^T q (q
 * NULL: no output). Sums over k run even and odd rows apart, to keep 8 chains going. */
CPU_INLINE void gdn_token(float *S, const int ld, const float *q, const float *k, const float *v,
                          float e, float beta, float *o)
{
    vf m[2][4], dv[4], out[4];
    for (int j = 0; j < 4; j++) m[0][j] = m[1][j] = vf_set(0);
    for (int i = 0; i < GD; i += 2) {
        vf k0 = vf_set(k[i]), k1 = vf_set(k[i + 1]);
        for (int j = 0; j < 4; j++) {
            m[0][j] = vf_fma(k0, vf_load(S + i * ld + j * VW), m[0][j]);
            m[1][j] = vf_fma(k1, vf_load(S + (i + 1) * ld + j * VW), m[1][j]);
        }
    }
    vf ev = vf_set(e);
    for (int j = 0; j < 4; j++) {
        vf d = vf_sub(vf_load(v + j * VW), vf_mul(ev, vf_add(m[0][j], m[1][j])));
        dv[j] = vf_mul(vf_set(beta), d);
        out[j] = vf_set(0);
    }
    for (int i = 0; i < GD; i++) {
        vf ki = vf_set(k[i]), qi = vf_set(q ? q[i] : 0);
        for (int j = 0; j < 4; j++) {
            float *p = S + i * ld + j * VW;
            vf s = vf_fma(ki, dv[j], vf_mul(ev, vf_load(p)));
            vf_store(p, s);
            if (q) out[j] = vf_fma(qi, s, out[j]);
        }
    }
    for (int j = 0; q && j < 4; j++) vf_store(o + j * VW, out[j]);
}

static float gdn_gate(const struct lk_gdn_args *a, int h, float x)
{
    x += a->dt_bias[h];
    return a->a_coef[h] * (x > 20 ? x : log1pf(expf(x)));
}

static float gdn_beta(float b)
{
    return 1 / (1 + expf(-b));
}

static int gdn_k_head(int hk, int hv, int tiled, int h)
{
    return tiled ? h % hk : h / (hv / hk);
}

static void gdn_gated_norm(const struct lk_gdn_args *a, const float *o, const float *z, float *out)
{
    vf s = vf_set(0);
    for (int i = 0; i < GD; i += VW) s = vf_fma(vf_load(o + i), vf_load(o + i), s);
    vf r = vf_set(1 / sqrtf(vf_sum(s) / GD + a->eps));
    for (int i = 0; i < GD; i += VW) {
        vf y = vf_mul(vf_mul(vf_load(a->norm_w + i), vf_load(o + i)), r);
        vf_store(out + i, vf_mul(y, vf_silu(vf_load(z + i))));
    }
}

/* A head's rows, at most GDN_C at a time: everything a row needs beyond the state. */
struct gdn_rows {
    float q[GDN_C][GD], k[GDN_C][GD], o[GDN_C][GD];
    const float *v[GDN_C];
    float g[GDN_C], beta[GDN_C];
    int n, row0; /* batch row of the first */
};

static void gdn_rows_load(const struct gdn_run *r, int h, int row0, int n, struct gdn_rows *x)
{
    const struct lk_gdn_args *a = r->a;
    int kh = gdn_k_head(a->hk, a->hv, a->tiled, h), record = a->mode == LK_GDN_RECORD;
    int writes_k =
        a->tiled ? h < a->hk : h % (a->hv / a->hk) == 0; /* one v head records for its k head */
    x->n = n;
    x->row0 = row0;
    for (int i = 0; i < n; i++) {
        const float *y = r->qkv + (size_t)(row0 + i) * (size_t)r->ch;
        const float *ba = a->proj + (size_t)(row0 + i) * (size_t)a->ld + r->ch + (size_t)a->hv * GD;
        gdn_unit(y + kh * GD, 0.088388347648318447f, x->q[i]); /* 128^-1/2 */
        gdn_unit(y + (a->hk + kh) * GD, 1, x->k[i]);
        x->v[i] = y + (2 * a->hk + h) * GD;
        x->g[i] = gdn_gate(a, h, ba[a->hv + h]);
        x->beta[i] = gdn_beta(ba[h]);
        if (!record) continue;
        struct gdn_rec rec = gdn_rec_at(a->record, row0 + i, a->hk, a->hv);
        if (writes_k) memcpy(rec.k + kh * GD, x->k[i], sizeof x->k[i]);
        memcpy(rec.v + h * GD, x->v[i], sizeof x->k[i]);
        rec.g[h] = x->g[i];
        rec.beta[h] = x->beta[i];
    }
}

/* dst[i][0..GDN_STRIP) = src[i][0..GDN_STRIP) */
static void gdn_strip(float *dst, int ld_dst, const float *src, int ld_src)
{
    for (int i = 0; i < GD; i++) memcpy(dst + i * ld_dst, src + i * ld_src, GDN_STRIP * sizeof *dst);
}

/* Reads a head's lines in the order of memory, so that strips, which take them 512 bytes apart, find them in the L2: a row of a state that
 * lies in memory takes 0.7 of the time. */
static void gdn_touch(const float *S)
{
    for (int i = 0; i < GD * GD; i += 16) (void)*(const volatile float *)(S + i);
}

/* In place the lines of a strip lie 512 bytes apart: 16 of 64 sets of an L1, half of what it needs. Several rows therefore work on a
 * copy without gaps. */
static void gdn_recurrent(struct gdn_rows *x, float *S, float *strip)
{
    float e[GDN_C];
    for (int i = 0; i < x->n; i++) e[i] = expf(x->g[i]);
    for (int c = 0; c < GD; c += GDN_STRIP) {
        if (x->n < 3) {
            for (int i = 0; i < x->n; i++)
                gdn_token(S + c, GD, x->q[i], x->k[i], x->v[i] + c, e[i], x->beta[i], x->o[i] + c);
            continue;
        }
        gdn_strip(strip, GDN_STRIP, S + c, GD);
        for (int i = 0; i < x->n; i++)
            gdn_token(strip, GDN_STRIP, x->q[i], x->k[i], x->v[i] + c, e[i], x->beta[i],
                      x->o[i] + c);
        gdn_strip(S + c, GD, strip, GDN_STRIP);
    }
}

struct gdn_scratch { /* a thread's */
    struct gdn_rows x;
    float state[GD * GD]; /* what RECORD throws away */
    float strip[GD * GDN_STRIP];
};

static void gdn_head(void *arg, int part, int worker)
{
    const struct gdn_run *r = arg;
    const struct lk_gdn_args *a = r->a;
    const struct lk_lane *l = a->b->lanes + part / a->hv;
    int h = part % a->hv;
    if (l->rows < 1) return;
    struct gdn_scratch *s = (void *)((char *)r->c->worker.p + (size_t)worker * r->c->worker_bytes);
    float *S = a->state + ((size_t)l->slot * (size_t)a->hv + (size_t)h) * GD * GD;
    if (a->mode == LK_GDN_RECORD) S = memcpy(s->state, S, sizeof s->state);
    else gdn_touch(S);
    for (int at = 0; at < l->rows; at += GDN_C) {
        int n = l->rows - at < GDN_C ? l->rows - at : GDN_C;
        gdn_rows_load(r, h, l->row0 + at, n, &s->x);
        gdn_recurrent(&s->x, S, s->strip);
        for (int i = 0; i < n; i++) {
            size_t row = (size_t)(l->row0 + at + i);
            const float *z = a->proj + row * (size_t)a->ld + r->ch + (size_t)h * GD;
            gdn_gated_norm(a, s->x.o[i], z,
                           (float *)a->out + (row * (size_t)a->hv + (size_t)h) * GD);
        }
    }
}

static size_t gdn_work_bytes(int rows, int hk, int hv)
{
    return (size_t)rows * (size_t)(2 * hk + hv) * GD * sizeof(float);
}

static void k_gdn(struct lk_dev *d, const struct lk_gdn_args *a)
{
    struct gdn_run r = {.c = cpu_of(d), .a = a, .ch = (2 * a->hk + a->hv) * GD};
    r.qkv = cpu_work(r.c, gdn_work_bytes(a->b->n_rows, a->hk, a->hv), "gdn");
    if (!r.qkv || r.c->worker_bytes < sizeof(struct gdn_scratch))
        return; /* check was not called: sticky error */
    lk_pool_run(r.c->pool, (r.ch + GDN_CHANNELS - 1) / GDN_CHANNELS, gdn_conv_part, &r);
    lk_pool_run(r.c->pool, a->b->n_lanes * a->hv, gdn_head, &r);
}

/* ---- fold ---- */

static void gdn_fold_head(void *arg, int part, int worker)
{
    const struct lk_gdn_fold_args *a = arg;
    const struct lk_lane *l = a->b->lanes + part / a->hv % a->b->n_lanes;
    int layer = part / a->hv / a->b->n_lanes;
    int h = part % a->hv, kh = gdn_k_head(a->hk, a->hv, a->tiled, h), c = (2 * a->hk + a->hv) * GD;
    const void *record = a->record[layer];
    float *S = a->state[layer] + ((size_t)l->slot * (size_t)a->hv + (size_t)h) * GD * GD;
    for (int i = 0; i < l->keep; i++) {
        struct gdn_rec r = gdn_rec_at(record, l->row0 + i, a->hk, a->hv);
        float e = expf(r.g[h]);
        for (int j = 0; j < GD; j += GDN_STRIP)
            gdn_token(S + j, GD, NULL, r.k + kh * GD, r.v + h * GD + j, e, r.beta[h], NULL);
    }
    if (h == 0 && l->keep > 0) /* the window belongs to no head: the first takes it */
        gdn_conv_advance(a->conv[layer] + (size_t)l->slot * 3 * (size_t)c, c, 0, c, l->keep,
                         gdn_rec_at(record, l->row0, a->hk, a->hv).qkv,
                         lk_gdn_record_bytes(a->hk, a->hv) / sizeof(float));
}

static void k_gdn_fold(struct lk_dev *d, const struct lk_gdn_fold_args *a)
{
    lk_pool_run(cpu_of(d)->pool, a->n_layers * a->b->n_lanes * a->hv, gdn_fold_head, (void *)(uintptr_t)a);
}

#endif
