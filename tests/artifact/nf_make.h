/* Test helper: writes .ninfer files (containers 2 and 3) of a model that laoka can open, from the format's description alone: encoders, layouts
 * and directory stand here a second time. Each tensor's float values are replaced by what the written bytes mean (code times scale), so that the
 * reader can be compared with them, and a float32 model of the same values be made for the greedy text. */
#ifndef TESTS_ARTIFACT_NF_MAKE_H
#define TESTS_ARTIFACT_NF_MAKE_H

#include "artifact/artifact.h"
#include "base/buf.h"
#include "base/num.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum nfm_profile { NFM_GROUPWISE, NFM_NVFP4_36, NFM_NVFP4_38 };

struct nfm_tensor {
    char name[80]; /* logical */
    int64_t n, k;
    float *v;      /* [n, k], after writing: the file's values */
};

struct nfm {
    const struct lk_artifact *src;
    int version;
    enum nfm_profile profile;
    struct nfm_tensor t[512];
    int n_t, n_objects;
    struct lk_buf payload, objects, bindings; /* JSON lists without their brackets */
    int32_t shortlist[4096];
    int n_short;
};

/* The values of a logical tensor, decoded once. */
static struct nfm_tensor *nfm_get(struct nfm *m, const char *name)
{
    for (int i = 0; i < m->n_t; i++)
        if (!strcmp(m->t[i].name, name)) return &m->t[i];
    const struct lk_tensor *s = lk_artifact_find(m->src, name);
    if (!s && !strcmp(name, "lm_head")) s = lk_artifact_find(m->src, "embed_tokens"); /* a tied head: the profiles have their own */
    if (!s) return NULL;
    struct nfm_tensor *t = &m->t[m->n_t++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n = s->w.n, t->k = s->w.k;
    t->v = malloc((size_t)(t->n * t->k) * sizeof(float));
    for (int64_t r = 0; r < t->n; r++) lk_weight_row(&s->w, r, 0, t->k, t->v + r * t->k);
    return t;
}

static void nfm_pad(struct nfm *m, size_t a)
{
    while (m->payload.len % a) lk_buf_chr(&m->payload, 0);
}

/* ---- encoders: values -> bytes at the end of the payload, values replaced ---- */

static void nfm_ints(struct nfm *m, float *v, int64_t n, int64_t k, int bits, int group)
{
    int64_t pad = (k + 127) / 128 * 128, groups = n * (pad / group);
    int qmax = bits == 8 ? 127 : (1 << (bits - 1)) - 1, qmin = bits == 8 ? -127 : -qmax - 1, hb = bits == 5 ? 8 : bits == 6 ? 16 : 0;
    unsigned char *base = calloc(1, (size_t)groups * 32), *high = calloc(1, (size_t)groups * 16);
    uint16_t *scale = calloc(2, (size_t)groups);
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < pad / group; g++) {
            int64_t gi = r * (pad / group) + g;
            float amax = 0;
            for (int64_t c = g * group; c < (g + 1) * group && c < k; c++) amax = fmaxf(amax, fabsf(v[r * k + c]));
            uint16_t h = lk_f32_to_f16((float)((double)amax / qmax));
            if (amax > 0 && !h) h = 1;
            float s = lk_f16_to_f32(h), inv = amax > 0 ? (float)(1.0 / (double)s) : 0;
            scale[gi] = h;
            for (int64_t c = g * group; c < (g + 1) * group && c < k; c++) {
                float x = rintf(v[r * k + c] * inv);
                int q = (int)(x < (float)qmin ? (float)qmin : x > (float)qmax ? (float)qmax : x), lane = (int)(c - g * group);
                v[r * k + c] = s * (float)q;
                if (bits == 8) {
                    base[gi * 32 + lane] = (unsigned char)q;
                    continue;
                }
                base[gi * 32 + lane / 2] |= (unsigned char)((q & 15) << (lane % 2 * 4));
                if (bits == 5) high[gi * 8 + lane / 8] |= (unsigned char)((q >> 4 & 1) << (lane % 8));
                if (bits == 6) high[gi * 16 + lane / 4] |= (unsigned char)((q >> 4 & 3) << (lane % 4 * 2));
            }
        }
    lk_buf_add(&m->payload, base, (size_t)groups * 32);
    nfm_pad(m, 256);
    lk_buf_add(&m->payload, high, (size_t)(groups * hb));
    nfm_pad(m, 256);
    lk_buf_add(&m->payload, scale, (size_t)groups * 2);
    free(base);
    free(high);
    free(scale);
}

