/* KV cache layout, shared by host and device code.
 *
 * A layer's cache is one block of n_pages pages. A page holds LK_PAGE tokens of K then of V for all KV heads of this rank:
 *   I8 :  K codes [n_kv][64][256] i8, K scales [n_kv][64][4] f16, V codes, V scales      (33,792 B a kv head)
 *   BF16: K [n_kv][64][256] bf16, V likewise                                             (65,536 B a kv head)
 *   F32 : the same in f32                                                                (131,072 B a kv head)
 * I8: K (not V) is multiplied by the normalised 256-point Hadamard matrix (Sylvester order, 1/16) before it is quantised,
 * and so is Q at query time. Groups of 64 along the head: scale = f16(absmax/127), code = rint(x / scale) clamped to
 * +-127; scale 0 gives codes 0. Appending overwrites, so a cache is cut back by using smaller positions. */
#ifndef LK_DEV_KV_H
#define LK_DEV_KV_H

#include "dev/batch.h"

#include <stddef.h>

#ifdef __CUDACC__
#define LK_HD __host__ __device__ /* these formulas hold in kernels too */
#else
#define LK_HD
#endif

#define LK_HEAD 256  /* head size of the attention kernels */
#define LK_KV_GROUP 64

enum lk_kv_kind { LK_KV_I8 = 0, LK_KV_BF16 = 1, LK_KV_F32 = 2 };

static inline LK_HD size_t lk_kv_half_bytes(enum lk_kv_kind kind, int n_kv) /* K or V part of a page */
{
    size_t elems = (size_t)n_kv * LK_PAGE * LK_HEAD;
    return kind == LK_KV_I8 ? elems + elems / LK_KV_GROUP * 2 : kind == LK_KV_BF16 ? elems * 2 : elems * 4;
}

static inline LK_HD size_t lk_kv_page_bytes(enum lk_kv_kind kind, int n_kv)
{
    return 2 * lk_kv_half_bytes(kind, n_kv);
}

#endif
