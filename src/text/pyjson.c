/* JSON with Python's meaning: see pyjson.h. */
#include "text/pyjson.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two noncharacters that no text carries, and a word for who finds them in a log. */
#define BIG_MARK                                                                                   \
    "\xef\xbf\xbe\xef\xbf\xbf"                                                                     \
    "number:"
enum { BIG_DIGITS_MAX = 4300 }; /* Python's own limit for int() of a text */

const char *lk_json_bignum(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && !strncmp(s, BIG_MARK, sizeof BIG_MARK - 1) ? s + sizeof BIG_MARK - 1 : NULL;
}

/* A number token at p: its length, and in *as what to print for it when jansson cannot hold it
 * (NULL: it can). */
static size_t number_scan(const char *p, size_t n, const char **as)
{
    size_t k = 0, digits = 0;
    int real = 0;
    char copy[BIG_DIGITS_MAX + 32];
    *as = NULL;
    for (; k < n && strchr("+-.eE0123456789", p[k]) && p[k]; k++) {
        if (strchr(".eE", p[k])) real = 1;
        digits += p[k] >= '0' && p[k] <= '9';
    }
    size_t sign = p[0] == '-';
    if (k >= sizeof copy || k <= sign || (p[sign] == '0' && !real))
        return k; /* left to the parser to judge */
    memcpy(copy, p, k);
    copy[k] = 0;
    if (real) {
        double d = strtod(copy, NULL);
        if (isinf(d)) *as = d > 0 ? "Infinity" : "-Infinity";
    } else if (digits > 18 && digits <= BIG_DIGITS_MAX && digits == k - sign) {
        errno = 0;
        strtoll(copy, NULL, 10);
        if (errno == ERANGE) *as = "";
    }
    return k;
}

/* Rewrites numbers that jansson cannot hold; everything else passes unchanged, so faults keep their
 * line. */
static int numbers_mark(const char *p, size_t n, struct lk_buf *out)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        if (p[i] == '"') {
            for (i++; i < n && p[i] != '"'; i++)
                if (p[i] == '\\') i++;
            i++;
        } else if (p[i] == '-' || (p[i] >= '0' && p[i] <= '9')) {
            const char *as;
            size_t k = number_scan(p + i, n - i, &as);
            if (as) {
                lk_buf_add(out, p + from, i - from);
                lk_buf_str(out, "\"" BIG_MARK);
                if (*as)
                    lk_buf_str(out, as);
                else
                    lk_buf_add(out, p + i, k);
                lk_buf_chr(out, '"');
                from = i + k;
            }
            i += k;
        } else {
            i++;
        }
    }
    if (from) lk_buf_add(out, p + from, n - from);
    return out->failed ? LK_ENOMEM : 0;
}

json_t *lk_json_parse(const char *text, size_t len, struct lk_err *e)
{
    struct lk_buf b = {0};
    json_error_t je;
    json_t *v = NULL;
    if (numbers_mark(text, len, &b)) {
        lk_fail(e, LK_ENOMEM, "out of memory");
    } else {
        v = json_loadb(b.len ? b.data : text, b.len ? b.len : len, JSON_ALLOW_NUL | JSON_DECODE_ANY,
                       &je);
        if (!v) lk_fail(e, LK_EREQUEST, "JSON: line %d: %.200s", je.line, je.text);
    }
    lk_buf_free(&b);
    return v;
}

static json_t *plain(const char *number)
{
    double d = strtod(number, NULL);
    return isfinite(d) ? json_real(d) : json_null();
}

void lk_json_plain(json_t *v)
{
    const char *k;
    size_t i;
    json_t *x;
    if (json_is_object(v)) {
        void *tmp;
        json_object_foreach_safe(v, tmp, k, x)
        {
            lk_json_plain(x);
            if (lk_json_bignum(x)) json_object_set_new(v, k, plain(lk_json_bignum(x)));
        }
    }
    json_array_foreach(v, i, x)
    {
        lk_json_plain(x);
        if (lk_json_bignum(x)) json_array_set_new(v, i, plain(lk_json_bignum(x)));
    }
}

