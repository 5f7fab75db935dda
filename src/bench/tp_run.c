/* See tp_run.h. Owns the printing; measuring is tp/sweep.h's, running ranks is runtime/ranks.h's. */
#include "bench/tp_run.h"

#include "artifact/artifact.h"
#include "base/mem.h"
#include "model/forecast.h"
#include "model/score.h"
#include "runtime/ranks.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DRAFT 3
#define TOKENS 64 /* of the sequence whose layers are compared */

/* ---- the link ---- */

static double us_at(const struct lk_sweep *s, int way, double kb)
{
    const double *t = s->us[way];
    int i = 0;
    while (i < LK_SWEEP_SIZES - 2 && (double)lk_sweep_kb[i + 1] < kb) i++;
    double a = (double)lk_sweep_kb[i], b = (double)lk_sweep_kb[i + 1], f = (kb - a) / (b - a);
    if (f < 0) f = 0;
    return t[i] + (t[i + 1] - t[i]) * f;
}

struct outlook {
    int reduces, rows, draft;
    double row_kb, read_ms, comm_ms, latency_ms; /* latency: what is left when bytes cost nothing */
};

/* A round: verify of 1 + draft rows, two sums a layer; then draft passes of one row, two sums each. */
static struct outlook look(const struct lk_sweep *s, const struct lk_forecast *f, const struct lk_config *c, double ctx, double gbs)
{
    struct outlook l = {.draft = f->mtp > 0 ? DRAFT : 0, .row_kb = (double)c->hidden * 4 / 1024};
    int way = s->el.small;
    double verify = 2.0 * (double)c->layers, passes = 2.0 * l.draft;
    l.rows = 1 + l.draft;
    l.reduces = (int)(verify + passes);
    l.comm_ms = (verify * us_at(s, way, l.row_kb * l.rows) + passes * us_at(s, way, l.row_kb)) * 1e-3;
    l.latency_ms = (verify + passes) * s->us[way][0] * 1e-3;
    if (l.latency_ms > l.comm_ms) l.latency_ms = l.comm_ms;
    if (gbs > 0) l.read_ms = lk_forecast_round(f, ctx, l.draft, s->n) / gbs * 1e-6;
    return l;
}

static void outlook_text(const struct outlook *l, int n, double ctx, double gbs, char *text, size_t cap)
{
    double round = l->read_ms + l->comm_ms, bytes_ms = l->comm_ms - l->latency_ms;
    int at = snprintf(text, cap, "forecast: a round of %d rows and %d drafts has %d sums of %.0f KB a row: %.3f ms, of which %.3f are latency", l->rows, l->draft,
                      l->reduces, l->row_kb, l->comm_ms, l->latency_ms);
    if (gbs <= 0) {
        snprintf(text + at, cap - (size_t)at, "; twice the bandwidth would save %.3f ms, half the latency %.3f (give --gbs for the round)", bytes_ms / 2, l->latency_ms / 2);
        return;
    }
    snprintf(text + at, cap - (size_t)at,
             "; with %.2f ms of reading at %.1f GB/s on each of %d ranks and %.0f tokens of context, twice the bandwidth makes the round %.1f %% shorter, half the "
             "latency %.1f %%, a perfect link %.1f %%",
             l->read_ms, gbs, n, ctx, 50 * bytes_ms / round, 50 * l->latency_ms / round, 100 * l->comm_ms / round);
}

static json_t *sweep_json(const struct lk_sweep *s)
{
    json_t *ways = json_array();
    for (int k = 0; k < s->n_ways; k++) {
        const struct lk_elect_way *w = &s->el.way[k];
        json_t *o = json_pack("{s:s, s:b}", "name", w->name, "used", w->ok), *cells = json_array();
        for (int i = 0; i < LK_SWEEP_SIZES && w->ok; i++)
            json_array_append_new(cells, json_pack("{s:i, s:f, s:f, s:b}", "bytes", (int)lk_sweep_kb[i] << 10, "us", s->us[k][i], "gbs",
                                                   (double)lk_sweep_kb[i] * 1.024 / s->us[k][i], "graph", lk_sweep_kb[i] <= LK_SWEEP_GRAPH_KB));
        if (!w->ok) json_object_set_new(o, "why", json_string(w->why));
        json_object_set_new(o, "sizes", cells);
        json_array_append_new(ways, o);
    }
    return ways;
}

