/* Plan of a conversion: see convert_plan.h. A recipe is a list of patterns over logical names; the first that fits decides. */
#include "artifact/convert_plan.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rule {
    const char *pattern; /* fnmatch over the logical name */
    enum scheme scheme;
};
struct recipe {
    const char *name;
    struct rule rules[6]; /* ends with a NULL pattern; what no rule names becomes BF16 */
};

#define HEADS(s) {"embed_tokens", s}, {"lm_head", s}
/* in_proj_a and in_proj_b stay BF16 (their few rows steer the state's decay), mtp.fc too: no published quantiser touches them. */
static const struct recipe recipes[] = {
    {"bf16", {{NULL, SCHEME_BF16}}},
    {"fp8", {HEADS(SCHEME_FP8), {"*layers.*_proj*", SCHEME_FP8}, {NULL, SCHEME_BF16}}},
    {"w8", {HEADS(SCHEME_I8), {"*layers.*_proj*", SCHEME_I8}, {NULL, SCHEME_BF16}}},
    /* The MTP layer is all NVFP4: its errors cost drafts, never an answer, and it is read once a draft. */
    {"nvfp4", {HEADS(SCHEME_FP8), {"mtp.layers.*_proj", SCHEME_NVFP4}, {"*layers.*.mlp.*_proj", SCHEME_NVFP4}, {"*layers.*_proj*", SCHEME_FP8}, {NULL, SCHEME_BF16}}},
    {"nvfp4-all", {HEADS(SCHEME_FP8), {"*layers.*_proj*", SCHEME_NVFP4}, {NULL, SCHEME_BF16}}},
    {"q4", {HEADS(SCHEME_FP8), {"*layers.*_proj*", SCHEME_Q4}, {NULL, SCHEME_BF16}}},
};

const char *lk_convert_recipes(void)
{
    return "bf16, fp8, w8, nvfp4, nvfp4-all, q4";
}

static int has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static enum scheme recipe_scheme(const struct recipe *r, const struct lk_tensor *t)
{
    if (t->n_dims != 2 || !strncmp(t->name, "visual.", 7) || has_suffix(t->name, ".in_proj_a") || has_suffix(t->name, ".in_proj_b"))
        return SCHEME_BF16;
    for (const struct rule *u = r->rules; u->pattern; u++)
        if (!fnmatch(u->pattern, t->name, 0)) {
            if (u->scheme == SCHEME_NVFP4 && t->w.k % 16) return SCHEME_FP8;
            if (u->scheme == SCHEME_Q4 && t->w.k % Q4_GROUP) return SCHEME_FP8;
            return u->scheme;
        }
    return SCHEME_BF16;
}

/* 1 when the stored bytes already are what the scheme would write. */
static int is_stored_as(const struct lk_tensor *t, enum scheme s)
{
    const struct lk_weight *w = &t->w;
    switch (s) {
    case SCHEME_BF16: return w->fmt == LK_FMT_BF16;
    case SCHEME_F32: return w->fmt == LK_FMT_F32;
    case SCHEME_FP8: return w->fmt == LK_FMT_FP8 && w->block_n == 1;
    case SCHEME_I8: return w->fmt == LK_FMT_I8 && w->group == w->k;
    case SCHEME_NVFP4: return w->fmt == LK_FMT_NVFP4 && w->global_div;
    case SCHEME_Q4: return w->fmt == LK_FMT_Q4 && w->group == Q4_GROUP;
    default: return 0;
    }
}

/* Sources whose values need lk__source_row cannot be copied byte for byte where it changes them. */
static int is_transformed(const struct lk_artifact *a, const struct lk_tensor *t)
{
    const struct lk_config *c = lk_artifact_config(a);
    if (has_suffix(t->name, "norm") && !c->norm_plus_one && !has_suffix(t->name, "linear_attn.norm")) return 1;
    if (has_suffix(t->name, ".A_log") && c->a_is_coef) return 1;
    return c->gdn_tiled && strstr(t->name, ".linear_attn.") && !has_suffix(t->name, "linear_attn.norm");
}

/* The name in the output without its last component: the source's own for Hugging Face files, the flat form for others. */
static const char *module_name(struct plan *p, const struct lk_tensor *t, char *buf, size_t cap)
{
    const char *at = strstr(t->stored, t->name);
    if (at && (at == t->stored || at[-1] == '.') && (at[strlen(t->name)] == '.' || !at[strlen(t->name)])) {
        snprintf(buf, cap, "%.*s%s", (int)(at - t->stored), t->stored, t->name);
        return buf;
    }
    int bare = !strncmp(t->name, "mtp.", 4) || !strcmp(t->name, "lm_head") || !strncmp(t->name, "visual.", 7);
    snprintf(buf, cap, "%s%s", bare ? "" : "model.", t->name);
    return buf;
}