static void nfm_nvfp4(struct nfm *m, float *v, int64_t n, int64_t k)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float amax = 0, d;
    for (int64_t i = 0; i < n * k; i++) amax = fmaxf(amax, fabsf(v[i]));
    d = amax > 0 ? 6.0f * 448.0f / amax : 1;
    unsigned char *codes = calloc(1, (size_t)(n * k / 2)), *scales = calloc(1, (size_t)(n * k / 16));
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < k / 16; g++) {
            float *x = v + r * k + g * 16, top = 0;
            for (int i = 0; i < 16; i++) top = fmaxf(top, fabsf(x[i]));
            uint8_t b = lk_f32_to_e4m3(fminf(top * d / 6, 448));
            if (top > 0 && !b) b = 1;
            scales[((r / 128) * (k / 64) + g / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + g % 4] = b;
            float s = lk_e4m3_to_f32(b) / d;
            for (int i = 0; i < 16; i++) {
                float a = s > 0 ? fabsf(x[i]) / s : 0;
                int c = a > 5 ? 7 : a >= 3.5f ? 6 : a > 2.5f ? 5 : a >= 1.75f ? 4 : a > 1.25f ? 3 : a >= 0.75f ? 2 : a > 0.25f ? 1 : 0;
                int sign = x[i] < 0;
                codes[(r * k + g * 16 + i) / 2] |= (unsigned char)((c | sign << 3) << (i % 2 * 4));
                x[i] = (sign ? -value[c] : value[c]) * s;
            }
        }
    lk_buf_add(&m->payload, codes, (size_t)(n * k / 2));
    nfm_pad(m, 256);
    lk_buf_add(&m->payload, scales, (size_t)(n * k / 16));
    lk_buf_add(&m->payload, &d, 4);
    free(codes);
    free(scales);
}

static void nfm_fp8(struct nfm *m, float *v, int64_t n, int64_t k)
{
    uint16_t *scale = calloc(2, (size_t)n);
    for (int64_t r = 0; r < n; r++) {
        float amax = 0;
        for (int64_t c = 0; c < k; c++) amax = fmaxf(amax, fabsf(v[r * k + c]));
        scale[r] = lk_f32_to_bf16((float)((double)amax / 448));
        if (amax > 0 && !scale[r]) scale[r] = 1;
        float s = lk_bf16_to_f32(scale[r]), inv = amax > 0 ? (float)(1.0 / (double)s) : 0;
        for (int64_t c = 0; c < k; c++) {
            uint8_t b = lk_f32_to_e4m3(fmaxf(-448, fminf(448, v[r * k + c] * inv)));
            lk_buf_chr(&m->payload, (char)b);
            v[r * k + c] = lk_e4m3_to_f32(b) * s;
        }
    }
    nfm_pad(m, 256);
    lk_buf_add(&m->payload, scale, (size_t)n * 2);
    free(scale);
}

static void nfm_bf16(struct nfm *m, float *v, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t h = lk_f32_to_bf16(v[i]);
        v[i] = lk_bf16_to_f32(h);
        lk_buf_add(&m->payload, &h, 2);
    }
}

/* ---- objects ---- */

