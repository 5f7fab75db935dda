/* Answers and tool calls as syntaxes: see json_schema.h. */
#include "text/json_schema.h"

#include "base/mem.h"
#include "text/pyjson.h"
#include "text/reply_value.h"
#include "text/schema_nodes.h"

#include <string.h>

static void begin(struct lk_schema *c, struct lk_syntax *s, const json_t *root, struct lk_err *e)
{
    *c = (struct lk_schema){
        .s = s, .e = e, .root = root, .value = -1, .object = -1, .array = -1, .space = -1};
    c->refs = json_object();
    if (!c->refs) s->failed = LK_ENOMEM;
}

static int end(struct lk_schema *c, int32_t root)
{
    json_decref(c->refs);
    c->s->root = root;
    int rc = lk__syn_check(c->s, c->e);
    if (!rc && root < 0) rc = c->e && c->e->code ? c->e->code : LK_EREQUEST;
    if (rc) lk__syn_free(c->s);
    return rc;
}

int lk_schema_syntax(struct lk_syntax *out, const json_t *schema, struct lk_err *e)
{
    struct lk_schema c;
    *out = (struct lk_syntax){0};
    begin(&c, out, schema, e);
    int32_t done = lk__syn_end(out);
    return end(&c, schema ? lk__schema_value(&c, schema, done) : lk__schema_any_object(&c, done));
}

int lk_schema_check(const json_t *schema, struct lk_err *e)
{
    struct lk_syntax s;
    int rc = lk_schema_syntax(&s, schema, e);
    if (!rc) lk__syn_free(&s);
    return rc;
}

/* ---- tool calls ---- */

static const char value_end[] = "\n</parameter>\n";

/* The values of a string's enum, raw; -1: no enum of strings that could be written so. */
static int32_t raw_enum(struct lk_schema *c, const json_t *schema, int32_t next)
{
    const json_t *list = json_object_get(schema, "enum");
    int32_t at = -1, after = lk__syn_text(c->s, value_end, sizeof value_end - 1, next);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v) || strstr(json_string_value(v), value_end)) return -1;
        at = lk__syn_either(c->s, at,
                            lk__syn_text(c->s, json_string_value(v), json_string_length(v), after));
    }
    return at;
}

static int32_t parameter(struct lk_schema *c, const json_t *params, const char *name,
                         const json_t *schema, int32_t next)
{
    struct lk_buf head = {0};
    unsigned types = lk__param_types(params, name);
    int32_t at = raw_enum(c, schema, next);
    if (at < 0 && (types & LK_JT_STRING))
        at = lk__syn_span(c->s, LK_SPAN_RAW, 0, LK_NO_LIMIT, next);
    if (at < 0)
        at = lk__schema_value(c, schema, lk__syn_text(c->s, value_end, sizeof value_end - 1, next));
    lk_buf_fmt(&head, "<parameter=%s>\n", name);
    if (head.failed) c->s->failed = LK_ENOMEM;
    if (at >= 0 && !head.failed) at = lk__syn_text(c->s, head.data, head.len, at);
    lk_buf_free(&head);
    return at;
}

/* A tool that declares no parameters may be given any. */
static int32_t free_parameters(struct lk_schema *c, int32_t next)
{
    struct lk_syntax *s = c->s;
    int32_t loop = lk__syn_split(s, next, next), name = lk__syn_split(s, next, next);
    int32_t value = lk__syn_text(s, ">\n", 2, lk__syn_span(s, LK_SPAN_RAW, 0, LK_NO_LIMIT, loop));
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    lk__syn_aim(s, name, lk__syn_chars(s, letters, name), value);
    lk__syn_aim(s, loop, next, lk__syn_text(s, "<parameter=", 11, lk__syn_chars(s, letters, name)));
    return loop;
}

