/* A regular expression (JSON Schema's `pattern`, ECMA 262) as syntax nodes over the inside of a
 * JSON string. */
#ifndef LK_TEXT_PATTERN_H
#define LK_TEXT_PATTERN_H

#include "text/syntax.h"

/* Sets *first to the node from which exactly the strings that match lead to next, JSON escapes
 * included. Not anchored means anything may stand there. Look-around, back-references, \b and flags
 * are refused (LK_EREQUEST). \d, \w and \s are ASCII; what they exclude is excluded beyond ASCII
 * too where engines disagree. */
int lk__pattern_nodes(struct lk_syntax *s, const char *re, size_t len, int32_t next, int32_t *first,
                      struct lk_err *e);

#endif
