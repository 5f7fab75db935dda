/* Toy models: small random models at the head counts of the 0.8B and the 27B, in every weight format, made byte by byte from
 * names alone. tests/reference/toy.py makes the same numbers in numpy, runs transformers on the de-quantised weights and
 * stores the logits; so a test needs neither a model file nor PyTorch.
 *
 * Number i of a tensor is splitmix64(fnv1a64(name) + i * golden). What is done with it stands in toy_linear and toy_vec. */
#ifndef LK_TESTS_MODEL_TOY_H
#define LK_TESTS_MODEL_TOY_H

#include "base/buf.h"
#include "base/file.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum toy_fmt {
    TOY_BF16, TOY_F16, TOY_F32, TOY_FP8_BLOCK, TOY_FP8_CHANNEL, TOY_FP8_TENSOR, TOY_NVFP4_CT, TOY_NVFP4_MO,
    TOY_INT8, TOY_CT4, TOY_CT4_ASYM, TOY_CT8, TOY_GPTQ, TOY_AWQ,
};

struct toy {
    const char *name;
    int hidden, inter, vocab;
    const char *layers; /* "gf": a linear layer, a full one */
    int n_q, n_kv, hk, hv, tied;
    enum toy_fmt mixer, mlp, head, small; /* small: in_proj_a, in_proj_b, mtp.fc */
};

#define TOY_TOKENS 10
#define TOY_VOCAB  256
#define TOY_S(name, fmt) {name, 256, 512, TOY_VOCAB, "gf", 8, 2, 16, 16, 1, fmt, fmt, TOY_BF16, TOY_BF16}
/* the same table stands in toy.py; stored logits are in this order */
static const struct toy toys[] = {
    TOY_S("bf16", TOY_BF16),
    TOY_S("f16", TOY_F16),
    TOY_S("f32", TOY_F32),
    TOY_S("fp8-block", TOY_FP8_BLOCK),
    TOY_S("fp8-channel", TOY_FP8_CHANNEL),
    TOY_S("fp8-tensor", TOY_FP8_TENSOR),
    TOY_S("nvfp4-ct", TOY_NVFP4_CT),
    TOY_S("nvfp4-modelopt", TOY_NVFP4_MO),
    TOY_S("int8", TOY_INT8),
    TOY_S("ct4", TOY_CT4),
    TOY_S("ct4-asym", TOY_CT4_ASYM),
    TOY_S("ct8", TOY_CT8),
    TOY_S("gptq", TOY_GPTQ),
    TOY_S("awq", TOY_AWQ),
    {"27b-bf16", 256, 512, TOY_VOCAB, "gf", 24, 4, 16, 48, 0, TOY_BF16, TOY_BF16, TOY_BF16, TOY_BF16},
    {"27b-mix", 256, 512, TOY_VOCAB, "gfg", 24, 4, 16, 48, 0, TOY_FP8_CHANNEL, TOY_NVFP4_CT, TOY_INT8, TOY_NVFP4_CT},
};
enum { TOYS = sizeof toys / sizeof toys[0] };

static inline int32_t toy_id(int i)
{
    return (i * 37 + 11) % TOY_VOCAB;
}