static void sweep_print(const struct lk_sweep *s)
{
    printf("%-9s", "us");
    for (int i = 0; i < LK_SWEEP_SIZES; i++) printf(lk_sweep_kb[i] < 1024 ? "%7zu KB" : "%7zu MB", lk_sweep_kb[i] < 1024 ? lk_sweep_kb[i] : lk_sweep_kb[i] >> 10);
    printf("   GB/s at the largest\n");
    for (int k = 0; k < s->n_ways; k++) {
        const struct lk_elect_way *w = &s->el.way[k];
        printf("%-9s", w->name);
        for (int i = 0; i < LK_SWEEP_SIZES && w->ok; i++) printf("%10.1f", s->us[k][i]);
        if (w->ok)
            printf("   %.2f%s\n", (double)lk_sweep_kb[LK_SWEEP_SIZES - 1] * 1.024 / s->us[k][LK_SWEEP_SIZES - 1], k == s->el.small ? "  (chosen)" : "");
        else
            printf("  not used: %s\n", w->why);
    }
    printf("skew of %d ranks: begin %.1f us (worst %.1f), end %.1f us (worst %.1f)\n", s->n, s->start_skew, s->start_worst, s->end_skew, s->end_worst);
}

int lk_tp_run(const struct lk_opts *o, double gbs, struct lk_err *e)
{
    struct lk_sweep s;
    struct lk_artifact *a = NULL;
    struct lk_dev *d = NULL;
    struct lk_forecast f;
    char text[640];
    if (o->engine.dev.n < 2) return lk_fail(e, LK_EUSAGE, "bench tp needs several devices: --devices cpu,cpu or cuda:0,1");
    int rc = lk_artifact_open(&a, o->engine.model, e);
    if (!rc) rc = lk_rank_device(&d, &o->engine.dev, 0, e);
    if (!rc) rc = lk_ranks_sweep(&s, &o->engine, d, (int)lk_artifact_config(a)->hidden, e);
    if (!rc) {
        double ctx = o->engine.ctx > 0 ? o->engine.ctx : 8192;
        lk_forecast_make(&f, a, o->engine.kv == LK_OPT_KV_AUTO ? LK_KV_I8 : (enum lk_kv_kind)o->engine.kv);
        struct outlook l = look(&s, &f, lk_artifact_config(a), ctx, gbs);
        outlook_text(&l, s.n, ctx, gbs, text, sizeof text);
        if (o->json) {
            json_t *j = json_pack("{s:i, s:s, s:o, s:{s:f, s:f, s:f, s:f}, s:{s:i, s:f, s:f, s:f}, s:s}", "ranks", s.n, "chosen", s.el.way[s.el.small].name, "ways",
                                  sweep_json(&s), "skew_us", "begin", s.start_skew, "begin_worst", s.start_worst, "end", s.end_skew, "end_worst", s.end_worst,
                                  "round", "sums", l.reduces, "comm_ms", l.comm_ms, "latency_ms", l.latency_ms, "read_ms", l.read_ms, "forecast", text);
            json_dumpf(j, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
            putchar('\n');
            json_decref(j);
        } else {
            sweep_print(&s);
            printf("%s\n", text);
        }
    }
    if (d) d->close(d);
    lk_artifact_close(a);
    return rc;
}

/* ---- layers ---- */

struct dump {
    int layers, hidden, tokens, vocab;
    float *x;      /* [layers + 1][tokens][hidden]: after the embedding, after each layer; the last one behind the final norm */
    float *logits; /* [tokens][vocab] */
};

static int keep_hidden(void *arg, int layer, int row, const float *x, struct lk_err *e)
{
    struct dump *d = arg;
    memcpy(d->x + ((size_t)layer * (size_t)d->tokens + (size_t)row) * (size_t)d->hidden, x, (size_t)d->hidden * 4);
    return 0;
}

static int keep_logits(void *arg, int row, const float *x, struct lk_err *e)
{
    struct dump *d = arg;
    memcpy(d->logits + (size_t)row * (size_t)d->vocab, x, (size_t)d->vocab * 4);
    return 0;
}

struct rig {
    struct lk_dev *d;
    struct lk_model *m;
    struct lk_state *s;
    struct lk_ranks *ranks;
    struct lk_score *c;
};

static void rig_close(struct rig *r)
{
    lk_score_close(r->c);
    lk_ranks_stop(r->ranks);
    lk_state_close(r->s);
    lk_model_close(r->m);
    if (r->d) r->d->close(r->d);
}

/* One run over the same ids on the first n devices. */
static int dump_run(const struct lk_opts *o, const struct lk_artifact *a, int n, struct dump *out, struct lk_err *e)
{
    struct lk_opts_engine eo = o->engine;
    struct rig r = {0};
    int32_t ids[TOKENS];
    double nll;
    const struct lk_config *c = lk_artifact_config(a);
    eo.dev.n = n;
    *out = (struct dump){.layers = (int)c->layers, .hidden = (int)c->hidden, .vocab = (int)c->vocab, .tokens = TOKENS};
    out->x = lk_calloc((size_t)(out->layers + 1) * TOKENS, (size_t)out->hidden * 4);
    out->logits = lk_calloc(TOKENS, (size_t)out->vocab * 4);
    if (!out->x || !out->logits) return lk_fail(e, LK_ENOMEM, "no memory for the hidden states");
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)(((int64_t)i * 7919 + 13) % c->vocab);
    struct lk_model_opts mo = {.max_rows = TOKENS, .max_lanes = 1, .max_pages = 1, .max_logit_rows = 16, .no_mtp = 1};
    struct lk_state_opts so = {.kv = eo.kv == LK_OPT_KV_AUTO ? LK_KV_F32 : (enum lk_kv_kind)eo.kv, .n_pages = 1, .n_slots = 1, .no_mtp = 1};
    int rc = lk_rank_device(&r.d, &eo.dev, 0, e);
    if (!rc) rc = lk_ranks_start(&r.ranks, &eo, r.d, &mo, &so, out->hidden, e);
    if (!rc) rc = lk_model_open(&r.m, a, r.d, &mo, e);
    if (!rc) rc = lk_state_open(&r.s, r.d, lk_model_shape(r.m), &so, e);
    if (!rc) rc = lk_ranks_ready(r.ranks, r.m, r.s, e);
    if (!rc) rc = lk_score_open(&r.c, r.m, r.s, TOKENS, TOKENS, 16, e);
    const struct lk_score_sink sink = {.arg = out, .logits = keep_logits, .hidden = keep_hidden};
    if (!rc) rc = lk_score_run(r.c, ids, TOKENS, &sink, &nll, e);
    rig_close(&r);
    return rc;
}

