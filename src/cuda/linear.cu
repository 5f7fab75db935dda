/* Small linears: y[t, col] (+)= sum_k x[t, k] W[row, k] for 1 to 32 tokens, all device formats, one kernel a (format, token
 * tiles of 8).
 *
 * A CTA owns one tile of 32 rows; its 16 warps share the units of that tile, each warp a contiguous run, so that memory is
 * read as 16 streams of whole 512-byte pieces and no barrier stands in the loop. At the end the 16 partial sums meet in
 * shared memory and are added in warp order. The order of additions depends on k and the format only, never on T: a row's bits
 * are the same for every T up to 32.
 *
 * sm_80 and up: a warp's units come through a ring of its own in shared memory (cp.async, each lane reads what it asked for itself, so no
 * barrier): 3.4 to 4.4 KB a warp are under way at any time, also while the kernel ahead ends, and codes are decoded meanwhile. Below, a
 * batch of units is loaded into registers, decoded, then the next.
 *
 * A norm costs no launch of its own between two linears (struct cu_norm): the first leaves x * w and sums of squares a tile, the second multiplies
 * its sums by the factor of the row.
 *
 * Bytes: the packed segment once; x and y are small beside it. */
#include "cuda/pdl.cuh"
#include "cuda/unit.cuh"

#define NORM_HEADROOM 0.00390625f /* 2^-8: an unfinished norm may grow 4,000 times its row's last rms before f16 ends, and loses nothing below */
#define RED_STRIDE 36 /* floats a token in the reduction: 32 rows + 4, so that a warp's stores meet no bank twice */

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

#if LK_VOLTA
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

/* Sums of an unfinished x on their way to shared memory: no warp waits for them before its product is done (a warp that did, at the start of
 * every CTA, cost 1 us in 30). */
__device__ static inline void sums_fetch(const cu_linear_par &p, unsigned char *sums)
{
#if LK_RING
    uint32_t to = (uint32_t)__cvta_generic_to_shared(sums);
#pragma unroll 1
    for (int t = threadIdx.x >> 5; t < p.T && p.norm_tiles; t += CU_WARPS)
#pragma unroll 1
        for (int i = t * p.norm_tiles + (threadIdx.x & 31); i < (t + 1) * p.norm_tiles; i += 32)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + 4 * i), "l"(p.norm->sum + (size_t)p.row0 * p.norm_tiles + i) : "memory");
#endif
}

/* Factor of a row of an unfinished x, its sum in one order. The first CTA keeps the reciprocal rms for the next base. Called by whole warps. */
__device__ static inline float row_factor(const cu_linear_par &p, const unsigned char *sums, int token)
{
    const int lane = threadIdx.x & 31, t = p.row0 + token;
    const float *sum = LK_RING ? (const float *)sums + token * p.norm_tiles : p.norm->sum + (size_t)t * p.norm_tiles;
    float v = 0;
    for (int i = lane; i < p.norm_tiles; i += 32) v += sum[i];
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    float f = rsqrtf(v / (float)p.s.k);
    if (!lane && !blockIdx.x) p.norm->r[t] = f * p.norm->base[t];
    return f;
}

#if LK_RING
/* A unit into a slot of the ring: the lane's 16 bytes of each chunk, then its scales. */
template <int FMT> __device__ static inline void ring_fill(uint32_t slot, const unsigned char *codes, const unsigned char *scales, int lane)
{
    constexpr int chunks = fmt_of<FMT>::chunks, own = ring_of<FMT>::own;
#pragma unroll
    for (int c = 0; c < chunks; c++)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slot + 512 * c + 16 * lane), "l"(codes + 512 * c) : "memory");
    if (own == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(slot + 512 * chunks + 4 * lane), "l"(scales) : "memory");
    else if (own == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(slot + 512 * chunks + 8 * lane), "l"(scales) : "memory");
    else if (own == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slot + 512 * chunks + 16 * lane), "l"(scales) : "memory");
}

__device__ static inline uint4 lds16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

template <int FMT> __device__ static inline void ring_read(unit_regs<FMT> &r, uint32_t slot, int lane)
{
    constexpr int chunks = fmt_of<FMT>::chunks, own = ring_of<FMT>::own, last = fmt_of<FMT>::words - 1;
    uint32_t at = slot + 512 * chunks + own * lane;
#pragma unroll
    for (int c = 0; c < chunks; c++) r.c[c] = lds16(slot + 512 * c + 16 * lane);
    if (own == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r.s[0]) : "r"(at) : "memory");
    } else if (own == 8) {
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(r.s[0]), "=r"(r.s[last]) : "r"(at) : "memory");
    } else if (own == 16) {
        uint4 v = lds16(at);
        r.s[0] = v.x, r.s[1 & last] = v.y, r.s[2 & last] = v.z, r.s[last] = v.w;
    }
}

