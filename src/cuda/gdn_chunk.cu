/* The chunked delta net for prefill: 64 rows at a time, tensor products instead of a row's recurrence. With G the summed decay
 * inside a chunk, the rows' updates d solve (I + A) d = beta (v - e^G S^T k), A_ij = beta_i e^(G_i - G_j) k_i.k_j below the diagonal:
 *   solve (all chunks at once): U = (I+A)^-1 beta v, W = -(I+A)^-1 beta e^G k, P_ij = e^(G_i - G_j) q_i.k_j, by substitution in FP32
 *   pass  (in order): d = U + W S; o = e^G q S + P d; S = e^G_end S + sum_j e^(G_end - G_j) k_j d_j
 *   norm  (all rows at once): the gated norm
 * Operands of products are split into two BF16 (16 bits of mantissa; three products each), sums and the state are FP32: the
 * result stays within 1e-4 of the recurrence. Regime: more than 16 rows, sm_80 and up. */
#include "cuda/frag.cuh"
#include "cuda/gdn_shared.h"

#define D LK_GDN_D
#define C LK_GDN_CHUNK

struct chunk {
    int lane, row, n; /* the lane, the chunk's first batch row, its rows */
};

/* Chunk ci of the step: lanes in order, 64 rows each. */
static __device__ bool chunk_find(const struct lk_gdn_params &p, int ci, struct chunk *c)
{
    for (int l = 0; l < p.n_lanes; l++) {
        int rows = p.lanes[l].rows, n = (rows + C - 1) / C;
        if (ci < n) {
            c->lane = l;
            c->row = p.lanes[l].row0 + ci * C;
            c->n = min(C, rows - ci * C);
            return true;
        }
        ci -= n;
    }
    return false;
}

static __device__ __forceinline__ int k_head(const struct lk_gdn_params &p, int h)
{
    return p.tiled ? h % p.hk : h / (p.hv / p.hk);
}

#if __CUDA_ARCH__ >= 800

/* Tiles of BF16 in shared memory: rows of WIDE values, 16-byte chunk c of row r at c ^ (r & 7). */
template <int WIDE> static __device__ __forceinline__ uint32_t at(uint32_t tile, int r, int c)
{
    return tile + (uint32_t)(r * WIDE * 2 + ((c ^ (r & 7)) * 16));
}

/* Fragments: A [m0..+16][k0..+16] or B of two column tiles [n0..+16][k0..+16], from tiles stored with k inside a row, or (_t)
 * with k across rows. */
template <int WIDE> static __device__ __forceinline__ void frag_a(uint32_t r[4], uint32_t tile, int m0, int k0)
{
    int i = threadIdx.x & 31;
    lk_ldmatrix(r, at<WIDE>(tile, m0 + ((i >> 3) & 1) * 8 + (i & 7), k0 / 8 + (i >> 4)));
}

template <int WIDE> static __device__ __forceinline__ void frag_b(uint32_t r[4], uint32_t tile, int n0, int k0)
{
    int i = threadIdx.x & 31;
    lk_ldmatrix(r, at<WIDE>(tile, n0 + (i >> 4) * 8 + (i & 7), k0 / 8 + ((i >> 3) & 1)));
}

template <int WIDE> static __device__ __forceinline__ void frag_a_t(uint32_t r[4], uint32_t tile, int m0, int k0)
{
    int i = threadIdx.x & 31;
    lk_ldmatrix_t(r, at<WIDE>(tile, k0 + (i >> 4) * 8 + (i & 7), m0 / 8 + ((i >> 3) & 1)));
}

template <int WIDE> static __device__ __forceinline__ void frag_b_t(uint32_t r[4], uint32_t tile, int n0, int k0)
{
    int i = threadIdx.x & 31;
    lk_ldmatrix_t(r, at<WIDE>(tile, k0 + ((i >> 3) & 1) * 8 + (i & 7), n0 / 8 + (i >> 4)));
}

