/* Raw tensors of a Hugging Face checkpoint -> logical tensors (see hf.h).
 *
 * Names: "model.", "language_model." in front are dropped in any order; what then begins with layers, embed_tokens, norm, lm_head or mtp is
 * the text model; visual is ignored and said in one line. The last component of a name says which part of its module it is.
 * Formats: decided for each module by the parts that are present, never by config.json's lists, which name modules that do not exist. */
#include "artifact/hf.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

static const struct { const char *suffix; enum hf_part part; } suffixes[] = {
    {"weight", HF_WEIGHT},
    {"weight_scale_inv", HF_SCALE_INV},
    {"weight_scale", HF_SCALE},
    {"weight_scale_2", HF_SCALE_2},
    {"weight_packed", HF_PACKED},
    {"weight_global_scale", HF_GLOBAL},
    {"weight_shape", HF_SHAPE},
    {"weight_zero_point", HF_ZERO},
    {"weight_g_idx", HF_G_IDX},
    {"qweight", HF_QWEIGHT},
    {"qzeros", HF_QZEROS},
    {"scales", HF_SCALES},
    {"g_idx", HF_GPTQ_G_IDX},
    {"bias", HF_BIAS},
    {"input_scale", HF_IGNORED}, /* activation and KV scales: laoka keeps both in wider types */
    {"input_global_scale", HF_IGNORED},
    {"k_scale", HF_IGNORED},
    {"v_scale", HF_IGNORED},
    {"q_scale", HF_IGNORED},
    {"output_scale", HF_IGNORED},
};

enum place { PLACE_TEXT, PLACE_VISION, PLACE_UNKNOWN };

static int starts(const char **s, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*s, prefix, n)) return 0;
    *s += n;
    return 1;
}

static enum place name_place(const char **name)
{
    static const char *const text[] = {"layers.", "embed_tokens.", "norm.", "lm_head.", "mtp."};
    while (starts(name, "model.") || starts(name, "language_model.")) {}
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (!strncmp(*name, text[i], strlen(text[i]))) return PLACE_TEXT;
    const char *s = *name;
    return starts(&s, "visual.") || starts(&s, "vision_tower.") || starts(&s, "vision_model.") ? PLACE_VISION : PLACE_UNKNOWN;
}

int lk__hf_mismatch(const struct raw_tensor *r, struct lk_err *e, const char *want, ...)
{
    char text[256], shape[160];
    va_list ap;
    va_start(ap, want);
    vsnprintf(text, sizeof text, want, ap);
    va_end(ap);
    return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected %s, found %s %s", r->file, r->name, text, lk_dtype_name(r->dtype),
                   lk__raw_shape(r, shape, sizeof shape));
}

