/* The election: see elect.h. Every decision is made from numbers that all ranks hold (gathered), so no rank can decide otherwise. */
#include "tp/elect.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIAL_PATIENCE_S 5.0
#define BROKEN_US 20000.0 /* 4 KB in more: a link that does not work. Two processes on one card take 1 to 5 ms in turn */
#define PROBE_FLOATS 1024 /* 4 KB */
#define REPEATS 5
#define GRAPH_MOST 200

struct bench {
    struct lk_dev *d;
    float *y, *partial;  /* device */
    float *host, *want;  /* [count] */
    size_t count;
};

struct verdict {
    int ok;
    char why[200];
};

static int rig_open(struct bench *b, struct lk_dev *d, size_t count, struct lk_err *e)
{
    *b = (struct bench){.d = d, .count = count};
    b->y = d->alloc(d, count * 4, "all-reduce trial");
    b->partial = d->alloc(d, count * 4, "all-reduce trial");
    b->host = lk_malloc(count * 4);
    b->want = lk_malloc(count * 4);
    if (b->y && b->partial && b->host && b->want) return 0;
    return lk_fail(e, LK_ENOMEM, "no memory to try the all-reduce with %zu floats", count);
}

static void rig_close(struct bench *b)
{
    if (b->y) b->d->free(b->d, b->y);
    if (b->partial) b->d->free(b->d, b->partial);
    lk_free(b->host);
    lk_free(b->want);
}

/* What rank r contributes: any rank can compute it. Never zero, so that a link that delivers zeros is seen. */
static float pattern(int r, uint32_t round, size_t i)
{
    uint64_t x = ((uint64_t)i * 8 + (uint64_t)r + 1) * 0x9e3779b97f4a7c15ull + round * 0xd1b54a32d192ed03ull;
    x ^= x >> 31;
    return (float)((int32_t)(x & 0xffffff) - 0x800000) * 0x1p-20f + 0x1p-22f;
}

/* All ranks hear all verdicts; the first bad one is everybody's. */
static int agree(struct lk_comm *c, struct verdict *v, struct lk_err *e)
{
    struct verdict all[LK_MAX_RANKS];
    int rc = c->gather(c, v, sizeof *v, all, e);
    for (int r = 0; r < c->n && !rc; r++)
        if (!all[r].ok) {
            *v = all[r];
            break;
        }
    return rc;
}

/* Waits for the sums that ended with rc. A wait that ended in vain is a verdict; a dead device or group is an error. */
static int settled(struct lk_comm *c, struct bench *b, int rc, struct lk_err *own, struct verdict *v, struct lk_err *e)
{
    uint64_t digest;
    if (!rc && c->settle) rc = c->settle(c, b->d, NULL, 0, &digest, own);
    if (!rc) return 0;
    if (lk_group_stopped(c->g) || b->d->sync(b->d, e)) return lk_fail(e, rc, "%s", own->text);
    v->ok = 0;
    snprintf(v->why, sizeof v->why, "%.190s", own->text);
    return 0;
}

static int sum_once(struct lk_comm *c, struct bench *b, size_t n, struct verdict *v, struct lk_err *e)
{
    struct lk_err own = {0};
    int rc = c->reduce_add(c, b->d, b->y, b->partial, n, &own);
    return settled(c, b, rc, &own, v, e);
}

static void check(struct lk_comm *c, struct bench *b, size_t n, struct verdict *v)
{
    size_t bad = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(b->host + i, b->want + i, 4) && !bad++) at = i;
    }
    if (!bad) return;
    v->ok = 0;
    snprintf(v->why, sizeof v->why, "rank %d read %zu of %zu sums wrong, the first %g for %g", c->rank, bad, n, (double)b->host[at], (double)b->want[at]);
}

