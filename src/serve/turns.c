/* Shapes that clients send -> what the chat template knows: role, content as one string, reasoning_content, tool_calls.
 *
 * - system and developer messages at the beginning, however many, become one system message (blank line between);
 *   later ones stay where they are, as system turns.
 * - consecutive messages of one role stay separate turns; empty content is an empty turn.
 * - parts of text are joined as they are; a part that is no text is a 400 (this build reads no images or sound).
 * - a tool call whose id is remembered with the same name and arguments carries the bytes that were sampled ("raw", "gap",
 *   "tail"), and its message the thinking that led to it when the client left that out.
 *
 * Pure: JSON in, JSON out, so that the fuzz targets reach all of it. */
#include "serve/turns.h"

#include "base/buf.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define MAX_TOOLS 512

static int memory(struct lk_fault *f)
{
    return lk_fault_set(f, 503, "out_of_memory", NULL, "no memory for the messages");
}

/* Adds the text of one part; 0, or -1 with f filled. */
static int part_text(struct lk_buf *b, const json_t *part, const char *where, size_t i, struct lk_fault *f)
{
    static const char *const text_types[] = {"text", "input_text", "output_text", "refusal", "reasoning_text",
                                             "summary_text", "thinking"};
    char at[160];
    snprintf(at, sizeof at, "%.120s[%zu]", where, i);
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *t = json_object_get(part, "text");
    if (!json_is_object(part)) return lk_fault_field(f, at, "must be an object with a type");
    if (!type) return lk_fault_field(f, at, "has no type");
    if (!strcmp(type, "refusal")) t = json_object_get(part, "refusal");
    if (!strcmp(type, "thinking")) t = json_object_get(part, "thinking");
    for (size_t k = 0; k < sizeof text_types / sizeof *text_types; k++) {
        if (strcmp(type, text_types[k])) continue;
        if (!json_is_string(t)) return lk_fault_field(f, at, "has no text");
        lk_buf_add(b, json_string_value(t), json_string_length(t));
        return b->failed ? memory(f) : 0;
    }
    return lk_fault_set(f, 400, "modality_not_supported", at, "%s: parts of type \"%.40s\" are not supported, only text", at,
                        type);
}

json_t *lk_turns_text(const json_t *content, const char *where, struct lk_fault *f)
{
    struct lk_buf b = {0};
    json_t *out = NULL, *part;
    size_t i;
    if (!content || json_is_null(content)) return json_string("");
    if (json_is_string(content)) return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        lk_fault_field(f, where, "must be a string or an array of parts");
        return NULL;
    }
    json_array_foreach((json_t *)content, i, part)
        if (part_text(&b, part, where, i, f)) goto out;
    out = json_stringn(b.data ? b.data : "", b.len);
    if (!out) memory(f);
out:
    lk_buf_free(&b);
    return out;
}

int lk_call_remember(struct lk_lru *calls, const char *id, const struct lk_call_memory *m)
{
    const char *const from[] = {m->name, m->args, m->raw, m->gap, m->tail, m->think};
    size_t bytes = sizeof *m;
    for (size_t i = 0; i < 6; i++) bytes += from[i] ? strlen(from[i]) + 1 : 0;
    struct lk_call_memory *own = lk_calloc(1, bytes);
    if (!own) return LK_ENOMEM;
    const char **to[] = {&own->name, &own->args, &own->raw, &own->gap, &own->tail, &own->think};
    char *at = (char *)(own + 1);
    for (size_t i = 0; i < 6; i++) {
        if (!from[i]) continue;
        *to[i] = strcpy(at, from[i]);
        at += strlen(at) + 1;
    }
    return lk_lru_put(calls, id, own, bytes);
}

