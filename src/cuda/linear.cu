/* Small linears: y[t, col] (+)= sum_k x[t, k] W[row, k] for 1 to 32 tokens, all device formats, one kernel a (format, token
 * tiles of 8).
 *
 * A CTA owns one tile of 32 rows; its 16 warps share the units of that tile, each warp a contiguous run, so that memory is
 * read as 16 streams of whole 512-byte pieces and no barrier stands in the loop. At the end the 16 partial sums meet in
 * shared memory and are added in warp order. The order of additions depends on k and the format only, never on T: a row's bits
 * are the same for every T up to 32.
 *
 * Bytes: the packed segment once; x and y are small beside it. */
#include "cuda/dequant.cuh"
#include "cuda/mma.cuh"
#include "cuda/pack.h"
#include "cuda/pdl.cuh"

#define RED_STRIDE 36 /* floats a token in the reduction: 32 rows + 4, so that a warp's stores meet no bank twice */

template <int FMT> struct fmt_of {
    static constexpr int bits = FMT == CU_F16 ? 16 : FMT == CU_NVFP4 || FMT == CU_Q4 || FMT == CU_Q4M ? 4 : 8;
    static constexpr int chunks = bits / 4;
    static constexpr int scale_bytes = FMT == CU_I8G || FMT == CU_NVFP4 || FMT == CU_Q4 ? 64 : FMT == CU_Q4M ? 128 : 0;
    static constexpr int unit = 512 * chunks + scale_bytes;
    static constexpr int words = LK_VOLTA || FMT == CU_NVFP4 ? 1 : FMT == CU_Q4M ? 4 : 2; /* scale words a lane keeps */
    static constexpr int batch = 4 / chunks; /* units in flight a warp: 64 bytes a lane */
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

template <int FMT> __device__ static inline void unit_load(unit_regs<FMT> &r, const unsigned char *unit, int lane)
{
#pragma unroll
    for (int c = 0; c < fmt_of<FMT>::chunks; c++) r.c[c] = ld_unit(unit + 512 * c + 16 * lane);
    if (!fmt_of<FMT>::scale_bytes) return;
    const unsigned char *s = unit + 512 * fmt_of<FMT>::chunks;
#if LK_VOLTA
    if (FMT == CU_Q4M)
        r.s[0] = __ldg((const uint32_t *)s + lane);
    else
        r.s[0] = __ldg((const uint16_t *)s + lane);
#else
    int g = lane >> 2;
    if (FMT == CU_NVFP4) {
        r.s[0] = __ldg((const uint32_t *)s + (lane >> 1 & 1) * 8 + g);
    } else if (FMT == CU_Q4M) {
        uint4 v = __ldg((const uint4 *)s + g);
        r.s[0] = v.x, r.s[1 % fmt_of<FMT>::words] = v.y, r.s[2 % fmt_of<FMT>::words] = v.z, r.s[3 % fmt_of<FMT>::words] = v.w;
    } else {
        uint2 v = __ldg((const uint2 *)s + g);
        r.s[0] = v.x, r.s[1 % fmt_of<FMT>::words] = v.y;
    }
#endif
}

__device__ static inline uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* x of this lane: a pointer a token tile at its columns of a unit (sm_75 and up: 8t; sm_70: all 32). Rows of x hold whole units: the launcher pads
 * others. */
template <int NT> struct x_ptr {
    const unsigned char *p[NT];
};

template <int NT> __device__ static inline x_ptr<NT> x_of(const cu_linear_par &p, int lane, int unit)
{
    x_ptr<NT> x;
    int row = LK_VOLTA ? (lane & 3) + (lane >= 16 ? 4 : 0) : lane >> 2;
    int col = unit * CU_KU + (LK_VOLTA ? 0 : 8 * (lane & 3));
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int t = row + 8 * n < p.T ? row + 8 * n : p.T - 1; /* rows beyond T repeat the last: their sums are not stored */
        x.p[n] = (const unsigned char *)p.x + ((size_t)t * p.ldx + col) * 2;
    }
    return x;
}

template <int NT> __device__ static inline void x_advance(x_ptr<NT> &x, int units)
{
#pragma unroll
    for (int n = 0; n < NT; n++) x.p[n] += units * CU_KU * 2;
}

