/* Decode attention over INT8 and BF16 pages, and the merge of its partial sums.
 *
 * A block of 4 warps takes one KV head, up to 4 token rows (times the query group: the columns, in tiles of 8) and one
 * split of the key axis, a page of 64 keys at a time. Keys lie on the wide side of the tensor op: warp w scores keys
 * 16w..16w+15 over all 256 dims, codes going from the ring straight into fragments as exact integers; the K scale of a group
 * multiplies its FP32 partial score. Maxima and weights pass through shared memory (2 barriers a page); then warp w
 * adds up 64 output dims (one V scale group, folded into the weights) over the 64 keys in FP32. A warp copies the
 * whole rows of its 16 keys (full lines: half lines made the L2 the limit at 3.5 TB/s): K into its own tile, refilled as soon as it has
 * been scored, V into one of two shared tiles, a page ahead. 16-byte chunks are swizzled so that fragments read without conflicts.
 * Every number of a row is computed in an order that only its own position decides: batch-invariant.
 * Regime: T <= 16 split (bytes: the cache once, 2112 a token at 4 KV heads); direct: any T, one block walks all keys. sm_80 and up;
 * attn_decode_70.cu holds the kernels of the same names for older cards. */
#include "cuda/attn_task.cuh"
#include "cuda/frag.cuh"
#include "cuda/pdl.cuh"

#define THREADS 128
#define P_SHIFT 6.f /* weights are at most 2^6: after the V scale they stay normal in FP16 */

/* Shared memory: K tile | V tiles (2) | queries as B fragments | weights as B fragments | maxima | V scales, sums */
template <int KIND, int NT> struct smem_map {
    static constexpr int v = geom<KIND>::tile;
    static constexpr int q = 3 * geom<KIND>::tile;
    static constexpr int p = q + NT * 4096;
    static constexpr int mx = p + NT * 1024;
    static constexpr int vs = mx + 4 * NT * 8 * 4;
    static_assert(vs + 4 * 64 * 2 == 3 * geom<KIND>::tile + NT * 5248 + 512, "lk_attn_decode_smem says the same");
};

#if __CUDA_ARCH__ >= 800

/* Queries to B fragments: [group of 64 dims][k-step pair][tile][lane] 16 bytes = dims 16c + 8 pair .. + 7. */
template <int NT> static __device__ void load_q(const struct lk_attn_params &p, const struct task &t, uint8_t *smem)
{
    int group = p.n_q / p.n_kv;
    for (int i = threadIdx.x; i < 8 * NT * 32; i += THREADS) {
        int lane = i & 31, nt = (i >> 5) % NT, gp = (i >> 5) / NT;
        int n = nt * 8 + (lane >> 2), dim = (gp >> 1) * 64 + (lane & 3) * 16 + (gp & 1) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (n < t.cols) {
            size_t at = ((size_t)(t.row0 + n / group) * p.n_q + t.kvh * group + n % group) * LK_HEAD + dim;
            v = *(const uint4 *)((const uint16_t *)p.q + at);
        }
        ((uint4 *)smem)[i] = v;
    }
}

/* Starts the copies of this warp's 16 keys, whole rows; chunk c of key r goes to c ^ swizzle(r): 4 (I8) or 1 (BF16) for odd keys
 * of K, twice bits 1..2 of the key for V. */
template <int KIND, bool V>
static __device__ __forceinline__ void copy_rows(uint8_t *tile, const uint8_t *src)
{
    constexpr int ROW = geom<KIND>::row, CHUNKS = ROW / 16;
    int lane = threadIdx.x & 31, at = (threadIdx.x >> 5) * 16 * ROW;
#pragma unroll
    for (int i = 0; i < 16 * ROW / 512; i++) {
        int r = (i * 32 + lane) / CHUNKS, c = (i * 32 + lane) % CHUNKS;
        int swz = V ? ((r >> 1) & 3) * 2 : (r & 1) * (KIND == LK_KV_I8 ? 4 : 1);
        lk_cp16(tile + at + r * ROW + ((c ^ swz) * 16), src + at + (i * 32 + lane) * 16);
    }
    lk_cp_commit();
}