enum nfm_fmt { BF16, FP32, I32, Q4, Q5, Q6, W8, NVFP4, FP8 };
static const struct { const char *v2, *v3, *layout; } nfm_fmts[] = {
    {"BF16", "bf16", "contiguous-le-v1"}, {"FP32", "fp32", "contiguous-le-v1"}, {"I32", "int32", "contiguous-le-v1"},
    {"Q4G64_F16S", "q4_g64_fp16", "row-split-k128-v1"}, {"Q5G64_F16S", "q5_g64_fp16", "row-split-k128-v1"},
    {"Q6G64_F16S", "q6_g64_fp16", "row-split-k128-v1"}, {"W8G32_F16S", "q8_g32_fp16", "row-split-k128-v1"},
    {"NVFP4", "nvfp4", "blockscale-k16-m128x4-v1"}, {"FP8_E4M3FN_ROW_BF16S", "fp8_e4m3fn_row_bf16", "row-scale-v1"}};

static const char *nfm_layout(const struct nfm *m, enum nfm_fmt f, char *buf)
{
    static const char *const v3[] = {"contiguous_le_v1", "row_split_k128_v1", "block_scale_k16_m128x4_v1", "row_scale_v1"};
    strcpy(buf, m->version == 2 ? nfm_fmts[f].layout : v3[f <= I32 ? 0 : f <= W8 ? 1 : f == NVFP4 ? 2 : 3]);
    return buf;
}

/* Writes values as one object; shape text like "[2, 3]". Container 3 gets running ids. */
static void nfm_object(struct nfm *m, const char *name, enum nfm_fmt f, const char *shape, const void *raw, float *v, int64_t n, int64_t k, char *id)
{
    char layout[40];
    nfm_pad(m, 256);
    size_t at = m->payload.len;
    if (f == BF16) nfm_bf16(m, v, n * k);
    else if (f == FP32) lk_buf_add(&m->payload, v, (size_t)(n * k) * 4);
    else if (f == I32) lk_buf_add(&m->payload, raw, (size_t)(n * k) * 4);
    else if (f == NVFP4) nfm_nvfp4(m, v, n, k);
    else if (f == FP8) nfm_fp8(m, v, n, k);
    else nfm_ints(m, v, n, k, f == W8 ? 8 : f == Q4 ? 4 : f == Q5 ? 5 : 6, f == W8 ? 32 : 64);
    if (m->version == 2)
        snprintf(id, 100, "%s", name);
    else
        snprintf(id, 100, "weight/%06d", m->n_objects);
    lk_buf_fmt(&m->objects, "%s{\"%s\":\"%s\",\"kind\":\"tensor\",\"shape\":%s,\"format\":\"%s\",\"layout\":\"%s\",\"offset\":%zu,\"bytes\":%zu}",
               m->n_objects ? "," : "", m->version == 2 ? "name" : "id", id, shape, m->version == 2 ? nfm_fmts[f].v2 : nfm_fmts[f].v3,
               nfm_layout(m, f, layout), at, m->payload.len - at);
    m->n_objects++;
}

static void nfm_bind(struct nfm *m, const char *param, const char *id, int64_t begin, int64_t end)
{
    lk_buf_fmt(&m->bindings, "%s\"%s\":", m->bindings.len ? "," : "", param);
    if (end)
        lk_buf_fmt(&m->bindings, "{\"parts\":[{\"object\":\"%s\",\"range\":[%" PRId64 ",%" PRId64 "]}]}", id, begin, end);
    else
        lk_buf_fmt(&m->bindings, "{\"object\":\"%s\"}", id);
}

/* Some rows of a logical tensor: every `period` rows from `first`, `run` at a time. */
struct nfm_part {
    const char *param;   /* "attention/query" */
    struct nfm_tensor *t;
    int64_t first, run, period, rows;
};

static float *nfm_row(const struct nfm_part *p, int64_t i)
{
    return p->t->v + (p->first + i / p->run * p->period + i % p->run) * p->t->k;
}

