/* Small ops: look-up, norms, conversion, addition, gather, edits of logits. All are bound by launch time; one CTA a row
 * with fixed trees of additions, so that a row's bits do not depend on how many rows there are. Contracts: dev/ops.h. */
#include "cuda/dequant.cuh"
#include "cuda/mma.cuh"
#include "cuda/pack.h"
#include "cuda/pdl.cuh"

#define SMALL_THREADS 256

__device__ static inline uint16_t f16_of(float v)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

__device__ static inline float f32_of(uint16_t h)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

/* The pair (an f16x2 register) that holds column pos of a word, for each bit width. Chosen, not indexed: an index would put p in memory. */
__device__ static inline float pick(const uint32_t p[4], int pos)
{
    uint32_t v = pos & 4 ? pos & 2 ? p[3] : p[2] : pos & 2 ? p[1] : p[0];
    return f32_of((uint16_t)(pos & 1 ? v >> 16 : v));
}

/* One weight of a packed segment, as the linears see it (before f32 rounding of the product). */
template <int FMT> __device__ static inline float packed_elem_of(const cu_seg &s, int row, int col)
{
    int tile = row / CU_TILE, r = row % CU_TILE, unit = col / CU_KU, lane, c, i, pos;
    const int bits = FMT == CU_F16 ? 16 : FMT == CU_NVFP4 || FMT == CU_Q4 || FMT == CU_Q4M ? 4 : 8;
    lane_of(r, col % CU_KU, bits, &lane, &c, &i, &pos);
    const unsigned char *u = s.data + ((size_t)tile * s.units + unit) * s.unit_bytes;
    uint32_t w = ((const uint32_t *)u)[c * 128 + lane * 4 + i], p[4] = {0, 0, 0, 0};
    float scale = s.row_scale[row];
    const unsigned char *sc = u + 512 * (bits / 4);
    int half = col % CU_KU / 16;
#if LK_VOLTA
    int at = lane;
    int nv = lane * 2 + half;
    int q4m = lane * 2;
    int q4m_min = lane * 2 + 1;
#else
    int at = (lane >> 2) * 4 + i;
    int nv = (half * 8 + (lane >> 2)) * 4 + i;
    int q4m = (lane >> 2) * 8 + i;
    int q4m_min = (lane >> 2) * 8 + 4 + i;
#endif
    switch (FMT) {
    case CU_F16: p[0] = w; return pick(p, pos) * scale;
    case CU_I8: i8_pairs(w, p); return pick(p, pos) * scale;
    case CU_I8G: i8_pairs(w, p); return pick(p, pos) * f32_of(((const uint16_t *)sc)[at]) * scale;
    case CU_FP8:
        fp8_pairs(w, p);
        if (s.blk_scale) scale *= s.blk_scale[((size_t)tile * s.n_blk + unit / s.blk_units) * 2 + r / 16];
        return pick(p, pos) * scale;
    case CU_NVFP4: fp4_pairs(w, p); return pick(p, pos) * f32_of((uint16_t)(sc[nv] << 7)) * scale;
    case CU_Q4: q4_pairs(w, 0xe408e408u, p); return pick(p, pos) * f32_of(((const uint16_t *)sc)[at]) * scale;
    default:
        q4_pairs(w, 0xe400e400u, p);
        return (pick(p, pos) * f32_of(((const uint16_t *)sc)[q4m]) + f32_of(((const uint16_t *)sc)[q4m_min])) * scale;
    }
}

/* A thread's columns k0, k0 + step .. of a row: all of them asked for before the first is used. */
template <int N, int FMT> __device__ static inline void packed_some(const cu_seg &s, int row, int k0, int step, float *v)
{
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = k0 + i * step < s.k ? packed_elem_of<FMT>(s, row, k0 + i * step) : 0;
}

template <int N> __device__ static inline void packed_row(const cu_seg &s, int row, int k0, int step, float *v)
{
    switch (s.fmt) {
    case CU_F16: packed_some<N, CU_F16>(s, row, k0, step, v); break;
    case CU_I8: packed_some<N, CU_I8>(s, row, k0, step, v); break;
    case CU_I8G: packed_some<N, CU_I8G>(s, row, k0, step, v); break;
    case CU_FP8: packed_some<N, CU_FP8>(s, row, k0, step, v); break;
    case CU_NVFP4: packed_some<N, CU_NVFP4>(s, row, k0, step, v); break;
    case CU_Q4: packed_some<N, CU_Q4>(s, row, k0, step, v); break;
    default: packed_some<N, CU_Q4M>(s, row, k0, step, v);
    }
}

/* Grid (T, columns / 256): x[t, :] = row ids[t]; zeros for an id outside. */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS) embed(const cu_seg s, const int32_t *ids, int n_ids, float *x)
{
    int t = blockIdx.x, id = ids[t], k = blockIdx.y * SMALL_THREADS + threadIdx.x;
    float v = 0;
    if (k >= s.k) return;
    if (id >= 0 && id < s.n) packed_row<1>(s, id, k, 1, &v);
    x[(size_t)t * s.k + k] = v;
}

