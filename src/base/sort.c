/* Measurements in order: see sort.h. */
#include "base/sort.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void lk_sort_doubles(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
}
