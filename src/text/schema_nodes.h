/* The compiler behind json_schema.h, shared by answers and tool calls. */
#ifndef LK_TEXT_SCHEMA_NODES_H
#define LK_TEXT_SCHEMA_NODES_H

#include "text/syntax.h"

#include <jansson.h>

enum { LK_SCHEMA_DEPTH = 200 };

struct lk_schema {
    struct lk_syntax *s;
    struct lk_err *e;
    const json_t *root;
    int lenient;                         /* keywords that cannot be followed are ignored */
    int32_t value, object, array, space; /* shared rules; -1 not made yet */
    json_t *refs;                        /* "$ref" -> number of refs below */
    struct {
        int32_t rule, open, level;
    } ref[256];
    int n_ref, depth, level; /* level: how many brackets we are inside of */
    char path[400];
};
/* The node that leads to next by a value of the schema; -1 and an error. */
int32_t lk__schema_value(struct lk_schema *c, const json_t *schema, int32_t next);
int32_t lk__schema_any(struct lk_schema *c, int32_t next);
int32_t lk__schema_any_object(struct lk_schema *c, int32_t next);
int32_t lk__schema_space(struct lk_schema *c, int32_t next);
int32_t lk__schema_fail(struct lk_schema *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Goes one step down in messages; returns what lk__schema_up takes. */
size_t lk__schema_down(struct lk_schema *c, const char *step, const char *name);
void lk__schema_up(struct lk_schema *c, size_t mark);

/* schema_object.c, schema_string.c */
int32_t lk__schema_object(struct lk_schema *c, const json_t *schema, int32_t next);
int32_t lk__schema_array(struct lk_schema *c, const json_t *schema, int32_t next);
int32_t lk__schema_string(struct lk_schema *c, const json_t *schema, int32_t next);
/* A non-negative whole number of a keyword; def where it is absent, -2 and an error where it is
 * something else. */
long long lk__schema_count(struct lk_schema *c, const json_t *schema, const char *keyword,
                           long long def);

#endif
