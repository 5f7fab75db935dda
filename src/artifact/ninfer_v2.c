/* Container 2: identity -> profile, sizes of the model from the shapes of its tensors, and the whole inventory of the profile, object by object.
 * The sizes are not pinned to 27B: a small file of the same profile is the same thing (tests are made of them). dflash2/ (another draft model)
 * and vision/ are skipped; every other object must be one that the profile has. */
#include "artifact/ninfer.h"

#include "artifact/json_read.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum kind { GROUPWISE, NVFP4_36, NVFP4_38 };

struct nf_profile {
    const char *model, *weights;
    enum kind kind;
    enum nf_fmt vocab; /* embedding and head */
};
static const struct nf_profile profiles[] = {
    {"qwen3.6-27b", "groupwise-int", GROUPWISE, NF_Q6},
    {"qwen3.8-27b", "groupwise-int", GROUPWISE, NF_W8},
    {"qwen3.6-27b", "nvfp4", NVFP4_36, NF_W8},
    {"qwen3.8-27b", "nvfp4", NVFP4_38, NF_FP8},
};

/* ---- sizes ---- */

static const struct nf_object *need(struct nf_file *f, const char *name, int n_dims)
{
    const struct nf_object *o = lk__nf_find(f, name);
    if (!o || o->n_dims != n_dims || o->fmt == NF_RESOURCE) {
        lk__nf_fail(f, name, "expected a tensor of %d dimensions, found %s", n_dims, o ? "another" : "nothing");
        return NULL;
    }
    return o;
}

static int layer_kinds(struct nf_file *f, int *first_full, int *first_gdn)
{
    struct lk_config *c = &f->a->cfg;
    char name[96];
    *first_full = *first_gdn = -1;
    for (c->layers = 0; c->layers < LK_MAX_LAYERS; c->layers++) {
        int i = (int)c->layers;
        snprintf(name, sizeof name, "text/layers/%d/input_norm", i);
        if (!lk__nf_find(f, name)) break;
        snprintf(name, sizeof name, "text/layers/%d/attention/output", i);
        c->full[i] = lk__nf_find(f, name) != NULL;
        int *first = c->full[i] ? first_full : first_gdn;
        if (*first < 0) *first = i;
    }
    if (*first_full < 0 || *first_gdn < 0)
        return lk__nf_fail(f, "text/layers", "expected attention and delta net layers, found %d layers of one kind or none", (int)c->layers);
    return 0;
}

static int read_sizes(struct nf_file *f)
{
    struct lk_config *c = &f->a->cfg;
    int full, gdn, rc = layer_kinds(f, &full, &gdn);
    char name[6][96];
    if (rc) return rc;
    snprintf(name[0], sizeof *name, "text/layers/%d/attention/output", full);
    snprintf(name[1], sizeof *name, "text/layers/%d/attention/query_key%s", full, f->profile->kind == GROUPWISE ? "" : "_gate_value");
    snprintf(name[2], sizeof *name, "text/layers/%d/mlp/down", full);
    snprintf(name[3], sizeof *name, "text/layers/%d/gdn/a_log", gdn);
    snprintf(name[4], sizeof *name, "text/layers/%d/gdn/convolution", gdn);
    const struct nf_object *norm = need(f, "text/final_norm", 1), *embed = norm ? need(f, "text/token_embedding", 2) : NULL;
    const struct nf_object *out = embed ? need(f, name[0], 2) : NULL, *qk = out ? need(f, name[1], 2) : NULL, *down = qk ? need(f, name[2], 2) : NULL;
    const struct nf_object *a = down ? need(f, name[3], 1) : NULL, *conv = a ? need(f, name[4], 2) : NULL;
    if (!conv) return f->e->code;
    c->hidden = norm->dims[0], c->vocab = embed->dims[0], c->inter = down->dims[1], c->hv = a->dims[0];
    c->head_dim = 256, c->gdn_k_dim = c->gdn_v_dim = 128, c->rope_dim = 64, c->conv_k = conv->dims[0];
    c->n_q = out->dims[1] / 256;
    c->n_kv = qk->dims[0] / 256 / (f->profile->kind == GROUPWISE ? 1 : 2) - c->n_q;
    c->hk = (conv->dims[1] - c->hv * 128) / 256;
    if (c->n_q < 1 || c->n_kv < 1) return lk__nf_fail(f, name[1], "shape: expected heads of 256, found [%lld, %lld]", (long long)qk->dims[0], (long long)qk->dims[1]);
    if (c->hk < 1) return lk__nf_fail(f, name[4], "shape: expected channels of %lld value heads and more, found %lld", (long long)c->hv, (long long)conv->dims[1]);
    c->eps = 1e-6, c->rope_theta = 1e7, c->max_ctx = 262144; /* constants of the family; the file does not state them */
    c->section[0] = c->section[1] = 11, c->section[2] = 10;
    c->norm_plus_one = 1;
    c->mtp_layers = lk__nf_find(f, "mtp/input_projection") != NULL;
    snprintf(c->arch, sizeof c->arch, "qwen3_5");
    return 0;
}