/* d += (ah + al) (bh + bl), without the product of the two remainders */
static __device__ __forceinline__ void mma3(float *d, const uint32_t ah[4], const uint32_t al[4], const uint32_t *bh,
                                            const uint32_t *bl)
{
    lk_mma16816_bf16(d, al, bh[0], bh[1]);
    lk_mma16816_bf16(d, ah, bl[0], bl[1]);
    lk_mma16816_bf16(d, ah, bh[0], bh[1]);
}

/* Copies rows of split values (hi WIDE | lo WIDE, `stride` bytes apart) to two tiles; rows from n on are zero. */
template <int WIDE>
static __device__ __forceinline__ void copy_split(uint32_t hi, uint32_t lo, const void *src, size_t stride, int n)
{
    constexpr int PER = WIDE * 4 / 16;
#pragma unroll
    for (int i = threadIdx.x; i < C * PER; i += 256) {
        int r = i / PER, c = i % PER;
        const char *from = (const char *)src + (size_t)(r < n ? r : 0) * stride + c * 16;
        lk_cp16z(c < PER / 2 ? at<WIDE>(hi, r, c) : at<WIDE>(lo, r, c - PER / 2), from, r < n);
    }
}

static __device__ __forceinline__ void store_pair(uint32_t hi, uint32_t lo, float x, float y)
{
    uint32_t h, l;
    lk_split_bf16(x, y, &h, &l);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(hi), "r"(h) : "memory");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(lo), "r"(l) : "memory");
}

/* ---- solve ---- */

#define TILE 16384u /* 64 x 128 BF16 */
struct solve_smem {
    uint8_t kh[TILE], kl[TILE], qh[TILE], ql[TILE];
    float a[C][C + 4];
    float g[C], beta[C];
};

static __device__ void solve_gates(const struct lk_gdn_params &p, struct solve_smem *s, const struct chunk &c, int h, size_t slot)
{
    int lane = threadIdx.x;
    if (lane >= 32)
        return;
    size_t r0 = (size_t)(c.row + min(2 * lane, c.n - 1)) * p.rld + h, r1 = (size_t)(c.row + min(2 * lane + 1, c.n - 1)) * p.rld + h;
    float g0 = 2 * lane < c.n ? p.g[r0] : 0.f, g1 = 2 * lane + 1 < c.n ? p.g[r1] : 0.f, sum = g0 + g1;
    s->beta[2 * lane] = 2 * lane < c.n ? p.beta[r0] : 0.f;
    s->beta[2 * lane + 1] = 2 * lane + 1 < c.n ? p.beta[r1] : 0.f;
#pragma unroll
    for (int i = 1; i < 32; i <<= 1) {
        float o = __shfl_up_sync(LK_FULL, sum, i);
        if (lane >= i)
            sum += o;
    }
    s->g[2 * lane] = sum - g1;
    s->g[2 * lane + 1] = sum;
    p.gsum[slot * C + 2 * lane] = sum - g1;
    p.gsum[slot * C + 2 * lane + 1] = sum;
}

/* Rows 16 (w%4).., columns 32 (w/4)..: k k^T to s->a, q k^T to global, both decayed and masked. */
static __device__ void solve_scores(const struct lk_gdn_params &p, struct solve_smem *s, size_t slot)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, m0 = 16 * (w & 3), n0 = 32 * (w >> 2), g = lane >> 2, c = lane & 3;
    uint32_t kh = lk_smem(s->kh), kl = lk_smem(s->kl), qh = lk_smem(s->qh), ql = lk_smem(s->ql);
    float ka[4][4] = {}, qa[4][4] = {};
    if (n0 <= m0 + 15)