static void attach_memory(json_t *call, struct lk_lru *calls, const char *id, const char *name, const json_t *args)
{
    const struct lk_call_memory *m = calls && id ? lk_lru_get(calls, id) : NULL;
    if (!m || strcmp(m->name, name)) return;
    json_t *was = json_loads(m->args, 0, NULL);
    if (was && json_equal(was, args)) {
        const struct { const char *key, *text; } t[] = {{"raw", m->raw}, {"gap", m->gap}, {"tail", m->tail}, {"think", m->think}};
        for (size_t i = 0; i < 4; i++)
            if (t[i].text) json_object_set_new(call, t[i].key, json_string(t[i].text));
    }
    json_decref(was);
}

/* Many clients drop the thinking of an answer that called a tool. The model is to go on from what it thought, and the
 * state behind the answer is of use only then. */
static void restore_thinking(json_t *msg)
{
    json_t *think = json_object_get(json_array_get(json_object_get(msg, "tool_calls"), 0), "think");
    if (think && !json_object_get(msg, "reasoning_content")) json_object_set(msg, "reasoning_content", think);
}

static int name_ok(const char *name)
{
    size_t n = strlen(name);
    if (!n || n > 128) return 0;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("_-.:/", name[i])) return 0;
    return 1;
}

/* One call for the template. args: an object, or a string that holds one. */
static json_t *make_call(const char *id, const char *name, const json_t *args, const char *where, struct lk_lru *calls,
                         struct lk_fault *f)
{
    char at[192];
    json_error_t je;
    json_t *own = NULL;
    if (!name || !name_ok(name)) {
        snprintf(at, sizeof at, "%.150s.name", where);
        lk_fault_field(f, at, "must be a tool's name: letters, digits, _ and -");
        return NULL;
    }
    snprintf(at, sizeof at, "%.150s.arguments", where);
    if (json_is_string(args))
        own = json_string_length(args) ? json_loadb(json_string_value(args), json_string_length(args), 0, &je) : json_object();
    else if (json_is_object(args))
        own = json_incref((json_t *)args);
    else if (!args || json_is_null(args))
        own = json_object();
    if (!json_is_object(own)) {
        json_decref(own);
        lk_fault_field(f, at, "must be a JSON object, or a string that holds one");
        return NULL;
    }
    json_t *call = json_pack("{s:s*, s:s, s:{s:s, s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", own);
    if (call) attach_memory(call, calls, id, name, own);
    json_decref(own);
    if (!call) memory(f);
    return call;
}

static json_t *openai_calls(const json_t *v, const char *where, struct lk_lru *calls, struct lk_fault *f)
{
    json_t *out = json_array(), *item;
    size_t i;
    if (!json_is_array(v)) {
        lk_fault_field(f, where, "must be an array");
        json_decref(out);
        return NULL;
    }
    json_array_foreach((json_t *)v, i, item)
    {
        char at[160];
        const json_t *fn = json_object_get(item, "function");
        const char *type = json_string_value(json_object_get(item, "type"));
        snprintf(at, sizeof at, "%.120s[%zu].function", where, i);
        if (!json_is_object(item) || (type && strcmp(type, "function"))) {
            lk_fault_set(f, 400, "tool_type_not_supported", at, "%s: only calls of type function are supported", at);
            break;
        }
        json_t *c = make_call(json_string_value(json_object_get(item, "id")), json_string_value(json_object_get(fn, "name")),
                              json_object_get(fn, "arguments"), at, calls, f);
        if (!c || json_array_append_new(out, c)) break;
    }
    if (i == json_array_size(v)) return out;
    json_decref(out);
    if (!f->status) memory(f);
    return NULL;
}