static int is_scale_type(enum lk_dtype t)
{
    return t == LK_DT_F32 || t == LK_DT_BF16 || t == LK_DT_F16;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int is_matrix(const struct raw_tensor *r)
{
    return r->n_dims == 2 && r->dims[0] > 0 && r->dims[1] > 0;
}

/* n is the first dimension and k the rest of a plain tensor. */
static int bind_plain(const struct raw_tensor *r, struct lk_tensor *t, struct lk_err *e)
{
    if (r->n_dims > 4 || r->bytes == 0) return lk__hf_mismatch(r, e, "1 to 4 sizes and at least one element");
    t->n_dims = r->n_dims ? r->n_dims : 1;
    t->dims[0] = 1;
    memcpy(t->dims, r->dims, (size_t)r->n_dims * sizeof *r->dims);
    t->w.n = r->n_dims >= 2 ? r->dims[0] : 1;
    t->w.k = lk__raw_count(r) / t->w.n;
    t->w.fmt = r->dtype == LK_DT_F32 ? LK_FMT_F32 : r->dtype == LK_DT_F16 ? LK_FMT_F16 : LK_FMT_BF16;
    t->w.data = r->data;
    return 0;
}

static int bind_fp8(const struct hf_module *m, const struct hf_quant *q, struct lk_tensor *t, struct lk_err *e)
{
    const struct raw_tensor *r = m->part[HF_WEIGHT], *s = m->part[HF_SCALE_INV] ? m->part[HF_SCALE_INV] : m->part[HF_SCALE];
    int64_t n = r->dims[0], k = r->dims[1];
    if (!s) return lk__hf_mismatch(r, e, "a weight_scale or weight_scale_inv beside it");
    if (!is_scale_type(s->dtype)) return lk__hf_mismatch(s, e, "a scale in F32, BF16 or F16");
    t->w = (struct lk_weight){.fmt = LK_FMT_FP8, .n = n, .k = k, .data = r->data, .scale = s->data, .scale_dtype = s->dtype,
                              .global = 1, .group = k};
    int64_t count = lk__raw_count(s);
    if (count == 1) {
        t->w.block_n = n;
        t->w.block_k = k;
    } else if (count == n && s->dims[0] == n) {
        t->w.block_n = 1;
        t->w.block_k = k;
    } else if (s->n_dims == 2 && s->dims[0] == ceil_div(n, q->block_n) && s->dims[1] == ceil_div(k, q->block_k)) {
        t->w.block_n = q->block_n;
        t->w.block_k = q->block_k;
        t->w.group = q->block_k;
    } else {
        return lk__hf_mismatch(s, e, "[1], [%" PRId64 ", 1] or [%" PRId64 ", %" PRId64 "] for a weight of [%" PRId64 ", %" PRId64 "]", n,
                               ceil_div(n, q->block_n), ceil_div(k, q->block_k), n, k);
    }
    return 0;
}

/* Both conventions of NVFP4; they differ in the sense of the global scale. */
static int bind_nvfp4(const struct hf_module *m, struct lk_tensor *t, struct lk_err *e)
{
    int ct = m->part[HF_PACKED] != NULL;
    const struct raw_tensor *r = m->part[ct ? HF_PACKED : HF_WEIGHT], *s = m->part[HF_SCALE];
    const struct raw_tensor *g = m->part[ct ? HF_GLOBAL : HF_SCALE_2];
    if (!s || !g) return lk__hf_mismatch(r, e, "weight_scale and %s beside it", ct ? "weight_global_scale" : "weight_scale_2");
    int64_t n = r->dims[0], k = r->dims[1] * 2;
    if (k % 16) return lk__hf_mismatch(r, e, "a multiple of 8 bytes a row");
    if (s->dtype != LK_DT_F8E4M3 || s->n_dims != 2 || s->dims[0] != n || s->dims[1] != k / 16)
        return lk__hf_mismatch(s, e, "F8_E4M3 [%" PRId64 ", %" PRId64 "]", n, k / 16);
    if (g->dtype != LK_DT_F32 || lk__raw_count(g) != 1) return lk__hf_mismatch(g, e, "F32 with one element");
    float global = lk_dtype_get(LK_DT_F32, g->data, 0);
    if (!isfinite(global) || global <= 0)
        return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected a finite scale above 0, found %g", g->file, g->name, (double)global);
    t->w = (struct lk_weight){.fmt = LK_FMT_NVFP4, .n = n, .k = k, .data = r->data, .scale = s->data, .scale_dtype = LK_DT_F8E4M3,
                              .group = 16, .global = global, .global_div = (uint8_t)ct};
    return 0;
}

static int bind_int8(const struct hf_module *m, struct lk_tensor *t, struct lk_err *e)
{
    const struct raw_tensor *r = m->part[HF_WEIGHT], *s = m->part[HF_SCALE];
    if (!s) return lk__hf_mismatch(r, e, "a weight_scale beside it");
    if (m->part[HF_ZERO]) return lk__hf_mismatch(m->part[HF_ZERO], e, "no zero point (symmetric INT8)");
    int64_t n = r->dims[0], k = r->dims[1], groups = lk__raw_count(s) / n;
    if (!is_scale_type(s->dtype) || s->dims[0] != n || groups < 1 || lk__raw_count(s) != n * groups || k % groups)
        return lk__hf_mismatch(s, e, "F32, BF16 or F16 scales [%" PRId64 ", 1]", n);
    t->w = (struct lk_weight){.fmt = LK_FMT_I8, .n = n, .k = k, .data = r->data, .scale = s->data, .scale_dtype = s->dtype,
                              .group = k / groups, .global = 1};
    return 0;
}

static int bind_format(struct lk_artifact *a, const struct hf_module *m, const struct hf_quant *q, struct lk_tensor *t,
                       struct lk_err *e)
{
    const struct raw_tensor *r = m->part[HF_WEIGHT], *p = m->part[HF_PACKED];
    if (p && is_matrix(p) && p->dtype == LK_DT_U8) return bind_nvfp4(m, t, e);
    if (p || m->part[HF_QWEIGHT]) return lk__hf_packed(a, m, q, t, e);
    switch (r->dtype) {
    case LK_DT_F32:
    case LK_DT_F16:
    case LK_DT_BF16: return bind_plain(r, t, e);
    default: break;
    }
    if (!is_matrix(r)) return lk__hf_mismatch(r, e, "a matrix, or BF16, F16 or F32");
    switch (r->dtype) {
    case LK_DT_F8E4M3: return bind_fp8(m, q, t, e);
    case LK_DT_U8: return bind_nvfp4(m, t, e);
    case LK_DT_I8: return bind_int8(m, t, e);
    default: return lk__hf_mismatch(r, e, "BF16, F16, F32, F8_E4M3, I8 or packed U8");
    }
}

/* Some quantisers write a bias of zeros where the model has none. */
static int check_bias(const struct raw_tensor *b, struct lk_err *e)
{
    for (int64_t i = 0; b && i < lk__raw_count(b); i++)
        if (lk_dtype_get(b->dtype, b->data, i) != 0) return lk__hf_mismatch(b, e, "no bias, or zeros");
    return 0;
}

static int module_bind(struct lk_artifact *a, const struct hf_module *m, const struct hf_quant *q, struct lk_err *e)
{
    const struct raw_tensor *r = NULL;
    const enum hf_part lead[] = {HF_WEIGHT, HF_PACKED, HF_QWEIGHT};
    for (int i = 0; i < 3 && !r; i++) r = m->part[lead[i]];
    for (int i = 0; i < HF_IGNORED && !r; i++)
        if (m->part[i]) return lk__hf_mismatch(m->part[i], e, "a weight beside it");
    if (!r) return 0; /* only ignored parts: KV scales of self_attn */
    struct lk_tensor t = {.name = m->name, .stored = r->name, .file = r->file, .w = {.global = 1}};
    int rc = bind_format(a, m, q, &t, e);
    if (!rc) rc = check_bias(m->part[HF_BIAS], e);
    if (rc) return rc;
    if (!t.n_dims) {
        t.n_dims = 2;
        t.dims[0] = t.w.n;
        t.dims[1] = t.w.k;
    }
    t.bytes = lk_weight_bytes(&t.w);
    return lk__artifact_add(a, &t, e);
}

/* Puts raw tensor r into its module, made on first sight. */
static int module_put(struct lk_artifact *a, struct hf_module **v, size_t *n, size_t *cap, struct name_map *names,
                      const struct raw_tensor *r, const char *logical, struct lk_err *e)
{
    const char *dot = strrchr(logical, '.');
    enum hf_part part = HF_WEIGHT; /* A_log, dt_bias: a name of its own */
    size_t len = strlen(logical);
    for (size_t i = 0; dot && i < sizeof suffixes / sizeof *suffixes; i++)
        if (!strcmp(dot + 1, suffixes[i].suffix)) {
            part = suffixes[i].part;
            len = (size_t)(dot - logical);
        }
    if (*n == *cap) {
        struct hf_module *p = lk_reallocarray(*v, *cap ? *cap * 2 : 256, sizeof *p);
        if (!p) return lk_fail(e, LK_ENOMEM, "%s: no memory for the tensor directory", a->path);
        *v = p;
        *cap = *cap ? *cap * 2 : 256;
    }
    char *name = lk_arena_strndup(&a->mem, logical, len);
    uint32_t i = (uint32_t)*n;
    int rc = name ? lk__names_put(names, name, &i) : LK_ENOMEM;
    if (rc < 0) return lk_fail(e, LK_ENOMEM, "%s: no memory for the tensor directory", a->path);
    if (!rc) (*v)[(*n)++] = (struct hf_module){.name = name};
    struct hf_module *m = &(*v)[i];
    if (m->part[part] && part != HF_IGNORED)
        return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected one tensor for %s, found also %s in %s", r->file, r->name, name,
                       m->part[part]->name, m->part[part]->file);
    m->part[part] = r;
    return 0;
}

