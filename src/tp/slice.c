/* Cutting weights: see slice.h. A grid is a row-major array of cells; a cell covers un outputs and uk inputs. */
#include "tp/slice.h"

#include "base/mem.h"

#include <string.h>

struct grid {
    const void *p;       /* NULL: this format has no such array */
    int64_t un, uk;      /* outputs and inputs a cell */
    size_t bytes;        /* a cell */
    int k_major;         /* rows of the grid run along k (GPTQ, AWQ) */
};

enum { DATA, SCALE, ZERO, GRIDS };

static void grid_set(struct grid *g, const void *p, int64_t un, int64_t uk, size_t bytes, int k_major)
{
    g->p = p, g->un = un, g->uk = uk, g->bytes = bytes, g->k_major = k_major;
}

/* Describes the arrays of a weight; -1 when the format cannot be cut. */
static int grids_of(const struct lk_weight *w, struct grid g[GRIDS])
{
    size_t s = lk_dtype_bytes(w->scale_dtype);
    const struct lk_fmt_info *fi = lk_fmt_info(w->fmt);
    memset(g, 0, GRIDS * sizeof *g);
    switch (w->fmt) {
    case LK_FMT_F32: grid_set(g, w->data, 1, 1, 4, 0); return 0;
    case LK_FMT_F16:
    case LK_FMT_BF16: grid_set(g, w->data, 1, 1, 2, 0); return 0;
    case LK_FMT_FP8:
        grid_set(g, w->data, 1, 1, 1, 0);
        grid_set(g + SCALE, w->scale, w->block_n, w->block_k, s, 0);
        return 0;
    case LK_FMT_NVFP4:
        grid_set(g, w->data, 1, 2, 1, 0);
        grid_set(g + SCALE, w->scale, 1, 16, 1, 0);
        return 0;
    case LK_FMT_I8:
    case LK_FMT_Q4:
        grid_set(g, w->data, 1, w->fmt == LK_FMT_I8 ? 1 : 2, 1, 0);
        grid_set(g + SCALE, w->scale, 1, w->group, s, 0);
        return 0;
    case LK_FMT_N_Q4:
    case LK_FMT_N_Q5:
    case LK_FMT_N_Q6:
        grid_set(g, w->data, 1, 64, 32, 0);
        grid_set(g + SCALE, w->scale, 1, 64, s, 0);
        grid_set(g + ZERO, w->zero, 1, 64, w->fmt == LK_FMT_N_Q5 ? 8 : 16, 0);
        return 0;
    case LK_FMT_CT4:
    case LK_FMT_CT8: {
        int64_t a_word = w->fmt == LK_FMT_CT4 ? 8 : 4;
        grid_set(g, w->data, 1, a_word, 4, 0);
        grid_set(g + SCALE, w->scale, 1, w->group, s, 0);
        grid_set(g + ZERO, w->zero, a_word, w->group, 4, 0);
        return 0;
    }
    case LK_FMT_GPTQ4:
    case LK_FMT_GPTQ8: {
        int64_t a_word = w->fmt == LK_FMT_GPTQ4 ? 8 : 4;
        grid_set(g, w->data, 1, a_word, 4, 1);
        grid_set(g + SCALE, w->scale, 1, w->group, s, 1);
        grid_set(g + ZERO, w->zero, a_word, w->group, 4, 1);
        return 0;
    }
    case LK_FMT_AWQ4:
        grid_set(g, w->data, 8, 1, 4, 1);
        grid_set(g + SCALE, w->scale, 1, w->group, s, 1);
        grid_set(g + ZERO, w->zero, 8, w->group, 4, 1);
        return 0;
    default:
        if (!fi || fi->block <= 0 || fi->block_bytes <= 0) return -1;
        grid_set(g, w->data, 1, fi->block, (size_t)fi->block_bytes, 0);
        return 0;
    }
}

static int64_t cells(int64_t elems, int64_t unit)
{
    return (elems + unit - 1) / unit;
}