/* Appends to the list; a leading run of system messages becomes one. */
static int append(json_t *list, json_t *msg, struct lk_fault *f)
{
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(msg, "role"));
    if (!msg || !role) {
        json_decref(msg);
        return memory(f);
    }
    if (json_array_size(list) == 1 && !strcmp(role, "system") &&
        !strcmp(json_string_value(json_object_get(last, "role")), "system")) {
        const json_t *a = json_object_get(last, "content"), *b = json_object_get(msg, "content");
        json_t *both = json_sprintf("%s%s%s", json_string_value(a), json_string_length(a) && json_string_length(b) ? "\n\n" : "",
                                    json_string_value(b));
        json_decref(msg);
        return json_object_set_new(last, "content", both) ? memory(f) : 0;
    }
    return json_array_append_new(list, msg) ? memory(f) : 0;
}

static int add_openai(json_t *list, const json_t *m, size_t i, struct lk_lru *calls, struct lk_fault *f)
{
    char at[160];
    const char *role = json_string_value(json_object_get(m, "role")), *known = NULL;
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    snprintf(at, sizeof at, "messages[%zu].role", i);
    if (!json_is_object(m)) {
        snprintf(at, sizeof at, "messages[%zu]", i);
        return lk_fault_field(f, at, "must be an object");
    }
    for (size_t k = 0; role && k < 5; k++)
        if (!strcmp(role, roles[k])) known = k == 1 ? roles[0] : roles[k];
    if (!known)
        return lk_fault_set(f, 400, "unsupported_role", at, "%s: must be system, developer, user, assistant or tool", at);
    snprintf(at, sizeof at, "messages[%zu].content", i);
    const json_t *tc = json_object_get(m, "tool_calls"), *think = json_object_get(m, "reasoning_content");
    if (!json_object_get(m, "content") && !(tc && !strcmp(known, "assistant")))
        return lk_fault_field(f, at, "is missing");
    json_t *content = lk_turns_text(json_object_get(m, "content"), at, f);
    if (!content) return -1;
    json_t *msg = json_pack("{s:s, s:o}", "role", known, "content", content);
    if (!strcmp(known, "assistant")) {
        snprintf(at, sizeof at, "messages[%zu].reasoning_content", i);
        if (!think) think = json_object_get(m, "reasoning");
        if (think && !json_is_null(think) && !json_is_string(think)) {
            json_decref(msg);
            return lk_fault_field(f, at, "must be a string");
        }
        if (json_is_string(think)) json_object_set(msg, "reasoning_content", (json_t *)think);
        if (tc && !json_is_null(tc)) {
            snprintf(at, sizeof at, "messages[%zu].tool_calls", i);
            json_t *list_of = openai_calls(tc, at, calls, f);
            if (!list_of) {
                json_decref(msg);
                return -1;
            }
            if (json_array_size(list_of))
                json_object_set_new(msg, "tool_calls", list_of), restore_thinking(msg);
            else
                json_decref(list_of);
        }
    }
    return append(list, msg, f);
}

json_t *lk_turns_openai(const json_t *messages, struct lk_lru *calls, struct lk_fault *f)
{
    json_t *list = json_array(), *m;
    size_t i;
    if (!json_is_array(messages) || !json_array_size(messages)) {
        lk_fault_field(f, "messages", "must be an array with at least one message");
        json_decref(list);
        return NULL;
    }
    json_array_foreach((json_t *)messages, i, m)
        if (add_openai(list, m, i, calls, f)) break;
    if (!f->status) return list;
    json_decref(list);
    return NULL;
}

/* ---- tools ---- */

static json_t *function_tool(const json_t *name, const json_t *description, const json_t *parameters, const char *where,
                             struct lk_fault *f)
{
    char at[160];
    snprintf(at, sizeof at, "%.120s.name", where);
    if (!json_is_string(name) || !name_ok(json_string_value(name))) {
        lk_fault_field(f, at, "must be 1 to 128 letters, digits, _ and -");
        return NULL;
    }
    snprintf(at, sizeof at, "%.120s.parameters", where);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters)) {
        lk_fault_field(f, at, "must be a JSON schema (an object)");
        return NULL;
    }
    snprintf(at, sizeof at, "%.120s.description", where);
    if (description && !json_is_null(description) && !json_is_string(description)) {
        lk_fault_field(f, at, "must be a string");
        return NULL;
    }
    json_t *fn = json_pack("{s:O}", "name", name);
    if (json_is_string(description)) json_object_set(fn, "description", (json_t *)description);
    json_t *p = json_is_object(parameters) ? json_incref((json_t *)parameters) : json_pack("{s:s, s:{}}", "type", "object", "properties");
    json_object_set_new(fn, "parameters", p);
    json_t *out = json_pack("{s:s, s:o}", "type", "function", "function", fn);
    if (!out) memory(f);
    return out;
}