static inline uint64_t toy_seed(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

static inline uint64_t toy_rand(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + i * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* least s with 4^s >= c * k: makes a weight of spread sqrt(c) * 2^-s keep the size of its input */
static inline int toy_shift(uint64_t c, int64_t k)
{
    int s = 0;
    while ((1ull << 2 * s) < c * (uint64_t)k) s++;
    return s;
}

struct toy_file {
    struct lk_buf head, data;
};

static inline void toy_bytes(struct toy_file *f, const char *name, const char *dtype, int nd, int64_t d0, int64_t d1,
                             const void *p, size_t bytes)
{
    lk_buf_fmt(&f->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", f->head.len ? "," : "{", name, dtype);
    if (nd > 0) lk_buf_fmt(&f->head, "%lld", (long long)d0);
    if (nd > 1) lk_buf_fmt(&f->head, ",%lld", (long long)d1);
    if (nd > 2) lk_buf_fmt(&f->head, ",1"); /* not used for data order */
    lk_buf_fmt(&f->head, "],\"data_offsets\":[%zu,%zu]}", f->data.len, f->data.len + bytes);
    lk_buf_add(&f->data, p, bytes);
}

static inline void *toy_alloc(size_t n)
{
    void *p = calloc(1, n ? n : 1);
    if (!p) abort();
    return p;
}

static inline uint16_t toy_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16); /* all toy values are exact in bf16 */
}

static inline uint16_t toy_f16(float f)
{
    return lk_f32_to_f16(f);
}

/* scales (64..127) * 2^-t as "BF16", "F16" or "F32" */
static inline void toy_scales(struct toy_file *f, const char *name, const char *dtype, int nd, int64_t d0, int64_t d1, int t)
{
    int64_t n = d0 * d1;
    uint64_t seed = toy_seed(name);
    size_t each = dtype[0] == 'F' && dtype[1] == '3' ? 4 : 2;
    char *p = toy_alloc((size_t)n * each);
    for (int64_t i = 0; i < n; i++) {
        float v = (float)(64 + toy_rand(seed, (uint64_t)i) % 64) / (float)(1ull << t);
        uint16_t h = dtype[0] == 'B' ? toy_bf16(v) : toy_f16(v);
        if (each == 4)
            memcpy(p + 4 * i, &v, 4);
        else
            memcpy(p + 2 * i, &h, 2);
    }
    toy_bytes(f, name, dtype, nd, d0, d1, p, (size_t)n * each);
    free(p);
}

/* random 32-bit words: base + (r & mask) */
static inline void toy_words(struct toy_file *f, const char *name, int64_t d0, int64_t d1, uint32_t base, uint32_t mask)
{
    uint64_t seed = toy_seed(name);
    uint32_t *p = toy_alloc((size_t)(d0 * d1) * 4);
    for (int64_t i = 0; i < d0 * d1; i++) p[i] = base + ((uint32_t)toy_rand(seed, (uint64_t)i) & mask);
    toy_bytes(f, name, "I32", 2, d0, d1, p, (size_t)(d0 * d1) * 4);
    free(p);
}

enum toy_code { TOY_CODE_ANY, TOY_CODE_FP8, TOY_CODE_NV_SCALE };

static inline void toy_codes(struct toy_file *f, const char *name, const char *dtype, int64_t d0, int64_t d1, enum toy_code kind)
{
    uint64_t seed = toy_seed(name);
    unsigned char *p = toy_alloc((size_t)(d0 * d1));
    for (int64_t i = 0; i < d0 * d1; i++) {
        unsigned c = (unsigned)toy_rand(seed, (uint64_t)i) & 0xff;
        if (kind == TOY_CODE_FP8 && (c & 0x7f) == 0x7f) c ^= 1; /* no NaN */
        if (kind == TOY_CODE_NV_SCALE) c = 0x28 + c % 24;       /* 0.25 .. 1.875 */
        p[i] = (unsigned char)c;
    }
    toy_bytes(f, name, dtype, 2, d0, d1, p, (size_t)(d0 * d1));
    free(p);
}

static inline void toy_float(struct toy_file *f, const char *name, int nd, float v)
{
    toy_bytes(f, name, "F32", nd, 1, 1, &v, 4);
}

static inline void toy_plain(struct toy_file *f, const char *name, enum toy_fmt fmt, int64_t n, int64_t k, int shift)
{
    uint64_t seed = toy_seed(name);
    size_t each = fmt == TOY_F32 ? 4 : 2;
    char *p = toy_alloc((size_t)(n * k) * each);
    for (int64_t i = 0; i < n * k; i++) {
        uint64_t r = toy_rand(seed, (uint64_t)i);
        float v = (float)((int64_t)(r % 255) - 127) / (float)(1ull << shift);
        if (fmt == TOY_F32) v = (float)((int64_t)(r >> 40) - (1 << 23)) / (float)(1ull << (shift + 16));
        uint16_t h = fmt == TOY_BF16 ? toy_bf16(v) : toy_f16(v);
        if (each == 4)
            memcpy(p + 4 * i, &v, 4);
        else
            memcpy(p + 2 * i, &h, 2);
    }
    toy_bytes(f, name, fmt == TOY_F32 ? "F32" : fmt == TOY_F16 ? "F16" : "BF16", 2, n, k, p, (size_t)(n * k) * each);
    free(p);
}

/* One linear "base" + ".weight" or the format's own suffixes. */
static inline void toy_linear(struct toy_file *f, const char *base, enum toy_fmt fmt, int64_t n, int64_t k)
{
    char a[160], s[160], g[160];
    snprintf(a, sizeof a, "%s.weight", base);
    snprintf(s, sizeof s, "%s.weight_scale", base);
    int t8 = toy_shift(150994944, k), ti = toy_shift(50466816, k), t4 = toy_shift(195364, k);
    switch (fmt) {
    case TOY_BF16:
    case TOY_F16:
    case TOY_F32: toy_plain(f, a, fmt, n, k, toy_shift(5476, k)); return;
    case TOY_FP8_BLOCK:
        toy_codes(f, a, "F8_E4M3", n, k, TOY_CODE_FP8);
        snprintf(s, sizeof s, "%s.weight_scale_inv", base);
        toy_scales(f, s, "BF16", 2, (n + 127) / 128, (k + 127) / 128, t8);
        return;
    case TOY_FP8_CHANNEL:
        toy_codes(f, a, "F8_E4M3", n, k, TOY_CODE_FP8);
        toy_scales(f, s, "F32", 2, n, 1, t8);
        return;
    case TOY_FP8_TENSOR:
        toy_codes(f, a, "F8_E4M3", n, k, TOY_CODE_FP8);
        toy_scales(f, s, "F32", 0, 1, 1, t8);
        return;
    case TOY_NVFP4_CT:
        snprintf(a, sizeof a, "%s.weight_packed", base);
        snprintf(g, sizeof g, "%s.weight_global_scale", base);
        toy_codes(f, a, "U8", n, k / 2, TOY_CODE_ANY);
        toy_codes(f, s, "F8_E4M3", n, k / 16, TOY_CODE_NV_SCALE);
        toy_float(f, g, 1, 3.0f * (float)(1ull << toy_shift(1, k)));
        return;
    case TOY_NVFP4_MO:
        snprintf(g, sizeof g, "%s.weight_scale_2", base);
        toy_codes(f, a, "U8", n, k / 2, TOY_CODE_ANY);
        toy_codes(f, s, "F8_E4M3", n, k / 16, TOY_CODE_NV_SCALE);
        toy_float(f, g, 0, 0.3125f / (float)(1ull << toy_shift(1, k)));
        return;
    case TOY_INT8:
        toy_codes(f, a, "I8", n, k, TOY_CODE_ANY);
        toy_scales(f, s, "BF16", 2, n, 1, ti);
        return;
    case TOY_CT4:
    case TOY_CT4_ASYM:
    case TOY_CT8: {
        int64_t per = fmt == TOY_CT8 ? 4 : 8, group = fmt == TOY_CT4_ASYM ? 128 : 32, shape[2] = {n, k};
        snprintf(a, sizeof a, "%s.weight_packed", base);
        toy_words(f, a, n, k / per, 0, 0xffffffff);
        toy_scales(f, s, "BF16", 2, n, k / group, fmt == TOY_CT8 ? ti : t4);
        snprintf(g, sizeof g, "%s.weight_shape", base);
        toy_bytes(f, g, "I64", 1, 2, 1, shape, sizeof shape);
        snprintf(g, sizeof g, "%s.weight_zero_point", base);
        if (fmt == TOY_CT4_ASYM) toy_words(f, g, n / 8, k / group, 0x66666666, 0x33333333);
        return;
    }
    case TOY_GPTQ: {
        int32_t *idx = toy_alloc((size_t)k * 4);
        for (int64_t i = 0; i < k; i++) idx[i] = (int32_t)(i / 128);
        snprintf(a, sizeof a, "%s.qweight", base);
        toy_words(f, a, k / 8, n, 0, 0xffffffff);
        snprintf(s, sizeof s, "%s.scales", base);
        toy_scales(f, s, "F16", 2, k / 128, n, t4);
        snprintf(g, sizeof g, "%s.qzeros", base);
        toy_words(f, g, k / 128, n / 8, 0x55555555, 0x33333333);
        snprintf(g, sizeof g, "%s.g_idx", base);
        toy_bytes(f, g, "I32", 1, k, 1, idx, (size_t)k * 4);
        free(idx);
        return;
    }
    case TOY_AWQ:
        snprintf(a, sizeof a, "%s.qweight", base);
        toy_words(f, a, k, n / 8, 0, 0xffffffff);
        snprintf(s, sizeof s, "%s.scales", base);
        toy_scales(f, s, "F16", 2, k / 128, n, t4);
        snprintf(g, sizeof g, "%s.qzeros", base);
        toy_words(f, g, k / 128, n / 8, 0x66666666, 0x33333333);
        return;
    }
}

/* Small tensors in BF16: norms (zero-centred), the plain norm of the delta net, gates and convolution. */
enum toy_vec { TOY_NORM, TOY_NORM_PLAIN, TOY_A_LOG, TOY_DT_BIAS, TOY_CONV };

static inline void toy_vec(struct toy_file *f, const char *base, const char *what, enum toy_vec kind, int64_t n)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", base, what);
    uint64_t seed = toy_seed(name);
    int64_t count = kind == TOY_CONV ? 4 * n : n;
    uint16_t *p = toy_alloc((size_t)count * 2);
    for (int64_t i = 0; i < count; i++) {
        int r = (int)(toy_rand(seed, (uint64_t)i) % 64);
        float v = (float)(r - 32) / 128.0f;                        /* norm: -0.25 .. 0.25 */
        if (kind == TOY_NORM_PLAIN) v = 1.0f + (float)(r - 32) / 128.0f;
        if (kind == TOY_A_LOG) v = (float)r / 16.0f - 2.0f;
        if (kind == TOY_DT_BIAS) v = (float)(r - 32) / 16.0f;
        if (kind == TOY_CONV) v = (float)(r - 32) / 64.0f;
        p[i] = toy_bf16(v);
    }
    lk_buf_fmt(&f->head, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%lld%s],\"data_offsets\":[%zu,%zu]}",
               f->head.len ? "," : "{", name, (long long)n, kind == TOY_CONV ? ",1,4" : "", f->data.len,
               f->data.len + (size_t)count * 2);
    lk_buf_add(&f->data, p, (size_t)count * 2);
    free(p);
}

