/* The three templates in C. The order of tests and raises is the template's own, so that the first
 * fault reported is the one jinja2 reports; names of Python's types appear because the template
 * lets Python speak. Template text is a control segment, whatever came from the caller is a text
 * segment. */
#include "text/chat.h"

#include "base/mem.h"
#include "text/pyjson.h"
#include "text/utf8.h"

#include <string.h>

static const char tools_head[] =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_tail[] =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
    "suffix:\n\n<tool_call>\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can "
    "span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST "
    "follow the specified format: "
    "an inner <function=...></function> block must be nested within <tool_call></tool_call> XML "
    "tags\n- Required "
    "parameters MUST be specified\n- You may provide optional reasoning for your function call in "
    "natural language BEFORE "
    "the function call, but NOT after\n- If there is no function call available, answer the "
    "question like normal with "
    "your current knowledge and do not tell the user about function calls\n</IMPORTANT>";
static const char effort_xhigh[] = "Reasoning effort is set to xhigh. Please think carefully "
                                   "through the task, validate key assumptions, consider "
                                   "plausible alternatives, and prioritize correctness, "
                                   "consistency, and clarity in the final answer.";
static const char effort_low[] = "Reasoning effort is set to low. Keep your thinking brief and "
                                 "focused, moving directly to the conclusion without "
                                 "unnecessary elaboration.";

/* What a message's content renders to: text with a few control spans (vision tags). */
struct content {
    struct lk_buf text;
    size_t (*spans)[2];
    size_t n_spans, cap_spans;
    size_t begin, end; /* trimmed */
};

struct render {
    enum lk_dialect d;
    const json_t *messages, *tools;
    const struct lk_chat_opts *o;
    struct lk_prompt *out;
    struct lk_err *e;
    int images, videos;
    size_t last_query;
    const char *effort;
    int failed; /* no memory */
    struct content c;
};

static int raise(struct render *r, const char *text)
{
    return lk_fail(r->e, LK_EREQUEST, "%s", text);
}

static void put(struct render *r, const char *p, size_t n, int is_text)
{
    struct lk_prompt *o = r->out;
    if (!n) return;
    if (!o->n_segs || o->segs[o->n_segs - 1].is_text != is_text) {
        if (o->n_segs == o->cap_segs) {
            size_t cap = o->cap_segs ? o->cap_segs * 2 : 32;
            struct lk_seg *s = lk_reallocarray(o->segs, cap, sizeof *s);
            if (!s) {
                r->failed = 1;
                return;
            }
            o->segs = s;
            o->cap_segs = cap;
        }
        o->segs[o->n_segs++] = (struct lk_seg){o->text.len, o->text.len, is_text};
    }
    lk_buf_add(&o->text, p, n);
    o->segs[o->n_segs - 1].end = o->text.len;
}

static void ctl(struct render *r, const char *s)
{
    put(r, s, strlen(s), 0);
}

static void text(struct render *r, const char *s, size_t n)
{
    put(r, s, n, 1);
}

/* A part of the content, control spans kept. */
static void put_content(struct render *r, const struct content *c, size_t b, size_t end)
{
    for (size_t i = 0; i < c->n_spans; i++) {
        size_t sb = c->spans[i][0], se = c->spans[i][1];
        if (se <= b || sb >= end) continue;
        if (sb > b) text(r, c->text.data + b, sb - b);
        put(r, c->text.data + (sb > b ? sb : b), (se < end ? se : end) - (sb > b ? sb : b), 0);
        b = se < end ? se : end;
    }
    if (b < end) text(r, c->text.data + b, end - b);
}

static void content_ctl(struct render *r, struct content *c, const char *s)
{
    if (c->n_spans == c->cap_spans) {
        size_t cap = c->cap_spans ? c->cap_spans * 2 : 8;
        void *p = lk_reallocarray(c->spans, cap, sizeof *c->spans);
        if (!p) {
            r->failed = 1;
            return;
        }
        c->spans = p;
        c->cap_spans = cap;
    }
    c->spans[c->n_spans][0] = c->text.len;
    lk_buf_str(&c->text, s);
    c->spans[c->n_spans++][1] = c->text.len;
}

static int is_string(const json_t *v)
{
    return json_is_string(v) && !lk_json_bignum(v);
}