/* Parts, one under another, as one object NAME under PREFIX. */
static void nfm_fused(struct nfm *m, const char *prefix2, const char *prefix3, const char *name, enum nfm_fmt f, const struct nfm_part *p, int n_parts)
{
    int64_t n = 0, k = p[0].t->k, at = 0;
    char full[128], shape[64], id[100], param[160];
    for (int i = 0; i < n_parts; i++) n += p[i].rows;
    float *v = malloc((size_t)(n * k) * sizeof *v);
    for (int i = 0; i < n_parts; i++)
        for (int64_t r = 0; r < p[i].rows; r++) memcpy(v + at++ * k, nfm_row(&p[i], r), (size_t)k * sizeof *v);
    snprintf(full, sizeof full, "%s%s", prefix2, name);
    snprintf(shape, sizeof shape, "[%" PRId64 ",%" PRId64 "]", n, k);
    nfm_object(m, full, f, shape, NULL, v, n, k, id);
    at = 0;
    for (int i = 0; i < n_parts; i++) {
        for (int64_t r = 0; r < p[i].rows; r++) memcpy(nfm_row(&p[i], r), v + (at + r) * k, (size_t)k * sizeof *v);
        snprintf(param, sizeof param, "%s%s", prefix3, p[i].param);
        nfm_bind(m, param, id, at * k, n_parts > 1 ? (at + p[i].rows) * k : 0);
        at += p[i].rows;
    }
    free(v);
    if (f != NVFP4) return;
    float one = 1.5f; /* the activation's divisor stands beside every NVFP4 matrix of container 2 */
    const char *site = strstr(name, "gate_up") ? "mlp/gate_up_projection" : strstr(name, "down") ? "mlp/down_projection"
                       : strstr(name, "output") ? (strstr(name, "gdn") ? "gdn/output_projection" : "attention/output_projection")
                                                : (strstr(name, "gdn") ? "gdn/input_projection" : "attention/input_projection");
    snprintf(full, sizeof full, "%s%s/input_scale_divisor", prefix2, site);
    nfm_object(m, full, FP32, "[]", NULL, &one, 1, 1, id);
}

static void nfm_vector(struct nfm *m, const char *prefix2, const char *prefix3, const char *name, enum nfm_fmt f, struct nfm_tensor *t)
{
    char full[128], shape[32], id[100];
    snprintf(full, sizeof full, "%s%s", prefix2, name);
    snprintf(shape, sizeof shape, "[%" PRId64 "]", t->n * t->k);
    nfm_object(m, full, f, shape, NULL, t->v, 1, t->n * t->k, id);
    snprintf(full, sizeof full, "%s%s", prefix3, name);
    nfm_bind(m, full, id, 0, 0);
}

static struct nfm_part nfm_whole(struct nfm *m, const char *param, const char *prefix, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    struct nfm_tensor *t = nfm_get(m, full);
    return (struct nfm_part){param, t, 0, t->n, t->n, t->n};
}

/* ---- the model ---- */

struct nfm_prefix { char p2[48], p3[48], hf[48]; };

static void nfm_tail(struct nfm *m, const struct nfm_prefix *x, enum nfm_fmt up, enum nfm_fmt down)
{
    struct nfm_part gu[2] = {nfm_whole(m, "mlp/gate", x->hf, "mlp.gate_proj"), nfm_whole(m, "mlp/up", x->hf, "mlp.up_proj")};
    struct nfm_part d = nfm_whole(m, "mlp/down", x->hf, "mlp.down_proj");
    nfm_vector(m, x->p2, x->p3, "post_attention_norm", BF16, nfm_whole(m, "", x->hf, "post_attention_layernorm").t);
    nfm_fused(m, x->p2, x->p3, "mlp/gate_up", up, gu, 2);
    nfm_fused(m, x->p2, x->p3, "mlp/down", down, &d, 1);
}

