/* POST /v1/responses, OpenAI's newer shape. An answer is a row of items (reasoning, message, function_call); a stored
 * response keeps its own items and those it was asked with, so that previous_response_id can go on from them. The store is
 * in memory: 1,024 responses or 256 MB, the least recently used go first, a restart forgets them. */
#include "serve/run.h"

#include <string.h>

enum item { NONE, REASONING, MESSAGE, CALL };

struct responses {
    json_t *input;    /* items of the whole conversation before this answer */
    json_t *output;   /* items done */
    json_t *previous; /* id or null */
    json_t *echo;     /* request fields that the response repeats */
    enum item open;
    char item_id[64];
    struct lk_buf text; /* of the open item */
    int call;
    json_int_t seq;
    int store;
    const json_t *lp;         /* all log probabilities so far, or NULL; borrowed from the generation */
    size_t lp_item, lp_sent;  /* those of the open item begin here; told in deltas so far */
};

static void free_responses(void *own)
{
    struct responses *o = own;
    json_decref(o->input);
    json_decref(o->output);
    json_decref(o->previous);
    json_decref(o->echo);
    lk_buf_free(&o->text);
    lk_free(o);
}

/* ---- request ---- */

static int read_choice(struct lk_run *r, struct lk_fault *f)
{
    static const char *const words[] = {"auto", "none", "required"};
    const json_t *v = json_object_get(r->body, "tool_choice");
    const char *s = json_string_value(v);
    if (!v || json_is_null(v)) return 0;
    for (int i = 0; s && i < 3; i++) {
        if (strcmp(s, words[i])) continue;
        if (i == LK_CHOICE_NONE) r->parse_tools = 0;
        return lk_rule_tools(&r->rule, &r->arena, (enum lk_choice)i, NULL, r->tools, f);
    }
    const char *type = json_string_value(json_object_get(v, "type")), *name = json_string_value(json_object_get(v, "name"));
    if (s || !type || strcmp(type, "function") || !name)
        return lk_fault_set(f, 400, "tool_choice_not_supported", "tool_choice",
                            "tool_choice: must be auto, none, required or {type: function, name}");
    return lk_rule_tools(&r->rule, &r->arena, LK_CHOICE_NAMED, name, r->tools, f);
}

static int read_format(struct lk_run *r, struct lk_fault *f)
{
    const json_t *text = NULL, *o = NULL;
    const char *type = NULL;
    if (lk_get_obj(r->body, "text", &text, f) < 0 || (text && lk_get_obj(text, "text.format", &o, f) < 0)) return -1;
    if (!o) return 0;
    if (lk_get_str(o, "text.format.type", &type, f) < 0) return -1;
    if (type && !strcmp(type, "text")) return 0;
    if (type && !strcmp(type, "json_object")) return lk_rule_schema(&r->rule, &r->arena, NULL, "text.format", f);
    if (!type || strcmp(type, "json_schema") || !json_object_get(o, "schema"))
        return lk_fault_field(f, "text.format", "must be text, json_object or json_schema with a schema");
    return lk_rule_schema(&r->rule, &r->arena, json_object_get(o, "schema"), "text.format.schema", f);
}

static int read_input(struct lk_run *r, struct lk_fault *f)
{
    struct responses *own = r->own;
    const json_t *in = json_object_get(r->body, "input"), *it;
    const char *prev = NULL;
    size_t i;
    own->input = json_array();
    if (lk_get_str(r->body, "previous_response_id", &prev, f) < 0) return -1;
    if (prev) {
        const json_t *was = lk_lru_get(r->f->responses, prev);
        if (!was)
            return lk_fault_set(f, 404, "response_not_found", "previous_response_id", "previous_response_id: \"%.80s\" is not stored",
                                prev);
        json_array_extend(own->input, json_object_get(was, "input"));
        json_array_extend(own->input, json_object_get(json_object_get(was, "response"), "output"));
        own->previous = json_string(prev);
    }
    if (json_is_string(in)) {
        json_array_append_new(own->input, json_pack("{s:s, s:s, s:[{s:s, s:O}]}", "type", "message", "role", "user", "content", "type",
                                                    "input_text", "text", in));
        return 0;
    }
    if (!json_is_array(in) || (!json_array_size(in) && !prev))
        return lk_fault_field(f, "input", "must be a string or an array of items");
    json_array_foreach((json_t *)in, i, it) json_array_append(own->input, (json_t *)it);
    return 0;
}