static int is_str(const json_t *v, const char *s)
{
    return json_is_string(v) && !strcmp(json_string_value(v), s) &&
           strlen(s) == json_string_length(v);
}

/* `key in item` as Python does it for a dict, a str and a list. */
static int contains(const json_t *item, const char *key)
{
    size_t i;
    json_t *x;
    if (json_is_object(item)) return json_object_get(item, key) != NULL;
    if (json_is_string(item))
        return memmem(json_string_value(item), json_string_length(item), key, strlen(key)) != NULL;
    json_array_foreach(item, i, x) if (is_str(x, key)) return 1;
    return 0;
}

/* str(v) of what a template prints; a dict or list there is a caller's mistake that Python would
 * print as source text. */
static int py_str(struct render *r, const json_t *v, struct lk_buf *out, const char *what)
{
    char num[40];
    const char *big = lk_json_bignum(v);
    if (big)
        lk_buf_str(out, !strcmp(big, "Infinity")    ? "inf"
                        : !strcmp(big, "-Infinity") ? "-inf"
                                                    : big);
    else if (json_is_string(v))
        lk_buf_add(out, json_string_value(v), json_string_length(v));
    else if (json_is_integer(v))
        lk_buf_fmt(out, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        lk_py_float(json_real_value(v), num), lk_buf_str(out, num);
    else if (json_is_boolean(v) || json_is_null(v))
        lk_buf_str(out, json_is_null(v) ? "None" : json_is_true(v) ? "True" : "False");
    else
        return lk_fail(r->e, LK_EREQUEST, "%s must be a string, not %s", what, lk_py_type(v));
    return 0;
}

static int vision(struct render *r, struct content *c, int is_video, int count, int is_system)
{
    int *n = is_video ? &r->videos : &r->images;
    if (is_system)
        return raise(r, is_video ? "System message cannot contain videos."
                                 : "System message cannot contain images.");
    if (count) (*n)++;
    if (r->o->add_vision_id == 1)
        lk_buf_fmt(&c->text, "%s %d: ", is_video ? "Video" : "Picture", *n);
    content_ctl(r, c,
                is_video ? "<|vision_start|><|video_pad|><|vision_end|>"
                         : "<|vision_start|><|image_pad|><|vision_end|>");
    return 0;
}

static int content_item(struct render *r, struct content *c, const json_t *item, int count,
                        int is_system)
{
    const json_t *type = json_object_get(item, "type"), *t = json_object_get(item, "text");
    if (lk_json_bignum(item) ||
        !(json_is_object(item) || json_is_array(item) || json_is_string(item)))
        return lk_fail(r->e, LK_EREQUEST, "argument of type '%s' is not iterable",
                       lk_py_type(item));
    if (contains(item, "image") || contains(item, "image_url") || is_str(type, "image"))
        return vision(r, c, 0, count, is_system);
    if (contains(item, "video") || is_str(type, "video")) return vision(r, c, 1, count, is_system);
    if (!contains(item, "text")) return raise(r, "Unexpected item type in content.");
    return t ? py_str(r, t, &c->text, "the text of a content item") : 0;
}

/* render_content(...)|trim into r->c. */
static int content_render(struct render *r, const json_t *v, int count, int is_system)
{
    struct content *c = &r->c;
    size_t i;
    json_t *item;
    lk_buf_reset(&c->text);
    c->n_spans = 0;
    if (is_string(v)) {
        lk_buf_add(&c->text, json_string_value(v), json_string_length(v));
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, item)
        {
            int rc = content_item(r, c, item, count, is_system);
            if (rc) return rc;
        }
    } else if (v && !json_is_null(v)) {
        return raise(r, "Unexpected content type.");
    }
    if (lk_buf_reserve(&c->text, 1)) r->failed = 1; /* data is never NULL from here */
    c->begin = 0;
    c->end = c->text.len;
    if (c->text.data) lk__py_strip(c->text.data, &c->begin, &c->end);
    return r->failed || c->text.failed ? lk_fail(r->e, LK_ENOMEM, "out of memory") : 0;
}

static int role_is(const json_t *m, const char *role)
{
    return is_str(json_object_get(m, "role"), role);
}

