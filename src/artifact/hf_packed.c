/* Linears whose codes are packed in 32-bit words: compressed-tensors pack-quantized, GPTQ, AWQ (layouts in dev/format.h). */
#include "artifact/hf.h"

#include <inttypes.h>
#include <stdint.h>
#include <string.h>

static int is_scale_type(enum lk_dtype t)
{
    return t == LK_DT_F32 || t == LK_DT_BF16 || t == LK_DT_F16;
}

static int is_shape(const struct raw_tensor *r, enum lk_dtype t, int64_t a, int64_t b)
{
    return r->dtype == t && r->n_dims == 2 && r->dims[0] == a && r->dims[1] == b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Column -> group table, checked entry by entry. Dropped when it only says column / group; copied when the file has it at an address
 * that is no multiple of 4. */
static int bind_gidx(struct lk_artifact *a, const struct raw_tensor *r, struct lk_weight *w, int64_t groups, struct lk_err *e)
{
    if (!r) return 0;
    if (r->dtype != LK_DT_I32 || r->n_dims != 1 || r->dims[0] != w->k) return lk__hf_mismatch(r, e, "I32 [%" PRId64 "]", w->k);
    int plain = 1;
    for (int64_t k = 0; k < w->k; k++) {
        int32_t g;
        memcpy(&g, r->data + k * 4, 4);
        if (g < 0 || g >= groups)
            return lk_fail(e, LK_EINPUT, "%s: tensor %s: column %" PRId64 ": expected a group from 0 to %" PRId64 ", found %" PRId32,
                           r->file, r->name, k, groups - 1, g);
        plain &= g == k / w->group;
    }
    if (plain) return 0;
    w->gidx = (const int32_t *)(const void *)r->data;
    if ((uintptr_t)r->data % 4 == 0) return 0;
    int32_t *copy = lk_arena_alloc(&a->mem, r->bytes);
    if (!copy) return lk_fail(e, LK_ENOMEM, "%s: tensor %s: no memory for %zu bytes", r->file, r->name, r->bytes);
    memcpy(copy, r->data, r->bytes);
    w->gidx = copy;
    return 0;
}

static int bind_ct(struct lk_artifact *a, const struct hf_module *m, struct lk_weight *w, struct lk_err *e)
{
    const struct raw_tensor *p = m->part[HF_PACKED], *s = m->part[HF_SCALE], *sh = m->part[HF_SHAPE], *z = m->part[HF_ZERO];
    if (p->dtype != LK_DT_I32 || p->n_dims != 2 || !p->dims[0] || !p->dims[1]) return lk__hf_mismatch(p, e, "U8 or I32 [n, words]");
    if (!s || !sh) return lk__hf_mismatch(p, e, "weight_scale and weight_shape beside it");
    if ((sh->dtype != LK_DT_I64 && sh->dtype != LK_DT_I32) || lk__raw_count(sh) != 2) return lk__hf_mismatch(sh, e, "I64 [2]");
    int64_t nk[2] = {0};
    for (int i = 0; i < 2; i++) memcpy(&nk[i], sh->data + i * (int)lk_dtype_bytes(sh->dtype), lk_dtype_bytes(sh->dtype));
    int64_t n = p->dims[0], k = nk[1];
    int bits = k > 0 && ceil_div(k, 8) == p->dims[1] ? 4 : 8;
    if (nk[0] != n || k < 1 || k > p->dims[1] * 8 || (bits == 8 && ceil_div(k, 4) != p->dims[1]))
        return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected %" PRId64 " rows and columns for %" PRId64 " words of 4- or 8-bit codes, found [%"
                       PRId64 ", %" PRId64 "]", sh->file, sh->name, n, p->dims[1], nk[0], k);
    int64_t groups = s->n_dims == 2 ? s->dims[1] : 0;
    if (!is_scale_type(s->dtype) || groups < 1 || s->dims[0] != n || k % groups)
        return lk__hf_mismatch(s, e, "scales [%" PRId64 ", k / group]", n);
    *w = (struct lk_weight){.fmt = bits == 4 ? LK_FMT_CT4 : LK_FMT_CT8, .n = n, .k = k, .data = p->data, .scale = s->data,
                            .scale_dtype = s->dtype, .group = k / groups, .global = 1};
    if (z && !is_shape(z, LK_DT_I32, ceil_div(n, 32 / bits), groups))
        return lk__hf_mismatch(z, e, "I32 [%" PRId64 ", %" PRId64 "]", ceil_div(n, 32 / bits), groups);
    if (z) w->zero = z->data;
    int rc = bind_gidx(a, m->part[HF_G_IDX], w, groups, e);
    if (rc) return rc;
    /* Symmetric 4-bit codes without a table are byte for byte laoka's own q4. */
    if (bits == 4 && !w->zero && !w->gidx && k % 8 == 0) w->fmt = LK_FMT_Q4;
    return 0;
}

/* GPTQ and AWQ keep their arrays transposed; the shapes of qweight tell them apart. */
static int bind_transposed(struct lk_artifact *a, const struct hf_module *m, const struct hf_quant *q, struct lk_weight *w,
                           struct lk_err *e)
{
    const struct raw_tensor *p = m->part[HF_QWEIGHT], *s = m->part[HF_SCALES], *z = m->part[HF_QZEROS], *g = m->part[HF_GPTQ_G_IDX];
    if (!s || !z) return lk__hf_mismatch(p, e, "scales and qzeros beside it");
    if (p->dtype != LK_DT_I32 || p->n_dims != 2 || !p->dims[0] || !p->dims[1]) return lk__hf_mismatch(p, e, "I32 [rows, words]");
    if (!is_scale_type(s->dtype) || s->n_dims != 2 || !s->dims[0] || !s->dims[1]) return lk__hf_mismatch(s, e, "F16 [groups, n]");
    int64_t groups = s->dims[0], n = s->dims[1], k;
    int gptq = p->dims[1] == n, bits = 4;
    if (gptq) {
        if (z->n_dims == 2 && z->dims[1] == ceil_div(n, 4)) bits = 8;
        k = p->dims[0] * (32 / bits);
    } else {
        if (p->dims[1] * 8 != n) return lk__hf_mismatch(p, e, "[k / 8, %" PRId64 "] (GPTQ) or [k, %" PRId64 "] (AWQ)", n, n / 8);
        k = p->dims[0];
    }
    if (g && gptq && g->n_dims == 1 && g->dims[0] < k && g->dims[0] > k - 32 / bits) k = g->dims[0];
    if (!is_shape(z, LK_DT_I32, groups, ceil_div(n, 32 / bits)))
        return lk__hf_mismatch(z, e, "I32 [%" PRId64 ", %" PRId64 "]", groups, ceil_div(n, 32 / bits));
    if (k < groups) return lk__hf_mismatch(s, e, "at most %" PRId64 " groups", k);
    *w = (struct lk_weight){.fmt = !gptq ? LK_FMT_AWQ4 : bits == 4 ? LK_FMT_GPTQ4 : LK_FMT_GPTQ8, .n = n, .k = k, .data = p->data,
                            .scale = s->data, .zero = z->data, .scale_dtype = s->dtype, .group = ceil_div(k, groups), .global = 1,
                            .zero_plus1 = (uint8_t)(gptq && !q->gptq_v2)};
    return bind_gidx(a, g, w, groups, e);
}

int lk__hf_packed(struct lk_artifact *a, const struct hf_module *m, const struct hf_quant *q, struct lk_tensor *t, struct lk_err *e)
{
    return m->part[HF_PACKED] ? bind_ct(a, m, &t->w, e) : bind_transposed(a, m, q, &t->w, e);
}
