/* Prefill attention below sm_80, head 256, over INT8 and BF16 pages: m8n8k4 with FP32 sums.
 *
 * A block of 8 warps takes one KV head and 64 packed rows (token x head of the group) of one lane, and walks the keys 64 at a time (a
 * page). Queries, and first K, then V of the page lie in shared memory as halves (K and V take turns in one buffer: 96 KB is all there is);
 * codes come through registers, K's while the products with the page before it run, V's while the scores are made.
 *   S^T = K Q^T: warp (w & 1, w >> 1) scores 32 keys x 16 rows; lane L holds key L.
 *   O^T = V^T P: warp (w & 3, w >> 2) adds up 64 dims x 32 rows; lane (q = L>>2&3, u = L>>4) holds dims 16q+8u..+7 of key L&3 of four.
 * 16-byte chunks are swizzled so that every fragment is read without a bank conflict. The maximum of a row moves only when a score
 * exceeds it by ROOM; corrections reach the second product's warps through shared memory. Four barriers a page.
 * Regime: more than 16 rows. Bytes: the cache once a tile of 64 rows; 64 x 64 x 1024 operations a page, which bound it. */
#include "cuda/attn_shared.h"
#include "cuda/frag.cuh"

#if __CUDA_ARCH__ < 800

#define THREADS 256
#define ROWS 64
#define ROOM 4.f
#define SHIFT 6.f
#define P_ROW 36 /* words a key: 64 rows as halves, and 4 words that spread the banks */

/* Dynamic shared memory: queries | K or V | weights | maxima of two halves of the keys | corrections */
#define KV_AT 32768
#define P_AT 65536
#define MX_AT (P_AT + 64 * P_ROW * 4)
#define CORR_AT (MX_AT + 512)

struct job {
    int row0, rows, kvh, group; /* first packed row of the tile, packed rows in it */
    int lane_row0, pos0;        /* the lane's first batch row and its position */
    int k0, k1, window;
    const int32_t *pages;
};

static __device__ bool job_find(const struct lk_attn_params &p, struct job *j)
{
    const struct lk_lane &l = p.lanes[blockIdx.y];
    j->group = p.n_q / p.n_kv;
    j->kvh = blockIdx.x % p.n_kv;
    j->row0 = ((int)(gridDim.x - blockIdx.x - 1) / p.n_kv) * ROWS; /* the long tiles start first */
    j->rows = min(ROWS, l.rows * j->group - j->row0);
    j->lane_row0 = l.row0;
    j->pos0 = l.pos0;
    j->window = p.window;
    j->pages = p.pages + l.page0;
    if (j->rows <= 0)
        return false;
    int first = l.pos0 + j->row0 / j->group;
    j->k0 = p.window > 0 ? max(0, first - p.window) & ~63 : 0;
    j->k1 = l.pos0 + (j->row0 + j->rows - 1) / j->group + 1;
    return true;
}

/* Batch row and head of packed row n of the tile, as an index into [row][head]. */
static __device__ __forceinline__ size_t row_at(const struct lk_attn_params &p, const struct job &j, int n)
{
    int r = j.row0 + n;
    return (size_t)(j.lane_row0 + r / j.group) * p.n_q + j.kvh * j.group + r % j.group;
}

/* Chunk c (8 halves) of row r: K and queries are read by lanes of 8 rows, V by lanes of 4 keys x 2 chunks. */
static __device__ __forceinline__ uint4 *chunk(uint8_t *tile, int r, int c, int swizzle)
{
    return (uint4 *)(tile + r * 512 + (c ^ swizzle) * 16);
}

static __device__ __forceinline__ int k_swizzle(int r)
{
    return r & 7;
}

static __device__ __forceinline__ int v_swizzle(int r)
{
    return (r & 1) | (r & 2) << 1;
}

static __device__ void load_q(const struct lk_attn_params &p, const struct job &j, uint8_t *qs)
{
    for (int i = threadIdx.x; i < ROWS * 32; i += THREADS) {
        int n = i >> 5, c = i & 31;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (n < j.rows)
            v = *(const uint4 *)((const uint16_t *)p.q + row_at(p, j, n) * LK_HEAD + c * 8);
        *chunk(qs, n, c, k_swizzle(n)) = v;
    }
}

