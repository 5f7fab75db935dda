/* JSON from files, with the checks and messages every loader wants. Private to src/artifact. */
#ifndef LK_ARTIFACT_JSON_READ_H
#define LK_ARTIFACT_JSON_READ_H

#include "base/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Parses an object; refuses duplicate keys, depth beyond jansson's limit (2048) and anything else than an object. */
int lk__json_object(json_t **out, const char *data, size_t len, const char *file, struct lk_err *e);
const char *lk__json_kind(const json_t *v); /* "an array", "nothing", ... for "found ..." */

/* Members. Missing or null: *out is left as it is (put the default there first). A wrong type or range is an error that names file,
 * key, expected and found. */
int lk__json_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *out, const char *file, struct lk_err *e);
int lk__json_real(const json_t *o, const char *key, double lo, double hi, double *out, const char *file, struct lk_err *e);
int lk__json_bool(const json_t *o, const char *key, int *out, const char *file, struct lk_err *e);

#endif
