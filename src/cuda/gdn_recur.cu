/* The recurrence, row by row: decode, record and fold run the same code, so that their bits agree. A block of 512 threads
 * owns one v head of one lane; its 128x128 state lies in registers, 32 values a thread: column v = 8 warp + lane/4, rows
 * k = 16 i + 4 (lane%4) + e. Both products of a row come from the state before it (o = e^g S^T q + (k.q) delta), so a row
 * costs one reduction over 4 lanes and no barrier. Rows are staged 16 at a time; the gated norm follows them.
 * Bytes: 64 KiB a head in, and out unless recording. */
#include "cuda/gdn_shared.h"
#include "cuda/frag.cuh"
#include "cuda/pdl.cuh"

#define D LK_GDN_D
#define ROWS LK_GDN_BLOCK

struct staged {
    float q[ROWS][D], k[ROWS][D], v[ROWS][D], o[ROWS][D];
    float kq[ROWS], eg[ROWS], beta[ROWS];
};

static __device__ __forceinline__ float dot4(float4 a, float4 b)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

/* Rows r0.. of the lane to shared memory; warp w brings row w. */
template <bool OUT>
static __device__ void stage_rows(const struct lk_gdn_params &p, struct staged *s, int row, int n, int h, int kh)
{
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (w >= n)
        return;
    size_t at = (size_t)(row + w) * p.rld;
    float4 k = *(const float4 *)(p.k + at + kh * D + 4 * lane);
    *(float4 *)&s->k[w][4 * lane] = k;
    *(float4 *)&s->v[w][4 * lane] = *(const float4 *)(p.v + at + h * D + 4 * lane);
    if (OUT) {
        float4 q = *(const float4 *)(p.q + ((size_t)(row + w) * p.hk + kh) * D + 4 * lane);
        *(float4 *)&s->q[w][4 * lane] = q;
        float kq = lk_warp_sum(dot4(k, q));
        if (lane == 0)
            s->kq[w] = kq;
    }
    if (lane == 0) {
        s->eg[w] = expf(p.g[at + h]);
        s->beta[w] = p.beta[at + h];
    }
}

/* One row. Returns the output's element of this thread's column (OUT). */
template <bool OUT>
static __device__ __forceinline__ float row_step(float S[32], const struct staged *s, int r, int kl, float v)
{
    float m0 = 0.f, m1 = 0.f, o0 = 0.f, o1 = 0.f;
    float4 k[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        k[i] = *(const float4 *)&s->k[r][16 * i + 4 * kl];
        m0 = __fmaf_rn(S[4 * i + 1], k[i].y, __fmaf_rn(S[4 * i], k[i].x, m0));
        m1 = __fmaf_rn(S[4 * i + 3], k[i].w, __fmaf_rn(S[4 * i + 2], k[i].z, m1));
    }
    if (OUT) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 q = *(const float4 *)&s->q[r][16 * i + 4 * kl];
            o0 = __fmaf_rn(S[4 * i + 1], q.y, __fmaf_rn(S[4 * i], q.x, o0));
            o1 = __fmaf_rn(S[4 * i + 3], q.w, __fmaf_rn(S[4 * i + 2], q.z, o1));
        }
    }
    float m = __fadd_rn(m0, m1), o = __fadd_rn(o0, o1), eg = s->eg[r];
    m = __fadd_rn(m, __shfl_xor_sync(LK_FULL, m, 1));
    m = __fadd_rn(m, __shfl_xor_sync(LK_FULL, m, 2));
    float delta = __fmul_rn(s->beta[r], __fmaf_rn(-eg, m, v));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        S[4 * i] = __fmaf_rn(k[i].x, delta, __fmul_rn(eg, S[4 * i]));
        S[4 * i + 1] = __fmaf_rn(k[i].y, delta, __fmul_rn(eg, S[4 * i + 1]));
        S[4 * i + 2] = __fmaf_rn(k[i].z, delta, __fmul_rn(eg, S[4 * i + 2]));
        S[4 * i + 3] = __fmaf_rn(k[i].w, delta, __fmul_rn(eg, S[4 * i + 3]));
    }
    if (OUT) {
        o = __fadd_rn(o, __shfl_xor_sync(LK_FULL, o, 1));
        o = __fadd_rn(o, __shfl_xor_sync(LK_FULL, o, 2));
        o = __fmaf_rn(s->kq[r], delta, __fmul_rn(eg, o));
    }
    return o;
}

