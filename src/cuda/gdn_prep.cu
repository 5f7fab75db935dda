/* First kernel of the gated delta net: convolution, silu, norms of q and k, gates. A warp takes one head (q, k or v) and
 * slides over 8 rows of a lane, 4 channels a thread. The warp of a lane's first rows also moves the convolution window on,
 * after it has read it: nobody else reads those channels of it. Bytes: T * (C in, C out) * 4. */
#include "cuda/gdn_shared.h"
#include "cuda/frag.cuh"
#include "cuda/pdl.cuh"

/* Rows of proj are 16-byte aligned unless hv is odd (some tensor-parallel shards). */
static __device__ __forceinline__ float4 proj4(const struct lk_gdn_params &p, int row, int ch)
{
    const float *x = p.proj + (size_t)row * p.ld + ch;
    return p.ld & 3 ? make_float4(x[0], x[1], x[2], x[3]) : *(const float4 *)x;
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

static __device__ __forceinline__ void gates(const struct lk_gdn_params &p, int row, int h)
{
    const float *ba = p.proj + (size_t)row * p.ld + (size_t)(2 * p.hk + 2 * p.hv) * LK_GDN_D;
    float x = ba[p.hv + h] + p.dt_bias[h];
    p.beta[(size_t)row * p.rld + h] = 1.f / (1.f + expf(-ba[h]));
    p.g[(size_t)row * p.rld + h] = p.a_coef[h] * (x > 20.f ? x : log1pf(expf(x)));
}

/* The window after the lane's rows: the last 3 of (old 3, new rows). */
static __device__ __forceinline__ void conv_advance(const struct lk_gdn_params &p, const struct lk_lane &l, int C, int ch)
{
    float *conv = p.conv + (size_t)l.slot * 3 * C + ch;
    float4 next[3];
#pragma unroll
    for (int b = 0; b < 3; b++) {
        int r = l.rows - 3 + b;
        next[b] = r >= 0 ? proj4(p, l.row0 + r, ch)
                         : *(const float4 *)(conv + (size_t)(3 + r) * C);
    }
#pragma unroll
    for (int b = 0; b < 3; b++)
        *(float4 *)(conv + (size_t)b * C) = next[b];
}

/* For the chunked form a head of q or k is stored as 128 BF16 and the 128 BF16 that are left: 16 bits of mantissa together. */
static __device__ __forceinline__ void put_split(uint16_t *dst, float4 y, int lane)
{
    uint2 hi, lo;
    lk_split_bf16(y.x, y.y, &hi.x, &lo.x);
    lk_split_bf16(y.z, y.w, &hi.y, &lo.y);
    *(uint2 *)(dst + 4 * lane) = hi;
    *(uint2 *)(dst + LK_GDN_D + 4 * lane) = lo;
}

extern "C" __global__ void __launch_bounds__(256) gdn_prep(const struct lk_gdn_params p)
{
    int lane = threadIdx.x & 31, unit = blockIdx.x * 8 + (threadIdx.x >> 5);
    const struct lk_lane l = p.lanes[blockIdx.z];
    int r0 = blockIdx.y * LK_GDN_PREP_ROWS, r1 = min(r0 + LK_GDN_PREP_ROWS, l.rows);
    int C = (2 * p.hk + p.hv) * LK_GDN_D, ch = unit * LK_GDN_D + 4 * lane;
    if (unit >= 2 * p.hk + p.hv || r0 >= r1) {
        pdl_wait();
        pdl_trigger();
        return;
    }
    const float4 *w = (const float4 *)p.conv_w + ch;
    float4 w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], x[LK_GDN_PREP_ROWS + 3];
    pdl_wait(); /* only then: the recurrence reads its state as soon as this kernel has started */
    pdl_trigger();
#pragma unroll
    for (int b = 0; b < LK_GDN_PREP_ROWS + 3; b++) { /* all rows at once: they are in flight together */
        int r = r0 - 3 + b;
        x[b] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (r < 0)
            x[b] = *(const float4 *)(p.conv + ((size_t)l.slot * 3 + 3 + r) * C + ch);
        else if (r < r1)
            x[b] = proj4(p, l.row0 + r, ch);
    }
    if (unit >= 2 * p.hk && r0 + lane < r1) /* a lane a row: their loads and logarithms run side by side */
        gates(p, l.row0 + r0 + lane, unit - 2 * p.hk);
#pragma unroll
    for (int i = 0; i < LK_GDN_PREP_ROWS; i++) {
        int row = l.row0 + r0 + i;
        if (r0 + i >= r1)
            break;
        float4 y = tap(w0, w1, w2, w3, x[i], x[i + 1], x[i + 2], x[i + 3]);
        y = make_float4(silu(y.x), silu(y.y), silu(y.z), silu(y.w));
        if (p.qkv)
            *(float4 *)(p.qkv + (size_t)row * p.rld + ch) = x[i + 3];
        if (unit < 2 * p.hk) {
            float ss = lk_warp_sum(fmaf(y.w, y.w, fmaf(y.z, y.z, fmaf(y.y, y.y, y.x * y.x))));
            float f = rsqrtf(ss + 1e-6f) * (unit < p.hk ? 0.08838834764831845f : 1.f);
            y = make_float4(y.x * f, y.y * f, y.z * f, y.w * f);
        }
        float *dst = unit < p.hk       ? p.q + (size_t)row * p.hk * LK_GDN_D + unit * LK_GDN_D
                     : unit < 2 * p.hk ? p.k + (size_t)row * p.rld + (unit - p.hk) * LK_GDN_D
                                       : p.v + (size_t)row * p.rld + (unit - 2 * p.hk) * LK_GDN_D;
        if (p.chunked && unit < 2 * p.hk)
            put_split((uint16_t *)dst, y, lane);
        else
            *(float4 *)(dst + 4 * lane) = y;
    }
    if (r0 == 0 && !p.keep_state)
        conv_advance(p, l, C, ch);
}
