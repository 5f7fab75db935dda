/* JSON from files: see json_read.h. */
#include "artifact/json_read.h"

#include <inttypes.h>

int lk__json_object(json_t **out, const char *data, size_t len, const char *file, struct lk_err *e)
{
    json_error_t je;
    *out = json_loadb(data, len, JSON_REJECT_DUPLICATES, &je);
    if (!*out) return lk_fail(e, LK_EINPUT, "%s: expected JSON, found at line %d, byte %d: %s", file, je.line, je.position, je.text);
    if (json_is_object(*out)) return 0;
    const char *kind = lk__json_kind(*out);
    json_decref(*out);
    *out = NULL;
    return lk_fail(e, LK_EINPUT, "%s: expected a JSON object, found %s", file, kind);
}

const char *lk__json_kind(const json_t *v)
{
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_NULL: return "null";
    default: return "a boolean";
    }
}

int lk__json_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, const char *file, struct lk_err *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return 0;
    if (!json_is_integer(v))
        return lk_fail(e, LK_EINPUT, "%s: %s: expected an integer, found %s", file, key, lk__json_kind(v));
    if (json_integer_value(v) < lo || json_integer_value(v) > hi)
        return lk_fail(e, LK_EINPUT, "%s: %s: expected %" PRId64 " to %" PRId64 ", found %" PRId64, file, key, lo, hi,
                       (int64_t)json_integer_value(v));
    *out = json_integer_value(v);
    return 0;
}

int lk__json_real(const json_t *o, const char *key, double lo, double hi, double *out, const char *file, struct lk_err *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return 0;
    if (!json_is_number(v)) return lk_fail(e, LK_EINPUT, "%s: %s: expected a number, found %s", file, key, lk__json_kind(v));
    double x = json_number_value(v);
    if (!(x >= lo && x <= hi)) return lk_fail(e, LK_EINPUT, "%s: %s: expected %g to %g, found %g", file, key, lo, hi, x);
    *out = x;
    return 0;
}

int lk__json_bool(const json_t *o, const char *key, int *out, const char *file, struct lk_err *e)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return 0;
    if (!json_is_boolean(v)) return lk_fail(e, LK_EINPUT, "%s: %s: expected true or false, found %s", file, key, lk__json_kind(v));
    *out = json_is_true(v);
    return 0;
}