/* A operand of one k-step for keys g and g+8: a[0], a[2] of row g, a[1], a[3] of row g + 8. */
template <int KIND>
static __device__ __forceinline__ void k_frag(const uint4 *k0, const uint4 *k1, int s, uint32_t a[4])
{
    if (KIND == LK_KV_I8) {
        const uint32_t *w0 = (const uint32_t *)k0, *w1 = (const uint32_t *)k1;
        lk_i8_h2(w0[s] ^ 0x80808080u, &a[0], &a[2]);
        lk_i8_h2(w1[s] ^ 0x80808080u, &a[1], &a[3]);
    } else {
        const uint32_t *w0 = (const uint32_t *)k0 + 2 * s, *w1 = (const uint32_t *)k1 + 2 * s;
        a[0] = lk_pack_h2(lk_bf16_lo(w0[0]), lk_bf16_hi(w0[0]));
        a[2] = lk_pack_h2(lk_bf16_lo(w0[1]), lk_bf16_hi(w0[1]));
        a[1] = lk_pack_h2(lk_bf16_lo(w1[0]), lk_bf16_hi(w1[0]));
        a[3] = lk_pack_h2(lk_bf16_lo(w1[1]), lk_bf16_hi(w1[1]));
    }
}

/* Scores of 16 keys x NT*8 columns. ks: K scales of keys g and g+8, 4 halves each. */
template <int KIND, int NT>
static __device__ __forceinline__ void scores(const uint8_t *tile, const uint8_t *qs, const uint2 ks[2],
                                              float acc[NT][4])
{
    constexpr int E = geom<KIND>::elem, ROW = geom<KIND>::row;
    int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, c = lane & 3, swz = (g & 1) * (KIND == LK_KV_I8 ? 4 : 1);
    const uint8_t *row = tile + ((tid >> 5) * 16 + g) * ROW;
    const uint4 *qf = (const uint4 *)qs + lane;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[nt][i] = 0.f;
#pragma unroll
    for (int G = 0; G < 4; G++) {
        uint4 k0[E], k1[E];
#pragma unroll
        for (int e = 0; e < E; e++) {
            int at = (((G * 4 + c) * E + e) ^ swz) * 16;
            k0[e] = *(const uint4 *)(row + at);
            k1[e] = *(const uint4 *)(row + 8 * ROW + at);
        }
        float part[NT][4];
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part[nt][i] = KIND == LK_KV_I8 ? 0.f : acc[nt][i];
#pragma unroll
        for (int pr = 0; pr < 2; pr++) {
            uint32_t a0[4], a1[4];
            k_frag<KIND>(k0, k1, 2 * pr, a0);
            k_frag<KIND>(k0, k1, 2 * pr + 1, a1);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                uint4 b = qf[((G * 2 + pr) * NT + nt) * 32];
                lk_mma16816(part[nt], a0[0], a0[1], a0[2], a0[3], b.x, b.y);
                lk_mma16816(part[nt], a1[0], a1[1], a1[2], a1[3], b.z, b.w);
            }
        }
        float s0 = 1.f, s1 = 1.f;
        if (KIND == LK_KV_I8) {
            s0 = lk_half((uint16_t)((G & 2 ? ks[0].y : ks[0].x) >> (16 * (G & 1))));
            s1 = lk_half((uint16_t)((G & 2 ? ks[1].y : ks[1].x) >> (16 * (G & 1))));
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[nt][i] = KIND == LK_KV_I8 ? __fmaf_rn(part[nt][i], i < 2 ? s0 : s1, acc[nt][i]) : part[nt][i];
    }
}

