/* The runs: `matrix` (sizes x kinds, cold, warm, seeds) and `users` (many at once). */
#ifndef LK_BENCH_GRID_H
#define LK_BENCH_GRID_H

#include "bench/table.h"
#include "bench/target.h"
#include "text/tokenizer.h"

struct lk_grid {
    const struct lk_opts *o;
    const struct lk_target *target;
    const struct lk_tokenizer *tok; /* NULL: sizes by bytes */
    const char *text;               /* of a user's file, kind "file" */
    struct lk_physics physics;
    long long offset;               /* of block numbers */
    double stall_s;
};
int lk_grid_matrix(const struct lk_grid *g, struct lk_table *t, struct lk_err *e);
int lk_grid_users(const struct lk_grid *g, struct lk_table *t, struct lk_err *e);
/* Cells that are not ok. */
int lk_grid_marked(const struct lk_table *t);

#endif
