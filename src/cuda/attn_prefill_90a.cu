/* Prefill attention for sm_90a: 128 query rows (token x group head, packed) of one KV head a block, pages of 64 keys.
 *
 * One warpgroup fills, two compute. The filler copies a page's codes ahead into its own slots, turns them into FP16 (code times
 * scale) and writes swizzled tiles; K and V have two tiles each. A computing warpgroup holds 64 rows: scores by 16 products
 * of Q (shared memory) with K, softmax in registers, then its 64x256 FP32 sums += weights (registers) x V. The products of
 * the sums and of the next page's scores run back to back while the other group is in its softmax.
 * Regime: more than 16 rows. FLOP: 4 * 256 a (query head row, key) pair; bytes are far below. */
#include "cuda/attn_shared.h"
#include "cuda/frag.cuh"
#include "cuda/wgmma.cuh"

#define TILE 32768u       /* 64 keys x 256 halves, 4 blocks of 64 dims */
#define BLOCK 8192u       /* 64 rows x 64 halves */
#define Q_AT 0u           /* 2 warpgroups x 64 rows x 256 */
#define K_AT 65536u       /* 2 tiles */
#define V_AT 131072u      /* 2 tiles */
#define RAW_AT 196608u    /* 16 slots of 16 bytes a filling thread */
#define BAR_AT 229376u    /* full K, free K, full V, free V: two each */
#define P_SHIFT 6.f

struct job {
    int row0, rows, pos0, kvh, group, i0; /* lane's first row, rows, position; first packed row of the block */
    int page_first, page_end, n_keys;     /* pages walked; keys that exist */
    const int32_t *pages;
};

static __device__ bool job_find(const struct lk_attn_params &p, struct job *j)
{
    const struct lk_lane &l = p.lanes[blockIdx.y];
    j->group = p.n_q / p.n_kv;
    j->kvh = blockIdx.x % p.n_kv;
    int tiles = gridDim.x / p.n_kv, tile = tiles - 1 - blockIdx.x / p.n_kv; /* the long ones first */
    j->i0 = tile * 128;
    if (j->i0 >= l.rows * j->group)
        return false;
    j->row0 = l.row0;
    j->rows = l.rows;
    j->pos0 = l.pos0;
    j->pages = p.pages + l.page0;
    j->n_keys = l.pos0 + l.rows;
    int first = l.pos0 + j->i0 / j->group, last = l.pos0 + min(j->i0 + 127, l.rows * j->group - 1) / j->group;
    j->page_first = p.window > 0 && first > p.window ? (first - p.window) / LK_PAGE : 0;
    j->page_end = last / LK_PAGE + 1;
    return true;
}

/* ---- the filling warpgroup ---- */

/* Chunk i of a thread is 16 codes: key 8 i + tid/16, dims 16 (tid%16) .. +15. */
struct fill_src {
    const uint8_t *codes[2]; /* K, V of the page, this thread's chunk 0 */
    const uint16_t *scales[2];
    int key0;
};

template <int KIND>
static __device__ __forceinline__ struct fill_src fill_at(const struct lk_attn_params &p, const struct job &j, int n, int tid)
{
    constexpr int E = KIND == LK_KV_I8 ? 1 : 2;
    size_t half = lk_kv_half_bytes((enum lk_kv_kind)KIND, p.n_kv), elems = (size_t)p.n_kv * LK_PAGE * LK_HEAD;
    const uint8_t *page = p.kv + (size_t)j.pages[n] * 2 * half;
    struct fill_src s;
    s.codes[0] = page + ((size_t)j.kvh * LK_PAGE * LK_HEAD + tid * 16) * E;
    s.codes[1] = s.codes[0] + half;
    s.scales[0] = (const uint16_t *)(page + elems) + (j.kvh * LK_PAGE + (tid >> 4)) * 4 + ((tid & 15) >> 2);
    s.scales[1] = (const uint16_t *)((const uint8_t *)s.scales[0] + half);
    s.key0 = n * LK_PAGE + (tid >> 4);
    return s;
}