static int32_t parameters(struct lk_schema *c, const json_t *params, int32_t next)
{
    const json_t *props = json_object_get(params, "properties"),
                 *required = json_object_get(params, "required");
    size_t n = json_object_size(props), k = 0;
    const char **names = lk_calloc(n + 1, sizeof *names), *name;
    json_t *v;
    int32_t at = next;
    if (!n) {
        lk_free(names);
        return params && !json_is_false(json_object_get(params, "additionalProperties")) && !props
                   ? free_parameters(c, next)
                   : next;
    }
    if (!names) c->s->failed = LK_ENOMEM;
    json_object_foreach((json_t *)props, name, v) if (names) names[k++] = name;
    while (k-- > 0 && at >= 0) {
        int must = 0;
        size_t i;
        json_array_foreach(required, i, v) must |=
            json_is_string(v) && !strcmp(json_string_value(v), names[k]);
        size_t mark = lk__schema_down(c, "properties", names[k]);
        int32_t p = strpbrk(names[k], ">\n<")
                        ? lk__schema_fail(c, "a parameter's name may not hold <, > or a line break")
                        : parameter(c, params, names[k], json_object_get(props, names[k]), at);
        lk__schema_up(c, mark);
        at = p < 0 || must ? p : lk__syn_split(c->s, p, at);
    }
    lk_free(names);
    return at;
}

/* A tag of the model: the added token where the vocabulary has it. */
static int32_t tag(struct lk_syntax *s, const struct lk_tokenizer *t, const char *text,
                   int32_t next)
{
    int32_t id = lk_tokenizer_find(t, text);
    return id >= 0 ? lk__syn_token(s, id, next) : lk__syn_text(s, text, strlen(text), next);
}

static int32_t one_tool(struct lk_syntax *s, const json_t *tool, const char *want, int32_t next,
                        struct lk_err *e)
{
    const json_t *f = json_object_get(tool, "function"), *o = json_is_object(f) ? f : tool;
    const char *name = json_string_value(json_object_get(o, "name"));
    struct lk_schema c;
    struct lk_buf head = {0};
    if (!name || strpbrk(name, ">\n<"))
        return lk_fail(e, LK_EREQUEST,
                       "a tool's name must be a string without <, > and line breaks");
    if (want && strcmp(want, name)) return LK_OK;
    const json_t *params =
        json_object_get(o, json_object_get(o, "parameters") ? "parameters" : "input_schema");
    begin(&c, s, params, e);
    c.lenient = 1;
    int32_t at = parameters(&c, params, lk__syn_text(s, "</function>\n", 12, next));
    json_decref(c.refs);
    lk_buf_fmt(&head, "%s>\n", name);
    if (head.failed) s->failed = LK_ENOMEM;
    if (at >= 0 && !head.failed) at = lk__syn_text(s, head.data, head.len, at);
    lk_buf_free(&head);
    return at;
}

int lk_tools_syntax(struct lk_syntax *out, const json_t *tools, const char *name, int several,
                    const struct lk_tokenizer *t, struct lk_err *e)
{
    struct lk_schema c;
    size_t i;
    json_t *tool;
    *out = (struct lk_syntax){0};
    begin(&c, out, NULL, e);
    int32_t done = lk__syn_end(out), again = lk__syn_split(out, done, done), call = -1;
    int32_t close = tag(out, t, "</tool_call>", several ? again : done);
    json_array_foreach(tools, i, tool)
    {
        int32_t one = one_tool(out, tool, name, close, e);
        if (one < 0) return end(&c, -1);
        if (one > 0) call = lk__syn_either(out, call, one);
    }
    if (call < 0) {
        lk_fail(e, LK_EREQUEST,
                name ? "tool_choice: no tool is named \"%.64s\""
                     : "tool_choice: there are no tools",
                name);
        return end(&c, -1);
    }
    call = tag(out, t, "<tool_call>", lk__syn_text(out, "\n<function=", 11, call));
    if (several) lk__syn_aim(out, again, done, lk__syn_text(out, "\n", 1, call));
    return end(&c, call);
}
