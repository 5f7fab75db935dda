/* Measurements in order: what every median starts with. Owns nothing; n may be 0. NaN does not occur in measurements and has no place. */
#ifndef LK_BASE_SORT_H
#define LK_BASE_SORT_H

#include <stddef.h>

void lk_sort_doubles(double *v, size_t n); /* smallest first */

#endif
