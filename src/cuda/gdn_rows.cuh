/* What stands between the input projection and the recurrence of the gated delta net, for one head of one row: the convolution
 * over the last four rows, silu, the gates. Used by the recurrent kernel and by the first kernel of the chunked form. No kernel. */
#ifndef LK_CUDA_GDN_ROWS_CUH
#define LK_CUDA_GDN_ROWS_CUH

#include "cuda/frag.cuh"
#include "cuda/gdn_shared.h"

#define GDN_Q_SCALE 0.08838834764831845f /* 128^-0.5 */

/* Rows of proj are 16-byte aligned unless hv is odd (some tensor-parallel shards). */
static __device__ __forceinline__ float4 proj4(const struct lk_gdn_params &p, int row, int ch)
{
    const float *x = p.proj + (size_t)row * p.ld + ch;
    return p.ld & 3 ? make_float4(x[0], x[1], x[2], x[3]) : *(const float4 *)x;
}

/* Row r of the lane as the convolution sees it: r < 0 stands in the window. */
static __device__ __forceinline__ float4 conv_in(const struct lk_gdn_params &p, const struct lk_lane &l, int r, int C, int ch)
{
    return r < 0 ? *(const float4 *)(p.conv + ((size_t)l.slot * 3 + 3 + r) * C + ch) : proj4(p, l.row0 + r, ch);
}

static __device__ __forceinline__ float4 tap(float4 w0, float4 w1, float4 w2, float4 w3, float4 a, float4 b, float4 c, float4 d)
{
    float4 y; /* w0..w3 are the four taps of channels 0..3 */
    y.x = fmaf(w0.w, d.x, fmaf(w0.z, c.x, fmaf(w0.y, b.x, w0.x * a.x)));
    y.y = fmaf(w1.w, d.y, fmaf(w1.z, c.y, fmaf(w1.y, b.y, w1.x * a.y)));
    y.z = fmaf(w2.w, d.z, fmaf(w2.z, c.z, fmaf(w2.y, b.z, w2.x * a.z)));
    y.w = fmaf(w3.w, d.w, fmaf(w3.z, c.w, fmaf(w3.y, b.w, w3.x * a.w)));
    return y;
}

static __device__ __forceinline__ float silu(float x)
{
    return x / (1.f + __expf(-x));
}

static __device__ __forceinline__ float4 silu4(float4 y)
{
    return make_float4(silu(y.x), silu(y.y), silu(y.z), silu(y.w));
}

static __device__ __forceinline__ float dot4(float4 a, float4 b)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}

/* A head of q or k, 4 channels a lane, to length 1 and times scale. */
static __device__ __forceinline__ float4 unit_head(float4 y, float scale)
{
    float f = rsqrtf(lk_warp_sum(dot4(y, y)) + 1e-6f) * scale;
    return make_float4(y.x * f, y.y * f, y.z * f, y.w * f);
}

static __device__ __forceinline__ void gates(const struct lk_gdn_params &p, int row, int h, float *g, float *beta)
{
    const float *ba = p.proj + (size_t)row * p.ld + (size_t)(2 * p.hk + 2 * p.hv) * LK_GDN_D;
    float x = ba[p.hv + h] + p.dt_bias[h];
    *beta = 1.f / (1.f + expf(-ba[h]));
    *g = p.a_coef[h] * (x > 20.f ? x : log1pf(expf(x)));
}

#endif