static __device__ __forceinline__ void slots_issue(uint8_t *slots, const uint8_t *codes)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        lk_cp16(slots + i * 2048, codes + i * 2048);
    lk_cp_commit();
}

/* 16 FP16 values to a swizzled tile; odd blocks store their halves in the other order, which spreads the banks. */
static __device__ __forceinline__ void put16(uint32_t tile, int key, int c16, const uint32_t h[8])
{
    uint32_t row = tile + (uint32_t)(c16 >> 2) * BLOCK + (uint32_t)key * 128u;
    int odd = (c16 >> 2) & 1;
    uint32_t a = row + (uint32_t)((((c16 & 3) * 2 + odd) ^ (key & 7)) * 16);
    uint32_t b = row + (uint32_t)((((c16 & 3) * 2 + 1 - odd) ^ (key & 7)) * 16);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(odd ? h[4] : h[0]), "r"(odd ? h[5] : h[1]),
                 "r"(odd ? h[6] : h[2]), "r"(odd ? h[7] : h[3])
                 : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(b), "r"(odd ? h[0] : h[4]), "r"(odd ? h[1] : h[5]),
                 "r"(odd ? h[2] : h[6]), "r"(odd ? h[3] : h[7])
                 : "memory");
}

static __device__ __forceinline__ void fill_i8(uint32_t tile, const uint8_t *slots, const uint16_t sc[8], int tid, int n_left)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint4 w = *(const uint4 *)(slots + i * 2048);
        int key = 8 * i + (tid >> 4);
        uint32_t s = key < n_left ? sc[i] : 0u; /* beyond the last token lies anything, NaN too */
        s |= s << 16;
        uint32_t h[8];
        lk_i8_h2(w.x ^ 0x80808080u, &h[0], &h[1]);
        lk_i8_h2(w.y ^ 0x80808080u, &h[2], &h[3]);
        lk_i8_h2(w.z ^ 0x80808080u, &h[4], &h[5]);
        lk_i8_h2(w.w ^ 0x80808080u, &h[6], &h[7]);
#pragma unroll
        for (int k = 0; k < 8; k++)
            h[k] = h2_mul(h[k], s);
        put16(tile, key, tid & 15, h);
    }
}

static __device__ __forceinline__ void fill_bf16(uint32_t tile, const uint8_t *codes, int tid, int n_left)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int key = 8 * i + (tid >> 4);
        uint4 x = make_uint4(0, 0, 0, 0), y = x;
        if (key < n_left) {
            x = *(const uint4 *)(codes + i * 4096);
            y = *(const uint4 *)(codes + i * 4096 + 16);
        }
        uint32_t w[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
        for (int k = 0; k < 8; k++)
            w[k] = lk_pack_h2(lk_bf16_lo(w[k]), lk_bf16_hi(w[k]));
        put16(tile, key, tid & 15, w);
    }
}

template <int KIND> static __device__ __forceinline__ void fill(const struct lk_attn_params &p, const struct job &j, uint8_t *smem)
{
    int tid = threadIdx.x;
    uint32_t base = lk_smem(smem), bars = base + BAR_AT;
    uint8_t *slots = smem + RAW_AT + tid * 16;
    struct fill_src src = fill_at<KIND>(p, j, j.page_first, tid);
    uint16_t sc[2][8];
    if (KIND == LK_KV_I8)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            slots_issue(slots + h * 16384, src.codes[h]);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sc[h][i] = src.scales[h][i * 32];
        }
    for (int n = j.page_first, it = 0; n < j.page_end; n++, it++) {
        uint32_t st = it & 1, parity = ((it >> 1) & 1) ^ 1;
        struct fill_src next = src;
        if (n + 1 < j.page_end)
            next = fill_at<KIND>(p, j, n + 1, tid);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t tile = base + (h ? V_AT : K_AT) + st * TILE;
            bar_wait(bars + h * 32 + 16 + st * 8, parity);
            if (KIND == LK_KV_I8) {
                lk_cp_wait<1>();
                fill_i8(tile, slots + h * 16384, sc[h], tid, j.n_keys - n * LK_PAGE);
                slots_issue(slots + h * 16384, next.codes[h]); /* once too often at the end: the last page again */
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sc[h][i] = next.scales[h][i * 32];
            } else {
                fill_bf16(tile, src.codes[h], tid, j.n_keys - n * LK_PAGE);
            }
            wg_publish();
            bar_arrive(bars + h * 32 + st * 8);
        }
        src = next;
    }
    if (KIND == LK_KV_I8)
        lk_cp_wait<0>();
}