static int read_prompt(struct lk_run *r, struct lk_fault *f)
{
    struct responses *own = r->own;
    const json_t *reasoning = NULL;
    const char *instructions = NULL, *effort = NULL;
    if (lk_front_model(r->f, r->body, f) || read_input(r, f)) return -1;
    if (lk_get_str(r->body, "instructions", &instructions, f) < 0 || lk_get_obj(r->body, "reasoning", &reasoning, f) < 0) return -1;
    if (reasoning && lk_get_str(reasoning, "reasoning.effort", &effort, f) < 0) return -1;
    if (lk_params_think(&r->chat, r->body, effort, "reasoning.effort", f)) return -1;
    r->tools = lk_tools_responses(json_object_get(r->body, "tools"), f);
    r->parse_tools = 1;
    if (f->status || read_choice(r, f)) return -1;
    json_t *messages = lk_turns_responses(instructions, own->input, r->f->calls, f);
    if (!messages) return -1;
    int rc = lk_front_render(r->f, messages, r->parse_tools ? r->tools : NULL, &r->chat, NULL, &r->ask, f);
    json_decref(messages);
    return rc;
}

static int refuse_unsupported(struct lk_run *r, struct lk_fault *f)
{
    int background = 0, parallel = 1;
    const char *truncation = NULL;
    json_int_t top = 0;
    if (lk_get_bool(r->body, "background", &background, f) < 0 || lk_get_str(r->body, "truncation", &truncation, f) < 0 ||
        lk_get_bool(r->body, "parallel_tool_calls", &parallel, f) < 0 || lk_get_int(r->body, "top_logprobs", 0, 20, &top, f) < 0)
        return -1;
    if (background) return lk_fault_set(f, 400, "background_not_supported", "background", "background: not supported");
    if (truncation && strcmp(truncation, "disabled") && strcmp(truncation, "auto"))
        return lk_fault_field(f, "truncation", "must be disabled or auto");
    r->p.logprobs = top ? (int)top + 1 : 0;
    return 0;
}

/* include: what a client may ask for beside the answer; log probabilities are the one part this server can tell. */
static int read_include(struct lk_run *r, struct lk_fault *f)
{
    const json_t *list = NULL, *v;
    size_t i;
    if (lk_get_arr(r->body, "include", &list, f) < 0) return -1;
    json_array_foreach((json_t *)list, i, v)
    {
        const char *name = json_string_value(v);
        if (!name) return lk_fault_field(f, "include", "must be an array of strings");
        if (!strcmp(name, "message.output_text.logprobs") && !r->p.logprobs) r->p.logprobs = 1;
    }
    return 0;
}

static json_t *echo_fields(const struct lk_run *r)
{
    static const char *const names[] = {"instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user"};
    json_t *o = json_object(), *tools = json_object_get(r->body, "tools"), *choice = json_object_get(r->body, "tool_choice");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = json_object_get(r->body, names[i]);
        json_object_set(o, names[i], v ? v : json_null());
    }
    json_object_set_new(o, "parallel_tool_calls", json_true());
    json_object_set_new(o, "tools", tools && !json_is_null(tools) ? json_incref(tools) : json_array());
    json_object_set_new(o, "tool_choice", choice && !json_is_null(choice) ? json_incref(choice) : json_string("auto"));
    json_t *text = json_object_get(r->body, "text"), *reasoning = json_object_get(r->body, "reasoning");
    json_object_set_new(o, "text", json_is_object(text) ? json_incref(text) : json_pack("{s:{s:s}}", "format", "type", "text"));
    json_object_set_new(o, "reasoning", json_is_object(reasoning) ? json_incref(reasoning)
                                                                    : json_pack("{s:n, s:n}", "effort", "summary"));
    if (json_is_null(json_object_get(o, "metadata"))) json_object_set_new(o, "metadata", json_object());
    return o;
}

