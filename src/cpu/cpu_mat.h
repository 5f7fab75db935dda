/* Loading linears on the CPU: checks, a repack where a format's layout runs against the row order,
 * and the small copy that drafts read. */
#ifndef LK_CPU_CPU_MAT_H
#define LK_CPU_CPU_MAT_H

#include "cpu/cpu.h"

int cpu_mat_load(struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *parts,
                 int n_parts, struct lk_mat **out, struct lk_err *e);
enum { ROUGH_G = 64, ROUGH_MAX_K = 32768 }; /* columns a scale of a rough mat; most columns */
/* cpu_rough.c: p, loaded as any part, becomes a 4-bit copy of its weight, owned by p. */
int cpu_rough_make(struct cpu_dev *c, struct cpu_part *p, struct lk_err *e);
/* lk_dev's in_place: is there a decoder for this .ninfer layout? */
int cpu_in_place(const struct lk_dev *d, const struct lk_weight *w);
void cpu_mat_free(struct lk_dev *d, struct lk_mat *m);
/* Work memory for weights of k columns (cpu_dev.c). */
int cpu_reserve_k(struct cpu_dev *c, int64_t k, struct lk_err *e);

#endif