static int effort_find(struct render *r)
{
    const struct lk_chat_opts *o = r->o;
    r->effort = "";
    if (r->d != LK_QWEN3_8 || (o->enable_thinking != -1 && o->enable_thinking != 1)) return 0;
    const char *s = o->effort_given ? o->reasoning_effort : "xhigh";
    if (strcmp(s, "xhigh") && strcmp(s, "medium") && strcmp(s, "low"))
        return lk_fail(
            r->e, LK_EREQUEST,
            "Unexpected reasoning effort %s. Supported types are xhigh (default), medium, and low.",
            s);
    r->effort = !strcmp(s, "xhigh") ? effort_xhigh : !strcmp(s, "low") ? effort_low : "";
    return 0;
}

static int tools_block(struct render *r)
{
    size_t i;
    json_t *tool;
    struct lk_buf b = {0};
    ctl(r, "<|im_start|>system\n");
    ctl(r, r->effort);
    if (*r->effort) ctl(r, "\n\n");
    ctl(r, tools_head);
    json_array_foreach(r->tools, i, tool)
    {
        ctl(r, "\n");
        lk_buf_reset(&b);
        if (lk_json_dump(tool, &b)) r->failed = 1;
        if (b.len) text(r, b.data, b.len);
    }
    lk_buf_free(&b);
    ctl(r, tools_tail);
    return 0;
}

static int system_turn(struct render *r)
{
    const json_t *first = json_array_get(r->messages, 0);
    int rc = 0, has_system = role_is(first, "system"), with_tools = json_array_size(r->tools) > 0;
    if (with_tools) tools_block(r);
    if (has_system && (rc = content_render(r, json_object_get(first, "content"), 0, 1))) return rc;
    int some = has_system && r->c.end > r->c.begin;
    if (with_tools) {
        if (some) ctl(r, "\n\n");
    } else {
        /* 3.5 and 3.6 print an empty system turn that is there; 3.8 drops it when there is nothing
         * to say. */
        if (r->d == LK_QWEN3_8 ? !some && !*r->effort : !has_system) return 0;
        ctl(r, "<|im_start|>system\n");
        ctl(r, r->effort);
        if (some && *r->effort) ctl(r, "\n\n");
    }
    if (some) put_content(r, &r->c, r->c.begin, r->c.end);
    ctl(r, "<|im_end|>\n");
    return 0;
}

/* The last user message that is not a wrapped tool result. */
static int query_find(struct render *r)
{
    static const char open[] = "<tool_response>", shut[] = "</tool_response>";
    for (size_t i = json_array_size(r->messages); i-- > 0;) {
        const json_t *m = json_array_get(r->messages, i);
        if (!role_is(m, "user")) continue;
        int rc = content_render(r, json_object_get(m, "content"), 0, 0);
        if (rc) return rc;
        const char *p = r->c.text.data + r->c.begin;
        size_t n = r->c.end - r->c.begin;
        if (n >= sizeof shut - 1 && !memcmp(p, open, sizeof open - 1) &&
            !memcmp(p + n - (sizeof shut - 1), shut, sizeof shut - 1))
            continue;
        r->last_query = i;
        return 0;
    }
    return raise(r, "No user query found in messages.");
}

static const char *find_last(const char *p, size_t n, const char *what)
{
    const char *last = NULL, *q;
    size_t k = strlen(what);
    while ((q = memmem(p, n, what, k))) {
        last = q;
        n -= (size_t)(q + k - p);
        p = q + k;
    }
    return last;
}

/* 3.5 and 3.6: reasoning written into the content. Leaves [b, end) = reasoning, and moves the
 * content's begin behind it. */
static void think_split(struct content *c, size_t *b, size_t *end)
{
    const char *base = c->text.data, *p = base + c->begin;
    size_t n = c->end - c->begin;
    const char *shut = memmem(p, n, "</think>", 8);
    if (!shut) return;
    *b = c->begin;
    *end = (size_t)(shut - base);
    while (*end > *b && base[*end - 1] == '\n') (*end)--;
    const char *open = find_last(base + *b, *end - *b, "<think>");
    if (open) *b = (size_t)(open - base) + 7;
    while (*b < *end && base[*b] == '\n') (*b)++;
    c->begin = (size_t)(find_last(p, n, "</think>") - base) + 8;
    while (c->begin < c->end && base[c->begin] == '\n') c->begin++;
}

