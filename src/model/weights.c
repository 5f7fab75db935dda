/* Binding: tensor names become fields, once. Every tensor is checked for its size before it is used, a rank takes its part
 * of it (tp/shard.h), linears that share an input become one mat, and all 1-D tensors become f32 in one device slab with
 * norms already 1+w and gates already -exp(A_log). After this no name is looked up and no shape is tested. */
#include "model/inside.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tp/slice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARTS 6 /* in_proj_qkv may be two: see take_part */

struct binder {
    struct lk_model *m;
    const struct lk_artifact *a;
    char prefix[48]; /* "layers.3." */
    int keep;        /* the device computes in place: host copies must live as long as the model */
    float *tmp;      /* [tmp_cap] host, for 1-D tensors */
    size_t tmp_cap;
    struct lk_progress bar;
    struct lk_pool *pool; /* repacking; NULL: this thread does it */
    struct lk_model_need *need; /* NULL: bind; else only count */
};

/* One linear of a mat: its name and the whole size; lk__part_of says which part of it is the rank's. */
struct part {
    const char *name;
    int64_t n, k;
    int head; /* rows are the vocabulary's though it is the embedding: a tied head */
};

static const struct lk_tensor *find(struct binder *b, const char *name, struct lk_err *e)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    const struct lk_tensor *t = lk_artifact_find(b->a, full);
    if (!t)
        lk_fail(e, LK_EINPUT, "%s: tensor %s is missing; the file is incomplete or of another model",
                lk_artifact_path(b->a), full);
    return t;
}

static int own(struct lk_model *m, void *p, struct lk_err *e)
{
    struct weights *w = &m->w;
    if (w->n_owned == w->owned_cap) {
        int cap = w->owned_cap ? 2 * w->owned_cap : 64;
        void **q = lk_reallocarray(w->owned, (size_t)cap, sizeof *q);
        if (!q) {
            lk_free(p);
            return lk_fail(e, LK_ENOMEM, "no memory for the list of weight parts");
        }
        w->owned = q, w->owned_cap = cap;
    }
    w->owned[w->n_owned++] = p;
    return 0;
}

static void disown(struct lk_model *m, int from)
{
    while (m->w.n_owned > from) lk_free(m->w.owned[--m->w.n_owned]);
}

/* Is the weight used as it lies in the file, or at least cut from it as it lies? */
static int in_place(const struct binder *b, const struct lk_weight *w, const struct lk_ranges *r)
{
    const struct lk_dev *d = b->m->dev;
    struct lk_weight part;
    struct lk_err no = {0};
    size_t cut;
    if (w->fmt < LK_FMT_KERNELS) return 1;
    return d->in_place && d->in_place(d, w) && !lk_slice_plan(w, r, &part, &cut, &no);
}

/* What take_ranges will leave in memory. */
static int count_ranges(struct binder *b, const struct lk_weight *w, const struct lk_ranges *r, struct lk_weight *out, struct lk_err *e)
{
    struct lk_weight ready = *w;
    size_t packed = in_place(b, w, r) ? 0 : lk_repack_plan(w, &ready), cut, all;
    int rc = lk_slice_plan(&ready, r, out, &cut, e);
    if (rc) return rc;
    all = lk_weight_bytes(out);
    double share = (double)all / (double)lk_weight_bytes(&ready);
    size_t held = (size_t)((double)packed * share), used = cut || all < held ? 0 : all - held, rest = lk_weight_bytes(w);
    b->need->copied += cut ? cut : packed;
    rest -= used < rest ? used : rest;
    b->need->mapped += used + (rest < LK_FILE_AROUND ? rest : LK_FILE_AROUND); /* what is next to bytes that are used stays too */
    return 0;
}

/* Ranges of a weight, in a format that kernels read. What was copied is let go in the file's mapping. */
static int take_ranges(struct binder *b, const struct lk_tensor *t, const struct lk_weight *w, const struct lk_ranges *r, struct lk_weight *out,
                       struct lk_err *e)
{
    struct lk_weight ready = *w;
    void *packed = NULL, *cut = NULL;
    int rc = 0;
    if (b->need)
        rc = count_ranges(b, w, r, out, e);
    else if (!in_place(b, w, r))
        rc = lk_repack(w, &ready, &packed, b->pool, e);
    if (!rc && !b->need) rc = lk_slice(&ready, r, out, &cut, e);
    if (rc || cut) {
        lk_free(packed);
        packed = NULL;
    }
    if (rc) return lk_err_prefix(e, "%s: tensor %s", t->file, t->stored);
    if (cut || packed) lk_artifact_forget(b->a, w);
    return cut || packed ? own(b->m, cut ? cut : packed, e) : 0;
}

