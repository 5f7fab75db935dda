/* A float file written row by row, in any order, under a temporary name until it is whole. */
#ifndef LK_MAIN_OUT_F32_H
#define LK_MAIN_OUT_F32_H

#include "base/err.h"

#include <stddef.h>

struct lk_out {
    const char *path; /* NULL: not asked for */
    char *tmp;
    int fd;
    size_t row; /* floats */
};

/* path NULL: every call is then a no-op that succeeds. */
int lk_out_open(struct lk_out *o, const char *path, size_t rows, size_t row, struct lk_err *e);
int lk_out_row(struct lk_out *o, size_t at, const float *x, struct lk_err *e);
int lk_out_done(struct lk_out *o, struct lk_err *e); /* renames into place */
void lk_out_drop(struct lk_out *o);                  /* removes what was not done */

#endif