enum shape { OPENAI, ANTHROPIC, RESPONSES };

static json_t *one_tool(const json_t *t, enum shape shape, const char *where, struct lk_fault *f)
{
    const char *type = json_string_value(json_object_get(t, "type"));
    const json_t *fn = shape == OPENAI ? json_object_get(t, "function") : t;
    if (!json_is_object(t) || (shape == ANTHROPIC ? type && strcmp(type, "custom") : !type || strcmp(type, "function"))) {
        lk_fault_set(f, 400, "tool_type_not_supported", where, "%s: only function tools are supported", where);
        return NULL;
    }
    if (!json_is_object(fn)) {
        lk_fault_field(f, where, "has no function");
        return NULL;
    }
    const json_t *schema = json_object_get(fn, shape == ANTHROPIC ? "input_schema" : "parameters");
    if (shape == ANTHROPIC && !json_is_object(schema)) {
        lk_fault_field(f, where, "input_schema must be an object");
        return NULL;
    }
    return function_tool(json_object_get(fn, "name"), json_object_get(fn, "description"), schema, where, f);
}

static json_t *read_tools(const json_t *tools, enum shape shape, struct lk_fault *f)
{
    json_t *out, *t;
    size_t i;
    if (!tools || json_is_null(tools)) return NULL;
    if (!json_is_array(tools)) {
        lk_fault_field(f, "tools", "must be an array");
        return NULL;
    }
    if (json_array_size(tools) > MAX_TOOLS) {
        lk_fault_field(f, "tools", "at most %d tools", MAX_TOOLS);
        return NULL;
    }
    if (!json_array_size(tools) || !(out = json_array())) return NULL;
    json_array_foreach((json_t *)tools, i, t)
    {
        char at[64];
        snprintf(at, sizeof at, "tools[%zu]", i);
        json_t *one = one_tool(t, shape, at, f);
        if (!one || json_array_append_new(out, one)) break;
    }
    if (i == json_array_size(tools)) return out;
    json_decref(out);
    if (!f->status) memory(f);
    return NULL;
}

json_t *lk_tools_openai(const json_t *tools, struct lk_fault *f) { return read_tools(tools, OPENAI, f); }
json_t *lk_tools_anthropic(const json_t *tools, struct lk_fault *f) { return read_tools(tools, ANTHROPIC, f); }
json_t *lk_tools_responses(const json_t *tools, struct lk_fault *f) { return read_tools(tools, RESPONSES, f); }

/* ---- Anthropic ---- */

struct blocks { /* the message being put together from blocks */
    json_t *text, *think, *calls;
};

static int flush_blocks(json_t *list, struct blocks *b, const char *role, struct lk_fault *f)
{
    int any = b->text || b->think || b->calls, rc = 0;
    if (any) {
        json_t *msg = json_pack("{s:s, s:o}", "role", role, "content", b->text ? b->text : json_string(""));
        if (b->think) json_object_set_new(msg, "reasoning_content", b->think);
        if (b->calls) json_object_set_new(msg, "tool_calls", b->calls), restore_thinking(msg);
        rc = append(list, msg, f);
    }
    memset(b, 0, sizeof *b);
    return rc;
}

static void drop_blocks(struct blocks *b)
{
    json_decref(b->text);
    json_decref(b->think);
    json_decref(b->calls);
    memset(b, 0, sizeof *b);
}