static int parameter(struct render *r, const char *name, const json_t *v)
{
    struct lk_buf b = {0};
    int rc = 0;
    ctl(r, "<parameter=");
    text(r, name, strlen(name));
    ctl(r, ">\n");
    if (is_string(v) || (r->d == LK_QWEN3_5 && !json_is_object(v) && !json_is_array(v)))
        rc = py_str(r, v, &b, "an argument");
    else
        lk_json_dump(v, &b);
    if (b.len) text(r, b.data, b.len);
    if (b.failed) r->failed = 1;
    lk_buf_free(&b);
    ctl(r, "\n</parameter>\n");
    return rc;
}

static const char *object_repr(const json_t *v, char buf[32])
{
    if (json_is_null(v)) return "None";
    strcat(strcpy(buf, lk_py_type(v)), " object");
    return buf;
}

static void text_of(struct render *r, const json_t *v)
{
    if (is_string(v)) text(r, json_string_value(v), json_string_length(v));
}

/* The bytes of a sampled call: its outer tags are control tokens, what is between is text. `gap` and
 * `tail` are the white space that was sampled around it. */
static int raw_call(struct render *r, const json_t *call, const char *before)
{
    static const char open[] = "<tool_call>", shut[] = "</tool_call>";
    const json_t *raw = json_object_get(call, "raw"), *gap = json_object_get(call, "gap");
    if (!is_string(raw)) return 0;
    const char *p = json_string_value(raw);
    size_t n = json_string_length(raw), a = sizeof open - 1, b = sizeof shut - 1;
    if (n < a + b || memcmp(p, open, a) || memcmp(p + n - b, shut, b)) return 0;
    if (is_string(gap))
        text_of(r, gap);
    else
        ctl(r, before);
    ctl(r, open);
    text(r, p + a, n - a - b);
    ctl(r, shut);
    text_of(r, json_object_get(call, "tail"));
    return 1;
}

static int tool_call(struct render *r, const json_t *call, const char *before)
{
    char buf[32];
    const char *k;
    json_t *v;
    const json_t *f = json_object_get(call, "function");
    if (raw_call(r, call, before)) return 0;
    if (f) call = f;
    const json_t *name = json_object_get(call, "name"), *args = json_object_get(call, "arguments");
    ctl(r, before);
    ctl(r, "<tool_call>\n<function=");
    if (!name)
        return lk_fail(r->e, LK_EREQUEST, "'%s' has no attribute 'name'", object_repr(call, buf));
    if (!is_string(name))
        return lk_fail(r->e, LK_EREQUEST, "can only concatenate str (not \"%s\") to str",
                       lk_py_type(name));
    text(r, json_string_value(name), json_string_length(name));
    ctl(r, ">\n");
    if (args && !(r->d == LK_QWEN3_8 && is_string(args) && !json_string_length(args))) {
        if (!json_is_object(args)) return raise(r, "Can only get item pairs from a mapping.");
        json_object_foreach((json_t *)args, k, v)
        {
            int rc = parameter(r, k, v);
            if (rc) return rc;
        }
    }
    ctl(r, "</function>\n</tool_call>");
    return 0;
}

static int tool_calls(struct render *r, const json_t *calls)
{
    size_t i, b = r->c.begin, end = r->c.end;
    json_t *call;
    if (is_string(calls) && json_string_length(calls))
        return raise(r, "'str object' has no attribute 'name'"); /* Python walks its characters */
    if (calls && !json_is_array(calls) && !json_is_object(calls) && !json_is_null(calls) &&
        !json_is_false(calls))
        return 0; /* not iterable: no calls */
    lk__py_strip(r->c.text.data, &b, &end);
    json_array_foreach(calls, i, call)
    {
        int rc = tool_call(r, call, i ? "\n" : b < end ? "\n\n" : "");
        if (rc) return rc;
    }
    return 0;
}