#pragma unroll
        for (int k0 = 0; k0 < D; k0 += 16) {
            uint32_t ah[4], al[4], bh[2][4], bl[2][4];
            frag_b<D>(bh[0], kh, n0, k0), frag_b<D>(bh[1], kh, n0 + 16, k0);
            frag_b<D>(bl[0], kl, n0, k0), frag_b<D>(bl[1], kl, n0 + 16, k0);
            frag_a<D>(ah, kh, m0, k0), frag_a<D>(al, kl, m0, k0);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma3(ka[j], ah, al, bh[j >> 1] + 2 * (j & 1), bl[j >> 1] + 2 * (j & 1));
            frag_a<D>(ah, qh, m0, k0), frag_a<D>(al, ql, m0, k0);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma3(qa[j], ah, al, bh[j >> 1] + 2 * (j & 1), bl[j >> 1] + 2 * (j & 1));
        }
    uint32_t *pm = (uint32_t *)(p.pm + slot * C * 2 * C);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int i = m0 + g + 4 * e, col = n0 + 8 * j + 2 * c;
            float d0 = col <= i ? expf(s->g[i] - s->g[col]) : 0.f, d1 = col < i ? expf(s->g[i] - s->g[col + 1]) : 0.f;
            s->a[i][col] = col < i ? s->beta[i] * d0 * ka[j][e] : 0.f;
            s->a[i][col + 1] = col + 1 < i ? s->beta[i] * d1 * ka[j][e + 1] : 0.f;
            uint32_t hi, lo;
            lk_split_bf16(d0 * qa[j][e], d1 * qa[j][e + 1], &hi, &lo);
            pm[i * C + col / 2] = hi;
            pm[i * C + C / 2 + col / 2] = lo;
        }
}

/* A thread solves one of the 256 right-hand sides: 128 columns of beta v, 128 of beta e^G k. */
static __device__ __forceinline__ void substitute(const struct solve_smem *s, float x[C])
{
#pragma unroll
    for (int i = 1; i < C; i++) {
        float acc[4] = {x[i], 0.f, 0.f, 0.f};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 a = *(const float4 *)&s->a[i][j];
            acc[0] = fmaf(-a.x, x[j], acc[0]);
            if (j + 1 < i)
                acc[1] = fmaf(-a.y, x[j + 1], acc[1]);
            if (j + 2 < i)
                acc[2] = fmaf(-a.z, x[j + 2], acc[2]);
            if (j + 3 < i)
                acc[3] = fmaf(-a.w, x[j + 3], acc[3]);
        }
        x[i] = (acc[0] + acc[1]) + (acc[2] + acc[3]);
    }
}

static __device__ __forceinline__ float bf16_at(const uint8_t *tile, int r, int col)
{
    return __uint_as_float((uint32_t)*(const uint16_t *)(tile + r * 256 + (((col >> 3) ^ (r & 7)) * 16) + (col & 7) * 2) << 16);
}

extern "C" __global__ void __launch_bounds__(256, 2) gdn_chunk_solve(const struct lk_gdn_params p)
{
    extern __shared__ __align__(128) uint8_t smem[];
    struct solve_smem *s = (struct solve_smem *)smem;
    struct chunk c;
    int h = blockIdx.y, kh = k_head(p, h), tid = threadIdx.x, col = tid & 127;
    if (!chunk_find(p, blockIdx.x, &c))
        return;
    size_t slot = (size_t)blockIdx.x * p.hv + h;
    copy_split<D>(lk_smem(s->kh), lk_smem(s->kl), p.k + (size_t)c.row * p.rld + kh * D, (size_t)p.rld * 4, c.n);
    copy_split<D>(lk_smem(s->qh), lk_smem(s->ql), p.q + ((size_t)c.row * p.hk + kh) * D, (size_t)p.hk * D * 4, c.n);
    lk_cp_commit();
    solve_gates(p, s, c, h, slot);
    lk_cp_wait<0>();
    __syncthreads();
    solve_scores(p, s, slot);
    float x[C];
    const float *v = p.v + (size_t)c.row * p.rld + h * D + col;
    if (tid < D)
#pragma unroll
        for (int i = 0; i < C; i++)
            x[i] = i < c.n ? s->beta[i] * v[(size_t)i * p.rld] : 0.f;
    else
#pragma unroll
        for (int i = 0; i < C; i++)
            x[i] = s->beta[i] * expf(s->g[i]) * (bf16_at(s->kh, i, col) + bf16_at(s->kl, i, col));
    __syncthreads();
    substitute(s, x);
    float *u = p.u + slot * C * D + col;
    uint16_t *w = p.w + slot * C * 2 * D + col;
    if (tid < D)
#pragma unroll
        for (int i = 0; i < C; i++)
            u[i * D] = x[i];
    else
#pragma unroll
        for (int i = 0; i < C; i++) {
            uint16_t hi = lk_to_bf16(-x[i]);
            w[i * 2 * D] = hi;
            w[i * 2 * D + D] = lk_to_bf16(-x[i] - __uint_as_float((uint32_t)hi << 16));
        }
}

