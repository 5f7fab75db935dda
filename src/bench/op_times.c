/* Ops: see op_times.h. */
#include "bench/op_times.h"

#include "base/log.h"
#include "base/pool.h"
#include "base/sort.h"
#include "cases/cases.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TIMES 9      /* measurements, of which the median counts */
#define ISSUES 16    /* calls in a captured graph */
#define GRAPH_ROWS 16 /* above that a call takes far longer than its launch */
#define GPU_CACHE 64e6 /* bytes that the L2 may serve at most; H200: 50 MB */

struct bench {
    const struct lk_opts *o;
    struct lk_dev *d;
    struct lk_dev_info info;
    double gbs, cache;
};

static double now(const struct bench *b)
{
    struct timespec t;
    if (!b->o->bench.cpu_time) return lk_clock();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* No chip of today gives eight cores more than 96 MB of last level cache; a guest may be told the whole socket's. */
static double cache_of(const struct lk_dev_info *i)
{
    double l3 = (double)sysconf(_SC_LEVEL3_CACHE_SIZE), most = 96e6 * (double)((lk_cores() + 7) / 8);
    return i->is_cuda ? GPU_CACHE : l3 > 0 && l3 < most ? l3 : most;
}

/* n calls; on a GPU of few rows as one graph, so that launches are not what is timed. */
static int calls(struct bench *b, struct op_run *r, int n, int graph, struct lk_err *e)
{
    for (int i = 0; i < n; i += graph ? ISSUES : 1) {
        if (graph && b->d->graph_begin(b->d, (uint64_t)(uintptr_t)r->c)) continue;
        for (int k = 0; k < (graph ? ISSUES : 1); k++) r->c->f->issue(r);
        if (graph) b->d->graph_end(b->d);
    }
    return b->d->sync(b->d, e);
}

/* Seconds a call, median. */
static int time_case(struct bench *b, struct op_run *r, int rows, double *out, struct lk_err *e)
{
    double t[TIMES], one = 0;
    int graph = b->info.is_cuda && rows <= GRAPH_ROWS, least = graph ? ISSUES : 1, rc = 0;
    for (int warm = 0; warm < 2 && !rc; warm++) {
        double t0 = now(b);
        rc = calls(b, r, least, graph, e);
        one = (now(b) - t0) / least;
    }
    double n = b->o->bench.seconds / TIMES / (one > 1e-7 ? one : 1e-7);
    int count = n < least ? least : n > 1e6 ? 1000000 : (int)n / least * least;
    for (int i = 0; i < TIMES && !rc; i++) {
        double t0 = now(b);
        rc = calls(b, r, count, graph, e);
        t[i] = (now(b) - t0) / count;
    }
    b->d->graph_reset(b->d);
    lk_sort_doubles(t, TIMES);
    *out = t[TIMES / 2];
    return rc;
}

/* "... T4 ..." in the name: the rows; 0 when it does not say. */
static int rows_of(const char *name)
{
    const char *p = strstr(name, " T");
    return p ? atoi(p + 2) : 0;
}

static void judge(const struct bench *b, struct lk_cell *c, const struct op_case *oc, double s)
{
    double bytes = 0, flops = 0, far;
    oc->f->cost(oc, &bytes, &flops);
    c->ms_round = s * 1e3;
    c->gb_round = bytes * 1e-9;
    c->gbs = bytes / s * 1e-9;
    c->gflops = flops / s * 1e-9;
    far = bytes - b->cache;
    if (b->gbs <= 0 || far <= 0 || s >= 0.97 * far / (b->gbs * 1e9)) return;
    c->mark = LK_CELL_IMPOSSIBLE;
    snprintf(c->note, sizeof c->note, "a call reads %.3f GB, of which caches may hold %.3f; the rest at %.1f GB/s takes %.3f ms, measured: %.3f ms", bytes * 1e-9,
             b->cache * 1e-9, b->gbs, far / b->gbs * 1e-6, s * 1e3);
}

static int case_run(struct bench *b, const struct op_case *oc, struct lk_table *t, struct lk_err *e)
{
    struct lk_cell c = {.prompt_n = -1, .cached_n = -1, .predicted_n = -1, .ttft_s = -1, .prefill_tps = -1, .tps = -1, .accept = -1, .ms_round = -1,
                        .tokens_round = -1, .gb_round = -1, .gbs = -1, .gflops = -1};
    struct op_run r;
    double s = 0;
    int rows = rows_of(oc->name), rc = 0;
    c.tokens = rows;
    snprintf(c.size, sizeof c.size, rows ? "T%d" : "–", rows);
    snprintf(c.kind, sizeof c.kind, "%s", oc->f->op);
    snprintf(c.run, sizeof c.run, "%s", oc->name);
    ot_run_begin(&r, oc, b->d);
    if (!r.failed) rc = time_case(b, &r, rows, &s, e);
    if (r.failed || rc) {
        c.mark = LK_CELL_FAILED;
        snprintf(c.note, sizeof c.note, "%.230s", r.failed ? r.why : e->text);
    } else {
        judge(b, &c, oc, s);
    }
    ot_run_end(&r);
    lk_log_info("%-64s %10.1f us %8.2f GB/s %10.1f GFLOP/s %s", oc->name, c.ms_round * 1e3, c.gbs, c.gflops, c.note);
    if (lk_table_add(t, &c)) return lk_fail(e, LK_ENOMEM, "no memory for the table");
    if (!rc && b->o->bench.out) rc = lk_table_save(t, b->o->bench.out, 0, e);
    return rc;
}

static int wanted(const struct lk_opts *o, const struct op_case *c)
{
    return c->use & OP_BENCH && (!o->bench.only || strstr(c->name, o->bench.only) || !strcmp(c->f->op, o->bench.only));
}

static void head_put(const struct bench *b, struct lk_table *t)
{
    char line[120];
    json_object_set_new(t->head, "device", json_string(b->info.name));
    snprintf(line, sizeof line, "one call of an op is a round here; median of %d, %.2f s a case%s", TIMES, b->o->bench.seconds, b->o->bench.cpu_time ? ", processor time" : "");
    json_object_set_new(t->head, "ops", json_string(line));
    json_object_set_new(t->head, "physics_gbs", b->gbs > 0 ? json_real(b->gbs) : json_string("not checked (give --gbs)"));
    json_object_set_new(t->head, "cache_gb", json_real(b->cache * 1e-9));
}

int lk_ops_run(const struct lk_opts *o, double gbs, struct lk_table *t, struct lk_err *e)
{
    struct bench b = {.o = o, .gbs = gbs};
    struct op_table table = {0};
    struct lk_progress bar;
    char name[32];
    int n = 0, done = 0;
    snprintf(name, sizeof name, o->engine.dev.at[0].is_cuda ? "cuda:%d" : "cpu", o->engine.dev.at[0].index);
    if (ot_table_all(&table) < 1) return lk_fail(e, LK_ENOMEM, "no memory for the table of cases");
    for (int i = 0; i < table.n; i++) n += wanted(o, &table.v[i]);
    int rc = n ? ot_open(&b.d, o->engine.dev.isa && !o->engine.dev.at[0].is_cuda ? o->engine.dev.isa : name, o->engine.dev.image, o->engine.dev.threads, e)
               : lk_fail(e, LK_EUSAGE, "--only %s: no case or op has that in its name", o->bench.only ? o->bench.only : "");
    if (!rc) {
        b.d->info(b.d, &b.info);
        b.cache = cache_of(&b.info);
        head_put(&b, t);
        lk_progress_begin(&bar, "ops", "cases", (uint64_t)n);
        for (int i = 0; i < table.n && !rc; i++) {
            if (!wanted(o, &table.v[i])) continue;
            rc = case_run(&b, &table.v[i], t, e);
            lk_progress_set(&bar, (uint64_t)++done);
        }
        lk_progress_end(&bar);
        b.d->close(b.d);
    }
    ot_table_free(&table);
    return rc;
}
