/* POST /v1/chat/completions, OpenAI's shape, streaming and not. Thinking goes out as reasoning_content, never in content.
 * Stream: a role chunk a choice, then pieces as they come, a finish chunk, usage when asked for, [DONE]. */
#include "serve/run.h"

#include <string.h>

struct chat {
    size_t lp_sent[LK_MAX_N];
};

/* ---- request ---- */

static int read_format(struct lk_run *r, struct lk_fault *f)
{
    const json_t *o = NULL, *js = NULL, *schema = NULL;
    const char *type = NULL;
    if (lk_get_obj(r->body, "response_format", &o, f) < 0) return -1;
    if (!o) return 0;
    if (lk_get_str(o, "response_format.type", &type, f) < 0) return -1;
    if (!type) return lk_fault_field(f, "response_format.type", "is missing");
    if (!strcmp(type, "text")) return 0;
    if (!strcmp(type, "json_object")) return lk_rule_schema(&r->rule, &r->arena, NULL, "response_format", f);
    if (strcmp(type, "json_schema")) return lk_fault_field(f, "response_format.type", "must be text, json_object or json_schema");
    if (lk_get_obj(o, "response_format.json_schema", &js, f) < 0) return -1;
    if (!js || !(schema = json_object_get(js, "schema")))
        return lk_fault_field(f, "response_format.json_schema.schema", "is missing");
    return lk_rule_schema(&r->rule, &r->arena, schema, "response_format.json_schema.schema", f);
}

static int read_choice(struct lk_run *r, struct lk_fault *f)
{
    static const char *const words[] = {"auto", "none", "required"};
    const json_t *v = json_object_get(r->body, "tool_choice");
    const char *s = json_string_value(v), *name, *type;
    if (!v || json_is_null(v)) return 0;
    if (s) {
        for (int i = 0; i < 3; i++) {
            if (strcmp(s, words[i])) continue;
            if (i == LK_CHOICE_NONE) r->parse_tools = 0;
            return lk_rule_tools(&r->rule, &r->arena, (enum lk_choice)i, NULL, r->tools, f);
        }
        return lk_fault_field(f, "tool_choice", "must be auto, none, required or a function");
    }
    type = json_string_value(json_object_get(v, "type"));
    name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    if (!type || strcmp(type, "function"))
        return lk_fault_set(f, 400, "tool_type_not_supported", "tool_choice", "tool_choice: only type function is supported");
    if (!name) return lk_fault_field(f, "tool_choice.function.name", "is missing");
    return lk_rule_tools(&r->rule, &r->arena, LK_CHOICE_NAMED, name, r->tools, f);
}

static int read_logprobs(struct lk_run *r, struct lk_fault *f)
{
    json_int_t top = 0;
    int on = 0, rc;
    if (lk_get_bool(r->body, "logprobs", &on, f) < 0 || (rc = lk_get_int(r->body, "top_logprobs", 0, 20, &top, f)) < 0) return -1;
    if (rc && top && !on) return lk_fault_field(f, "top_logprobs", "needs logprobs: true");
    r->p.logprobs = on ? (int)top + 1 : 0;
    return 0;
}

static int read_tools(struct lk_run *r, struct lk_fault *f)
{
    if (json_object_get(r->body, "functions") || json_object_get(r->body, "function_call"))
        return lk_fault_set(f, 400, "parameter_not_supported", "functions", "functions, function_call: use tools, tool_choice");
    r->tools = lk_tools_openai(json_object_get(r->body, "tools"), f);
    if (f->status) return -1;
    r->parse_tools = 1;
    return read_choice(r, f);
}

static int read_stream(struct lk_run *r, struct lk_fault *f)
{
    const json_t *o = NULL;
    if (lk_get_obj(r->body, "stream_options", &o, f) < 0) return -1;
    if (!o) return 0;
    if (!r->p.stream) return lk_fault_field(f, "stream_options", "needs stream: true");
    return lk_get_bool(o, "stream_options.include_usage", &r->p.include_usage, f) < 0 ? -1 : 0;
}