static inline void toy_sub(struct toy_file *f, const char *base, const char *what, enum toy_fmt fmt, int64_t n, int64_t k)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", base, what);
    toy_linear(f, name, fmt, n, k);
}

static inline void toy_layer(struct toy_file *f, const struct toy *t, const char *base, int full)
{
    int64_t h = t->hidden, q = t->n_q * 256, kv = t->n_kv * 256, c = (2 * t->hk + t->hv) * 128, v = t->hv * 128;
    toy_vec(f, base, "input_layernorm.weight", TOY_NORM, h);
    toy_vec(f, base, "post_attention_layernorm.weight", TOY_NORM, h);
    if (full) {
        toy_sub(f, base, "self_attn.q_proj", t->mixer, 2 * q, h);
        toy_sub(f, base, "self_attn.k_proj", t->mixer, kv, h);
        toy_sub(f, base, "self_attn.v_proj", t->mixer, kv, h);
        toy_sub(f, base, "self_attn.o_proj", t->mixer, h, q);
        toy_vec(f, base, "self_attn.q_norm.weight", TOY_NORM, 256);
        toy_vec(f, base, "self_attn.k_norm.weight", TOY_NORM, 256);
    } else {
        toy_sub(f, base, "linear_attn.in_proj_qkv", t->mixer, c, h);
        toy_sub(f, base, "linear_attn.in_proj_z", t->mixer, v, h);
        toy_sub(f, base, "linear_attn.in_proj_b", t->small, t->hv, h);
        toy_sub(f, base, "linear_attn.in_proj_a", t->small, t->hv, h);
        toy_sub(f, base, "linear_attn.out_proj", t->mixer, h, v);
        toy_vec(f, base, "linear_attn.conv1d.weight", TOY_CONV, c);
        toy_vec(f, base, "linear_attn.A_log", TOY_A_LOG, t->hv);
        toy_vec(f, base, "linear_attn.dt_bias", TOY_DT_BIAS, t->hv);
        toy_vec(f, base, "linear_attn.norm.weight", TOY_NORM_PLAIN, 128);
    }
    toy_sub(f, base, "mlp.gate_proj", t->mlp, t->inter, h);
    toy_sub(f, base, "mlp.up_proj", t->mlp, t->inter, h);
    toy_sub(f, base, "mlp.down_proj", t->mlp, h, t->inter);
}