/* ---- the computing warpgroups ---- */

static __device__ void load_q(const struct lk_attn_params &p, const struct job &j, uint8_t *smem, int wg, int tid)
{
    uint8_t *dst = smem + Q_AT + wg * 32768;
    for (int i = tid; i < 2048; i += 128) {
        int r = i >> 5, c = i & 31, at = j.i0 + wg * 64 + r;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (at < j.rows * j.group) {
            size_t head = (size_t)(j.row0 + at / j.group) * p.n_q + j.kvh * j.group + at % j.group;
            v = *(const uint4 *)((const uint16_t *)p.q + head * LK_HEAD + c * 8);
        }
        *(uint4 *)(dst + (c >> 3) * BLOCK + r * 128 + (((c & 7) ^ (r & 7)) * 16)) = v;
    }
}

static __device__ __forceinline__ void issue_scores(float s[32], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        wg_mma_n64(s, wg_desc(q + (i >> 2) * BLOCK + (i & 3) * 32, 16, 1024),
                   wg_desc(k + (i >> 2) * BLOCK + (i & 3) * 32, 16, 1024), i > 0);
}

static __device__ __forceinline__ void mask(float s[32], int key0, int pos0, int pos1, int window, int c)
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int key = key0 + 8 * (i >> 2) + 2 * c + (i & 1), pos = i & 2 ? pos1 : pos0;
        if (key > pos || (window > 0 && key < pos - window))
            s[i] = NO_SCORE;
    }
}

/* Scores to weights (A fragments of the 4 k-steps); m, l of rows g and g + 8; the sums are rescaled when a maximum moved. */
static __device__ __forceinline__ void softmax(float s[32], uint32_t w[4][4], float m[2], float l[2], float o[128])
{
    float a[2] = {m[0], m[1]}, corr[2];
#pragma unroll
    for (int i = 0; i < 32; i++)
        a[(i >> 1) & 1] = fmaxf(a[(i >> 1) & 1], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        a[r] = fmaxf(a[r], __shfl_xor_sync(LK_FULL, a[r], 1));
        a[r] = fmaxf(a[r], __shfl_xor_sync(LK_FULL, a[r], 2));
        corr[r] = a[r] == m[r] ? 1.f : lk_ex2(m[r] - a[r]);
    }
    bool moved = a[0] != m[0] || a[1] != m[1];
    float b[2], sum[2] = {0.f, 0.f};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m[r] = a[r];
        b[r] = (a[r] == NO_SCORE ? 0.f : a[r]) - P_SHIFT;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = lk_ex2(s[i] - b[(i >> 1) & 1]);
        sum[(i >> 1) & 1] += s[i];
    }
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[t][i] = lk_pack_h2(s[8 * t + 2 * i], s[8 * t + 2 * i + 1]);
    l[0] = l[0] * corr[0] + sum[0];
    l[1] = l[1] * corr[1] + sum[1];
    if (__any_sync(LK_FULL, moved))
#pragma unroll
        for (int i = 0; i < 128; i++)
            o[i] *= corr[(i >> 1) & 1];
}