static int add_text(json_t **to, json_t *text, struct lk_fault *f)
{
    if (!text) return -1;
    if (!*to) {
        *to = text;
        return 0;
    }
    json_t *both = json_sprintf("%s%s", json_string_value(*to), json_string_value(text));
    json_decref(*to);
    json_decref(text);
    *to = both;
    return both ? 0 : memory(f);
}

static int add_call(struct blocks *b, json_t *call, struct lk_fault *f)
{
    if (!call) return -1;
    if (!b->calls) b->calls = json_array();
    return json_array_append_new(b->calls, call) ? memory(f) : 0;
}

static int anthropic_block(json_t *list, struct blocks *b, const json_t *blk, const char *role, const char *at,
                           struct lk_lru *calls, struct lk_fault *f)
{
    const char *type = json_string_value(json_object_get(blk, "type"));
    json_t *one = NULL, *text;
    char in[192];
    if (!type) return lk_fault_field(f, at, "must be a block with a type");
    if (!strcmp(type, "text") || !strcmp(type, "thinking")) {
        one = json_pack("[O]", blk);
        text = lk_turns_text(one, at, f);
        json_decref(one);
        return add_text(*type == 't' && type[1] == 'h' ? &b->think : &b->text, text, f);
    }
    if (!strcmp(type, "redacted_thinking")) return 0;
    if (!strcmp(type, "tool_use") && !strcmp(role, "assistant"))
        return add_call(b, make_call(json_string_value(json_object_get(blk, "id")), json_string_value(json_object_get(blk, "name")),
                                     json_object_get(blk, "input"), at, calls, f), f);
    if (!strcmp(type, "tool_result") && !strcmp(role, "user")) {
        snprintf(in, sizeof in, "%.150s.content", at);
        if (flush_blocks(list, b, role, f) || !(text = lk_turns_text(json_object_get(blk, "content"), in, f))) return -1;
        return append(list, json_pack("{s:s, s:o}", "role", "tool", "content", text), f);
    }
    return lk_fault_set(f, 400, "modality_not_supported", at, "%s: blocks of type \"%.40s\" are not supported here", at, type);
}

static int anthropic_message(json_t *list, const json_t *m, size_t i, struct lk_lru *calls, struct lk_fault *f)
{
    char at[96];
    struct blocks b = {0};
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    json_t *blk;
    size_t k;
    snprintf(at, sizeof at, "messages[%zu].role", i);
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
        return lk_fault_field(f, at, "must be user, assistant or system");
    snprintf(at, sizeof at, "messages[%zu].content", i);
    if (!content || json_is_null(content)) return lk_fault_field(f, at, "is missing");
    if (json_is_string(content))
        return append(list, json_pack("{s:s, s:O}", "role", role, "content", content), f);
    if (!json_is_array(content)) return lk_fault_field(f, at, "must be a string or an array of blocks");
    if (!json_array_size(content)) return append(list, json_pack("{s:s, s:s}", "role", role, "content", ""), f);
    json_array_foreach((json_t *)content, k, blk)
    {
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
        if (anthropic_block(list, &b, blk, role, at, calls, f)) {
            drop_blocks(&b);
            return -1;
        }
    }
    return flush_blocks(list, &b, role, f);
}

