/* What the attention kernels and their launcher share: launch parameters and the fixed cut of the key axis.
 * Owns the split table; refuses everything a kernel does not need to know. Included by C and by CUDA code. */
#ifndef LK_CUDA_ATTN_SHARED_H
#define LK_CUDA_ATTN_SHARED_H

#include "dev/batch.h"
#include "dev/kv.h"

#define LK_ATTN_STEP 64      /* keys a block takes at a time: one page */
#define LK_ATTN_ROWS 4       /* token rows a decode block takes; more rows are more blocks over the same keys */
#define LK_ATTN_MAX_GROUP 8  /* query heads a KV head */
#define LK_ATTN_SMALL 16     /* rows up to which the key axis is split and the result is batch-invariant */
#define LK_ATTN_MAX_CTX 262144

/* The key axis is cut at fixed absolute positions, finer where a context is short, so that 8K already fills the
 * card and 256K leaves few partial sums: 128 keys a split below 4K, 256 below 16K, 512 below 64K, then 1024. */
static inline LK_HD int lk_attn_split_at(int s)
{
    if (s < 32)
        return s * 128;
    if (s < 80)
        return 4096 + (s - 32) * 256;
    if (s < 176)
        return 16384 + (s - 80) * 512;
    return 65536 + (s - 176) * 1024;
}

static inline LK_HD int lk_attn_split_of(int key)
{
    if (key < 4096)
        return key >> 7;
    if (key < 16384)
        return 32 + ((key - 4096) >> 8);
    if (key < 65536)
        return 80 + ((key - 16384) >> 9);
    return 176 + ((key - 65536) >> 10);
}

/* Dynamic shared memory of the decode kernel: a tile of K and two of V, queries and weights as fragments, maxima, V scales.
 * tile: 16,384 B for I8, 32,768 for BF16; tiles of 8 columns. */
static inline LK_HD unsigned lk_attn_decode_smem(unsigned tile, unsigned tiles)
{
    return 3 * tile + tiles * (4096 + 1024 + 128) + 512;
}

/* Of the decode kernel below sm_80: queries, partial scores (two buffers for up to 3 tiles, which 4 may turn out to be), weights. */
#define LK_ATTN_DECODE_70_SMEM(tiles) (((tiles) < 4 ? (tiles) : 3) * (4096 + 2304 + 8192))

/* Of the prefill kernel below sm_80: 64 queries 32 KiB, 64 keys (K, then V) 32 KiB, weights, maxima and corrections. */
#define LK_ATTN_PREFILL_70_SMEM (65536 + 9216 + 768)

/* Of the prefill kernel of sm_90: queries 64 KiB, two tiles each of K and V 128 KiB, codes on their way 32 KiB, barriers. */
#define LK_ATTN_PREFILL_SMEM (229376 + 64)

/* One struct for all kernels of an attention op. */
struct lk_attn_params {
    const struct lk_lane *lanes;
    const int32_t *pages, *rope;
    const float *proj, *q_norm, *k_norm, *inv_freq;
    const uint8_t *section;
    uint8_t *kv;
    void *q;        /* [n_rows][n_q][256]: f16 (I8, BF16) or f32 (F32), scaled by log2(e)/16 */
    float *part;    /* [n_rows][n_q][n_splits][256] unnormalised sums */
    float *ml;      /* [n_rows][n_q][n_splits][2] largest score (log2 units), sum of weights */
    uint16_t *out;  /* f16 [n_rows][n_q*256] */
    float eps;
    int32_t ld, n_rows, n_lanes, n_q, n_kv, window, n_splits;
    int32_t direct; /* decode kernel: no splits, write the result itself */
};

#endif
