/* Drawings of a table, by gnuplot from the CSV files beside it: speed, ms a round and first token against context, the time of a round split by family of
 * kernels, and rooflines. Without gnuplot the script stays there and a line says so. */
#ifndef LK_BENCH_DRAW_H
#define LK_BENCH_DRAW_H

#include "bench/table.h"

/* Writes families.csv and plot.gp into dir and runs gnuplot there. */
int lk_draw(const struct lk_table *t, const char *dir, struct lk_err *e);
/* Writes b as dir/name. */
int lk_draw_write(const char *dir, const char *name, const struct lk_buf *b, struct lk_err *e);
/* Runs gnuplot on dir/plot.gp; says in a line when it cannot. */
void lk_draw_run(const char *dir);
/* Starts a drawing in the script: size, file, axes. */
void lk_draw_begin(struct lk_buf *b, const char *file, const char *x, const char *y);

#endif