static int read_all(struct lk_run *r, struct lk_fault *f)
{
    static const char *const names[] = {"max_completion_tokens", "max_tokens"};
    const char *effort = NULL;
    json_int_t n;
    int rc;
    if (lk_front_model(r->f, r->body, f) || lk_run_max_tokens(r, names, 2, f) || lk_params_stops(&r->p, r->body, "stop", f) ||
        read_stream(r, f) || read_logprobs(r, f) || read_tools(r, f) || read_format(r, f) || lk_params_budget(&r->p, r->body, f))
        return -1;
    if ((rc = lk_get_int(r->body, "n", 1, LK_MAX_N, &n, f)) < 0) return -1;
    if (rc) r->p.n = (int)n;
    if (lk_get_str(r->body, "reasoning_effort", &effort, f) < 0) return -1;
    if (lk_params_think(&r->chat, r->body, effort, "reasoning_effort", f)) return -1;
    json_t *messages = lk_turns_openai(json_object_get(r->body, "messages"), r->f->calls, f);
    if (!messages) return -1;
    /* with tool_choice none the model is not told of the tools at all */
    rc = lk_front_render(r->f, messages, r->parse_tools ? r->tools : NULL, &r->chat, NULL, &r->ask, f);
    json_decref(messages);
    return rc;
}

/* ---- reply ---- */

static const char *finish_name(enum lk_gen_finish f)
{
    return f == LK_GEN_LENGTH ? "length" : f == LK_GEN_TOOLS ? "tool_calls" : "stop";
}

static json_t *calls_json(const json_t *calls)
{
    json_t *out = json_array(), *c;
    size_t i;
    json_array_foreach((json_t *)calls, i, c)
        json_array_append_new(out, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(c, "id"), "type", "function", "function",
                                             "name", json_object_get(c, "name"), "arguments", json_object_get(c, "arguments")));
    return out;
}

static json_t *buf_json(const struct lk_buf *b)
{
    return json_stringn(b->data ? b->data : "", b->len);
}

static json_t *choice_json(const struct lk_gen_totals *t, int index)
{
    int calls = json_array_size(t->calls) > 0;
    json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content",
                          calls && !t->content->len ? json_null() : buf_json(t->content));
    if (t->think->len) json_object_set_new(m, "reasoning_content", buf_json(t->think));
    if (calls) json_object_set_new(m, "tool_calls", calls_json(t->calls));
    return json_pack("{s:i, s:o, s:o, s:s}", "index", index, "message", m, "logprobs",
                     t->logprobs ? json_pack("{s:O}", "content", t->logprobs) : json_null(), "finish_reason",
                     finish_name(t->finish));
}

static void reply_whole(struct lk_run *r)
{
    struct lk_gen_totals t[LK_MAX_N];
    json_t *choices = json_array();
    lk_run_totals(r, t);
    for (int i = 0; i < r->p.n; i++) json_array_append_new(choices, choice_json(&t[i], i));
    json_t *out = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:o}", "id", r->id, "object", "chat.completion", "created", r->created,
                            "model", r->f->s->name, "choices", choices, "usage", lk_usage_openai(t, r->p.n, r->p.n), "timings",
                            lk_timings_json(&t[0]));
    struct lk_hx *x = r->x;
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    lk_hx_json(x, 200, out);
}

