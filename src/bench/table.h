/* Results on disk and on the screen: one JSON that holds everything, and a Markdown table, a CSV and drawings made from it. */
#ifndef LK_BENCH_TABLE_H
#define LK_BENCH_TABLE_H

#include "base/buf.h"
#include "bench/cell.h"

#include <jansson.h>

struct lk_table {
    json_t *head;   /* machine, versions, model, flags: every condition */
    struct lk_cell *cells;
    int n, cap;
};
void lk_table_free(struct lk_table *t);
int lk_table_add(struct lk_table *t, const struct lk_cell *c); /* 0 or LK_ENOMEM */
struct lk_cell *lk_table_find(const struct lk_table *t, const char *size, const char *kind, const char *run); /* NULL: none */

/* dir/results.json, results.csv, results.md, and with gnuplot speed.png and round.png. Written whole after each cell, so an interrupted run can be resumed. */
int lk_table_save(const struct lk_table *t, const char *dir, int draw, struct lk_err *e);
int lk_table_load(struct lk_table *t, const char *path, struct lk_err *e); /* a results.json or its folder */
int lk_table_markdown(const struct lk_table *t, struct lk_buf *out);
/* Ratios b / a, paired by cell, with the noise band that the seeds of both show. */
int lk_table_compare(const struct lk_table *a, const struct lk_table *b, struct lk_buf *out);

#endif
