/* The model's numbers, read from the file once, checked whole, and constant afterwards. */
#ifndef LK_MODEL_SHAPE_H
#define LK_MODEL_SHAPE_H

#include "artifact/artifact.h"
#include "base/err.h"

struct lk_shape {
    int hidden, inter, layers, vocab;
    int n_q, n_kv, head_dim, rope_dim;
    int hk, hv, gdn_dim, conv_k, conv_ch; /* conv_ch = 2*hk*gdn_dim + hv*gdn_dim */
    int n_full, n_gdn;       /* layers of each kind */
    int tied, mtp, gdn_tiled;
    int max_ctx;
    float eps;
    double rope_theta;
    int section[3];
    uint8_t full[LK_MAX_LAYERS];
};
/* LK_EINPUT naming the number, expected and found. */
int lk_shape_read(struct lk_shape *s, const struct lk_config *c, struct lk_err *e);

#endif
