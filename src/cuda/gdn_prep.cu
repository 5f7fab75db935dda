/* First kernel of the chunked gated delta net (sm_80 and up; the recurrent form makes its rows itself): convolution, silu, norms of q
 * and k, gates. A warp takes one head (q, k or v) and slides over 8 rows of a lane, 4 channels a thread. The warp of a lane's first
 * rows also moves the convolution window on, after it has read it: nobody else reads those channels of it. Bytes: T * (C in, C out) * 4. */
#include "cuda/gdn_rows.cuh"
#include "cuda/pdl.cuh"

#if __CUDA_ARCH__ >= 800
/* The window after the lane's rows: the last 3 of (old 3, new rows). */
static __device__ __forceinline__ void conv_advance(const struct lk_gdn_params &p, const struct lk_lane &l, int C, int ch)
{
    float4 next[3];
#pragma unroll
    for (int b = 0; b < 3; b++)
        next[b] = conv_in(p, l, l.rows - 3 + b, C, ch);
#pragma unroll
    for (int b = 0; b < 3; b++)
        *(float4 *)(p.conv + ((size_t)l.slot * 3 + b) * C + ch) = next[b];
}

/* A head of q or k is stored as 128 BF16 and the 128 BF16 that are left: 16 bits of mantissa together. */
static __device__ __forceinline__ void put_split(float *head, float4 y, int lane)
{
    uint16_t *dst = (uint16_t *)head;
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
    pdl_wait();
    if (unit >= 2 * p.hk + p.hv || r0 >= r1)
        return;
    const float4 *w = (const float4 *)p.conv_w + ch;
    float4 w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], x[LK_GDN_PREP_ROWS + 3];
#pragma unroll
    for (int b = 0; b < LK_GDN_PREP_ROWS + 3; b++) { /* all rows at once: they are in flight together */
        int r = r0 - 3 + b;
        x[b] = r < r1 ? conv_in(p, l, r, C, ch) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    if (unit >= 2 * p.hk && r0 + lane < r1) { /* a lane a row: their loads and logarithms run side by side */
        size_t at = (size_t)(l.row0 + r0 + lane) * p.rld + unit - 2 * p.hk;
        gates(p, l.row0 + r0 + lane, unit - 2 * p.hk, p.g + at, p.beta + at);
    }
#pragma unroll
    for (int i = 0; i < LK_GDN_PREP_ROWS; i++) {
        int row = l.row0 + r0 + i;
        if (r0 + i >= r1)
            break;
        float4 y = silu4(tap(w0, w1, w2, w3, x[i], x[i + 1], x[i + 2], x[i + 3]));
        if (unit < p.hk)
            put_split(p.q + ((size_t)row * p.hk + unit) * LK_GDN_D, unit_head(y, GDN_Q_SCALE), lane);
        else if (unit < 2 * p.hk)
            put_split(p.k + (size_t)row * p.rld + (unit - p.hk) * LK_GDN_D, unit_head(y, 1.f), lane);
        else
            *(float4 *)(p.v + (size_t)row * p.rld + (unit - 2 * p.hk) * LK_GDN_D + 4 * lane) = y;
    }
    if (r0 == 0)
        conv_advance(p, l, C, ch);
}
#endif