static void nfm_attention(struct nfm *m, const struct nfm_prefix *x, enum nfm_fmt in, enum nfm_fmt out)
{
    struct nfm_part q = nfm_whole(m, "attention/query", x->hf, "self_attn.q_proj"), k = nfm_whole(m, "attention/key", x->hf, "self_attn.k_proj");
    struct nfm_part v = nfm_whole(m, "attention/value", x->hf, "self_attn.v_proj"), o = nfm_whole(m, "attention/output", x->hf, "self_attn.o_proj");
    q.run = 256, q.period = 512, q.rows /= 2;
    struct nfm_part g = q, qk[2], gv[2], all[4];
    g.param = "attention/gate", g.first = 256;
    qk[0] = all[0] = q, qk[1] = all[1] = k, gv[0] = all[2] = g, gv[1] = all[3] = v;
    nfm_vector(m, x->p2, x->p3, "input_norm", BF16, nfm_whole(m, "", x->hf, "input_layernorm").t);
    if (in == Q4) {
        nfm_fused(m, x->p2, x->p3, "attention/query_key", Q4, qk, 2);
        nfm_fused(m, x->p2, x->p3, "attention/gate_value", Q5, gv, 2);
    } else {
        nfm_fused(m, x->p2, x->p3, "attention/query_key_gate_value", in, all, 4);
    }
    nfm_vector(m, x->p2, x->p3, "attention/query_norm", BF16, nfm_whole(m, "", x->hf, "self_attn.q_norm").t);
    nfm_vector(m, x->p2, x->p3, "attention/key_norm", BF16, nfm_whole(m, "", x->hf, "self_attn.k_norm").t);
    nfm_fused(m, x->p2, x->p3, "attention/output", out, &o, 1);
}

static void nfm_convolution(struct nfm *m, const struct nfm_prefix *x)
{
    struct nfm_tensor *t = nfm_whole(m, "", x->hf, "linear_attn.conv1d").t;
    int64_t taps = 4, ch = t->n * t->k / taps;
    float *v = malloc((size_t)(ch * taps) * sizeof *v);
    char full[128], shape[48], id[100];
    for (int64_t i = 0; i < ch * taps; i++) v[i % taps * ch + i / taps] = t->v[i];
    snprintf(full, sizeof full, "%sgdn/convolution", x->p2);
    snprintf(shape, sizeof shape, "[%" PRId64 ",%" PRId64 "]", taps, ch);
    nfm_object(m, full, BF16, shape, NULL, v, taps, ch, id);
    snprintf(full, sizeof full, "%sgdn/convolution", x->p3);
    nfm_bind(m, full, id, 0, 0);
    for (int64_t i = 0; i < ch * taps; i++) t->v[i] = v[i % taps * ch + i / taps];
    free(v);
}

