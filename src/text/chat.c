/* Chat: which dialect a template is, what the keyword arguments say, and a rendered prompt's
 * tokens. The rendering itself is in chat_render.c. */
#include "text/chat.h"

#include "base/mem.h"
#include "text/pyjson.h"

#include <stdio.h>
#include <string.h>

const char *lk_dialect_name(enum lk_dialect d)
{
    static const char *const names[] = {"unknown", "qwen3.5", "qwen3.6", "qwen3.8"};
    return names[d <= LK_QWEN3_8 ? d : 0];
}

static int has(const char *t, size_t n, const char *what)
{
    return memmem(t, n, what, strlen(what)) != NULL;
}

/* Marks rather than a hash: re-uploads fix small things in the files, and the three differ by these
 * lines. */
enum lk_dialect lk_dialect_find(const char *t, size_t n)
{
    if (!t || !has(t, n, "<function=example_function_name>") || !has(t, n, "<|im_start|>") ||
        !has(t, n, "last_query_index"))
        return LK_DIALECT_NONE;
    if (has(t, n, "reasoning_effort")) return LK_QWEN3_8;
    return has(t, n, "preserve_thinking") ? LK_QWEN3_6 : LK_QWEN3_5;
}

void lk_chat_opts_init(struct lk_chat_opts *o)
{
    *o = (struct lk_chat_opts){-1, -1, -1, -1, 0, 0, ""};
}

/* `is true` / `is false` see only the real booleans; any other value is defined and neither. */
static int tri(const json_t *v)
{
    return !v ? -1 : json_is_boolean(v) ? json_is_true(v) : 2;
}

static int truthy(const json_t *v)
{
    if (!v) return -1;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return json_object_size(v) > 0;
    case JSON_ARRAY:
        return json_array_size(v) > 0;
    case JSON_STRING:
        return json_string_length(v) > 0;
    case JSON_INTEGER:
        return json_integer_value(v) != 0;
    case JSON_REAL:
        return json_real_value(v) != 0;
    default:
        return json_is_true(v);
    }
}

int lk_chat_opts_read(struct lk_chat_opts *o, const json_t *kw, struct lk_err *e)
{
    const json_t *effort = json_object_get(kw, "reasoning_effort");
    if (kw && !json_is_object(kw) && !json_is_null(kw))
        return lk_fail(e, LK_EREQUEST, "chat_template_kwargs: must be an object, not %s",
                       lk_py_type(kw));
    if (json_object_get(kw, "add_generation_prompt"))
        o->add_generation_prompt = truthy(json_object_get(kw, "add_generation_prompt"));
    if (json_object_get(kw, "enable_thinking"))
        o->enable_thinking = tri(json_object_get(kw, "enable_thinking"));
    if (json_object_get(kw, "preserve_thinking"))
        o->preserve_thinking = tri(json_object_get(kw, "preserve_thinking"));
    if (json_object_get(kw, "add_vision_id"))
        o->add_vision_id = truthy(json_object_get(kw, "add_vision_id"));
    if (!effort) return 0;
    o->effort_given = 1;
    if (json_is_string(effort))
        snprintf(o->reasoning_effort, sizeof o->reasoning_effort, "%s", json_string_value(effort));
    else if (json_is_null(effort) || json_is_boolean(effort))
        strcpy(o->reasoning_effort, json_is_null(effort)   ? "None"
                                    : json_is_true(effort) ? "True"
                                                           : "False");
    else
        return lk_fail(e, LK_EREQUEST, "reasoning_effort: must be a string, not %s",
                       lk_py_type(effort));
    return 0;
}

void lk_chat_opts_think(struct lk_chat_opts *o, enum lk_think think)
{
    static const char *const effort[] = {"", "", "low", "medium", "xhigh"};
    if (think == LK_THINK_DEFAULT) return;
    o->enable_thinking = think != LK_THINK_OFF;
    o->effort_given = think != LK_THINK_OFF;
    strcpy(o->reasoning_effort, effort[think]);
}

static int call_arguments(json_t *call, size_t msg, size_t k, struct lk_err *e)
{
    json_t *f = json_object_get(call, "function"), *o = json_is_object(f) ? f : call;
    const json_t *a = json_object_get(o, "arguments");
    if (!json_is_string(a) || lk_json_bignum(a)) return 0;
    struct lk_err why = {0};
    json_t *v = json_string_length(a)
                    ? lk_json_parse(json_string_value(a), json_string_length(a), &why)
                    : json_object();
    if (!json_is_object(v)) {
        json_decref(v);
        return lk_fail(
            e, LK_EREQUEST,
            "messages[%zu].tool_calls[%zu].function.arguments: must be a JSON object%s%s", msg, k,
            why.code ? ": " : "", why.text);
    }
    return json_object_set_new(o, "arguments", v) ? lk_fail(e, LK_ENOMEM, "out of memory") : 0;
}

int lk_chat_arguments(json_t *messages, struct lk_err *e)
{
    size_t i, k;
    json_t *m, *call;
    json_array_foreach(messages, i, m)
    {
        json_array_foreach(json_object_get(m, "tool_calls"), k, call)
        {
            int rc = call_arguments(call, i, k, e);
            if (rc) return rc;
        }
    }
    return 0;
}

void lk_prompt_free(struct lk_prompt *p)
{
    lk_buf_free(&p->text);
    lk_free(p->segs);
    memset(p, 0, sizeof *p);
}

/* Text up to the next control token is encoded in one piece even where it crosses segments: the
 * pre-tokenizer joins a newline of the template with one of the message, and the ids must be those
 * of the reference. */
int lk_prompt_encode(const struct lk_prompt *p, const struct lk_tokenizer *t, struct lk_ids *out,
                     struct lk_err *e)
{
    size_t done = 0;
    int rc;
    for (size_t i = 0; i < p->n_segs; i++) {
        size_t from = p->segs[i].begin, b, end;
        int32_t id;
        if (p->segs[i].is_text) continue;
        while (lk_tokenizer_next_added(t, p->text.data, p->segs[i].end, from, &b, &end, &id)) {
            if ((rc = lk_tokenizer_encode(t, p->text.data + done, b - done, LK_SPECIALS_NONE, out,
                                          e)))
                return rc;
            if (lk_ids_add(out, id)) return lk_fail(e, LK_ENOMEM, "out of memory");
            done = from = end;
        }
    }
    return lk_tokenizer_encode(t, p->text.data + done, p->text.len - done, LK_SPECIALS_NONE, out,
                               e);
}
