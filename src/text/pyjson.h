/* JSON with Python's meaning, because chat templates are defined by what Python prints: numbers of
 * any size survive, key order stays, floats print as repr does, text is not escaped to ASCII.
 *
 * Values are jansson's. An integer beyond 64 bits and a real beyond a double have no jansson value;
 * they are kept as a marked string (lk_json_bignum tells), so a type check elsewhere sees "not a
 * number" and refuses, which is right for every field but a tool's schema or an argument, where
 * they are printed back as they came. */
#ifndef LK_TEXT_PYJSON_H
#define LK_TEXT_PYJSON_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

/* Any JSON value; NULL and LK_EREQUEST with the line on a fault. Objects and arrays nest 2048 deep
 * at most. */
json_t *lk_json_parse(const char *text, size_t len, struct lk_err *e);
/* The number's text ("123...", "Infinity", "-Infinity") or NULL. */
const char *lk_json_bignum(const json_t *v);
/* Replaces marked numbers inside v by the nearest double (null past it), for readers that know
 * jansson only. */
void lk_json_plain(json_t *v);
/* json.dumps(v, ensure_ascii=False). 0 or LK_ENOMEM. */
int lk_json_dump(const json_t *v, struct lk_buf *out);
/* Bytes as a JSON string with its quotes. */
int lk_json_dump_string(const char *p, size_t n, struct lk_buf *out);
/* repr(d): the shortest digits that read back as d. out holds at least 32 bytes. */
void lk_py_float(double d, char *out);
const char *lk_py_type(const json_t *v); /* "str", "int", "NoneType", ... */

#endif
