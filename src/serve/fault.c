/* Faults of requests and the readers that find them. No sockets here, so that fuzz targets can reach everything a body
 * goes through. */
#include "serve/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* A text cut in the middle of a character, or made of bytes a client sent, must still be a JSON string. */
static void make_utf8(char *s)
{
    utf8proc_ssize_t left = (utf8proc_ssize_t)strlen(s);
    while (left > 0) {
        utf8proc_int32_t ch;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, left, &ch);
        if (n <= 0) {
            *s = '?';
            n = 1;
        }
        s += n;
        left -= n;
    }
}

static int vset(struct lk_fault *f, int status, const char *code, const char *param, const char *fmt, va_list ap)
{
    if (f->status) return -1;
    f->status = status;
    snprintf(f->code, sizeof f->code, "%s", code);
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    make_utf8(f->text);
    make_utf8(f->param);
    return -1;
}

int lk_fault_set(struct lk_fault *f, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vset(f, status, code, param, fmt, ap);
    va_end(ap);
    return -1;
}

int lk_fault_field(struct lk_fault *f, const char *param, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return lk_fault_set(f, 400, "invalid_value", param, "%s: %s", param, text);
}

int lk_fault_err(struct lk_fault *f, const struct lk_err *e)
{
    if (e->code == LK_EREQUEST) return lk_fault_set(f, 400, "invalid_request", NULL, "%s", e->text);
    if (e->code == LK_EBUSY || e->code == LK_EDEVICE) {
        lk_fault_set(f, 503, "service_unavailable", NULL, "%s", e->text);
        f->retry_after = 1;
        return -1;
    }
    if (e->code == LK_ENOMEM) return lk_fault_set(f, 503, "out_of_memory", NULL, "%s", e->text);
    return lk_fault_set(f, 500, "internal_error", NULL, "%s", e->text);
}

static const char *fault_type(int status, int anthropic)
{
    if (status == 401) return "authentication_error";
    if (status == 404) return "not_found_error";
    if (status == 413 && anthropic) return "request_too_large";
    if (status == 429) return "rate_limit_error";
    if (status == 503 && anthropic) return "overloaded_error";
    if (status >= 500) return anthropic ? "api_error" : "server_error";
    return "invalid_request_error";
}

json_t *lk_fault_json(const struct lk_fault *f, int anthropic)
{
    if (anthropic)
        return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", fault_type(f->status, 1), "message",
                         f->text);
    return json_pack("{s:{s:s, s:s, s:o, s:s}}", "error", "message", f->text, "type", fault_type(f->status, 0), "param",
                     *f->param ? json_string(f->param) : json_null(), "code", f->code);
}

/* name may say where the object stands: "thinking.type" is the field type of the object thinking. */
static const json_t *present(const json_t *o, const char *name)
{
    const char *dot = strrchr(name, '.');
    const json_t *v = json_object_get(o, dot ? dot + 1 : name);
    return v && !json_is_null(v) ? v : NULL;
}

int lk_get_num(const json_t *o, const char *name, double min, double max, double *out, struct lk_fault *f)
{
    const json_t *v = present(o, name);
    if (!v) return 0;
    if (!json_is_number(v)) return lk_fault_field(f, name, "must be a number");
    double x = json_number_value(v);
    if (!(x >= min && x <= max)) return lk_fault_field(f, name, "must be between %g and %g", min, max);
    *out = x;
    return 1;
}

int lk_get_int(const json_t *o, const char *name, json_int_t min, json_int_t max, json_int_t *out, struct lk_fault *f)
{
    const json_t *v = present(o, name);
    if (!v) return 0;
    if (!json_is_integer(v)) return lk_fault_field(f, name, "must be an integer");
    json_int_t x = json_integer_value(v);
    if (x < min || x > max)
        return lk_fault_field(f, name, "must be between %lld and %lld", (long long)min, (long long)max);
    *out = x;
    return 1;
}

int lk_get_bool(const json_t *o, const char *name, int *out, struct lk_fault *f)
{
    const json_t *v = present(o, name);
    if (!v) return 0;
    if (!json_is_boolean(v)) return lk_fault_field(f, name, "must be true or false");
    *out = json_is_true(v);
    return 1;
}

int lk_get_str(const json_t *o, const char *name, const char **out, struct lk_fault *f)
{
    const json_t *v = present(o, name);
    if (!v) return 0;
    if (!json_is_string(v)) return lk_fault_field(f, name, "must be a string");
    *out = json_string_value(v);
    return 1;
}

