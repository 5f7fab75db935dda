/* Objects, arrays and strings of a schema as syntax nodes. */
#include "text/schema_nodes.h"

#include "base/mem.h"
#include "text/pattern.h"
#include "text/pyjson.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 4096, MAX_PROPERTIES = 2048 };

/* ---- keys that are not among the declared ones ---- */

static int name_cmp(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* v[0..n) are sorted names that share their first d bytes, which are already written. A key leaves
 * the tree of names by a character no name has there, and is free from then on. Escapes are not a
 * way out, for "\u0061" is "a". */
static int32_t other_key(struct lk_schema *c, const char *const *v, size_t n, size_t d,
                         int32_t next)
{
    struct lk_syntax *s = c->s;
    uint32_t out[8] = {0};
    int high = 1, ends = n && !v[0][d];
    int32_t at = ends ? -1 : lk__syn_text(s, "\"", 1, next), tail;
    if (s->failed) return 0;
    for (int b = 0x20; b < 0x80; b++)
        if (b != '"' && b != '\\') lk__bit_set(out, b);
    for (size_t i = ends, j; i < n; i = j) {
        unsigned char b = (unsigned char)v[i][d];
        for (j = i; j < n && (unsigned char)v[j][d] == b; j++) {
        }
        if (b >= 0x80)
            high = 0; /* no character beyond ASCII leaves here: it could be the first of a name's */
        if (b >= 0x80 || !(out[b >> 5] >> (b & 31) & 1)) continue;
        out[b >> 5] &= ~(1u << (b & 31));
        at = lk__syn_either(s, at, lk__syn_range(s, b, b, other_key(c, v + i, j - i, d + 1, next)));
    }
    tail = lk__syn_span(s, LK_SPAN_STRING, 0, LK_NO_LIMIT, next);
    at = lk__syn_either(s, at, lk__syn_set(s, out, tail));
    return high ? lk__syn_split(s, at, lk__syn_utf8(s, 0x80, 0x10ffff, tail)) : at;
}

/* ---- objects ---- */

struct member {
    const char *name;
    const json_t *schema; /* NULL: any */
    int required;
};
struct object {
    struct member *v;
    size_t n;
    const json_t *extra; /* NULL: closed */
};

static int has_name(const struct object *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++)
        if (!strcmp(o->v[i].name, name)) return 1;
    return 0;
}

static int is_required(const json_t *required, const char *name)
{
    size_t i;
    json_t *x;
    json_array_foreach(required, i,
                       x) if (json_is_string(x) && !strcmp(json_string_value(x), name)) return 1;
    return 0;
}

static int object_read(struct lk_schema *c, const json_t *schema, struct object *o)
{
    const json_t *props = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    const json_t *extra = json_object_get(schema, "additionalProperties");
    const char *k;
    size_t i;
    json_t *v;
    if (props && !json_is_object(props)) return lk__schema_fail(c, "properties must be an object");
    if (required && !json_is_array(required))
        return lk__schema_fail(c, "required must be an array");
    size_t most = json_object_size(props) + json_array_size(required);
    if (most > MAX_PROPERTIES) return lk__schema_fail(c, "more than %d properties", MAX_PROPERTIES);
    if (!(o->v = lk_calloc(most + 1, sizeof *o->v))) return c->s->failed = LK_ENOMEM;
    if (extra && !json_is_false(extra)) o->extra = extra;
    json_object_foreach((json_t *)props, k, v)
    {
        int must = is_required(required, k);
        if (json_is_false(v) && !must) continue; /* may not be there */
        o->v[o->n++] = (struct member){k, v, must};
    }
    json_array_foreach(required, i, v)
    {
        if (!json_is_string(v)) return lk__schema_fail(c, "required must hold strings");
        if (has_name(o, json_string_value(v))) continue;
        if (extra && json_is_false(extra))
            return lk__schema_fail(c, "\"%.60s\" is required and not allowed",
                                   json_string_value(v));
        o->v[o->n++] =
            (struct member){json_string_value(v), json_is_object(extra) ? extra : NULL, 1};
    }
    return 0;
}