static void nfm_gdn(struct nfm *m, const struct nfm_prefix *x, enum nfm_fmt in, enum nfm_fmt out, int joined_ab)
{
    const struct lk_config *c = lk_artifact_config(m->src);
    struct nfm_part q = nfm_whole(m, "gdn/query", x->hf, "linear_attn.in_proj_qkv"), k = q, v = q;
    struct nfm_part z = nfm_whole(m, "gdn/z", x->hf, "linear_attn.in_proj_z"), o = nfm_whole(m, "gdn/output", x->hf, "linear_attn.out_proj");
    struct nfm_part ab[2] = {nfm_whole(m, "gdn/a_projection", x->hf, "linear_attn.in_proj_a"), nfm_whole(m, "gdn/b_projection", x->hf, "linear_attn.in_proj_b")};
    q.rows = k.rows = c->hk * 128, v.rows = c->hv * 128;
    k.param = "gdn/key", k.first = q.rows, v.param = "gdn/value", v.first = 2 * q.rows;
    struct nfm_part all[4] = {q, k, v, z};
    nfm_vector(m, x->p2, x->p3, "input_norm", BF16, nfm_whole(m, "", x->hf, "input_layernorm").t);
    nfm_vector(m, x->p2, x->p3, "gdn/a_log", FP32, nfm_whole(m, "", x->hf, "linear_attn.A_log").t);
    nfm_vector(m, x->p2, x->p3, "gdn/dt_bias", FP32, nfm_whole(m, "", x->hf, "linear_attn.dt_bias").t);
    nfm_convolution(m, x);
    if (joined_ab) nfm_fused(m, x->p2, x->p3, "gdn/a_b_projection", BF16, ab, 2);
    for (int i = 0; i < 2 && !joined_ab; i++) nfm_fused(m, x->p2, x->p3, ab[i].param, BF16, &ab[i], 1);
    if (in == Q4) {
        nfm_fused(m, x->p2, x->p3, "gdn/query_key", Q4, all, 2);
        nfm_fused(m, x->p2, x->p3, "gdn/value_z", Q5, all + 2, 2);
    } else {
        nfm_fused(m, x->p2, x->p3, "gdn/query_key_value_z", in, all, 4);
    }
    nfm_vector(m, x->p2, x->p3, "gdn/norm", BF16, nfm_whole(m, "", x->hf, "linear_attn.norm").t);
    nfm_fused(m, x->p2, x->p3, "gdn/output", out, &o, 1);
}

static void nfm_layers(struct nfm *m)
{
    const struct lk_config *c = lk_artifact_config(m->src);
    int full = 0, gw = m->profile == NFM_GROUPWISE, n36 = m->profile == NFM_NVFP4_36;
    for (int i = 0; i < c->layers; i++) {
        struct nfm_prefix x;
        snprintf(x.p2, sizeof x.p2, "text/layers/%d/", i);
        snprintf(x.p3, sizeof x.p3, "text/layers/%d/", i);
        snprintf(x.hf, sizeof x.hf, "layers.%d.", i);
        if (c->full[i])
            nfm_attention(m, &x, gw ? Q4 : n36 ? (full < 6 ? BF16 : NVFP4) : FP8, gw ? Q5 : n36 ? (full < 2 ? BF16 : NVFP4) : FP8);
        else
            nfm_gdn(m, &x, gw ? Q4 : n36 ? NVFP4 : FP8, gw ? Q5 : n36 ? (i == 4 ? BF16 : NVFP4) : FP8, m->profile == NFM_NVFP4_38);
        full += c->full[i];
        enum nfm_fmt mlp = n36 || i < c->layers * 7 / 8 ? NVFP4 : FP8;
        nfm_tail(m, &x, gw ? Q4 : mlp, gw ? Q5 : mlp);
    }
}

static void nfm_globals(struct nfm *m, enum nfm_fmt vocab)
{
    const struct lk_config *c = lk_artifact_config(m->src);
    struct nfm_part e = nfm_whole(m, "text/token_embedding", "", "embed_tokens"), h = nfm_whole(m, "text/output_head", "", "lm_head");
    char shape[32], id[100];
    nfm_fused(m, "", "", "text/token_embedding", vocab, &e, 1);
    nfm_vector(m, "", "", "text/final_norm", BF16, nfm_whole(m, "", "", "norm").t);
    /* the shortlist comes from the BF16 head: quantised on its own */
    m->n_short = 4096;
    struct nfm_tensor s = {.n = m->n_short, .k = c->hidden, .v = malloc((size_t)(m->n_short * c->hidden) * 4)};
    for (int i = 0; i < m->n_short; i++) {
        m->shortlist[i] = (i * 1003 + 7) % (int)c->vocab; /* 1003 is odd, the vocabulary a power of two: each once */
        memcpy(s.v + i * c->hidden, h.t->v + m->shortlist[i] * c->hidden, (size_t)c->hidden * 4);
    }
    struct nfm_part d = {"proposal/head", &s, 0, s.n, s.n, s.n};
    nfm_fused(m, "", "", m->version == 2 ? "text/draft_head" : "proposal/head", Q4, &d, 1);
    snprintf(m->t[m->n_t].name, sizeof m->t[0].name, "draft_head");
    m->t[m->n_t].n = s.n, m->t[m->n_t].k = s.k, m->t[m->n_t++].v = s.v;
    snprintf(shape, sizeof shape, "[%d]", m->n_short);
    nfm_object(m, "text/draft_head_token_ids", I32, shape, m->shortlist, NULL, 1, m->n_short, id);
    nfm_bind(m, "proposal/token_ids", id, 0, 0);
    nfm_fused(m, "", "", "text/output_head", vocab, &h, 1);
}