/* A operands of one k-step of V: 16 keys x 64 dims as 4 tiles; tile j holds dims 8g + 2j (row g) and 8g + 2j + 1. */
template <int KIND>
static __device__ __forceinline__ void v_frag(const uint8_t *vst, int t, int n_valid, uint32_t a[4][4])
{
    constexpr int ROW = geom<KIND>::row;
    int w = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, c = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) { /* keys 2c, 2c+1 then 2c+8, 2c+9: the same swizzle, 2c */
        const uint8_t *row = vst + (16 * t + 8 * h + 2 * c) * ROW;
        if (KIND == LK_KV_I8) {
            const uint8_t *at = row + (((4 * w + (g >> 1)) ^ (2 * c)) * 16) + (g & 1) * 8;
            uint2 x = *(const uint2 *)at, y = *(const uint2 *)(at + ROW);
            lk_i8_h2(__byte_perm(x.x, y.x, 0x5140u) ^ 0x80808080u, &a[0][2 * h], &a[0][2 * h + 1]);
            lk_i8_h2(__byte_perm(x.x, y.x, 0x7362u) ^ 0x80808080u, &a[1][2 * h], &a[1][2 * h + 1]);
            lk_i8_h2(__byte_perm(x.y, y.y, 0x5140u) ^ 0x80808080u, &a[2][2 * h], &a[2][2 * h + 1]);
            lk_i8_h2(__byte_perm(x.y, y.y, 0x7362u) ^ 0x80808080u, &a[3][2 * h], &a[3][2 * h + 1]);
        } else {
            const uint8_t *at = row + (((8 * w + g) ^ (2 * c)) * 16);
            uint4 x = *(const uint4 *)at, y = *(const uint4 *)(at + ROW);
            int key = 16 * t + 8 * h + 2 * c;
            if (key >= n_valid) /* beyond the lane's last token lies anything, NaN too */
                x = make_uint4(0, 0, 0, 0);
            if (key + 1 >= n_valid)
                y = make_uint4(0, 0, 0, 0);
            const uint32_t *xw = (const uint32_t *)&x, *yw = (const uint32_t *)&y;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a[j][2 * h] = lk_pack_h2(lk_bf16_lo(xw[j]), lk_bf16_lo(yw[j]));
                a[j][2 * h + 1] = lk_pack_h2(lk_bf16_hi(xw[j]), lk_bf16_hi(yw[j]));
            }
        }
    }
}

/* o += V^T P over the 64 keys of the page, this warp's 64 dims. */
template <int KIND, int NT>
static __device__ __forceinline__ void values(const uint8_t *vst, const uint8_t *ps, const uint16_t *vs, int n_valid,
                                              float o[NT][4][4])
{
    int lane = threadIdx.x & 31, c = lane & 3;
#pragma unroll 2
    for (int t = 0; t < 4; t++) {
        uint32_t a[4][4];
        v_frag<KIND>(vst, t, n_valid, a);
        uint32_t s0 = 0, s1 = 0;
        if (KIND == LK_KV_I8) {
            s0 = *(const uint32_t *)(vs + 16 * t + 2 * c);
            s1 = *(const uint32_t *)(vs + 16 * t + 2 * c + 8);
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            uint2 b = ((const uint2 *)ps)[(t * NT + nt) * 32 + lane];
            if (KIND == LK_KV_I8) {
                b.x = h2_mul(b.x, s0);
                b.y = h2_mul(b.y, s1);
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                lk_mma16816(o[nt][j], a[j][0], a[j][1], a[j][2], a[j][3], b.x, b.y);
        }
    }
}

/* Maxima of this warp's keys, then of the page. The barrier also tells that everybody is done with the page before. */
template <int NT> static __device__ __forceinline__ void maxima(const float acc[NT][4], float *mx)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        float a = fmaxf(acc[nt][0], acc[nt][2]), b = fmaxf(acc[nt][1], acc[nt][3]);
#pragma unroll
        for (int i = 4; i < 32; i <<= 1) {
            a = fmaxf(a, __shfl_xor_sync(LK_FULL, a, i));
            b = fmaxf(b, __shfl_xor_sync(LK_FULL, b, i));
        }
        if (lane < 4)
            *(float2 *)(mx + (w * NT + nt) * 8 + 2 * lane) = make_float2(a, b);
    }
    __syncthreads();
}

