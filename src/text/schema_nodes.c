/* JSON schema -> syntax nodes: keywords, types, unions, references. See json_schema.h for what is
 * supported. */
#include "text/schema_nodes.h"

#include "text/number_nodes.h"
#include "text/pyjson.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    T_STRING = 1,
    T_INTEGER = 2,
    T_NUMBER = 4,
    T_BOOLEAN = 8,
    T_NULL = 16,
    T_ARRAY = 32,
    T_OBJECT = 64
};
static const char *const type_names[] = {"string", "integer", "number", "boolean",
                                         "null",   "array",   "object"};

int32_t lk__schema_fail(struct lk_schema *c, const char *fmt, ...)
{
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    lk_fail(c->e, LK_EREQUEST, "schema%s%s: %s", *c->path ? " at " : "", c->path, why);
    return -1;
}

size_t lk__schema_down(struct lk_schema *c, const char *step, const char *name)
{
    size_t mark = strlen(c->path);
    snprintf(c->path + mark, sizeof c->path - mark, "/%s%s%s", step, *name ? "/" : "", name);
    return mark;
}

void lk__schema_up(struct lk_schema *c, size_t mark)
{
    c->path[mark] = 0;
}

/* ---- values without a schema, as rules ---- */

int32_t lk__schema_space(struct lk_schema *c, int32_t next)
{
    struct lk_syntax *s = c->s;
    if (c->space < 0) {
        int32_t ret = lk__syn_ret(s), at = ret;
        for (int k = 0; k < 40; k++)
            at = lk__syn_split(s, lk__syn_chars(s, " \t", at), ret); /* indentation */
        at = lk__syn_split(s, lk__syn_text(s, "\n", 1, at), at);     /* one line break or two */
        at = lk__syn_split(s, lk__syn_text(s, "\n", 1, at),
                           lk__syn_split(s, lk__syn_text(s, " ", 1, ret), ret));
        c->space = lk__syn_rule(s);
        lk__syn_rule_is(s, c->space, at);
    }
    return lk__syn_call(s, c->space, 0, next);
}

static int32_t blank(struct lk_schema *c, int32_t next)
{
    return lk__syn_split(c->s, lk__syn_text(c->s, " ", 1, next), next);
}

static int32_t any_string(struct lk_schema *c, int32_t next)
{
    return lk__syn_text(c->s, "\"", 1, lk__syn_span(c->s, LK_SPAN_STRING, 0, LK_NO_LIMIT, next));
}

/* '{' member (',' member)* '}' or '[' value (',' value)* ']' */
static void any_list(struct lk_schema *c, int32_t rule, int is_object)
{
    struct lk_syntax *s = c->s;
    int32_t ret = lk__syn_ret(s), tail = lk__syn_split(s, ret, ret);
    int32_t item = lk__schema_any(c, lk__schema_space(c, tail));
    if (is_object) item = any_string(c, lk__syn_text(s, ":", 1, blank(c, item)));
    int32_t close = lk__syn_text(s, is_object ? "}" : "]", 1, ret);
    lk__syn_aim(s, tail, close, lk__syn_text(s, ",", 1, lk__schema_space(c, item)));
    lk__syn_rule_is(s, rule,
                    lk__syn_text(s, is_object ? "{" : "[", 1,
                                 lk__schema_space(c, lk__syn_split(s, close, item))));
}

static void any_make(struct lk_schema *c)
{
    static const struct lk_bounds none = {0};
    struct lk_syntax *s = c->s;
    if (c->value >= 0) return;
    c->value = lk__syn_rule(s);
    c->object = lk__syn_rule(s);
    c->array = lk__syn_rule(s);
    int32_t ret = lk__syn_ret(s), at = any_string(c, ret);
    at = lk__syn_split(s, at, lk__number_nodes(s, 0, &none, ret));
    at = lk__syn_split(s, at, lk__syn_call(s, c->object, 1, ret));
    at = lk__syn_split(s, at, lk__syn_call(s, c->array, 1, ret));
    at = lk__syn_split(s, at, lk__syn_text(s, "true", 4, ret));
    at = lk__syn_split(s, at, lk__syn_text(s, "false", 5, ret));
    lk__syn_rule_is(s, c->value, lk__syn_split(s, at, lk__syn_text(s, "null", 4, ret)));
    any_list(c, c->object, 1);
    any_list(c, c->array, 0);
}

int32_t lk__schema_any(struct lk_schema *c, int32_t next)
{
    any_make(c);
    return lk__syn_call(c->s, c->value, 0, next);
}

int32_t lk__schema_any_object(struct lk_schema *c, int32_t next)
{
    any_make(c);
    return lk__syn_call(c->s, c->object, 1, next);
}