static void nfm_mtp(struct nfm *m)
{
    struct nfm_prefix x = {"mtp/layer/", "mtp/layers/0/", "mtp.layers.0."};
    struct nfm_part fc = nfm_whole(m, "mtp/input_projection", "", "mtp.fc");
    nfm_fused(m, "", "", "mtp/input_projection", W8, &fc, 1);
    nfm_vector(m, "", "", "mtp/embedding_norm", BF16, nfm_get(m, "mtp.pre_fc_norm_embedding"));
    nfm_vector(m, "", "", "mtp/hidden_norm", BF16, nfm_get(m, "mtp.pre_fc_norm_hidden"));
    nfm_vector(m, "", "", "mtp/final_norm", BF16, nfm_get(m, "mtp.norm"));
    nfm_attention(m, &x, W8, W8);
    nfm_tail(m, &x, W8, W8);
}

static void nfm_resources(struct nfm *m)
{
    static const char *const names[] = {"tokenizer.json", "chat_template.jinja", "generation_config.json"};
    for (int i = 0; i < 3; i++) {
        size_t n, at = m->payload.len;
        const char *s = lk_artifact_text(m->src, names[i], &n);
        lk_buf_add(&m->payload, s, n);
        lk_buf_fmt(&m->objects, "%s{\"%s\":\"%s/%s\",\"kind\":\"resource\",\"encoding\":\"%s\",\"offset\":%zu,\"bytes\":%zu}", m->n_objects ? "," : "",
                   m->version == 2 ? "name" : "id", m->version == 2 ? "frontend" : "resource/text", names[i],
                   m->version == 2 ? "raw-bytes-v1" : "raw_bytes_v1", at, n);
        m->n_objects++;
    }
}

/* What a reader must skip: another draft model's tensors and a vision tower. */
static void nfm_skipped(struct nfm *m)
{
    float v[512] = {1, 2, 3};
    char id[100];
    nfm_object(m, "dflash2/context_norm", BF16, "[512]", NULL, v, 1, 512, id);
    nfm_bind(m, "dflash2/context_norm", id, 0, 0);
    nfm_object(m, "vision/patch_embedding", Q6, "[2,200]", NULL, v, 2, 200, id); /* columns padded to 256 */
    nfm_bind(m, "vision/patch_embedding", id, 0, 0);
}

static void nfm_build(struct nfm *m, const struct lk_artifact *src, int version, enum nfm_profile profile, int v36)
{
    memset(m, 0, sizeof *m);
    m->src = src, m->version = version, m->profile = profile;
    nfm_resources(m);
    nfm_globals(m, profile == NFM_GROUPWISE ? (v36 ? Q6 : W8) : profile == NFM_NVFP4_36 ? W8 : FP8);
    nfm_layers(m);
    nfm_mtp(m);
    nfm_skipped(m);
}