/* A page's K or V on the way: thread i holds pieces i, i + 256, .. of 16 bytes. */
template <int KIND> struct piece_regs {
    static constexpr int n = KIND == LK_KV_I8 ? 4 : 8;
    uint4 c[n];
    uint16_t s[n];
};

template <int KIND>
static __device__ __forceinline__ void load_pieces(struct piece_regs<KIND> &r, const struct lk_attn_params &p, const struct job &j, int page, int v)
{
    size_t elems = (size_t)p.n_kv * LK_PAGE * LK_HEAD, half = lk_kv_half_bytes((enum lk_kv_kind)KIND, p.n_kv);
    const uint8_t *base = p.kv + (size_t)page * 2 * half + v * half;
    const uint4 *src = (const uint4 *)(base + (size_t)j.kvh * LK_PAGE * LK_HEAD * (KIND == LK_KV_I8 ? 1 : 2));
    const uint16_t *sc = (const uint16_t *)(base + elems) + j.kvh * LK_PAGE * 4;
#pragma unroll
    for (int i = 0; i < piece_regs<KIND>::n; i++) {
        int at = i * THREADS + threadIdx.x;
        r.c[i] = src[at];
        if (KIND == LK_KV_I8)
            r.s[i] = sc[at >> 2]; /* a group is 4 pieces */
    }
}

/* The pieces as halves into the buffer; keys from n_left on become zeros: there lies anything, NaN too. */
template <int KIND> static __device__ __forceinline__ void store_pieces(const struct piece_regs<KIND> &r, uint8_t *buf, int n_left, int v)
{
#pragma unroll
    for (int i = 0; i < piece_regs<KIND>::n; i++) {
        int at = i * THREADS + threadIdx.x, key = KIND == LK_KV_I8 ? at >> 4 : at >> 5;
        int swizzle = v ? v_swizzle(key) : k_swizzle(key);
        const uint32_t *w = (const uint32_t *)&r.c[i];
        uint32_t h[8];
        if (KIND == LK_KV_I8) {
            int c = at & 15, odd = c >> 2 & 1; /* odd quarters store their halves in the other order, which spreads the banks */
            uint32_t s = key < n_left ? r.s[i] : 0u;
            s |= s << 16;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                lk_i8_h2(w[k] ^ 0x80808080u, &h[2 * k], &h[2 * k + 1]);
                h[2 * k] = h2_mul(h[2 * k], s);
                h[2 * k + 1] = h2_mul(h[2 * k + 1], s);
            }
            uint4 x = make_uint4(h[0], h[1], h[2], h[3]), y = make_uint4(h[4], h[5], h[6], h[7]);
            *chunk(buf, key, 2 * c + odd, swizzle) = odd ? y : x;
            *chunk(buf, key, 2 * c + 1 - odd, swizzle) = odd ? x : y;
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                h[k] = key < n_left ? lk_pack_h2(lk_bf16_lo(w[k]), lk_bf16_hi(w[k])) : 0u;
            *chunk(buf, key, at & 31, swizzle) = make_uint4(h[0], h[1], h[2], h[3]);
        }
    }
}

/* 32 keys x 16 rows: number i of tile nt is key 32 (w & 1) + (L & ~2) + (i & 2), row 16 (w >> 1) + 8 nt + (L & 2) + (i & 5). */
static __device__ __forceinline__ void scores(uint8_t *smem, float acc[2][8])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, r = (lane & 3) + (lane >> 4) * 4;
    uint8_t *k = smem + KV_AT + (w & 1) * 32 * 512, *q = smem + (w >> 1) * 16 * 512;
#pragma unroll
    for (int i = 0; i < 16; i++)
        acc[i / 8][i % 8] = 0.f;
#pragma unroll 4
    for (int c = 0; c < 32; c++) {
        uint4 a = *chunk(k, lane, c, k_swizzle(lane));
#pragma unroll
        for (int nt = 0; nt < 2; nt++) {
            uint4 b = *chunk(q, nt * 8 + r, c, r);
            lk_mma884_row_col(acc[nt], a.x, a.y, b.x, b.y);
            lk_mma884_row_col(acc[nt], a.z, a.w, b.z, b.w);
        }
    }
}

