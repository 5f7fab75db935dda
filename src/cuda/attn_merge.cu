/* Merge of decode attention's partial sums, and the output gate. A block takes 64 dims of one head of one row: 16 threads
 * across (float4), 16 down; thread row j adds up splits j, j+16, .. in order, then the 16 sums meet in a fixed tree. Which
 * splits exist follows from the row's own position. Bytes: T * n_q * splits * 1032 in. */
#include "cuda/attn_shared.h"
#include "cuda/frag.cuh"
#include "cuda/pdl.cuh"

static __device__ int row_pos(const struct lk_attn_params &p, int row)
{
    for (int l = 0; l < p.n_lanes; l++) {
        int r = row - p.lanes[l].row0;
        if (r >= 0 && r < p.lanes[l].rows)
            return p.lanes[l].pos0 + r;
    }
    return -1;
}

extern "C" __global__ void __launch_bounds__(256) attn_merge(const struct lk_attn_params p)
{
    __shared__ float red[16][68];
    __shared__ float wgt[256], wsum[8], wmax[8];
    int row = blockIdx.y, head = blockIdx.x >> 2, quarter = blockIdx.x & 3, tid = threadIdx.x;
    int pos = row_pos(p, row);
    pdl_wait();
    pdl_trigger();
    if (pos < 0)
        return;
    int first = p.window > 0 && pos > p.window ? lk_attn_split_of(pos - p.window) : 0;
    int n = lk_attn_split_of(pos) + 1 - first;
    size_t base = ((size_t)row * p.n_q + head) * p.n_splits + first;
    const float2 *ml = (const float2 *)p.ml + base;
    float m = NO_SCORE;
    for (int s = tid; s < n; s += 256)
        m = fmaxf(m, ml[s].x);
    m = lk_warp_max(m);
    if ((tid & 31) == 0)
        wmax[tid >> 5] = m;
    __syncthreads();
    for (int i = 0; i < 8; i++)
        m = fmaxf(m, wmax[i]);
    const float4 *part = (const float4 *)(p.part + base * LK_HEAD) + quarter * 16 + (tid & 15);
    float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
    float tot = 0.f;
    for (int s0 = 0; s0 < n; s0 += 256) {
        float2 x = s0 + tid < n ? ml[s0 + tid] : make_float2(NO_SCORE, 0.f);
        float e = lk_ex2(x.x - m);
        tot = __fmaf_rn(e, x.y, tot);
        __syncthreads();
        wgt[tid] = e;
        __syncthreads();
        int end = min(256, n - s0);
#pragma unroll 4
        for (int s = tid >> 4; s < end; s += 16) {
            float4 v = part[(size_t)(s0 + s) * (LK_HEAD / 4)];
            float f = wgt[s];
            acc.x = __fmaf_rn(f, v.x, acc.x);
            acc.y = __fmaf_rn(f, v.y, acc.y);
            acc.z = __fmaf_rn(f, v.z, acc.z);
            acc.w = __fmaf_rn(f, v.w, acc.w);
        }
    }
    tot = lk_warp_sum(tot);
    if ((tid & 31) == 0)
        wsum[tid >> 5] = tot;
    *(float4 *)&red[tid >> 4][(tid & 15) * 4] = acc;
    __syncthreads();
    if (tid >= 64)
        return;
    float o = 0.f;
    tot = 0.f;
    for (int i = 0; i < 16; i++)
        o += red[i][tid];
    for (int i = 0; i < 8; i++)
        tot += wsum[i];
    int dim = quarter * 64 + tid;
    float gate = p.proj[(size_t)row * p.ld + (size_t)head * 512 + 256 + dim];
    p.out[((size_t)row * p.n_q + head) * LK_HEAD + dim] = lk_to_half(o / tot / (1.f + __expf(-gate)));
}
