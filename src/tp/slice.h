/* A part of a weight: rows or columns of any format, as a view where the bytes lie together, else as a copy.
 * Every format is a few grids of equal cells (data, scales, zero points); cutting a weight is cutting its grids. */
#ifndef LK_TP_SLICE_H
#define LK_TP_SLICE_H

#include "base/err.h"
#include "dev/format.h"
#include "tp/shard.h"

/* *own receives a block to lk_free when the part is no longer used (NULL for a view). LK_EINPUT when a cut would
 * fall inside a quantisation group. */
int lk_slice(const struct lk_weight *w, const struct lk_ranges *r, struct lk_weight *out,
             void **own, struct lk_err *e);
/* The part without its bytes (pointers are w's), and the size of the block lk_slice would make; 0: a view. */
int lk_slice_plan(const struct lk_weight *w, const struct lk_ranges *r, struct lk_weight *out,
                  size_t *own, struct lk_err *e);

#endif