/* The warp's share of the tile: units [u0, u1) into acc. `ring`: its slots. */
template <int FMT, int NT, int BLK>
__device__ static inline void warp_run(const cu_linear_par &p, const cu_seg &s, int tile, int u0, int u1, unsigned char *ring, unsigned char *sums,
                                       float acc[NT][8])
{
    constexpr int D = ring_of<FMT>::depth, G = ring_of<FMT>::group, S = ring_of<FMT>::slot, U = fmt_of<FMT>::unit;
    const int lane = threadIdx.x & 31;
    const unsigned char *codes = s.data + ((size_t)tile * s.units + u0) * U + 16 * lane, *scales = codes + scale_at<FMT>(lane);
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(ring);
    uint32_t slot = 0;
    float part[BLK ? NT : 1][8];
    float2 bs = make_float2(0, 0);
#pragma unroll
    for (int g = 0; g < D; g += G) {
#pragma unroll
        for (int b = 0; b < G; b++)
            if (u0 + g + b < u1) ring_fill<FMT>(base + (g + b) * S, codes + (g + b) * U, scales + (g + b) * U, lane);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    codes += D * U, scales += D * U;
    x_ptr<NT> x = x_of<NT>(p, lane, u0);
    if (BLK)
#pragma unroll
        for (int i = 0; i < NT * 8; i++) part[i / 8][i % 8] = 0;
    pdl_wait(); /* weights do not depend on the kernel ahead, x does */
    sums_fetch(p, sums);
    constexpr int AHEAD = BLK && NT == 4 ? 0 : 1; /* x of the next unit, so that its way from the L1 or L2 is hidden by this unit's work; it would spill there */
#pragma unroll 1
    for (int u = u0; u < u1; u += G) {
        uint4 xv[2][NT];
#pragma unroll
        for (int n = 0; n < NT && AHEAD; n++) xv[0][n] = x_load<NT>(x, n, 0, 0);
        asm volatile("cp.async.wait_group %0;" ::"n"(D / G - 1) : "memory");
#pragma unroll
        for (int b = 0; b < G; b++) {
            if (b && u + b >= u1) break;
            unit_regs<FMT> r;
            ring_read<FMT>(r, base + slot + b * S, lane);
            if (!AHEAD || (b + 1 < G && u + b + 1 < u1))
#pragma unroll
                for (int n = 0; n < NT; n++) xv[(b + AHEAD) & 1][n] = x_load<NT>(x, n, b + AHEAD, 0);
            if (BLK && (u + b == u0 || (u + b) % s.blk_units == 0)) bs = block_scale(s, tile, u + b);
            unit_mul_x<FMT, NT>(r, xv[b & 1], BLK ? (float(*)[8])part : acc);
            if (BLK && ((u + b + 1) % s.blk_units == 0 || u + b + 1 == u1)) block_flush<NT>(bs, (float(*)[8])part, acc, lane);
        }
#pragma unroll
        for (int b = 0; b < G; b++)
            if (u + D + b < u1) ring_fill<FMT>(base + slot + b * S, codes + b * U, scales + b * U, lane);
        asm volatile("cp.async.commit_group;" ::: "memory");
        codes += G * U, scales += G * U;
        asm volatile("" : "+l"(codes), "+l"(scales)); /* two pointers that move, not four that are made anew */
        slot = slot + G * S == D * S ? 0 : slot + G * S;
        x_advance<NT>(x, G);
    }
}
#else
/* The warp's share of the tile: units [u0, u1) into acc. */
template <int FMT, int NT, int BLK>
__device__ static inline void warp_run(const cu_linear_par &p, const cu_seg &s, int tile, int u0, int u1, unsigned char *, unsigned char *,
                                       float acc[NT][8])
{
    const int lane = threadIdx.x & 31, B = LK_VOLTA && NT == 4 ? 1 : fmt_of<FMT>::batch; /* more would spill at 32 rows */
    const unsigned char *codes = s.data + ((size_t)tile * s.units + u0) * fmt_of<FMT>::unit + 16 * lane;
    x_ptr<NT> x = x_of<NT>(p, lane, u0);
    float part[BLK ? NT : 1][8];
    float2 bs = make_float2(0, 0);
    if (BLK)
#pragma unroll
        for (int i = 0; i < NT * 8; i++) part[i / 8][i % 8] = 0;
#pragma unroll 1
    for (int u = u0; u < u1; u += B) {
        unit_regs<FMT> r[B];
        const unsigned char *scales = codes + scale_at<FMT>(lane);
#pragma unroll
        for (int b = 0; b < B; b++)
            if (b == 0 || u + b < u1) unit_load<FMT>(r[b], codes + b * fmt_of<FMT>::unit, scales + b * fmt_of<FMT>::unit);
        codes += B * fmt_of<FMT>::unit;
#pragma unroll
        for (int b = 0; b < B; b++) {
            if (b && u + b >= u1) break;
            if (BLK && (u + b == u0 || (u + b) % s.blk_units == 0)) bs = block_scale(s, tile, u + b);
#if LK_VOLTA
            unit_mul<FMT, NT>(r[b], x, b, BLK ? (float(*)[8])part : acc);
#else
            uint4 xv[NT];
#pragma unroll
            for (int n = 0; n < NT; n++) xv[n] = x_load<NT>(x, n, b, 0);
            unit_mul_x<FMT, NT>(r[b], xv, BLK ? (float(*)[8])part : acc);
#endif
            if (BLK && ((u + b + 1) % s.blk_units == 0 || u + b + 1 == u1)) block_flush<NT>(bs, (float(*)[8])part, acc, lane);
        }
        x_advance<NT>(x, B);
    }
}
#endif

__device__ static inline uint16_t to_f16(float v)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

/* The unfinished norm of a row's 32 new values v, of which `there` exist (struct cu_norm). */
__device__ static inline void store_next(const cu_linear_par &p, const cu_seg &s, int tile, int token, int col, float v, bool there)
{
    int t = p.row0 + token, lane = threadIdx.x & 31;
    uint32_t e = __float_as_uint(p.norm->r[t]) & 0x7f800000u;
    float base = e > 0 && e < 0x7f800000u ? __uint_as_float(e) * NORM_HEADROOM : NORM_HEADROOM;
    float b = v * base, q = there ? b * b + p.next_eps * base * base : 0;
    if (there) p.next_h[(size_t)token * s.n + col] = to_f16(b * __ldg(p.next_w + col));
#pragma unroll
    for (int o = 16; o; o >>= 1) q += __shfl_xor_sync(~0u, q, o);
    if (lane) return;
    p.norm->sum[(size_t)t * s.tiles + tile] = q;
    if (!tile) p.norm->base[t] = base;
}

/* One output element: the sum of its row, scaled, added or stored. gate_up: lanes 16 apart hold gate and up. Called by whole warps
 * (lane = row). */
__device__ static inline void store(const cu_linear_par &p, const cu_seg &s, int tile, int token, float sum, const unsigned char *sums, int glu)
{
    int row = threadIdx.x & 31;
    float v = sum * __ldg(s.row_scale + tile * CU_TILE + row);
    if (p.norm_tiles) v *= row_factor(p, sums, token);
    if (glu) {
        float up = __shfl_down_sync(~0u, v, 16);
        int col = tile * 16 + row;
        if (row < 16 && col < s.n / 2) ((uint16_t *)p.y)[(size_t)token * p.ldy + col] = to_f16(v / (1.0f + __expf(-v)) * up);
        return;
    }
    int2 at = __ldg((const int2 *)s.tile_col + tile); /* first column of y, valid rows */
    float *y = (float *)p.y + (size_t)token * p.ldy + at.x + row;
    if (row < at.y) {
        if (p.add) v += *y;
        *y = v;
    }
    if (p.next_w) store_next(p, s, tile, token, at.x + row, v, row < at.y);
}

typedef float red_part[8][RED_STRIDE]; /* a warp's sums of a token tile */

/* Adds the warps' sums of a tile in warp order and stores them. A warp puts its own where its ring was (`stride` bytes a warp), in two places
 * by turns, so that one barrier a token tile is enough: a place is written again only after the barrier that follows its reading. */
template <int NT>
__device__ static inline void tile_out(const cu_linear_par &p, const cu_seg &s, int tile, float acc[NT][8], unsigned char *rings, int stride,
                                       const unsigned char *sums, int glu)
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#if LK_RING
    asm volatile("cp.async.wait_all;" ::: "memory"); /* sums_fetch's */
#endif
    __syncwarp(); /* all lanes have read their units of the ring */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        if (n * 8 >= p.T) break;
        unsigned char *at = rings + (n & 1) * sizeof(red_part);
        red_part &own = *(red_part *)(at + warp * stride);
#pragma unroll
        for (int i = 0; i < 8; i++) own[sum_token(lane, i)][sum_row(lane, i)] = acc[n][i];
        __syncthreads(); /* partial sums, and sums_fetch's, written -> read below */
        int token = n * 8 + warp;
        if (warp >= 8 || token >= p.T) continue;
        float v = 0;
#pragma unroll
        for (int w = 0; w < CU_WARPS; w++) v += (*(red_part *)(at + w * stride))[warp][lane];
        store(p, s, tile, token, v, sums, glu);
    }
}

