/* The JSON that a conversion writes: shard headers, index, config.json with quantization_config (see convert_plan.h). */
#include "artifact/convert_plan.h"

#include "artifact/json_read.h"
#include "base/num.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int out_of_memory(struct lk_err *e)
{
    return lk_fail(e, LK_ENOMEM, "convert: no memory for the JSON of the output");
}

/* Dumps o (released here) into out. */
static int json_into(json_t *o, size_t flags, struct lk_buf *out, struct lk_err *e)
{
    size_t n = o ? json_dumpb(o, NULL, 0, flags) : 0;
    int rc = !n || lk_buf_reserve(out, n) ? out_of_memory(e) : 0;
    if (!rc) {
        json_dumpb(o, out->data + out->len, n, flags);
        out->len += n;
        out->data[out->len] = 0;
    }
    json_decref(o);
    return rc;
}

int lk__shard_header(const struct plan *p, int shard, struct lk_buf *out, struct lk_err *e)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (size_t i = 0; i < p->n_out; i++) {
        const struct out_tensor *o = &p->out[i];
        if (o->shard != shard) continue;
        json_t *dims = json_array();
        for (int d = 0; d < o->n_dims; d++) json_array_append_new(dims, json_integer(o->dims[d]));
        json_object_set_new(root, o->name, json_pack("{s:s, s:o, s:[I, I]}", "dtype", lk_dtype_name(o->dtype), "shape", dims,
                            "data_offsets", (json_int_t)o->offset, (json_int_t)(o->offset + o->bytes)));
    }
    lk_buf_reset(out);
    uint64_t len = 0;
    lk_buf_add(out, &len, 8);
    int rc = json_into(root, JSON_COMPACT, out, e);
    while (!rc && out->len % 64 && !out->failed) lk_buf_chr(out, ' ');
    if (!rc && out->failed) rc = out_of_memory(e);
    if (rc) return rc;
    len = out->len - 8;
    memcpy(out->data, &len, 8);
    return 0;
}

int lk__index_text(const struct plan *p, struct lk_buf *out, struct lk_err *e)
{
    json_t *map = json_object();
    char name[64];
    for (size_t i = 0; i < p->n_out; i++)
        json_object_set_new(map, p->out[i].name, json_string(lk__shard_name(p, p->out[i].shard, name, sizeof name)));
    return json_into(json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->total, "weight_map", map), JSON_INDENT(2), out,
                     e);
}

/* "layers.12.mlp.up_proj" -> "re:.*layers\\.\\d+\\.mlp\\.up_proj$"; "mtp." names and "lm_head" likewise. */
static void module_pattern(const char *name, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "re:.*");
    for (const char *s = name; *s && n + 4 < cap; s++) {
        if (isdigit((unsigned char)*s) && s > name && s[-1] == '.') {
            n += (size_t)snprintf(buf + n, cap - n, "\\d+");
            while (isdigit((unsigned char)s[1])) s++;
        } else {
            if (*s == '.') buf[n++] = '\\';
            buf[n++] = *s;
        }
    }
    snprintf(buf + n, cap - n, "$");
}

static void array_add_once(json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), text)) return;
    json_array_append_new(list, json_string(text));
}

static enum scheme job_scheme(const struct job *j)
{
    if (j->scheme != SCHEME_COPY) return j->scheme;
    switch (j->t->w.fmt) {
    case LK_FMT_FP8: return SCHEME_FP8;
    case LK_FMT_I8: return SCHEME_I8;
    case LK_FMT_NVFP4: return SCHEME_NVFP4;
    case LK_FMT_Q4: return SCHEME_Q4;
    default: return SCHEME_BF16;
    }
}

static json_t *weight_args(enum scheme s)
{
    switch (s) {
    case SCHEME_FP8:
        return json_pack("{s:i, s:s, s:s, s:b, s:b}", "num_bits", 8, "type", "float", "strategy", "channel", "symmetric", 1, "dynamic", 0);
    case SCHEME_I8:
        return json_pack("{s:i, s:s, s:s, s:b, s:b}", "num_bits", 8, "type", "int", "strategy", "channel", "symmetric", 1, "dynamic", 0);
    case SCHEME_NVFP4:
        return json_pack("{s:i, s:s, s:s, s:i, s:b, s:b, s:s}", "num_bits", 4, "type", "float", "strategy", "tensor_group", "group_size",
                         16, "symmetric", 1, "dynamic", 0, "scale_dtype", "torch.float8_e4m3fn");
    default:
        return json_pack("{s:i, s:s, s:s, s:i, s:b, s:b}", "num_bits", 4, "type", "int", "strategy", "group", "group_size", Q4_GROUP,
                         "symmetric", 1, "dynamic", 0);
    }
}

/* Dynamic 8-bit activations a token are how FP8 and INT8 channel checkpoints are published; an embedding has no activation. */
static json_t *input_args(enum scheme s, int lookup)
{
    if (lookup || (s != SCHEME_FP8 && s != SCHEME_I8)) return json_null();
    return json_pack("{s:i, s:s, s:s, s:b, s:b}", "num_bits", 8, "type", s == SCHEME_FP8 ? "float" : "int", "strategy", "token",
                     "symmetric", 1, "dynamic", 1);
}