static int read_all(struct lk_run *r, struct lk_fault *f)
{
    static const char *const names[] = {"max_output_tokens"};
    struct responses *own = r->own;
    const json_t *meta = NULL;
    own->store = 1;
    if (refuse_unsupported(r, f) || read_include(r, f) || lk_run_max_tokens(r, names, 1, f) || read_format(r, f) ||
        lk_get_bool(r->body, "store", &own->store, f) < 0 || lk_get_obj(r->body, "metadata", &meta, f) < 0 ||
        lk_params_budget(&r->p, r->body, f) || read_prompt(r, f))
        return -1;
    own->echo = echo_fields(r);
    return 0;
}

/* ---- reply ---- */

static json_t *usage_json(const struct lk_gen_totals *t)
{
    return json_pack("{s:i, s:{s:i}, s:i, s:{s:i}, s:i}", "input_tokens", t->prompt, "input_tokens_details", "cached_tokens", t->cached,
                     "output_tokens", t->completion, "output_tokens_details", "reasoning_tokens", t->reasoning, "total_tokens",
                     t->prompt + t->completion);
}

/* t NULL: in progress. */
static json_t *response_json(struct lk_run *r, const struct lk_gen_totals *t)
{
    struct responses *own = r->own;
    int cut = t && t->finish == LK_GEN_LENGTH;
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o, s:s, s:O, s:O, s:o}", "id", r->id, "object", "response", "created_at", r->created,
                          "status", !t ? "in_progress" : cut ? "incomplete" : "completed", "error", json_null(), "incomplete_details",
                          cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "model", r->f->s->name, "output",
                          own->output, "previous_response_id", own->previous ? own->previous : json_null(), "usage",
                          t ? usage_json(t) : json_null());
    json_object_set_new(o, "store", json_boolean(own->store));
    json_object_set_new(o, "truncation", json_string("disabled"));
    json_object_update(o, own->echo);
    if (t) json_object_set_new(o, "timings", lk_timings_json(t));
    return o;
}

static void say(struct lk_run *r, const char *type, json_t *o)
{
    struct responses *own = r->own;
    if (!r->p.stream) {
        json_decref(o);
        return;
    }
    json_object_set_new(o, "type", json_string(type));
    json_object_set_new(o, "sequence_number", json_integer(own->seq++));
    lk_hx_send_json(r->x, type, o);
}

static json_int_t item_index(const struct responses *own)
{
    return (json_int_t)json_array_size(own->output);
}

/* Log probabilities from..end of the open message. */
static json_t *logprobs_from(const struct responses *own, size_t from)
{
    json_t *list = json_array();
    for (; from < json_array_size(own->lp); from++) json_array_append(list, json_array_get(own->lp, from));
    return list;
}

static json_t *text_part(const struct responses *own, const char *text, size_t n)
{
    json_t *p = json_pack("{s:s, s:s%}", "type", own->open == MESSAGE ? "output_text" : "reasoning_text", "text", text ? text : "", n);
    if (own->open == MESSAGE) {
        json_object_set_new(p, "annotations", json_array());
        json_object_set_new(p, "logprobs", logprobs_from(own, own->lp_item));
    }
    return p;
}

static json_t *item_json(struct lk_run *r, const json_t *call, int done)
{
    struct responses *own = r->own;
    const char *status = done ? "completed" : "in_progress";
    json_t *content = done && own->open != CALL ? json_pack("[o]", text_part(own, own->text.data, own->text.len)) : json_array();
    if (own->open == REASONING)
        return json_pack("{s:s, s:s, s:[], s:o, s:s}", "id", own->item_id, "type", "reasoning", "summary", "content", content, "status",
                         status);
    if (own->open == MESSAGE)
        return json_pack("{s:s, s:s, s:s, s:o, s:s}", "id", own->item_id, "type", "message", "role", "assistant", "content", content,
                         "status", status);
    json_decref(content);
    return json_pack("{s:s, s:s, s:O, s:O, s:s%, s:s}", "id", own->item_id, "type", "function_call", "call_id", json_object_get(call, "id"),
                     "name", json_object_get(call, "name"), "arguments", own->text.data ? own->text.data : "", own->text.len, "status",
                     status);
}

