/* Decode attention below sm_80, over INT8 and BF16 pages: m8n8k4 with keys on the wide side.
 *
 * A block of 4 warps takes one KV head, up to 4 token rows (times the query group: the columns, in tiles of 8) and one split of the
 * key axis, 32 keys a step. Warp w owns dims 64w..64w+63, one scale group, in both products:
 *   S^T = K Q^T: lane L holds key L, its 64 codes come from memory straight into registers and enter as exact integers; the K scale
 *   multiplies the FP32 sum; the four warps' sums meet in shared memory and every warp adds them in the same order.
 *   O^T = V^T P: lane (q = L>>2&3, c = L&3, u = L>>4) holds dims 16q+8u..+7 of keys 8c..8c+7; the V scale is folded into the weights.
 * Nothing of K or V is staged: the registers of a step are refilled as soon as its product has read them, K behind the softmax and the
 * second product, V behind the next step's first. One barrier a step (two for 4 tiles, whose exchange has room for one buffer only).
 * The maximum of a column is moved only when a score exceeds it by ROOM, which is rare; a column decides from its own scores alone, so that a
 * row's bits do not depend on its neighbours. Regime: T <= 16. Bytes: the cache once, 2112 a token at 4 KV heads. */
#include "cuda/attn_task.cuh"
#include "cuda/frag.cuh"

#if __CUDA_ARCH__ < 800

#define THREADS 128
#define STEP 32
#define ROOM 4.f  /* log2 units that a score may exceed the maximum in use */
#define SHIFT 4.f /* weights are at most 2^(ROOM + SHIFT): times any V scale below 255 inside FP16, and the small ones normal */
#define P_ROW 36  /* words a pair of columns: 32 keys and 4 that spread the banks */

/* Dynamic shared memory: queries as B fragments | partial scores, 1 or 2 buffers | weights of each warp */
template <int NT> struct smem_map {
    static constexpr int buffers = NT < 4 ? 2 : 1;
    static constexpr int x = NT * 4096;
    static constexpr int p = x + buffers * NT * 4096;
    static_assert(p + NT * 4 * 4 * P_ROW * 4 <= LK_ATTN_DECODE_70_SMEM(NT), "attn_shared.h says the same");
};

/* One step of K and V in registers, and the scales of the keys whose scores this lane gets: (L & ~2) and the second after it. */
template <int KIND> struct step_regs {
    static constexpr int E = geom<KIND>::elem;
    uint4 k[4 * E];
    uint2 v[8 * E];
    uint16_t ks[2], vs[2];
};

/* Queries to B fragments: piece (8 dims), tile, column: 16 bytes. */
template <int NT> static __device__ void load_q(const struct lk_attn_params &p, const struct task &t, uint4 *qs)
{
    int group = p.n_q / p.n_kv;
    for (int i = threadIdx.x; i < 32 * NT * 8; i += THREADS) {
        int nt = (i >> 3) % NT, n = nt * 8 + (i & 7), piece = (i >> 3) / NT;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (n < t.cols) {
            size_t at = ((size_t)(t.row0 + n / group) * p.n_q + t.kvh * group + n % group) * LK_HEAD + piece * 8;
            v = *(const uint4 *)((const uint16_t *)p.q + at);
        }
        qs[i] = v;
    }
}

template <int KIND> static __device__ __forceinline__ void load_k(struct step_regs<KIND> &r, const struct page_ptr &pg, int tok)
{
    constexpr int E = geom<KIND>::elem;
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    const uint4 *src = (const uint4 *)(pg.k + (tok + lane) * geom<KIND>::row + w * 64 * E);
#pragma unroll
    for (int i = 0; i < 4 * E; i++)
        r.k[i] = src[i];
    if (KIND == LK_KV_I8) {
        const uint16_t *ks = pg.ks + (tok + (lane & ~2)) * 4 + w;
        r.ks[0] = ks[0];
        r.ks[1] = ks[8];
    }
}