static int prove_once(struct lk_comm *c, struct bench *b, size_t n, uint32_t round, struct verdict *v, struct lk_err *e)
{
    struct lk_dev *d = b->d;
    for (size_t i = 0; i < n; i++) b->host[i] = pattern(c->rank, round, i);
    d->upload(d, b->partial, b->host, n * 4);
    for (size_t i = 0; i < n; i++) {
        float s = pattern(0, round, i);
        for (int r = 1; r < c->n; r++) s += pattern(r, round, i);
        b->host[i] = pattern(c->n, round, i);
        b->want[i] = b->host[i] + s;
    }
    d->upload(d, b->y, b->host, n * 4);
    int rc = d->sync(d, e);
    struct verdict here = {.ok = 1};
    if (!rc) rc = agree(c, &here, e); /* a rank still busy with its memory must not meet a peer that waits on the same card */
    if (!rc) rc = sum_once(c, b, n, v, e);
    if (!rc && v->ok) rc = d->download(d, b->host, b->y, n * 4, e);
    if (!rc && v->ok) check(c, b, n, v);
    return rc ? rc : agree(c, v, e);
}

/* The link anew on all ranks, before anybody goes on. */
static int restart(struct lk_comm *c, double patience_s, struct lk_err *e)
{
    char mine = 1, all[LK_MAX_RANKS];
    if (!c->reset) return 0;
    int rc = c->gather(c, &mine, 1, all, e); /* nobody is inside any more */
    c->reset(c, patience_s);
    return rc ? rc : c->gather(c, &mine, 1, all, e);
}

/* After a verdict: a link that failed half way starts anew. */
static int after(struct lk_comm *c, const struct verdict *v, struct lk_err *e)
{
    return v->ok ? 0 : restart(c, TRIAL_PATIENCE_S, e);
}

static int prove(struct lk_comm *c, struct bench *b, size_t n, struct verdict *v, struct lk_err *e)
{
    int rc = 0;
    *v = (struct verdict){.ok = 1};
    for (uint32_t round = 1; round <= 3 && !rc && v->ok; round++) rc = prove_once(c, b, n, round, v, e);
    return rc ? rc : after(c, v, e);
}

/* `reps` sums of n floats, in a graph or one by one; seconds on this rank from a common start. */
static int run_timed(struct lk_comm *c, struct bench *b, size_t n, int reps, uint64_t key, double *s, struct verdict *v, struct lk_err *e)
{
    char mine = 1, all[LK_MAX_RANKS];
    struct lk_err own = {0};
    int rc = c->gather(c, &mine, 1, all, e);
    if (rc) return rc;
    double t0 = lk_clock();
    if (!key || !b->d->graph_begin(b->d, key)) {
        for (int i = 0; i < reps && !rc; i++) rc = c->reduce_add(c, b->d, b->y, b->partial, n, &own);
        if (key) b->d->graph_end(b->d);
    }
    rc = settled(c, b, rc, &own, v, e);
    *s = lk_clock() - t0;
    return rc;
}

/* The slowest rank's time counts. */
static int slowest(struct lk_comm *c, double *t, struct lk_err *e)
{
    double all[LK_MAX_RANKS];
    int rc = c->gather(c, t, sizeof *t, all, e);
    for (int r = 0; r < c->n && !rc; r++)
        if (all[r] > *t) *t = all[r];
    return rc;
}

/* Smallest of 5: what a loaded host adds to one exchange is not the link's. */
static int probe_us(struct lk_comm *c, struct bench *b, size_t n, double *us, struct verdict *v, struct lk_err *e)
{
    int rc = 0;
    *us = 0;
    for (int i = 0; i < REPEATS && !rc && v->ok; i++) {
        double s = 0;
        rc = run_timed(c, b, n, 1, 0, &s, v, e);
        if (!rc) rc = agree(c, v, e);
        if (!rc && v->ok) rc = slowest(c, &s, e);
        if (i == 0 || s * 1e6 < *us) *us = s * 1e6;
        if (i == 0 && s * 1e6 > 10 * BROKEN_US) break; /* five of these would be felt */
    }
    return rc;
}

