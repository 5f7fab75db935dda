/* What the top-k and argmax kernels and their launcher share. Included by C and by CUDA code. */
#ifndef LK_CUDA_TOPK_SHARED_H
#define LK_CUDA_TOPK_SHARED_H

#include <stdint.h>

#define LK_TOPK_MAX 256
#define LK_TOPK_THREADS 512
#define LK_TOPK_EACH 16 /* candidates a thread holds in registers */
#define LK_TOPK_CHUNK (LK_TOPK_THREADS * LK_TOPK_EACH) /* columns a block of the first pass takes: 8192 */

struct lk_topk_params {
    const float *logits;
    int32_t T, n, ld, k, id0, chunks;
    uint64_t *cand; /* [T][chunks][k]: sortable value high, inverted column low; 0 where a chunk has fewer */
    float *ms;      /* [T][chunks][2]: largest value of the chunk, sum of exp(x - largest) */
    int32_t *ids;
    float *vals, *lse;
    int32_t *count; /* argmax: [T] chunks that are done; 0 between launches */
};

#endif
