/* JSON numbers within bounds, as syntax nodes. */
#ifndef LK_TEXT_NUMBER_NODES_H
#define LK_TEXT_NUMBER_NODES_H

#include "text/syntax.h"

struct lk_bounds {
    int has_lo, has_hi, lo_open, hi_open;
    double lo, hi;
};
/* The node that leads to next by any number (an integer, when whole) within b; -1 when there is
 * none. Without bounds numbers may have an exponent of two digits; within bounds they are written
 * out. Digits are limited to 18 on either side of the point. */
int32_t lk__number_nodes(struct lk_syntax *s, int whole, const struct lk_bounds *b, int32_t next);

#endif
