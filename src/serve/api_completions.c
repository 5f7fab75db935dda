/* POST /v1/completions: finished prompts (text with control tokens, or token ids) are continued; nothing is parsed. Up to 16 choices a
 * request, n for each prompt; choice i belongs to prompt i / n. */
#include "serve/run.h"

#include <string.h>

struct completion {
    size_t lp_sent[LK_MAX_N];
    int offset[LK_MAX_N]; /* characters so far, for text_offset */
    struct lk_buf prompt[LK_MAX_N]; /* echo */
    int per;                        /* choices a prompt */
};

static void free_completion(void *own)
{
    for (int i = 0; i < LK_MAX_N; i++) lk_buf_free(&((struct completion *)own)->prompt[i]);
}

static int read_ids(struct lk_run *r, const json_t *list, struct lk_ids *out, struct lk_fault *f)
{
    json_int_t vocab = lk_tokenizer_vocab(r->f->s->tok);
    const json_t *v;
    size_t i;
    json_array_foreach((json_t *)list, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return lk_fault_field(f, "prompt", "token ids must be integers from 0 to %lld", (long long)vocab - 1);
        if (lk_ids_add(out, (int32_t)json_integer_value(v)))
            return lk_fault_set(f, 503, "out_of_memory", NULL, "no memory for the prompt");
    }
    return 0;
}

static int read_one(struct lk_run *r, const json_t *p, struct lk_ids *out, struct lk_fault *f)
{
    struct lk_err e = {0};
    if (json_is_array(p)) return read_ids(r, p, out, f);
    if (!json_is_string(p)) return lk_fault_field(f, "prompt", "must be a string, an array of token ids, or an array of either");
    if (lk_tokenizer_encode(r->f->s->tok, json_string_value(p), json_string_length(p), LK_SPECIALS_ALL, out, &e)) return lk_fault_err(f, &e);
    return 0;
}

/* One prompt, or an array of them; p.n becomes the number of all choices. */
static int read_prompts(struct lk_run *r, struct lk_fault *f)
{
    json_t *p = json_object_get(r->body, "prompt");
    struct completion *own = r->own;
    size_t n = json_array_size(p);
    own->per = r->p.n;
    if (!json_is_array(p) || !n || json_is_integer(json_array_get(p, 0))) return read_one(r, p, &r->ask.ids, f);
    if (n * (size_t)r->p.n > LK_MAX_N)
        return lk_fault_field(f, "prompt", "%zu prompts with n = %d are more than the %d choices of a request", n, r->p.n, LK_MAX_N);
    for (size_t i = 0; i < n; i++) {
        r->n_prompts = (int)i + 1;
        if (read_one(r, json_array_get(p, i), &r->prompts[i], f)) return -1;
    }
    r->p.n *= (int)n;
    return 0;
}

static int read_all(struct lk_run *r, struct lk_fault *f)
{
    static const char *const names[] = {"max_tokens", "max_completion_tokens"};
    const json_t *o = NULL, *suffix = json_object_get(r->body, "suffix");
    json_int_t v;
    int rc;
    if (lk_front_model(r->f, r->body, f) || lk_run_max_tokens(r, names, 2, f) || lk_params_stops(&r->p, r->body, "stop", f)) return -1;
    if (!r->p.max_tokens) r->p.max_tokens = 16; /* OpenAI's default of this endpoint */
    if ((rc = lk_get_int(r->body, "n", 1, LK_MAX_N, &v, f)) < 0) return -1;
    if (rc) r->p.n = (int)v;
    if ((rc = lk_get_int(r->body, "best_of", 1, LK_MAX_N, &v, f)) < 0) return -1;
    if (rc && v != r->p.n) return lk_fault_set(f, 400, "parameter_not_supported", "best_of", "best_of: only the value of n is supported");
    if ((rc = lk_get_int(r->body, "logprobs", 0, 20, &v, f)) < 0) return -1;
    if (rc) r->p.logprobs = (int)v + 1;
    if (suffix && !json_is_null(suffix))
        return lk_fault_set(f, 400, "parameter_not_supported", "suffix", "suffix: not supported");
    if (lk_get_bool(r->body, "echo", &r->p.echo, f) < 0 || lk_get_obj(r->body, "stream_options", &o, f) < 0) return -1;
    if (o && !r->p.stream) return lk_fault_field(f, "stream_options", "needs stream: true");
    if (o && lk_get_bool(o, "stream_options.include_usage", &r->p.include_usage, f) < 0) return -1;
    return read_prompts(r, f);
}