/* Do the ranges fall on cell borders of an axis? One cell for all of it always does, and a range inside one, unless the format
 * has no cells of other sizes (strict): a scale serves any part of its columns, a group of 64 in planes is 64 columns. */
static int fits(const struct lk_ranges *r, int64_t unit, int64_t whole, int strict)
{
    if (!strict && cells(whole, unit) == 1) return 1;
    if (!strict && r->n == 1 && r->r[0].at / unit == (r->r[0].at + r->r[0].count - 1) / unit) return 1;
    for (int i = 0; i < r->n; i++) {
        int64_t end = r->r[i].at + r->r[i].count;
        if (r->r[i].at % unit) return 0;
        if (end % unit && (end != whole || i + 1 < r->n)) return 0;
    }
    return 1;
}

struct cut { /* one grid's cut, in cells */
    int n, whole; /* whole: the axis is one cell or not cut */
    int64_t outer, inner, out_outer, out_inner;
};

static size_t cut_plan(const struct grid *g, const struct lk_weight *w, const struct lk_ranges *r,
                       struct cut *c)
{
    int64_t cn = cells(w->n, g->un), ck = cells(w->k, g->uk);
    int64_t unit = r->axis ? g->uk : g->un, axis = r->axis ? ck : cn;
    int64_t kept = 0;
    for (int i = 0; i < r->n; i++)
        kept += cells(r->r[i].at % unit + r->r[i].count, unit);
    if (axis == 1) kept = 1;
    c->whole = axis == 1;
    int64_t on = r->axis ? cn : kept, ok = r->axis ? kept : ck;
    c->outer = g->k_major ? ck : cn, c->inner = g->k_major ? cn : ck;
    c->out_outer = g->k_major ? ok : on, c->out_inner = g->k_major ? on : ok;
    return (size_t)c->out_outer * (size_t)c->out_inner * g->bytes;
}

static void cut_copy(const struct grid *g, const struct cut *c, const struct lk_ranges *r, char *to)
{
    int64_t unit = r->axis ? g->uk : g->un;
    int along_outer = r->axis == g->k_major; /* rows of n-major grids, columns of k-major ones */
    const char *from = g->p;
    size_t row = (size_t)c->inner * g->bytes;
    if (c->whole) {
        memcpy(to, from, (size_t)c->out_outer * (size_t)c->out_inner * g->bytes);
        return;
    }
    if (along_outer) {
        for (int i = 0; i < r->n; i++) {
            int64_t at = r->r[i].at / unit, n = cells(r->r[i].at % unit + r->r[i].count, unit);
            memcpy(to, from + (size_t)at * row, (size_t)n * row);
            to += (size_t)n * row;
        }
        return;
    }
    for (int64_t o = 0; o < c->outer; o++)
        for (int i = 0; i < r->n; i++) {
            int64_t at = r->r[i].at / unit, n = cells(r->r[i].at % unit + r->r[i].count, unit);
            memcpy(to, from + (size_t)o * row + (size_t)at * g->bytes, (size_t)n * g->bytes);
            to += (size_t)n * g->bytes;
        }
}

/* A single run along the outer axis of every grid is a matter of pointers. */
static int is_view(const struct grid g[GRIDS], const struct lk_ranges *r)
{
    return r->n == 1 && r->axis == g[DATA].k_major;
}

static const void *view_at(const struct grid *g, const struct cut *c, const struct lk_ranges *r)
{
    if (!g->p || c->whole) return g->p;
    int64_t unit = r->axis ? g->uk : g->un;
    return (const char *)g->p + (size_t)(r->r[0].at / unit) * (size_t)c->inner * g->bytes;
}

static void point(struct lk_weight *out, int i, const void *p)
{
    if (i == DATA) out->data = p;
    if (i == SCALE) out->scale = p;
    if (i == ZERO) out->zero = p;
}

