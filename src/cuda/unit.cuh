/* A unit of packed weights (32 rows x 32 columns, pack.h) in a warp's registers: loading it and turning its codes into scaled pairs of f16, for
 * every device format and both tensor instructions. Used by the small linears and by the kernels that unpack whole tiles. */
#ifndef LK_CUDA_UNIT_CUH
#define LK_CUDA_UNIT_CUH

#include "cuda/dequant.cuh"
#include "cuda/mma.cuh"
#include "cuda/pack.h"

template <int FMT> struct fmt_of {
    static constexpr int bits = FMT == CU_F16 ? 16 : FMT == CU_NVFP4 || FMT == CU_Q4 || FMT == CU_Q4M ? 4 : 8;
    static constexpr int chunks = bits / 4;
    static constexpr int scale_bytes = FMT == CU_I8G || FMT == CU_NVFP4 || FMT == CU_Q4 ? 64 : FMT == CU_Q4M ? 128 : 0;
    static constexpr int unit = 512 * chunks + scale_bytes;
    static constexpr int words = LK_VOLTA || FMT == CU_NVFP4 ? 1 : FMT == CU_Q4M ? 4 : 2; /* scale words a lane keeps */
    static constexpr int batch = 4 / chunks; /* units in flight a warp: 64 bytes a lane */
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define LK_RING 1
#else
#define LK_RING 0
#endif

template <int FMT> struct ring_of {
    static constexpr int depth = CU_RING_DEPTH(FMT), own = CU_RING_OWN(FMT), slot = CU_RING_SLOT(FMT);
    static constexpr int group = FMT == CU_F16 ? 1 : 2; /* units between two waits */
};

template <int FMT> struct unit_regs {
    uint4 c[fmt_of<FMT>::chunks];
    uint32_t s[fmt_of<FMT>::words];
};

__device__ static inline uint4 ld_unit(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Where a lane's scales stand, counted from its own codes (16 bytes a lane) in the first chunk of the unit. */
template <int FMT> __device__ static inline int scale_at(int lane)
{
    int g = lane >> 2, at = LK_VOLTA ? lane * (FMT == CU_Q4M ? 4 : 2) : FMT == CU_NVFP4 ? ((lane >> 1 & 1) * 8 + g) * 4 : FMT == CU_Q4M ? g * 16 : g * 8;
    return 512 * fmt_of<FMT>::chunks + at - 16 * lane;
}

/* codes: this lane's 16 bytes of the unit's first chunk; scales: its scales */
template <int FMT> __device__ static inline void unit_load(unit_regs<FMT> &r, const unsigned char *codes, const unsigned char *scales)
{
#pragma unroll
    for (int c = 0; c < fmt_of<FMT>::chunks; c++) r.c[c] = ld_unit(codes + 512 * c);
    if (!fmt_of<FMT>::scale_bytes) return;
#if LK_VOLTA
    if (FMT == CU_Q4M)
        r.s[0] = __ldg((const uint32_t *)scales);
    else
        r.s[0] = __ldg((const uint16_t *)scales);
#else
    if (FMT == CU_NVFP4) {
        r.s[0] = __ldg((const uint32_t *)scales);
    } else if (FMT == CU_Q4M) {
        uint4 v = __ldg((const uint4 *)scales);
        r.s[0] = v.x, r.s[1 % fmt_of<FMT>::words] = v.y, r.s[2 % fmt_of<FMT>::words] = v.z, r.s[3 % fmt_of<FMT>::words] = v.w;
    } else {
        uint2 v = __ldg((const uint2 *)scales);
        r.s[0] = v.x, r.s[1 % fmt_of<FMT>::words] = v.y;
    }
#endif
}

__device__ static inline uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The scale of row-word i as half2; half: which 16 columns (NVFP4). Volta lanes hold one row, so i does not matter there. */
template <int FMT> __device__ static inline uint32_t scale_of(const unit_regs<FMT> &r, int i, int half)
{
#if LK_VOLTA
    if (FMT == CU_NVFP4) return h2_lo(half ? (r.s[0] >> 8) << 7 : (r.s[0] & 0xffu) << 7);
    return h2_lo(r.s[0]);
#else
    if (FMT == CU_NVFP4) {
        uint32_t even = (r.s[0] & 0x00ff00ffu) << 7, odd = (r.s[0] >> 1) & 0x7f807f80u;
        return i == 0 ? h2_lo(even) : i == 1 ? h2_lo(odd) : i == 2 ? h2_hi(even) : h2_hi(odd);
    }
    uint32_t w = r.s[(i >> 1) % fmt_of<FMT>::words];
    return i & 1 ? h2_hi(w) : h2_lo(w);
#endif
}

template <int FMT> __device__ static inline uint32_t min_of(const unit_regs<FMT> &r, int i)
{
#if LK_VOLTA
    return h2_hi(r.s[0]);
#else
    uint32_t w = r.s[(2 + (i >> 1)) % fmt_of<FMT>::words];
    return i & 1 ? h2_hi(w) : h2_lo(w);
#endif
}

/* The 4-bit word i as 4 pairs, scaled */
template <int FMT> __device__ static inline void decode4(const unit_regs<FMT> &r, int i, uint32_t p[4])
{
    uint32_t w = word_of(r.c[0], i), s = scale_of<FMT>(r, i, LK_VOLTA && i >= 2);
    if (FMT == CU_NVFP4)
        fp4_pairs(w, p);
    else
        q4_pairs(w, FMT == CU_Q4M ? 0xe400e400u : 0xe408e408u, p);
#pragma unroll
    for (int j = 0; j < 4; j++) p[j] = FMT == CU_Q4M ? h2_fma(p[j], s, min_of<FMT>(r, i)) : h2_mul(p[j], s);
}

template <int FMT> __device__ static inline void decode8(const unit_regs<FMT> &r, int c, int i, uint32_t p[2])
{
    uint32_t w = word_of(r.c[c], i);
    if (FMT == CU_FP8)
        fp8_pairs(w, p);
    else
        i8_pairs(w, p);
    if (FMT == CU_I8G) {
        uint32_t s = scale_of<FMT>(r, i, 0);
        p[0] = h2_mul(p[0], s), p[1] = h2_mul(p[1], s);
    }
}

#if LK_VOLTA
/* pairs of step j (columns 4j..4j+3) of this lane's row */
template <int FMT> __device__ static inline void step_pairs(const unit_regs<FMT> &r, int j, uint32_t p[2], uint32_t keep[4])
{
    if (fmt_of<FMT>::bits == 4) {
        if (!(j & 1)) decode4<FMT>(r, j >> 1, keep);
        p[0] = keep[2 * (j & 1)], p[1] = keep[2 * (j & 1) + 1];
    } else if (fmt_of<FMT>::bits == 8) {
        decode8<FMT>(r, (j >> 2) % fmt_of<FMT>::chunks, j & 3, p);
    } else {
        const uint4 &v = r.c[(j >> 1) % fmt_of<FMT>::chunks];
        p[0] = word_of(v, 2 * (j & 1)), p[1] = word_of(v, 2 * (j & 1) + 1);
    }
}

#else
/* pairs of rows i for both steps: p[0..1] columns 8t..8t+3, p[2..3] columns 8t+4..8t+7 */
template <int FMT> __device__ static inline void row_pairs(const unit_regs<FMT> &r, int i, uint32_t p[4])
{
    if (fmt_of<FMT>::bits == 4) {
        decode4<FMT>(r, i, p);
    } else if (fmt_of<FMT>::bits == 8) {
        decode8<FMT>(r, 0, i, p);
        decode8<FMT>(r, 1 % fmt_of<FMT>::chunks, i, p + 2);
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++) p[c] = word_of(r.c[c % fmt_of<FMT>::chunks], i);
    }
}
#endif

/* Scales of the block that unit u of a tile lies in: rows 0-15 and 16-31. */
__device__ static inline float2 block_scale(const cu_seg &s, int tile, int u)
{
    return __ldg((const float2 *)s.blk_scale + (size_t)tile * s.n_blk + u / s.blk_units);
}

#endif