static inline void toy_config(const struct toy *t, const char *dir)
{
    struct lk_buf b = {0}, p = {0};
    const char *quant = t->mixer == TOY_GPTQ ? ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,"
                                               "\"desc_act\":false,\"sym\":false,\"checkpoint_format\":\"gptq\"}"
                        : t->mixer == TOY_AWQ ? ",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,"
                                                "\"zero_point\":true,\"version\":\"gemm\"}"
                                              : "";
    lk_buf_fmt(&b, "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"hidden_size\":%d,"
                   "\"intermediate_size\":%d,\"vocab_size\":%d,\"num_hidden_layers\":%zu,\"num_attention_heads\":%d,"
                   "\"num_key_value_heads\":%d,\"head_dim\":256,\"linear_num_key_heads\":%d,\"linear_num_value_heads\":%d,"
                   "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,"
                   "\"rms_norm_eps\":1e-06,\"max_position_embeddings\":4096,\"tie_word_embeddings\":%s,"
                   "\"mtp_num_hidden_layers\":1,\"eos_token_id\":1,\"hidden_act\":\"silu\",\"attn_output_gate\":true,"
                   "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000.0,\"partial_rotary_factor\":0.25,"
                   "\"mrope_section\":[11,11,10],\"mrope_interleaved\":true},\"layer_types\":[",
               t->hidden, t->inter, t->vocab, strlen(t->layers), t->n_q, t->n_kv, t->hk, t->hv, t->tied ? "true" : "false");
    for (const char *l = t->layers; *l; l++)
        lk_buf_fmt(&b, "%s\"%s\"", l == t->layers ? "" : ",", *l == 'f' ? "full_attention" : "linear_attention");
    lk_buf_fmt(&b, "]%s}", quant);
    lk_path_join(&p, dir, "config.json");
    if (lk_file_write(p.data, b.data, b.len, NULL)) abort();
    lk_buf_free(&b);
    lk_buf_free(&p);
}