static int32_t member_value(struct lk_schema *c, const json_t *schema, const char *name,
                            int32_t next)
{
    size_t mark =
        lk__schema_down(c, name ? "properties" : "additionalProperties", name ? name : "");
    c->level++;
    int32_t at = schema ? lk__schema_value(c, schema, next) : lk__schema_any(c, next);
    c->level--;
    lk__schema_up(c, mark);
    if (at < 0) return -1;
    at = lk__syn_split(c->s, lk__syn_text(c->s, " ", 1, at), at);
    return lk__syn_text(c->s, ":", 1, at);
}

static int32_t member_nodes(struct lk_schema *c, const struct member *m, int32_t next)
{
    struct lk_buf key = {0};
    int32_t at = member_value(c, m->schema, m->name, next);
    lk_json_dump_string(m->name, strlen(m->name), &key);
    if (key.failed) c->s->failed = LK_ENOMEM;
    if (at >= 0 && !key.failed) at = lk__syn_text(c->s, key.data, key.len, at);
    lk_buf_free(&key);
    return at;
}

/* Further members: after[0] behind a member, *first where none was written. */
static int32_t extra_nodes(struct lk_schema *c, const struct object *o, int32_t close,
                           int32_t *first)
{
    struct lk_syntax *s = c->s;
    const char **names = lk_calloc(o->n + 1, sizeof *names);
    int32_t tail = lk__syn_split(s, close, close);
    int32_t item = member_value(c, json_is_true(o->extra) ? NULL : o->extra, NULL, tail);
    for (size_t i = 0; names && i < o->n; i++) names[i] = o->v[i].name;
    if (!names) s->failed = LK_ENOMEM;
    if (names && item >= 0) {
        qsort(names, o->n, sizeof *names, name_cmp);
        item = lk__syn_text(s, "\"", 1, other_key(c, names, o->n, 0, item));
        *first = lk__syn_split(s, close, item);
        lk__syn_aim(s, tail, lk__schema_space(c, close),
                    lk__syn_text(s, ",", 1, lk__schema_space(c, item)));
    }
    lk_free(names);
    return item < 0 ? -1 : tail;
}

static int32_t object_nodes(struct lk_schema *c, const struct object *o, int32_t next)
{
    struct lk_syntax *s = c->s;
    int32_t close = lk__syn_text(s, "}", 1, next);
    int32_t first = close,
            later = o->extra ? extra_nodes(c, o, close, &first) : lk__schema_space(c, close);
    if (later < 0) return -1;
    /* first: nothing written yet; later: behind a member */
    for (size_t i = o->n; i-- > 0;) {
        int32_t m = member_nodes(c, &o->v[i], later);
        if (m < 0) return -1;
        int32_t comma = lk__syn_text(s, ",", 1, lk__schema_space(c, m));
        later = o->v[i].required ? comma : lk__syn_split(s, comma, later);
        first = o->v[i].required ? m : lk__syn_split(s, m, first);
    }
    return lk__syn_text(s, "{", 1, lk__schema_space(c, first));
}

int32_t lk__schema_object(struct lk_schema *c, const json_t *schema, int32_t next)
{
    struct object o = {0};
    if (!json_object_get(schema, "properties") && !json_object_get(schema, "required") &&
        (!json_object_get(schema, "additionalProperties") ||
         json_is_true(json_object_get(schema, "additionalProperties"))))
        return lk__schema_any_object(c, next);
    int32_t at = object_read(c, schema, &o) ? -1 : object_nodes(c, &o, next);
    lk_free(o.v);
    return at;
}

/* ---- arrays ---- */