template <int KIND> static __device__ __forceinline__ void load_v(struct step_regs<KIND> &r, const struct page_ptr &pg, int tok)
{
    constexpr int E = geom<KIND>::elem;
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    int at = (w * 64 + (lane >> 2 & 3) * 16 + (lane >> 4) * 8) * E;
    const uint8_t *src = pg.v + (tok + (lane & 3) * 8) * geom<KIND>::row + at;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (KIND == LK_KV_I8) {
            r.v[i] = *(const uint2 *)(src + i * geom<KIND>::row);
        } else {
            uint4 x = *(const uint4 *)(src + i * geom<KIND>::row);
            r.v[(2 * i) % (8 * E)] = make_uint2(x.x, x.y);
            r.v[(2 * i + 1) % (8 * E)] = make_uint2(x.z, x.w);
        }
    }
    if (KIND == LK_KV_I8) {
        const uint16_t *vs = pg.vs + (tok + (lane & ~2)) * 4 + w;
        r.vs[0] = vs[0];
        r.vs[1] = vs[8];
    }
}

static __device__ __forceinline__ void bf16_h2(uint32_t x, uint32_t y, uint32_t *lo, uint32_t *hi)
{
    *lo = lk_pack_h2(lk_bf16_lo(x), lk_bf16_hi(x));
    *hi = lk_pack_h2(lk_bf16_lo(y), lk_bf16_hi(y));
}

/* This warp's part of the scores of 32 keys: 8 numbers a lane and tile, number i of key (L & ~2) + (i & 2), column (L & 2) + (i & 5). */
template <int KIND, int NT>
static __device__ __forceinline__ void scores(const struct step_regs<KIND> &r, const uint4 *qs, float acc[NT][8])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    const uint4 *qf = qs + w * 8 * NT * 8 + (lane & 3) + (lane >> 4) * 4;
    const uint32_t *kw = (const uint32_t *)r.k;
#pragma unroll
    for (int i = 0; i < NT * 8; i++)
        acc[i / 8][i % 8] = 0.f;
#pragma unroll
    for (int pr = 0; pr < 8; pr++) {
        uint32_t a[4];
        if (KIND == LK_KV_I8) {
            lk_i8_h2(kw[2 * pr] ^ 0x80808080u, &a[0], &a[1]);
            lk_i8_h2(kw[2 * pr + 1] ^ 0x80808080u, &a[2], &a[3]);
        } else {
            constexpr int all = 16 * geom<KIND>::elem;
            bf16_h2(kw[(4 * pr) % all], kw[(4 * pr + 1) % all], &a[0], &a[1]);
            bf16_h2(kw[(4 * pr + 2) % all], kw[(4 * pr + 3) % all], &a[2], &a[3]);
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            uint4 b = qf[(pr * NT + nt) * 8];
            lk_mma884_row_col(acc[nt], a[0], a[1], b.x, b.y);
            lk_mma884_row_col(acc[nt], a[2], a[3], b.z, b.w);
        }
    }
    if (KIND == LK_KV_I8) {
        float s0 = lk_half(r.ks[0]), s1 = lk_half(r.ks[1]);
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                acc[nt][i] *= i & 2 ? s1 : s0;
    }
}

/* The four warps' sums, added in the order of the warps, in every warp. xs: [warp][tile][half][lane] of 16 bytes. */
template <int NT> static __device__ __forceinline__ void exchange(float acc[NT][8], float4 *xs)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        xs[(w * NT + nt) * 64 + lane] = make_float4(acc[nt][0], acc[nt][1], acc[nt][2], acc[nt][3]);
        xs[(w * NT + nt) * 64 + 32 + lane] = make_float4(acc[nt][4], acc[nt][5], acc[nt][6], acc[nt][7]);
    }
    __syncthreads(); /* partial scores written -> read by all */
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float4 *x = xs + nt * 64 + h * 32 + lane;
            float4 a = x[0], b = x[NT * 64], c = x[2 * NT * 64], d = x[3 * NT * 64];
            acc[nt][4 * h] = ((a.x + b.x) + c.x) + d.x;
            acc[nt][4 * h + 1] = ((a.y + b.y) + c.y) + d.y;
            acc[nt][4 * h + 2] = ((a.z + b.z) + c.z) + d.z;
            acc[nt][4 * h + 3] = ((a.w + b.w) + c.w) + d.w;
        }
    if (smem_map<NT>::buffers == 1)
        __syncthreads(); /* read -> written again in the next step */
}