/* The old shape: parallel arrays. Entries from..n of the chat-like list. */
static json_t *logprobs_json(const json_t *lp, size_t from, int *offset)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array(), *t;
    for (size_t i = from, k; i < json_array_size(lp); i++) {
        const json_t *e = json_array_get(lp, i);
        json_t *top = json_object();
        json_array_foreach(json_object_get(e, "top_logprobs"), k, t)
            json_object_set(top, json_string_value(json_object_get(t, "token")), json_object_get(t, "logprob"));
        json_array_append(tokens, json_object_get(e, "token"));
        json_array_append(values, json_object_get(e, "logprob"));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer(*offset));
        for (const char *s = json_string_value(json_object_get(e, "token")); *s; s++) *offset += (*s & 0xc0) != 0x80;
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops, "text_offset", offsets);
}

static json_t *choice_json(struct lk_run *r, int i, const char *text, size_t len, const char *finish)
{
    struct completion *own = r->own;
    struct lk_gen_totals t;
    json_t *lp = json_null();
    lk_gen_read(r->gen[i], &t);
    if (t.logprobs && (!r->p.stream || json_array_size(t.logprobs) > own->lp_sent[i])) {
        lp = logprobs_json(t.logprobs, own->lp_sent[i], &own->offset[i]);
        own->lp_sent[i] = json_array_size(t.logprobs);
    }
    return json_pack("{s:i, s:s%, s:o, s:s?}", "index", i, "text", text ? text : "", len, "logprobs", lp, "finish_reason", finish);
}

static json_t *envelope(struct lk_run *r, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", r->id, "object", "text_completion", "created", r->created, "model",
                     r->f->s->name, "choices", choices);
}

static void chunk(struct lk_run *r, int i, const char *text, size_t len, const char *finish)
{
    json_t *o = envelope(r, json_pack("[o]", choice_json(r, i, text, len, finish)));
    if (r->p.include_usage) json_object_set_new(o, "usage", json_null());
    lk_hx_send_json(r->x, NULL, o);
}

static const char *finish_name(enum lk_gen_finish f)
{
    return f == LK_GEN_LENGTH ? "length" : "stop";
}

static void end_all(struct lk_run *r)
{
    struct lk_gen_totals t[LK_MAX_N];
    struct completion *own = r->own;
    struct lk_hx *x = r->x;
    json_t *out = NULL, *choices = json_array();
    lk_run_totals(r, t);
    for (int i = 0; i < r->p.n && !r->p.stream; i++) {
        struct lk_buf whole = {0};
        if (r->p.echo) lk_buf_add(&whole, own->prompt[i / own->per].data, own->prompt[i / own->per].len);
        lk_buf_add(&whole, t[i].content->data, t[i].content->len);
        json_array_append_new(choices, choice_json(r, i, whole.data, whole.len, finish_name(t[i].finish)));
        lk_buf_free(&whole);
    }
    if (!r->p.stream || r->p.include_usage) {
        out = envelope(r, choices);
        json_object_set_new(out, "usage", lk_usage_openai(t, r->p.n, own->per));
        json_object_set_new(out, "timings", lk_timings_json(&t[0]));
    } else {
        json_decref(choices);
    }
    int stream = r->p.stream;
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    if (!stream) {
        lk_hx_json(x, 200, out);
        return;
    }
    if (out) lk_hx_send_json(x, NULL, out);
    lk_hx_send(x, NULL, "[DONE]", 6);
    lk_hx_end(x);
}

static void on_gen(void *arg, struct lk_gen *g, const struct lk_gen_event *ev)
{
    struct lk_run *r = arg;
    struct lk_gen_totals t;
    int i = lk_gen_index(g);
    switch (ev->kind) {
    case LK_GEN_CONTENT:
        if (r->p.stream) chunk(r, i, ev->text, ev->len, NULL);
        break;
    case LK_GEN_DONE:
        lk_gen_read(g, &t);
        if (r->p.stream) chunk(r, i, "", 0, finish_name(t.finish));
        if (++r->n_done == r->p.n) end_all(r);
        break;
    case LK_GEN_FAILED: lk_run_fail(r, r->x, ev->fault); break;
    default: break;
    }
}

void lk_api_completions(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_run *r = lk_run_new(f, x, &fault);
    struct completion *own = r ? lk_arena_alloc(&r->arena, sizeof *own) : NULL;
    if (r && !own) lk_fault_set(&fault, 503, "out_of_memory", NULL, "no memory for a request");
    if (r && own) {
        r->own = own;
        r->free_own = free_completion;
    }
    if (!r || !own || read_all(r, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    const struct lk_ids *ids = r->n_prompts ? r->prompts : &r->ask.ids;
    for (int i = 0; r->p.echo && (i == 0 || i < r->n_prompts); i++) lk_tokenizer_decode(f->s->tok, ids[i].v, ids[i].n, 0, &own->prompt[i]);
    lk_front_id(f, "cmpl-", r->id);
    if (lk_run_start(r, "completion", 0, on_gen, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    if (!r->p.stream) return;
    lk_hx_stream(x);
    for (int i = 0; i < r->p.n; i++) {
        const struct lk_buf *p = &own->prompt[i / own->per];
        if (p->len) chunk(r, i, p->data, p->len, NULL);
    }
}