static json_t *at(struct responses *own, int with_content)
{
    json_t *o = json_pack("{s:s, s:I}", "item_id", own->item_id, "output_index", item_index(own));
    if (with_content) json_object_set_new(o, "content_index", json_integer(0));
    return o;
}

static void open_item(struct lk_run *r, enum item kind, const json_t *call)
{
    static const char *const prefix[] = {"", "rs_", "msg_", "fc_"};
    struct responses *own = r->own;
    own->open = kind;
    own->lp_item = own->lp_sent;
    lk_buf_reset(&own->text);
    lk_front_id(r->f, prefix[kind], own->item_id);
    say(r, "response.output_item.added", json_pack("{s:I, s:o}", "output_index", item_index(own), "item", item_json(r, call, 0)));
    if (kind == CALL) return;
    json_t *o = at(own, 1);
    json_t *part = text_part(own, "", 0);
    if (kind == MESSAGE) json_object_set_new(part, "logprobs", json_array());
    json_object_set_new(o, "part", part);
    say(r, "response.content_part.added", o);
}

static void close_item(struct lk_run *r, const json_t *call)
{
    struct responses *own = r->own;
    const char *text = own->text.data ? own->text.data : "";
    if (own->open == NONE) return;
    json_t *o = at(own, own->open != CALL);
    json_object_set_new(o, own->open == CALL ? "arguments" : "text", json_stringn(text, own->text.len));
    if (own->open == CALL) {
        json_object_set(o, "name", json_object_get(call, "name"));
        say(r, "response.function_call_arguments.done", o);
    } else {
        if (own->open == MESSAGE) json_object_set_new(o, "logprobs", logprobs_from(own, own->lp_item));
        say(r, own->open == MESSAGE ? "response.output_text.done" : "response.reasoning_text.done", o);
        o = at(own, 1);
        json_object_set_new(o, "part", text_part(own, text, own->text.len));
        say(r, "response.content_part.done", o);
    }
    json_t *item = item_json(r, call, 1);
    say(r, "response.output_item.done", json_pack("{s:I, s:O}", "output_index", item_index(own), "item", item));
    json_array_append_new(own->output, item);
    /* thinking has none, and what follows it in the same round may be there already */
    if (own->open != REASONING) own->lp_sent = json_array_size(own->lp);
    own->open = NONE;
}