/* ---- pass ---- */

#define V 64 /* value columns a block carries through the chunks: half a head */
struct pass_smem {
    uint8_t wh[TILE], wl[TILE], qh[TILE], ql[TILE], kh[TILE], kl[TILE]; /* [64][128] */
    uint8_t sh[TILE], sl[TILE];                                         /* state, transposed: [64 v][128 k] */
    uint8_t ph[8192], pl[8192], dh[8192], dl[8192], eh[8192], el[8192]; /* [64][64]; d, and d e^(G_end - G) */
    float g[C];
};

struct pass {
    uint32_t wh, wl, qh, ql, kh, kl, sh, sl, ph, pl, dh, dl, eh, el;
    int m0, n0, g, c; /* this warp's 16 rows and 32 columns of d and o; lane's row and column pair */
};

static __device__ __forceinline__ void pass_copy_wq(const struct lk_gdn_params &p, const struct pass &t, size_t slot, int row, int n, int kh)
{
    copy_split<D>(t.wh, t.wl, p.w + slot * C * 2 * D, 2 * D * 2, C);
    copy_split<D>(t.qh, t.ql, p.q + ((size_t)row * p.hk + kh) * D, (size_t)p.hk * D * 4, n);
    lk_cp_commit();
}

static __device__ __forceinline__ void pass_copy_pk(const struct lk_gdn_params &p, const struct pass &t, size_t slot, int row, int n, int kh)
{
    copy_split<C>(t.ph, t.pl, p.pm + slot * C * 2 * C, 2 * C * 2, C);
    copy_split<D>(t.kh, t.kl, p.k + (size_t)row * p.rld + kh * D, (size_t)p.rld * 4, n);
    lk_cp_commit();
}

/* d = U + W S and o = q S */
static __device__ __forceinline__ void pass_state(const struct pass &t, float d[4][4], float o[4][4])
{
#pragma unroll
    for (int k0 = 0; k0 < D; k0 += 16) {
        uint32_t ah[4], al[4], bh[2][4], bl[2][4];
        frag_b<D>(bh[0], t.sh, t.n0, k0), frag_b<D>(bh[1], t.sh, t.n0 + 16, k0);
        frag_b<D>(bl[0], t.sl, t.n0, k0), frag_b<D>(bl[1], t.sl, t.n0 + 16, k0);
        frag_a<D>(ah, t.wh, t.m0, k0), frag_a<D>(al, t.wl, t.m0, k0);
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma3(d[j], ah, al, bh[j >> 1] + 2 * (j & 1), bl[j >> 1] + 2 * (j & 1));
        frag_a<D>(ah, t.qh, t.m0, k0), frag_a<D>(al, t.ql, t.m0, k0);
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma3(o[j], ah, al, bh[j >> 1] + 2 * (j & 1), bl[j >> 1] + 2 * (j & 1));
    }
}