/* What a warp of the first product keeps of its rows; column j of a tile is number (j & 1) + 2 (j & 2) of 8. */
struct soft {
    float m[2][4], l[2][4];
};

static __device__ __forceinline__ void mask(const struct job &j, int kb, float acc[2][8])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
#pragma unroll
    for (int nt = 0; nt < 2; nt++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int n = (w >> 1) * 16 + nt * 8 + (lane & 2) + (i & 5), key = kb + (w & 1) * 32 + (lane & ~2) + (i & 2);
            int pos = j.pos0 + (j.row0 + n) / j.group;
            if (key > pos || (j.window > 0 && key < pos - j.window))
                acc[nt][i] = NO_SCORE;
        }
}

static __device__ __forceinline__ void maxima(const float acc[2][8], float *mx)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
#pragma unroll
    for (int nt = 0; nt < 2; nt++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i0 = (j & 1) + 2 * (j & 2);
            float x = fmaxf(acc[nt][i0], acc[nt][i0 + 2]);
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 1));
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 4));
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 8));
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 16));
            if (!(lane & ~2))
                mx[(w & 1) * 64 + (w >> 1) * 16 + nt * 8 + lane + i0] = x;
        }
}

/* Scores to weights, to shared memory as halves [key][row]; corrections of rows whose maximum moved. */
static __device__ __forceinline__ void weights(float acc[2][8], struct soft &s, uint8_t *smem)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    const float *mx = (const float *)(smem + MX_AT);
    float *corr = (float *)(smem + CORR_AT);
#pragma unroll
    for (int nt = 0; nt < 2; nt++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i0 = (j & 1) + 2 * (j & 2), n = (w >> 1) * 16 + nt * 8 + (lane & 2) + i0;
            float x = fmaxf(mx[n], mx[64 + n]), f = 1.f;
            if (x > s.m[nt][j] + ROOM) {
                f = lk_ex2(s.m[nt][j] - x);
                s.m[nt][j] = x;
            }
            if (!(w & 1) && !(lane & ~2))
                corr[n] = f;
            float base = (s.m[nt][j] == NO_SCORE ? 0.f : s.m[nt][j]) - SHIFT;
            acc[nt][i0] = lk_ex2(acc[nt][i0] - base);
            acc[nt][i0 + 2] = lk_ex2(acc[nt][i0 + 2] - base);
            s.l[nt][j] = __fmaf_rn(s.l[nt][j], f, acc[nt][i0] + acc[nt][i0 + 2]);
        }
        uint32_t *at = (uint32_t *)(smem + P_AT) + ((w & 1) * 32 + (lane & ~2)) * P_ROW + (w >> 1) * 8 + nt * 4 + (lane >> 1 & 1);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            at[2 * h] = lk_pack_h2(acc[nt][4 * h], acc[nt][4 * h + 1]);
            at[2 * P_ROW + 2 * h] = lk_pack_h2(acc[nt][4 * h + 2], acc[nt][4 * h + 3]);
        }
    }
}

/* Sums of 64 dims x 32 rows: o[j][nt][i] is dim 64 (w & 3) + 16 q + 8 u + 4 j + (L & 1) + (i & 2), row 32 (w >> 2) + 8 nt + (L & 2) + (i & 5). */
static __device__ __forceinline__ void values(uint8_t *smem, float o[2][4][8])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, c = lane & 3, ch = (w & 3) * 8 + (lane >> 2 & 3) * 2 + (lane >> 4);
    const uint32_t *ps = (const uint32_t *)(smem + P_AT) + c * P_ROW + (w >> 2) * 16 + (lane >> 4) * 2;
    const float *corr = (const float *)(smem + CORR_AT) + (w >> 2) * 32 + (lane & 2);
    bool moved = false;
    float f[4][4];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        f[i >> 2][i & 3] = corr[(i >> 2) * 8 + (i & 1) + 2 * (i & 2)];
        moved |= f[i >> 2][i & 3] != 1.f;
    }
    if (__any_sync(LK_FULL, moved))
#pragma unroll
        for (int i = 0; i < 64; i++)
            o[i >> 5][i >> 3 & 3][i & 7] *= f[i >> 3 & 3][(i & 1) + (i >> 1 & 2)];