/* Rows [at, at + n) of r, counted from `at`. */
static void clip(const struct lk_ranges *r, int64_t at, int64_t n, struct lk_ranges *out)
{
    *out = (struct lk_ranges){.axis = 0};
    for (int i = 0; i < r->n; i++) {
        int64_t from = r->r[i].at > at ? r->r[i].at : at, end = r->r[i].at + r->r[i].count;
        if (end > at + n) end = at + n;
        if (from >= end) continue;
        out->r[out->n].at = from - at;
        out->r[out->n++].count = end - from;
        out->total += end - from;
    }
}

/* The rank's part of one linear: one weight, or two where the file keeps its first and its last rows in different formats. */
static int take_part(struct binder *b, const struct part *p, struct lk_weight *out, int *count, struct lk_err *e)
{
    const struct lk_tensor *t = find(b, p->name, e);
    if (!t) return LK_EINPUT;
    struct lk_ranges r, c;
    struct lk_model *m = b->m;
    enum lk_part part = p->head ? LK_PART_VOCAB : lk__part_of(p->name);
    lk_shard(&m->dims, part, p->n, m->rank, m->n_ranks, &r); /* parts cut by columns know their whole */
    int cols = r.axis, rc = 0;
    int64_t n = t->is_part && !cols ? r.total : p->n, k = t->is_part && cols ? r.total : p->k;
    if (t->w.n != n || t->w.k != k)
        return lk_fail(e, LK_EINPUT,
                       "%s: tensor %s: expected [%lld, %lld] from config.json, found [%lld, %lld]",
                       t->file, t->stored, (long long)n, (long long)k, (long long)t->w.n,
                       (long long)t->w.k);
    b->bar.done += t->bytes;
    if (t->is_part) {
        out[(*count)++] = t->w;
        if (b->need) b->need->mapped += t->bytes;
        return 0;
    }
    const struct lk_rows *two = t->w.fmt == LK_FMT_ROWS && !cols ? t->w.data : NULL;
    if (!two || two->run[0] != two->part[0].n) return take_ranges(b, t, &t->w, &r, out + (*count)++, e);
    for (int i = 0; i < 2 && !rc; i++) {
        clip(&r, i ? two->run[0] : 0, two->run[i], &c);
        if (c.n) rc = take_ranges(b, t, &two->part[i], &c, out + (*count)++, e);
    }
    return rc;
}

static int load_mat(struct binder *b, enum lk_mat_kind kind, const struct part *p, int n,
                    struct lk_mat **out, struct lk_err *e)
{
    struct lk_model *m = b->m;
    struct lk_weight w[MAX_PARTS];
    int first = m->w.n_owned, rc = 0, count = 0;
    for (int i = 0; i < n && !rc; i++) rc = take_part(b, p + i, w, &count, e);
    if (!rc) {
        rc = m->dev->mat_load(m->dev, kind, w, count, out, e);
        if (rc) lk_err_prefix(e, "%s: tensor %s%s", lk_artifact_path(b->a), b->prefix, p->name);
    }
    if (!b->keep || kind == LK_MAT_ROUGH) disown(m, first); /* nothing points into them */
    if (!b->need) lk_progress_set(&b->bar, b->bar.done);
    return rc;
}

/* Room for n floats in the device slab, each vector on its own 256 bytes. */
static float *slab_take(struct lk_model *m, size_t n)
{
    float *p = m->w.slab + m->w.slab_used;
    m->w.slab_used += (n + 63) / 64 * 64;
    return m->w.slab_used <= m->w.slab_cap ? p : NULL;
}

static enum lk_dtype plain_type(enum lk_fmt f)
{
    return f == LK_FMT_F32 ? LK_DT_F32 : f == LK_FMT_F16 ? LK_DT_F16 : f == LK_FMT_BF16 ? LK_DT_BF16
                                                                                       : LK_DT_NONE;
}

enum vec_kind { VEC_PLAIN, VEC_NORM, VEC_A };