/* ---- inventory ---- */

static int want(struct nf_file *f, const char *prefix, const char *suffix, enum nf_fmt fmt, int n_dims, int64_t d0, int64_t d1)
{
    char name[128];
    const int64_t d[2] = {d0, d1};
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    struct nf_object *o = lk__nf_find(f, name);
    if (!o) return lk__nf_fail(f, name, "expected in the file, found nothing");
    o->used = 1;
    if (o->fmt != fmt) return lk__nf_fail(f, name, "format: expected %s, found %s", lk__nf_fmt_name(fmt), lk__nf_fmt_name(o->fmt));
    for (int i = 0; i < n_dims || i < o->n_dims; i++)
        if (o->n_dims != n_dims || o->dims[i] != d[i])
            return lk__nf_fail(f, name, "shape: expected [%lld%s%.0lld] like the rest of the file, found another", (long long)d0, n_dims > 1 ? ", " : "", (long long)d1);
    return 0;
}

/* A linear that may be NVFP4, and then has the activation's divisor beside it (not used: activations are not rounded to 4 bits). */
static int want_linear(struct nf_file *f, const char *prefix, const char *suffix, const char *divisor, enum nf_fmt fmt, int64_t n, int64_t k)
{
    char name[128];
    float x;
    int rc = want(f, prefix, suffix, fmt, 2, n, k);
    if (rc || fmt != NF_NVFP4) return rc;
    snprintf(name, sizeof name, "%s/input_scale_divisor", divisor);
    rc = want(f, prefix, name, NF_FP32, 0, 0, 0);
    if (rc) return rc;
    snprintf(name, sizeof name, "%s%s/input_scale_divisor", prefix, divisor);
    x = lk_f32_from_bits(lk_get32(lk__nf_find(f, name)->data));
    return isfinite(x) && x > 0 ? 0 : lk__nf_fail(f, name, "value: expected a positive number, found %g", (double)x);
}

static int want_tail(struct nf_file *f, const char *p, int i)
{
    const struct lk_config *c = &f->a->cfg;
    int rc = want(f, p, "post_attention_norm", NF_BF16, 1, c->hidden, 0);
    enum nf_fmt up = NF_Q4, down = NF_Q5;
    if (f->profile->kind == NVFP4_36) up = down = NF_NVFP4;
    if (f->profile->kind == NVFP4_38) up = down = i < c->layers * 7 / 8 ? NF_NVFP4 : NF_FP8; /* the last 8 of 64 */
    if (!rc) rc = want_linear(f, p, "mlp/gate_up", "mlp/gate_up_projection", up, 2 * c->inter, c->hidden);
    return rc ? rc : want_linear(f, p, "mlp/down", "mlp/down_projection", down, c->hidden, c->inter);
}

/* n: how many attention layers came before. */
static int want_attention(struct nf_file *f, const char *p, int n)
{
    const struct lk_config *c = &f->a->cfg;
    int64_t q = c->n_q * 256, kv = c->n_kv * 256;
    enum kind kind = f->profile->kind;
    int rc = want(f, p, "query_norm", NF_BF16, 1, 256, 0);
    if (!rc) rc = want(f, p, "key_norm", NF_BF16, 1, 256, 0);
    if (!rc && kind == GROUPWISE) rc = want(f, p, "query_key", NF_Q4, 2, q + kv, c->hidden);
    if (!rc && kind == GROUPWISE) rc = want(f, p, "gate_value", NF_Q5, 2, q + kv, c->hidden);
    if (!rc && kind != GROUPWISE)
        rc = want_linear(f, p, "query_key_gate_value", "input_projection", kind == NVFP4_38 ? NF_FP8 : n < 6 ? NF_BF16 : NF_NVFP4, 2 * (q + kv), c->hidden);
    return rc ? rc : want_linear(f, p, "output", "output_projection", kind == GROUPWISE ? NF_Q5 : kind == NVFP4_38 ? NF_FP8 : n < 2 ? NF_BF16 : NF_NVFP4, c->hidden, q);
}

