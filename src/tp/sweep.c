/* The sweep: see sweep.h. */
#include "tp/sweep.h"

#include "base/log.h"
#include "base/sort.h"

#include <stdlib.h>

#define SKEWS 41

static double spread(const double *t, int n, int stride)
{
    double lo = t[0], hi = t[0];
    for (int r = 1; r < n; r++) {
        double v = t[r * stride];
        if (v < lo) lo = v;
        if (v > hi) hi = v;
    }
    return (hi - lo) * 1e6;
}

static int skew(struct lk_sweep *s, struct lk_comm *c, struct lk_dev *d, struct lk_err *e)
{
    size_t n = s->el.hidden;
    float *y = d->alloc(d, n * 4, "all-reduce skew"), *part = d->alloc(d, n * 4, "all-reduce skew");
    double start[SKEWS], end[SKEWS], t[2], all[2 * LK_MAX_RANKS];
    uint64_t digest;
    int rc = y && part ? 0 : lk_fail(e, LK_ENOMEM, "no memory to measure the skew");
    for (int i = -3; i < SKEWS && !rc; i++) {
        rc = c->gather(c, t, sizeof t, all, e); /* the common start */
        t[0] = lk_clock();
        if (!rc) rc = c->reduce_add(c, d, y, part, n, e);
        if (!rc && c->settle) rc = c->settle(c, d, NULL, 0, &digest, e);
        t[1] = lk_clock();
        if (!rc) rc = c->gather(c, t, sizeof t, all, e);
        if (i < 0) continue;
        start[i] = spread(all, c->n, 2);
        end[i] = spread(all + 1, c->n, 2);
    }
    if (y) d->free(d, y);
    if (part) d->free(d, part);
    if (rc) return rc;
    lk_sort_doubles(start, SKEWS);
    lk_sort_doubles(end, SKEWS);
    s->start_skew = start[SKEWS / 2], s->start_worst = start[SKEWS - 1];
    s->end_skew = end[SKEWS / 2], s->end_worst = end[SKEWS - 1];
    return 0;
}

int lk_sweep_run(struct lk_sweep *s, struct lk_comm *c, struct lk_dev *d, const struct lk_elect *el, double budget_s, struct lk_err *e)
{
    int rc = 0;
    *s = (struct lk_sweep){.el = *el, .n = c->n, .n_ways = c->ways};
    for (int k = 0; k < c->ways && !rc; k++)
        for (int i = 0; i < LK_SWEEP_SIZES && el->way[k].ok && !rc; i++)
            rc = lk_elect_time(c, d, k, lk_sweep_kb[i] * 256, lk_sweep_kb[i] <= LK_SWEEP_GRAPH_KB, budget_s, &s->us[k][i], e);
    if (el->small >= 0) c->use(c, el->small, el->bulk_way, 16 * el->hidden);
    return rc ? rc : skew(s, c, d, e);
}