/* A 1-D tensor (or [channels, 1, width]) as f32 on the device: `rows` of `width`, the rank's rows only. */
static int load_vec(struct binder *b, const char *name, int64_t rows, int width, enum vec_kind kind,
                    const float **out, struct lk_err *e)
{
    const struct lk_tensor *t = find(b, name, e);
    if (!t) return LK_EINPUT;
    struct lk_ranges r;
    lk_shard(&b->m->dims, lk__part_of(name), rows, b->m->rank, b->m->n_ranks, &r);
    int64_t elems = t->w.n * t->w.k, want = (t->is_part ? r.total : rows) * width;
    enum lk_dtype type = plain_type(t->w.fmt);
    if (elems != want || type == LK_DT_NONE)
        return lk_fail(e, LK_EINPUT,
                       "%s: tensor %s: expected %lld values in F32, F16 or BF16, found %lld in %s",
                       t->file, t->stored, (long long)want, (long long)elems, lk_fmt_info(t->w.fmt)->name);
    if (b->need) {
        b->need->mapped += t->bytes;
        return 0;
    }
    if (t->is_part) r.n = 1, r.r[0].at = 0, r.r[0].count = r.total;
    const struct lk_config *c = lk_artifact_config(b->a);
    size_t n = 0, total = (size_t)r.total * (size_t)width;
    if (total > b->tmp_cap) return lk_fail(e, LK_EINPUT, "tensor %s is larger than planned", t->stored);
    for (int i = 0; i < r.n; i++)
        for (int64_t j = r.r[i].at * width; j < (r.r[i].at + r.r[i].count) * width; j++) {
            float v = lk_dtype_get(type, t->w.data, j);
            if (kind == VEC_NORM && c->norm_plus_one) v += 1.0f;
            if (kind == VEC_A && !c->a_is_coef) v = -(float)exp((double)v);
            b->tmp[n++] = v;
        }
    float *p = slab_take(b->m, total);
    if (!p) return lk_fail(e, LK_ENOMEM, "the slab of small tensors is full at %s", t->stored);
    b->m->dev->upload(b->m->dev, p, b->tmp, total * sizeof(float));
    b->bar.done += t->bytes;
    *out = p;
    return 0;
}

static int bind_norm(struct binder *b, const char *name, const float **out, struct lk_err *e)
{
    return load_vec(b, name, b->m->shape.hidden, 1, VEC_NORM, out, e);
}

static int bind_attn(struct binder *b, struct layer *l, struct lk_err *e)
{
    const struct lk_shape *s = &b->m->shape;
    int64_t q = s->n_q * (int64_t)s->head_dim, kv = s->n_kv * (int64_t)s->head_dim;
    const struct part in[] = {
        {"self_attn.q_proj", 2 * q, s->hidden, 0},
        {"self_attn.k_proj", kv, s->hidden, 0},
        {"self_attn.v_proj", kv, s->hidden, 0},
    };
    const struct part out = {"self_attn.o_proj", s->hidden, q, 0};
    int rc = load_mat(b, LK_MAT_STACK, in, 3, &l->proj, e);
    if (!rc) rc = load_mat(b, LK_MAT_STACK, &out, 1, &l->out, e);
    if (!rc) rc = load_vec(b, "self_attn.q_norm", s->head_dim, 1, VEC_NORM, &l->q_norm, e);
    if (!rc) rc = load_vec(b, "self_attn.k_norm", s->head_dim, 1, VEC_NORM, &l->k_norm, e);
    return rc;
}

static int bind_gdn(struct binder *b, struct layer *l, struct lk_err *e)
{
    const struct lk_shape *s = &b->m->shape;
    int64_t v = (int64_t)s->hv * s->gdn_dim;
    const struct part in[] = {
        {"linear_attn.in_proj_qkv", s->conv_ch, s->hidden, 0},
        {"linear_attn.in_proj_z", v, s->hidden, 0},
        {"linear_attn.in_proj_b", s->hv, s->hidden, 0},
        {"linear_attn.in_proj_a", s->hv, s->hidden, 0},
    };
    const struct part out = {"linear_attn.out_proj", s->hidden, v, 0};
    int rc = load_mat(b, LK_MAT_STACK, in, 4, &l->proj, e);
    if (!rc) rc = load_mat(b, LK_MAT_STACK, &out, 1, &l->out, e);
    if (!rc) rc = load_vec(b, "linear_attn.conv1d", s->conv_ch, s->conv_k, VEC_PLAIN, &l->conv_w, e);
    if (!rc) rc = load_vec(b, "linear_attn.A_log", s->hv, 1, VEC_A, &l->a_coef, e);
    if (!rc) rc = load_vec(b, "linear_attn.dt_bias", s->hv, 1, VEC_PLAIN, &l->dt_bias, e);
    if (!rc) rc = load_vec(b, "linear_attn.norm", s->gdn_dim, 1, VEC_PLAIN, &l->gdn_norm, e);
    return rc;
}