template <int NT> static __device__ __forceinline__ void mask(const struct task &t, int group, int kb, float acc[NT][8])
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!sees(t, group, nt * 8 + (lane & 2) + (i & 5), kb + (lane & ~2) + (i & 2)))
                acc[nt][i] = NO_SCORE;
}

/* Column j (0..3) of a lane and tile is number (j & 1) + 2 (j & 2) of its 8; lanes that differ in bits 0, 2, 3, 4 share it. */
template <int NT> struct sums {
    float m[NT][4], l[NT][4], o[NT][2][8];
};

/* Moves the maxima of columns that outgrew theirs. Rare. */
template <int NT> static __device__ __forceinline__ void move_maxima(struct sums<NT> &s, const float acc[NT][8])
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i0 = (j & 1) + 2 * (j & 2);
            float x = fmaxf(acc[nt][i0], acc[nt][i0 + 2]);
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 1));
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 4));
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 8));
            x = fmaxf(x, __shfl_xor_sync(LK_FULL, x, 16));
            if (!(x > s.m[nt][j] + ROOM))
                continue;
            float corr = lk_ex2(s.m[nt][j] - x);
            s.m[nt][j] = x;
            s.l[nt][j] *= corr;
#pragma unroll
            for (int h = 0; h < 4; h++)
                s.o[nt][h >> 1][i0 + 2 * (h & 1)] *= corr;
        }
}

/* Scores to weights, in place; their sums; and, scaled by V's scales, to shared memory as halves: [pair of columns][key]. */
template <int KIND, int NT>
static __device__ __forceinline__ void weights(struct sums<NT> &s, float acc[NT][8], float v0, float v1, uint32_t *ps)
{
    int lane = threadIdx.x & 31;
    bool move = false;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            move |= acc[nt][i] > s.m[nt][(i & 1) + (i >> 1 & 2)] + ROOM;
    if (__any_sync(LK_FULL, move))
        move_maxima<NT>(s, acc);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float m = s.m[nt][(i & 1) + (i >> 1 & 2)];
            acc[nt][i] = lk_ex2(acc[nt][i] - ((m == NO_SCORE ? 0.f : m) - SHIFT));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i0 = (j & 1) + 2 * (j & 2);
            s.l[nt][j] += acc[nt][i0] + acc[nt][i0 + 2];
        }
        uint32_t *at = ps + (nt * 4 + (lane >> 1 & 1)) * P_ROW + (lane & ~2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            at[2 * h * P_ROW] = lk_pack_h2(acc[nt][4 * h] * v0, acc[nt][4 * h + 1] * v0);
            at[2 * h * P_ROW + 2] = lk_pack_h2(acc[nt][4 * h + 2] * v1, acc[nt][4 * h + 3] * v1);
        }
    }
    __syncwarp(); /* the warp's weights written -> read as fragments */
}

template <int W> static __device__ __forceinline__ void words(uint32_t *to, const uint32_t *from)
{
    if (W == 4) {
        uint4 x = *(const uint4 *)from;
        to[0] = x.x, to[1] = x.y, to[2 % W] = x.z, to[3 % W] = x.w;
    } else {
        uint2 x = *(const uint2 *)from;
        to[0] = x.x, to[1] = x.y;
    }
}

