/* POST /v1/messages and /v1/messages/count_tokens, Anthropic's shape. Content is a row of blocks (thinking, text,
 * tool_use); in a stream each block is opened, filled and closed in turn. The model's name is any label and is echoed:
 * clients of this API send names of their own. */
#include "serve/run.h"

#include <string.h>

enum block { NONE, THINKING, TEXT, TOOL };

struct messages {
    enum block open;
    int n_blocks;
    const char *model;
};

/* ---- request ---- */

static int read_choice(struct lk_run *r, struct lk_fault *f)
{
    const json_t *o = NULL;
    const char *type = NULL, *name = NULL;
    if (lk_get_obj(r->body, "tool_choice", &o, f) < 0) return -1;
    if (!o) return 0;
    if (lk_get_str(o, "tool_choice.type", &type, f) < 0 || lk_get_str(o, "tool_choice.name", &name, f) < 0) return -1;
    if (!type) return lk_fault_field(f, "tool_choice.type", "is missing");
    if (!strcmp(type, "auto")) return 0;
    if (!strcmp(type, "none")) {
        r->parse_tools = 0;
        return 0;
    }
    if (!strcmp(type, "any")) return lk_rule_tools(&r->rule, &r->arena, LK_CHOICE_REQUIRED, NULL, r->tools, f);
    if (strcmp(type, "tool")) return lk_fault_field(f, "tool_choice.type", "must be auto, any, tool or none");
    if (!name) return lk_fault_field(f, "tool_choice.name", "is missing");
    return lk_rule_tools(&r->rule, &r->arena, LK_CHOICE_NAMED, name, r->tools, f);
}

static int read_thinking(struct lk_run *r, struct lk_fault *f)
{
    const json_t *o = NULL, *out = NULL, *format = NULL;
    const char *type = NULL, *effort = NULL, *kind = NULL;
    json_int_t budget;
    int rc;
    if (lk_get_obj(r->body, "thinking", &o, f) < 0 || lk_get_obj(r->body, "output_config", &out, f) < 0) return -1;
    if (o) {
        if (lk_get_str(o, "thinking.type", &type, f) < 0) return -1;
        if (!type || (strcmp(type, "enabled") && strcmp(type, "disabled") && strcmp(type, "adaptive")))
            return lk_fault_field(f, "thinking.type", "must be enabled, adaptive or disabled");
        r->chat.enable_thinking = strcmp(type, "disabled") != 0;
        if ((rc = lk_get_int(o, "thinking.budget_tokens", 0, 16777216, &budget, f)) < 0) return -1;
        if (rc && r->chat.enable_thinking) r->p.budget = (int)budget;
    }
    if (out && (lk_get_str(out, "output_config.effort", &effort, f) < 0 || lk_get_obj(out, "output_config.format", &format, f) < 0)) return -1;
    if (format) {
        if (lk_get_str(format, "output_config.format.type", &kind, f) < 0) return -1;
        if (!kind || strcmp(kind, "json_schema") || !json_object_get(format, "schema"))
            return lk_fault_field(f, "output_config.format", "must be {type: json_schema, schema}");
        if (lk_rule_schema(&r->rule, &r->arena, json_object_get(format, "schema"), "output_config.format.schema", f)) return -1;
    }
    return lk_params_think(&r->chat, r->body, effort, "output_config.effort", f);
}

/* What both endpoints read. */
static int read_prompt(struct lk_run *r, struct lk_fault *f)
{
    json_t *prefill = NULL;
    r->tools = lk_tools_anthropic(json_object_get(r->body, "tools"), f);
    if (f->status) return -1;
    r->parse_tools = 1;
    if (read_choice(r, f) || read_thinking(r, f)) return -1;
    json_t *messages = lk_turns_anthropic(r->body, r->f->calls, &prefill, f);
    if (!messages) return -1;
    int rc = lk_front_render(r->f, messages, r->parse_tools ? r->tools : NULL, &r->chat, prefill, &r->ask, f);
    json_decref(messages);
    json_decref(prefill);
    return rc;
}