/* o += P d */
static __device__ __forceinline__ void pass_inside(const struct pass &t, float o[4][4])
{
#pragma unroll
    for (int k0 = 0; k0 < C; k0 += 16) {
        uint32_t ah[4], al[4], bh[2][4], bl[2][4];
        frag_a<C>(ah, t.ph, t.m0, k0), frag_a<C>(al, t.pl, t.m0, k0);
        frag_b_t<C>(bh[0], t.dh, t.n0, k0), frag_b_t<C>(bh[1], t.dh, t.n0 + 16, k0);
        frag_b_t<C>(bl[0], t.dl, t.n0, k0), frag_b_t<C>(bl[1], t.dl, t.n0 + 16, k0);
#pragma unroll
        for (int j = 0; j < 4; j++)
            mma3(o[j], ah, al, bh[j >> 1] + 2 * (j & 1), bl[j >> 1] + 2 * (j & 1));
    }
}

/* S^T += e^T k: 16 value rows, 64 key columns a warp */
static __device__ __forceinline__ void pass_update(const struct pass &t, float S[8][4])
{
    int n0 = 2 * t.n0;
#pragma unroll
    for (int k0 = 0; k0 < C; k0 += 16) {
        uint32_t ah[4], al[4];
        frag_a_t<V>(ah, t.eh, t.m0, k0), frag_a_t<V>(al, t.el, t.m0, k0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t bh[4], bl[4];
            frag_b_t<D>(bh, t.kh, n0 + 16 * j, k0);
            frag_b_t<D>(bl, t.kl, n0 + 16 * j, k0);
            mma3(S[2 * j], ah, al, bh, bl);
            mma3(S[2 * j + 1], ah, al, bh + 2, bl + 2);
        }
    }
}

static __device__ __forceinline__ void state_put(const struct pass &t, const float S[8][4])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int v = t.m0 + t.g + 4 * e, k = 2 * t.n0 + 8 * j;
            uint32_t off = at<D>(0, v, k / 8) + 4 * t.c;
            store_pair(t.sh + off, t.sl + off, S[j][e], S[j][e + 1]);
        }
}

static __device__ __forceinline__ void delta_put(const struct pass &t, const float *G, float d[4][4])
{
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        int i = t.m0 + t.g + 4 * e;
        float f = expf(G[C - 1] - G[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t off = at<V>(0, i, t.n0 / 8 + j) + 4 * t.c;
            store_pair(t.dh + off, t.dl + off, d[j][e], d[j][e + 1]);
            store_pair(t.eh + off, t.el + off, f * d[j][e], f * d[j][e + 1]);
        }
    }
}

static __device__ __forceinline__ float *state_at(const struct lk_gdn_params &p, const struct pass &t, int slot, int h, int v0, int j, int i)
{
    int v = v0 + t.m0 + t.g + 8 * (i >> 1), k = 2 * t.n0 + 8 * j + 2 * t.c + (i & 1);
    return p.state + (((size_t)slot * p.hv + h) * D + k) * D + v;
}