static int time_way(struct lk_comm *c, struct bench *b, int way, size_t n, int graph, double budget_s, double *us, struct verdict *v, struct lk_err *e)
{
    double one, t[REPEATS];
    int rc = probe_us(c, b, n, &one, v, e);
    if (rc || !v->ok) return rc;
    int reps = (int)(budget_s / REPEATS / (one * 1e-6));
    reps = reps < 1 ? 1 : reps > GRAPH_MOST ? GRAPH_MOST : reps;
    rc = c->bcast(c, &reps, sizeof reps, e);
    uint64_t key = graph ? 0x6c6b2d656c656374ull ^ (uint64_t)way << 56 ^ (uint64_t)n << 16 ^ (uint64_t)reps : 0;
    for (int i = -1; i < REPEATS && !rc && v->ok; i++) { /* the first one captures */
        double s = 0;
        rc = run_timed(c, b, n, reps, key, &s, v, e);
        if (!rc) rc = agree(c, v, e);
        if (!rc && v->ok) rc = slowest(c, &s, e);
        if (i >= 0) t[i] = s * 1e6 / reps;
    }
    if (rc || !v->ok) return rc;
    lk_sort_doubles(t, REPEATS);
    *us = t[REPEATS / 2];
    return 0;
}

int lk_elect_time(struct lk_comm *c, struct lk_dev *d, int way, size_t count, int graph, double budget_s, double *us, struct lk_err *e)
{
    struct bench b;
    struct verdict v = {.ok = 1};
    c->use(c, way, way, 0);
    int rc = rig_open(&b, d, count, e);
    if (!rc) rc = time_way(c, &b, way, count, graph, budget_s > 0 ? budget_s : 0.1, us, &v, e);
    if (!rc && !v.ok) rc = lk_fail(e, LK_EDEVICE, "%s: %s", c->way[way].name, v.why);
    d->graph_reset(d);
    rig_close(&b);
    return rc;
}

/* Proof and times of one way into its row. */
static int try_way(struct lk_elect *el, struct lk_comm *c, struct bench *b, int k, const struct lk_elect_opts *o, struct lk_err *e)
{
    static const int rows[LK_ELECT_ROWS] = {1, 4, 16};
    struct lk_elect_way *w = &el->way[k];
    struct verdict v = {.ok = 1};
    double us = 0, budget = o->budget_s > 0 ? o->budget_s : 0.1;
    int rc = 0;
    c->use(c, k, k, 0);
    const size_t sizes[] = {4, PROBE_FLOATS, o->hidden, 16 * o->hidden, el->bulk};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !rc && v.ok; i++)
        if (sizes[i] <= b->count) rc = prove(c, b, sizes[i], &v, e);
    size_t probe = PROBE_FLOATS <= b->count ? PROBE_FLOATS : o->hidden;
    if (!rc && v.ok) rc = probe_us(c, b, probe, &us, &v, e);
    if (!rc && v.ok && us > (o->slow_us > 0 ? o->slow_us : BROKEN_US)) {
        v.ok = 0;
        snprintf(v.why, sizeof v.why, "right, but %.0f ms for %zu KB", us * 1e-3, probe * 4 >> 10);
    }
    for (int i = 0; i < LK_ELECT_ROWS && !rc && v.ok; i++)
        if ((size_t)rows[i] * o->hidden <= b->count) rc = time_way(c, b, k, (size_t)rows[i] * o->hidden, 1, budget, &w->us[i], &v, e);
    if (!rc && v.ok && c->ways > 1) rc = time_way(c, b, k, el->bulk, 0, budget, &w->bulk_us, &v, e);
    if (!rc) rc = after(c, &v, e);
    w->ok = v.ok;
    if (!v.ok) snprintf(w->why, sizeof w->why, "%s", v.why);
    return rc;
}

static int choose(struct lk_elect *el, struct lk_comm *c, const struct lk_elect_opts *o, struct lk_err *e)
{
    int pick[2] = {-1, -1};
    for (int k = 0; k < el->n_ways; k++) {
        const struct lk_elect_way *w = &el->way[k];
        if (!w->ok || (o->force && strcmp(o->force, w->name))) continue;
        int col = w->us[1] > 0; /* a model opened for fewer than 4 rows has only the first */
        if (pick[0] < 0 || w->us[col] < el->way[pick[0]].us[col]) pick[0] = k;
        if (pick[1] < 0 || w->bulk_us < el->way[pick[1]].bulk_us) pick[1] = k;
    }
    int rc = c->bcast(c, pick, sizeof pick, e);
    if (rc) return rc;
    if (pick[0] < 0) {
        char line[512];
        lk_elect_line(el, line, sizeof line);
        return lk_fail(e, LK_EDEVICE, "%s%s%sno all-reduce can be used: %s", o->force ? "--transport " : "", o->force ? o->force : "", o->force ? ": " : "", line);
    }
    el->small = pick[0];
    el->bulk_way = pick[1];
    c->use(c, el->small, el->bulk_way, 16 * o->hidden);
    return 0;
}

