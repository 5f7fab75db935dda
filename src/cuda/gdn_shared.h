/* What the gated delta net's kernels and their launcher share. Included by C and by CUDA code. */
#ifndef LK_CUDA_GDN_SHARED_H
#define LK_CUDA_GDN_SHARED_H

#include "dev/batch.h"

#define LK_GDN_D 128       /* head size of the kernels, keys and values */
#define LK_GDN_BLOCK 16    /* rows the recurrent kernel takes at a time */
#define LK_GDN_CHUNK 64      /* rows of the chunked form */
#define LK_GDN_PREP_ROWS 8 /* rows a warp of the prep kernel slides over */

struct lk_gdn_params {
    const struct lk_lane *lanes;
    const float *proj, *conv_w, *a_coef, *dt_bias, *norm_w;
    float *state, *conv;
    float *q;                  /* [n_rows][hk*128] normalised, scaled */
    float *qkv;                /* record mode: inputs of the convolution, [row] rld apart; else NULL */
    float *k, *v, *g, *beta;   /* [row] rld apart: in the record, or in scratch laid out likewise */
    uint16_t *out;             /* f16 [n_rows][hv*128] */
    float *u;                  /* chunked: [chunks][hv][64][128]; the outputs before the gated norm take its place */
    uint16_t *w;               /* chunked: [chunks][hv][64][hi 128 | lo 128] */
    uint16_t *pm;              /* chunked: [chunks][hv][64][hi 64 | lo 64] masked, decayed q k^T */
    float *gsum;               /* chunked: [chunks][hv][64] decay summed from the chunk's start */
    float eps;
    int32_t ld, rld, n_rows, n_lanes, hk, hv, tiled;
    int32_t keep_state; /* record mode: outputs only */
    int32_t chunked;    /* q and k are stored as split BF16 */
};

#endif
