/* Loading linears on the CPU. A mat is a list of weights that point into the caller's bytes (a
 * mapped file): nothing is copied that can be used in place. Shapes are checked here, so that ops
 * need not. */
#include "cpu/cpu_mat.h"

#include "base/num.h"
#include "cpu/kern.h"

#include <limits.h>

/* Turns are read in place when rows of both lie in the order of one x, and no block of rows meets both. */
static int turns_in_place(const struct cpu_dev *c, const struct lk_rows *r)
{
    for (int i = 0; i < 2; i++)
        if (r->part[i].fmt == LK_FMT_ROWS || r->run[i] % CPU_ROWS || !cpu_in_place(&c->base, &r->part[i])) return 0;
    return c->kern->order(c->kern->pick(&r->part[0])) == c->kern->order(c->kern->pick(&r->part[1]));
}

int cpu_in_place(const struct lk_dev *d, const struct lk_weight *w)
{
    const struct cpu_dev *c = (const struct cpu_dev *)d;
    if (w->fmt < LK_FMT_KERNELS || !c->kern) return 1;
    return w->fmt == LK_FMT_ROWS ? turns_in_place(c, w->data) : c->kern->pick(w) != 0;
}

static int mat_check(const struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *p, int n, struct lk_err *e)
{
    if (n < 1 || (kind == LK_MAT_GATE_UP && n != 2) || (kind == LK_MAT_EMBED && n != 1))
        return lk_fail(e, LK_EINPUT, "cpu: a linear of kind %d cannot have %d parts", (int)kind, n);
    for (int i = 0; i < n; i++) {
        if (p[i].fmt <= LK_FMT_NONE || p[i].fmt >= LK_FMT_COUNT || !p[i].data || !cpu_in_place(d, &p[i]))
            return lk_fail(e, LK_EINPUT, "cpu: part %d of a linear has no format or no data", i);
        if (p[i].n < 1 || p[i].k < 1 || p[i].n > INT_MAX / 2 || p[i].k > INT_MAX / 2)
            return lk_fail(e, LK_EINPUT, "cpu: part %d of a linear is %lld x %lld", i,
                           (long long)p[i].n, (long long)p[i].k);
        if (p[i].k != p[0].k)
            return lk_fail(e, LK_EINPUT, "cpu: parts of one linear read %lld and %lld inputs",
                           (long long)p[0].k, (long long)p[i].k);
    }
    if (kind == LK_MAT_GATE_UP && p[0].n != p[1].n)
        return lk_fail(e, LK_EINPUT, "cpu: gate has %lld rows, up has %lld", (long long)p[0].n,
                       (long long)p[1].n);
    return 0;
}

/* The f32 of each scale code with the tensor's own scale in it, as the oracle rounds it; four times
 * each, so that a kernel loads a lane's worth at once. 4 KB, in the cache while a weight is read.
 */
static int part_table(struct cpu_part *p, struct lk_err *e)
{
    float *t = lk_aligned(256 * 4 * sizeof *t);
    if (!t) return lk_fail(e, LK_ENOMEM, "cpu: no memory for a table of scales");
    for (int c = 0; c < 256; c++) {
        float s = lk_e4m3_to_f32((uint8_t)c);
        s = p->w.global_div ? s / p->w.global : s * p->w.global;
        for (int i = 0; i < 4; i++) t[c * 4 + i] = s;
    }
    p->table = p->owned = t;
    return 0;
}

static int part_load(struct cpu_dev *c, struct cpu_part *p, const struct lk_weight *w,
                     struct lk_err *e)
{
    p->w = *w;
    if (!c->kern) return 0;
    p->kern = c->kern->pick(w);
    return w->fmt == LK_FMT_NVFP4 ? part_table(p, e) : 0;
}

/* two: where the weights of a part in turns go. x is laid out for both at once, so the part's own kernel is the first one's. */
static int part_or_turns(struct cpu_dev *c, struct cpu_part *p, struct cpu_part *two, const struct lk_weight *w, struct lk_err *e)
{
    const struct lk_rows *r = w->fmt == LK_FMT_ROWS && c->kern ? w->data : NULL;
    if (!r) return part_load(c, p, w, e);
    int rc = part_load(c, two, &r->part[0], e);
    if (!rc) rc = part_load(c, two + 1, &r->part[1], e);
    p->w = *w, p->turn = two, p->kern = two->kern;
    return rc;
}

int cpu_mat_load(struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *parts,
                 int n_parts, struct lk_mat **out, struct lk_err *e)
{
    struct cpu_dev *c = cpu_of(d);
    *out = NULL;
    int rc = mat_check(d, kind, parts, n_parts, e);
    if (!rc) rc = cpu_reserve_k(c, parts[0].k, e);
    if (rc) return rc;
    struct lk_mat *m = lk_calloc(1, sizeof *m);
    if (m) m->parts = lk_calloc(3 * (size_t)n_parts, sizeof *m->parts);
    if (!m || !m->parts) {
        cpu_mat_free(d, m);
        return lk_fail(e, LK_ENOMEM, "cpu: no memory for a linear");
    }
    if (kind == LK_MAT_ROUGH && !c->kern) kind = LK_MAT_STACK; /* the oracle rounds nothing */
    m->head = (struct lk_mat_head){.kind = kind, .n_parts = n_parts, .k = parts[0].k};
    int rough = kind == LK_MAT_ROUGH;
    for (int i = 0; i < n_parts && !rc; i++) {
        rc = part_or_turns(c, m->parts + i, m->parts + n_parts + 2 * i, parts + i, e);
        if (!rc && rough) rc = cpu_rough_make(c, m->parts + i, e);
        m->head.n += parts[i].n;
        if (!rc) m->head.bytes += lk_weight_bytes(&m->parts[i].w);
    }
    if (rc) {
        cpu_mat_free(d, m);
        return rc;
    }
    /* one layout of x serves gate and up: formats that want different ones take the oracle's
     * decode, kernel 0 */
    if (c->kern && kind == LK_MAT_GATE_UP &&
        c->kern->order(m->parts[0].kern) != c->kern->order(m->parts[1].kern))
        for (int i = 0; i < 3 * n_parts; i++) m->parts[i].kern = 0;
    *out = m;
    return 0;
}

void cpu_mat_free(struct lk_dev *d, struct lk_mat *m)
{
    if (!m) return;
    for (int i = 0; m->parts && i < 3 * m->head.n_parts; i++) lk_free(m->parts[i].owned);
    lk_free(m->parts);
    lk_free(m);
}
