/* Structured output: what an answer must look like, as a syntax.
 *
 * A JSON schema: type (one or several), enum, const, properties, required, additionalProperties,
 * items, minItems, maxItems, anyOf (oneOf is taken as anyOf, allOf of one as itself), $ref into the
 * schema, minLength, maxLength, pattern, format (date, time, date-time, uuid, email, ipv4, ipv6,
 * hostname, uri), minimum, maximum and the exclusive ones. Annotations pass; any other keyword is
 * refused by name. The texts allowed are a subset of the valid ones: properties come in the
 * schema's order, an object with properties is closed unless additionalProperties says otherwise,
 * white space is one blank or a line break with indentation, numbers have up to 18 digits.
 *
 * A tool call: the model's own format, one of the tools, parameters typed by its schema, where
 * keywords that cannot be followed are ignored. */
#ifndef LK_TEXT_JSON_SCHEMA_H
#define LK_TEXT_JSON_SCHEMA_H

#include "text/grammar.h"

#include <jansson.h>

/* schema NULL: any JSON object. LK_EREQUEST names the keyword and its place. */
int lk_schema_syntax(struct lk_syntax *out, const json_t *schema, struct lk_err *e);
/* Would lk_schema_syntax take it? 0 or its error. */
int lk_schema_check(const json_t *schema, struct lk_err *e);
/* One call or, when several, one or more. name NULL: of any tool. */
int lk_tools_syntax(struct lk_syntax *out, const json_t *tools, const char *name, int several,
                    const struct lk_tokenizer *t, struct lk_err *e);

#endif