static int force_check(const struct lk_comm *c, const char *force, struct lk_err *e)
{
    char names[64] = "";
    for (int k = 0; k < c->ways; k++) {
        if (!force || !strcmp(force, c->way[k].name)) return 0;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "", c->way[k].name);
    }
    return lk_fail(e, LK_EUSAGE, "--transport %s: expected %s here", force, names);
}

int lk_elect(struct lk_elect *out, struct lk_comm *c, struct lk_dev *d, const struct lk_elect_opts *o, struct lk_err *e)
{
    struct bench b;
    *out = (struct lk_elect){.n = c->n, .n_ways = c->ways, .hidden = o->hidden, .small = -1, .bulk_way = -1};
    if (c->n == 1) return 0;
    int rc = force_check(c, o->force, e);
    if (rc) return rc;
    out->bulk = o->most < 2048 * o->hidden ? o->most : 2048 * o->hidden;
    if (c->ways == 1 && out->bulk > 16 * o->hidden) out->bulk = 16 * o->hidden; /* nothing to choose: keep the start short */
    size_t count = out->bulk > PROBE_FLOATS ? out->bulk : PROBE_FLOATS;
    if (count > o->most) count = o->most;
    rc = rig_open(&b, d, count, e);
    if (!rc && c->reset) c->reset(c, TRIAL_PATIENCE_S);
    for (int k = 0; k < c->ways && !rc; k++) {
        out->way[k] = (struct lk_elect_way){.name = c->way[k].name, .ok = c->way[k].ok};
        snprintf(out->way[k].why, sizeof out->way[k].why, "%s", c->way[k].why);
        if (c->way[k].ok && (!o->force || !strcmp(o->force, c->way[k].name))) rc = try_way(out, c, &b, k, o, e);
        else if (c->way[k].ok) out->way[k].ok = 0, snprintf(out->way[k].why, sizeof out->way[k].why, "not asked for");
    }
    if (!rc) rc = choose(out, c, o, e);
    d->graph_reset(d);
    if (!rc) rc = restart(c, 0, e); /* the trial's steps and patience end here */
    rig_close(&b);
    return rc;
}

static void add(char *text, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t cap, const char *fmt, ...)
{
    size_t at = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + at, cap - at, fmt, ap);
    va_end(ap);
}

void lk_elect_line(const struct lk_elect *el, char *text, size_t cap)
{
    int timed = 0, refused = 0;
    text[0] = 0;
    add(text, cap, "all-reduce of %d ranks, us for 1, 4, 16 rows of %zu KB: ", el->n, el->hidden * 4 >> 10);
    for (int k = 0; k < el->n_ways; k++) {
        const struct lk_elect_way *w = &el->way[k];
        if (w->ok) add(text, cap, "%s%s %.1f %.1f %.1f", timed++ ? ", " : "", w->name, w->us[0], w->us[1], w->us[2]);
    }
    if (el->small >= 0) add(text, cap, "%s: %s", timed ? "" : "none", el->way[el->small].name);
    int bulk = 0;
    for (int k = 0; k < el->n_ways; k++) {
        const struct lk_elect_way *w = &el->way[k];
        if (w->ok && w->bulk_us > 0) add(text, cap, "%s%s %.0f", bulk++ ? ", " : "; GB/s in long ones: ", w->name, (double)el->bulk * 4e-3 / w->bulk_us);
    }
    if (bulk && el->bulk_way >= 0) add(text, cap, ": %s", el->way[el->bulk_way].name);
    for (int k = 0; k < el->n_ways; k++)
        if (!el->way[k].ok) add(text, cap, "%s%s (%s)", refused++ ? ", " : "; not used: ", el->way[k].name, el->way[k].why);
}
