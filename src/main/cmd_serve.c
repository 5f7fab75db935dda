/* laoka serve, and the hidden worker it starts: the same binary with the same flags, the front's socket as descriptor 3. */
#include "main/commands.h"

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "runtime/worker.h"
#include "serve/serve.h"
#include "text/tokenizer.h"

#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WIRE_FD 3
#define MAX_KEYS 64

struct parts { /* of a model, without weights */
    struct lk_artifact *a;
    struct lk_tokenizer *tok;
};

static void parts_close(struct parts *p)
{
    lk_tokenizer_close(p->tok);
    lk_artifact_close(p->a);
}

static int parts_open(struct parts *p, struct lk_opts *o, struct lk_err *e)
{
    size_t n;
    int rc;
    const char *path = lk_model_path(o, e);
    if (!path) return e->code;
    if ((rc = lk_artifact_open(&p->a, path, e))) return rc;
    const char *json = lk_artifact_text(p->a, "tokenizer.json", &n);
    if (!json) return lk_fail(e, LK_EINPUT, "%s: there is no tokenizer.json; the server needs one", path);
    return lk_tokenizer_open(&p->tok, json, n, e);
}

int cmd_worker(struct lk_opts *o, struct lk_err *e)
{
    if (!lk_model_path(o, e)) return e->code;
    return lk_worker_run(WIRE_FD, &o->engine, e);
}

/* Defaults of the model's file stand where the command line says nothing. */
static void defaults(struct lk_opts_sampling *s, const struct lk_gen_defaults *g)
{
    if (!g || !g->have) return;
    if (isnan(s->temp) && !isnan(g->temperature)) s->temp = g->do_sample ? g->temperature : 0;
    if (isnan(s->top_p) && !isnan(g->top_p)) s->top_p = g->top_p;
    if (isnan(s->min_p) && !isnan(g->min_p)) s->min_p = g->min_p;
    if (isnan(s->presence) && !isnan(g->presence_penalty)) s->presence = g->presence_penalty;
    if (isnan(s->repetition) && !isnan(g->repetition_penalty)) s->repetition = g->repetition_penalty;
    if (s->top_k < 0 && g->top_k >= 0) s->top_k = g->top_k;
}

static int read_keys(const char *path, struct lk_buf *text, const char **keys, int *n, struct lk_err *e)
{
    int rc;
    *n = 0;
    if (!path) return 0;
    if ((rc = lk_file_read(text, path, 1 << 16, e))) return rc;
    for (char *save = NULL, *line = strtok_r(text->data ? text->data : "", "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
        if (*n == MAX_KEYS) return lk_fail(e, LK_EINPUT, "%s: more than %d keys", path, MAX_KEYS);
        keys[(*n)++] = line;
    }
    return *n ? 0 : lk_fail(e, LK_EINPUT, "%s: there is no key in it; put one on a line", path);
}

/* The last part of the model's path, or the bundled model's name. */
static const char *model_name(const struct lk_opts *o, struct lk_buf *b)
{
    if (o->serve.name) return o->serve.name;
    lk_buf_str(b, o->engine.model);
    while (b->len > 1 && b->data[b->len - 1] == '/') b->data[--b->len] = 0;
    const char *slash = strrchr(b->data, '/');
    return slash && slash[1] ? slash + 1 : b->data;
}

static int serve(struct lk_opts *o, struct parts *p, char **worker, struct lk_err *e)
{
    struct lk_buf key_text = {0}, name = {0};
    const char *keys[MAX_KEYS];
    const struct lk_config *c = lk_artifact_config(p->a);
    int32_t stop[LK_MAX_EOS + 1];
    int n_stop = 0, rc;
    size_t n;
    for (int i = 0; i < c->n_eos; i++) stop[n_stop++] = c->eos[i];
    int32_t end = lk_tokenizer_find(p->tok, "<|im_end|>");
    if (end >= 0) stop[n_stop++] = end; /* twice does no harm */
    const char *tpl = lk_artifact_text(p->a, "chat_template.jinja", &n);
    struct lk_serve s = {
        .o = &o->serve,
        .keys = keys,
        .parallel = o->engine.parallel,
        .name = model_name(o, &name),
        .version = "0.1",
        .tok = p->tok,
        .dialect = tpl ? lk_dialect_find(tpl, n) : LK_DIALECT_NONE,
        .stop_ids = stop,
        .n_stop_ids = n_stop,
        .defaults = o->sampling,
        .worker_argv = worker,
    };
    defaults(&s.defaults, lk_artifact_gen(p->a));
    if (s.dialect == LK_DIALECT_NONE) lk_log_warn("the model has no chat template this program knows: /v1/completions only");
    if (!(rc = read_keys(o->serve.api_key_file, &key_text, keys, &s.n_keys, e))) rc = lk_serve_run(&s, e);
    lk_buf_free(&key_text);
    lk_buf_free(&name);
    return rc;
}

/* The worker's command line: every flag of its own that differs from the default, as --print-config spells it. */
static int worker_argv(const struct lk_opts *o, struct lk_buf *text, char **argv, int cap, struct lk_err *e)
{
    struct lk_opts fresh;
    struct lk_buf plain = {0};
    int n = 0;
    lk_opts_init(&fresh);
    lk_opts_print(&fresh, LK_CMD_WORKER, &plain);
    lk_opts_print(o, LK_CMD_WORKER, text);
    argv[n++] = (char *)"laoka";
    argv[n++] = (char *)"worker";
    char *a_at = NULL, *b_at = NULL, *a = strtok_r(text->data, "\n", &a_at), *b = strtok_r(plain.data, "\n", &b_at);
    for (; a && b && n + 3 < cap; a = strtok_r(NULL, "\n", &a_at), b = strtok_r(NULL, "\n", &b_at)) {
        char *value = strchr(a, ' ');
        if (!strcmp(a, b) || !value) continue;
        *value++ = 0;
        argv[n++] = a;
        if (strcmp(value, "on")) argv[n++] = value;
    }
    argv[n] = NULL;
    lk_buf_free(&plain);
    return a ? lk_fail(e, LK_EUSAGE, "too many flags") : 0;
}

int cmd_serve(struct lk_opts *o, struct lk_err *e)
{
    struct parts p = {0};
    struct lk_buf text = {0};
    char *argv[128];
    int rc = parts_open(&p, o, e);
    if (!rc) rc = worker_argv(o, &text, argv, 128, e);
    if (!rc) rc = serve(o, &p, argv, e);
    lk_buf_free(&text);
    parts_close(&p);
    return rc;
}