static const char *const scheme_format[SCHEME_COUNT] = {
    [SCHEME_FP8] = "float-quantized", [SCHEME_I8] = "int-quantized", [SCHEME_NVFP4] = "nvfp4-pack-quantized",
    [SCHEME_Q4] = "pack-quantized",
};

static json_t *quant_config(const struct plan *p)
{
    json_t *groups = json_object(), *ignore = json_array();
    int n = 0;
    const char *format = NULL;
    for (int lookup = 0; lookup < 2; lookup++)
        for (int s = SCHEME_FP8; s < SCHEME_COUNT; s++) {
            json_t *targets = json_array();
            for (size_t i = 0; i < p->n_jobs; i++) {
                const struct lk_tensor *t = p->jobs[i].t;
                char pattern[400];
                module_pattern(t->name, pattern, sizeof pattern);
                if (job_scheme(&p->jobs[i]) == (enum scheme)s && (strcmp(t->name, "embed_tokens") == 0) == lookup)
                    array_add_once(targets, pattern);
                if (job_scheme(&p->jobs[i]) < SCHEME_FP8 && t->n_dims == 2 && strncmp(t->name, "visual.", 7)) array_add_once(ignore, pattern);
            }
            if (!json_array_size(targets)) {
                json_decref(targets);
                continue;
            }
            char key[32];
            snprintf(key, sizeof key, "group_%d", n++);
            format = format && strcmp(format, scheme_format[s]) ? "mixed-precision" : scheme_format[s];
            json_object_set_new(groups, key, json_pack("{s:s, s:o, s:o, s:o, s:n}", "format", scheme_format[s], "targets", targets,
                                "weights", weight_args((enum scheme)s), "input_activations", input_args((enum scheme)s, lookup),
                                "output_activations"));
        }
    if (!n) {
        json_decref(groups);
        json_decref(ignore);
        return NULL;
    }
    array_add_once(ignore, "re:.*visual.*");
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:n}", "quant_method", "compressed-tensors", "format", format, "quantization_status",
                     "compressed", "config_groups", groups, "ignore", ignore, "kv_cache_scheme");
}

/* For sources that have no config.json: the flat text config of the family. */
static json_t *config_from_shape(const struct lk_artifact *a)
{
    const struct lk_config *c = lk_artifact_config(a);
    json_t *types = json_array(), *eos = json_array();
    for (int i = 0; i < c->n_eos; i++) json_array_append_new(eos, json_integer(c->eos[i]));
    for (int64_t i = 0; i < c->layers; i++)
        json_array_append_new(types, json_string(c->full[i] ? "full_attention" : "linear_attention"));
    json_t *rope = json_pack("{s:s, s:f, s:f, s:[i, i, i], s:b}", "rope_type", "default", "rope_theta", c->rope_theta,
                             "partial_rotary_factor", (double)c->rope_dim / (double)c->head_dim, "mrope_section", c->section[0],
                             c->section[1], c->section[2], "mrope_interleaved", 1);
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:s, s:s, s:b, s:b, s:i, "
                     "s:o, s:o, s:o}",
                     "architectures", "Qwen3_5ForCausalLM", "model_type", "qwen3_5_text", "hidden_size", (json_int_t)c->hidden,
                     "intermediate_size", (json_int_t)c->inter, "num_hidden_layers", (json_int_t)c->layers, "vocab_size",
                     (json_int_t)c->vocab, "num_attention_heads", (json_int_t)c->n_q, "num_key_value_heads", (json_int_t)c->n_kv,
                     "head_dim", (json_int_t)c->head_dim, "linear_num_key_heads", (json_int_t)c->hk, "linear_num_value_heads",
                     (json_int_t)c->hv, "linear_key_head_dim", (json_int_t)c->gdn_k_dim, "linear_value_head_dim",
                     (json_int_t)c->gdn_v_dim, "linear_conv_kernel_dim", (json_int_t)c->conv_k, "max_position_embeddings",
                     (json_int_t)c->max_ctx, "rms_norm_eps", c->eps, "tie_word_embeddings", c->tied, "hidden_act", "silu", "dtype",
                     "bfloat16", "attention_bias", 0, "attn_output_gate", 1, "mtp_num_hidden_layers", c->mtp_layers, "rope_parameters",
                     rope, "layer_types", types, "eos_token_id", eos);
}

int lk__config_text(const struct plan *p, struct lk_buf *out, struct lk_err *e)
{
    size_t len;
    const char *text = lk_artifact_text(p->a, "config.json", &len);
    json_t *root = NULL, *q = NULL;
    int rc = 0;
    if (text)
        rc = lk__json_object(&root, text, len, "config.json", e);
    else
        root = config_from_shape(p->a);
    if (rc || !root) return rc ? rc : out_of_memory(e);
    if (p->recipe) {
        json_object_del(root, "quantization_config");
        json_object_del(json_object_get(root, "text_config"), "quantization_config");
        q = quant_config(p);
        if (q) json_object_set_new(root, "quantization_config", q);
    }
    return json_into(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9), out, e);
}