static int want_gdn(struct nf_file *f, const char *p, int i)
{
    const struct lk_config *c = &f->a->cfg;
    int64_t qk = 2 * c->hk * 128, v = c->hv * 128, h = c->hidden;
    enum kind kind = f->profile->kind;
    int rc = want(f, p, "a_log", NF_FP32, 1, c->hv, 0);
    if (!rc) rc = want(f, p, "dt_bias", NF_FP32, 1, c->hv, 0);
    if (!rc) rc = want(f, p, "convolution", NF_BF16, 2, c->conv_k, qk + v);
    if (!rc) rc = want(f, p, "norm", NF_BF16, 1, 128, 0);
    if (!rc && kind == NVFP4_38) rc = want(f, p, "a_b_projection", NF_BF16, 2, 2 * c->hv, h);
    if (!rc && kind != NVFP4_38) rc = want(f, p, "a_projection", NF_BF16, 2, c->hv, h);
    if (!rc && kind != NVFP4_38) rc = want(f, p, "b_projection", NF_BF16, 2, c->hv, h);
    if (!rc && kind == GROUPWISE) rc = want(f, p, "query_key", NF_Q4, 2, qk, h);
    if (!rc && kind == GROUPWISE) rc = want(f, p, "value_z", NF_Q5, 2, 2 * v, h);
    if (!rc && kind != GROUPWISE) rc = want_linear(f, p, "query_key_value_z", "input_projection", kind == NVFP4_38 ? NF_FP8 : NF_NVFP4, qk + 2 * v, h);
    return rc ? rc : want_linear(f, p, "output", "output_projection", kind == GROUPWISE ? NF_Q5 : kind == NVFP4_38 ? NF_FP8 : i == 4 ? NF_BF16 : NF_NVFP4, h, v);
}

static int want_layers(struct nf_file *f)
{
    const struct lk_config *c = &f->a->cfg;
    char p[64];
    int rc = 0, n_full = 0;
    for (int i = 0; i < c->layers && !rc; i++) {
        snprintf(p, sizeof p, "text/layers/%d/", i);
        rc = want(f, p, "input_norm", NF_BF16, 1, c->hidden, 0);
        if (!rc) rc = want_tail(f, p, i);
        snprintf(p, sizeof p, "text/layers/%d/%s/", i, c->full[i] ? "attention" : "gdn");
        if (!rc) rc = c->full[i] ? want_attention(f, p, n_full) : want_gdn(f, p, i);
        n_full += c->full[i];
    }
    return rc;
}

static int want_mtp(struct nf_file *f)
{
    const struct lk_config *c = &f->a->cfg;
    int64_t h = c->hidden, q = c->n_q * 256, kv = c->n_kv * 256;
    const struct { const char *name; int64_t n, k; } linears[] = {
        {"input_projection", h, 2 * h}, {"layer/attention/query_key_gate_value", 2 * (q + kv), h}, {"layer/attention/output", h, q},
        {"layer/mlp/gate_up", 2 * c->inter, h}, {"layer/mlp/down", h, c->inter}};
    const struct { const char *name; int64_t n; } norms[] = {
        {"embedding_norm", h}, {"hidden_norm", h}, {"final_norm", h}, {"layer/input_norm", h}, {"layer/post_attention_norm", h},
        {"layer/attention/query_norm", 256}, {"layer/attention/key_norm", 256}};
    int rc = 0;
    for (size_t i = 0; i < sizeof linears / sizeof *linears && !rc; i++) rc = want(f, "mtp/", linears[i].name, NF_W8, 2, linears[i].n, linears[i].k);
    for (size_t i = 0; i < sizeof norms / sizeof *norms && !rc; i++) rc = want(f, "mtp/", norms[i].name, NF_BF16, 1, norms[i].n, 0);
    return rc;
}

static int inventory(struct nf_file *f)
{
    const struct lk_config *c = &f->a->cfg;
    const struct nf_object *ids = lk__nf_find(f, "text/draft_head_token_ids");
    int64_t rows = ids && ids->n_dims == 1 ? ids->dims[0] : 131072;
    int rc = want(f, "text/", "token_embedding", f->profile->vocab, 2, c->vocab, c->hidden);
    if (!rc) rc = want(f, "text/", "final_norm", NF_BF16, 1, c->hidden, 0);
    if (!rc) rc = want(f, "text/", "output_head", f->profile->vocab, 2, c->vocab, c->hidden);
    if (!rc) rc = want(f, "text/", "draft_head_token_ids", NF_I32, 1, rows, 0);
    if (!rc) rc = want(f, "text/", "draft_head", NF_Q4, 2, rows, c->hidden);
    if (!rc) rc = want_layers(f);
    if (!rc) rc = want_mtp(f);
    for (size_t i = 0; i < f->n_objects && !rc; i++) {
        const struct nf_object *o = &f->objects[i];
        int skipped = !strncmp(o->name, "vision/", 7) || !strncmp(o->name, "dflash2/", 8) || (o->fmt == NF_RESOURCE && !strncmp(o->name, "frontend/", 9));
        if (!o->used && !skipped) rc = lk__nf_fail(f, o->name, "found an object that the profile %s/%s does not have", f->profile->model, f->profile->weights);
    }
    return rc;
}

