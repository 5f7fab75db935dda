/* What type a tool's argument has, and its text turned into JSON of that type.
 *
 * The template prints a string raw and anything else as JSON, so the text alone does not tell "5"
 * from 5: the schema does. Where it allows both, JSON wins; where it allows only strings, the text
 * stays as it is, quotes included; a text that is not of an allowed type is kept as a string. */
#ifndef LK_TEXT_REPLY_VALUE_H
#define LK_TEXT_REPLY_VALUE_H

#include "base/buf.h"

#include <jansson.h>

enum {
    LK_JT_STRING = 1,
    LK_JT_INTEGER = 2,
    LK_JT_NUMBER = 4,
    LK_JT_BOOLEAN = 8,
    LK_JT_NULL = 16,
    LK_JT_ARRAY = 32,
    LK_JT_OBJECT = 64,
    LK_JT_ANY = 127,
};

/* "parameters" of the named function in an OpenAI (or flat) tools array; *known says whether the
 * tool is there. */
const json_t *lk__tool_schema(const json_t *tools, const char *name, size_t len, int *known);
/* Allowed types (LK_JT_*) of one parameter; ANY where the schema does not say. */
unsigned lk__param_types(const json_t *schema, const char *name);
int lk__param_known(const json_t *schema, const char *name, size_t len);
/* Appends the value's JSON text. */
void lk__value_json(const char *p, size_t n, unsigned types, struct lk_buf *out);

#endif