#pragma unroll 4
    for (int t = 0; t < 16; t++) {
        uint4 a = *chunk(smem + KV_AT, 4 * t + c, ch, v_swizzle(c));
#pragma unroll
        for (int nt = 0; nt < 4; nt++) {
            uint2 b = *(const uint2 *)(ps + 4 * t * P_ROW + nt * 4);
            lk_mma884_col_row(o[0][nt], a.x, a.y, b.x, b.y);
            lk_mma884_col_row(o[1][nt], a.z, a.w, b.x, b.y);
        }
    }
}

/* Row sums meet in shared memory (where the maxima were); then each warp divides, gates and stores its dims and rows. */
static __device__ void finish(const struct lk_attn_params &p, const struct job &j, uint8_t *smem, struct soft &s, const float o[2][4][8])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    float *tot = (float *)(smem + MX_AT);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float l = s.l[i >> 2][i & 3];
        l += __shfl_xor_sync(LK_FULL, l, 1);
        l += __shfl_xor_sync(LK_FULL, l, 4);
        l += __shfl_xor_sync(LK_FULL, l, 8);
        l += __shfl_xor_sync(LK_FULL, l, 16);
        if (!(lane & ~2))
            tot[(w & 1) * 64 + (w >> 1) * 16 + (i >> 2) * 8 + lane + (i & 1) + 2 * (i & 2)] = l;
    }
    __syncthreads(); /* row sums written -> read */
    int dim = (w & 3) * 64 + (lane >> 2 & 3) * 16 + (lane >> 4) * 8 + (lane & 1);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int i0 = (i & 1) + 2 * (i & 2), n = (w >> 2) * 32 + (i >> 2) * 8 + (lane & 2) + i0;
        if (n >= j.rows)
            continue;
        size_t at = row_at(p, j, n);
        const float *gate = p.proj + at / p.n_q * p.ld + at % p.n_q * 512 + 256 + dim;
        float inv = 1.f / (tot[n] + tot[64 + n]);
#pragma unroll
        for (int h = 0; h < 4; h++) {
            int d = (h >> 1) * 4 + (h & 1) * 2;
            p.out[at * LK_HEAD + dim + d] = lk_to_half(o[h >> 1][i >> 2][i0 + 2 * (h & 1)] * inv / (1.f + __expf(-gate[d])));
        }
    }
}

template <int KIND> static __device__ __forceinline__ void prefill(const struct lk_attn_params &p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    struct job j;
    if (!job_find(p, &j))
        return;
    int first = j.pos0 + j.row0 / j.group;
    struct soft s;
    float o[2][4][8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        s.m[i >> 2][i & 3] = NO_SCORE;
        s.l[i >> 2][i & 3] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < 64; i++)
        o[i >> 5][i >> 3 & 3][i & 7] = 0.f;
    struct piece_regs<KIND> r;
    load_pieces<KIND>(r, p, j, j.pages[j.k0 >> 6], 0);
    load_q(p, j, smem);
#pragma unroll 1
    for (int kb = j.k0; kb < j.k1; kb += 64) {
        float acc[2][8];
        int page = j.pages[kb >> 6];
        store_pieces<KIND>(r, smem + KV_AT, j.k1 - kb, 0);
        __syncthreads(); /* K (and queries) written -> read */
        load_pieces<KIND>(r, p, j, page, 1);
        scores(smem, acc);
        if (kb + 63 > first || (j.window > 0 && kb < j.k1 - 1 - j.window))
            mask(j, kb, acc);
        maxima(acc, (float *)(smem + MX_AT));
        __syncthreads(); /* maxima written -> read; K read -> V takes its place */
        weights(acc, s, smem);
        store_pieces<KIND>(r, smem + KV_AT, j.k1 - kb, 1);
        __syncthreads(); /* V, weights, corrections written -> read */
        if (kb + 64 < j.k1)
            load_pieces<KIND>(r, p, j, j.pages[(kb + 64) >> 6], 0);
        values(smem, o);
        __syncthreads(); /* V read -> the next K takes its place */
    }
    finish(p, j, smem, s, o);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attn_prefill_i8(const struct lk_attn_params p) { prefill<LK_KV_I8>(p); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) attn_prefill_bf16(const struct lk_attn_params p) { prefill<LK_KV_BF16>(p); }
#endif