/* Writes the model into a new folder; the name (static, overwritten by the next call) or aborts. */
static inline const char *toy_write(const struct toy *t)
{
    static char dir[64];
    struct toy_file f = {{0}, {0}};
    struct lk_buf all = {0}, p = {0};
    char base[64];
    snprintf(dir, sizeof dir, "/tmp/laoka-toy-XXXXXX");
    if (!mkdtemp(dir)) abort();
    toy_config(t, dir);
    toy_plain(&f, "model.embed_tokens.weight", TOY_BF16, t->vocab, t->hidden, 12);
    toy_vec(&f, "model.", "norm.weight", TOY_NORM, t->hidden);
    if (!t->tied) toy_linear(&f, "lm_head", t->head, t->vocab, t->hidden);
    for (int i = 0; t->layers[i]; i++) {
        snprintf(base, sizeof base, "model.layers.%d.", i);
        toy_layer(&f, t, base, t->layers[i] == 'f');
    }
    toy_linear(&f, "mtp.fc", t->small, t->hidden, 2 * t->hidden);
    toy_vec(&f, "mtp.", "pre_fc_norm_embedding.weight", TOY_NORM, t->hidden);
    toy_vec(&f, "mtp.", "pre_fc_norm_hidden.weight", TOY_NORM, t->hidden);
    toy_vec(&f, "mtp.", "norm.weight", TOY_NORM, t->hidden);
    toy_layer(&f, t, "mtp.layers.0.", 1);
    lk_buf_chr(&f.head, '}');
    while (f.head.len % 8) lk_buf_chr(&f.head, ' ');
    uint64_t n = f.head.len;
    lk_buf_add(&all, &n, 8);
    lk_buf_add(&all, f.head.data, f.head.len);
    lk_buf_add(&all, f.data.data, f.data.len);
    lk_path_join(&p, dir, "model.safetensors");
    if (all.failed || f.data.failed || lk_file_write(p.data, all.data, all.len, NULL)) abort();
    lk_buf_free(&f.head);
    lk_buf_free(&f.data);
    lk_buf_free(&all);
    lk_buf_free(&p);
    return dir;
}

static inline void toy_remove(const char *dir)
{
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

#endif