static int out_add(struct plan *p, struct job *j, const char *module, const char *suffix, enum lk_dtype dtype, int n_dims,
                   const int64_t *dims, const void *copy, struct lk_err *e)
{
    if (p->n_out == p->cap_out) {
        size_t cap = p->cap_out ? p->cap_out * 2 : 1024;
        struct out_tensor *v = lk_reallocarray(p->out, cap, sizeof *v);
        if (!v) return lk_fail(e, LK_ENOMEM, "convert: no memory for the plan");
        p->out = v;
        p->cap_out = cap;
    }
    struct out_tensor *o = &p->out[p->n_out];
    *o = (struct out_tensor){.dtype = dtype, .n_dims = n_dims, .copy = copy};
    char name[512];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    o->name = lk_arena_strndup(&p->mem, name, strlen(name));
    if (!o->name) return lk_fail(e, LK_ENOMEM, "convert: no memory for the plan");
    o->bytes = lk_dtype_bytes(dtype);
    for (int i = 0; i < n_dims; i++) {
        o->dims[i] = dims[i];
        o->bytes *= (size_t)dims[i];
    }
    p->n_out++;
    j->n_out++;
    return 0;
}

static int plan_plain(struct plan *p, struct job *j, const char *m, enum lk_dtype dt, struct lk_err *e)
{
    const struct lk_tensor *t = j->t;
    int bare = has_suffix(t->name, ".A_log") || has_suffix(t->name, ".dt_bias") || !strncmp(t->name, "visual.", 7);
    int64_t dims[8];
    int n = t->n_dims;
    memcpy(dims, t->dims, sizeof dims);
    if (has_suffix(t->name, ".conv1d") && n == 2) { /* [C, 4] in GGUF, [C, 1, 4] in Hugging Face files */
        dims[2] = dims[1];
        dims[1] = 1;
        n = 3;
    }
    return out_add(p, j, m, bare ? "" : ".weight", dt, n, dims, j->scheme == SCHEME_COPY ? t->w.data : NULL, e);
}

static int plan_job(struct plan *p, struct job *j, struct lk_err *e)
{
    const struct lk_weight *w = &j->t->w;
    int copy = is_stored_as(j->t, j->scheme) && !is_transformed(p->a, j->t);
    enum scheme s = j->scheme;
    char m[384];
    module_name(p, j->t, m, sizeof m);
    if (copy) j->scheme = SCHEME_COPY;
    const void *data = copy ? w->data : NULL, *scale = copy ? w->scale : NULL;
    enum lk_dtype sdt = copy ? w->scale_dtype : LK_DT_F32;
    int64_t nk[2] = {w->n, w->k}, n1[2] = {w->n, 1}, half[2] = {w->n, w->k / 2}, g16[2] = {w->n, w->k / 16}, one[1] = {1}, two[1] = {2};
    int64_t words[2] = {w->n, w->k / 8}, groups[2] = {w->n, w->k / Q4_GROUP};
    int rc = 0;
    switch (s) {
    case SCHEME_BF16: return plan_plain(p, j, m, LK_DT_BF16, e);
    case SCHEME_F32: return plan_plain(p, j, m, LK_DT_F32, e);
    case SCHEME_FP8:
        rc = out_add(p, j, m, ".weight", LK_DT_F8E4M3, 2, nk, data, e);
        return rc ? rc : out_add(p, j, m, ".weight_scale", sdt, 2, n1, scale, e);
    case SCHEME_I8:
        rc = out_add(p, j, m, ".weight", LK_DT_I8, 2, nk, data, e);
        return rc ? rc : out_add(p, j, m, ".weight_scale", sdt, 2, n1, scale, e);
    case SCHEME_NVFP4:
        rc = out_add(p, j, m, ".weight_packed", LK_DT_U8, 2, half, data, e);
        if (!rc) rc = out_add(p, j, m, ".weight_scale", LK_DT_F8E4M3, 2, g16, scale, e);
        return rc ? rc : out_add(p, j, m, ".weight_global_scale", LK_DT_F32, 1, one, copy ? &w->global : NULL, e);
    default: /* Q4 */
        rc = out_add(p, j, m, ".weight_packed", LK_DT_I32, 2, words, data, e);
        if (!rc) rc = out_add(p, j, m, ".weight_scale", copy ? sdt : LK_DT_BF16, 2, groups, scale, e);
        if (rc) return rc;
        int64_t *shape = lk_arena_alloc(&p->mem, sizeof nk);
        if (!shape) return lk_fail(e, LK_ENOMEM, "convert: no memory for the plan");
        memcpy(shape, nk, sizeof nk);
        return out_add(p, j, m, ".weight_shape", LK_DT_I64, 1, two, shape, e);
    }
}