static void piece(struct lk_run *r, const struct lk_gen_event *ev)
{
    static const char *const names[] = {"", "response.reasoning_text.delta", "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    struct responses *own = r->own;
    lk_buf_add(&own->text, ev->text, ev->len);
    if (!r->p.stream) return;
    json_t *o = at(own, own->open != CALL);
    json_object_set_new(o, "delta", json_stringn(ev->text, ev->len));
    if (own->open == MESSAGE) {
        json_object_set_new(o, "logprobs", logprobs_from(own, own->lp_sent));
        own->lp_sent = json_array_size(own->lp);
    }
    say(r, names[own->open], o);
}

static void keep(struct lk_run *r, json_t *response)
{
    struct responses *own = r->own;
    if (!own->store) return;
    json_t *kept = json_pack("{s:O, s:O}", "response", response, "input", own->input);
    char *text = json_dumps(kept, JSON_COMPACT);
    size_t bytes = text ? strlen(text) : 0;
    free(text);
    if (kept) lk_lru_put(r->f->responses, r->id, kept, bytes * 2); /* values in memory are about twice their text */
}

static void end_run(struct lk_run *r, const struct lk_gen_totals *t)
{
    struct responses *own = r->own;
    if (!json_array_size(own->output) && own->open == NONE) open_item(r, MESSAGE, NULL);
    close_item(r, NULL);
    json_t *response = response_json(r, t);
    struct lk_hx *x = r->x;
    int stream = r->p.stream;
    keep(r, response);
    say(r, t->finish == LK_GEN_LENGTH ? "response.incomplete" : "response.completed", json_pack("{s:O}", "response", response));
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    if (stream) {
        json_decref(response);
        lk_hx_end(x);
    } else {
        lk_hx_json(x, 200, response);
    }
}

static void failed(struct lk_run *r, const struct lk_fault *f)
{
    struct lk_hx *x = r->x;
    if (!r->p.stream) {
        lk_run_fail(r, x, f);
        return;
    }
    json_t *o = response_json(r, NULL);
    json_object_set_new(o, "status", json_string("failed"));
    json_object_set_new(o, "error", json_pack("{s:s, s:s}", "code", f->code, "message", f->text));
    say(r, "response.failed", json_pack("{s:o}", "response", o));
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    lk_hx_end(x);
}

static void on_gen(void *arg, struct lk_gen *g, const struct lk_gen_event *ev)
{
    struct lk_run *r = arg;
    struct responses *own = r->own;
    struct lk_gen_totals t;
    const json_t *call;
    lk_gen_read(g, &t);
    own->lp = t.logprobs;
    call = json_array_get(t.calls, (size_t)own->call);
    switch (ev->kind) {
    case LK_GEN_REASONING:
    case LK_GEN_CONTENT: {
        enum item want = ev->kind == LK_GEN_CONTENT ? MESSAGE : REASONING;
        if (own->open != want) {
            close_item(r, call);
            open_item(r, want, NULL);
        }
        piece(r, ev);
        break;
    }
    case LK_GEN_CALL:
        close_item(r, call);
        own->call = ev->call;
        open_item(r, CALL, json_array_get(t.calls, (size_t)ev->call));
        break;
    case LK_GEN_ARGS: piece(r, ev); break;
    case LK_GEN_CALL_END: close_item(r, call); break;
    case LK_GEN_LOGPROBS: break;
    case LK_GEN_DONE: end_run(r, &t); break;
    case LK_GEN_FAILED: failed(r, ev->fault); break;
    }
}

static struct lk_run *begin(struct lk_front *f, struct lk_hx *x, struct lk_fault *fault)
{
    struct lk_run *r = lk_run_new(f, x, fault);
    struct responses *own = r ? lk_calloc(1, sizeof *own) : NULL;
    if (own) {
        r->own = own;
        r->free_own = free_responses;
        own->output = json_array();
    } else if (r) {
        lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for a request");
    }
    return r;
}

void lk_api_responses(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_run *r = begin(f, x, &fault);
    if (!r || fault.status || read_all(r, &fault) || lk_run_start(r, "responses", 1, on_gen, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    lk_front_id(f, "resp_", r->id);
    if (!r->p.stream) return;
    lk_hx_stream(x);
    say(r, "response.created", json_pack("{s:o}", "response", response_json(r, NULL)));
    say(r, "response.in_progress", json_pack("{s:o}", "response", response_json(r, NULL)));
}

void lk_api_responses_tokens(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_run *r = begin(f, x, &fault);
    if (!r || fault.status || read_prompt(r, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    json_t *out = json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)r->ask.ids.n);
    lk_run_free(r);
    lk_hx_json(x, 200, out);
}

static const json_t *stored(struct lk_front *f, struct lk_hx *x, const char *id)
{
    struct lk_fault fault = {0};
    const json_t *o = lk_lru_get(f->responses, id);
    if (o) return o;
    lk_fault_set(&fault, 404, "response_not_found", NULL, "there is no response \"%.80s\"", id);
    lk_hx_error(x, &fault);
    return NULL;
}

void lk_api_responses_get(struct lk_front *f, struct lk_hx *x, const char *id)
{
    const json_t *o = stored(f, x, id);
    if (o) lk_hx_json(x, 200, json_incref(json_object_get(o, "response")));
}

void lk_api_responses_delete(struct lk_front *f, struct lk_hx *x, const char *id)
{
    if (!stored(f, x, id)) return;
    lk_lru_drop(f->responses, id);
    lk_hx_json(x, 200, json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1));
}

void lk_api_responses_items(struct lk_front *f, struct lk_hx *x, const char *id)
{
    const json_t *o = stored(f, x, id), *in = json_object_get(o, "input");
    if (!o) return;
    json_t *list = json_array();
    for (size_t i = json_array_size(in); i-- > 0;) json_array_append(list, json_array_get(in, i)); /* newest first */
    lk_hx_json(x, 200, json_pack("{s:s, s:o, s:b}", "object", "list", "data", list, "has_more", 0));
}
