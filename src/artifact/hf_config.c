/* config.json and generation_config.json: see hf.h. Reads the numbers as the file states them, old and new spellings alike; whether they
 * make a model that laoka can run is judged by model/shape.c. What would silently change the meaning of the weights is refused here. */
#include "artifact/hf.h"
#include "artifact/json_read.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIM_MAX (1 << 24) /* no size of the family comes near; keeps every product of two below 2^48 */

static int read_dims(struct lk_config *c, const json_t *t, const char *file, struct lk_err *e)
{
    const struct { const char *key; int64_t *out; int64_t preset; } f[] = {
        {"hidden_size", &c->hidden, 0},
        {"intermediate_size", &c->inter, 0},
        {"num_hidden_layers", &c->layers, 0},
        {"vocab_size", &c->vocab, 0},
        {"num_attention_heads", &c->n_q, 0},
        {"num_key_value_heads", &c->n_kv, 0},
        {"head_dim", &c->head_dim, 256},
        {"linear_num_key_heads", &c->hk, 16},
        {"linear_num_value_heads", &c->hv, 0},
        {"linear_key_head_dim", &c->gdn_k_dim, 128},
        {"linear_value_head_dim", &c->gdn_v_dim, 128},
        {"linear_conv_kernel_dim", &c->conv_k, 4},
        {"max_position_embeddings", &c->max_ctx, 262144},
    };
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        *f[i].out = f[i].preset;
        int64_t hi = f[i].out == &c->max_ctx ? INT32_MAX : f[i].out == &c->layers ? LK_MAX_LAYERS : DIM_MAX;
        int rc = lk__json_int(t, f[i].key, 1, hi, f[i].out, file, e);
        if (rc) return rc;
        if (!*f[i].out) return lk_fail(e, LK_EINPUT, "%s: %s: expected an integer, found nothing", file, f[i].key);
    }
    c->mtp_layers = 0;
    c->eps = 1e-6;
    int64_t mtp = 0;
    int rc = lk__json_int(t, "mtp_num_hidden_layers", 0, 1, &mtp, file, e);
    c->mtp_layers = (int)mtp;
    return rc ? rc : lk__json_real(t, "rms_norm_eps", 0, 1, &c->eps, file, e);
}

static int read_layer_types(struct lk_config *c, const json_t *t, const char *file, struct lk_err *e)
{
    int64_t interval = 4;
    int rc = lk__json_int(t, "full_attention_interval", 1, LK_MAX_LAYERS, &interval, file, e);
    if (rc) return rc;
    const json_t *types = json_object_get(t, "layer_types");
    if (types && !json_is_null(types) && (int64_t)json_array_size(types) != c->layers)
        return lk_fail(e, LK_EINPUT, "%s: layer_types: expected an array of %d (num_hidden_layers), found %zu entries", file,
                       (int)c->layers, json_array_size(types));
    for (int64_t i = 0; i < c->layers; i++) {
        c->full[i] = (i + 1) % interval == 0;
        if (!json_is_array(types)) continue;
        const char *s = json_string_value(json_array_get(types, (size_t)i));
        if (!s || (strcmp(s, "full_attention") && strcmp(s, "linear_attention")))
            return lk_fail(e, LK_EINPUT, "%s: layer_types: layer %d: expected full_attention or linear_attention, found %s", file, (int)i,
                           s ? s : "no string");
        c->full[i] = s[0] == 'f';
    }
    return 0;
}

static int read_rope(struct lk_config *c, const json_t *t, const char *file, struct lk_err *e)
{
    const json_t *r = json_object_get(t, "rope_parameters"), *old = json_object_get(t, "rope_scaling");
    if (!json_is_object(r)) r = old;
    double factor = 0.25;
    c->rope_theta = 1e7;
    int rc = lk__json_real(t, "rope_theta", 1, 1e12, &c->rope_theta, file, e);
    if (!rc) rc = lk__json_real(r, "rope_theta", 1, 1e12, &c->rope_theta, file, e);
    if (!rc) rc = lk__json_real(t, "partial_rotary_factor", 0, 1, &factor, file, e);
    if (!rc) rc = lk__json_real(r, "partial_rotary_factor", 0, 1, &factor, file, e);
    if (rc) return rc;
    c->rope_dim = llround(factor * (double)c->head_dim);
    const char *type = json_string_value(json_object_get(r, "rope_type"));
    if (!type) type = json_string_value(json_object_get(r, "type"));
    if (type && strcmp(type, "default") && strcmp(type, "mrope"))
        return lk_fail(e, LK_EINPUT, "%s: rope_type: expected default, found %s (scaled positions are not supported)", file, type);
    /* without a stated section the split of the published 64 rotated dims: height and width take a third each */
    int half = (int)c->rope_dim / 2, hw = half / 3;
    c->section[0] = half - 2 * hw;
    c->section[1] = c->section[2] = hw;
    if (half == 32) c->section[0] = c->section[1] = 11, c->section[2] = 10;
    const json_t *s = json_object_get(r, "mrope_section");
    if (!s || json_is_null(s)) return 0;
    if (json_array_size(s) != 3) return lk_fail(e, LK_EINPUT, "%s: mrope_section: expected 3 integers, found %s", file, lk__json_kind(s));
    for (size_t i = 0; i < 3; i++) {
        json_int_t v = json_integer_value(json_array_get(s, i));
        if (v < 0 || v > half) return lk_fail(e, LK_EINPUT, "%s: mrope_section: expected 0 to %d, found %d", file, half, (int)v);
        c->section[i] = (int)v;
    }
    return 0;
}

