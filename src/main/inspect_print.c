/* The two faces of `laoka inspect`: text and JSON. Knows no model, only what inspect.h holds. */
#include "main/inspect.h"

#include <jansson.h>
#include <stdio.h>

static const int gb_s[] = {50, 900, 4800}; /* a desktop, a V100, an H200 */
#define N(a) (sizeof(a) / sizeof *(a))

static const char *const kv_names[] = {"int8", "bf16", "f32"};

/* ---- JSON ---- */

static json_t *formats_json(const struct inspect *x)
{
    json_t *out = json_array();
    for (int f = 1; f < LK_FMT_COUNT; f++)
        if (x->fmt[f].count)
            json_array_append_new(out, json_pack("{s:s, s:I, s:I, s:s}", "name", lk_fmt_info((enum lk_fmt)f)->name, "tensors",
                                  (json_int_t)x->fmt[f].count, "bytes", (json_int_t)x->fmt[f].bytes, "runs_as",
                                  lk_fmt_info(x->fmt[f].runs_as)->name));
    return out;
}

static json_t *need_json(const struct inspect *x, const struct inspect_column *c, int i)
{
    const struct lk_need *m = &c->need[i];
    json_t *o = json_pack("{s:i, s:i, s:i, s:I}", "context", x->ctx[i], "devices", c->n, "rank", c->rank, "gpu_bytes", (json_int_t)c->card[i]);
    if (c->fails) return o;
    json_t *parts = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "process", (json_int_t)m->process, "weights_mapped", (json_int_t)m->mapped,
                              "weights_copied", (json_int_t)m->copied, "buffers", (json_int_t)m->buffers, "kv", (json_int_t)m->kv,
                              "snapshots", (json_int_t)m->snapshots);
    json_object_set_new(o, "bytes_per_device", json_integer((json_int_t)m->peak));
    json_object_set_new(o, "loaded_bytes", json_integer((json_int_t)m->loaded));
    json_object_set_new(o, "session_bytes", json_integer((json_int_t)m->session));
    json_object_set_new(o, "parts", parts);
    return o;
}

static json_t *shape_json(const struct lk_config *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:i, s:b}", "hidden", (json_int_t)c->hidden, "inter",
                     (json_int_t)c->inter, "layers", (json_int_t)c->layers, "vocab", (json_int_t)c->vocab, "heads",
                     (json_int_t)c->n_q, "kv_heads", (json_int_t)c->n_kv, "head_dim", (json_int_t)c->head_dim, "gdn_k_heads",
                     (json_int_t)c->hk, "gdn_v_heads", (json_int_t)c->hv, "max_context", (json_int_t)c->max_ctx, "tied", c->tied,
                     "mtp_layers", c->mtp_layers, "vision", c->has_vision);
}

int inspect_json(const struct inspect *x, struct lk_err *e)
{
    const struct lk_config *c = lk_artifact_config(x->a);
    json_t *memory = json_array(), *bound = json_array(), *parts = json_array();
    for (int j = 0; j < x->n_cols; j++)
        for (int i = 0; i < x->n_ctx; i++) json_array_append_new(memory, need_json(x, &x->col[j], i));
    for (size_t i = 0; i < N(gb_s); i++)
        json_array_append_new(bound, json_pack("{s:i, s:f}", "gb_per_second", gb_s[i], "tokens_per_second", gb_s[i] * 1e9 / x->step_most));
    for (int i = 0; i < x->n_parts && x->ranks; i++)
        json_array_append_new(parts, json_pack("{s:i, s:I, s:I}", "rank", i, "tensors", (json_int_t)x->part[i].tensors, "bytes",
                                               (json_int_t)x->part[i].bytes));
    json_t *j = json_pack("{s:s, s:s, s:s, s:o, s:s?, s:I, s:I, s:o, s:i, s:b, s:s, s:o, s:I, s:I, s:I, s:o, s:o}", "path",
                          lk_artifact_path(x->a), "kind", lk_artifact_kind(x->a), "arch", c->arch, "shape", shape_json(c), "shape_error",
                          x->shape_err.code ? x->shape_err.text : NULL, "tensors", (json_int_t)x->tensors, "bytes",
                          (json_int_t)x->bytes, "formats", formats_json(x), "tokenizer_vocab", x->vocab, "template", x->has_template,
                          "dialect", lk_dialect_name(x->dialect), "memory", memory, "front_bytes", (json_int_t)(x->process + INSPECT_FRONT),
                          "bytes_per_token", (json_int_t)x->step, "bytes_per_draft", (json_int_t)x->draft, "bound", bound, "ranks", parts);
    int rc = !j || json_dumpf(j, stdout, JSON_INDENT(1)) || putchar('\n') == EOF ? lk_fail(e, LK_ENOMEM, "inspect: no memory") : 0;
    json_decref(j);
    return rc;
}

/* ---- text ---- */