/* Sum over a CTA of WARPS warps, the same tree for every launch; the result in every thread. */
template <int WARPS> __device__ static float block_sum(float v)
{
    __shared__ float part[WARPS];
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    __syncthreads(); /* the last use of part is over */
    if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = v;
    __syncthreads(); /* warp sums written -> read by all */
    v = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) v += part[w];
    return v;
}

/* Grid (T): h = x * rsqrt(mean x^2 + eps) * w. Rows of up to 8192 stay in registers between the two passes; w is there before x is.
 * rms: not NULL: the reciprocal rms of each row goes there (struct cu_norm). */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS)
    norm_act(const float *x, const float *w, float eps, int n, uint16_t *h, float *rms)
{
    pdl_trigger();
    const float *row = x + (size_t)blockIdx.x * n;
    int n4 = n / 4;
    float sum = 0;
    if (n % 4 == 0 && n4 <= 8 * SMALL_THREADS) {
        float4 v[8], q[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = i * SMALL_THREADS + threadIdx.x;
            q[i] = at < n4 ? __ldg((const float4 *)w + at) : make_float4(0, 0, 0, 0);
        }
        pdl_wait();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = i * SMALL_THREADS + threadIdx.x;
            v[i] = at < n4 ? ((const float4 *)row)[at] : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        float r = rsqrtf(block_sum<SMALL_THREADS / 32>(sum) / n + eps);
        if (rms && !threadIdx.x) rms[blockIdx.x] = r;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = i * SMALL_THREADS + threadIdx.x;
            if (at >= n4) break;
            uint32_t a = f16_of(v[i].x * r * q[i].x) | (uint32_t)f16_of(v[i].y * r * q[i].y) << 16;
            uint32_t b = f16_of(v[i].z * r * q[i].z) | (uint32_t)f16_of(v[i].w * r * q[i].w) << 16;
            ((uint2 *)(h + (size_t)blockIdx.x * n))[at] = make_uint2(a, b);
        }
        return;
    }
    pdl_wait();
    for (int k = threadIdx.x; k < n; k += SMALL_THREADS) sum += row[k] * row[k];
    float r = rsqrtf(block_sum<SMALL_THREADS / 32>(sum) / n + eps);
    if (rms && !threadIdx.x) rms[blockIdx.x] = r;
    for (int k = threadIdx.x; k < n; k += SMALL_THREADS) h[(size_t)blockIdx.x * n + k] = f16_of(row[k] * r * w[k]);
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS)
    norm_f32(const float *x, int ldx, const float *w, float eps, int n, float *y, int ldy)
{
    pdl_trigger();
    pdl_wait();
    const float *row = x + (size_t)blockIdx.x * ldx;
    float sum = 0;
    for (int k = threadIdx.x; k < n; k += SMALL_THREADS) sum += row[k] * row[k];
    float r = rsqrtf(block_sum<SMALL_THREADS / 32>(sum) / n + eps);
    for (int k = threadIdx.x; k < n; k += SMALL_THREADS) y[(size_t)blockIdx.x * ldy + k] = row[k] * r * w[k];
}

#define ROW_THREADS 1024
#define ROW_EACH 8 /* columns a thread keeps between the two passes; of longer rows the rest is read again */

/* Grid (T): y = norm(x) in f32, and h[i] = the row as f16 for every i with rows[i] = this row. */
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    norm_out(const float *x, const float *w, float eps, int n, float *y, const int32_t *rows, int n_out, uint16_t *h)
{
    pdl_trigger();
    const float *row = x + (size_t)blockIdx.x * n;
    float v[ROW_EACH], sum = 0;
    pdl_wait();
#pragma unroll
    for (int i = 0; i < ROW_EACH; i++) {
        int k = i * ROW_THREADS + threadIdx.x;
        v[i] = k < n ? row[k] : 0;
        sum += v[i] * v[i];
    }
    for (int k = ROW_EACH * ROW_THREADS + threadIdx.x; k < n; k += ROW_THREADS) sum += row[k] * row[k];
    float r = rsqrtf(block_sum<ROW_THREADS / 32>(sum) / n + eps);
#pragma unroll
    for (int i = 0; i < ROW_EACH; i++) {
        int k = i * ROW_THREADS + threadIdx.x;
        if (k >= n) break;
        v[i] = v[i] * r * __ldg(w + k);
        y[(size_t)blockIdx.x * n + k] = v[i];
    }
    for (int k = ROW_EACH * ROW_THREADS + threadIdx.x; k < n; k += ROW_THREADS) y[(size_t)blockIdx.x * n + k] = row[k] * r * w[k];
    for (int o = 0; o < n_out; o++) {
        if (rows[o] != (int)blockIdx.x) continue;
        uint16_t *to = h + (size_t)o * n;
#pragma unroll
        for (int i = 0; i < ROW_EACH; i++)
            if (i * ROW_THREADS + (int)threadIdx.x < n) to[i * ROW_THREADS + threadIdx.x] = f16_of(v[i]);
        for (int k = ROW_EACH * ROW_THREADS + threadIdx.x; k < n; k += ROW_THREADS) to[k] = f16_of(y[(size_t)blockIdx.x * n + k]);
    }
}

