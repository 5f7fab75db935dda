/* Writing synthetic models: see synthetic.h. A block of random bytes a kind of content is made once and written again and again. */
#include "bench/synthetic.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "dev/format.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define BLOCK ((size_t)32 << 20)

enum fill { ANY, FP8, NVSCALE, BF16, F32, FILLS };

struct shape {
    const char *name;
    int hidden, inter, layers, n_q, n_kv, hk, hv, tied, vocab;
    enum lk_fmt mixer, mlp, edge, head; /* edge: MLPs of the first and last four layers; head: the draft layer too */
};
static const struct shape shapes[] = {
    {"tiny", 256, 512, 8, 24, 4, 16, 48, 0, 4096, LK_FMT_FP8, LK_FMT_NVFP4, LK_FMT_FP8, LK_FMT_I8},
    {"27b", 5120, 17408, 64, 24, 4, 16, 48, 0, 248320, LK_FMT_FP8, LK_FMT_NVFP4, LK_FMT_FP8, LK_FMT_I8},
    {"27b-bf16", 5120, 17408, 64, 24, 4, 16, 48, 0, 248320, LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16},
    {"4b", 2560, 9216, 32, 16, 4, 16, 32, 1, 248320, LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16},
    {"0.8b", 1024, 3584, 24, 8, 2, 16, 16, 1, 248320, LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16},
    {"0.8b-fp8", 1024, 3584, 24, 8, 2, 16, 16, 1, 248320, LK_FMT_FP8, LK_FMT_FP8, LK_FMT_FP8, LK_FMT_FP8},
    {"0.8b-nvfp4", 1024, 3584, 24, 8, 2, 16, 16, 1, 248320, LK_FMT_NVFP4, LK_FMT_NVFP4, LK_FMT_NVFP4, LK_FMT_NVFP4},
};
const char lk_synthetic_names[] = "27b, 27b-bf16, 4b, 0.8b, 0.8b-fp8, 0.8b-nvfp4 or tiny";

struct writer {
    const struct shape *s;
    FILE *f;
    struct lk_buf head;
    size_t at;
    int layers, data; /* data 0: the header is collected */
    unsigned char *block[FILLS];
    struct lk_progress bar;
    uint64_t rng;
    int failed;
};

static uint32_t rnd(struct writer *w)
{
    w->rng ^= w->rng << 13, w->rng ^= w->rng >> 7, w->rng ^= w->rng << 17;
    return (uint32_t)(w->rng >> 32);
}

/* Four bytes of a kind of content: e4m3 without NaN, scales of about 1, BF16 of +-0.008 to 0.016, one small F32. */
static void word_make(struct writer *w, enum fill kind, unsigned char b[4])
{
    uint32_t v = rnd(w);
    float s = 2e-4f;
    memcpy(b, &v, 4);
    for (int j = 0; j < 4 && kind == FP8; j++) b[j] ^= (b[j] & 0x7f) == 0x7f;
    for (int j = 0; j < 4 && kind == NVSCALE; j++) b[j] = (unsigned char)(0x28 + b[j] % 24);
    if (kind == BF16) v = (v & 0x807f807fu) | 0x3c003c00u, memcpy(b, &v, 4);
    if (kind == F32) memcpy(b, &s, 4);
}

static int blocks_make(struct writer *w, struct lk_err *e)
{
    for (int k = 0; k < FILLS; k++) {
        unsigned char *b = w->block[k] = lk_malloc(BLOCK);
        if (!b) return lk_fail(e, LK_ENOMEM, "no memory for %d blocks of %zu MB", FILLS, BLOCK >> 20);
        for (size_t i = 0; i < BLOCK; i += 4) word_make(w, (enum fill)k, b + i);
    }
    return 0;
}