/* ---- keywords ---- */

static int listed(const char *k, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(k, *list)) return 1;
    return 0;
}

/* Keywords that allow everything with this value. */
static int harmless(const char *k, const json_t *v)
{
    if (!strcmp(k, "uniqueItems")) return json_is_false(v);
    if (!strcmp(k, "minProperties")) return json_is_integer(v) && json_integer_value(v) == 0;
    if (!strcmp(k, "multipleOf")) return json_is_integer(v) && json_integer_value(v) == 1;
    return 0;
}

static int check_keywords(struct lk_schema *c, const json_t *schema)
{
    static const char *const known[] = {
        "type", "enum", "const", "properties", "required", "additionalProperties", "items",
        "minItems", "maxItems", "anyOf", "oneOf", "allOf", "$ref", "minLength", "maxLength",
        "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        /* annotations */
        "title", "description", "default", "examples", "example", "$schema", "$id", "$comment",
        "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "$anchor", "discriminator",
        NULL};
    const char *k;
    json_t *v;
    if (c->lenient) return 0;
    json_object_foreach((json_t *)schema, k, v)
    {
        if (listed(k, known) || !strncmp(k, "x-", 2) || harmless(k, v)) continue;
        return lk__schema_fail(c, "keyword \"%.60s\" is not supported", k);
    }
    return 0;
}

long long lk__schema_count(struct lk_schema *c, const json_t *schema, const char *keyword,
                           long long def)
{
    const json_t *v = json_object_get(schema, keyword);
    if (!v) return def;
    if (json_is_integer(v) && json_integer_value(v) >= 0) return json_integer_value(v);
    if (json_is_real(v) && json_real_value(v) >= 0 &&
        json_real_value(v) == floor(json_real_value(v)) && json_real_value(v) < 1e15)
        return (long long)json_real_value(v);
    if (c->lenient) return def;
    lk__schema_fail(c, "%s must be a whole number that is not negative", keyword);
    return -2;
}

/* Keywords beside one that decides alone ($ref, anyOf): only annotations, and the type. */
static int check_alone(struct lk_schema *c, const json_t *schema, const char *which)
{
    static const char *const constraints[] = {"enum",
                                              "const",
                                              "properties",
                                              "required",
                                              "additionalProperties",
                                              "items",
                                              "minItems",
                                              "maxItems",
                                              "minLength",
                                              "maxLength",
                                              "pattern",
                                              "format",
                                              "minimum",
                                              "maximum",
                                              "exclusiveMinimum",
                                              "exclusiveMaximum",
                                              "anyOf",
                                              "oneOf",
                                              "allOf",
                                              "$ref",
                                              NULL};
    const char *k;
    json_t *v;
    if (c->lenient) return 0;
    json_object_foreach(
        (json_t *)schema, k,
        v) if (strcmp(k, which) &&
               listed(k, constraints)) return lk__schema_fail(c, "%s beside %s is not supported", k,
                                                              which);
    return 0;
}

/* ---- types ---- */

static int value_type(const json_t *v)
{
    const char *t = lk_py_type(v);
    return !strcmp(t, "str")     ? T_STRING
           : !strcmp(t, "int")   ? T_INTEGER | T_NUMBER
           : !strcmp(t, "float") ? T_NUMBER
           : !strcmp(t, "bool")  ? T_BOOLEAN
           : !strcmp(t, "list")  ? T_ARRAY
           : !strcmp(t, "dict")  ? T_OBJECT
                                 : T_NULL;
}

static int type_bit(const json_t *name)
{
    for (int i = 0; i < 7; i++)
        if (json_is_string(name) && !strcmp(json_string_value(name), type_names[i])) return 1 << i;
    return 0;
}

/* 0 and an error for a type that is none; -1 when the schema does not say. */
static int types_of(struct lk_schema *c, const json_t *schema)
{
    const json_t *t = json_object_get(schema, "type");
    size_t i;
    json_t *x;
    int bits = 0;
    if (!t) return -1;
    if (!json_is_array(t) && !(bits = type_bit(t))) lk__schema_fail(c, "type is not one of JSON's");
    json_array_foreach(t, i, x)
    {
        if (!type_bit(x)) return lk__schema_fail(c, "type is not one of JSON's"), 0;
        bits |= type_bit(x);
    }
    if (!bits) lk__schema_fail(c, "type is empty");
    return bits;
}

