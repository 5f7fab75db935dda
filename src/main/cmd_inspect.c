/* laoka inspect MODEL: what is in the files and what a run will need. Reads the directory only, no weights, so that it answers at once for
 * any size. All arithmetic is model/forecast.h's; this file collects and prints. */
#include "main/commands.h"

#include "artifact/artifact.h"
#include "model/forecast.h"
#include "model/shape.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const int ctx_k[] = {8, 128, 256};   /* thousand tokens (1024s) */
static const int ranks[] = {1, 2, 4};
static const int gb_s[] = {50, 900, 4800};  /* a desktop, a V100, an H200 */
#define N(a) (sizeof(a) / sizeof *(a))

static const char *const kv_names[] = {"int8", "bf16", "f32"};

struct facts {
    const struct lk_artifact *a;
    enum lk_kv_kind kv;
    struct lk_shape shape;
    struct lk_err shape_err;    /* code 0: laoka can run this shape */
    struct lk_forecast f;
    int32_t vocab;              /* tokens of the tokenizer; -1: none, -2: cannot be read */
    struct lk_err tokenizer_err;
    int has_template;
    enum lk_dialect dialect;
    struct { size_t count; double bytes; enum lk_fmt runs_as; } fmt[LK_FMT_COUNT]; /* runs_as: after lk_repack */
};

/* A tensor that the file keeps as two weights counts as both. */
static void fmt_count(struct facts *x, const struct lk_weight *w)
{
    const struct lk_rows *r = w->fmt == LK_FMT_ROWS ? w->data : NULL;
    if (r) {
        fmt_count(x, &r->part[0]);
        fmt_count(x, &r->part[1]);
        return;
    }
    x->fmt[w->fmt].count++;
    x->fmt[w->fmt].bytes += (double)lk_weight_bytes(w);
    x->fmt[w->fmt].runs_as = lk_repack_fmt(w);
}

static void facts_read(struct facts *x, const struct lk_artifact *a, enum lk_kv_kind kv)
{
    *x = (struct facts){.a = a, .kv = kv, .vocab = -1};
    lk_shape_read(&x->shape, lk_artifact_config(a), &x->shape_err);
    lk_forecast_make(&x->f, a, kv);
    size_t len;
    const char *s = lk_artifact_text(a, "tokenizer.json", &len);
    struct lk_tokenizer *t = NULL;
    if (s) x->vocab = lk_tokenizer_open(&t, s, len, &x->tokenizer_err) ? -2 : lk_tokenizer_vocab(t);
    lk_tokenizer_close(t);
    s = lk_artifact_text(a, "chat_template.jinja", &len);
    x->has_template = s != NULL;
    if (s) x->dialect = lk_dialect_find(s, len);
    for (size_t i = 0; i < lk_artifact_count(a); i++) fmt_count(x, &lk_artifact_at(a, i)->w);
}

static json_t *facts_json(const struct facts *x)
{
    const struct lk_config *c = lk_artifact_config(x->a);
    json_t *formats = json_array(), *memory = json_array(), *bound = json_array();
    for (int f = 1; f < LK_FMT_COUNT; f++)
        if (x->fmt[f].count)
            json_array_append_new(formats, json_pack("{s:s, s:I, s:I, s:s}", "name", lk_fmt_info((enum lk_fmt)f)->name, "tensors",
                                  (json_int_t)x->fmt[f].count, "bytes", (json_int_t)x->fmt[f].bytes, "runs_as",
                                  lk_fmt_info(x->fmt[f].runs_as)->name));
    for (size_t i = 0; i < N(ctx_k); i++)
        for (size_t j = 0; j < N(ranks); j++)
            json_array_append_new(memory, json_pack("{s:i, s:i, s:I}", "context", ctx_k[i] * 1024, "devices", ranks[j], "bytes_per_device",
                                  (json_int_t)lk_forecast_memory(&x->f, ctx_k[i] * 1024.0, ranks[j], 0)));
    for (size_t i = 0; i < N(gb_s); i++)
        json_array_append_new(bound, json_pack("{s:i, s:f}", "gb_per_second", gb_s[i], "tokens_per_second", gb_s[i] * 1e9 / x->f.step));
    json_t *shape = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:i, s:b}", "hidden", (json_int_t)c->hidden, "inter",
                              (json_int_t)c->inter, "layers", (json_int_t)c->layers, "vocab", (json_int_t)c->vocab, "heads",
                              (json_int_t)c->n_q, "kv_heads", (json_int_t)c->n_kv, "head_dim", (json_int_t)c->head_dim, "gdn_k_heads",
                              (json_int_t)c->hk, "gdn_v_heads", (json_int_t)c->hv, "max_context", (json_int_t)c->max_ctx, "tied", c->tied,
                              "mtp_layers", c->mtp_layers, "vision", c->has_vision);
    return json_pack("{s:s, s:s, s:s, s:o, s:s?, s:I, s:I, s:o, s:i, s:b, s:s, s:o, s:I, s:I, s:o}", "path", lk_artifact_path(x->a), "kind",
                     lk_artifact_kind(x->a), "arch", c->arch, "shape", shape, "shape_error",
                     x->shape_err.code ? x->shape_err.text : NULL, "tensors", (json_int_t)lk_artifact_count(x->a), "bytes",
                     (json_int_t)x->f.weights, "formats", formats, "tokenizer_vocab", x->vocab, "template", x->has_template, "dialect",
                     lk_dialect_name(x->dialect), "memory", memory, "bytes_per_token", (json_int_t)x->f.step, "bytes_per_draft",
                     (json_int_t)x->f.mtp, "bound", bound);
}