/* Running maximum, weights and their sums of one page. Columns of a lane: 8 nt + 2c + {0,1}. */
template <int NT>
static __device__ __forceinline__ void weights(float acc[NT][4], uint8_t *ps, float *mx, float m[NT][2], float l[NT][2],
                                               float o[NT][4][4])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, c = lane & 3;
    float corr[NT][2];
    bool moved = false;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        float a = m[nt][0], b = m[nt][1];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = *(const float2 *)(mx + (i * NT + nt) * 8 + 2 * c);
            a = fmaxf(a, x.x);
            b = fmaxf(b, x.y);
        }
        corr[nt][0] = a == m[nt][0] ? 1.f : lk_ex2(m[nt][0] - a);
        corr[nt][1] = b == m[nt][1] ? 1.f : lk_ex2(m[nt][1] - b);
        moved |= a != m[nt][0] || b != m[nt][1];
        m[nt][0] = a;
        m[nt][1] = b;
        float ma = (a == NO_SCORE ? 0.f : a) - P_SHIFT, mb = (b == NO_SCORE ? 0.f : b) - P_SHIFT;
        float p0 = lk_ex2(acc[nt][0] - ma), p1 = lk_ex2(acc[nt][1] - mb);
        float p2 = lk_ex2(acc[nt][2] - ma), p3 = lk_ex2(acc[nt][3] - mb);
        l[nt][0] = __fmaf_rn(l[nt][0], corr[nt][0], p0 + p2);
        l[nt][1] = __fmaf_rn(l[nt][1], corr[nt][1], p1 + p3);
        uint2 b2 = make_uint2(lk_trans8x8(lk_pack_h2(p0, p1)), lk_trans8x8(lk_pack_h2(p2, p3)));
        ((uint2 *)ps)[(w * NT + nt) * 32 + lane] = b2;
    }
    if (__any_sync(LK_FULL, moved))
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o[nt][j][i] *= corr[nt][i & 1];
}

template <int NT>
static __device__ __forceinline__ void mask(const struct task &t, int group, int kb, float acc[NT][4])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!sees(t, group, nt * 8 + 2 * c + (i & 1), kb + 16 * w + g + 8 * (i >> 1)))
                acc[nt][i] = NO_SCORE;
}

/* The block's sums leave: as a partial of its split, or (direct) divided and gated as the result. */
template <int NT>
static __device__ void finish(const struct lk_attn_params &p, const struct task &t, int split, float *sum,
                              float m[NT][2], float l[NT][2], float o[NT][4][4])
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5, g = lane >> 2, c = lane & 3, group = p.n_q / p.n_kv;
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = l[nt][e];
#pragma unroll
            for (int i = 4; i < 32; i <<= 1)
                x += __shfl_xor_sync(LK_FULL, x, i);
            if (g == 0)
                sum[(w * NT + nt) * 8 + 2 * c + e] = x;
        }
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int n = nt * 8 + 2 * c + e;
            if (n >= t.cols)
                continue;
            int row = t.row0 + n / group, head = t.kvh * group + n % group;
            float tot = ((sum[n] + sum[NT * 8 + n]) + sum[2 * NT * 8 + n]) + sum[3 * NT * 8 + n];
            if (p.direct) {
                const float *gate = p.proj + (size_t)row * p.ld + (size_t)head * 512 + 256 + w * 64 + 8 * g;
                uint32_t r[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float2 gt = *(const float2 *)(gate + 2 * j);
                    r[j] = lk_pack_h2(o[nt][j][e] / tot / (1.f + __expf(-gt.x)), o[nt][j][2 + e] / tot / (1.f + __expf(-gt.y)));
                }
                *(uint4 *)(p.out + ((size_t)row * p.n_q + head) * LK_HEAD + w * 64 + 8 * g) =
                    make_uint4(r[0], r[1], r[2], r[3]);
                continue;
            }
            size_t at = ((size_t)row * p.n_q + head) * p.n_splits + split;
            float4 *dst = (float4 *)(p.part + at * LK_HEAD + w * 64 + 8 * g);
            dst[0] = make_float4(o[nt][0][e], o[nt][0][2 + e], o[nt][1][e], o[nt][1][2 + e]);
            dst[1] = make_float4(o[nt][2][e], o[nt][2][2 + e], o[nt][3][e], o[nt][3][2 + e]);
            if (w == 0 && g == 0)
                *(float2 *)(p.ml + at * 2) = make_float2(m[nt][e], tot);
        }
}

/* What a warp needs of a page beside the copied rows: K scales of keys g and g+8, V scales of keys lane and lane+32. */
struct scales {
    uint2 k[2];
    uint16_t v[2];
};

static __device__ __forceinline__ void scales_load(struct scales *s, const struct page_ptr &pg)
{
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    const uint16_t *k = pg.ks + (16 * w + (lane >> 2)) * 4, *v = pg.vs + lane * 4 + w;
    s->k[0] = *(const uint2 *)k;
    s->k[1] = *(const uint2 *)(k + 32);
    s->v[0] = v[0];
    s->v[1] = v[128];
}