static int bind_layer(struct binder *b, struct layer *l, int full, struct lk_err *e)
{
    const struct lk_shape *s = &b->m->shape;
    const struct part mlp[] = {
        {"mlp.gate_proj", s->inter, s->hidden, 0},
        {"mlp.up_proj", s->inter, s->hidden, 0},
    };
    const struct part down = {"mlp.down_proj", s->hidden, s->inter, 0};
    l->full = full;
    int rc = bind_norm(b, "input_layernorm", &l->in_norm, e);
    if (!rc) rc = full ? bind_attn(b, l, e) : bind_gdn(b, l, e);
    if (!rc) rc = bind_norm(b, "post_attention_layernorm", &l->post_norm, e);
    if (!rc) rc = load_mat(b, LK_MAT_GATE_UP, mlp, 2, &l->gate_up, e);
    if (!rc) rc = load_mat(b, LK_MAT_STACK, &down, 1, &l->down, e);
    return rc;
}

/* A step reads only the rows of its tokens; of a tied table another rank's head reads the rest. The embedding comes first: all that is mapped is it. */
static void count_embed(struct binder *b)
{
    struct lk_model_need *n = b->need;
    n->embed = n->mapped, n->mapped = 0;
    n->embed_row = n->embed / (size_t)b->m->shape.vocab;
    if (b->m->shape.tied) n->embed -= n->embed / (size_t)b->m->n_ranks;
}

/* The vocabulary head: its own tensor, or the embedding again. A rank's half of a tied head is a second view of it. */
static int bind_head(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    const struct lk_shape *s = &m->shape;
    const struct part embed = {"embed_tokens", s->vocab, s->hidden, 0};
    const struct part head = {s->tied ? "embed_tokens" : "lm_head", s->vocab, s->hidden, s->tied};
    int rc = load_mat(b, LK_MAT_EMBED, &embed, 1, &m->w.embed, e), both = s->tied && m->n_ranks == 1;
    if (!rc && b->need && !both) count_embed(b);
    if (!rc) rc = bind_norm(b, "norm", &m->w.norm, e);
    if (rc) return rc;
    if (both) {
        m->w.head = m->w.embed;
        return 0;
    }
    return load_mat(b, LK_MAT_STACK, &head, 1, &m->w.head, e);
}

/* The shortlist: draft row i is token map[i]. */
static int bind_draft_head(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    const struct lk_tensor *t = lk_artifact_find(b->a, "draft_head");
    size_t n = 0;
    const int32_t *map = lk_artifact_draft_map(b->a, &n);
    if (!t || !map) return 0;
    if (n < 1 || n > (size_t)m->shape.vocab)
        return lk_fail(e, LK_EINPUT, "%s: draft_head: expected 1 to %d rows, found %zu", t->file,
                       m->shape.vocab, n);
    m->w.draft_map = lk_calloc(n, sizeof *m->w.draft_map);
    m->w.draft_inverse = lk_malloc((size_t)m->shape.vocab * sizeof *m->w.draft_inverse);
    if (!m->w.draft_map || !m->w.draft_inverse) return lk_fail(e, LK_ENOMEM, "no memory for the shortlist");
    memset(m->w.draft_inverse, 0xff, (size_t)m->shape.vocab * sizeof *m->w.draft_inverse);
    for (size_t i = 0; i < n; i++) {
        if (map[i] < 0 || map[i] >= m->shape.vocab)
            return lk_fail(e, LK_EINPUT, "%s: draft_head row %zu: expected a token below %d, found %d",
                           t->file, i, m->shape.vocab, map[i]);
        m->w.draft_map[i] = map[i];
        m->w.draft_inverse[map[i]] = (int32_t)i;
    }
    m->w.draft_rows = (int)n;
    if (b->need) b->need->copied += (n + (size_t)m->shape.vocab) * sizeof(int32_t);
    const struct part p = {"draft_head", (int64_t)n, m->shape.hidden, 0};
    return load_mat(b, LK_MAT_STACK, &p, 1, &m->w.draft_head, e);
}

static size_t layer_bytes(const struct layer *l)
{
    return lk_mat_head(l->proj)->bytes + lk_mat_head(l->out)->bytes + lk_mat_head(l->gate_up)->bytes +
           lk_mat_head(l->down)->bytes;
}