static int read_all(struct lk_run *r, struct lk_fault *f)
{
    static const char *const names[] = {"max_tokens"};
    struct messages *own = r->own;
    own->model = r->f->s->name;
    if (lk_get_str(r->body, "model", &own->model, f) < 0 || lk_run_max_tokens(r, names, 1, f) ||
        lk_params_stops(&r->p, r->body, "stop_sequences", f))
        return -1;
    return read_prompt(r, f);
}

/* ---- reply ---- */

static const char *stop_reason(const struct lk_gen_totals *t)
{
    if (t->stop_sequence) return "stop_sequence";
    return t->finish == LK_GEN_LENGTH ? "max_tokens" : t->finish == LK_GEN_TOOLS ? "tool_use" : "end_turn";
}

static json_t *usage_json(const struct lk_gen_totals *t)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:{s:i}}", "input_tokens", t->prompt - t->cached, "cache_creation_input_tokens", 0,
                     "cache_read_input_tokens", t->cached, "output_tokens", t->completion, "output_tokens_details",
                     "thinking_tokens", t->reasoning);
}

static json_t *buf_json(const struct lk_buf *b)
{
    return json_stringn(b->data ? b->data : "", b->len);
}

static void add_text(json_t *list, const struct lk_buf *b, size_t from, size_t to)
{
    if (to > from) json_array_append_new(list, json_pack("{s:s, s:s%}", "type", "text", "text", b->data + from, to - from));
}

/* The blocks in the order in which they were said. */
static json_t *content_json(const struct lk_gen_totals *t)
{
    json_t *list = json_array(), *c;
    size_t i, from = 0;
    if (t->think->len)
        json_array_append_new(list, json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", buf_json(t->think), "signature", ""));
    json_array_foreach((json_t *)t->calls, i, c)
    {
        size_t at = (size_t)json_integer_value(json_object_get(c, "at"));
        json_t *input = json_loads(json_string_value(json_object_get(c, "arguments")), 0, NULL);
        add_text(list, t->content, from, at);
        from = at;
        json_array_append_new(list, json_pack("{s:s, s:O, s:O, s:o}", "type", "tool_use", "id", json_object_get(c, "id"), "name",
                                              json_object_get(c, "name"), "input", input ? input : json_object()));
    }
    add_text(list, t->content, from, t->content->len);
    if (!json_array_size(list)) json_array_append_new(list, json_pack("{s:s, s:s}", "type", "text", "text", ""));
    return list;
}

static json_t *message_json(struct lk_run *r, json_t *content, const struct lk_gen_totals *t, int finished)
{
    const struct messages *own = r->own;
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id", r->id, "type", "message", "role", "assistant", "model",
                     own->model, "content", content, "stop_reason", finished ? stop_reason(t) : NULL, "stop_sequence",
                     finished ? t->stop_sequence : NULL, "usage", usage_json(t));
}

static void say(struct lk_run *r, const char *type, json_t *o)
{
    json_object_set_new(o, "type", json_string(type));
    lk_hx_send_json(r->x, type, o);
}

static void close_block(struct lk_run *r)
{
    struct messages *own = r->own;
    if (own->open == NONE) return;
    say(r, "content_block_stop", json_pack("{s:i}", "index", own->n_blocks - 1));
    own->open = NONE;
}

static void open_block(struct lk_run *r, enum block kind, json_t *start)
{
    struct messages *own = r->own;
    close_block(r);
    own->open = kind;
    say(r, "content_block_start", json_pack("{s:i, s:o}", "index", own->n_blocks++, "content_block", start));
}

static void delta(struct lk_run *r, const char *type, const char *field, const struct lk_gen_event *ev)
{
    const struct messages *own = r->own;
    say(r, "content_block_delta",
         json_pack("{s:i, s:{s:s, s:s%}}", "index", own->n_blocks - 1, "delta", "type", type, field, ev->text, ev->len));
}