/* 8 columns of token tile n: piece h (sm_70) of the unit u units on */
template <int NT> __device__ static inline uint4 x_load(const x_ptr<NT> &x, int n, int u, int h)
{
    return *(const uint4 *)(x.p[n] + u * CU_KU * 2 + 16 * h);
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

template <int FMT, int NT>
__device__ static inline void unit_mul(const unit_regs<FMT> &r, const x_ptr<NT> &xp, int u, float acc[NT][8])
{
    uint32_t keep[4];
#pragma unroll
    for (int h = 0; h < 4; h++) {
        uint32_t p[2][2];
        step_pairs<FMT>(r, 2 * h, p[0], keep);
        step_pairs<FMT>(r, 2 * h + 1, p[1], keep);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 x = x_load<NT>(xp, n, u, h);
            mma884(acc[n], x.x, x.y, p[0][0], p[0][1]);
            mma884(acc[n], x.z, x.w, p[1][0], p[1][1]);
        }
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

template <int FMT, int NT> __device__ static inline void unit_mul_x(const unit_regs<FMT> &r, const uint4 x[NT], float acc[NT][8])
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t a[4], b[4];
        row_pairs<FMT>(r, 2 * m, a);
        row_pairs<FMT>(r, 2 * m + 1, b);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            mma16816(acc[n] + 4 * m, a[0], b[0], a[1], b[1], x[n].x, x[n].y);
            mma16816(acc[n] + 4 * m, a[2], b[2], a[3], b[3], x[n].z, x[n].w);
        }
    }
}

#endif

/* Moves the sums of a scale block into the total: total += sum * scale of the lane's rows. */
template <int NT> __device__ static inline void block_flush(float2 bs, float acc[NT][8], float total[NT][8], int lane)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            total[n][i] += acc[n][i] * ((LK_VOLTA ? lane >> 3 & 1 : i >> 2) ? bs.y : bs.x);
            acc[n][i] = 0;
        }
}

/* Scales of the block that unit u of a tile lies in: rows 0-15 and 16-31. */
__device__ static inline float2 block_scale(const cu_seg &s, int tile, int u)
{
    return __ldg((const float2 *)s.blk_scale + (size_t)tile * s.n_blk + u / s.blk_units);
}

/* The warp's share of the tile: units [u0, u1) into acc. */
template <int FMT, int NT, int BLK>
__device__ static inline void warp_run(const cu_linear_par &p, int tile, int u0, int u1, float acc[NT][8])
{
    const int lane = threadIdx.x & 31, B = LK_VOLTA && NT == 4 ? 1 : fmt_of<FMT>::batch; /* more would spill at 32 rows */
    const unsigned char *unit = p.s.data + ((size_t)tile * p.s.units + u0) * fmt_of<FMT>::unit;
    x_ptr<NT> x = x_of<NT>(p, lane, u0);
    float part[BLK ? NT : 1][8];
    float2 bs = make_float2(0, 0);
    if (BLK)
#pragma unroll
        for (int i = 0; i < NT * 8; i++) part[i / 8][i % 8] = 0;
#pragma unroll 1
    for (int u = u0; u < u1; u += B) {
        unit_regs<FMT> r[B];
#pragma unroll
        for (int b = 0; b < B; b++)
            if (u + b < u1) unit_load<FMT>(r[b], unit + (size_t)b * fmt_of<FMT>::unit, lane);
        unit += (size_t)B * fmt_of<FMT>::unit;
        if (u == u0) pdl_wait(); /* weights do not depend on the kernel ahead, x does */
#if !LK_VOLTA
        uint4 xv[2][NT];
#pragma unroll
        for (int n = 0; NT == 1 && n < NT; n++) xv[0][n] = x_load<NT>(x, n, 0, 0);
#endif
#pragma unroll
        for (int b = 0; b < B; b++) {
            if (u + b >= u1) break;
#if !LK_VOLTA
            if (NT > 1) /* no registers to spare: now */
#pragma unroll
                for (int n = 0; n < NT; n++) xv[b & 1][n] = x_load<NT>(x, n, b, 0);
            else if (b + 1 < B && u + b + 1 < u1) /* x of the next unit, so that its way from the L1 or L2 is hidden by this unit's work */
#pragma unroll
                for (int n = 0; n < NT; n++) xv[(b + 1) & 1][n] = x_load<NT>(x, n, b + 1, 0);
#endif
            if (BLK && (u + b == u0 || (u + b) % p.s.blk_units == 0)) bs = block_scale(p.s, tile, u + b);
#if LK_VOLTA
            unit_mul<FMT, NT>(r[b], x, b, BLK ? (float(*)[8])part : acc);
#else
            unit_mul_x<FMT, NT>(r[b], xv[b & 1], BLK ? (float(*)[8])part : acc);
#endif
            if (BLK && ((u + b + 1) % p.s.blk_units == 0 || u + b + 1 == u1)) block_flush<NT>(bs, (float(*)[8])part, acc, lane);
        }
        x_advance<NT>(x, B);
    }
    if (u0 >= u1) pdl_wait();
}

__device__ static inline uint16_t to_f16(float v)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