template <int FMT, int NT, int BLK> __device__ static inline void linear_tile(const cu_linear_par &p, const cu_seg &s, int tile, int glu)
{
    extern __shared__ __align__(16) uint8_t rings[]; /* a warp's ring, below sm_80 its two places of sums */
    const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
    constexpr int stride = LK_RING ? ring_of<FMT>::depth * ring_of<FMT>::slot : 2 * sizeof(red_part);
    float acc[NT][8];
    pdl_trigger();
#pragma unroll
    for (int i = 0; i < NT * 8; i++) acc[i / 8][i % 8] = 0;
    warp_run<FMT, NT, BLK>(p, s, tile, warp * s.units / CU_WARPS, (warp + 1) * s.units / CU_WARPS, rings + warp * stride, rings + p.sums_at, acc);
    tile_out<NT>(p, s, tile, acc, rings, stride, rings + p.sums_at, glu);
}

/* 32 rows with block scales do not fit the registers of sm_70: two passes of 16 there (the weights are read twice). */
template <int FMT, int NT, int BLK> __device__ static inline void linear_rows(const cu_linear_par &p, int tile, int glu)
{
    if constexpr (!LK_VOLTA || NT < 4 || !BLK) {
        linear_tile<FMT, NT, BLK>(p, p.s, tile, glu);
    } else {
#pragma unroll 1
        for (int t = 0; t < p.T; t += 16) {
            cu_linear_par q = p;
            q.T = min(16, p.T - t);
            q.row0 = t;
            q.next_h = p.next_h + (size_t)t * p.s.n;
            q.x = (const unsigned char *)p.x + (size_t)t * p.ldx * 2;
            q.y = (unsigned char *)p.y + (size_t)t * p.ldy * (glu ? 2 : 4);
            __syncthreads(); /* the last pass has read its sums */
            linear_tile<FMT, 2, BLK>(q, p.s, tile, glu);
        }
    }
}

