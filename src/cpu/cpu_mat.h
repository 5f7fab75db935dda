/* Loading linears on the CPU: checks, and a repack where a format's layout runs against the row
 * order. */
#ifndef LK_CPU_CPU_MAT_H
#define LK_CPU_CPU_MAT_H

#include "cpu/cpu.h"

int cpu_mat_load(struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *parts,
                 int n_parts, struct lk_mat **out, struct lk_err *e);
void cpu_mat_free(struct lk_dev *d, struct lk_mat *m);
/* Work memory for weights of k columns (cpu_dev.c). */
int cpu_reserve_k(struct cpu_dev *c, int64_t k, struct lk_err *e);

#endif