/* One output element: the sum of its row, scaled, added or stored. gate_up: lanes 16 apart hold gate and up. Called by whole warps
 * (lane = row). */
__device__ static inline void store(const cu_linear_par &p, int tile, int token, float sum, int glu)
{
    int row = threadIdx.x & 31;
    float v = sum * __ldg(p.s.row_scale + tile * CU_TILE + row);
    if (glu) {
        float up = __shfl_down_sync(~0u, v, 16);
        int col = tile * 16 + row;
        if (row < 16 && token < p.T && col < p.s.n / 2) ((uint16_t *)p.y)[(size_t)token * p.ldy + col] = to_f16(v / (1.0f + __expf(-v)) * up);
        return;
    }
    int2 at = __ldg((const int2 *)p.s.tile_col + tile); /* first column of y, valid rows */
    if (row >= at.y || token >= p.T) return;
    float *y = (float *)p.y + (size_t)token * p.ldy + at.x + row;
    *y = p.add ? *y + v : v;
}

typedef float red_buf[CU_WARPS][8][RED_STRIDE];

/* Adds the warps' sums of a tile in warp order and stores them. `turn` counts reductions: buffers alternate, so that one barrier each is
 * enough (a buffer is written again only after the barrier that follows its reading). */
template <int NT> __device__ static inline void tile_out(const cu_linear_par &p, int tile, float acc[NT][8], red_buf *red, int &turn, int glu)
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (n * 8 >= p.T) break;
        red_buf &r = red[turn++ & 1];
#pragma unroll
        for (int i = 0; i < 8; i++) r[warp][sum_token(lane, i)][sum_row(lane, i)] = acc[n][i];
        __syncthreads(); /* partial sums written -> read below */
        if (warp >= 8 || n * 8 + warp >= p.T) continue;
        float v = 0;
#pragma unroll
        for (int w = 0; w < CU_WARPS; w++) v += r[w][warp][lane];
        store(p, tile, n * 8 + warp, v, glu);
    }
}

template <int FMT, int NT, int BLK> __device__ static inline void linear_small(const cu_linear_par &p, int glu)
{
    __shared__ red_buf red[2];
    const int warp = threadIdx.x >> 5, tile = blockIdx.x;
    float acc[NT][8];
    int turn = 0;
    pdl_trigger();
#pragma unroll
    for (int i = 0; i < NT * 8; i++) acc[i / 8][i % 8] = 0;
    warp_run<FMT, NT, BLK>(p, tile, warp * p.s.units / CU_WARPS, (warp + 1) * p.s.units / CU_WARPS, acc);
    tile_out<NT>(p, tile, acc, red, turn, glu);
}

/* 32 rows with block scales do not fit the registers of sm_70: two passes of 16 there (the weights are read twice). */
template <int FMT, int NT, int BLK> __device__ static inline void linear_rows(const cu_linear_par &p, int glu)
{
    if constexpr (!LK_VOLTA || NT < 4 || !BLK) {
        linear_small<FMT, NT, BLK>(p, glu);
    } else {
#pragma unroll 1
        for (int t = 0; t < p.T; t += 16) {
            cu_linear_par q = p;
            q.T = min(16, p.T - t);
            q.x = (const unsigned char *)p.x + (size_t)t * p.ldx * 2;
            q.y = (unsigned char *)p.y + (size_t)t * p.ldy * (glu ? 2 : 4);
            linear_small<FMT, 2, BLK>(q, glu);
        }
    }
}

#define LINEAR(name, FMT, NT, BLK, MINB)                                                                           \
    extern "C" __global__ void __launch_bounds__(CU_WARPS * 32, MINB) lin_##name##_t##NT(const cu_linear_par p)     \
    {                                                                                                              \
        linear_rows<FMT, NT, BLK>(p, 0);                                                                           \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(CU_WARPS * 32, MINB) glu_##name##_t##NT(const cu_linear_par p)     \
    {                                                                                                              \
        linear_rows<FMT, NT, BLK>(p, 1);                                                                           \
    }
#define LINEARS(name, FMT, BLK)    \
    LINEAR(name, FMT, 1, BLK, 2)   \
    LINEAR(name, FMT, 2, BLK, 1)   \
    LINEAR(name, FMT, 4, BLK, 1)

/* Supported: format x {8, 16, 32} tokens */
LINEARS(f16, CU_F16, 0)
LINEARS(i8, CU_I8, 0)
LINEARS(i8g, CU_I8G, 0)
LINEARS(fp8, CU_FP8, 0)
LINEARS(fp8b, CU_FP8, 1)
LINEARS(nvfp4, CU_NVFP4, 0)
LINEARS(q4, CU_Q4, 0)
LINEARS(q4m, CU_Q4M, 0)