int32_t lk__schema_array(struct lk_schema *c, const json_t *schema, int32_t next)
{
    struct lk_syntax *s = c->s;
    const json_t *items = json_object_get(schema, "items");
    long long least = lk__schema_count(c, schema, "minItems", 0),
              most = lk__schema_count(c, schema, "maxItems", -1);
    if (least < -1 || most < -1) return -1;
    if (most >= 0 && most < least) return lk__schema_fail(c, "maxItems is below minItems");
    if (least > MAX_ITEMS || most > MAX_ITEMS)
        return lk__schema_fail(c, "more than %d items are not supported", MAX_ITEMS);
    int32_t rule = lk__syn_rule(s), ret = lk__syn_ret(s), close = lk__syn_text(s, "]", 1, next);
    size_t mark = lk__schema_down(c, "items", "");
    c->level++;
    int32_t one = items && most != 0 ? lk__schema_value(c, items, ret) : lk__schema_any(c, ret);
    c->level--;
    lk__schema_up(c, mark);
    if (one < 0) return -1;
    lk__syn_rule_is(s, rule, one);
    int32_t end = lk__schema_space(c, close), at = end; /* behind the last item allowed */
    if (most < 0) {
        at = lk__syn_split(s, end, end);
        lk__syn_aim(s, at, end,
                    lk__syn_text(s, ",", 1, lk__schema_space(c, lk__syn_call(s, rule, 0, at))));
    }
    /* at: behind k items, from the last that is counted down to the first */
    for (long long k = (most < 0 ? (least > 1 ? least : 1) : most) - 1; k >= 1 && !s->failed; k--) {
        int32_t more = lk__syn_text(s, ",", 1, lk__schema_space(c, lk__syn_call(s, rule, 0, at)));
        at = k >= least ? lk__syn_split(s, end, more) : more;
    }
    int32_t first = most == 0 ? close : lk__syn_call(s, rule, 0, at);
    if (!least && most) first = lk__syn_split(s, close, first);
    return lk__syn_text(s, "[", 1, lk__schema_space(c, first));
}

/* ---- strings ---- */

#define DATE                                                                                       \
    "[1-9]\\d{3}-((0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-" \
    "31)"
#define TIME  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE  "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "([A-Za-z0-9]{1,63}|[A-Za-z0-9][A-Za-z0-9-]{0,61}[A-Za-z0-9])"

static const char *format_pattern(const char *name)
{
    static const struct {
        const char *name, *re;
    } of[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"email", "^[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@" LABEL "(\\." LABEL ")+$"},
        {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$"},
        {"ipv6", "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"},
        {"hostname", "^" LABEL "(\\." LABEL ")*$"},
        {"uri", "^[a-z][a-z0-9+.-]*://[A-Za-z0-9._~-]+(:\\d{1,4})?(/"
                "[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"
                "(#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?$"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (!strcmp(name, of[i].name)) return of[i].re;
    return NULL;
}

int32_t lk__schema_string(struct lk_schema *c, const json_t *schema, int32_t next)
{
    struct lk_syntax *s = c->s;
    const json_t *pattern = json_object_get(schema, "pattern"),
                 *format = json_object_get(schema, "format");
    const char *re = json_string_value(pattern), *name = json_string_value(format);
    long long least = lk__schema_count(c, schema, "minLength", 0),
              most = lk__schema_count(c, schema, "maxLength", -1);
    int32_t first = -1;
    if (least < 0 || most < -1) return -1;
    if (most >= 0 && most < least) return lk__schema_fail(c, "maxLength is below minLength");
    if ((pattern && !re) || (format && !name))
        return lk__schema_fail(c, "pattern and format must be strings");
    if (re && name && !c->lenient)
        return lk__schema_fail(c, "format beside pattern is not supported");
    if (name && !re && !(re = format_pattern(name)) && !c->lenient)
        return lk__schema_fail(c, "format \"%.40s\" is not supported", name);
    if (!re || c->lenient) /* the pattern of a tool's parameter is a hint */
        return lk__syn_text(
            s, "\"", 1,
            lk__syn_span(s, LK_SPAN_STRING, (uint32_t)(least < 1 << 20 ? least : 1 << 20),
                         most < 0 || most > 1 << 20 ? LK_NO_LIMIT : (uint32_t)most, next));
    if (least > 0 || most >= 0)
        return lk__schema_fail(
            c, "minLength and maxLength beside pattern or format are not supported");
    struct lk_err why = {0};
    if (lk__pattern_nodes(s, re, strlen(re), lk__syn_text(s, "\"", 1, next), &first, &why))
        return lk__schema_fail(c, "%s", why.text);
    return lk__syn_text(s, "\"", 1, first);
}