#define ROUGH_SHARE 0.1 /* of a step's bytes: a head below it costs a draft less than its copy costs memory */

/* Drafts may come from any head, so where the device offers it and the head is a large part of a step, they read a rough copy of it: at
 * the 0.8B's shape in BF16 a draft pass costs 0.37 of a step with the whole head, 0.12 with 4 bits. */
static int bind_rough_head(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    const struct lk_shape *s = &m->shape;
    double bytes = (double)lk_mat_head(m->w.head)->bytes, all = bytes;
    for (int i = 0; i < s->layers; i++) all += (double)layer_bytes(m->w.layers + i);
    if (m->dev->rough <= 0 || m->w.draft_head || s->hidden % 64 || bytes < ROUGH_SHARE * all) return 0;
    if (b->need) {
        b->need->copied += (size_t)((double)lk_mat_head(m->w.head)->n * s->hidden * m->dev->rough);
        return 0;
    }
    uint64_t done = b->bar.done;
    const struct part head = {s->tied ? "embed_tokens" : "lm_head", s->vocab, s->hidden, s->tied};
    int rc = load_mat(b, LK_MAT_ROUGH, &head, 1, &m->w.rough_head, e);
    b->bar.done = done; /* these bytes were counted when the head was loaded */
    return rc;
}

static int bind_mtp(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    const struct lk_shape *s = &m->shape;
    const struct part fc = {"mtp.fc", s->hidden, 2 * (int64_t)s->hidden, 0};
    b->prefix[0] = 0;
    int rc = load_mat(b, LK_MAT_STACK, &fc, 1, &m->w.fc, e);
    if (!rc) rc = bind_norm(b, "mtp.pre_fc_norm_embedding", &m->w.mtp_embed_norm, e);
    if (!rc) rc = bind_norm(b, "mtp.pre_fc_norm_hidden", &m->w.mtp_hidden_norm, e);
    if (!rc) rc = bind_norm(b, "mtp.norm", &m->w.mtp_norm, e);
    if (!rc) rc = bind_draft_head(b, e);
    if (!rc) rc = bind_rough_head(b, e);
    snprintf(b->prefix, sizeof b->prefix, "mtp.layers.0.");
    m->w.mtp.index = s->n_full; /* its KV lies behind the full layers' */
    return rc ? rc : bind_layer(b, &m->w.mtp, 1, e);
}

/* Rotary frequencies as torch makes them, in f32 step by step, and which of t, h, w turns each pair. */
static int bind_rope(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    const struct lk_shape *s = &m->shape;
    int half = s->rope_dim / 2;
    uint8_t section[LK_HEAD / 2] = {0};
    float freq[LK_HEAD / 2];
    for (int i = 0; i < half; i++)
        freq[i] = 1.0f / powf((float)s->rope_theta, (float)(2 * i) / (float)s->rope_dim);
    for (int axis = 1; axis < 3; axis++)
        for (int i = axis; i < 3 * s->section[axis] && i < half; i += 3) section[i] = (uint8_t)axis;
    float *f = slab_take(m, (size_t)half), *c = slab_take(m, LK_HEAD / 8);
    if (!f || !c) return lk_fail(e, LK_ENOMEM, "no device memory for the rotary table");
    m->dev->upload(m->dev, f, freq, (size_t)half * sizeof *freq);
    m->dev->upload(m->dev, c, section, (size_t)half);
    m->w.inv_freq = f, m->w.section = (const uint8_t *)c;
    return 0;
}

/* Upper bound of all small tensors of this rank, in floats; each may cost 64 more by its alignment. */
static size_t slab_floats(const struct lk_model *m)
{
    size_t h = (size_t)m->shape.hidden, ch = (size_t)lk_conv_channels(&m->local), pad = 64;
    size_t full = 2 * (h + pad) + 2 * LK_HEAD;
    size_t gdn = 2 * (h + pad) + 4 * ch + 2 * ((size_t)m->local.hv + pad) + 128 + pad;
    return (size_t)m->shape.n_full * full + (size_t)m->shape.n_gdn * gdn + full + 4 * (h + pad) + 1024;
}

