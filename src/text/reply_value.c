/* Arguments typed by the schema: see reply_value.h. */
#include "text/reply_value.h"

#include "base/mem.h"
#include "text/pyjson.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

enum { REF_DEPTH = 16 }; /* a schema may refer to itself */

const json_t *lk__tool_schema(const json_t *tools, const char *name, size_t len, int *known)
{
    size_t i;
    json_t *t;
    *known = 0;
    json_array_foreach(tools, i, t)
    {
        const json_t *f = json_object_get(t, "function"), *o = json_is_object(f) ? f : t;
        const json_t *n = json_object_get(o, "name");
        if (json_string_length(n) != len || (len && memcmp(json_string_value(n), name, len)))
            continue;
        *known = json_is_string(n);
        const json_t *p = json_object_get(o, "parameters");
        return json_is_object(p) ? p : json_object_get(o, "input_schema");
    }
    return NULL;
}

static unsigned type_bit(const char *s)
{
    static const char *const names[] = {"string", "integer", "number", "boolean",
                                        "null",   "array",   "object"};
    for (unsigned i = 0; s && i < 7; i++)
        if (!strcmp(s, names[i])) return 1u << i;
    return 0;
}

static unsigned value_bit(const json_t *v)
{
    const char *t = lk_py_type(v);
    return !strcmp(t, "str")     ? LK_JT_STRING
           : !strcmp(t, "int")   ? LK_JT_INTEGER
           : !strcmp(t, "float") ? LK_JT_NUMBER
           : !strcmp(t, "bool")  ? LK_JT_BOOLEAN
           : !strcmp(t, "list")  ? LK_JT_ARRAY
           : !strcmp(t, "dict")  ? LK_JT_OBJECT
                                 : LK_JT_NULL;
}

/* "#/$defs/x": only references into the same schema are followed. */
static const json_t *ref_find(const json_t *root, const char *ref)
{
    if (!ref || strncmp(ref, "#/", 2)) return NULL;
    const json_t *at = root;
    for (const char *p = ref + 2; at; p = strchr(p, '/') + 1) {
        char key[128];
        size_t n = strcspn(p, "/");
        if (n >= sizeof key) return NULL;
        memcpy(key, p, n);
        key[n] = 0;
        at = json_object_get(at, key);
        if (!p[n]) break;
    }
    return at;
}

static unsigned schema_types(const json_t *root, const json_t *s, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(s, "type"), *e = json_object_get(s, "enum"),
                 *c = json_object_get(s, "const");
    size_t i;
    json_t *x;
    unsigned t = 0;
    if (!json_is_object(s) || depth > REF_DEPTH) return LK_JT_ANY;
    if (json_is_string(type))
        return type_bit(json_string_value(type)) ? type_bit(json_string_value(type)) : LK_JT_ANY;
    json_array_foreach(type, i, x) t |= type_bit(json_string_value(x));
    if (t) return t;
    if (c) return value_bit(c);
    json_array_foreach(e, i, x) t |= value_bit(x);
    if (t) return t;
    for (int k = 0; k < 2; k++)
        json_array_foreach(json_object_get(s, unions[k]), i, x) t |=
            schema_types(root, x, depth + 1);
    if (t) return t;
    if (json_array_size(json_object_get(s, "allOf")) > 0) {
        t = LK_JT_ANY;
        json_array_foreach(json_object_get(s, "allOf"), i, x) t &= schema_types(root, x, depth + 1);
        return t ? t : LK_JT_ANY;
    }
    if (json_object_get(s, "$ref"))
        return schema_types(root, ref_find(root, json_string_value(json_object_get(s, "$ref"))),
                            depth + 1);
    if (json_object_get(s, "properties")) return LK_JT_OBJECT;
    return json_object_get(s, "items") ? LK_JT_ARRAY : LK_JT_ANY;
}

unsigned lk__param_types(const json_t *schema, const char *name)
{
    const json_t *p = json_object_get(json_object_get(schema, "properties"), name);
    if (!p) p = json_object_get(schema, "additionalProperties");
    return schema_types(schema, p, 0);
}

int lk__param_known(const json_t *schema, const char *name, size_t len)
{
    char key[256];
    if (len >= sizeof key || memchr(name, 0, len)) return 0;
    memcpy(key, name, len);
    key[len] = 0;
    return json_object_get(json_object_get(schema, "properties"), key) != NULL;
}

static int is_word(const char *p, size_t n, const char *w)
{
    return n == strlen(w) && !memcmp(p, w, n);
}

/* 5.0 where an integer is asked for is 5. */
static int whole_number(const json_t *v)
{
    return json_is_real(v) && fabs(json_real_value(v)) < 0x1p53 &&
           floor(json_real_value(v)) == json_real_value(v);
}

void lk__value_json(const char *p, size_t n, unsigned types, struct lk_buf *out)
{
    size_t b = 0, end = n;
    if (types == LK_JT_STRING) {
        lk_json_dump_string(p, n, out);
        return;
    }
    lk__py_strip(p, &b, &end);
    const char *s = p + b;
    size_t k = end - b;
    /* The model writes Python's words too: the 3.5 template prints them. */
    if ((types & LK_JT_BOOLEAN) && (is_word(s, k, "True") || is_word(s, k, "False"))) {
        lk_buf_str(out, *s == 'T' ? "true" : "false");
        return;
    }
    if ((types & LK_JT_NULL) && is_word(s, k, "None")) {
        lk_buf_str(out, "null");
        return;
    }
    json_t *v = lk_json_parse(s, k, NULL);
    unsigned bit = v ? value_bit(v) : 0;
    if (v && bit == LK_JT_NUMBER && !(types & LK_JT_NUMBER) && (types & LK_JT_INTEGER) &&
        whole_number(v))
        lk_buf_fmt(out, "%.0f", json_real_value(v));
    else if (v && bit != LK_JT_STRING &&
             ((types & bit) || (bit == LK_JT_INTEGER && (types & LK_JT_NUMBER))))
        lk_json_dump(v, out);
    else
        lk_json_dump_string(p, n, out);
    json_decref(v);
}