/* One chunk; delta is taken. */
static void chunk(struct lk_run *r, int index, json_t *delta, const char *finish)
{
    json_t *c = json_pack("{s:i, s:o, s:o, s:s?}", "index", index, "delta", delta, "logprobs", json_null(), "finish_reason", finish);
    struct chat *own = r->own;
    struct lk_gen_totals t;
    if (r->gen[index] && r->p.logprobs) {
        lk_gen_read(r->gen[index], &t);
        size_t n = json_array_size(t.logprobs), from = own->lp_sent[index];
        if (n > from && (finish || json_object_get(delta, "content"))) {
            json_t *list = json_array();
            for (; from < n; from++) json_array_append(list, json_array_get(t.logprobs, from));
            own->lp_sent[index] = n;
            json_object_set_new(c, "logprobs", json_pack("{s:o}", "content", list));
        }
    }
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:[o]}", "id", r->id, "object", "chat.completion.chunk", "created", r->created,
                          "model", r->f->s->name, "choices", c);
    if (r->p.include_usage) json_object_set_new(o, "usage", json_null());
    lk_hx_send_json(r->x, NULL, o);
}

static void end_stream(struct lk_run *r)
{
    struct lk_gen_totals t[LK_MAX_N];
    lk_run_totals(r, t);
    if (r->p.include_usage)
        lk_hx_send_json(r->x, NULL,
                        json_pack("{s:s, s:s, s:I, s:s, s:[], s:o, s:o}", "id", r->id, "object", "chat.completion.chunk", "created",
                                  r->created, "model", r->f->s->name, "choices", "usage", lk_usage_openai(t, r->p.n, r->p.n), "timings",
                                  lk_timings_json(&t[0])));
    struct lk_hx *x = r->x;
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    lk_hx_send(x, NULL, "[DONE]", 6);
    lk_hx_end(x);
}

static json_t *call_delta(struct lk_run *r, int index, const struct lk_gen_event *ev)
{
    struct lk_gen_totals t;
    lk_gen_read(r->gen[index], &t);
    if (ev->kind == LK_GEN_ARGS)
        return json_pack("{s:[{s:i, s:{s:s%}}]}", "tool_calls", "index", ev->call, "function", "arguments", ev->text, ev->len);
    const json_t *c = json_array_get(t.calls, (size_t)ev->call);
    return json_pack("{s:[{s:i, s:O, s:s, s:{s:s%, s:s}}]}", "tool_calls", "index", ev->call, "id", json_object_get(c, "id"), "type",
                     "function", "function", "name", ev->text, ev->len, "arguments", "");
}

static void on_gen(void *arg, struct lk_gen *g, const struct lk_gen_event *ev)
{
    struct lk_run *r = arg;
    struct lk_gen_totals t;
    int i = lk_gen_index(g);
    switch (ev->kind) {
    case LK_GEN_REASONING:
        if (r->p.stream) chunk(r, i, json_pack("{s:s%}", "reasoning_content", ev->text, ev->len), NULL);
        break;
    case LK_GEN_CONTENT:
        if (r->p.stream) chunk(r, i, json_pack("{s:s%}", "content", ev->text, ev->len), NULL);
        break;
    case LK_GEN_CALL:
    case LK_GEN_ARGS:
        if (r->p.stream) chunk(r, i, call_delta(r, i, ev), NULL);
        break;
    case LK_GEN_CALL_END:
    case LK_GEN_LOGPROBS: break;
    case LK_GEN_DONE:
        lk_gen_read(g, &t);
        if (r->p.stream) chunk(r, i, json_object(), finish_name(t.finish));
        if (++r->n_done < r->p.n) break;
        if (r->p.stream)
            end_stream(r);
        else
            reply_whole(r);
        break;
    case LK_GEN_FAILED: lk_run_fail(r, r->x, ev->fault); break;
    }
}

void lk_api_chat(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_run *r = lk_run_new(f, x, &fault);
    if (!r || read_all(r, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    lk_front_id(f, "chatcmpl-", r->id);
    r->own = lk_arena_alloc(&r->arena, sizeof(struct chat));
    if (!r->own) lk_fault_set(&fault, 503, "out_of_memory", NULL, "no memory for a request");
    if (!r->own || lk_run_start(r, "chat", 1, on_gen, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    if (!r->p.stream) return;
    lk_hx_stream(x);
    for (int i = 0; i < r->p.n; i++) chunk(r, i, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL);
}
