/* Time by kernel: two events around every launch, summed by name when read. Owns the events; while a profile is on, graphs
 * are off, so that each launch is seen (and pays its launch cost: compare shares, not totals, with a captured step). */
#include "cuda/cuda_dev.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define PROF_LAUNCHES 8192 /* a read starts again; launches beyond are counted, not timed */

struct cu_prof {
    CUevent ev[2 * PROF_LAUNCHES];
    const char *name[PROF_LAUNCHES];
    double bytes[PROF_LAUNCHES];
    int n, lost;
};

int cu_prof_on(struct lk_dev *ld, struct lk_err *e)
{
    struct cu_dev *d = cu_of(ld);
    if (d->prof) return 0;
    struct cu_prof *p = lk_calloc(1, sizeof *p);
    if (!p) return lk_fail(e, LK_ENOMEM, "cuda profile: out of memory");
    d->drv->ctx_set(d->ctx);
    for (int i = 0; i < 2 * PROF_LAUNCHES; i++)
        if (cu_bad(d, d->drv->event_create(&p->ev[i], CU_EVENT_DEFAULT), "event")) break;
    d->prof = p;
    return 0;
}

void cu_prof_off(struct lk_dev *ld)
{
    struct cu_dev *d = cu_of(ld);
    if (!d->prof) return;
    for (int i = 0; i < 2 * PROF_LAUNCHES; i++)
        if (d->prof->ev[i]) d->drv->event_destroy(d->prof->ev[i]);
    lk_free(d->prof);
    d->prof = NULL;
}

void cu_prof_launch_begin(struct cu_dev *d, const char *name, double bytes)
{
    struct cu_prof *p = d->prof;
    if (p->n == PROF_LAUNCHES) return;
    p->name[p->n] = name;
    p->bytes[p->n] = bytes;
    d->drv->event_record(p->ev[2 * p->n], d->stream);
}

void cu_prof_launch_end(struct cu_dev *d)
{
    struct cu_prof *p = d->prof;
    if (p->n == PROF_LAUNCHES) {
        p->lost++;
        return;
    }
    d->drv->event_record(p->ev[2 * p->n + 1], d->stream);
    p->n++;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct cu_prof_row *)a)->ms, y = ((const struct cu_prof_row *)b)->ms;
    return (x < y) - (x > y);
}

int cu_prof_read(struct lk_dev *ld, struct cu_prof_row *rows, int cap)
{
    struct cu_dev *d = cu_of(ld);
    struct cu_prof *p = d->prof;
    int n = 0;
    if (!p) return 0;
    cu_bad(d, d->drv->stream_sync(d->stream), "profile");
    for (int i = 0; i < p->n; i++) {
        int j = 0;
        while (j < n && strcmp(rows[j].name, p->name[i])) j++;
        if (j == cap) continue;
        if (j == n) rows[n++] = (struct cu_prof_row){.name = p->name[i]};
        float ms = 0;
        d->drv->event_ms(&ms, p->ev[2 * i], p->ev[2 * i + 1]);
        rows[j].calls++;
        rows[j].ms += ms;
        rows[j].bytes += p->bytes[i];
    }
    p->n = p->lost = 0;
    qsort(rows, (size_t)n, sizeof *rows, by_time);
    return n;
}
