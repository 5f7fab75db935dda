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
    float *q;                  /* chunked: [n_rows][hk*128] normalised, scaled */
    float *qkv;                /* record mode: inputs of the convolution, [row] rld apart; else NULL */
    float *k, *v, *g, *beta;   /* [row] rld apart: in the record; chunked: in scratch laid out likewise */
    int32_t *count;            /* recurrent: [lane][hk] v heads that have read the window of their q and k head; 0 between launches */
    uint16_t *out;             /* f16 [n_rows][hv*128] */
    float *u;                  /* chunked: [chunks][hv][64][128]; the outputs before the gated norm take its place */
    uint16_t *w;               /* chunked: [chunks][hv][64][hi 128 | lo 128] */
    uint16_t *pm;              /* chunked: [chunks][hv][64][hi 64 | lo 64] masked, decayed q k^T */
    float *gsum;               /* chunked: [chunks][hv][64] decay summed from the chunk's start */
    float eps;
    int32_t ld, rld, n_rows, n_lanes, hk, hv, tiled;
    int32_t keep_state; /* record mode: outputs only */
};

/* One launch folds this many layers. */
#define LK_GDN_FOLD_LAYERS 64
struct lk_gdn_fold_params {
    struct lk_gdn_params p; /* lanes and sizes; state, conv and the record's arrays are a layer's: */
    float *state[LK_GDN_FOLD_LAYERS], *conv[LK_GDN_FOLD_LAYERS], *record[LK_GDN_FOLD_LAYERS];
};

#endif
