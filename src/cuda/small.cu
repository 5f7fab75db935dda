/* Small ops: look-up, norms, conversion, addition, gather, argmax, edits of logits. All are bound by launch time; one CTA a row
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
__device__ static float packed_elem(const cu_seg &s, int row, int col, int with_row_scale)
{
    int tile = row / CU_TILE, r = row % CU_TILE, unit = col / CU_KU, lane, c, i, pos;
    int bits = s.fmt == CU_F16 ? 16 : s.fmt == CU_NVFP4 || s.fmt == CU_Q4 || s.fmt == CU_Q4M ? 4 : 8;
    lane_of(r, col % CU_KU, bits, &lane, &c, &i, &pos);
    const unsigned char *u = s.data + ((size_t)tile * s.units + unit) * s.unit_bytes;
    uint32_t w = ((const uint32_t *)u)[c * 128 + lane * 4 + i], p[4] = {0, 0, 0, 0};
    float scale = with_row_scale ? s.row_scale[row] : 1.0f;
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
    switch (s.fmt) {
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

/* Grid (T, columns / 1024): x[t, :] = row ids[t]; zeros for an id outside. */
extern "C" __global__ void embed(const cu_seg s, const int32_t *ids, int n_ids, float *x)
{
    int t = blockIdx.x, id = ids[t], k1 = min(s.k, (int)(blockIdx.y + 1) * 1024);
    for (int k = blockIdx.y * 1024 + threadIdx.x; k < k1; k += blockDim.x)
        x[(size_t)t * s.k + k] = id >= 0 && id < s.n ? packed_elem(s, id, k, 1) : 0.0f;
}

/* Sum over the CTA, the same tree for every launch; the result in every thread. */
__device__ static float block_sum(float v)
{
    __shared__ float part[SMALL_THREADS / 32];
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    __syncthreads(); /* the last use of part is over */
    if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = v;
    __syncthreads(); /* warp sums written -> read by all */
    v = 0;
#pragma unroll
    for (int w = 0; w < SMALL_THREADS / 32; w++) v += part[w];
    return v;
}

/* Grid (T): h = x * rsqrt(mean x^2 + eps) * w. Rows of up to 8192 stay in registers between the two passes; w is there before x is. */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS) norm_act(const float *x, const float *w, float eps, int n, uint16_t *h)
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
        float r = rsqrtf(block_sum(sum) / n + eps);
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
    float r = rsqrtf(block_sum(sum) / n + eps);
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
    float r = rsqrtf(block_sum(sum) / n + eps);
    for (int k = threadIdx.x; k < n; k += SMALL_THREADS) y[(size_t)blockIdx.x * ldy + k] = row[k] * r * w[k];
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

/* A candidate as one sortable number: larger value first, then smaller index. NaN counts as the smallest. */
__device__ static inline unsigned long long rank_of(float v, int i)
{
    uint32_t u = __float_as_uint(v);
    u = v != v ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (uint32_t)~i;
}

__device__ static inline unsigned long long block_max(unsigned long long best)
{
    __shared__ unsigned long long part[32];
    for (int o = 16; o; o >>= 1) {
        unsigned long long other = __shfl_xor_sync(~0u, best, o);
        best = other > best ? other : best;
    }
    if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = best;
    __syncthreads(); /* warp winners written -> read by warp 0 */
    best = 0;
    if (threadIdx.x < 32) {
        best = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        for (int o = 16; o; o >>= 1) {
            unsigned long long other = __shfl_xor_sync(~0u, best, o);
            best = other > best ? other : best;
        }
    }
    return best;
}

/* Grid (parts, T): the best of each part of the row; then argmax_last, grid (T). Two launches instead of one CTA a row: a row of
 * 248,320 logits is 1 MB, which one CTA reads in 20 us and 64 in 3. */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS)
    argmax_part(const float *logits, int n, int ld, unsigned long long *best)
{
    pdl_trigger();
    pdl_wait();
    const float *row = logits + (size_t)blockIdx.y * ld;
    int per = (n + gridDim.x - 1) / gridDim.x, i0 = blockIdx.x * per, i1 = min(n, i0 + per);
    unsigned long long m = 0;
    for (int i = i0 + threadIdx.x; i < i1; i += SMALL_THREADS) {
        unsigned long long r = rank_of(row[i], i);
        m = r > m ? r : m;
    }
    m = block_max(m);
    if (!threadIdx.x) best[blockIdx.y * gridDim.x + blockIdx.x] = m;
}

extern "C" __global__ void argmax_last(const unsigned long long *best, int parts, const float *logits, int ld, int32_t id0,
                                       int32_t *ids, float *val)
{
    pdl_trigger();
    pdl_wait();
    unsigned long long m = 0;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        unsigned long long r = best[blockIdx.x * parts + i];
        m = r > m ? r : m;
    }
    m = block_max(m);
    if (threadIdx.x) return;
    int i = (int)~(uint32_t)m;
    ids[blockIdx.x] = i + id0;
    if (val) val[blockIdx.x] = logits[(size_t)blockIdx.x * ld + i];
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