static void print_shape(const struct facts *x)
{
    const struct lk_config *c = lk_artifact_config(x->a);
    int full = 0;
    for (int64_t i = 0; i < c->layers; i++) full += c->full[i];
    printf("%s\n  kind       %s, %s\n", lk_artifact_path(x->a), lk_artifact_kind(x->a), c->arch);
    printf("  shape      %lld layers (%d attention, %lld gated delta net), hidden %lld, MLP %lld, vocabulary %lld%s\n", (long long)c->layers,
           full, (long long)(c->layers - full), (long long)c->hidden, (long long)c->inter, (long long)c->vocab,
           c->tied ? " (tied head)" : "");
    printf("  heads      %lld query and %lld KV of %lld; delta net %lld key and %lld value of %lld\n", (long long)c->n_q,
           (long long)c->n_kv, (long long)c->head_dim, (long long)c->hk, (long long)c->hv, (long long)c->gdn_v_dim);
    printf("  extras     %s, %s%s\n", c->mtp_layers ? "MTP layer (drafts)" : "no MTP layer (no drafts of its own)",
           c->has_vision ? "vision tower (not used yet)" : "no vision tower", lk_artifact_find(x->a, "draft_head") ? ", shortlist head" : "");
    printf("  runs       %s\n", x->shape_err.code ? x->shape_err.text : "yes");
}

static void print_text(const struct facts *x)
{
    if (x->vocab >= 0)
        printf("  tokenizer  %d tokens\n", x->vocab);
    else
        printf("  tokenizer  %s\n", x->vocab == -1 ? "none" : x->tokenizer_err.text);
    printf("  template   %s\n", !x->has_template ? "none" : x->dialect ? lk_dialect_name(x->dialect) : "not recognised");
}

static void print_costs(const struct facts *x)
{
    printf("\n  format        tensors          MB\n");
    for (int f = 1; f < LK_FMT_COUNT; f++)
        if (x->fmt[f].count)
            printf("  %-12s %8zu  %10.1f%s%s\n", lk_fmt_info((enum lk_fmt)f)->name, x->fmt[f].count, x->fmt[f].bytes / 1e6,
                   (int)x->fmt[f].runs_as == f ? "" : "  repacked at load, without rounding, as ",
                   (int)x->fmt[f].runs_as == f ? "" : lk_fmt_info(x->fmt[f].runs_as)->name);
    printf("  %-12s %8zu  %10.1f\n\n  memory, MB a device (one sequence, %s KV)\n  context  ", "all", lk_artifact_count(x->a),
           x->f.weights / 1e6, kv_names[x->kv]);
    for (size_t j = 0; j < N(ranks); j++) printf("%9d dev", ranks[j]);
    for (size_t i = 0; i < N(ctx_k); i++) {
        printf("\n  %4dK    ", ctx_k[i]);
        for (size_t j = 0; j < N(ranks); j++) printf("%13.1f", lk_forecast_memory(&x->f, ctx_k[i] * 1024.0, ranks[j], 0) / 1e6);
    }
    printf("\n\n  a token reads %.1f MB of weights", x->f.step / 1e6);
    if (x->f.mtp > 0) printf(", a draft %.1f MB", x->f.mtp / 1e6);
    printf("; bound without drafts:\n");
    for (size_t i = 0; i < N(gb_s); i++) printf("  %8.1f tokens/s at %d GB/s\n", gb_s[i] * 1e9 / x->f.step, gb_s[i]);
}

int cmd_inspect(struct lk_opts *o, struct lk_err *e)
{
    if (o->n_args > 1) return lk_fail(e, LK_EUSAGE, "laoka inspect: expected one MODEL, found %d words", o->n_args);
    if (o->n_args) o->engine.model = o->args[0];
    const char *path = lk_model_path(o, e);
    struct lk_artifact *a;
    if (!path) return e->code;
    int rc = lk_artifact_open(&a, path, e);
    if (rc) return rc;
    struct facts x;
    facts_read(&x, a, o->engine.kv == LK_OPT_KV_BF16 ? LK_KV_BF16 : o->engine.kv == LK_OPT_KV_F32 ? LK_KV_F32 : LK_KV_I8);
    if (o->json) {
        json_t *j = facts_json(&x);
        if (!j || json_dumpf(j, stdout, JSON_INDENT(1)) || putchar('\n') == EOF) rc = lk_fail(e, LK_ENOMEM, "inspect: no memory");
        json_decref(j);
    } else {
        print_shape(&x);
        print_text(&x);
        print_costs(&x);
    }
    lk_artifact_close(a);
    return rc;
}