/* A last assistant message is the beginning of the answer, as long as it is text only. */
static void take_prefill(json_t *list, json_t **prefill)
{
    size_t n = json_array_size(list);
    const json_t *last = n ? json_array_get(list, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") || json_object_get(last, "tool_calls")) return;
    *prefill = json_incref(json_object_get(last, "content"));
    json_array_remove(list, n - 1);
}

json_t *lk_turns_anthropic(const json_t *body, struct lk_lru *calls, json_t **prefill, struct lk_fault *f)
{
    const json_t *messages = json_object_get(body, "messages"), *system = json_object_get(body, "system");
    json_t *list = json_array(), *m, *text;
    size_t i;
    *prefill = NULL;
    if (!json_is_array(messages) || !json_array_size(messages)) {
        lk_fault_field(f, "messages", "must be an array with at least one message");
    } else if (system && !json_is_null(system) && (text = lk_turns_text(system, "system", f))) {
        append(list, json_pack("{s:s, s:o}", "role", "system", "content", text), f);
    }
    if (!f->status) {
        json_array_foreach((json_t *)messages, i, m)
            if (anthropic_message(list, m, i, calls, f)) break;
    }
    if (f->status) {
        json_decref(list);
        return NULL;
    }
    take_prefill(list, prefill);
    return list;
}

/* ---- Responses ---- */

/* Reasoning, text and calls that follow each other are one assistant message. */
static int responses_item(json_t *list, struct blocks *b, const json_t *it, const char *at, struct lk_lru *calls,
                          struct lk_fault *f)
{
    const char *type = json_string_value(json_object_get(it, "type")), *role = json_string_value(json_object_get(it, "role"));
    char in[128];
    json_t *text;
    if (!json_is_object(it)) return lk_fault_field(f, at, "must be an object");
    if (!type) type = "message";
    snprintf(in, sizeof in, "%.100s.content", at);
    if (!strcmp(type, "message")) {
        int known = role && (!strcmp(role, "user") || !strcmp(role, "system") || !strcmp(role, "developer"));
        if (!known && (!role || strcmp(role, "assistant")))
            return lk_fault_field(f, at, "role must be user, assistant, system or developer");
        if (!json_object_get(it, "content")) return lk_fault_field(f, in, "is missing");
        if (!(text = lk_turns_text(json_object_get(it, "content"), in, f))) return -1;
        if (!known) return add_text(&b->text, text, f);
        if (flush_blocks(list, b, "assistant", f)) {
            json_decref(text);
            return -1;
        }
        return append(list, json_pack("{s:s, s:o}", "role", *role == 'u' ? "user" : "system", "content", text), f);
    }
    if (!strcmp(type, "reasoning")) {
        if (b->text || b->calls) /* the next assistant turn begins */
            if (flush_blocks(list, b, "assistant", f)) return -1;
        const json_t *c = json_object_get(it, "content");
        if (!c || json_is_null(c) || !json_array_size(c)) c = json_object_get(it, "summary");
        return add_text(&b->think, lk_turns_text(c, in, f), f);
    }
    if (!strcmp(type, "function_call"))
        return add_call(b, make_call(json_string_value(json_object_get(it, "call_id")), json_string_value(json_object_get(it, "name")),
                                     json_object_get(it, "arguments"), at, calls, f), f);
    if (!strcmp(type, "function_call_output")) {
        snprintf(in, sizeof in, "%.100s.output", at);
        if (flush_blocks(list, b, "assistant", f) || !(text = lk_turns_text(json_object_get(it, "output"), in, f))) return -1;
        return append(list, json_pack("{s:s, s:o}", "role", "tool", "content", text), f);
    }
    return lk_fault_set(f, 400, "item_type_not_supported", at, "%s: items of type \"%.40s\" are not supported", at, type);
}

json_t *lk_turns_responses(const char *instructions, const json_t *items, struct lk_lru *calls, struct lk_fault *f)
{
    json_t *list = json_array(), *it;
    struct blocks b = {0};
    size_t i;
    if (instructions && append(list, json_pack("{s:s, s:s}", "role", "system", "content", instructions), f)) goto fail;
    json_array_foreach((json_t *)items, i, it)
    {
        char at[64];
        snprintf(at, sizeof at, "input[%zu]", i);
        if (responses_item(list, &b, it, at, calls, f)) goto fail;
    }
    if (!flush_blocks(list, &b, "assistant", f)) return list;
fail:
    drop_blocks(&b);
    json_decref(list);
    return NULL;
}