/* o += V^T P over 32 keys: product t takes keys t, 8 + t, 16 + t, 24 + t. n_valid: keys of the step that exist. */
template <int KIND, int NT>
static __device__ __forceinline__ void values(struct sums<NT> &s, const struct step_regs<KIND> &r, const uint32_t *ps, int n_valid)
{
    int lane = threadIdx.x & 31, c = lane & 3;
    const uint32_t *pf = ps + (lane >> 4) * 2 * P_ROW + c * 8;
    constexpr int W = KIND == LK_KV_BF16 && NT == 4 ? 2 : 4; /* products whose weights are read at once */
#pragma unroll
    for (int h = 0; h < 8 / W; h++) {
        uint32_t b0[NT][W], b1[NT][W];
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            words<W>(b0[nt], pf + nt * 4 * P_ROW + W * h);
            words<W>(b1[nt], pf + (nt * 4 + 1) * P_ROW + W * h);
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            int t = W * h + i;
            uint32_t a[4];
            if (KIND == LK_KV_I8) {
                lk_i8_h2(r.v[t].x ^ 0x80808080u, &a[0], &a[1]);
                lk_i8_h2(r.v[t].y ^ 0x80808080u, &a[2], &a[3]);
            } else {
                constexpr int all = 8 * geom<KIND>::elem;
                bool there = c * 8 + t < n_valid; /* beyond the lane's last token lies anything, NaN too */
                uint2 x = r.v[(2 * t) % all], y = r.v[(2 * t + 1) % all];
                bf16_h2(there ? x.x : 0, there ? x.y : 0, &a[0], &a[1]);
                bf16_h2(there ? y.x : 0, there ? y.y : 0, &a[2], &a[3]);
            }
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                lk_mma884_col_row(s.o[nt][0], a[0], a[1], b0[nt][i], b1[nt][i]);
                lk_mma884_col_row(s.o[nt][1], a[2], a[3], b0[nt][i], b1[nt][i]);
            }
        }
    }
}

/* The block's sums leave as a partial of its split. */
template <int NT>
static __device__ void finish(const struct lk_attn_params &p, const struct task &t, int split, struct sums<NT> &s)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, group = p.n_q / p.n_kv;
    int dim = w * 64 + (lane >> 2 & 3) * 16 + (lane >> 4) * 8 + (lane & 1);
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i0 = (j & 1) + 2 * (j & 2), n = nt * 8 + (lane & 2) + i0;
            float l = s.l[nt][j];
            l += __shfl_xor_sync(LK_FULL, l, 1);
            l += __shfl_xor_sync(LK_FULL, l, 4);
            l += __shfl_xor_sync(LK_FULL, l, 8);
            l += __shfl_xor_sync(LK_FULL, l, 16);
            if (n >= t.cols)
                continue;
            size_t at = ((size_t)(t.row0 + n / group) * p.n_q + t.kvh * group + n % group) * p.n_splits + split;
#pragma unroll
            for (int h = 0; h < 4; h++)
                p.part[at * LK_HEAD + dim + (h >> 1) * 4 + (h & 1) * 2] = s.o[nt][h >> 1][i0 + 2 * (h & 1)];
            if (w == 0 && !(lane & ~2))
                *(float2 *)(p.ml + at * 2) = make_float2(s.m[nt][j], l);
        }
}

