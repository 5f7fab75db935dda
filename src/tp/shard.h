/* What a rank owns: pure arithmetic, no memory, no device. Loader, state, kernels' sizes, `convert --tp` and the tests
 * all ask these functions, so that they cannot disagree. n = 1 is not special: every part is then the whole.
 *
 * Rules (n ranks, rank i):
 *   query heads      n_q/n consecutive heads                       (q_proj rows, o_proj columns)
 *   KV heads         n_kv/n, or ONE replicated head when n > n_kv   (k_proj, v_proj rows)
 *   GDN key heads    hk/n, or one replicated head when n > hk       (q and k sections of in_proj_qkv, conv)
 *   GDN value heads  those that use the rank's key heads            (v section, z, a, b, A_log, dt_bias, out columns)
 *   inter            inter/n                                        (gate, up rows; down columns)
 *   vocabulary       ceil(vocab/n) rounded up to 32 rows            (lm_head, draft_head rows)
 *   the rest         whole on every rank                            (norms, embedding, mtp.fc) */
#ifndef LK_TP_SHARD_H
#define LK_TP_SHARD_H

#include "base/err.h"
#include "tp/group.h"

#include <stdint.h>

#define LK_SHARD_RANGES 64

enum lk_part {
    LK_PART_WHOLE,
    LK_PART_Q,     /* rows: 512 a query head (q | gate) */
    LK_PART_KV,    /* rows: 256 a KV head */
    LK_PART_O,     /* columns: 256 a query head */
    LK_PART_QKV,   /* rows or channels: 128 a key head | 128 a key head | 128 a value head */
    LK_PART_V,     /* rows: 128 a value head */
    LK_PART_VHEAD, /* elements or rows: 1 a value head */
    LK_PART_OUT,   /* columns: 128 a value head */
    LK_PART_INTER, /* rows */
    LK_PART_DOWN,  /* columns */
    LK_PART_VOCAB, /* rows */
};

struct lk_shard_dims {
    int n_q, n_kv, head_dim, hk, hv, gdn_dim, tiled;
    int64_t inter, vocab;
};

/* A list of ranges along one axis, in the order in which the rank holds them. */
struct lk_ranges {
    int axis; /* 0 rows, 1 columns */
    int n;
    int64_t total;
    struct {
        int64_t at, count;
    } r[LK_SHARD_RANGES];
};

/* 0, or LK_EINPUT naming the number that n does not divide. */
int lk_shard_check(const struct lk_shard_dims *d, int n, struct lk_err *e);
/* The rank's own sizes (n must have passed the check). */
void lk_shard_local(const struct lk_shard_dims *d, int i, int n, struct lk_shard_dims *out);
/* The rank's ranges of a tensor of this part; whole tensors give one range [0, whole). */
void lk_shard(const struct lk_shard_dims *d, enum lk_part part, int64_t whole, int i, int n,
              struct lk_ranges *out);

#endif