/* n 0: a scalar; k 0: a vector; k -4: the convolution's [n, 1, 4]. */
static void tensor(struct writer *w, enum fill fill, const char *dtype, int64_t n, int64_t k, const char *name, const char *base)
{
    size_t each = !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "BF16") ? 2 : 1, columns = (size_t)(k < 0 ? -k : k ? k : 1);
    size_t bytes = (size_t)(n ? n : 1) * columns * each;
    if (!w->data) {
        lk_buf_fmt(&w->head, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", w->head.len ? "," : "{", base, name, dtype);
        if (n) lk_buf_fmt(&w->head, "%lld", (long long)n);
        if (k) lk_buf_fmt(&w->head, k < 0 ? ",1,%lld" : ",%lld", (long long)columns);
        lk_buf_fmt(&w->head, "],\"data_offsets\":[%zu,%zu]}", w->at, w->at + bytes);
        w->at += bytes;
        return;
    }
    for (size_t at = 0; at < bytes && !w->failed; at += BLOCK) {
        size_t part = bytes - at < BLOCK ? bytes - at : BLOCK;
        if (fwrite(w->block[fill], 1, part, w->f) != part) w->failed = errno ? errno : EIO;
        lk_progress_set(&w->bar, w->bar.done + part);
    }
}

static void linear(struct writer *w, enum lk_fmt f, int64_t n, int64_t k, const char *base, const char *what)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", base, what);
    if (f == LK_FMT_BF16) {
        tensor(w, BF16, "BF16", n, k, ".weight", name);
    } else if (f == LK_FMT_NVFP4) {
        tensor(w, ANY, "U8", n, k / 2, ".weight", name);
        tensor(w, NVSCALE, "F8_E4M3", n, k / 16, ".weight_scale", name);
        tensor(w, F32, "F32", 0, 0, ".weight_scale_2", name);
    } else {
        tensor(w, f == LK_FMT_FP8 ? FP8 : ANY, f == LK_FMT_FP8 ? "F8_E4M3" : "I8", n, k, ".weight", name);
        tensor(w, F32, "F32", n, 1, ".weight_scale", name);
    }
}

static void vector(struct writer *w, int64_t n, const char *base, const char *what)
{
    tensor(w, BF16, "BF16", n, 0, what, base);
}

static void attention(struct writer *w, const char *base, enum lk_fmt f)
{
    const struct shape *s = w->s;
    linear(w, f, 2 * s->n_q * 256, s->hidden, base, "self_attn.q_proj");
    linear(w, f, s->n_kv * 256, s->hidden, base, "self_attn.k_proj");
    linear(w, f, s->n_kv * 256, s->hidden, base, "self_attn.v_proj");
    linear(w, f, s->hidden, s->n_q * 256, base, "self_attn.o_proj");
    vector(w, 256, base, "self_attn.q_norm.weight");
    vector(w, 256, base, "self_attn.k_norm.weight");
}

static void delta_net(struct writer *w, const char *base, enum lk_fmt f)
{
    const struct shape *s = w->s;
    int64_t channels = 2 * s->hk * 128 + s->hv * 128;
    linear(w, f, channels, s->hidden, base, "linear_attn.in_proj_qkv");
    linear(w, f, s->hv * 128, s->hidden, base, "linear_attn.in_proj_z");
    linear(w, LK_FMT_BF16, s->hv, s->hidden, base, "linear_attn.in_proj_b");
    linear(w, LK_FMT_BF16, s->hv, s->hidden, base, "linear_attn.in_proj_a");
    linear(w, f, s->hidden, s->hv * 128, base, "linear_attn.out_proj");
    tensor(w, BF16, "BF16", channels, -4, "linear_attn.conv1d.weight", base);
    vector(w, s->hv, base, "linear_attn.A_log");
    vector(w, s->hv, base, "linear_attn.dt_bias");
    vector(w, 128, base, "linear_attn.norm.weight");
}

static void layer(struct writer *w, const char *base, int full, enum lk_fmt mixer, enum lk_fmt mlp)
{
    const struct shape *s = w->s;
    vector(w, s->hidden, base, "input_layernorm.weight");
    vector(w, s->hidden, base, "post_attention_layernorm.weight");
    if (full)
        attention(w, base, mixer);
    else
        delta_net(w, base, mixer);
    linear(w, mlp, s->inter, s->hidden, base, "mlp.gate_proj");
    linear(w, mlp, s->inter, s->hidden, base, "mlp.up_proj");
    linear(w, mlp, s->hidden, s->inter, base, "mlp.down_proj");
}

static void all_tensors(struct writer *w)
{
    const struct shape *s = w->s;
    char base[64];
    tensor(w, BF16, "BF16", s->vocab, s->hidden, "model.embed_tokens.weight", "");
    vector(w, s->hidden, "", "model.norm.weight");
    if (!s->tied) linear(w, s->head, s->vocab, s->hidden, "", "lm_head");
    for (int i = 0; i < w->layers; i++) {
        snprintf(base, sizeof base, "model.layers.%d.", i);
        layer(w, base, i % 4 == 3, s->mixer, i < (w->layers > 8 ? 4 : 2) || i >= w->layers - (w->layers > 8 ? 4 : 2) ? s->edge : s->mlp);
    }
    linear(w, LK_FMT_BF16, s->hidden, 2 * s->hidden, "", "mtp.fc");
    vector(w, s->hidden, "", "mtp.pre_fc_norm_embedding.weight");
    vector(w, s->hidden, "", "mtp.pre_fc_norm_hidden.weight");
    vector(w, s->hidden, "", "mtp.norm.weight");
    layer(w, "mtp.layers.0.", 1, s->head, s->head);
}