template <int KIND, int NT>
static __device__ __forceinline__ void walk(const struct lk_attn_params &p, const struct task &t, int split, uint8_t *smem)
{
    typedef smem_map<NT> map;
    constexpr bool late = KIND == LK_KV_BF16 && NT == 4; /* all 255 registers are in use there: fewer live at once */
    int group = p.n_q / p.n_kv, last = t.k1 - 1, key0 = (threadIdx.x & 31) & ~2;
    uint4 *qs = (uint4 *)smem;
    uint32_t *ps = (uint32_t *)(smem + map::p) + (threadIdx.x >> 5) * NT * 4 * P_ROW;
    struct sums<NT> s;
#pragma unroll
    for (int i = 0; i < NT * 4; i++) {
        s.m[i / 4][i % 4] = NO_SCORE;
        s.l[i / 4][i % 4] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < NT * 16; i++)
        s.o[i / 16][i / 8 % 2][i % 8] = 0.f;
    struct step_regs<KIND> r;
    struct page_ptr pg = page_at<KIND>(p, t, t.pages[t.k0 >> 6]);
    int next = t.pages[min(t.k0 + 64, last) >> 6];
    load_k<KIND>(r, pg, 0);
    load_v<KIND>(r, pg, 0);
    load_q<NT>(p, t, qs);
    __syncthreads(); /* queries written -> read as fragments */
#pragma unroll 1
    for (int kb = t.k0, buf = 0; kb < t.k1; kb += STEP, buf ^= map::buffers - 1) {
        int n_valid = t.pos0 + t.nr - kb, kn = kb + STEP; /* keys of this step that exist, for this block */
        bool more = kn < t.k1;
        float acc[NT][8];
        scores<KIND, NT>(r, qs, acc);
        if (more && !(kn & 32)) {
            pg = page_at<KIND>(p, t, next);
            next = t.pages[min(kn + 64, last) >> 6];
        }
        if (more && !late)
            load_k<KIND>(r, pg, kn & 32);
        exchange<NT>(acc, (float4 *)(smem + map::x) + buf * NT * 256);
        if (kb + STEP - 1 > t.pos0 || (t.window > 0 && kb < t.pos0 + t.nr - 1 - t.window))
            mask<NT>(t, group, kb, acc);
        float v0 = 1.f, v1 = 1.f;
        if (KIND == LK_KV_I8) {
            v0 = key0 < n_valid ? lk_half(r.vs[0]) : 0.f;
            v1 = key0 + 2 < n_valid ? lk_half(r.vs[1]) : 0.f;
        }
        weights<KIND, NT>(s, acc, v0, v1, ps);
        values<KIND, NT>(s, r, ps, n_valid);
        if (more && late)
            load_k<KIND>(r, pg, kn & 32);
        if (more)
            load_v<KIND>(r, pg, kn & 32);
    }
    finish<NT>(p, t, split, s);
}

template <int KIND, int NT> static __device__ __forceinline__ void decode(const struct lk_attn_params &p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    struct task t;
    int split;
    if (!task_find(p, &t, &split))
        return;
    constexpr bool full = KIND == LK_KV_BF16 && NT == 4; /* its registers are so few that other walks beside it would spill */
    if (NT == 1 || t.cols <= 8)
        walk<KIND, 1>(p, t, split, smem);
    else if (!full && (NT == 2 || t.cols <= 16))
        walk<KIND, NT < 2 || full ? NT : 2>(p, t, split, smem);
    else if (!full && (NT == 3 || t.cols <= 24))
        walk<KIND, NT < 3 || full ? NT : 3>(p, t, split, smem);
    else
        walk<KIND, NT>(p, t, split, smem);
}

/* The tile counts compiled: columns = min(rows, 4) * group, 8 a tile. */
#define DECODE(name, kind, nt, per_sm)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, per_sm) name(const struct lk_attn_params p)       \
    {                                                                                                       \
        decode<kind, nt>(p);                                                                                \
    }
DECODE(attn_decode_i8_1, LK_KV_I8, 1, 4)
DECODE(attn_decode_i8_2, LK_KV_I8, 2, 3)
DECODE(attn_decode_i8_3, LK_KV_I8, 3, 2)
DECODE(attn_decode_i8_4, LK_KV_I8, 4, 2)
DECODE(attn_decode_bf16_1, LK_KV_BF16, 1, 3)
DECODE(attn_decode_bf16_2, LK_KV_BF16, 2, 2)
DECODE(attn_decode_bf16_3, LK_KV_BF16, 3, 2)
DECODE(attn_decode_bf16_4, LK_KV_BF16, 4, 2)
#endif
