/* Loading linears on the CPU. A mat is a list of weights that point into the caller's bytes (a
 * mapped file): nothing is copied that can be used in place. Shapes are checked here, so that ops
 * need not. */
#include "cpu/cpu_mat.h"

#include <limits.h>

static int mat_check(enum lk_mat_kind kind, const struct lk_weight *p, int n, struct lk_err *e)
{
    if (n < 1 || (kind == LK_MAT_GATE_UP && n != 2) || (kind == LK_MAT_EMBED && n != 1))
        return lk_fail(e, LK_EINPUT, "cpu: a linear of kind %d cannot have %d parts", (int)kind, n);
    for (int i = 0; i < n; i++) {
        if (p[i].fmt <= LK_FMT_NONE || p[i].fmt >= LK_FMT_COUNT || !p[i].data)
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

int cpu_mat_load(struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *parts,
                 int n_parts, struct lk_mat **out, struct lk_err *e)
{
    *out = NULL;
    int rc = mat_check(kind, parts, n_parts, e);
    if (!rc) rc = cpu_reserve_row(cpu_of(d), parts[0].k, e);
    if (rc) return rc;
    struct lk_mat *m = lk_calloc(1, sizeof *m);
    if (m) m->parts = lk_calloc((size_t)n_parts, sizeof *m->parts);
    if (m) m->owned = lk_calloc((size_t)n_parts, sizeof *m->owned);
    if (!m || !m->parts || !m->owned) {
        cpu_mat_free(d, m);
        return lk_fail(e, LK_ENOMEM, "cpu: no memory for a linear");
    }
    m->head = (struct lk_mat_head){.kind = kind, .n_parts = n_parts, .k = parts[0].k};
    for (int i = 0; i < n_parts; i++) {
        m->parts[i] = parts[i];
        m->head.n += parts[i].n;
        m->head.bytes += lk_weight_bytes(parts + i);
    }
    *out = m;
    return 0;
}

void cpu_mat_free(struct lk_dev *d, struct lk_mat *m)
{
    if (!m) return;
    for (int i = 0; i < m->head.n_parts; i++) lk_free(m->owned[i]);
    lk_free(m->owned);
    lk_free(m->parts);
    lk_free(m);
}