int lk__nf2_read(struct nf_file *f, const json_t *root)
{
    static const char *const top[] = {"identity", "objects"}, *const id[] = {"model_id", "weights_id"};
    const json_t *who = json_object_get(root, "identity");
    int rc = lk__nf_members(f, root, "directory", top, 2, NULL, 0);
    if (!rc) rc = lk__nf_members(f, who, "identity", id, 2, NULL, 0);
    if (rc) return rc;
    const char *model = json_string_value(json_object_get(who, "model_id")), *weights = json_string_value(json_object_get(who, "weights_id"));
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles && model && weights; i++)
        if (!strcmp(model, profiles[i].model) && !strcmp(weights, profiles[i].weights)) f->profile = &profiles[i];
    if (!f->profile)
        return lk__nf_fail(f, "identity", "expected qwen3.6-27b or qwen3.8-27b with groupwise-int or nvfp4, found %.60s with %.60s", model ? model : "no string", weights ? weights : "no string");
    rc = lk__nf_objects(f, json_object_get(root, "objects"));
    if (!rc) rc = read_sizes(f);
    return rc ? rc : inventory(f);
}

/* ---- parameters ---- */

/* Objects that hold several parameters, rows in this order. */
static const struct { const char *object, *members[4]; } fused[] = {
    {"attention/query_key_gate_value", {"attention/query", "attention/key", "attention/gate", "attention/value"}},
    {"attention/query_key", {"attention/query", "attention/key"}},
    {"attention/gate_value", {"attention/gate", "attention/value"}},
    {"gdn/query_key_value_z", {"gdn/query", "gdn/key", "gdn/value", "gdn/z"}},
    {"gdn/query_key", {"gdn/query", "gdn/key"}},
    {"gdn/value_z", {"gdn/value", "gdn/z"}},
    {"gdn/a_b_projection", {"gdn/a_projection", "gdn/b_projection"}},
    {"mlp/gate_up", {"mlp/gate", "mlp/up"}},
};

static int64_t member_rows(const struct lk_config *c, const char *m)
{
    if (!strncmp(m, "mlp/", 4)) return c->inter;
    if (!strncmp(m, "attention/", 10)) return (m[10] == 'q' || m[10] == 'g' ? c->n_q : c->n_kv) * 256;
    m += 4;
    return !strcmp(m, "query") || !strcmp(m, "key") ? c->hk * 128 : m[0] == 'v' || m[0] == 'z' ? c->hv * 128 : c->hv;
}

int lk__nf2_piece(struct nf_file *f, const char *param, struct nf_piece *out)
{
    char name[160];
    const char *layer = strstr(param, "layers/0/"), *suffix;
    if (!strncmp(param, "mtp/layers/0/", 13))
        snprintf(name, sizeof name, "mtp/layer/%s", layer + 9);
    else if (!strncmp(param, "proposal/", 9))
        snprintf(name, sizeof name, "text/draft_head%s", param[9] == 'h' ? "" : "_token_ids");
    else
        snprintf(name, sizeof name, "%s", param);
    *out = (struct nf_piece){.o = lk__nf_find(f, name)};
    if (out->o) {
        out->rows = out->o->n_dims ? out->o->dims[0] : 1;
        return 0;
    }
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        int64_t row = 0;
        for (int m = 0; m < 4 && fused[i].members[m]; row += member_rows(&f->a->cfg, fused[i].members[m++])) {
            suffix = strstr(name, fused[i].members[m]);
            if (!suffix || strcmp(suffix, fused[i].members[m])) continue;
            char whole[224];
            snprintf(whole, sizeof whole, "%.*s%s", (int)(suffix - name), name, fused[i].object);
            struct nf_object *o = lk__nf_find(f, whole);
            if (o) *out = (struct nf_piece){o, row, member_rows(&f->a->cfg, fused[i].members[m])};
        }
        if (out->o) return 0;
    }
    return 0;
}
