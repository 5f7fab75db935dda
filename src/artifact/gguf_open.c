/* Opens a GGUF model of arch qwen35: one file or all parts of a split, a sidecar with the MTP block where there is one, config from the
 * keys, tensors under logical names. Values stay as the file has them: norms are already 1 + w, A already -exp, value heads tiled; the
 * config's flags say so to the model. */
#include "artifact/gguf.h"

#include "base/log.h"
#include "base/num.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *gguf, *logical; } block_names[] = {
    {"attn_norm.weight", "input_layernorm"},
    {"post_attention_norm.weight", "post_attention_layernorm"},
    {"ffn_gate.weight", "mlp.gate_proj"},
    {"ffn_up.weight", "mlp.up_proj"},
    {"ffn_down.weight", "mlp.down_proj"},
    {"attn_q.weight", "self_attn.q_proj"},
    {"attn_k.weight", "self_attn.k_proj"},
    {"attn_v.weight", "self_attn.v_proj"},
    {"attn_output.weight", "self_attn.o_proj"},
    {"attn_q_norm.weight", "self_attn.q_norm"},
    {"attn_k_norm.weight", "self_attn.k_norm"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv"},
    {"attn_gate.weight", "linear_attn.in_proj_z"},
    {"ssm_conv1d.weight", "linear_attn.conv1d"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a"},
    {"ssm_beta.weight", "linear_attn.in_proj_b"},
    {"ssm_norm.weight", "linear_attn.norm"},
    {"ssm_out.weight", "linear_attn.out_proj"},
};
static const struct { const char *gguf, *logical; } other_names[] = {
    {"token_embd.weight", "embed_tokens"},
    {"output_norm.weight", "norm"},
    {"output.weight", "lm_head"},
};
static const struct { const char *gguf, *logical; } mtp_names[] = { /* inside the MTP block */
    {"nextn.eh_proj.weight", "mtp.fc"},
    {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding"},
    {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden"},
    {"nextn.shared_head_norm.weight", "mtp.norm"},
};
#define N(a) (sizeof(a) / sizeof *(a))

/* 1 and the logical name in buf, or 0. */
static int logical_name(const struct lk_config *c, const char *name, char *buf, size_t cap)
{
    for (size_t i = 0; i < N(other_names); i++)
        if (!strcmp(name, other_names[i].gguf)) return snprintf(buf, cap, "%s", other_names[i].logical), 1;
    int block, used = 0;
    if (sscanf(name, "blk.%5d.%n", &block, &used) != 1 || !used || block < 0 || block > c->layers) return 0;
    const char *part = name + used;
    for (size_t i = 0; i < N(block_names); i++)
        if (!strcmp(part, block_names[i].gguf)) {
            if (block == c->layers)
                snprintf(buf, cap, "mtp.layers.0.%s", block_names[i].logical);
            else
                snprintf(buf, cap, "layers.%d.%s", block, block_names[i].logical);
            return 1;
        }
    for (size_t i = 0; i < N(mtp_names) && block == c->layers; i++)
        if (!strcmp(part, mtp_names[i].gguf)) return snprintf(buf, cap, "%s", mtp_names[i].logical), 1;
    return 0;
}

static int tensor_bind(struct lk_artifact *a, const struct raw_tensor *r, const char *name, struct lk_err *e)
{
    struct lk_tensor t = {.stored = r->name, .file = r->file, .n_dims = r->n_dims, .bytes = r->bytes};
    t.name = lk_arena_strndup(&a->mem, name, strlen(name));
    if (!t.name) return lk_fail(e, LK_ENOMEM, "%s: no memory for the tensor directory", a->path);
    memcpy(t.dims, r->dims, 4 * sizeof *t.dims);
    t.w = (struct lk_weight){.fmt = r->fmt, .data = r->data, .global = 1, .n = r->n_dims > 1 ? r->dims[0] : 1};
    t.w.k = lk__raw_count(r) / t.w.n;
    if (lk_fmt_info(r->fmt)->block && r->n_dims > 2)
        return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected at most 2 dimensions in %s, found %d", r->file, r->name,
                       lk_fmt_info(r->fmt)->name, r->n_dims);
    return lk__artifact_add(a, &t, e);
}

int lk__gguf_bind(struct lk_artifact *a, const struct raw_table *t, struct lk_err *e)
{
    struct lk_config *c = &a->cfg;
    size_t unknown = 0;
    const char *first = NULL;
    char name[128];
    int rc = 0;
    for (size_t i = 0; i < t->n && !rc; i++) {
        if (logical_name(c, t->v[i].name, name, sizeof name))
            rc = tensor_bind(a, &t->v[i], name, e);
        else if (!unknown++)
            first = t->v[i].name;
    }
    if (rc) return rc;
    if (unknown) lk_log_warn("%s: %zu tensors have no place in the model and are ignored, the first is %s", a->path, unknown, first);
    const struct lk_tensor *embed = lk_artifact_find(a, "embed_tokens");
    if (!embed) return lk_fail(e, LK_EINPUT, "%s: tensor token_embd.weight: expected in the file, found nothing", a->path);
    c->vocab = embed->w.n;
    c->tied = !lk_artifact_find(a, "lm_head");
    c->mtp_layers = lk_artifact_find(a, "mtp.fc") != NULL;
    for (int64_t i = 0; i < c->layers; i++) { /* what a layer holds says what it is */
        snprintf(name, sizeof name, "layers.%d.self_attn.q_proj", (int)i);
        c->full[i] = lk_artifact_find(a, name) != NULL;
    }
    return 0;
}

int lk__gguf_config(struct lk_config *c, const struct gguf_file *g, struct lk_err *e)
{
    const struct gguf_value *arch = lk__gguf_find(g, "general.architecture");
    if (!arch || arch->type != GGUF_STRING || arch->n != 6 || memcmp(arch->at, "qwen35", 6))
        return lk_fail(e, LK_EINPUT, "%s: key general.architecture: expected qwen35, found %.*s%s", g->file,
                       arch && arch->type == GGUF_STRING ? (int)(arch->n > 60 ? 60 : arch->n) : 7,
                       arch && arch->type == GGUF_STRING ? (const char *)arch->at : "nothing",
                       arch && arch->n == 4 && !memcmp(arch->at, "clip", 4) ? " (a vision projector: give the text model's file)" : "");
    int64_t blocks = 0, mtp = 0, state = 128, inner = 0, dims[4] = {11, 11, 10, 0};
    const struct { const char *key; int64_t *out; int64_t hi; int must; } f[] = {
        {"qwen35.block_count", &blocks, LK_MAX_LAYERS, 1},
        {"qwen35.nextn_predict_layers", &mtp, 1, 0},
        {"qwen35.embedding_length", &c->hidden, 1 << 24, 1},
        {"qwen35.feed_forward_length", &c->inter, 1 << 24, 1},
        {"qwen35.context_length", &c->max_ctx, INT32_MAX, 0},
        {"qwen35.attention.head_count", &c->n_q, 1 << 16, 1},
        {"qwen35.attention.head_count_kv", &c->n_kv, 1 << 16, 1},
        {"qwen35.attention.key_length", &c->head_dim, 1 << 16, 0},
        {"qwen35.rope.dimension_count", &c->rope_dim, 1 << 16, 0},
        {"qwen35.ssm.conv_kernel", &c->conv_k, 64, 0},
        {"qwen35.ssm.state_size", &state, 1 << 16, 0},
        {"qwen35.ssm.group_count", &c->hk, 1 << 16, 1},
        {"qwen35.ssm.time_step_rank", &c->hv, 1 << 16, 1},
        {"qwen35.ssm.inner_size", &inner, 1 << 24, 0},
    };
    c->max_ctx = 262144;
    c->head_dim = 256;
    c->rope_dim = 64;
    c->conv_k = 4;
    int rc = 0;
    for (size_t i = 0; i < N(f) && !rc; i++) {
        rc = lk__gguf_int(g, f[i].key, f[i].out == &mtp ? 0 : 1, f[i].hi, f[i].out, e);
        if (!rc && f[i].must && !lk__gguf_find(g, f[i].key))
            rc = lk_fail(e, LK_EINPUT, "%s: key %s: expected a whole number, found nothing", g->file, f[i].key);
    }
    if (rc) return rc;
    if (mtp >= blocks) return lk_fail(e, LK_EINPUT, "%s: key qwen35.block_count: expected more than %d MTP blocks, found %d", g->file, (int)mtp, (int)blocks);
    c->layers = blocks - mtp;
    c->gdn_k_dim = state;
    c->gdn_v_dim = inner ? inner / c->hv : state;
    c->eps = 1e-6;
    c->rope_theta = 1e7;
    rc = lk__gguf_real(g, "qwen35.attention.layer_norm_rms_epsilon", &c->eps, e);
    if (!rc) rc = lk__gguf_real(g, "qwen35.rope.freq_base", &c->rope_theta, e);
    const struct gguf_value *s = lk__gguf_find(g, "qwen35.rope.dimension_sections");
    if (!rc && s && !(s->type == GGUF_ARRAY && (s->of == GGUF_I32 || s->of == GGUF_U32) && s->n >= 3))
        rc = lk_fail(e, LK_EINPUT, "%s: key qwen35.rope.dimension_sections: expected an array of at least 3 i32, found another", g->file);
    for (int i = 0; i < 3; i++) c->section[i] = (int)(rc || !s ? dims[i] : (int32_t)lk_get32(s->at + i * 4));
    snprintf(c->arch, sizeof c->arch, "qwen35");
    c->a_is_coef = 1;
    c->gdn_tiled = c->hv != c->hk;
    return rc;
}

/* Stop ids: the file's eos, and <|endoftext|>, which ends raw text. */
static int read_eos(struct lk_config *c, const struct gguf_file *g, struct lk_err *e)
{
    const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    int64_t id = -1;
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        id = -1;
        rc = lk__gguf_int(g, keys[i], 0, INT32_MAX, &id, e);
        if (!rc && id >= 0 && (!c->n_eos || c->eos[0] != id)) c->eos[c->n_eos++] = (int32_t)id;
    }
    const struct gguf_value *t = lk__gguf_find(g, "tokenizer.ggml.tokens");
    if (rc || !t || t->type != GGUF_ARRAY || t->of != GGUF_STRING) return rc;
    const unsigned char *at = t->at;
    for (uint64_t i = 0, len; i < t->n && i <= INT32_MAX; i++) {
        const char *s = lk__gguf_string(&at, &len);
        if (len != 13 || memcmp(s, "<|endoftext|>", 13)) continue;
        if (!c->n_eos || c->eos[0] != (int32_t)i) c->eos[c->n_eos++] = (int32_t)i;
        break;
    }
    return 0;
}

static int part_open(struct lk_artifact *a, struct gguf_file *g, struct raw_table *t, const char *path, struct lk_err *e)
{
    struct lk_map m;
    const char *file;
    int rc = lk__artifact_map(a, path, &m, &file, e);
    return rc ? rc : lk__gguf_read(g, t, &a->mem, m.data, m.size, file, e);
}

/* Parts 2.. of "X-00001-of-00003.gguf". */
static int split_open(struct lk_artifact *a, const struct gguf_file *g, struct raw_table *t, const char *path, struct lk_err *e)
{
    int64_t count = 1, no = 0, tensors = -1;
    int rc = lk__gguf_int(g, "split.count", 0, 9999, &count, e);
    if (!rc) rc = lk__gguf_int(g, "split.no", 0, 9999, &no, e);
    if (!rc) rc = lk__gguf_int(g, "split.tensors.count", 0, 1 << 20, &tensors, e);
    if (rc || count <= 1) return rc;
    size_t n = strlen(path);
    int first, of;
    if (n < 20 || sscanf(path + n - 20, "-%5d-of-%5d.gguf", &first, &of) != 2 || first != 1 || of != count || no)
        return lk_fail(e, LK_EINPUT, "%s: expected the first part of %d, named ...-00001-of-%05d.gguf, found part %d", path, (int)count,
                       (int)count, (int)no + 1);
    for (int i = 2; i <= count && !rc; i++) {
        struct lk_buf part = {0};
        struct gguf_file other = {0};
        lk_buf_fmt(&part, "%.*s-%05d-of-%05d.gguf", (int)(n - 20), path, i, (int)count);
        rc = part.failed ? lk_fail(e, LK_ENOMEM, "%s: no memory", path) : part_open(a, &other, t, part.data, e);
        lk__gguf_free(&other);
        lk_buf_free(&part);
    }
    if (!rc && tensors >= 0 && (size_t)tensors != t->n)
        rc = lk_fail(e, LK_EINPUT, "%s: key split.tensors.count: expected %d tensors in all parts, found %zu", path, (int)tensors, t->n);
    return rc;
}

/* "mtp-NAME.gguf" beside a model that has no MTP block of its own: its block is numbered after the last layer. */
static int sidecar_open(struct lk_artifact *a, struct raw_table *t, const char *path, struct lk_err *e)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    struct lk_buf side = {0};
    struct gguf_file g = {0};
    struct raw_table own = {0};
    lk_buf_fmt(&side, "%.*smtp-%s", (int)(base - path), path, base);
    int rc = side.failed ? lk_fail(e, LK_ENOMEM, "%s: no memory", path) : 0;
    if (!rc && lk_file_exists(side.data) == 1) {
        rc = part_open(a, &g, &own, side.data, e);
        for (size_t i = 0; i < own.n && !rc; i++)
            if (!strncmp(own.v[i].name, "blk.", 4) && !lk__raw_find(t, own.v[i].name)) rc = lk__raw_add(t, &own.v[i], e);
    }
    lk__gguf_free(&g);
    lk__raw_free(&own);
    lk_buf_free(&side);
    return rc;
}