/* The heads: tied when there is none of its own, unless the config says otherwise. */
static int bind_heads(struct lk_artifact *a, const struct hf_quant *q, struct lk_err *e)
{
    a->cfg.tied = !lk_artifact_find(a, "lm_head");
    if (a->cfg.tied && q->tied_said && !q->tied)
        return lk_fail(e, LK_EINPUT, "%s: tensor lm_head.weight: expected in the file (tie_word_embeddings is false), found nothing", a->path);
    a->cfg.mtp_layers = lk_artifact_find(a, "mtp.fc") != NULL;
    return 0;
}

int lk__hf_bind(struct lk_artifact *a, const struct raw_table *t, const struct hf_quant *q, struct lk_err *e)
{
    struct hf_module *v = NULL;
    size_t n = 0, cap = 0, vision = 0, unknown = 0, vision_bytes = 0;
    struct name_map names = {0};
    const char *first_unknown = NULL;
    int rc = 0;
    for (size_t i = 0; i < t->n && !rc; i++) {
        const char *name = t->v[i].name;
        enum place p = name_place(&name);
        vision += p == PLACE_VISION;
        vision_bytes += p == PLACE_VISION ? t->v[i].bytes : 0;
        if (p == PLACE_UNKNOWN && !unknown++) first_unknown = t->v[i].name;
        if (p == PLACE_TEXT) rc = module_put(a, &v, &n, &cap, &names, &t->v[i], name, e);
    }
    for (size_t i = 0; i < n && !rc; i++) rc = module_bind(a, &v[i], q, e);
    lk_free(v);
    lk__names_free(&names);
    if (!rc) rc = bind_heads(a, q, e);
    if (rc) return rc;
    a->cfg.has_vision = vision > 0;
    if (vision)
        lk_log_info("%s: its vision tower (%zu tensors, %.0f MB) is not used yet", a->path, vision, (double)vision_bytes / 1e6);
    if (unknown) lk_log_warn("%s: %zu tensors have no place in the model and are ignored, the first is %s", a->path, unknown, first_unknown);
    return 0;
}