extern "C" __global__ void __launch_bounds__(256, 1) gdn_chunk_pass(const struct lk_gdn_params p)
{
    extern __shared__ __align__(128) uint8_t smem[];
    struct pass_smem *s = (struct pass_smem *)smem;
    int h = blockIdx.x >> 1, v0 = (blockIdx.x & 1) * V, kh = k_head(p, h), w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const struct lk_lane l = p.lanes[blockIdx.y];
    int ci = 0, n_chunks = (l.rows + C - 1) / C;
    for (int i = 0; i < (int)blockIdx.y; i++)
        ci += (p.lanes[i].rows + C - 1) / C;
    if (n_chunks == 0)
        return;
    struct pass t = {lk_smem(s->wh), lk_smem(s->wl), lk_smem(s->qh), lk_smem(s->ql), lk_smem(s->kh), lk_smem(s->kl), lk_smem(s->sh),
                     lk_smem(s->sl), lk_smem(s->ph), lk_smem(s->pl), lk_smem(s->dh), lk_smem(s->dl), lk_smem(s->eh), lk_smem(s->el),
                     16 * (w & 3), 32 * (w >> 2), lane >> 2, lane & 3};
    size_t slot = (size_t)ci * p.hv + h;
    pass_copy_wq(p, t, slot, l.row0, min(C, l.rows), kh);
    pass_copy_pk(p, t, slot, l.row0, min(C, l.rows), kh);
    float S[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            S[j][i] = *state_at(p, t, l.slot, h, v0, j, i);
    state_put(t, S);
    for (int n = 0; n < n_chunks; n++, slot += p.hv) {
        float *u = p.u + slot * C * D + v0 + t.n0 + 2 * t.c, d[4][4], o[4][4] = {};
        int row = l.row0 + (n + 1) * C, left = min(C, l.rows - (n + 1) * C);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                float2 x = *(const float2 *)(u + (t.m0 + t.g + 4 * e) * D + 8 * j);
                d[j][e] = x.x;
                d[j][e + 1] = x.y;
            }
        if (threadIdx.x < C)
            s->g[threadIdx.x] = p.gsum[slot * C + threadIdx.x];
        lk_cp_wait<1>();
        __syncthreads();
        pass_state(t, d, o);
        delta_put(t, s->g, d);
#pragma unroll
        for (int i = 0; i < 16; i++)
            o[i >> 2][i & 3] *= expf(s->g[t.m0 + t.g + 8 * ((i >> 1) & 1)]);
        float end = expf(s->g[C - 1]);
        lk_cp_wait<0>();
        __syncthreads();
        if (left > 0)
            pass_copy_wq(p, t, slot + p.hv, row, left, kh);
        pass_inside(t, o);
#pragma unroll
        for (int i = 0; i < 32; i++)
            S[i >> 2][i & 3] *= end;
        pass_update(t, S);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(float2 *)(u + (t.m0 + t.g + 4 * e) * D + 8 * j) = make_float2(o[j][e], o[j][e + 1]);
        state_put(t, S);
        __syncthreads();
        if (left > 0)
            pass_copy_pk(p, t, slot + p.hv, row, left, kh);
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            *state_at(p, t, l.slot, h, v0, j, i) = S[j][i];
}

/* ---- norm: a block takes a chunk of one head, a warp 8 rows ---- */

extern "C" __global__ void __launch_bounds__(256) gdn_chunk_norm(const struct lk_gdn_params p)
{
    struct chunk c;
    int h = blockIdx.y, w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (!chunk_find(p, blockIdx.x, &c))
        return;
    const float *u = p.u + ((size_t)blockIdx.x * p.hv + h) * C * D;
    float4 nw = *(const float4 *)(p.norm_w + 4 * lane);
    for (int i = w; i < c.n; i += 8) {
        float4 o = *(const float4 *)(u + i * D + 4 * lane);
        const float *zp = p.proj + (size_t)(c.row + i) * p.ld + (size_t)(2 * p.hk + p.hv + h) * D + 4 * lane;
        float4 z = p.ld & 3 ? make_float4(zp[0], zp[1], zp[2], zp[3]) : *(const float4 *)zp;
        float f = rsqrtf(lk_warp_sum(fmaf(o.w, o.w, fmaf(o.z, o.z, fmaf(o.y, o.y, o.x * o.x)))) * (1.f / D) + p.eps);
        float x = nw.x * o.x * f * (z.x / (1.f + __expf(-z.x))), y = nw.y * o.y * f * (z.y / (1.f + __expf(-z.y)));
        float a = nw.z * o.z * f * (z.z / (1.f + __expf(-z.z))), b = nw.w * o.w * f * (z.w / (1.f + __expf(-z.w)));
        *(uint2 *)(p.out + ((size_t)(c.row + i) * p.hv + h) * D + 4 * lane) = make_uint2(lk_pack_h2(x, y), lk_pack_h2(a, b));
    }
}

#endif