int lk_get_obj(const json_t *o, const char *name, const json_t **out, struct lk_fault *f)
{
    const json_t *v = present(o, name);
    if (!v) return 0;
    if (!json_is_object(v)) return lk_fault_field(f, name, "must be an object");
    *out = v;
    return 1;
}

int lk_get_arr(const json_t *o, const char *name, const json_t **out, struct lk_fault *f)
{
    const json_t *v = present(o, name);
    if (!v) return 0;
    if (!json_is_array(v)) return lk_fault_field(f, name, "must be an array");
    *out = v;
    return 1;
}

/* ---- bodies ---- */

enum { LEVELS = 32 };

struct where { /* the way to a place in a JSON text */
    struct level {
        int array, key_next;
        long index;
        const char *key;
        size_t len;
    } v[LEVELS];
    int n, deep; /* deep: levels past LEVELS */
};

static size_t skip_string(const char *s, size_t i, size_t end)
{
    for (i++; i < end && s[i] != '"'; i++)
        if (s[i] == '\\') i++;
    return i;
}

static void open_level(struct where *w, int array)
{
    if (w->n == LEVELS)
        w->deep++;
    else
        w->v[w->n++] = (struct level){.array = array, .key_next = 1};
}

static void where_is(struct where *w, const char *s, size_t end)
{
    for (size_t i = 0; i < end; i++) {
        struct level *l = w->n && !w->deep ? &w->v[w->n - 1] : NULL;
        if (s[i] == '"') {
            size_t from = i + 1;
            i = skip_string(s, i, end);
            if (!l || l->array || !l->key_next) continue;
            l->key = s + from;
            l->len = i - from;
            l->key_next = 0;
        } else if (s[i] == '{' || s[i] == '[') {
            open_level(w, s[i] == '[');
        } else if (s[i] == '}' || s[i] == ']') {
            if (w->deep)
                w->deep--;
            else if (w->n)
                w->n--;
        } else if (s[i] == ',' && l) {
            l->index++;
            l->key_next = 1;
        }
    }
}

static void where_name(const struct where *w, char *out, size_t cap)
{
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < w->n && n + 1 < cap; i++) {
        const struct level *l = &w->v[i];
        int k = l->array ? snprintf(out + n, cap - n, "[%ld]", l->index)
                         : snprintf(out + n, cap - n, "%s%.*s", n ? "." : "", (int)(l->len < 64 ? l->len : 64), l->key ? l->key : "");
        n += k > 0 ? (size_t)k : 0;
    }
}

/* NaN, Infinity: numbers to JavaScript and Python, none to JSON. */
static int is_no_number(const char *s, size_t n, size_t at)
{
    static const char *const words[] = {"NaN", "Infinity", "nan", "inf"};
    while (at && (size_t)at <= n && (s[at - 1] == '-' || (s[at - 1] | 0x20) >= 'a')) at--;
    if (at < n && s[at] == '-') at++;
    for (size_t i = 0; i < 4; i++)
        if (n - at >= strlen(words[i]) && !memcmp(s + at, words[i], strlen(words[i]))) return 1;
    return 0;
}

static int bad_body(const char *body, size_t n, const json_error_t *je, struct lk_fault *f)
{
    struct where w = {.n = 0};
    char name[128];
    size_t at = je->position > 0 && (size_t)je->position <= n ? (size_t)je->position : n;
    enum json_error_code code = json_error_code(je);
    where_is(&w, body, at && (body[at - 1] == ',' || body[at - 1] == '}' || body[at - 1] == ']') ? at - 1 : at);
    where_name(&w, name, sizeof name);
    if (*name && code == json_error_numeric_overflow) return lk_fault_field(f, name, "the number is out of range");
    if (*name && code == json_error_null_character) return lk_fault_field(f, name, "holds \\u0000, which no text may");
    if (*name && code == json_error_invalid_syntax && is_no_number(body, n, at))
        return lk_fault_field(f, name, "is not a number: JSON has no NaN and no Infinity");
    return lk_fault_set(f, 400, "invalid_json", NULL, "the body is not valid JSON: %s (line %d, column %d)", je->text, je->line,
                        je->column);
}

json_t *lk_body_parse(const char *body, size_t n, struct lk_fault *f)
{
    json_error_t je;
    if (!body) n = 0;
    json_t *o = json_loadb(body ? body : "", n, 0, &je);
    if (!o) {
        bad_body(body ? body : "", n, &je, f);
        return NULL;
    }
    if (json_is_object(o)) return o;
    json_decref(o);
    lk_fault_set(f, 400, "invalid_json", NULL, "the body must be a JSON object");
    return NULL;
}
