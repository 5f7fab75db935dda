/* Sampling candidates without sorting the vocabulary. First pass: a block takes 8192 columns of a row into registers, finds
 * their k largest by a binary search over the bits of (value, inverted id), which is unique, so ties need no care, and
 * their part of the log-sum-exp. Second pass: a block a row does the same to the chunks' candidates, in rounds, and sorts the k.
 * Argmax is the same with k = 1 in one value. Bytes: T * n * 4. */
#include "cuda/topk_shared.h"

#include "cuda/frag.cuh"
#include "cuda/pdl.cuh"

#define NT LK_TOPK_THREADS
#define EACH LK_TOPK_EACH

/* Larger float, larger integer; on ties (-0 is 0) the smaller id has the larger low half. Never 0 for a real candidate. */
static __device__ __forceinline__ uint64_t compose(float x, int32_t id)
{
    uint32_t u = __float_as_uint(x + 0.f);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~(uint32_t)id;
}

static __device__ __forceinline__ float value_of(uint64_t c)
{
    uint32_t u = (uint32_t)(c >> 32);
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

static __device__ __forceinline__ int32_t id_of(uint64_t c)
{
    return (int32_t)~(uint32_t)c;
}

static __device__ int block_count(int n, int *red)
{
#if __CUDA_ARCH__ >= 800
    n = __reduce_add_sync(LK_FULL, n);
#else
#pragma unroll
    for (int i = 16; i; i >>= 1)
        n += __shfl_xor_sync(LK_FULL, n, i);
#endif
    if ((threadIdx.x & 31) == 0)
        red[threadIdx.x >> 5] = n;
    __syncthreads();
    int tot = 0;
#pragma unroll
    for (int i = 0; i < NT / 32; i++)
        tot += red[i];
    __syncthreads();
    return tot;
}

/* The largest t such that at least k candidates are >= t, or an earlier t at which exactly k are; 0 when there are fewer. */
static __device__ uint64_t threshold(const uint64_t c[EACH], int k, int *red)
{
    uint64_t t = 0;
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t try_t = t | 1ull << bit;
        int n = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            n += c[i] >= try_t;
        n = block_count(n, red);
        if (n >= k)
            t = try_t;
        if (n == k)
            break;
    }
    return t;
}

/* The block's candidates >= t to dst[0..k), in any order; t = 0 stands for all real ones. */
static __device__ void collect(const uint64_t c[EACH], uint64_t t, int k, uint64_t *dst, int *next)
{
    if (threadIdx.x == 0)
        *next = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (c[i] != 0 && c[i] >= t) {
            int at = atomicAdd(next, 1);
            if (at < k)
                dst[at] = c[i];
        }
    __syncthreads();
    for (int i = *next + threadIdx.x; i < k; i += NT)
        dst[i] = 0;
    __syncthreads();
}

static __device__ float block_max(float m, float *red)
{
    m = lk_warp_max(m);
    if ((threadIdx.x & 31) == 0)
        red[threadIdx.x >> 5] = m;
    __syncthreads();
    for (int i = 0; i < NT / 32; i++)
        m = fmaxf(m, red[i]);
    __syncthreads();
    return m;
}

static __device__ float block_sum(float s, float *red)
{
    s = lk_warp_sum(s);
    if ((threadIdx.x & 31) == 0)
        red[threadIdx.x >> 5] = s;
    __syncthreads();
    s = 0.f;
    for (int i = 0; i < NT / 32; i++)
        s += red[i];
    __syncthreads();
    return s;
}

extern "C" __global__ void __launch_bounds__(LK_TOPK_THREADS) topk_chunk(const struct lk_topk_params p)
{
    __shared__ int red[NT / 32], next;
    __shared__ float fred[NT / 32];
    int row = blockIdx.y, c0 = blockIdx.x * LK_TOPK_CHUNK;
    const float *x = p.logits + (size_t)row * p.ld;
    uint64_t c[EACH];
    float m = NO_SCORE, s = 0.f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int col = c0 + i * NT + threadIdx.x;
        float v = col < p.n ? x[col] : NO_SCORE;
        m = fmaxf(m, v);
        c[i] = col < p.n ? compose(v, col) : 0;
    }
    m = block_max(m, fred);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (c[i] != 0 && m > NO_SCORE)
            s += expf(value_of(c[i]) - m);
    s = block_sum(s, fred);
    size_t chunk = (size_t)row * p.chunks + blockIdx.x;
    if (threadIdx.x == 0) {
        p.ms[chunk * 2] = m;
        p.ms[chunk * 2 + 1] = s;
    }
    uint64_t t = threshold(c, p.k, red);
    collect(c, t, p.k, p.cand + chunk * p.k, &next);
}

