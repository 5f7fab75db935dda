/* laoka inspect MODEL: what is in the files and what a run will need. Reads the directory only, no weights, so that it answers at once for
 * any size. Arithmetic is model/forecast.h's (bytes a token) and runtime/need.h's (memory); this file collects, inspect_print.c prints. */
#include "main/inspect.h"

#include "base/mem.h"
#include "dev/dev.h"
#include "main/commands.h"
#include "text/tokenizer.h"

#include <string.h>

static const int ctx_default[] = {8192, 131072, 262144};
static const int ranks_default[] = {1, 2, 4};

/* A tensor that the file keeps as two weights counts as both. */
static void fmt_count(struct inspect *x, const struct lk_dev *cpu, const struct lk_weight *w)
{
    const struct lk_rows *r = w->fmt == LK_FMT_ROWS ? w->data : NULL;
    if (r) {
        fmt_count(x, cpu, &r->part[0]);
        fmt_count(x, cpu, &r->part[1]);
        return;
    }
    x->fmt[w->fmt].count++;
    x->fmt[w->fmt].bytes += (double)lk_weight_bytes(w);
    x->fmt[w->fmt].runs_as = lk_repack_fmt(w);
    x->fmt[w->fmt].in_place = cpu->in_place(cpu, w);
}

/* One column of the tables: all contexts on n devices, in the process of `rank`. */
static void column_add(struct inspect *x, const struct lk_artifact *a, const struct lk_opts_engine *o, int rank, int n, double process)
{
    struct inspect_column *c = &x->col[x->n_cols++];
    struct lk_forecast f;
    *c = (struct inspect_column){.rank = rank, .n = n};
    lk_forecast_make(&f, a, x->kv);
    for (int i = 0; i < x->n_ctx; i++) {
        struct lk_need_of of = {.ctx = x->ctx[i], .rank = rank, .n = n, .vocab = x->vocab, .process = process};
        struct lk_err why = {0};
        if (x->shape_err.code || lk_need_make(&c->need[i], a, o, &of, &why)) c->fails = 1;
        c->card[i] = lk_forecast_memory(&f, x->ctx[i], n, 0);
    }
}

static void part_add(struct inspect *x, const struct lk_dev *cpu, const struct lk_artifact *a)
{
    struct lk_forecast f;
    lk_forecast_make(&f, a, x->kv);
    x->part[x->n_parts++] = (struct inspect_part){.tensors = lk_artifact_count(a), .bytes = f.weights};
    x->tensors += lk_artifact_count(a);
    x->bytes += f.weights;
    x->step += f.step;
    x->draft += f.mtp;
    if (f.step > x->step_most) x->step_most = f.step;
    for (size_t i = 0; i < lk_artifact_count(a); i++) fmt_count(x, cpu, &lk_artifact_at(a, i)->w);
}

static void text_read(struct inspect *x, struct lk_tokenizer **t)
{
    size_t len;
    const char *s = lk_artifact_text(x->a, "tokenizer.json", &len);
    if (s) x->vocab = lk_tokenizer_open(t, s, len, &x->tokenizer_err) ? -2 : lk_tokenizer_vocab(*t);
    s = lk_artifact_text(x->a, "chat_template.jinja", &len);
    x->has_template = s != NULL;
    if (s) x->dialect = lk_dialect_find(s, len);
}

/* The files of the other ranks, one open at a time. */
static int ranks_read(struct inspect *x, const struct lk_dev *cpu, const struct lk_opts_engine *o, const char *path, double bare, struct lk_err *e)
{
    for (int r = 1; r < x->ranks; r++) {
        struct lk_artifact *a;
        int rc = lk_artifact_open_rank(&a, path, r, x->ranks, e);
        if (rc) return rc;
        part_add(x, cpu, a);
        column_add(x, a, o, r, x->ranks, bare);
        lk_artifact_close(a);
    }
    return 0;
}

/* Pages of weights that opening mapped (convolutions that are turned, and all that the page cache keeps in one piece with them: 6 MB of a
 * .ninfer of 17) are counted with the weights. */
static void weights_forget(const struct lk_artifact *a)
{
    for (size_t i = 0; i < lk_artifact_count(a); i++) lk_artifact_forget(a, &lk_artifact_at(a, i)->w);
}

static int collect(struct inspect *x, const struct lk_opts_engine *o, const char *path, struct lk_err *e)
{
    struct lk_tokenizer *t = NULL;
    struct lk_dev *cpu;
    weights_forget(x->a);
    double bare = (double)lk_mem_resident();
    x->kv = o->kv == LK_OPT_KV_BF16 ? LK_KV_BF16 : o->kv == LK_OPT_KV_F32 ? LK_KV_F32 : LK_KV_I8;
    x->vocab = -1;
    x->ranks = lk_artifact_ranks(x->a);
    lk_shape_read(&x->shape, lk_artifact_config(x->a), &x->shape_err);
    x->n_ctx = o->ctx > 0 ? 1 : (int)(sizeof ctx_default / sizeof *ctx_default);
    memcpy(x->ctx, ctx_default, sizeof ctx_default);
    if (o->ctx > 0) x->ctx[0] = o->ctx;
    text_read(x, &t);
    x->process = (double)lk_mem_resident(); /* now, before anything that a run does not have */
    int rc = lk_cpu_open(&cpu, 1, o->dev.isa, e);
    if (!rc) part_add(x, cpu, x->a);
    if (!rc && x->ranks) {
        column_add(x, x->a, o, 0, x->ranks, x->process);
        rc = ranks_read(x, cpu, o, path, bare, e);
    }
    for (size_t i = 0; !rc && !x->ranks && i < sizeof ranks_default / sizeof *ranks_default; i++)
        column_add(x, x->a, o, 0, ranks_default[i], x->process);
    if (cpu) cpu->close(cpu);
    lk_tokenizer_close(t);
    return rc;
}

int cmd_inspect(struct lk_opts *o, struct lk_err *e)
{
    if (o->n_args > 1) return lk_fail(e, LK_EUSAGE, "laoka inspect: expected one MODEL, found %d words", o->n_args);
    if (o->n_args) o->engine.model = o->args[0];
    const char *path = lk_model_path(o, e);
    struct inspect *x = path ? lk_calloc(1, sizeof *x) : NULL;
    if (!x) return path ? lk_fail(e, LK_ENOMEM, "inspect: no memory") : e->code;
    int rc = lk_artifact_open(&x->a, path, e);
    if (!rc) rc = collect(x, &o->engine, path, e);
    if (!rc && o->json)
        rc = inspect_json(x, e);
    else if (!rc)
        inspect_text(x);
    lk_artifact_close(x->a);
    lk_free(x);
    return rc;
}
