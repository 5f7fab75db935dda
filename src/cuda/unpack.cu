/* Packed tiles back to row-major f16, the operand of a wide product: out[row][k] = weight * mul, rows in packed order (32 a tile; of gate_up 16 of
 * gate, then 16 of up). mul 0: without the row scale. A warp takes units side by side, 64 bytes a lane in flight, and writes 16 bytes a lane:
 * four lanes make 64 bytes of a row, two units a whole line.
 * Bytes: the packed tiles once, 2 a weight written. */
#include "cuda/pdl.cuh"
#include "cuda/unit.cuh"

__device__ static inline float f32_of(uint16_t h)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

#if !LK_RING
__device__ static inline uint16_t f16_of(float v)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}
#endif

__device__ static inline uint32_t pair_of(float lo, float hi)
{
#if LK_RING
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(lo), "f"(hi));
    return r;
#else
    return f16_of(lo) | (uint32_t)f16_of(hi) << 16;
#endif
}

/* 8 columns of one row, from column `col` */
__device__ static inline void put8(uint16_t *out, int k, int row, int col, const uint32_t p[4], float scale, int plain)
{
    uint32_t q[4];
    if (col >= k) return;
#pragma unroll
    for (int j = 0; j < 4; j++) q[j] = plain ? p[j] : pair_of(f32_of((uint16_t)p[j]) * scale, f32_of((uint16_t)(p[j] >> 16)) * scale);
    uint16_t *at = out + (size_t)row * k + col;
    if (k % 8 == 0) {
        *(uint4 *)at = make_uint4(q[0], q[1], q[2], q[3]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (col + j < k) at[j] = (uint16_t)(j & 1 ? q[j / 2] >> 16 : q[j / 2]);
}

template <int FMT, int BLK> __device__ static inline void unit_put(const cu_seg &s, const unit_regs<FMT> &r, int tile, int u, float mul, uint16_t *out, int row0)
{
    const int lane = threadIdx.x & 31;
    float2 bs = BLK ? block_scale(s, tile, u) : make_float2(1, 1);
    uint32_t p[4];
#if LK_VOLTA
    const int row = lane_row(lane, 0);
    float scale = mul > 0 ? mul * __ldg(s.row_scale + tile * CU_TILE + row) * (row < 16 ? bs.x : bs.y) : 1;
    uint32_t keep[4];
#pragma unroll
    for (int h = 0; h < 4; h++) {
        step_pairs<FMT>(r, 2 * h, p, keep);
        step_pairs<FMT>(r, 2 * h + 1, p + 2, keep);
        put8(out, s.k, row0 + row, u * CU_KU + 8 * h, p, scale, !(mul > 0));
    }
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = lane_row(lane, i);
        float scale = mul > 0 ? mul * __ldg(s.row_scale + tile * CU_TILE + row) * (i < 2 ? bs.x : bs.y) : 1;
        row_pairs<FMT>(r, i, p);
        put8(out, s.k, row0 + row, u * CU_KU + 8 * (lane & 3), p, scale, !(mul > 0));
    }
#endif
}

/* Grid (units / 32, tiles), 8 warps: 4 units a warp. */
template <int FMT, int BLK> __device__ static inline void unpack(const cu_seg &s, int tile0, float mul, uint16_t *out)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tile = tile0 + blockIdx.y, B = fmt_of<FMT>::batch;
    const int u0 = (blockIdx.x * 8 + warp) * 4, u1 = min(u0 + 4, s.units);
    const unsigned char *codes = s.data + ((size_t)tile * s.units + u0) * fmt_of<FMT>::unit + 16 * lane;
    pdl_trigger();
    unit_regs<FMT> r[B];
    for (int u = u0; u < u1; u += B) {
#pragma unroll
        for (int b = 0; b < B; b++)
            if (u + b < u1) unit_load<FMT>(r[b], codes + b * fmt_of<FMT>::unit, codes + scale_at<FMT>(lane) + b * fmt_of<FMT>::unit);
        if (u == u0) pdl_wait(); /* the product before this still reads `out` */
#pragma unroll
        for (int b = 0; b < B; b++)
            if (u + b < u1) unit_put<FMT, BLK>(s, r[b], tile, u + b, mul, out, blockIdx.y * CU_TILE);
        codes += B * fmt_of<FMT>::unit;
    }
    if (u0 >= u1) pdl_wait();
}

#define UNPACK(name, FMT, BLK)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(256, 3) unpack_##name(const cu_seg s, int tile0, float mul, uint16_t *out) \
    {                                                                                                                                     \
        unpack<FMT, BLK>(s, tile0, mul, out);                                                                                             \
    }

UNPACK(f16, CU_F16, 0)
UNPACK(i8, CU_I8, 0)
UNPACK(i8g, CU_I8G, 0)
UNPACK(fp8, CU_FP8, 0)
UNPACK(fp8b, CU_FP8, 1)
UNPACK(nvfp4, CU_NVFP4, 0)
UNPACK(q4, CU_Q4, 0)
UNPACK(q4m, CU_Q4M, 0)