/* Sorts 256 candidates, largest first. */
static __device__ void sort256(uint64_t *a)
{
    for (int size = 2; size <= LK_TOPK_MAX; size <<= 1)
        for (int step = size >> 1; step; step >>= 1) {
            int i = threadIdx.x, j = i ^ step;
            if (i < LK_TOPK_MAX && j > i) {
                uint64_t x = a[i], y = a[j];
                if (((i & size) == 0) == (x < y)) {
                    a[i] = y;
                    a[j] = x;
                }
            }
            __syncthreads();
        }
}

extern "C" __global__ void __launch_bounds__(LK_TOPK_THREADS) topk_merge(const struct lk_topk_params p)
{
    __shared__ uint64_t best[LK_TOPK_MAX];
    __shared__ int red[NT / 32], next;
    __shared__ float fred[NT / 32];
    int row = blockIdx.x, total = p.chunks * p.k;
    const uint64_t *cand = p.cand + (size_t)row * total;
    for (int i = threadIdx.x; i < LK_TOPK_MAX; i += NT)
        best[i] = 0;
    __syncthreads();
    /* each round holds the k best so far and as many new ones as fit */
    int room = LK_TOPK_CHUNK - LK_TOPK_MAX;
    for (int done = 0; done < total; done += room) {
        uint64_t c[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = i * NT + threadIdx.x;
            int from = done + at - LK_TOPK_MAX;
            c[i] = at < LK_TOPK_MAX ? best[at] : from < total && from < done + room ? cand[from] : 0;
        }
        __syncthreads();
        uint64_t t = threshold(c, p.k, red);
        collect(c, t, p.k, best, &next);
    }
    sort256(best);
    const float *ms = p.ms + (size_t)row * p.chunks * 2;
    float m = NO_SCORE;
    for (int i = threadIdx.x; i < p.chunks; i += NT)
        m = fmaxf(m, ms[2 * i]);
    m = block_max(m, fred);
    float s = 0.f;
    for (int i = threadIdx.x; i < p.chunks; i += NT)
        if (ms[2 * i] > NO_SCORE)
            s += ms[2 * i + 1] * expf(ms[2 * i] - m);
    s = block_sum(s, fred);
    if (threadIdx.x == 0 && p.lse)
        p.lse[row] = m + logf(s);
    for (int i = threadIdx.x; i < p.k; i += NT) {
        p.ids[(size_t)row * p.k + i] = best[i] ? id_of(best[i]) + p.id0 : -1; /* fewer columns than k */
        p.vals[(size_t)row * p.k + i] = best[i] ? value_of(best[i]) : NO_SCORE;
    }
}

static __device__ uint64_t block_best(uint64_t b, uint64_t *red)
{
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        uint64_t o = __shfl_xor_sync(LK_FULL, b, i);
        b = o > b ? o : b;
    }
    if ((threadIdx.x & 31) == 0)
        red[threadIdx.x >> 5] = b;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++)
        b = red[i] > b ? red[i] : b;
    return b;
}

/* A block takes a chunk of a row; the row's last block takes the best of all chunks. */
extern "C" __global__ void __launch_bounds__(LK_TOPK_THREADS) argmax_rows(const struct lk_topk_params p)
{
    __shared__ uint64_t red[NT / 32];
    __shared__ int last;
    int row = blockIdx.y, c0 = blockIdx.x * LK_TOPK_CHUNK;
    const float *x = p.logits + (size_t)row * p.ld;
    uint64_t b = 0;
    pdl_trigger();
    pdl_wait();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int col = c0 + i * NT + threadIdx.x;
        uint64_t c = col < p.n ? compose(x[col], col) : 0;
        b = c > b ? c : b;
    }
    b = block_best(b, red);
    volatile uint64_t *cand = p.cand + (size_t)row * p.chunks;
    if (threadIdx.x == 0) {
        cand[blockIdx.x] = b;
        __threadfence(); /* the chunk's best written -> counted */
        last = atomicAdd(p.count + row, 1) == p.chunks - 1;
        if (last)
            p.count[row] = 0;
        __threadfence(); /* counted -> the others' read */
    }
    __syncthreads();
    if (!last)
        return;
    b = 0;
    for (int i = threadIdx.x; i < p.chunks; i += NT) {
        uint64_t c = cand[i];
        b = c > b ? c : b;
    }
    b = block_best(b, red);
    if (threadIdx.x != 0)
        return;
    p.ids[row] = id_of(b) + p.id0;
    if (p.vals)
        p.vals[row] = value_of(b);
}