static void stream_piece(struct lk_run *r, struct lk_gen *g, const struct lk_gen_event *ev)
{
    struct messages *own = r->own;
    struct lk_gen_totals t;
    if (ev->kind == LK_GEN_REASONING) {
        if (own->open != THINKING)
            open_block(r, THINKING, json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", ""));
        delta(r, "thinking_delta", "thinking", ev);
    } else if (ev->kind == LK_GEN_CONTENT) {
        if (own->open != TEXT) open_block(r, TEXT, json_pack("{s:s, s:s}", "type", "text", "text", ""));
        delta(r, "text_delta", "text", ev);
    } else if (ev->kind == LK_GEN_CALL) {
        lk_gen_read(g, &t);
        const json_t *c = json_array_get(t.calls, (size_t)ev->call);
        open_block(r, TOOL, json_pack("{s:s, s:O, s:s%, s:{}}", "type", "tool_use", "id", json_object_get(c, "id"), "name", ev->text,
                                      ev->len, "input"));
    } else if (ev->kind == LK_GEN_ARGS) {
        delta(r, "input_json_delta", "partial_json", ev);
    } else if (ev->kind == LK_GEN_CALL_END) {
        close_block(r);
    }
}

static void end_stream(struct lk_run *r, const struct lk_gen_totals *t)
{
    struct messages *own = r->own;
    if (!own->n_blocks) open_block(r, TEXT, json_pack("{s:s, s:s}", "type", "text", "text", ""));
    close_block(r);
    say(r, "message_delta", json_pack("{s:{s:s, s:s?}, s:o}", "delta", "stop_reason", stop_reason(t), "stop_sequence",
                                       t->stop_sequence, "usage", usage_json(t)));
    say(r, "message_stop", json_pack("{s:o}", "timings", lk_timings_json(t)));
    struct lk_hx *x = r->x;
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    lk_hx_end(x);
}

static void on_gen(void *arg, struct lk_gen *g, const struct lk_gen_event *ev)
{
    struct lk_run *r = arg;
    struct lk_gen_totals t;
    if (ev->kind == LK_GEN_FAILED) {
        lk_run_fail(r, r->x, ev->fault);
        return;
    }
    if (ev->kind != LK_GEN_DONE) {
        if (r->p.stream) stream_piece(r, g, ev);
        return;
    }
    lk_gen_read(g, &t);
    if (r->p.stream) {
        end_stream(r, &t);
        return;
    }
    json_t *out = message_json(r, content_json(&t), &t, 1);
    json_object_set_new(out, "timings", lk_timings_json(&t));
    struct lk_hx *x = r->x;
    lk_hx_on_gone(x, NULL, NULL);
    lk_run_free(r);
    lk_hx_json(x, 200, out);
}

static struct lk_run *begin(struct lk_front *f, struct lk_hx *x, struct lk_fault *fault)
{
    struct lk_run *r = lk_run_new(f, x, fault);
    if (!r) return NULL;
    if (!(r->own = lk_arena_alloc(&r->arena, sizeof(struct messages))))
        lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for a request");
    return r;
}

void lk_api_messages(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_run *r = begin(f, x, &fault);
    if (!r || fault.status || read_all(r, &fault) || lk_run_start(r, "messages", 1, on_gen, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    lk_front_id(f, "msg_", r->id);
    if (!r->p.stream) return;
    struct lk_gen_totals t;
    lk_gen_read(r->gen[0], &t);
    lk_hx_stream(x);
    say(r, "message_start", json_pack("{s:o}", "message", message_json(r, json_array(), &t, 0)));
    say(r, "ping", json_object()); /* as Anthropic's own streams do; silence later on brings more of them (http.c) */
}

void lk_api_count_tokens(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_run *r = begin(f, x, &fault);
    if (!r || fault.status || read_prompt(r, &fault)) {
        lk_run_fail(r, x, &fault);
        return;
    }
    json_t *out = json_pack("{s:I}", "input_tokens", (json_int_t)r->ask.ids.n);
    lk_run_free(r);
    lk_hx_json(x, 200, out);
}