static FILE *file_open(const char *dir, const char *name, struct lk_err *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) lk_fail(e, LK_EINPUT, "%s: cannot write there: %s", path, strerror(errno));
    return f;
}

static int config_write(const struct writer *w, const char *dir, struct lk_err *e)
{
    const struct shape *s = w->s;
    FILE *f = file_open(dir, "config.json", e);
    if (!f) return LK_EINPUT;
    fprintf(f, "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"hidden_size\":%d,\"intermediate_size\":%d,"
               "\"vocab_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":256,"
               "\"linear_num_key_heads\":%d,\"linear_num_value_heads\":%d,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"
               "\"linear_conv_kernel_dim\":4,\"rms_norm_eps\":1e-06,\"max_position_embeddings\":1048576,\"tie_word_embeddings\":%s,"
               "\"mtp_num_hidden_layers\":1,\"eos_token_id\":1,\"hidden_act\":\"silu\",\"attn_output_gate\":true,\"rope_parameters\":{"
               "\"rope_type\":\"default\",\"rope_theta\":10000000.0,\"partial_rotary_factor\":0.25,\"mrope_section\":[11,11,10],"
               "\"mrope_interleaved\":true},\"layer_types\":[",
            s->hidden, s->inter, s->vocab, w->layers, s->n_q, s->n_kv, s->hk, s->hv, s->tied ? "true" : "false");
    for (int i = 0; i < w->layers; i++) fprintf(f, "%s\"%s\"", i ? "," : "", i % 4 == 3 ? "full_attention" : "linear_attention");
    fprintf(f, "]}\n");
    return fclose(f) ? lk_fail(e, LK_ESYS, "%s: cannot write: %s", dir, strerror(errno)) : 0;
}

static int weights_write(struct writer *w, const char *dir, struct lk_err *e)
{
    all_tensors(w);
    lk_buf_chr(&w->head, '}');
    while (w->head.len % 8) lk_buf_chr(&w->head, ' ');
    uint64_t n = w->head.len;
    if (w->head.failed) return lk_fail(e, LK_ENOMEM, "no memory for the header");
    if (!(w->f = file_open(dir, "model.safetensors", e))) return LK_EINPUT;
    if (fwrite(&n, 8, 1, w->f) != 1 || fwrite(w->head.data, 1, w->head.len, w->f) != w->head.len) w->failed = errno ? errno : EIO;
    w->data = 1;
    lk_progress_begin(&w->bar, "writing", "B", w->at);
    all_tensors(w);
    lk_progress_end(&w->bar);
    if (fclose(w->f) && !w->failed) w->failed = errno;
    return w->failed ? lk_fail(e, LK_EINPUT, "%s: cannot write %.1f GB there: %s", dir, (double)w->at * 1e-9, strerror(w->failed)) : 0;
}

int lk_synthetic_write(const char *shape, const char *dir, int layers, struct lk_err *e)
{
    struct writer w = {.rng = 88172645463325252u};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(shapes[i].name, shape)) w.s = &shapes[i];
    if (!w.s) return lk_fail(e, LK_EUSAGE, "bench synthetic %s: expected %s", shape, lk_synthetic_names);
    struct lk_buf config = {0};
    int taken = lk_path_join(&config, dir, "config.json") || lk_file_exists(config.data);
    lk_buf_free(&config);
    if (taken) return lk_fail(e, LK_EINPUT, "%s: holds a model already; give a folder that does not", dir);
    w.layers = layers > 0 && layers < w.s->layers ? layers : w.s->layers;
    if (mkdir(dir, 0755) && errno != EEXIST) return lk_fail(e, LK_EINPUT, "%s: cannot make the folder: %s", dir, strerror(errno));
    int rc = blocks_make(&w, e);
    if (!rc) rc = config_write(&w, dir, e);
    if (!rc) rc = weights_write(&w, dir, e);
    for (int k = 0; k < FILLS; k++) lk_free(w.block[k]);
    lk_buf_free(&w.head);
    return rc;
}
