/* The thin layer over tensor instructions: which lane holds which weight, what a lane reads of x, one product, and where its
 * sums lie. Two maps: m8n8k4 (sm_70) and m16n8k16 (sm_80; sm_75 makes it of two m16n8k8). Both hold lane words of pack.h.
 *
 * m8n8k4 as "8 tokens x 32 rows": A = x (8 tokens x 4 columns, the same in all four quadpairs), B = 4 columns x 8 rows a
 * quadpair. m16n8k16 as "16 rows x 8 tokens": A = weights, B = x; two of them make a tile of 32 rows. */
#ifndef LK_CUDA_MMA_CUH
#define LK_CUDA_MMA_CUH

#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#define LK_VOLTA 1
#else
#define LK_VOLTA 0
#endif

__device__ static inline int lane_row(int lane, int word) /* row inside the tile */
{
#if LK_VOLTA
    return 8 * (lane >> 2 & 3) + (lane & 3) + (lane >= 16 ? 4 : 0);
#else
    return (lane >> 2) + 8 * word;
#endif
}

/* first column, inside the unit, of chunk c, word i; bits: of a code (4, 8, 16) */
__device__ static inline int lane_col(int lane, int c, int i, int bits)
{
#if LK_VOLTA
    return bits == 4 ? 8 * i : bits == 8 ? 16 * c + 4 * i : 8 * c + 2 * i;
#else
    return 8 * (lane & 3) + (bits == 4 ? 0 : bits == 8 ? 4 * c : 2 * c);
#endif
}

/* The inverse, for look-ups: lane, chunk, word of (row, column); pos = index of the column inside the word. */
__device__ static inline void lane_of(int row, int col, int bits, int *lane, int *c, int *i, int *pos)
{
    int per = 32 / bits;
    *pos = col % per;
#if LK_VOLTA
    int r = row & 7;
    *lane = 4 * (row >> 3) + (r & 3) + (r & 4 ? 16 : 0);
    *i = col / per % 4;
    *c = col / per / 4;
#else
    *lane = (row & 7) * 4 + col / 8;
    *i = row >> 3;
    *c = col % 8 / per;
#endif
}

#if LK_VOLTA
__device__ static inline void mma884(float d[8], uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
                 "{%0,%1,%2,%3,%4,%5,%6,%7};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}
#else
__device__ static inline void mma16816(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a2), "r"(a3), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}
#endif

/* 8 sums a lane and token tile, both maps: sum i of a lane belongs to (token, row). */
__device__ static inline int sum_token(int lane, int i)
{
#if LK_VOLTA
    return (lane & 1) + (i & 2) + (lane >= 16 ? 4 : 0);
#else
    return 2 * (lane & 3) + (i & 1);
#endif
}

__device__ static inline int sum_row(int lane, int i)
{
#if LK_VOLTA
    return 8 * (lane >> 2 & 3) + (i & 4) + (lane & 2) + (i & 1);
#else
    return (lane >> 2) + 8 * (i >> 1);
#endif
}

#endif
