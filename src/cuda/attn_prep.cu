/* First kernel of an attention op: a warp takes one head of one row: RMS norm, rotation, Hadamard, then either a query
 * for the attention kernels or a quantised append to the lane's page. Lane L of the warp holds dims L + 32 j, so that
 * a rotation pair (i, i+32) and the upper three Hadamard bits stay inside a lane. Moves T*(512 n_q + 512 n_kv)*4 bytes in. */
#include "cuda/attn_shared.h"
#include "cuda/frag.cuh"
#include "cuda/pdl.cuh"

static __device__ int lane_of_row(const struct lk_attn_params &p, int row)
{
    for (int l = 0; l < p.n_lanes; l++) {
        int r = row - p.lanes[l].row0;
        if (r >= 0 && r < p.lanes[l].rows)
            return l;
    }
    return -1;
}

static __device__ void norm_rope(const struct lk_attn_params &p, float x[8], const float *w, int row, int lane)
{
    float ss = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++)
        ss = fmaf(x[j], x[j], ss);
    float inv = rsqrtf(lk_warp_sum(ss) * (1.f / 256.f) + p.eps);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] *= inv * w[lane + 32 * j];
    float angle = (float)p.rope[p.section[lane] * p.n_rows + row] * p.inv_freq[lane];
    float s, c;
    sincosf(angle, &s, &c);
    float a = x[0], b = x[1];
    x[0] = a * c - b * s;
    x[1] = b * c + a * s;
}

static __device__ void hadamard(float x[8], int lane)
{
#pragma unroll
    for (int bit = 1; bit < 8; bit <<= 1) {
        float y[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            y[j] = (j & bit) ? x[j ^ bit] - x[j] : x[j] + x[j ^ bit];
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = y[j];
    }
#pragma unroll
    for (int bit = 1; bit < 32; bit <<= 1) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float o = __shfl_xor_sync(LK_FULL, x[j], bit);
            x[j] = (lane & bit) ? o - x[j] : x[j] + o;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] *= 0.0625f;
}

/* half: 0 K, 1 V; writes token `tok` of a page. */
static __device__ void append(const struct lk_attn_params &p, int kind, const float x[8], int half, int page, int tok,
                              int h, int lane)
{
    size_t elems = (size_t)p.n_kv * LK_PAGE * LK_HEAD;
    size_t at = ((size_t)h * LK_PAGE + tok) * LK_HEAD;
    size_t half_bytes = lk_kv_half_bytes((enum lk_kv_kind)kind, p.n_kv);
    uint8_t *base = p.kv + (size_t)page * 2 * half_bytes + (size_t)half * half_bytes;
    if (kind == LK_KV_I8) {
        uint16_t *sc = (uint16_t *)(base + elems) + ((size_t)h * LK_PAGE + tok) * 4;
#pragma unroll
        for (int g = 0; g < 4; g++) {
            float m = lk_warp_max(fmaxf(fabsf(x[2 * g]), fabsf(x[2 * g + 1])));
            uint16_t s16 = lk_to_half(__fdiv_rn(m, 127.f));
            float s = lk_half(s16);
            if (lane == 0)
                sc[g] = s16;
#pragma unroll
            for (int j = 2 * g; j < 2 * g + 2; j++) {
                float q = s > 0.f ? rintf(__fdiv_rn(x[j], s)) : 0.f;
                q = fminf(fmaxf(q, -127.f), 127.f);
                ((int8_t *)base)[at + lane + 32 * j] = (int8_t)q;
            }
        }
    } else if (kind == LK_KV_BF16) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            ((uint16_t *)base)[at + lane + 32 * j] = lk_to_bf16(x[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            ((float *)base)[at + lane + 32 * j] = x[j];
    }
}

template <int KIND> static __device__ void prep(const struct lk_attn_params &p)
{
    int lane = threadIdx.x & 31, units = p.n_q + 2 * p.n_kv;
    int item = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int row = item / units, u = item % units;
    pdl_wait(); /* only then: the next kernel reads older pages as soon as this one has started */
    pdl_trigger();
    if (row >= p.n_rows)
        return;
    int l = lane_of_row(p, row);
    if (l < 0)
        return;
    const float *src = p.proj + (size_t)row * p.ld +
                       (u < p.n_q ? (size_t)u * 512 : (size_t)p.n_q * 512 + (size_t)(u - p.n_q) * 256);
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = src[lane + 32 * j];
    if (u < p.n_q + p.n_kv)
        norm_rope(p, x, u < p.n_q ? p.q_norm : p.k_norm, row, lane);
    if (KIND == LK_KV_I8 && u < p.n_q + p.n_kv)
        hadamard(x, lane);
    if (u < p.n_q) {
        size_t at = ((size_t)row * p.n_q + u) * LK_HEAD + lane;
        const float scale = 0.0625f * 1.4426950408889634f; /* scores come out in log2 units */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (KIND == LK_KV_F32)
                ((float *)p.q)[at + 32 * j] = x[j] * scale;
            else
                ((uint16_t *)p.q)[at + 32 * j] = lk_to_half(x[j] * scale);
        }
        return;
    }
    int h = u - p.n_q, half = h >= p.n_kv;
    int pos = p.lanes[l].pos0 + row - p.lanes[l].row0;
    append(p, KIND, x, half, p.pages[p.lanes[l].page0 + pos / LK_PAGE], pos % LK_PAGE, h - half * p.n_kv, lane);
}

extern "C" __global__ void __launch_bounds__(256) attn_prep_i8(const struct lk_attn_params p) { prep<LK_KV_I8>(p); }
extern "C" __global__ void __launch_bounds__(256) attn_prep_bf16(const struct lk_attn_params p) { prep<LK_KV_BF16>(p); }
extern "C" __global__ void __launch_bounds__(256) attn_prep_f32(const struct lk_attn_params p) { prep<LK_KV_F32>(p); }
