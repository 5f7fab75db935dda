/* Parameters of a .ninfer model -> logical tensors: views of row ranges, joined where Hugging Face keeps as one tensor what the file keeps as
 * several (query with gate, q with k with v). Nothing of a matrix is copied; the convolution is transposed, it is small. */
#include "artifact/ninfer.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct binding {
    struct nf_file *f;
    char prefix[64];  /* "text/layers/3/" */
    char logical[64]; /* "layers.3." */
};

static int locate(const struct binding *b, const char *name, struct nf_piece *p)
{
    return b->f->version == 2 ? lk__nf2_piece(b->f, name, p) : lk__nf3_piece(b->f, name, p);
}

static int piece(struct binding *b, const char *param, struct nf_piece *p)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", b->prefix, param);
    int rc = locate(b, name, p);
    if (rc) return rc;
    if (!p->o || p->o->fmt == NF_RESOURCE) return lk__nf_fail(b->f, name, "expected a tensor for it, found nothing");
    p->o->used = 1;
    b->f->pieces++;
    return 0;
}

/* Rows of a matrix as a weight: pointers into its planes. */
static int view(struct nf_file *f, const struct nf_piece *p, struct lk_weight *w)
{
    const struct nf_object *o = p->o;
    const unsigned char *d = o->data;
    size_t N = (size_t)o->dims[0], K = o->n_dims > 1 ? (size_t)o->dims[1] : 1, row = (size_t)p->row, groups = K / (o->fmt == NF_W8 ? 32 : 64);
    *w = (struct lk_weight){.n = p->rows, .k = (int64_t)K, .global = 1, .scale_dtype = LK_DT_F16, .group = 64};
    if (o->n_dims != 2) return lk__nf_fail(f, o->name, "shape: expected a matrix, found %d dimensions", o->n_dims);
    if (o->fmt >= NF_Q4 && o->fmt <= NF_W8 && K % 128) return lk__nf_fail(f, o->name, "shape: expected columns that are a multiple of 128, found %zu", K);
    size_t high = (N * groups * 32 + 255) / 256 * 256, hb = o->fmt == NF_Q5 ? 8 : o->fmt == NF_Q6 ? 16 : 0;
    size_t scales = high + (N * groups * hb + 255) / 256 * 256;
    switch (o->fmt) {
    case NF_BF16:
    case NF_FP32:
        w->fmt = o->fmt == NF_BF16 ? LK_FMT_BF16 : LK_FMT_F32, w->group = 0, w->scale_dtype = LK_DT_NONE;
        w->data = d + row * K * (o->fmt == NF_BF16 ? 2 : 4);
        return 0;
    case NF_Q4:
    case NF_Q5:
    case NF_Q6:
    case NF_W8:
        w->fmt = o->fmt == NF_W8 ? LK_FMT_I8 : o->fmt == NF_Q4 ? LK_FMT_N_Q4 : o->fmt == NF_Q5 ? LK_FMT_N_Q5 : LK_FMT_N_Q6;
        if (o->fmt == NF_W8) w->group = 32;
        w->data = d + row * groups * 32;
        w->zero = hb ? d + high + row * groups * hb : NULL;
        w->scale = d + scales + row * groups * 2;
        return 0;
    case NF_FP8:
        w->fmt = LK_FMT_FP8, w->block_n = 1, w->block_k = (int64_t)K, w->scale_dtype = LK_DT_BF16, w->group = 0;
        w->data = d + row * K;
        w->scale = d + (N * K + 255) / 256 * 256 + row * 2;
        return 0;
    case NF_NVFP4: {
        size_t at = (N * K / 2 + 255) / 256 * 256, each = N / (size_t)o->divisors, first = row / each, last = (row + (size_t)p->rows - 1) / each;
        if (row % 128) return lk__nf_fail(f, o->name, "expected parameters that begin at a multiple of 128 rows, found row %zu", row);
        const unsigned char *g = d + at + N * K / 16;
        w->fmt = LK_FMT_NVFP4_T, w->scale_dtype = LK_DT_F8E4M3, w->group = 16, w->global_div = 1;
        w->data = d + row * K / 2;
        w->scale = d + at + row / 128 * (K / 64) * 512;
        w->global = lk_f32_from_bits(lk_get32(g + 4 * first));
        for (size_t i = first; i <= last; i++)
            if (lk_get32(g + 4 * i) != lk_get32(g + 4 * first)) return lk__nf_fail(f, o->name, "divisors: expected one for a parameter, found several");
        return isfinite(w->global) && w->global > 0 ? 0 : lk__nf_fail(f, o->name, "divisor: expected a positive number, found %g", (double)w->global);
    }
    default: return lk__nf_fail(f, o->name, "format: expected one of a matrix, found %s", lk__nf_fmt_name(o->fmt));
    }
}

