/* The reply parser: see reply.h. A state machine over a buffer of text not yet decided on. A state
 * either consumes a prefix of the buffer and says so, or needs more text; with `final` set it must
 * decide. Every look-ahead is bounded (HOLD bytes of white space, NAME bytes of a name), so the
 * work is linear and what is held back is small.
 *
 *   START -> REASON -> CONTENT <-> CALL (behind <tool_call>) -> PARAMS <-> VALUE
 *                                    ^------- AFTER (behind </function>) -------' */
#include "text/reply.h"

#include "base/mem.h"
#include "text/pyjson.h"
#include "text/reply_value.h"

#include <string.h>

enum { HOLD = 64, NAME = 256 };

enum state { START, REASON, CONTENT, CALL, PARAMS, VALUE, AFTER };

struct lk_reply {
    enum state state;
    int parse_tools, opened, skip_newlines, after_call, any_param, in_string, final, failed;
    json_t *tools, *calls;
    const json_t *schema; /* of the call that is open */
    lk_reply_fn fn;
    void *arg;
    struct lk_buf in, reasoning, content, value, name, args;
    size_t off;     /* what lies before it in `in` is consumed */
    unsigned types; /* of the parameter that is open */
};

enum verdict { NO, MAYBE, YES };

struct lk_reply *lk_reply_new(int thinking_open, const json_t *tools, int parse_tools,
                              lk_reply_fn fn, void *arg)
{
    struct lk_reply *r = lk_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->state = START;
    r->opened = thinking_open;
    r->parse_tools = parse_tools;
    r->tools = json_incref((json_t *)tools);
    r->calls = json_array();
    r->fn = fn;
    r->arg = arg;
    if (r->calls) return r;
    lk_reply_free(r);
    return NULL;
}

void lk_reply_free(struct lk_reply *r)
{
    if (!r) return;
    json_decref(r->tools);
    json_decref(r->calls);
    lk_buf_free(&r->in);
    lk_buf_free(&r->reasoning);
    lk_buf_free(&r->content);
    lk_buf_free(&r->value);
    lk_buf_free(&r->name);
    lk_buf_free(&r->args);
    lk_free(r);
}

static void event(struct lk_reply *r, enum lk_reply_kind kind, const char *p, size_t n)
{
    struct lk_reply_event ev = {kind, (int)json_array_size(r->calls), p, n};
    if (r->fn) r->fn(r->arg, &ev);
}

static const char *cur(const struct lk_reply *r)
{
    return r->in.data + r->off;
}

static size_t left(const struct lk_reply *r)
{
    return r->in.len - r->off;
}

/* Emits the first n bytes of the buffer as reasoning or content. */
static void emit(struct lk_reply *r, size_t n)
{
    struct lk_buf *total = r->state == REASON ? &r->reasoning : &r->content;
    if (!n) return;
    event(r, r->state == REASON ? LK_REPLY_REASONING : LK_REPLY_CONTENT, cur(r), n);
    lk_buf_add(total, cur(r), n);
    r->after_call = 0;
}