template <int KIND, int NT>
static __device__ __forceinline__ void walk(const struct lk_attn_params &p, const struct task &t, int split, uint8_t *smem)
{
    typedef smem_map<KIND, NT> map;
    constexpr int TILE = geom<KIND>::tile;
    int lane = threadIdx.x & 31, group = p.n_q / p.n_kv, last = t.k1 - 1;
    uint16_t *vs = (uint16_t *)(smem + map::vs) + (threadIdx.x >> 5) * 64;
    float *mx = (float *)(smem + map::mx), o[NT][4][4], m[NT][2], l[NT][2];
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        m[nt][0] = m[nt][1] = NO_SCORE;
        l[nt][0] = l[nt][1] = 0.f;
#pragma unroll
        for (int i = 0; i < 16; i++)
            o[nt][i >> 2][i & 3] = 0.f;
    }
    struct page_ptr pg = page_at<KIND>(p, t, t.pages[t.k0 >> 6]);
    struct scales sc;
    bool old = t.k0 + 63 < t.lane_pos0; /* nothing of this step lies in the first page: no need to wait for prep */
    if (!old)
        pdl_wait();
    copy_rows<KIND, false>(smem, pg.k);
    copy_rows<KIND, true>(smem + map::v, pg.v);
    if (KIND == LK_KV_I8)
        scales_load(&sc, pg);
    int next = t.pages[min(t.k0 + 64, last) >> 6];
    if (old)
        pdl_wait();
    pdl_trigger();
    load_q<NT>(p, t, smem + map::q);
    __syncthreads();
    for (int kb = t.k0, st = 0; kb < t.k1; kb += 64, st ^= 1) {
        bool more = kb + 64 < t.k1;
        int n_valid = t.pos0 + t.nr - kb; /* keys of this page that exist, for this block */
        lk_cp_wait<1>();                  /* K of this page */
        __syncwarp();
        float acc[NT][4];
        scores<KIND, NT>(smem, smem + map::q, sc.k, acc);
        __syncwarp();
        if (KIND == LK_KV_I8) {
            vs[lane] = lane < n_valid ? sc.v[0] : 0;
            vs[lane + 32] = lane + 32 < n_valid ? sc.v[1] : 0;
        }
        if (more) {
            pg = page_at<KIND>(p, t, next);
            next = t.pages[min(kb + 128, last) >> 6];
            copy_rows<KIND, false>(smem, pg.k);
            if (KIND == LK_KV_I8)
                scales_load(&sc, pg);
        }
        if (kb + 63 > t.pos0 || (t.window > 0 && kb < t.pos0 + t.nr - 1 - t.window))
            mask<NT>(t, group, kb, acc);
        maxima<NT>(acc, mx);
        if (more)
            copy_rows<KIND, true>(smem + map::v + (st ^ 1) * TILE, pg.v);
        weights<NT>(acc, smem + map::p, mx, m, l, o);
        if (more)
            lk_cp_wait<2>(); /* V of this page */
        else
            lk_cp_wait<0>();
        __syncthreads();
        values<KIND, NT>(smem + map::v + st * TILE, smem + map::p, vs, n_valid, o);
    }
    __syncthreads();
    finish<NT>(p, t, split, mx, m, l, o);
}

template <int KIND, int NT> static __device__ __forceinline__ void decode(const struct lk_attn_params &p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    struct task t;
    int split;
    if (!task_find(p, &t, &split)) {
        pdl_wait();
        return;
    }
    if (NT == 1 || t.cols <= 8)
        walk<KIND, 1>(p, t, split, smem);
    else if (NT == 2 || t.cols <= 16)
        walk<KIND, NT < 2 ? NT : 2>(p, t, split, smem);
    else if (NT == 3 || t.cols <= 24)
        walk<KIND, NT < 3 ? NT : 3>(p, t, split, smem);
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
DECODE(attn_decode_i8_3, LK_KV_I8, 3, 3)
DECODE(attn_decode_i8_4, LK_KV_I8, 4, 2)
DECODE(attn_decode_bf16_1, LK_KV_BF16, 1, 1)
DECODE(attn_decode_bf16_2, LK_KV_BF16, 2, 1)
DECODE(attn_decode_bf16_3, LK_KV_BF16, 3, 1)
DECODE(attn_decode_bf16_4, LK_KV_BF16, 4, 1)
#endif