struct gap {
    double cosine, most, rms; /* smallest cosine of a row, largest difference, rms of the one-rank rows */
};

static struct gap compare(const float *a, const float *b, int rows, int n)
{
    struct gap g = {1, 0, 0};
    double all = 0;
    for (int r = 0; r < rows; r++) {
        double ab = 0, aa = 0, bb = 0;
        for (int i = 0; i < n; i++) {
            double x = a[(size_t)r * (size_t)n + (size_t)i], y = b[(size_t)r * (size_t)n + (size_t)i];
            ab += x * y, aa += x * x, bb += y * y;
            if (fabs(x - y) > g.most || x != x || y != y) g.most = x != x || y != y ? INFINITY : fabs(x - y);
        }
        double c = aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : aa == bb;
        if (!(c >= g.cosine)) g.cosine = c;
        all += aa;
    }
    g.rms = sqrt(all / ((double)rows * n));
    return g;
}

static int layers_print(const struct lk_opts *o, const struct lk_config *c, const struct dump *a, const struct dump *b, struct lk_err *e)
{
    json_t *rows = json_array();
    size_t block = (size_t)a->tokens * (size_t)a->hidden;
    struct gap logits = compare(a->logits, b->logits, a->tokens, a->vocab);
    int worst = 0;
    double least = 2;
    for (int l = 0; l <= a->layers; l++) {
        struct gap g = compare(a->x + (size_t)l * block, b->x + (size_t)l * block, a->tokens, a->hidden);
        const char *what = l == 0 ? "embedding" : l == a->layers ? "last, normed" : c->full[l - 1] ? "attention" : "GDN";
        if (!(g.cosine >= least)) least = g.cosine, worst = l;
        if (!o->json) printf("layer %2d  %-12s cosine %.9f  largest difference %.2e of rms %.2e\n", l, what, g.cosine, g.most, g.rms);
        json_array_append_new(rows, json_pack("{s:i, s:s, s:f, s:f, s:f}", "layer", l, "kind", what, "cosine", g.cosine, "difference", isfinite(g.most) ? g.most : 1e300, "rms", g.rms));
    }
    if (o->json) {
        json_t *j = json_pack("{s:i, s:i, s:o, s:{s:f, s:f}}", "ranks", o->engine.dev.n, "worst_layer", worst, "layers", rows, "logits", "cosine", logits.cosine,
                              "difference", isfinite(logits.most) ? logits.most : 1e300);
        json_dumpf(j, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
        putchar('\n');
        json_decref(j);
    } else {
        json_decref(rows);
        printf("logits    cosine %.9f  largest difference %.2e; least alike: layer %d\n", logits.cosine, logits.most, worst);
    }
    return least > 0.999 && logits.cosine > 0.999 ? 0 : lk_fail(e, LK_EINPUT, "%d ranks part from one at layer %d: cosine %.6f", o->engine.dev.n, worst, least);
}

int lk_tp_layers(const struct lk_opts *o, struct lk_err *e)
{
    struct lk_artifact *a = NULL;
    struct dump one = {0}, many = {0};
    if (o->engine.dev.n < 2) return lk_fail(e, LK_EUSAGE, "bench tp --layers needs several devices: --devices cpu,cpu or cuda:0,1");
    int rc = lk_artifact_open(&a, o->engine.model, e);
    if (!rc) rc = dump_run(o, a, 1, &one, e);
    if (!rc) rc = dump_run(o, a, o->engine.dev.n, &many, e);
    if (!rc) rc = layers_print(o, lk_artifact_config(a), &one, &many, e);
    lk_free(one.x), lk_free(one.logits), lk_free(many.x), lk_free(many.logits);
    lk_artifact_close(a);
    return rc;
}