static __device__ __forceinline__ void store_row(const struct lk_attn_params &p, const struct job &j, int at, int r,
                                                 const float o[128], float l, int c)
{
    l += __shfl_xor_sync(LK_FULL, l, 1);
    l += __shfl_xor_sync(LK_FULL, l, 2);
    if (at >= j.rows * j.group)
        return;
    int row = j.row0 + at / j.group, head = j.kvh * j.group + at % j.group;
    float inv = 1.f / l;
    const float *gate = p.proj + (size_t)row * p.ld + (size_t)head * 512 + 256 + 2 * c;
    uint16_t *out = p.out + ((size_t)row * p.n_q + head) * LK_HEAD + 2 * c;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float2 g = *(const float2 *)(gate + 8 * i);
        *(uint32_t *)(out + 8 * i) = lk_pack_h2(o[4 * i + 2 * r] * inv / (1.f + __expf(-g.x)),
                                                o[4 * i + 2 * r + 1] * inv / (1.f + __expf(-g.y)));
    }
}

static __device__ __forceinline__ void compute(const struct lk_attn_params &p, const struct job &j, uint8_t *smem)
{
    int wg = (threadIdx.x >> 7) - 1, tid = threadIdx.x & 127, lane = tid & 31, c = lane & 3;
    uint32_t base = lk_smem(smem), bars = base + BAR_AT, q = base + Q_AT + wg * 32768u;
    int at0 = j.i0 + wg * 64 + 16 * (tid >> 5) + (lane >> 2), pos[2] = {j.pos0 + at0 / j.group, j.pos0 + (at0 + 8) / j.group};
    int low = j.pos0 + (j.i0 + wg * 64) / j.group, high = j.pos0 + (j.i0 + wg * 64 + 63) / j.group;
    load_q(p, j, smem, wg, tid);
    wg_publish();
    bar_warps(1 + wg, 128);
    float s[32], o[128], m[2] = {NO_SCORE, NO_SCORE}, l[2] = {0.f, 0.f};
    uint32_t w[4][4];
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0.f;
    bar_wait(bars, 0);
    wg_fence();
    issue_scores(s, q, base + K_AT);
    wg_commit();
    wg_wait();
    if (lane == 0)
        bar_arrive(bars + 16);
    for (int n = j.page_first, it = 0; n < j.page_end; n++, it++) {
        uint32_t st = it & 1, parity = (it >> 1) & 1, st1 = (it + 1) & 1, parity1 = ((it + 1) >> 1) & 1;
        if (n * LK_PAGE + 63 > low || (p.window > 0 && n * LK_PAGE < high - p.window))
            mask(s, n * LK_PAGE, pos[0], pos[1], p.window, c);
        softmax(s, w, m, l, o);
        bar_wait(bars + 32 + st * 8, parity);
        wg_fence();
#pragma unroll
        for (int t = 0; t < 4; t++)
            wg_mma_n256(o, w[t], wg_desc(base + V_AT + st * TILE + t * 2048u, BLOCK, 1024));
        wg_commit();
        bool more = n + 1 < j.page_end;
        if (more) {
            bar_wait(bars + st1 * 8, parity1);
            wg_fence();
            issue_scores(s, q, base + K_AT + st1 * TILE);
            wg_commit();
        }
        wg_wait();
        if (lane == 0) {
            bar_arrive(bars + 48 + st * 8);
            if (more)
                bar_arrive(bars + 16 + st1 * 8);
        }
    }
    store_row(p, j, at0, 0, o, l[0], c);
    store_row(p, j, at0 + 8, 1, o, l[1], c);
}

template <int KIND> static __device__ __forceinline__ void prefill(const struct lk_attn_params &p)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    struct job j;
    if (!job_find(p, &j))
        return;
    if (threadIdx.x == 0)
        for (int i = 0; i < 8; i++) /* full: every filling thread; free: every computing warp */
            bar_init(lk_smem(smem) + BAR_AT + i * 8, i & 2 ? 8 : 128);
    wg_publish();
    __syncthreads();
    if (threadIdx.x < 128) {
        wg_fewer_regs<72>();
        fill<KIND>(p, j, smem);
    } else {
        wg_more_regs<216>();
        compute(p, j, smem);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) attn_prefill_i8(const struct lk_attn_params p) { prefill<LK_KV_I8>(p); }
extern "C" __global__ void __launch_bounds__(384, 1) attn_prefill_bf16(const struct lk_attn_params p) { prefill<LK_KV_BF16>(p); }