static int open_slab(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    m->w.slab_cap = slab_floats(m);
    m->w.layers = lk_calloc((size_t)m->shape.layers, sizeof *m->w.layers);
    if (b->need) {
        b->need->copied += m->w.slab_cap * sizeof(float);
        return m->w.layers ? 0 : lk_fail(e, LK_ENOMEM, "no memory for the layers");
    }
    m->w.slab = m->dev->alloc(m->dev, m->w.slab_cap * sizeof(float), "small tensors");
    b->tmp_cap = (size_t)m->shape.hidden + 4 * (size_t)lk_conv_channels(&m->local) + LK_HEAD;
    b->tmp = lk_calloc(b->tmp_cap, sizeof(float));
    return m->w.slab && b->tmp && m->w.layers ? 0 : lk_fail(e, LK_ENOMEM, "no memory for the small tensors");
}

static void count_bytes(struct lk_model *m)
{
    struct weights *w = &m->w;
    w->step_bytes = lk_mat_head(w->head)->bytes;
    for (int i = 0; i < m->shape.layers; i++) w->step_bytes += layer_bytes(w->layers + i);
    if (m->shape.mtp)
        w->mtp_bytes = lk_mat_head(w->fc)->bytes + layer_bytes(&w->mtp) +
                       lk_mat_head(w->draft_head ? w->draft_head : w->rough_head ? w->rough_head : w->head)->bytes;
}

static int bind_all(struct binder *b, struct lk_err *e)
{
    struct lk_model *m = b->m;
    int kind[2] = {0, 0}, rc = open_slab(b, e);
    if (!rc && !b->need) rc = bind_rope(b, e);
    if (!rc) rc = bind_head(b, e);
    for (int i = 0; i < m->shape.layers && !rc; i++) {
        struct layer *l = m->w.layers + i;
        snprintf(b->prefix, sizeof b->prefix, "layers.%d.", i);
        l->index = kind[m->shape.full[i]]++;
        rc = bind_layer(b, l, m->shape.full[i], e);
    }
    if (!rc && m->shape.mtp) rc = bind_mtp(b, e);
    return rc;
}

/* May any tensor be laid out anew? One that is cut for a rank may not be a whole number of tiles. */
static int packs(const struct lk_model *m, const struct lk_artifact *a)
{
    for (size_t i = 0; i < lk_artifact_count(a); i++) {
        const struct lk_weight *w = &lk_artifact_at(a, i)->w;
        if (w->fmt >= LK_FMT_KERNELS && (m->n_ranks > 1 || !m->dev->in_place || !m->dev->in_place(m->dev, w))) return 1;
    }
    return 0;
}

int lk__weights_bind(struct lk_model *m, const struct lk_artifact *a, struct lk_err *e)
{
    struct lk_dev_info info = {0};
    m->dev->info(m->dev, &info);
    struct binder b = {.m = m, .a = a, .keep = !info.is_cuda};
    uint64_t total = 0;
    for (size_t i = 0; i < lk_artifact_count(a); i++) total += lk_artifact_at(a, i)->bytes;
    if (packs(m, a)) b.pool = lk_pool_new(lk_cores() / m->n_ranks > 0 ? lk_cores() / m->n_ranks : 1);
    lk_progress_begin(&b.bar, "loading", "B", total);
    int rc = bind_all(&b, e);
    lk_progress_end(&b.bar);
    lk_pool_free(b.pool);
    lk_free(b.tmp);
    if (!rc) rc = m->dev->sync(m->dev, e);
    if (!rc) count_bytes(m);
    return rc;
}

int lk__weights_count(struct lk_model *m, const struct lk_artifact *a, struct lk_model_need *need, struct lk_err *e)
{
    struct binder b = {.m = m, .a = a, .keep = 1, .need = need};
    return bind_all(&b, e);
}

static void layer_free(struct lk_model *m, struct layer *l)
{
    struct lk_mat *mats[] = {l->proj, l->out, l->gate_up, l->down};
    for (int i = 0; i < 4; i++)
        if (mats[i]) m->dev->mat_free(m->dev, mats[i]);
}

void lk__weights_free(struct lk_model *m)
{
    struct weights *w = &m->w;
    struct lk_mat *mats[] = {w->embed, w->head == w->embed ? NULL : w->head, w->fc, w->draft_head,
                             w->rough_head};
    for (int i = 0; i < 5; i++)
        if (mats[i]) m->dev->mat_free(m->dev, mats[i]);
    for (int i = 0; w->layers && i < m->shape.layers; i++) layer_free(m, w->layers + i);
    layer_free(m, &w->mtp);
    if (w->slab) m->dev->free(m->dev, w->slab);
    disown(m, 0);
    lk_free(w->owned);
    lk_free(w->layers);
    lk_free(w->draft_map);
    lk_free(w->draft_inverse);
}