/* Without a type, keywords tell which one they are about. */
static int types_guess(const json_t *schema)
{
    static const struct {
        const char *key;
        int bits;
    } of[] = {{"properties", T_OBJECT},
              {"required", T_OBJECT},
              {"additionalProperties", T_OBJECT},
              {"items", T_ARRAY},
              {"minItems", T_ARRAY},
              {"maxItems", T_ARRAY},
              {"minLength", T_STRING},
              {"maxLength", T_STRING},
              {"pattern", T_STRING},
              {"format", T_STRING},
              {"minimum", T_NUMBER},
              {"maximum", T_NUMBER},
              {"exclusiveMinimum", T_NUMBER},
              {"exclusiveMaximum", T_NUMBER}};
    int bits = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (json_object_get(schema, of[i].key)) bits |= of[i].bits;
    return bits;
}

static int bound(struct lk_schema *c, const json_t *schema, const char *key, int *has, double *x)
{
    const json_t *v = json_object_get(schema, key);
    const char *big = v ? lk_json_bignum(v) : NULL;
    *has = 0;
    if (!v) return 0;
    if (!big && !json_is_number(v))
        return c->lenient ? 0 : lk__schema_fail(c, "%s must be a number", key);
    *has = 1;
    *x = big ? (*big == '-' ? -1e300 : 1e300) : json_number_value(v);
    return 0;
}

static int32_t number(struct lk_schema *c, const json_t *schema, int whole, int32_t next)
{
    struct lk_bounds b = {0};
    int has_open;
    double open;
    if (bound(c, schema, "minimum", &b.has_lo, &b.lo) ||
        bound(c, schema, "exclusiveMinimum", &has_open, &open))
        return -1;
    if (has_open && (!b.has_lo || open >= b.lo)) b.has_lo = b.lo_open = 1, b.lo = open;
    if (bound(c, schema, "maximum", &b.has_hi, &b.hi) ||
        bound(c, schema, "exclusiveMaximum", &has_open, &open))
        return -1;
    if (has_open && (!b.has_hi || open <= b.hi)) b.has_hi = b.hi_open = 1, b.hi = open;
    int32_t at = lk__number_nodes(c->s, whole, &b, next);
    return at < 0 ? lk__schema_fail(c, "no %s of 18 digits lies within the bounds",
                                    whole ? "integer" : "number")
                  : at;
}

static int32_t typed(struct lk_schema *c, const json_t *schema, int bit, int32_t next)
{
    struct lk_syntax *s = c->s;
    switch (bit) {
    case T_STRING:
        return lk__schema_string(c, schema, next);
    case T_INTEGER:
        return number(c, schema, 1, next);
    case T_NUMBER:
        return number(c, schema, 0, next);
    case T_BOOLEAN:
        return lk__syn_split(s, lk__syn_text(s, "true", 4, next),
                             lk__syn_text(s, "false", 5, next));
    case T_NULL:
        return lk__syn_text(s, "null", 4, next);
    case T_ARRAY:
        return lk__schema_array(c, schema, next);
    default:
        return lk__schema_object(c, schema, next);
    }
}

static int32_t of_types(struct lk_schema *c, const json_t *schema, int bits, int32_t next)
{
    int32_t at = -1;
    if (bits & T_NUMBER) bits &= ~T_INTEGER;
    for (int i = 0; i < 7; i++) {
        if (!(bits >> i & 1)) continue;
        int32_t one = typed(c, schema, 1 << i, next);
        if (one < 0) return -1;
        at = lk__syn_either(c->s, at, one);
    }
    return at;
}

/* ---- enum, unions, references ---- */

static int32_t literal(struct lk_schema *c, const json_t *v, int32_t next)
{
    struct lk_buf b = {0};
    lk_json_dump(v, &b);
    int32_t at = b.failed ? next : lk__syn_text(c->s, b.data, b.len, next);
    if (b.failed) c->s->failed = LK_ENOMEM;
    lk_buf_free(&b);
    return at;
}

static int32_t one_of(struct lk_schema *c, const json_t *values, int types, int32_t next)
{
    int32_t at = -1;
    size_t i;
    json_t *v;
    if (!json_is_array(values)) return lk__schema_fail(c, "enum must be an array");
    json_array_foreach(values, i, v) if (types < 0 || (types & value_type(v))) at =
        lk__syn_either(c->s, at, literal(c, v, next));
    return at < 0 ? lk__schema_fail(c, "no value of the enum is of the type") : at;
}

static int32_t any_of(struct lk_schema *c, const json_t *schema, const char *which, int types,
                      int32_t next)
{
    const json_t *list = json_object_get(schema, which);
    int32_t at = -1;
    size_t i;
    json_t *v;
    if (!json_array_size(list)) return lk__schema_fail(c, "%s must be an array of schemas", which);
    if (check_alone(c, schema, which)) return -1;
    json_array_foreach(list, i, v)
    {
        char n[24];
        snprintf(n, sizeof n, "%zu", i);
        json_t *both = NULL;
        if (types >= 0 && json_is_object(v) && !json_object_get(v, "type") &&
            !json_object_get(v, "$ref")) {
            both = json_copy(v); /* the type stands beside the union and holds in each part */
            json_object_set(both, "type", json_object_get(schema, "type"));
        }
        size_t mark = lk__schema_down(c, which, n);
        int32_t one = lk__schema_value(c, both ? both : v, next);
        lk__schema_up(c, mark);
        json_decref(both);
        if (one < 0) return -1;
        at = lk__syn_either(c->s, at, one);
    }
    return at;
}

