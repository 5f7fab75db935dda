/* A loaded linear on the device: segments of packed tiles (pack.h) and, for wide products, its parts. */
#ifndef LK_CUDA_CUDA_MAT_H
#define LK_CUDA_CUDA_MAT_H

#include "cuda/cuda_dev.h"
#include "cuda/pack.h"

#define CU_MAX_PARTS 8
#define CU_SMALL_ROWS 32 /* T up to which the small linears run; their bits do not depend on T */

struct cu_part {
    int seg, tile0;  /* first tile inside its segment (gate_up: both parts 0) */
    int col, n;      /* columns of y */
    float mul;       /* power of two: mul * weight fits f16 well (wide products divide it out again); 0: all rows of the part share */
    float one_scale; /* this scale, and the codes without it are exact in f16 */
};

struct cu_mat {
    struct lk_mat_head head; /* first */
    int n_segs;
    struct cu_seg segs[CU_MAX_PARTS];
    struct cu_part parts[CU_MAX_PARTS];
    void *owned[4 * CU_MAX_PARTS]; /* device memory */
    int n_owned;
};

int cu_mat_load(struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *parts, int n_parts, struct lk_mat **out,
                struct lk_err *e);
void cu_mat_free(struct lk_dev *d, struct lk_mat *m);

/* cuda_repack.c: the device format of formats that are laid out anew on the host, -1: none; and one row of them: codes as CU_Q4, CU_Q4M
 * (nibbles, low first) or CU_I8G (bytes, code + 128) are packed from, k / 32 scales and, for CU_Q4M, mins. values: room for k. */
int cu_repack_fmt(const struct lk_weight *w);
void cu_repack_row(const struct lk_weight *w, int64_t row, int fmt, float *values, uint8_t *codes, float *scale, float *min);

#endif