/* Facts that the graph of the family takes for granted. */
static int check_fixed(const json_t *t, const char *file, struct lk_err *e)
{
    int gate = 1, bias = 0;
    const char *act = json_string_value(json_object_get(t, "hidden_act"));
    if (act && strcmp(act, "silu")) return lk_fail(e, LK_EINPUT, "%s: hidden_act: expected silu, found %s", file, act);
    int rc = lk__json_bool(t, "attn_output_gate", &gate, file, e);
    if (!rc) rc = lk__json_bool(t, "attention_bias", &bias, file, e);
    if (rc) return rc;
    if (!gate) return lk_fail(e, LK_EINPUT, "%s: attn_output_gate: expected true, found false", file);
    if (bias) return lk_fail(e, LK_EINPUT, "%s: attention_bias: expected false, found true", file);
    return 0;
}

static void eos_add(struct lk_config *c, const json_t *v)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX) return;
    int32_t id = (int32_t)json_integer_value(v);
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return;
    if (c->n_eos < LK_MAX_EOS) c->eos[c->n_eos++] = id;
}

static void eos_read(struct lk_config *c, const json_t *o)
{
    const json_t *v = json_object_get(o, "eos_token_id");
    eos_add(c, v);
    for (size_t i = 0; i < json_array_size(v); i++) eos_add(c, json_array_get(v, i));
}

static int read_quant(struct hf_quant *q, const json_t *root, const json_t *t, const char *file, struct lk_err *e)
{
    q->block_n = q->block_k = 128;
    const json_t *o = json_object_get(root, "quantization_config");
    if (!json_is_object(o)) o = json_object_get(t, "quantization_config");
    const json_t *b = json_object_get(o, "weight_block_size");
    if (json_array_size(b) == 2) {
        q->block_n = json_integer_value(json_array_get(b, 0));
        q->block_k = json_integer_value(json_array_get(b, 1));
        if (q->block_n < 1 || q->block_k < 1 || q->block_n > DIM_MAX || q->block_k > DIM_MAX)
            return lk_fail(e, LK_EINPUT, "%s: weight_block_size: expected two sizes from 1, found others", file);
    }
    const char *f = json_string_value(json_object_get(o, "checkpoint_format"));
    q->gptq_v2 = f && !strcmp(f, "gptq_v2");
    return 0;
}

static int read_config(struct lk_config *c, struct hf_quant *q, const json_t *root, const char *file, struct lk_err *e)
{
    const json_t *t = json_object_get(root, "text_config");
    if (!json_is_object(t)) t = root;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type || (strcmp(type, "qwen3_5") && strcmp(type, "qwen3_5_text")))
        return lk_fail(e, LK_EINPUT, "%s: model_type: expected qwen3_5 or qwen3_5_text, found %s", file, type ? type : "nothing");
    snprintf(c->arch, sizeof c->arch, "%s", type);
    c->norm_plus_one = 1;
    int rc = read_dims(c, t, file, e);
    if (!rc) rc = read_layer_types(c, t, file, e);
    if (!rc) rc = read_rope(c, t, file, e);
    if (!rc) rc = check_fixed(t, file, e);
    if (!rc) rc = read_quant(q, root, t, file, e);
    q->tied = -1;
    if (!rc) rc = lk__json_bool(t, "tie_word_embeddings", &q->tied, file, e);
    if (!rc) rc = lk__json_bool(root, "tie_word_embeddings", &q->tied, file, e);
    q->tied_said = q->tied >= 0;
    eos_read(c, root);
    eos_read(c, t);
    return rc;
}

int lk__hf_config(struct lk_config *c, struct hf_quant *q, const char *json, size_t len, const char *file, struct lk_err *e)
{
    json_t *root;
    int rc = lk__json_object(&root, json, len, file, e);
    if (rc) return rc;
    rc = read_config(c, q, root, file, e);
    json_decref(root);
    return rc;
}

int lk__hf_generation(struct lk_config *c, struct lk_gen_defaults *g, const char *json, size_t len, const char *file,
                      struct lk_err *e)
{
    json_t *o;
    int rc = lk__json_object(&o, json, len, file, e);
    if (rc) return rc;
    struct lk_config own = {0}; /* this file's ids come first, config.json's after them */
    eos_read(&own, o);
    for (int i = 0; i < c->n_eos && own.n_eos < LK_MAX_EOS; i++) {
        json_t *v = json_integer(c->eos[i]);
        eos_add(&own, v);
        json_decref(v);
    }
    c->n_eos = own.n_eos;
    memcpy(c->eos, own.eos, sizeof c->eos);
    int64_t top_k = 0;
    *g = (struct lk_gen_defaults){.have = 1, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    rc = lk__json_bool(o, "do_sample", &g->do_sample, file, e);
    if (!rc) rc = lk__json_int(o, "top_k", 0, INT32_MAX, &top_k, file, e);
    if (!rc) rc = lk__json_real(o, "temperature", 0, 100, &g->temperature, file, e);
    if (!rc) rc = lk__json_real(o, "top_p", 0, 1, &g->top_p, file, e);
    if (!rc) rc = lk__json_real(o, "min_p", 0, 1, &g->min_p, file, e);
    if (!rc) rc = lk__json_real(o, "presence_penalty", -2, 2, &g->presence_penalty, file, e);
    if (!rc) rc = lk__json_real(o, "repetition_penalty", 0, 100, &g->repetition_penalty, file, e);
    g->top_k = (int)top_k;
    json_decref(o);
    return rc;
}