/* "#", "#/a/b": ~1 is a slash, ~0 a tilde. */
static const json_t *ref_find(const json_t *root, const char *ref)
{
    const json_t *at = root;
    if (*ref != '#' || (ref[1] && ref[1] != '/')) return NULL;
    for (const char *p = ref + 1; *p && at;) {
        char key[256];
        size_t n = 0;
        for (p++; *p && *p != '/'; p++) {
            if (n + 1 >= sizeof key) return NULL;
            int tilde = *p == '~' && (p[1] == '0' || p[1] == '1');
            key[n++] = !tilde ? *p : p[1] == '0' ? '~' : '/';
            p += tilde;
        }
        key[n] = 0;
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
    }
    return at;
}

static int32_t reference(struct lk_schema *c, const json_t *schema, int32_t next)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (!ref) return lk__schema_fail(c, "$ref must be a string");
    if (check_alone(c, schema, "$ref")) return -1;
    const json_t *known = json_object_get(c->refs, ref), *target = ref_find(c->root, ref);
    if (!target) return lk__schema_fail(c, "$ref \"%.80s\" is not in the schema", ref);
    int k = known ? (int)json_integer_value(known) : c->n_ref;
    if (known && c->ref[k].open && c->ref[k].level == c->level)
        return lk__schema_fail(c, "$ref \"%.80s\" refers to itself", ref);
    if (known) return lk__syn_call(c->s, c->ref[k].rule, 1, next);
    if (c->n_ref == 256) return lk__schema_fail(c, "more than 256 different $ref");
    if (json_object_set_new(c->refs, ref, json_integer(k))) c->s->failed = LK_ENOMEM;
    c->n_ref++;
    c->ref[k].rule = lk__syn_rule(c->s);
    c->ref[k].open = 1;
    c->ref[k].level = c->level;
    int32_t first = lk__schema_value(c, target, lk__syn_ret(c->s));
    c->ref[k].open = 0;
    if (first < 0) return -1;
    lk__syn_rule_is(c->s, c->ref[k].rule, first);
    return lk__syn_call(c->s, c->ref[k].rule, 1, next);
}

static int32_t all_of(struct lk_schema *c, const json_t *schema, int32_t next)
{
    const json_t *list = json_object_get(schema, "allOf");
    if (json_array_size(list) != 1)
        return lk__schema_fail(c, "allOf of several schemas is not supported");
    if (check_alone(c, schema, "allOf")) return -1;
    return lk__schema_value(c, json_array_get(list, 0), next);
}

static int32_t value(struct lk_schema *c, const json_t *schema, int32_t next)
{
    if (json_is_true(schema)) return lk__schema_any(c, next);
    if (json_is_false(schema)) return lk__schema_fail(c, "false allows nothing");
    if (!json_is_object(schema))
        return lk__schema_fail(c, "a schema must be an object or a boolean, not %s",
                               lk_py_type(schema));
    if (check_keywords(c, schema)) return -1;
    int types = types_of(c, schema);
    if (!types) return -1;
    if (json_object_get(schema, "$ref")) return reference(c, schema, next);
    const json_t *one = json_object_get(schema, "const");
    if (one && types >= 0 && !(types & value_type(one)))
        return lk__schema_fail(c, "const is not of the type");
    if (one) return literal(c, one, next);
    if (json_object_get(schema, "enum"))
        return one_of(c, json_object_get(schema, "enum"), types, next);
    if (json_object_get(schema, "anyOf")) return any_of(c, schema, "anyOf", types, next);
    if (json_object_get(schema, "oneOf")) return any_of(c, schema, "oneOf", types, next);
    if (json_object_get(schema, "allOf")) return all_of(c, schema, next);
    if (types < 0) types = types_guess(schema);
    return types ? of_types(c, schema, types, next) : lk__schema_any(c, next);
}

int32_t lk__schema_value(struct lk_schema *c, const json_t *schema, int32_t next)
{
    if (++c->depth > LK_SCHEMA_DEPTH) {
        c->depth--;
        return lk__schema_fail(c, "is nested more than %d deep", LK_SCHEMA_DEPTH);
    }
    int32_t at = next < 0 ? -1 : value(c, schema, next);
    c->depth--;
    return at;
}