void lk_py_float(double d, char *out)
{
    char e[40], digits[24];
    int p = 0, n = 0;
    if (!isfinite(d)) {
        strcpy(out, isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
        return;
    }
    do snprintf(e, sizeof e, "%.*e", p, d);
    while (strtod(e, NULL) != d && ++p < 17);
    const char *s = e;
    if (*s == '-') *out++ = *s++;
    for (; *s && *s != 'e'; s++)
        if (*s != '.') digits[n++] = *s;
    int point = atoi(s + 1) + 1; /* value = 0.DIGITS * 10^point */
    while (n > 1 && digits[n - 1] == '0') n--;
    if (point <= -4 || point > 16) { /* where repr changes to an exponent */
        *out++ = digits[0];
        if (n > 1) *out++ = '.';
        memcpy(out, digits + 1, (size_t)n - 1);
        sprintf(out + n - 1, "e%c%02d", point - 1 < 0 ? '-' : '+', abs(point - 1));
        return;
    }
    if (point <= 0) {
        *out++ = '0', *out++ = '.';
        for (int i = point; i < 0; i++) *out++ = '0';
    }
    for (int i = 0; i < n || i < point; i++) {
        if (point > 0 && i == point) *out++ = '.';
        *out++ = i < n ? digits[i] : '0';
    }
    if (point >= n) *out++ = '.', *out++ = '0';
    *out = 0;
}

const char *lk_py_type(const json_t *v)
{
    if (lk_json_bignum(v)) return strstr(lk_json_bignum(v), "nf") ? "float" : "int";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "dict";
    case JSON_ARRAY:
        return "list";
    case JSON_STRING:
        return "str";
    case JSON_INTEGER:
        return "int";
    case JSON_REAL:
        return "float";
    case JSON_TRUE:
    case JSON_FALSE:
        return "bool";
    default:
        return "NoneType";
    }
}

int lk_json_dump_string(const char *s, size_t n, struct lk_buf *out)
{
    size_t from = 0;
    lk_buf_chr(out, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        lk_buf_add(out, s + from, i - from);
        from = i + 1;
        switch (c) {
        case '"':
            lk_buf_str(out, "\\\"");
            break;
        case '\\':
            lk_buf_str(out, "\\\\");
            break;
        case '\n':
            lk_buf_str(out, "\\n");
            break;
        case '\r':
            lk_buf_str(out, "\\r");
            break;
        case '\t':
            lk_buf_str(out, "\\t");
            break;
        case '\b':
            lk_buf_str(out, "\\b");
            break;
        case '\f':
            lk_buf_str(out, "\\f");
            break;
        default:
            lk_buf_fmt(out, "\\u%04x", c);
        }
    }
    lk_buf_add(out, s + from, n - from);
    return lk_buf_chr(out, '"');
}

static void dump_object(const json_t *v, struct lk_buf *out)
{
    const char *k;
    json_t *x;
    int n = 0;
    lk_buf_chr(out, '{');
    json_object_foreach((json_t *)v, k, x)
    {
        if (n++) lk_buf_str(out, ", ");
        lk_json_dump_string(k, strlen(k), out);
        lk_buf_str(out, ": ");
        lk_json_dump(x, out);
    }
    lk_buf_chr(out, '}');
}

int lk_json_dump(const json_t *v, struct lk_buf *out)
{
    char num[40];
    size_t i;
    json_t *x;
    if (lk_json_bignum(v)) return lk_buf_str(out, lk_json_bignum(v));
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        dump_object(v, out);
        break;
    case JSON_ARRAY:
        lk_buf_chr(out, '[');
        json_array_foreach(v, i, x)
        {
            if (i) lk_buf_str(out, ", ");
            lk_json_dump(x, out);
        }
        lk_buf_chr(out, ']');
        break;
    case JSON_STRING:
        lk_json_dump_string(json_string_value(v), json_string_length(v), out);
        break;
    case JSON_INTEGER:
        lk_buf_fmt(out, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        lk_py_float(json_real_value(v), num);
        lk_buf_str(out, num);
        break;
    case JSON_TRUE:
        lk_buf_str(out, "true");
        break;
    case JSON_FALSE:
        lk_buf_str(out, "false");
        break;
    default:
        lk_buf_str(out, "null");
    }
    return out->failed ? LK_ENOMEM : 0;
}
