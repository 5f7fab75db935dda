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

__device__ static inline uint4 ld_stream(const void *p)
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
    for (int c = 0; c < fmt_of<FMT>::chunks; c++) r.c[c] = ld_stream(unit + 512 * c + 16 * lane);
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

/* x of this lane for one unit and token tile: 8 columns from 8t (sm_75 and up), all 32 on sm_70 in pieces of 8 */
__device__ static inline uint4 x_load(const unsigned char *row, int col, int k)
{
    return col < k ? *(const uint4 *)(row + 2 * col) : make_uint4(0, 0, 0, 0);
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
__device__ static inline void unit_mul(const unit_regs<FMT> &r, const unsigned char *const *xr, int col0, int k, float acc[NT][8])
{
    uint32_t keep[4];
#pragma unroll
    for (int h = 0; h < 4; h++) {
        uint32_t p[2][2];
        step_pairs<FMT>(r, 2 * h, p[0], keep);
        step_pairs<FMT>(r, 2 * h + 1, p[1], keep);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            uint4 x = x_load(xr[n], col0 + 8 * h, k);
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

template <int FMT, int NT>
__device__ static inline void unit_mul(const unit_regs<FMT> &r, const unsigned char *const *xr, int col0, int k, float acc[NT][8])
{
    uint4 x[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) x[n] = x_load(xr[n], col0 + 8 * (threadIdx.x & 3), k);
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
template <int NT> __device__ static inline void block_flush(const float *bs, float acc[NT][8], float total[NT][8], int lane)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float s = __ldg(bs + (LK_VOLTA ? lane >> 3 & 1 : i >> 2));
            total[n][i] += acc[n][i] * s;
            acc[n][i] = 0;
        }
}

/* The warp's share of the tile: units [u0, u1) into acc. */
template <int FMT, int NT, int BLK>
__device__ static inline void warp_run(const cu_linear_par &p, int tile, int u0, int u1, float acc[NT][8])
{
    const int lane = threadIdx.x & 31, B = fmt_of<FMT>::batch;
    const unsigned char *unit = p.s.data + ((size_t)tile * p.s.units + u0) * fmt_of<FMT>::unit;
    const unsigned char *xr[NT];
    int row = LK_VOLTA ? (lane & 3) + (lane >= 16 ? 4 : 0) : lane >> 2;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int t = row + 8 * n < p.T ? row + 8 * n : p.T - 1; /* rows beyond T repeat the last: their sums are not stored */
        xr[n] = (const unsigned char *)p.x + (size_t)t * p.ldx * 2;
    }
    float part[BLK ? NT : 1][8];
    if (BLK)
#pragma unroll
        for (int i = 0; i < NT * 8; i++) part[i / 8][i % 8] = 0;
    bool waited = false;
    for (int u = u0; u < u1; u += B) {
        unit_regs<FMT> r[B];
#pragma unroll
        for (int b = 0; b < B; b++)
            if (u + b < u1) unit_load<FMT>(r[b], unit + (size_t)b * fmt_of<FMT>::unit, lane);
        unit += (size_t)B * fmt_of<FMT>::unit;
        if (!waited) pdl_wait(); /* weights do not depend on the kernel before, x does */
        waited = true;
#pragma unroll
        for (int b = 0; b < B; b++) {
            if (u + b >= u1) break;
            unit_mul<FMT, NT>(r[b], xr, (u + b) * CU_KU, p.s.k, BLK ? (float(*)[8])part : acc);
            if (BLK && ((u + b + 1) % p.s.blk_units == 0 || u + b + 1 == u1))
                block_flush<NT>(p.s.blk_scale + ((size_t)tile * p.s.n_blk + (u + b) / p.s.blk_units) * 2, (float(*)[8])part,
                                acc, lane);
        }
    }
    if (!waited) pdl_wait();
}

__device__ static inline uint16_t to_f16(float v)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

/* One output element: its row's sum, scaled, added or stored; gate_up: rows 16 apart are gate and up. */
__device__ static inline void store(const cu_linear_par &p, int tile, int token, int row, const float *sums, int glu)
{
    float scale = p.s.row_scale[tile * CU_TILE + row];
    if (glu) {
        float g = sums[row] * scale, u = sums[row + 16] * p.s.row_scale[tile * CU_TILE + row + 16];
        int col = tile * 16 + row;
        if (col < p.s.n / 2) ((uint16_t *)p.y)[(size_t)token * p.ldy + col] = to_f16(g / (1.0f + __expf(-g)) * u);
        return;
    }
    int col = p.s.tile_col ? p.s.tile_col[2 * tile] + row : tile * CU_TILE + row;
    int ok = p.s.tile_col ? row < p.s.tile_col[2 * tile + 1] : col < p.s.n;
    if (!ok) return;
    float *y = (float *)p.y + (size_t)token * p.ldy + col;
    *y = p.add ? *y + sums[row] * scale : sums[row] * scale;
}

template <int FMT, int NT, int BLK> __device__ static inline void linear_small(const cu_linear_par &p, int glu)
{
    __shared__ float red[CU_WARPS][8][RED_STRIDE];
    __shared__ float out[8][RED_STRIDE];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tile = blockIdx.x;
    float acc[NT][8];
#pragma unroll
    for (int i = 0; i < NT * 8; i++) acc[i / 8][i % 8] = 0;
    pdl_trigger();
    warp_run<FMT, NT, BLK>(p, tile, warp * p.s.units / CU_WARPS, (warp + 1) * p.s.units / CU_WARPS, acc);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (n * 8 >= p.T) break;
#pragma unroll
        for (int i = 0; i < 8; i++) red[warp][sum_token(lane, i)][sum_row(lane, i)] = acc[n][i];
        __syncthreads(); /* partial sums written -> read below */
        if (threadIdx.x < 256) {
            int t = threadIdx.x >> 5, r = threadIdx.x & 31;
            float v = 0;
#pragma unroll
            for (int w = 0; w < CU_WARPS; w++) v += red[w][t][r];
            out[t][r] = v;
        }
        __syncthreads(); /* sums written -> read across rows (gate and up); also frees red for the next token tile */
        if (threadIdx.x < 256) {
            int t = threadIdx.x >> 5, r = threadIdx.x & 31;
            if (n * 8 + t < p.T && (!glu || r < 16)) store(p, tile, n * 8 + t, r, out[t], glu);
        }
    }
}

#define LINEAR(name, FMT, NT, BLK, MINB)                                                                           \
    extern "C" __global__ void __launch_bounds__(CU_WARPS * 32, MINB) lin_##name##_t##NT(const cu_linear_par p)     \
    {                                                                                                              \
        linear_small<FMT, NT, BLK>(p, 0);                                                                          \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(CU_WARPS * 32, MINB) glu_##name##_t##NT(const cu_linear_par p)     \
    {                                                                                                              \
        linear_small<FMT, NT, BLK>(p, 1);                                                                          \
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