static int add(struct binding *b, const char *name, const struct nf_object *o, const struct lk_weight *w, int n_dims)
{
    struct nf_file *f = b->f;
    char full[128];
    snprintf(full, sizeof full, "%s%s", b->logical, name);
    struct lk_tensor t = {.name = lk_arena_strndup(&f->a->mem, full, strlen(full)), .stored = lk_arena_strndup(&f->a->mem, o->name, strlen(o->name)),
                          .file = f->file, .n_dims = n_dims, .dims = {n_dims == 1 ? w->k : w->n, w->k}, .w = *w, .bytes = lk_weight_bytes(w)};
    if (!t.name || !t.stored) return lk_fail(f->e, LK_ENOMEM, "%s: no memory for the tensor directory", f->file);
    return lk__artifact_add(f->a, &t, f->e);
}

static int size_check(struct binding *b, const char *param, const struct lk_weight *w, int64_t n, int64_t k)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", b->prefix, param);
    if (w->n == n && w->k == k) return 0;
    return lk__nf_fail(b->f, name, "shape: expected [%lld, %lld], found [%lld, %lld]", (long long)n, (long long)k, (long long)w->n, (long long)w->k);
}

static int linear(struct binding *b, const char *param, const char *name, int64_t n, int64_t k)
{
    struct nf_piece p;
    struct lk_weight w;
    int rc = piece(b, param, &p);
    if (!rc) rc = view(b->f, &p, &w);
    if (!rc) rc = size_check(b, param, &w, n, k);
    return rc ? rc : add(b, name, p.o, &w, 2);
}

/* Two weights as one: rows in turns of run0 and run1. */
static int rows_of_two(struct nf_file *f, const struct lk_weight *x, const struct lk_weight *y, int64_t run0, int64_t run1, struct lk_weight *out)
{
    struct lk_rows *r = lk_arena_alloc(&f->a->mem, sizeof *r);
    if (!r) return lk_fail(f->e, LK_ENOMEM, "%s: no memory for the tensor directory", f->file);
    *r = (struct lk_rows){{*x, *y}, {run0, run1}};
    *out = (struct lk_weight){.fmt = LK_FMT_ROWS, .n = x->n + y->n, .k = x->k, .data = r, .global = 1};
    return 0;
}

/* q_proj of Hugging Face: 256 rows of a head's query, 256 of its gate. */
static int query_gate(struct binding *b, int64_t n_q, int64_t hidden)
{
    struct nf_piece p[2];
    struct lk_weight w[2], both;
    static const char *const names[] = {"attention/query", "attention/gate"};
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        rc = piece(b, names[i], &p[i]);
        if (!rc) rc = view(b->f, &p[i], &w[i]);
        if (!rc) rc = size_check(b, names[i], &w[i], n_q * 256, hidden);
    }
    if (!rc) rc = rows_of_two(b->f, &w[0], &w[1], 256, 256, &both);
    return rc ? rc : add(b, "self_attn.q_proj", p[0].o, &both, 2);
}

/* in_proj_qkv: consecutive rows of one object where that is so, else joined. */
static int query_key_value(struct binding *b, const struct lk_config *c)
{
    static const char *const names[] = {"gdn/query", "gdn/key", "gdn/value"};
    struct nf_piece run = {0}, p;
    struct lk_weight all, w, joined;
    const struct nf_object *first = NULL;
    int rc = 0, have = 0;
    for (int i = 0; i <= 3 && !rc; i++) {
        if (i < 3) rc = piece(b, names[i], &p);
        if (!rc && i < 3 && p.rows != (i < 2 ? c->hk : c->hv) * 128) rc = lk__nf_fail(b->f, names[i], "expected %lld rows, found %lld", (long long)(i < 2 ? c->hk : c->hv) * 128, (long long)p.rows);
        if (rc) break;
        if (i < 3 && run.o == p.o && run.row + run.rows == p.row) {
            run.rows += p.rows;
            continue;
        }
        if (run.o) { /* the run so far ends here */
            rc = view(b->f, &run, &w);
            if (!rc && w.k != c->hidden) rc = lk__nf_fail(b->f, run.o->name, "shape: expected %lld columns, found %lld", (long long)c->hidden, (long long)w.k);
            if (!rc && have) rc = rows_of_two(b->f, &all, &w, all.n, w.n, &joined);
            if (!rc) all = have ? joined : w;
            have = 1;
        }
        if (!first) first = p.o;
        run = p;
    }
    return rc ? rc : add(b, "linear_attn.in_proj_qkv", first, &all, 2);
}

