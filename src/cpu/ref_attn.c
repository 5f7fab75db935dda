/* The oracle of gated attention: head norm, rotation, cache append, softmax over the pages, gate.
 * Scalar, f64 sums. It reads keys and values back from the pages it has just written, so
 * quantisation of the cache is part of the op. */
#include "cpu/cpu.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

struct attn_job {
    struct cpu_dev *c;
    const struct lk_attn_args *a;
    float *q; /* [T][n_q][256] ready queries */
};

/* y = x * rsqrt(mean x^2 + eps) * w over one head */
static void head_norm(const float *x, const float *w, float eps, float *y)
{
    double ss = 0;
    for (int i = 0; i < LK_HEAD; i++) ss += (double)x[i] * x[i];
    double r = 1 / sqrt(ss / LK_HEAD + eps);
    for (int i = 0; i < LK_HEAD; i++) y[i] = (float)(x[i] * r * w[i]);
}

/* The angle is rounded to f32 before the sine, as transformers does: at position 200,000 that is
 * 0.01 rad. */
static void head_rope(const struct lk_attn_args *a, int row, float *x)
{
    int half = a->rope_dim / 2;
    for (int i = 0; i < half; i++) {
        int32_t pos = a->b->rope[(size_t)a->section[i] * (size_t)a->b->n_rows + (size_t)row];
        float angle = (float)pos * a->inv_freq[i];
        double co = cos((double)angle), si = sin((double)angle);
        double u = x[i], v = x[i + half];
        x[i] = (float)(u * co - v * si);
        x[i + half] = (float)(v * co + u * si);
    }
}

/* Normalised Hadamard transform of 256 values, Sylvester order. */
static void head_hadamard(float *x)
{
    for (int s = 1; s < LK_HEAD; s *= 2)
        for (int i = 0; i < LK_HEAD; i++)
            if (!(i & s)) {
                float u = x[i], v = x[i + s];
                x[i] = u + v;
                x[i + s] = u - v;
            }
    for (int i = 0; i < LK_HEAD; i++) x[i] *= 1.0f / 16;
}

/* Start of the K (v = 0) or V (v = 1) half of the page that holds position pos of a lane. */
static unsigned char *page_half(const struct lk_attn_args *a, const struct lk_lane *l, int64_t pos,
                                int v)
{
    size_t half = lk_kv_half_bytes(a->kv_kind, a->n_kv);
    size_t page = (size_t)a->b->pages[l->page0 + pos / LK_PAGE];
    return (unsigned char *)a->kv + page * 2 * half + (v ? half : 0);
}

static void quantise(const float *x, int8_t *codes, uint16_t *scales)
{
    for (int g = 0; g < LK_HEAD / LK_KV_GROUP; g++) {
        const float *xg = x + g * LK_KV_GROUP;
        float m = 0;
        for (int i = 0; i < LK_KV_GROUP; i++) m = fmaxf(m, fabsf(xg[i]));
        scales[g] = lk_f32_to_f16(m / 127);
        float s = lk_f16_to_f32(scales[g]);
        for (int i = 0; i < LK_KV_GROUP; i++) {
            float c = s > 0 ? rintf(xg[i] / s) : 0;
            codes[g * LK_KV_GROUP + i] = (int8_t)fminf(fmaxf(c, -127), 127);
        }
    }
}

static void kv_put(const struct lk_attn_args *a, unsigned char *half, int head, int slot,
                   const float *x)
{
    size_t at = ((size_t)head * LK_PAGE + (size_t)slot) * LK_HEAD;
    if (a->kv_kind == LK_KV_F32) {
        memcpy((float *)(void *)half + at, x, LK_HEAD * sizeof *x);
    } else if (a->kv_kind == LK_KV_BF16) {
        for (int i = 0; i < LK_HEAD; i++)
            ((uint16_t *)(void *)half)[at + (size_t)i] = lk_f32_to_bf16(x[i]);
    } else {
        size_t codes = (size_t)a->n_kv * LK_PAGE * LK_HEAD;
        quantise(x, (int8_t *)half + at, (uint16_t *)(void *)(half + codes) + at / LK_KV_GROUP);
    }
}

static void kv_get(const struct lk_attn_args *a, const unsigned char *half, int head, int slot,
                   float *x)
{
    size_t at = ((size_t)head * LK_PAGE + (size_t)slot) * LK_HEAD;
    const uint16_t *sc = (const void *)(half + (size_t)a->n_kv * LK_PAGE * LK_HEAD);
    for (size_t i = 0; i < LK_HEAD; i++) {
        if (a->kv_kind == LK_KV_F32)
            x[i] = ((const float *)(const void *)half)[at + i];
        else if (a->kv_kind == LK_KV_BF16)
            x[i] = lk_bf16_to_f32(((const uint16_t *)(const void *)half)[at + i]);
        else
            x[i] =
                (float)((const int8_t *)half)[at + i] * lk_f16_to_f32(sc[(at + i) / LK_KV_GROUP]);
    }
}