static int check(const struct lk_weight *w, const struct grid g[GRIDS], const struct lk_ranges *r,
                 struct lk_err *e)
{
    int64_t whole = r->axis ? w->k : w->n;
    if (!r->n) return lk_fail(e, LK_EINPUT, "a weight of %lld rows has no part for this device", (long long)whole);
    for (int i = 0; i < r->n; i++)
        if (r->r[i].at < 0 || r->r[i].count < 1 || r->r[i].at + r->r[i].count > whole)
            return lk_fail(e, LK_EINPUT, "a part reaches past the end of the weight (%lld)",
                           (long long)whole);
    if (r->axis && w->gidx)
        return lk_fail(e, LK_EINPUT,
                       "a weight with a group index a column (act-order) cannot be split by "
                       "columns; use one device or another quantisation");
    for (int i = 0; i < GRIDS; i++) {
        int64_t unit = r->axis ? g[i].uk : g[i].un;
        if (g[i].p && !fits(r, unit, whole, w->fmt >= LK_FMT_KERNELS))
            return lk_fail(e, LK_EINPUT,
                           "a split falls inside a group of %lld %s; use fewer devices or a "
                           "quantisation with smaller groups",
                           (long long)unit, r->axis ? "columns" : "rows");
    }
    return 0;
}

/* What a slice does: the grids, how each is cut, and the bytes of each in a copy. */
struct plan {
    struct grid g[GRIDS];
    struct cut c[GRIDS];
    size_t bytes[GRIDS], total;
    int same, view; /* all of the weight; pointers will do */
};

static int plan_make(struct plan *p, const struct lk_weight *w, const struct lk_ranges *r, struct lk_err *e)
{
    *p = (struct plan){.same = r->n == 1 && r->r[0].at == 0 && r->r[0].count == (r->axis ? w->k : w->n)};
    if (p->same) return 0;
    if (grids_of(w, p->g))
        return lk_fail(e, LK_EINPUT, "a weight of this format cannot be split over devices");
    int rc = check(w, p->g, r, e);
    if (rc) return rc;
    for (int i = 0; i < GRIDS; i++)
        if (p->g[i].p) p->total += (p->bytes[i] = (cut_plan(p->g + i, w, r, p->c + i) + 63) / 64 * 64);
    p->view = is_view(p->g, r);
    return 0;
}

static void shape_set(struct lk_weight *out, const struct lk_weight *w, const struct lk_ranges *r)
{
    *(r->axis ? &out->k : &out->n) = r->total;
    if (out->group > out->k) out->group = out->k;
    if (w->group == w->k) out->group = out->k;
    if (out->block_n > out->n) out->block_n = out->n;
    if (out->block_k > out->k) out->block_k = out->k;
}

int lk_slice_plan(const struct lk_weight *w, const struct lk_ranges *r, struct lk_weight *out,
                  size_t *own, struct lk_err *e)
{
    struct plan p;
    int rc = plan_make(&p, w, r, e);
    *out = *w;
    *own = 0;
    if (rc || p.same) return rc;
    shape_set(out, w, r);
    if (!p.view) *own = p.total;
    return 0;
}

int lk_slice(const struct lk_weight *w, const struct lk_ranges *r, struct lk_weight *out,
             void **own, struct lk_err *e)
{
    struct plan p;
    int rc = plan_make(&p, w, r, e);
    *own = NULL;
    *out = *w;
    if (rc || p.same) return rc;
    char *to = NULL;
    if (!p.view) {
        to = *own = lk_aligned(p.total);
        if (!to) return lk_fail(e, LK_ENOMEM, "no memory for a part of %zu bytes of a weight", p.total);
    }
    for (int i = 0; i < GRIDS; i++) {
        if (!p.g[i].p) continue;
        point(out, i, to ? to : view_at(p.g + i, p.c + i, r));
        if (to) cut_copy(p.g + i, p.c + i, r, to), to += p.bytes[i];
    }
    shape_set(out, w, r);
    return 0;
}