static int vector(struct binding *b, const char *param, const char *name, int64_t n)
{
    struct nf_piece p;
    int rc = piece(b, param, &p);
    if (rc) return rc;
    if ((p.o->fmt != NF_BF16 && p.o->fmt != NF_FP32) || p.o->n_dims != 1 || p.rows != n)
        return lk__nf_fail(b->f, p.o->name, "expected %lld values in BF16 or FP32, found %lld in %s", (long long)n, (long long)p.rows, lk__nf_fmt_name(p.o->fmt));
    int bf16 = p.o->fmt == NF_BF16;
    struct lk_weight w = {.fmt = bf16 ? LK_FMT_BF16 : LK_FMT_F32, .n = 1, .k = n, .data = p.o->data + p.row * (bf16 ? 2 : 4), .global = 1};
    return add(b, name, p.o, &w, 1);
}

/* [taps, channels] -> [channels, taps] */
static int convolution(struct binding *b, const struct lk_config *c)
{
    struct nf_piece p;
    int64_t ch = (2 * c->hk + c->hv) * 128, taps = c->conv_k;
    int rc = piece(b, "gdn/convolution", &p);
    if (rc) return rc;
    if (p.o->fmt != NF_BF16 || p.o->n_dims != 2 || p.rows != taps || p.o->dims[1] != ch)
        return lk__nf_fail(b->f, p.o->name, "expected BF16 [%lld, %lld], found another", (long long)taps, (long long)ch);
    uint16_t *to = lk_arena_alloc(&b->f->a->mem, (size_t)(ch * taps) * 2);
    if (!to) return lk_fail(b->f->e, LK_ENOMEM, "%s: no memory for a convolution", b->f->file);
    for (int64_t k = 0; k < taps; k++)
        for (int64_t i = 0; i < ch; i++) to[i * taps + k] = lk_get16(p.o->data + ((p.row + k) * ch + i) * 2);
    struct lk_weight w = {.fmt = LK_FMT_BF16, .n = ch, .k = taps, .data = to, .global = 1};
    return add(b, "linear_attn.conv1d", p.o, &w, 2);
}

static int attention(struct binding *b, const struct lk_config *c)
{
    int rc = query_gate(b, c->n_q, c->hidden);
    if (!rc) rc = linear(b, "attention/key", "self_attn.k_proj", c->n_kv * 256, c->hidden);
    if (!rc) rc = linear(b, "attention/value", "self_attn.v_proj", c->n_kv * 256, c->hidden);
    if (!rc) rc = linear(b, "attention/output", "self_attn.o_proj", c->hidden, c->n_q * 256);
    if (!rc) rc = vector(b, "attention/query_norm", "self_attn.q_norm", 256);
    return rc ? rc : vector(b, "attention/key_norm", "self_attn.k_norm", 256);
}

static int delta_net(struct binding *b, const struct lk_config *c)
{
    int rc = query_key_value(b, c);
    if (!rc) rc = linear(b, "gdn/z", "linear_attn.in_proj_z", c->hv * 128, c->hidden);
    if (!rc) rc = linear(b, "gdn/a_projection", "linear_attn.in_proj_a", c->hv, c->hidden);
    if (!rc) rc = linear(b, "gdn/b_projection", "linear_attn.in_proj_b", c->hv, c->hidden);
    if (!rc) rc = linear(b, "gdn/output", "linear_attn.out_proj", c->hidden, c->hv * 128);
    if (!rc) rc = convolution(b, c);
    if (!rc) rc = vector(b, "gdn/a_log", "linear_attn.A_log", c->hv);
    if (!rc) rc = vector(b, "gdn/dt_bias", "linear_attn.dt_bias", c->hv);
    return rc ? rc : vector(b, "gdn/norm", "linear_attn.norm", 128);
}