/* Grid (columns / 256, rows picked) */
extern "C" __global__ void pick_act(const float *y, const int32_t *rows, int n, uint16_t *h)
{
    pdl_trigger();
    pdl_wait();
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) h[(size_t)blockIdx.y * n + k] = f16_of(y[(size_t)rows[blockIdx.y] * n + k]);
}

/* Grid (T, 2): the two halves of a draft layer's input, each normed. */
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    draft_in(const cu_seg s, const int32_t *ids, const float *embed_w, const float *hidden, const int32_t *rows, const float *hidden_w,
             float eps, uint16_t *h)
{
    const int t = blockIdx.x, half = blockIdx.y, n = s.k, id = half ? 0 : ids[t];
    const float *row = half ? hidden + (size_t)rows[t] * n : NULL, *w = half ? hidden_w : embed_w;
    const int there = id >= 0 && id < s.n;
    uint16_t *to = h + ((size_t)t * 2 + half) * n;
    float v[ROW_EACH] = {}, sum = 0;
    if (row) {
#pragma unroll
        for (int i = 0; i < ROW_EACH; i++)
            if (i * ROW_THREADS + (int)threadIdx.x < n) v[i] = row[i * ROW_THREADS + threadIdx.x];
    } else if (there) {
        packed_row<ROW_EACH>(s, id, threadIdx.x, ROW_THREADS, v);
    }
#pragma unroll
    for (int i = 0; i < ROW_EACH; i++) sum += v[i] * v[i];
    for (int k = ROW_EACH * ROW_THREADS + threadIdx.x; k < n && there; k += ROW_THREADS) {
        float x = 0;
        if (row)
            x = row[k];
        else
            packed_row<1>(s, id, k, 1, &x);
        sum += x * x;
    }
    float r = rsqrtf(block_sum<ROW_THREADS / 32>(sum) / n + eps);
#pragma unroll
    for (int i = 0; i < ROW_EACH; i++) {
        int k = i * ROW_THREADS + threadIdx.x;
        if (k < n) to[k] = f16_of(v[i] * r * __ldg(w + k));
    }
    for (int k = ROW_EACH * ROW_THREADS + threadIdx.x; k < n; k += ROW_THREADS) {
        float x = 0;
        if (row)
            x = row[k];
        else if (there)
            packed_row<1>(s, id, k, 1, &x);
        to[k] = f16_of(x * r * __ldg(w + k));
    }
}

/* Grid (columns / 256, T) */
extern "C" __global__ void to_act(const float *x, int ldx, int n, uint16_t *h)
{
    pdl_trigger();
    pdl_wait();
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) h[(size_t)blockIdx.y * n + k] = f16_of(x[(size_t)blockIdx.y * ldx + k]);
}

/* Grid (kp / 256, T): f16 rows of k columns to rows of kp, zeros behind */
extern "C" __global__ void pad_rows(const uint16_t *x, int k, int kp, uint16_t *out)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < kp) out[(size_t)blockIdx.y * kp + c] = c < k ? x[(size_t)blockIdx.y * k + c] : 0;
}

extern "C" __global__ void add_f32(float *y, const float *x, size_t n)
{
    pdl_trigger();
    pdl_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

extern "C" __global__ void gather_rows(const float *x, int ldx, const int32_t *rows, int n, float *y)
{
    pdl_trigger();
    pdl_wait();
    const float *src = x + (size_t)rows[blockIdx.y] * ldx;
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) y[(size_t)blockIdx.y * n + k] = src[k];
}

extern "C" __global__ void edit_logits(float *logits, int ld, int n, const int32_t *rows, const int32_t *ids, const float *rep,
                                       const float *add)
{
    pdl_trigger();
    pdl_wait();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *l = logits + (size_t)rows[i] * ld + ids[i], v = *l;
    v = v > 0 ? v / rep[i] : v * rep[i];
    *l = v + add[i];
}

/* out[t, j] = silu(g) * u: the tail of a wide gate_up, whose product y [T, ldy] holds columns in packed order: 16 of gate, 16 of up. Values
 * are yet to be multiplied by ag and au. A thread takes 4 columns. Grid (columns / 1024, T). */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS)
    glu_act(const float *y, int ldy, float ag, float au, int n, uint16_t *out, int ldo)
{
    int k = (blockIdx.x * SMALL_THREADS + threadIdx.x) * 4;
    if (k >= n) return;
    const float *at = y + (size_t)blockIdx.y * ldy + (k >> 4) * 32 + (k & 15);
    float4 g = *(const float4 *)at, u = *(const float4 *)(at + 16);
    float gv[4] = {g.x * ag, g.y * ag, g.z * ag, g.w * ag}, uv[4] = {u.x * au, u.y * au, u.z * au, u.w * au};
    uint16_t h[4], *o = out + (size_t)blockIdx.y * ldo + k;
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = f16_of(gv[i] / (1.0f + __expf(-gv[i])) * uv[i]);
    if (n % 4 == 0 && ldo % 4 == 0) {
        *(uint2 *)o = make_uint2(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16);
        return;
    }
    for (int i = 0; i < 4 && k + i < n; i++) o[i] = h[i];
}