/* One segment, and beside it a small one of f16 rows (the gates of a delta net): the first CTAs take that. */
template <int FMT, int NT, int BLK> __device__ static inline void linear_pair(const cu_linear_par &p)
{
    int tile = (int)blockIdx.x - p.side.tiles;
    if (tile < 0)
        linear_tile<CU_F16, NT, 0>(p, p.side, blockIdx.x, 0);
    else
        linear_rows<FMT, NT, BLK>(p, tile, 0);
}

/* CTAs an SM: 2 with up to 8 tokens (64 registers a thread), with rings and without block scales also up to 16 */
#if LK_RING
#define TWO 2
#else
#define TWO 1
#endif
#define KERNEL(prefix, name, NT, MINB, what) \
    extern "C" __global__ void __launch_bounds__(CU_WARPS * 32, MINB) prefix##_##name##_t##NT(const cu_linear_par p) { what; }
#define LINEAR(name, FMT, NT, BLK, MINB)                                       \
    KERNEL(lin, name, NT, MINB, (linear_rows<FMT, NT, BLK>(p, blockIdx.x, 0))) \
    KERNEL(glu, name, NT, MINB, (linear_rows<FMT, NT, BLK>(p, blockIdx.x, 1)))
#define PAIR(name, FMT, NT, BLK, MINB) KERNEL(pair, name, NT, MINB, (linear_pair<FMT, NT, BLK>(p)))
#define EACH(what, name, FMT, BLK, T2) what(name, FMT, 1, BLK, 2) what(name, FMT, 2, BLK, T2) what(name, FMT, 4, BLK, 1)
#define LINEARS(name, FMT, BLK, T2) EACH(LINEAR, name, FMT, BLK, T2) EACH(PAIR, name, FMT, BLK, T2)

/* Supported: format x {8, 16, 32} tokens */
EACH(LINEAR, f16, CU_F16, 0, TWO)
LINEARS(i8, CU_I8, 0, TWO)
LINEARS(i8g, CU_I8G, 0, TWO)
LINEARS(fp8, CU_FP8, 0, TWO)
LINEARS(fp8b, CU_FP8, 1, 1)
LINEARS(nvfp4, CU_NVFP4, 0, TWO)
LINEARS(q4, CU_Q4, 0, TWO)
LINEARS(q4m, CU_Q4M, 0, TWO)