/* out = norm_w * o * rsqrt(mean o^2 + eps) * silu(z); a warp a row. */
static __device__ void gated_norm(const struct lk_gdn_params &p, const struct staged *s, int row, int n, int h)
{
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (w >= n)
        return;
    float4 o = *(const float4 *)&s->o[w][4 * lane], nw = *(const float4 *)(p.norm_w + 4 * lane);
    const float *zp = p.proj + (size_t)(row + w) * p.ld + (size_t)(2 * p.hk + p.hv + h) * D + 4 * lane;
    float4 z = p.ld & 3 ? make_float4(zp[0], zp[1], zp[2], zp[3]) : *(const float4 *)zp;
    float f = rsqrtf(lk_warp_sum(dot4(o, o)) * (1.f / D) + p.eps);
    float a = nw.x * o.x * f * (z.x / (1.f + __expf(-z.x))), b = nw.y * o.y * f * (z.y / (1.f + __expf(-z.y)));
    float c = nw.z * o.z * f * (z.z / (1.f + __expf(-z.z))), d = nw.w * o.w * f * (z.w / (1.f + __expf(-z.w)));
    *(uint2 *)(p.out + ((size_t)(row + w) * p.hv + h) * D + 4 * lane) = make_uint2(lk_pack_h2(a, b), lk_pack_h2(c, d));
}

/* Fold: the convolution window after `keep` recorded rows. Block h owns v head h's channels, and q and k head h's. */
static __device__ void conv_fold(const struct lk_gdn_params &p, const struct lk_lane &l, int h)
{
    int C = (2 * p.hk + p.hv) * D, part = threadIdx.x >> 7, ch = threadIdx.x & 127;
    if (part > 2 || (part < 2 && h >= p.hk))
        return;
    ch += part == 2 ? (2 * p.hk + h) * D : (part * p.hk + h) * D;
    float *conv = p.conv + (size_t)l.slot * 3 * C + ch;
    float next[3];
#pragma unroll
    for (int b = 0; b < 3; b++) {
        int r = l.keep - 3 + b;
        next[b] = r >= 0 ? p.qkv[(size_t)(l.row0 + r) * p.rld + ch] : conv[(size_t)(3 + r) * C];
    }
#pragma unroll
    for (int b = 0; b < 3; b++)
        conv[(size_t)b * C] = next[b];
}

template <bool OUT> static __device__ __forceinline__ void recur(const struct lk_gdn_params &p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    struct staged *s = (struct staged *)smem;
    int h = blockIdx.x, lane = threadIdx.x & 31, kl = lane & 3, col = 8 * (threadIdx.x >> 5) + (lane >> 2);
    int kh = p.tiled ? h % p.hk : h / (p.hv / p.hk);
    const struct lk_lane l = p.lanes[blockIdx.y];
    int rows = OUT ? l.rows : l.keep;
    if (rows <= 0) {
        pdl_wait();
        return;
    }
    float S[32], *st = p.state + ((size_t)l.slot * p.hv + h) * D * D + col;
#pragma unroll
    for (int i = 0; i < 32; i++)
        S[i] = st[(16 * (i >> 2) + 4 * kl + (i & 3)) * D];
    pdl_wait(); /* the state is older than prep (a fold follows a recorded step, which leaves the state alone), the rows are not */
    pdl_trigger();
    if (!OUT)
        conv_fold(p, l, h);
    for (int r0 = 0; r0 < rows; r0 += ROWS) {
        int n = min(ROWS, rows - r0), row = l.row0 + r0;
        stage_rows<OUT>(p, s, row, n, h, kh);
        __syncthreads();
        for (int r = 0; r < n; r++) {
            float o = row_step<OUT>(S, s, r, kl, s->v[r][col]);
            if (OUT && kl == 0)
                s->o[r][col] = o;
        }
        __syncthreads();
        if (OUT)
            gated_norm(p, s, row, n, h);
    }
    if (p.keep_state)
        return;
#pragma unroll
    for (int i = 0; i < 32; i++)
        st[(16 * (i >> 2) + 4 * kl + (i & 3)) * D] = S[i];
}

extern "C" __global__ void __launch_bounds__(512) gdn_recur(const struct lk_gdn_params p) { recur<true>(p); }
extern "C" __global__ void __launch_bounds__(512) gdn_fold(const struct lk_gdn_params p) { recur<false>(p); }
