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

static const json_t *present(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
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

json_t *lk_body_parse(const char *body, size_t n, struct lk_fault *f)
{
    json_error_t je;
    json_t *o = json_loadb(body ? body : "", n, 0, &je);
    if (!o) {
        lk_fault_set(f, 400, "invalid_json", NULL, "the body is not valid JSON: %s (line %d, column %d)", je.text, je.line,
                     je.column);
        return NULL;
    }
    if (json_is_object(o)) return o;
    json_decref(o);
    lk_fault_set(f, 400, "invalid_json", NULL, "the body must be a JSON object");
    return NULL;
}
