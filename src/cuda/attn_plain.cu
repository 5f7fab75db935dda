/* Attention in plain FP32 arithmetic over F32 pages (the reference cache of `score`), any number of rows, on every card. A block takes one head of one row; warp w takes
 * the keys that are w modulo 8, a lane 8 dims in a row; the 8 running softmaxes meet at the end. */
#include "cuda/attn_shared.h"
#include "cuda/frag.cuh"

struct sums {
    float m, l, o[8];
};

/* Elements 8 lane .. +7 of one token's K or V. */
static __device__ __forceinline__ void load8(const uint8_t *half, size_t at, int lane, float x[8])
{
    float4 a = ((const float4 *)half)[(at + 8 * lane) / 4], b = ((const float4 *)half)[(at + 8 * lane) / 4 + 1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

static __device__ __forceinline__ void key_add(const float k[8], const float v[8], const float q[8], struct sums *s)
{
    float d = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        d = fmaf(k[i], q[i], d);
    d = lk_warp_sum(d);
    float m = fmaxf(s->m, d), keep = exp2f(s->m - m), w = exp2f(d - m);
    s->m = m;
    s->l = s->l * keep + w;
#pragma unroll
    for (int i = 0; i < 8; i++)
        s->o[i] = s->o[i] * keep + w * v[i];
}

extern "C" __global__ void __launch_bounds__(256) attn_plain(const struct lk_attn_params p)
{
    __shared__ float so[8][256], sm[8], sl[8];
    int row = blockIdx.y, head = blockIdx.x, w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int pos = -1, page0 = 0;
    for (int l = 0; l < p.n_lanes; l++) {
        int r = row - p.lanes[l].row0;
        if (r >= 0 && r < p.lanes[l].rows) {
            pos = p.lanes[l].pos0 + r;
            page0 = p.lanes[l].page0;
        }
    }
    if (pos < 0)
        return;
    int kvh = head / (p.n_q / p.n_kv), first = p.window > 0 && pos > p.window ? pos - p.window : 0;
    size_t q_at = ((size_t)row * p.n_q + head) * LK_HEAD + 8 * lane;
    float q[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        q[i] = ((const float *)p.q)[q_at + i];
    struct sums s = {NO_SCORE, 0.f, {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}};
    size_t half = lk_kv_half_bytes(LK_KV_F32, p.n_kv);
    for (int key = (first & ~7) + w; key <= pos; key += 8) {
        if (key < first)
            continue;
        const uint8_t *kp = p.kv + (size_t)p.pages[page0 + (key >> 6)] * 2 * half, *vp = kp + half;
        size_t at = ((size_t)kvh * LK_PAGE + (key & 63)) * LK_HEAD;
        float k[8], v[8];
        load8(kp, at, lane, k);
        load8(vp, at, lane, v);
        key_add(k, v, q, &s);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        so[w][lane * 8 + i] = s.o[i];
    if (lane == 0) {
        sm[w] = s.m;
        sl[w] = s.l;
    }
    __syncthreads();
    int d = threadIdx.x;
    float m = sm[0], l = 0.f, o = 0.f;
    for (int i = 1; i < 8; i++)
        m = fmaxf(m, sm[i]);
    for (int i = 0; i < 8; i++) {
        float e = exp2f(sm[i] - m);
        l += e * sl[i];
        o += e * so[i][d];
    }
    float gate = p.proj[(size_t)row * p.ld + (size_t)head * 512 + 256 + d];
    p.out[((size_t)row * p.n_q + head) * LK_HEAD + d] = lk_to_half(o / l / (1.f + expf(-gate)));
}