/* Without a recipe every tensor keeps its format, if a Hugging Face folder has a place for it. */
static int keep_scheme(const struct lk_tensor *t, enum scheme *s, struct lk_err *e)
{
    for (int i = SCHEME_BF16; i < SCHEME_COUNT; i++)
        if (is_stored_as(t, (enum scheme)i)) {
            *s = (enum scheme)i;
            return 0;
        }
    return lk_fail(e, LK_EINPUT, "%s: tensor %s: format %s has no place in a Hugging Face folder; choose one with --recipe (%s)", t->file,
                   t->stored, lk_fmt_info(t->w.fmt)->name, lk_convert_recipes());
}

/* Tensors that are a multiple of 64 bytes come first in a shard, so that all of them stay aligned without holes. */
static void place(struct plan *p, size_t limit)
{
    int shard = 0;
    size_t used = 0;
    for (size_t i = 0; i < p->n_jobs; i++) { /* the parts of one module stay together */
        size_t bytes = 0;
        for (int k = 0; k < p->jobs[i].n_out; k++) bytes += p->out[p->jobs[i].first + k].bytes;
        if (used && used + bytes > limit) {
            shard++;
            used = 0;
        }
        used += bytes;
        for (int k = 0; k < p->jobs[i].n_out; k++) p->out[p->jobs[i].first + k].shard = shard;
    }
    p->n_shards = shard + 1;
}

static int offsets(struct plan *p, struct lk_err *e)
{
    p->shard_bytes = lk_calloc((size_t)p->n_shards, sizeof *p->shard_bytes);
    if (!p->shard_bytes) return lk_fail(e, LK_ENOMEM, "convert: no memory for the plan");
    for (int odd = 0; odd < 2; odd++)
        for (size_t i = 0; i < p->n_out; i++) {
            struct out_tensor *o = &p->out[i];
            if ((o->bytes % 64 != 0) != odd) continue;
            o->offset = p->shard_bytes[o->shard];
            p->shard_bytes[o->shard] += o->bytes;
            p->total += o->bytes;
        }
    return 0;
}

int lk__plan_make(struct plan *p, const struct lk_artifact *a, const char *recipe, size_t shard_limit, struct lk_err *e)
{
    *p = (struct plan){.a = a, .n_jobs = lk_artifact_count(a)};
    for (size_t i = 0; recipe && i < sizeof recipes / sizeof *recipes; i++)
        if (!strcmp(recipes[i].name, recipe)) p->recipe = &recipes[i];
    if (recipe && !p->recipe) return lk_fail(e, LK_EUSAGE, "--recipe %s: expected one of %s", recipe, lk_convert_recipes());
    p->jobs = lk_calloc(p->n_jobs ? p->n_jobs : 1, sizeof *p->jobs);
    if (!p->jobs) return lk_fail(e, LK_ENOMEM, "convert: no memory for the plan");
    int rc = 0;
    for (size_t i = 0; i < p->n_jobs && !rc; i++) {
        struct job *j = &p->jobs[i];
        *j = (struct job){.t = lk_artifact_at(a, i), .first = (int)p->n_out, .amax = -1};
        if (p->recipe)
            j->scheme = recipe_scheme(p->recipe, j->t);
        else
            rc = keep_scheme(j->t, &j->scheme, e);
        /* vectors that their publisher keeps in F32 (A_log, norms of GGUF) stay so: a few KB, and no rounding */
        if (j->scheme == SCHEME_BF16 && j->t->w.fmt == LK_FMT_F32 && j->t->n_dims == 1) j->scheme = SCHEME_F32;
        if (!rc) rc = plan_job(p, j, e);
    }
    if (rc) return rc;
    place(p, shard_limit);
    return offsets(p, e);
}

void lk__plan_free(struct plan *p)
{
    lk_free(p->jobs);
    lk_free(p->out);
    lk_free(p->shard_bytes);
    lk_arena_free(&p->mem);
    *p = (struct plan){0};
}

const char *lk__shard_name(const struct plan *p, int shard, char *buf, size_t cap)
{
    if (p->n_shards == 1)
        snprintf(buf, cap, "model.safetensors");
    else
        snprintf(buf, cap, "model-%05d-of-%05d.safetensors", shard + 1, p->n_shards);
    return buf;
}