static void print_shape(const struct inspect *x)
{
    const struct lk_config *c = lk_artifact_config(x->a);
    int full = 0;
    for (int64_t i = 0; i < c->layers; i++) full += c->full[i];
    printf("%s\n  kind       %s, %s\n", lk_artifact_path(x->a), lk_artifact_kind(x->a), c->arch);
    if (x->ranks) printf("  ranks      %d files, for runs on as many --devices\n", x->ranks);
    printf("  shape      %lld layers (%d attention, %lld gated delta net), hidden %lld, MLP %lld, vocabulary %lld%s\n", (long long)c->layers,
           full, (long long)(c->layers - full), (long long)c->hidden, (long long)c->inter, (long long)c->vocab,
           c->tied ? " (tied head)" : "");
    printf("  heads      %lld query and %lld KV of %lld; delta net %lld key and %lld value of %lld\n", (long long)c->n_q,
           (long long)c->n_kv, (long long)c->head_dim, (long long)c->hk, (long long)c->hv, (long long)c->gdn_v_dim);
    printf("  extras     %s, %s%s\n", c->mtp_layers ? "MTP layer (drafts)" : "no MTP layer (no drafts of its own)",
           c->has_vision ? "vision tower (not used yet)" : "no vision tower", lk_artifact_find(x->a, "draft_head") ? ", shortlist head" : "");
    printf("  runs       %s\n", x->shape_err.code ? x->shape_err.text : "yes");
}

static void print_text(const struct inspect *x)
{
    if (x->vocab >= 0)
        printf("  tokenizer  %d tokens\n", x->vocab);
    else
        printf("  tokenizer  %s\n", x->vocab == -1 ? "none" : x->tokenizer_err.text);
    printf("  template   %s\n", !x->has_template ? "none" : x->dialect ? lk_dialect_name(x->dialect) : "not recognised");
}

static void print_formats(const struct inspect *x)
{
    printf("\n  format        tensors          MB\n");
    for (int f = 1; f < LK_FMT_COUNT; f++) {
        if (!x->fmt[f].count) continue;
        printf("  %-12s %8zu  %10.1f", lk_fmt_info((enum lk_fmt)f)->name, x->fmt[f].count, x->fmt[f].bytes / 1e6);
        if ((int)x->fmt[f].runs_as != f)
            printf("  repacked at load%s, without rounding, as %s", x->fmt[f].in_place ? " for a GPU" : "", lk_fmt_info(x->fmt[f].runs_as)->name);
        putchar('\n');
    }
    printf("  %-12s %8zu  %10.1f\n", "all", x->tensors, x->bytes / 1e6);
    for (int i = 0; i < x->n_parts && x->ranks; i++)
        printf("  rank %-7d %8zu  %10.1f\n", i, x->part[i].tensors, x->part[i].bytes / 1e6);
}

static void print_head(const struct inspect *x)
{
    printf("\n  context  ");
    for (int j = 0; j < x->n_cols; j++)
        x->ranks ? printf("%8s %4d", "rank", x->col[j].rank) : printf("%9d dev", x->col[j].n);
}

static void print_ctx(int ctx)
{
    ctx % 1024 ? printf("\n  %7d  ", ctx) : printf("\n  %6dK  ", ctx / 1024);
}

static void print_cell(const struct inspect_column *c, double bytes)
{
    c->fails ? printf("%13s", "-") : printf("%13.1f", bytes / 1e6);
}

static void print_memory(const struct inspect *x)
{
    const struct lk_need *m = &x->col[0].need[0];
    printf("\n  memory on CPUs, MB resident a process (a conversation that fills the context, %s KV)", kv_names[x->kv]);
    print_head(x);
    printf("\n   loaded  ");
    for (int j = 0; j < x->n_cols; j++) print_cell(&x->col[j], x->col[j].need[0].loaded);
    for (int i = 0; i < x->n_ctx; i++) {
        print_ctx(x->ctx[i]);
        for (int j = 0; j < x->n_cols; j++) print_cell(&x->col[j], x->col[j].need[i].peak);
    }
    if (!x->col[0].fails)
        printf("\n  the first of them: program and text %.1f, weights in the page cache %.1f, weights laid out anew %.1f, buffers %.1f, "
               "KV %.1f, state snapshots %.1f\n  each further conversation %.1f; the server's front process %.1f\n",
               m->process / 1e6, m->mapped / 1e6, m->copied / 1e6, m->buffers / 1e6, m->kv / 1e6, m->snapshots / 1e6, m->session / 1e6,
               (x->process + INSPECT_FRONT) / 1e6);
    printf("\n  memory on GPUs, MB a card: weights, KV and state (CUDA and the buffers of a step take up to 1.5 GB more)");
    print_head(x);
    for (int i = 0; i < x->n_ctx; i++) {
        print_ctx(x->ctx[i]);
        for (int j = 0; j < x->n_cols; j++) printf("%13.1f", x->col[j].card[i] / 1e6);
    }
}

void inspect_text(const struct inspect *x)
{
    print_shape(x);
    print_text(x);
    print_formats(x);
    print_memory(x);
    printf("\n\n  a token reads %.1f MB of weights", x->step / 1e6);
    if (x->draft > 0) printf(", a draft %.1f MB", x->draft / 1e6);
    printf("; bound without drafts%s:\n", x->ranks ? " on these devices" : "");
    for (size_t i = 0; i < N(gb_s); i++) printf("  %8.1f tokens/s at %d GB/s\n", gb_s[i] * 1e9 / x->step_most, gb_s[i]);
}
