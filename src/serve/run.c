/* Life of a request. It has one owner at a time: the endpoint until lk_run_start, then its generations' callback and the
 * exchange's on_gone, whichever ends it first. */
#include "serve/run.h"

#include "base/mem.h"

#include <string.h>
#include <time.h>

struct lk_run *lk_run_new(struct lk_front *f, struct lk_hx *x, struct lk_fault *fault)
{
    size_t n;
    const char *body = lk_hx_body(x, &n);
    if (lk_front_ready(f, fault)) return NULL;
    json_t *o = lk_body_parse(body, n, fault);
    if (!o) return NULL;
    struct lk_run *r = lk_calloc(1, sizeof *r);
    if (!r) {
        json_decref(o);
        lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for a request");
        return NULL;
    }
    r->f = f;
    r->x = x;
    r->body = o;
    r->created = (json_int_t)time(NULL);
    lk_params_init(&r->p, &f->s->defaults);
    lk_chat_opts_init(&r->chat);
    if (lk_params_read(&r->p, o, lk_tokenizer_vocab(f->s->tok), fault)) {
        lk_run_free(r);
        return NULL;
    }
    return r;
}

void lk_run_free(struct lk_run *r)
{
    if (!r) return;
    for (int i = 0; i < LK_MAX_N; i++) lk_gen_free(r->gen[i]);
    if (r->free_own) r->free_own(r->own);
    json_decref(r->body);
    json_decref(r->tools);
    lk_params_free(&r->p);
    lk_ask_free(&r->ask);
    for (int i = 0; i < r->n_prompts; i++) lk_ids_free(&r->prompts[i]);
    lk_arena_free(&r->arena);
    lk_free(r);
}

static void on_gone(void *arg)
{
    lk_run_free(arg);
}

static const char *field_of(const char *kind)
{
    return !strcmp(kind, "completion") ? "prompt" : !strcmp(kind, "responses") ? "input" : "messages";
}

int lk_run_start(struct lk_run *r, const char *kind, int chat, lk_gen_fn fn, struct lk_fault *fault)
{
    const struct lk_ids *ids = r->n_prompts ? r->prompts : &r->ask.ids;
    int n = r->n_prompts ? r->n_prompts : 1, per = r->p.n / n;
    for (int i = 0; i < n; i++)
        if (lk_front_fit(r->f, &ids[i], field_of(kind), fault)) return -1;
    if (lk_gens_room(r->f->gens, r->p.n, fault)) return -1;
    for (int i = 0; i < r->p.n; i++) {
        struct lk_gen_opts o = {
            .ids = &ids[i / per],
            .p = &r->p,
            .index = i,
            .draw = i % per,
            .chat = chat,
            .thinking_open = chat && r->ask.thinking_open,
            .tools = r->tools,
            .parse_tools = r->parse_tools,
            .rule = r->rule,
            .deadline_s = r->f->s->o->timeout_s,
            .kind = kind,
            .fn = fn,
            .arg = r,
        };
        if (!(r->gen[i] = lk_gen_start(r->f->gens, &o, fault))) return -1;
    }
    lk_ids_free(&r->ask.ids);
    memset(&r->ask.ids, 0, sizeof r->ask.ids);
    lk_hx_on_gone(r->x, on_gone, r);
    return 0;
}

void lk_run_fail(struct lk_run *r, struct lk_hx *x, const struct lk_fault *fault)
{
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    lk_hx_error(x, fault);
}

void lk_run_totals(const struct lk_run *r, struct lk_gen_totals *t)
{
    for (int i = 0; i < r->p.n; i++) lk_gen_read(r->gen[i], &t[i]);
}

int lk_run_max_tokens(struct lk_run *r, const char *const *names, int n, struct lk_fault *fault)
{
    for (int i = 0; i < n; i++) {
        json_int_t v;
        int rc = lk_get_int(r->body, names[i], 1, 16777216, &v, fault);
        if (rc < 0) return -1;
        if (rc && !r->p.max_tokens) r->p.max_tokens = (int)v;
    }
    return 0;
}