static void drop(struct lk_reply *r, size_t n)
{
    r->off += n;
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Does p start with tag? MAYBE: the text ends inside it. */
static enum verdict starts(const char *p, size_t n, const char *tag)
{
    size_t k = strlen(tag);
    if (memcmp(p, tag, n < k ? n : k)) return NO;
    return n < k ? MAYBE : YES;
}

/* White space at p, at most HOLD; *more set when the text ends inside it. */
static size_t spaces(const char *p, size_t n, int *more)
{
    size_t k = 0;
    while (k < n && k < HOLD && is_space(p[k])) k++;
    *more = k == n && k < HOLD;
    return k;
}

/* <function=NAME> or <parameter=NAME> at p: YES and the name's place; NO when it cannot be one. */
static enum verdict header(const char *p, size_t n, const char *tag, size_t *b, size_t *end)
{
    enum verdict v = starts(p, n, tag);
    if (v != YES) return v;
    *b = strlen(tag);
    for (size_t i = *b; i < n && i - *b <= NAME; i++) {
        if (p[i] == '\n' || p[i] == '<') return NO;
        if (p[i] != '>') continue;
        *end = i;
        return i > *b ? YES : NO;
    }
    return n - *b > NAME ? NO : MAYBE;
}

/* ---- reasoning and content: 1 consumed, 0 needs more ---- */

static int step_start(struct lk_reply *r)
{
    int more;
    size_t k = spaces(cur(r), left(r), &more);
    enum verdict v = more ? MAYBE : starts(cur(r) + k, left(r) - k, "<think>");
    if (v == MAYBE && !r->final) return 0;
    if (v == YES) drop(r, k + 7);
    r->state = v == YES || r->opened ? REASON : CONTENT;
    r->skip_newlines = r->state == REASON;
    return 1;
}

static int step_newlines(struct lk_reply *r)
{
    size_t k = 0;
    while (k < left(r) && cur(r)[k] == '\n') k++;
    if (k) drop(r, k);
    if (left(r)) r->skip_newlines = 0;
    return left(r) > 0;
}

/* The start of the white-space run (HOLD at most) that ends at i. */
static size_t run_begin(const struct lk_reply *r, size_t i)
{
    size_t b = i;
    while (b > 0 && i - b < HOLD && is_space(cur(r)[b - 1])) b--;
    return b;
}

static int step_reason(struct lk_reply *r)
{
    const char *p = cur(r);
    size_t n = left(r), i = 0;
    enum verdict v = NO;
    for (; i < n; i++) {
        if (p[i] != '<' || (v = starts(p + i, n - i, "</think>")) == NO) continue;
        break;
    }
    if (v == YES) {
        emit(r, run_begin(r, i));
        drop(r, i + 8);
        r->state = CONTENT;
        r->skip_newlines = 1;
        return 1;
    }
    size_t keep = r->final ? (i < n ? n : run_begin(r, n))
                           : run_begin(r, i); /* a cut answer loses its trailing space only */
    emit(r, keep);
    drop(r, r->final ? n : keep);
    return 0;
}

/* A call begins at p: <tool_call>, or <function=NAME> of a tool that exists. *skip: bytes up to
 * <function=. */
static enum verdict call_begins(struct lk_reply *r, const char *p, size_t n, size_t *skip)
{
    size_t b, end;
    int known;
    enum verdict v = starts(p, n, "<tool_call>");
    *skip = 11;
    if (v != NO) return v;
    *skip = 0;
    v = header(p, n, "<function=", &b, &end);
    if (v == YES) lk__tool_schema(r->tools, p + b, end - b, &known);
    return v == YES && !known ? NO : v;
}

static int step_content(struct lk_reply *r)
{
    const char *p = cur(r);
    size_t n = left(r), i = 0, skip = 0;
    enum verdict v = NO;
    if (!r->parse_tools) {
        emit(r, n);
        drop(r, n);
        return 0;
    }
    for (; i < n; i++)
        if (p[i] == '<' && (v = call_begins(r, p + i, n - i, &skip)) != NO) break;
    if (v == YES && skip) { /* is it <tool_call><function=NAME>? */
        int more;
        size_t b, end, k = spaces(p + i + skip, n - i - skip, &more);
        size_t at = i + skip + k;
        v = more ? MAYBE : header(p + at, n - at, "<function=", &b, &end);
        if (v == YES) skip += k;
    }
    if (v == YES) {
        emit(r, run_begin(r, i));
        drop(r, i + skip);
        r->state = CALL;
        return 1;
    }
    if (v == NO && i < n) { /* <tool_call> and no function: text */
        emit(r, i + 1);
        drop(r, i + 1);
        return 1;
    }
    size_t keep = run_begin(r, i); /* white space in front of a call that may come */
    if (r->final) keep = r->after_call && !keep && run_begin(r, n) == 0 ? 0 : n;
    emit(r, keep);
    drop(r, r->final ? n : keep);
    return 0;
}

/* ---- calls ---- */

static void args_add(struct lk_reply *r, const char *p, size_t n)
{
    if (!n) return;
    lk_buf_add(&r->args, p, n);
    event(r, LK_REPLY_CALL_ARGS, p, n);
}

static int step_call(struct lk_reply *r)
{
    size_t b = 0, end = 0;
    int known;
    header(cur(r), left(r), "<function=", &b, &end); /* whole: step_content waited for it */
    lk_buf_reset(&r->name);
    lk_buf_add(&r->name, cur(r) + b, end - b);
    r->schema = lk__tool_schema(r->tools, cur(r) + b, end - b, &known);
    lk_buf_reset(&r->args);
    r->any_param = 0;
    event(r, LK_REPLY_CALL_BEGIN, r->name.data, r->name.len);
    drop(r, end + 1);
    r->state = PARAMS;
    return 1;
}

static void call_end(struct lk_reply *r)
{
    if (r->any_param)
        args_add(r, "}", 1);
    else
        args_add(r, "{}", 2);
    json_t *args = lk_json_parse(r->args.data, r->args.len, NULL), *call = json_object();
    if (!args) args = json_object();
    lk_json_plain(args);
    if (json_object_set_new(call, "name", json_stringn_nocheck(r->name.data, r->name.len)) ||
        json_object_set_new(call, "arguments", args) ||
        json_object_set_new(call, "text", json_stringn_nocheck(r->args.data, r->args.len)))
        r->failed = 1;
    event(r, LK_REPLY_CALL_END, "", 0);
    if (json_array_append_new(r->calls, call)) r->failed = 1;
    r->state = AFTER;
    r->after_call = 1;
}

static void param_begin(struct lk_reply *r, size_t b, size_t end)
{
    struct lk_buf key = {0};
    char name[NAME + 1];
    memcpy(name, cur(r) + b, end - b);
    name[end - b] = 0;
    lk_buf_str(&key, r->any_param ? ", " : "{");
    lk_json_dump_string(name, end - b, &key);
    lk_buf_str(&key, ": ");
    r->any_param = 1;
    r->types = lk__param_types(r->schema, name);
    r->in_string = r->types == LK_JT_STRING;
    if (r->in_string) lk_buf_chr(&key, '"');
    args_add(r, key.data, key.len);
    if (key.failed) r->failed = 1;
    lk_buf_free(&key);
    lk_buf_reset(&r->value);
    r->state = VALUE;
}

static int step_params(struct lk_reply *r)
{
    const char *p = cur(r);
    size_t n = left(r), b, end;
    int more;
    size_t k = spaces(p, n, &more);
    if (k) {
        drop(r, k);
        return 1;
    }
    if (!n) return 0;
    enum verdict v = header(p, n, "<parameter=", &b, &end);
    enum verdict f = starts(p, n, "</function>"), t = starts(p, n, "</tool_call>");
    /* The newline behind the header is the template's: wait for the byte that tells. */
    if (v == YES && end + 1 == n && !r->final) return 0;
    if (v == YES) {
        param_begin(r, b, end);
        drop(r, end + 1 + (end + 1 < n && cur(r)[end + 1] == '\n'));
        return 1;
    }
    if (f == YES || t == YES) { /* a missing </function> is forgiven */
        if (f == YES) drop(r, 11);
        call_end(r);
        return 1;
    }
    if ((v == MAYBE || f == MAYBE || t == MAYBE) && !r->final) return 0;
    for (k = 1; k < n && p[k] != '<'; k++) {
    }
    drop(r, k); /* nothing stands between parameters; what does is dropped up to the next tag */
    return 1;
}

static void value_add(struct lk_reply *r, const char *p, size_t n)
{
    struct lk_buf b = {0};
    if (!n) return;
    if (!r->in_string) {
        lk_buf_add(&r->value, p, n);
        return;
    }
    lk_json_dump_string(p, n, &b);
    if (b.len > 2) args_add(r, b.data + 1, b.len - 2);
    if (b.failed) r->failed = 1;
    lk_buf_free(&b);
}

static void value_end(struct lk_reply *r)
{
    struct lk_buf b = {0};
    if (r->in_string)
        lk_buf_chr(&b, '"');
    else
        lk__value_json(r->value.data ? r->value.data : "", r->value.len, r->types, &b);
    args_add(r, b.data, b.len);
    if (b.failed) r->failed = 1;
    lk_buf_free(&b);
    r->state = PARAMS;
}

/* Behind a closing tag at p: white space and then one of what may follow (or the end of the text).
 */
static enum verdict follows(const struct lk_reply *r, const char *p, size_t n,
                            const char *const *next)
{
    int more, maybe = 0;
    size_t k = spaces(p, n, &more);
    if (more) return r->final ? YES : MAYBE;
    if (k == HOLD) return YES;
    for (; *next; next++) {
        enum verdict v = starts(p + k, n - k, *next);
        if (v == YES) return YES;
        maybe |= v == MAYBE;
    }
    return maybe ? (r->final ? YES : MAYBE) : NO;
}

/* Does the value end at p (a '<', with or without the newline in front that is the template's)?
 * *skip: bytes of the end. */
static enum verdict value_ends(const struct lk_reply *r, const char *p, size_t n, int newline,
                               size_t *skip)
{
    static const char *const after_param[] = {"<parameter=", "</function>", "</tool_call>", NULL};
    static const char *const after_function[] = {"</tool_call>", NULL};
    size_t b, end;
    enum verdict v;
    *skip = 12;
    v = starts(p, n, "</parameter>");
    if (v == YES) /* only a string can hold the tag itself */
        return r->types & LK_JT_STRING ? follows(r, p + 12, n - 12, after_param) : YES;
    if (v == MAYBE) return MAYBE;
    *skip = 0; /* what is not </parameter> is left for the next state */
    v = starts(p, n, "</function>");
    if (v == YES) return follows(r, p + 11, n - 11, after_function);
    if (v == MAYBE || !newline) return v;
    if ((v = starts(p, n, "</tool_call>")) != NO) return v;
    v = header(p, n, "<parameter=", &b, &end);
    return v == YES && !lk__param_known(r->schema, p + b, end - b) ? NO : v;
}

static int step_value(struct lk_reply *r)
{
    const char *p = cur(r);
    size_t n = left(r), i = 0, skip = 0;
    enum verdict v = NO;
    int newline = 0;
    for (; i < n; i++) {
        if (p[i] != '<' && p[i] != '\n') continue;
        newline = p[i] == '\n';
        if (newline && i + 1 == n)
            v = MAYBE;
        else if (newline && p[i + 1] != '<')
            v = NO;
        else
            v = value_ends(r, p + i + newline, n - i - (size_t)newline, newline, &skip);
        if (v != NO) break;
    }
    if (v == YES || r->final) {
        value_add(r, p, i); /* a cut value loses the beginning of its closing tag */
        drop(r, v == YES ? i + (size_t)newline + skip : n);
        value_end(r);
        return 1;
    }
    value_add(r, p, i);
    drop(r, i);
    return 0;
}

static int step_after(struct lk_reply *r)
{
    int more;
    size_t k = spaces(cur(r), left(r), &more), b, end;
    const char *p = cur(r) + k;
    size_t n = left(r) - k;
    enum verdict t = more ? MAYBE : starts(p, n, "</tool_call>"),
                 f = more ? MAYBE : header(p, n, "<function=", &b, &end);
    if (t == YES) drop(r, k + 12);
    if (f == YES) drop(r, k); /* a second function in one <tool_call> */
    if (t != YES && f != YES && (t == MAYBE || f == MAYBE) && !r->final) return 0;
    r->state = f == YES ? CALL : CONTENT;
    return 1;
}

static int step(struct lk_reply *r)
{
    if (r->state != START && r->state != PARAMS && !left(r) && !(r->final && r->state == VALUE))
        return 0;
    if (r->skip_newlines && !step_newlines(r)) return 0;
    switch (r->state) {
    case START:
        return (left(r) || r->final) && step_start(r);
    case REASON:
        return step_reason(r);
    case CONTENT:
        return step_content(r);
    case CALL:
        return step_call(r);
    case PARAMS:
        return left(r) ? step_params(r) : 0;
    case VALUE:
        return step_value(r);
    default:
        return step_after(r);
    }
}

static int result(const struct lk_reply *r)
{
    return r->failed || r->in.failed || r->reasoning.failed || r->content.failed ||
                   r->value.failed || r->args.failed
               ? LK_ENOMEM
               : 0;
}

int lk_reply_push(struct lk_reply *r, const char *text, size_t len)
{
    if (!len || lk_buf_add(&r->in, text, len)) return result(r);
    while (step(r)) {
    }
    memmove(r->in.data, cur(r), left(r) + 1);
    r->in.len -= r->off;
    r->off = 0;
    return result(r);
}

int lk_reply_finish(struct lk_reply *r)
{
    r->final = 1;
    if (!r->in.data && lk_buf_reserve(&r->in, 1)) return LK_ENOMEM;
    while (step(r)) {
    }
    if (r->state == PARAMS) call_end(r);
    return result(r);
}

const struct lk_buf *lk_reply_reasoning(const struct lk_reply *r)
{
    return &r->reasoning;
}

const struct lk_buf *lk_reply_content(const struct lk_reply *r)
{
    return &r->content;
}

const json_t *lk_reply_calls(const struct lk_reply *r)
{
    return r->calls;
}

int lk_reply_in_reasoning(const struct lk_reply *r)
{
    return r->state == REASON || (r->state == START && r->opened);
}