static int assistant(struct render *r, const json_t *m, size_t i)
{
    const json_t *reason = json_object_get(m, "reasoning_content");
    size_t b = 0, end = 0;
    int preserve = r->o->preserve_thinking, show = i > r->last_query;
    const char *think = r->c.text.data;
    if (is_string(reason)) {
        think = json_string_value(reason);
        end = json_string_length(reason);
    } else if (r->d != LK_QWEN3_8) {
        think_split(&r->c, &b, &end);
    }
    lk__py_strip(think, &b, &end);
    if (r->d == LK_QWEN3_8) show |= preserve == -1;
    if (r->d != LK_QWEN3_5) show |= preserve == 1;
    ctl(r, "<|im_start|>assistant\n");
    if (show) {
        ctl(r, "<think>\n");
        if (think == r->c.text.data)
            put_content(r, &r->c, b, end);
        else
            text(r, think + b, end - b);
        ctl(r, "\n</think>\n\n");
    }
    put_content(r, &r->c, r->c.begin, r->c.end);
    int rc = tool_calls(r, json_object_get(m, "tool_calls"));
    ctl(r, "<|im_end|>\n");
    return rc;
}

static void tool_result(struct render *r, size_t i)
{
    size_t n = json_array_size(r->messages);
    if (i > 0 && !role_is(json_array_get(r->messages, i - 1), "tool")) ctl(r, "<|im_start|>user");
    ctl(r, "\n<tool_response>\n");
    put_content(r, &r->c, r->c.begin, r->c.end);
    ctl(r, "\n</tool_response>");
    if (i + 1 == n || !role_is(json_array_get(r->messages, i + 1), "tool")) ctl(r, "<|im_end|>\n");
}

static int message(struct render *r, size_t i)
{
    const json_t *m = json_array_get(r->messages, i);
    int rc = content_render(r, json_object_get(m, "content"), 1, 0);
    if (rc) return rc;
    if (role_is(m, "system") && i && r->o->system_anywhere) {
        ctl(r, "<|im_start|>system\n");
        put_content(r, &r->c, r->c.begin, r->c.end);
        ctl(r, "<|im_end|>\n");
        return 0;
    }
    if (role_is(m, "system")) return i ? raise(r, "System message must be at the beginning.") : 0;
    if (role_is(m, "assistant")) return assistant(r, m, i);
    if (role_is(m, "user")) {
        ctl(r, "<|im_start|>user\n");
        put_content(r, &r->c, r->c.begin, r->c.end);
        ctl(r, "<|im_end|>\n");
    } else if (role_is(m, "tool")) {
        tool_result(r, i);
    } else {
        return raise(r, "Unexpected message role.");
    }
    return 0;
}

static int render_all(struct render *r)
{
    int rc;
    if (!json_array_size(r->messages)) return raise(r, "No messages provided.");
    if ((rc = effort_find(r)) || (rc = system_turn(r)) || (rc = query_find(r))) return rc;
    for (size_t i = 0; i < json_array_size(r->messages); i++)
        if ((rc = message(r, i))) return rc;
    if (r->o->add_generation_prompt == 1) {
        ctl(r, "<|im_start|>assistant\n");
        ctl(r, r->o->enable_thinking == 0 ? "<think>\n\n</think>\n\n" : "<think>\n");
        r->out->thinking_open = r->o->enable_thinking != 0;
    }
    return r->failed || r->out->text.failed ? lk_fail(r->e, LK_ENOMEM, "out of memory") : 0;
}

int lk_chat_render(enum lk_dialect d, const json_t *messages, const json_t *tools,
                   const struct lk_chat_opts *o, struct lk_prompt *out, struct lk_err *e)
{
    struct render r = {.d = d, .messages = messages, .tools = tools, .o = o, .out = out, .e = e};
    memset(out, 0, sizeof *out);
    if (d == LK_DIALECT_NONE)
        return lk_fail(e, LK_EREQUEST,
                       "the model's chat template is not one of Qwen3.5, 3.6 and 3.8");
    if (messages && !json_is_array(messages) && !json_is_null(messages))
        return lk_fail(e, LK_EREQUEST, "messages: must be an array, not %s", lk_py_type(messages));
    if (json_is_string(tools) && json_string_length(tools))
        return lk_fail(e, LK_EREQUEST, "tools: must be an array, not %s", lk_py_type(tools));
    int rc = render_all(&r);
    lk_buf_free(&r.c.text);
    lk_free(r.c.spans);
    if (rc) lk_prompt_free(out);
    return rc;
}