static void attn_prepare_row(const struct attn_job *j, const struct lk_lane *l, int i)
{
    const struct lk_attn_args *a = j->a;
    int row = l->row0 + i;
    const float *p = a->proj + (size_t)row * (size_t)a->ld;
    float *q = j->q + (size_t)row * (size_t)a->n_q * LK_HEAD;
    for (int h = 0; h < a->n_q; h++, q += LK_HEAD) {
        head_norm(p + (size_t)h * 2 * LK_HEAD, a->q_norm, a->eps, q);
        head_rope(a, row, q);
        if (a->kv_kind == LK_KV_I8) head_hadamard(q);
    }
    const float *k = p + (size_t)a->n_q * 2 * LK_HEAD, *v = k + (size_t)a->n_kv * LK_HEAD;
    int64_t pos = (int64_t)l->pos0 + i;
    for (int h = 0; h < a->n_kv; h++) {
        float x[LK_HEAD];
        head_norm(k + (size_t)h * LK_HEAD, a->k_norm, a->eps, x);
        head_rope(a, row, x);
        if (a->kv_kind == LK_KV_I8) head_hadamard(x);
        kv_put(a, page_half(a, l, pos, 0), h, (int)(pos % LK_PAGE), x);
        kv_put(a, page_half(a, l, pos, 1), h, (int)(pos % LK_PAGE), v + (size_t)h * LK_HEAD);
    }
}

static const struct lk_lane *lane_of(const struct lk_batch *b, int row)
{
    for (int l = 0; l < b->n_lanes; l++)
        if (row >= b->lanes[l].row0 && row < b->lanes[l].row0 + b->lanes[l].rows)
            return b->lanes + l;
    return NULL;
}

/* One row and head: running softmax, rescaled whenever a larger score comes. */
static void attn_head(void *arg, int part, int worker)
{
    const struct attn_job *j = arg;
    const struct lk_attn_args *a = j->a;
    int row = part / a->n_q, h = part % a->n_q, kvh = h / (a->n_q / a->n_kv);
    const struct lk_lane *l = lane_of(a->b, row);
    if (!l) return;
    const float *q = j->q + ((size_t)row * (size_t)a->n_q + (size_t)h) * LK_HEAD;
    int64_t pos = (int64_t)l->pos0 + row - l->row0;
    int64_t first = a->window > 0 && pos > a->window ? pos - a->window : 0;
    double m = -INFINITY, sum = 0, acc[LK_HEAD] = {0};
    for (int64_t p = first; p <= pos; p++) {
        float x[LK_HEAD];
        kv_get(a, page_half(a, l, p, 0), kvh, (int)(p % LK_PAGE), x);
        double s = 0;
        for (int i = 0; i < LK_HEAD; i++) s += (double)q[i] * x[i];
        s /= 16;
        double keep = s > m ? exp(m - s) : 1, w = s > m ? 1 : exp(s - m);
        if (s > m) m = s;
        sum = sum * keep + w;
        kv_get(a, page_half(a, l, p, 1), kvh, (int)(p % LK_PAGE), x);
        for (int i = 0; i < LK_HEAD; i++) acc[i] = acc[i] * keep + w * x[i];
    }
    const float *gate = a->proj + (size_t)row * (size_t)a->ld + ((size_t)h * 2 + 1) * LK_HEAD;
    float *out = (float *)a->out + ((size_t)row * (size_t)a->n_q + (size_t)h) * LK_HEAD;
    for (int i = 0; i < LK_HEAD; i++) out[i] = (float)(acc[i] / sum / (1 + exp(-(double)gate[i])));
}

void cpu_ref_attn(struct lk_dev *d, const struct lk_attn_args *a)
{
    struct attn_job j = {cpu_of(d), a, NULL};
    const struct lk_batch *b = a->b;
    j.q = cpu_work(j.c, (size_t)b->n_rows * (size_t)a->n_q * LK_HEAD * sizeof *j.q, "attn");
    if (!j.q) return;
    for (int l = 0; l < b->n_lanes; l++)
        for (int i = 0; i < b->lanes[l].rows; i++) attn_prepare_row(&j, b->lanes + l, i);
    lk_pool_run(j.c->pool, b->n_rows * a->n_q, attn_head, &j);
}