/* The directory's JSON. */
static void nfm_json(const struct nfm *m, int v36, size_t entry_bytes, const char *part, size_t part_bytes, struct lk_buf *out)
{
    const struct lk_config *c = lk_artifact_config(m->src);
    lk_buf_reset(out);
    if (m->version == 2) {
        lk_buf_fmt(out, "{\"identity\":{\"model_id\":\"qwen3.%d-27b\",\"weights_id\":\"%s\"},\"objects\":[%s]}", v36 || m->profile == NFM_NVFP4_36 ? 6 : 8,
                   m->profile == NFM_GROUPWISE ? "groupwise-int" : "nvfp4", m->objects.data);
        return;
    }
    lk_buf_fmt(out, "{\"components\":{\"text\":{\"config\":{\"model_type\":\"qwen3_5_text\",\"hidden_size\":%d,\"vocab_size\":%d,\"num_hidden_layers\":%d,"
               "\"intermediate_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":256,\"linear_num_key_heads\":%d,"
               "\"linear_num_value_heads\":%d,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,"
               "\"tie_word_embeddings\":false,\"rms_norm_eps\":1e-6,\"rope_parameters\":{\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,"
               "\"mrope_section\":[11,11,10]},\"layer_types\":[", (int)c->hidden, (int)c->vocab, (int)c->layers, (int)c->inter, (int)c->n_q, (int)c->n_kv,
               (int)c->hk, (int)c->hv);
    for (int i = 0; i < c->layers; i++) lk_buf_fmt(out, "%s\"%s\"", i ? "," : "", c->full[i] ? "full_attention" : "linear_attention");
    lk_buf_fmt(out, "]},\"resources\":{\"tokenizer\":\"resource/text/tokenizer.json\"},\"proposal\":{\"domain\":\"indexed\",\"rows\":%d}},"
               "\"mtp\":{\"config\":{\"architectures\":[\"Qwen3_5MTP\"]},\"target\":\"text\"},\"dflash2\":{\"config\":{},\"target\":\"text\"}},"
               "\"objects\":[%s],\"bindings\":{%s},\"uses\":[{\"parameter\":\"text/output_head\",\"input\":\"text/final_hidden\",\"activation_policy\":\"AllowA8\"}],"
               "\"files\":[{\"path\":null,\"payload_bytes\":%zu}", m->n_short, m->objects.data, m->bindings.data, entry_bytes);
    if (part) lk_buf_fmt(out, ",{\"path\":\"%s\",\"payload_bytes\":%zu}", part, part_bytes);
    lk_buf_str(out, "],\"metadata\":{\"name\":\"qwen3.8-27b\"}}");
}

/* Frames a directory and n bytes of payload; payload NULL: a hole of n bytes. */
static void nfm_write(const char *path, int version, const char *json, const void *payload, size_t n)
{
    FILE *f = fopen(path, "wb");
    uint64_t len = strlen(json), head = version == 2 ? 16 : 32;
    if (!f) abort();
    fprintf(f, "NINFER%c%c", 0, version);
    fwrite(&len, 8, 1, f);
    if (version != 2) fwrite("0123456789abcdef", 16, 1, f);
    fwrite(json, len, 1, f);
    size_t at = (head + len + 4095) / 4096 * 4096;
    fseek(f, (long)at, SEEK_SET);
    if (payload && n) fwrite(payload, n, 1, f);
    fflush(f);
    if (ftruncate(fileno(f), (off_t)(at + n)) || fclose(f)) abort();
}

static void nfm_part_write(const char *path, uint64_t index, const void *payload, size_t n)
{
    char head[4096] = "NINPRT";
    head[7] = 3;
    memcpy(head + 8, &index, 8);
    memcpy(head + 16, "0123456789abcdef", 16);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(head, 4096, 1, f) != 1 || fwrite(payload, n, 1, f) != 1 || fclose(f)) abort();
}

static void nfm_free(struct nfm *m)
{
    for (int i = 0; i < m->n_t; i++) free(m->t[i].v);
    lk_buf_free(&m->payload);
    lk_buf_free(&m->objects);
    lk_buf_free(&m->bindings);
}

#endif