static int read_texts(struct lk_artifact *a, const struct gguf_file *g, struct lk_err *e)
{
    const struct gguf_value *v = lk__gguf_find(g, "tokenizer.chat_template");
    int rc = 0;
    if (v && v->type == GGUF_STRING) rc = lk__artifact_text_add(a, "chat_template.jinja", (const char *)v->at, (size_t)v->n, e);
    if (rc || !lk__gguf_find(g, "tokenizer.ggml.tokens")) return rc;
    rc = lk__gguf_tokenizer(g, &a->made_text, e);
    return rc ? rc : lk__artifact_text_add(a, "tokenizer.json", a->made_text.data, a->made_text.len, e);
}

int lk__gguf_open(struct lk_artifact *a, const char *path, struct lk_err *e)
{
    struct gguf_file g = {0};
    struct raw_table t = {0};
    char mtp[64];
    a->kind = "gguf";
    int rc = part_open(a, &g, &t, path, e);
    if (!rc) rc = lk__gguf_config(&a->cfg, &g, e);
    if (!rc) rc = split_open(a, &g, &t, path, e);
    snprintf(mtp, sizeof mtp, "blk.%d.attn_q.weight", (int)a->cfg.layers);
    if (!rc && !lk__raw_find(&t, mtp)) rc = sidecar_open(a, &t, path, e);
    if (!rc) rc = read_eos(&a->cfg, &g, e);
    if (!rc) rc = read_texts(a, &g, e);
    if (!rc) rc = lk__gguf_bind(a, &t, e);
    lk__raw_free(&t);
    lk__gguf_free(&g);
    return rc;
}