static int layer(struct binding *b, const struct lk_config *c, int full)
{
    int rc = vector(b, "input_norm", "input_layernorm", c->hidden);
    if (!rc) rc = full ? attention(b, c) : delta_net(b, c);
    if (!rc) rc = vector(b, "post_attention_norm", "post_attention_layernorm", c->hidden);
    if (!rc) rc = linear(b, "mlp/gate", "mlp.gate_proj", c->inter, c->hidden);
    if (!rc) rc = linear(b, "mlp/up", "mlp.up_proj", c->inter, c->hidden);
    return rc ? rc : linear(b, "mlp/down", "mlp.down_proj", c->hidden, c->inter);
}

static int mtp(struct binding *b, const struct lk_config *c)
{
    snprintf(b->prefix, sizeof b->prefix, "mtp/");
    snprintf(b->logical, sizeof b->logical, "mtp.");
    int rc = linear(b, "input_projection", "fc", c->hidden, 2 * c->hidden);
    if (!rc) rc = vector(b, "embedding_norm", "pre_fc_norm_embedding", c->hidden);
    if (!rc) rc = vector(b, "hidden_norm", "pre_fc_norm_hidden", c->hidden);
    if (!rc) rc = vector(b, "final_norm", "norm", c->hidden);
    snprintf(b->prefix, sizeof b->prefix, "mtp/layers/0/");
    snprintf(b->logical, sizeof b->logical, "mtp.layers.0.");
    return rc ? rc : layer(b, c, 1);
}

static int shortlist(struct binding *b, const struct lk_config *c)
{
    struct nf_piece p;
    int rc = locate(b, "proposal/head", &p);
    if (rc || !p.o) return rc;
    int64_t rows = p.rows;
    b->prefix[0] = b->logical[0] = 0;
    rc = linear(b, "proposal/head", "draft_head", rows, c->hidden);
    if (!rc) rc = piece(b, "proposal/token_ids", &p);
    if (rc) return rc;
    if (p.o->fmt != NF_I32 || p.o->n_dims != 1 || p.rows != rows || (uintptr_t)p.o->data % 4)
        return lk__nf_fail(b->f, p.o->name, "expected %lld token ids in I32, found %lld in %s", (long long)rows, (long long)p.rows, lk__nf_fmt_name(p.o->fmt));
    b->f->a->draft_map = (const int32_t *)(const void *)(p.o->data + p.row * 4);
    b->f->a->n_draft = (size_t)rows;
    return 0;
}

/* Ids of the shortlist must be tokens, each once. */
static int shortlist_check(struct nf_file *f, const struct lk_config *c)
{
    const int32_t *ids = f->a->draft_map;
    unsigned char *seen = lk_calloc((size_t)c->vocab, 1);
    int rc = seen ? 0 : lk_fail(f->e, LK_ENOMEM, "%s: no memory for the shortlist", f->file);
    for (size_t i = 0; i < f->a->n_draft && !rc; i++) {
        if (ids[i] < 0 || ids[i] >= c->vocab || seen[ids[i]])
            rc = lk__nf_fail(f, "draft_head token ids", "row %zu: expected a token below %lld that no other row has, found %d", i, (long long)c->vocab, (int)ids[i]);
        else
            seen[ids[i]] = 1;
    }
    lk_free(seen);
    return rc;
}

int lk__nf_bind(struct nf_file *f)
{
    const struct lk_config *c = &f->a->cfg;
    struct binding b = {.f = f};
    int rc = linear(&b, "text/token_embedding", "embed_tokens", c->vocab, c->hidden);
    if (!rc) rc = linear(&b, "text/output_head", "lm_head", c->vocab, c->hidden);
    if (!rc) rc = vector(&b, "text/final_norm", "norm", c->hidden);
    for (int i = 0; i < c->layers && !rc; i++) {
        snprintf(b.prefix, sizeof b.prefix, "text/layers/%d/", i);
        snprintf(b.logical, sizeof b.logical, "layers.%d.", i);
        rc = layer(&b, c, c->full[i]);
    }
    if (!rc && c->mtp_layers) rc = mtp(&b, c);
    if (!rc) rc = shortlist(&b, c);
    if (!rc && f->version == 3) rc = lk__nf3_all_used(f);
    if (!rc) rc = shortlist_check(f, c);
    for (size_t i = 0; i < f->n_objects; i++) f->a->cfg.has_vision |= !strncmp(f->objects[i].name, "vision/", 7);
    return rc;
}
