/* The gated delta net row by row: decode, record and fold run the same code, so that their bits agree. A block of 512 threads
 * owns one v head of one lane; its 128x128 state lies in registers, 32 values a thread: column v = 8 warp + lane/4, rows
 * k = 16 i + 4 (lane%4) + e. Both products of a row come from the state before it (o = e^g S^T q + (k.q) delta), so a row
 * costs one reduction over 4 lanes and no barrier. Rows are made or fetched 16 at a time (convolution, norms, gates: the v heads of a
 * k head each make q and k for themselves, which costs less than a launch); the gated norm follows them. The window of a q and k
 * head, which several blocks read, is moved on by the one that has read it last.
 * Bytes: 64 KiB a head in, and out unless recording. */
#include "cuda/gdn_rows.cuh"
#include "cuda/pdl.cuh"

#define D LK_GDN_D
#define ROWS LK_GDN_BLOCK

struct staged {
    float q[ROWS][D], k[ROWS][D], v[ROWS][D], o[ROWS][D];
    float kq[ROWS], eg[ROWS], beta[ROWS];
    int last; /* this block read the window of its q and k head last */
};

/* Convolution of row r of the lane, 4 channels a lane from ch on; keep: its input is recorded. */
static __device__ __forceinline__ float4 conv_row(const struct lk_gdn_params &p, const struct lk_lane &l, int r, int C, int ch, bool keep)
{
    const float4 *w = (const float4 *)p.conv_w + ch;
    float4 d = conv_in(p, l, r, C, ch);
    float4 y = tap(w[0], w[1], w[2], w[3], conv_in(p, l, r - 3, C, ch), conv_in(p, l, r - 2, C, ch), conv_in(p, l, r - 1, C, ch), d);
    if (keep)
        *(float4 *)(p.qkv + (size_t)(l.row0 + r) * p.rld + ch) = d;
    return silu4(y);
}

/* Rows r0.. of the lane made in shared memory, and recorded: two warps a row, one for q and k, one for v and the gates. */
static __device__ __forceinline__ void make_rows(const struct lk_gdn_params &p, const struct lk_lane &l, struct staged *s, int r0, int n, int h, int kh)
{
    int lane = threadIdx.x & 31, C = (2 * p.hk + p.hv) * D;
    bool keep_v = p.qkv != NULL, keep_qk = keep_v && (p.tiled ? h < p.hk : h % (p.hv / p.hk) == 0); /* the first v head of a k head */
#pragma unroll 1
    for (int u = threadIdx.x >> 5; u < 2 * n; u += ROWS) {
        int w = u >> 1, r = r0 + w;
        size_t at = (size_t)(l.row0 + r) * p.rld;
        if (u & 1) {
            float4 v = conv_row(p, l, r, C, (2 * p.hk + h) * D + 4 * lane, keep_v);
            *(float4 *)&s->v[w][4 * lane] = v;
            float g, beta;
            gates(p, l.row0 + r, h, &g, &beta);
            if (keep_v)
                *(float4 *)(p.v + at + h * D + 4 * lane) = v;
            if (lane)
                continue;
            s->eg[w] = expf(g);
            s->beta[w] = beta;
            if (keep_v) {
                p.g[at + h] = g;
                p.beta[at + h] = beta;
            }
            continue;
        }
        float4 q = unit_head(conv_row(p, l, r, C, kh * D + 4 * lane, keep_qk), GDN_Q_SCALE);
        float4 k = unit_head(conv_row(p, l, r, C, (p.hk + kh) * D + 4 * lane, keep_qk), 1.f);
        *(float4 *)&s->q[w][4 * lane] = q;
        *(float4 *)&s->k[w][4 * lane] = k;
        if (keep_qk)
            *(float4 *)(p.k + at + kh * D + 4 * lane) = k;
        float kq = lk_warp_sum(dot4(k, q));
        if (lane == 0)
            s->kq[w] = kq;
    }
}

/* Recorded rows from row on to shared memory; warp w brings row w. */
static __device__ __forceinline__ void fetch_rows(const struct lk_gdn_params &p, struct staged *s, int row, int n, int h, int kh)
{
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (w >= n)
        return;
    size_t at = (size_t)(row + w) * p.rld;
    *(float4 *)&s->k[w][4 * lane] = *(const float4 *)(p.k + at + kh * D + 4 * lane);
    *(float4 *)&s->v[w][4 * lane] = *(const float4 *)(p.v + at + h * D + 4 * lane);
    if (lane == 0) {
        s->eg[w] = expf(p.g[at + h]);
        s->beta[w] = p.beta[at + h];
    }
}

/* One row. Returns the output's element of this thread's column (OUT). */
template <bool OUT>
static __device__ __forceinline__ float row_step(float S[32], const struct staged *s, int r, int kl, float v)
{
    float m0 = 0.f, m1 = 0.f, o0 = 0.f, o1 = 0.f;
    float4 k[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        k[i] = *(const float4 *)&s->k[r][16 * i + 4 * kl];
        m0 = __fmaf_rn(S[4 * i + 1], k[i].y, __fmaf_rn(S[4 * i], k[i].x, m0));
        m1 = __fmaf_rn(S[4 * i + 3], k[i].w, __fmaf_rn(S[4 * i + 2], k[i].z, m1));
    }
    if (OUT) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 q = *(const float4 *)&s->q[r][16 * i + 4 * kl];
            o0 = __fmaf_rn(S[4 * i + 1], q.y, __fmaf_rn(S[4 * i], q.x, o0));
            o1 = __fmaf_rn(S[4 * i + 3], q.w, __fmaf_rn(S[4 * i + 2], q.z, o1));
        }
    }
    float m = __fadd_rn(m0, m1), o = __fadd_rn(o0, o1), eg = s->eg[r];
    m = __fadd_rn(m, __shfl_xor_sync(LK_FULL, m, 1));
    m = __fadd_rn(m, __shfl_xor_sync(LK_FULL, m, 2));
    float delta = __fmul_rn(s->beta[r], __fmaf_rn(-eg, m, v));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        S[4 * i] = __fmaf_rn(k[i].x, delta, __fmul_rn(eg, S[4 * i]));
        S[4 * i + 1] = __fmaf_rn(k[i].y, delta, __fmul_rn(eg, S[4 * i + 1]));
        S[4 * i + 2] = __fmaf_rn(k[i].z, delta, __fmul_rn(eg, S[4 * i + 2]));
        S[4 * i + 3] = __fmaf_rn(k[i].w, delta, __fmul_rn(eg, S[4 * i + 3]));
    }
    if (OUT) {
        o = __fadd_rn(o, __shfl_xor_sync(LK_FULL, o, 1));
        o = __fadd_rn(o, __shfl_xor_sync(LK_FULL, o, 2));
        o = __fmaf_rn(s->kq[r], delta, __fmul_rn(eg, o));
    }
    return o;
}

/* out = norm_w * o * rsqrt(mean o^2 + eps) * silu(z); a warp a row. */
static __device__ __forceinline__ float4 gate_in(const struct lk_gdn_params &p, int row, int n, int h)
{
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    return w < n ? proj4(p, row + w, (2 * p.hk + p.hv + h) * D + 4 * lane) : make_float4(0.f, 0.f, 0.f, 0.f);
}

static __device__ __forceinline__ void gated_norm(const struct lk_gdn_params &p, const struct staged *s, int row, int n, int h, float4 z)
{
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (w >= n)
        return;
    float4 o = *(const float4 *)&s->o[w][4 * lane], nw = *(const float4 *)(p.norm_w + 4 * lane);
    float f = rsqrtf(lk_warp_sum(dot4(o, o)) * (1.f / D) + p.eps);
    float a = nw.x * o.x * f * silu(z.x), b = nw.y * o.y * f * silu(z.y);
    float c = nw.z * o.z * f * silu(z.z), d = nw.w * o.w * f * silu(z.w);
    *(uint2 *)(p.out + ((size_t)(row + w) * p.hv + h) * D + 4 * lane) = make_uint2(lk_pack_h2(a, b), lk_pack_h2(c, d));
}

/* The convolution window after n rows (of proj, or recorded) of the lane: v head h's channels and, if asked, those of q and k head kh. */
template <bool RECORDED>
static __device__ __forceinline__ void conv_move(const struct lk_gdn_params &p, const struct lk_lane &l, int n, int h, int kh, bool qk)
{
    int C = (2 * p.hk + p.hv) * D, part = threadIdx.x >> 7, ch = threadIdx.x & 127;
    if (part > 2 || (part < 2 && !qk))
        return;
    ch += part == 2 ? (2 * p.hk + h) * D : (part * p.hk + kh) * D;
    float *conv = p.conv + (size_t)l.slot * 3 * C + ch;
    float next[3];
#pragma unroll
    for (int b = 0; b < 3; b++) {
        int r = n - 3 + b;
        const float *x = RECORDED ? p.qkv + (size_t)(l.row0 + r) * p.rld : p.proj + (size_t)(l.row0 + r) * p.ld;
        next[b] = r >= 0 ? x[ch] : conv[(size_t)(3 + r) * C];
    }
#pragma unroll
    for (int b = 0; b < 3; b++)
        conv[(size_t)b * C] = next[b];
}

/* What the first rows need and no kernel ahead makes: on its way to the L2 while that kernel ends. */
static __device__ __forceinline__ void ask_ahead(const struct lk_gdn_params &p, const struct lk_lane &l, int h, int kh)
{
    int C = (2 * p.hk + p.hv) * D, part = threadIdx.x / 32 % 4, i = threadIdx.x & 31;
    int head = part == 0 ? kh : part == 1 ? p.hk + kh : 2 * p.hk + h;
    if (threadIdx.x >= 128 || part == 3)
        return;
    const char *w = (const char *)(p.conv_w + (size_t)head * D * 4), *c = (const char *)(p.conv + (size_t)l.slot * 3 * C + head * D);
    if (i < 16)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(w + 128 * i));
    else if (i < 28)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(c + (size_t)((i - 16) / 4) * C * 4 + (i - 16) % 4 * 128));
}

/* OUT: rows are made and answered; else they are recorded ones, which are folded into the state. */
template <bool OUT> static __device__ __forceinline__ void recur(const struct lk_gdn_params &p)
{
    extern __shared__ __align__(16) uint8_t smem[];
    struct staged *s = (struct staged *)smem;
    int h = blockIdx.x, lane = threadIdx.x & 31, kl = lane & 3, col = 8 * (threadIdx.x >> 5) + (lane >> 2);
    int group = p.hv / p.hk, kh = p.tiled ? h % p.hk : h / group;
    const struct lk_lane l = p.lanes[blockIdx.y];
    int rows = OUT ? l.rows : l.keep;
    if (rows <= 0) {
        pdl_wait();
        return;
    }
    float S[32], *st = p.state + ((size_t)l.slot * p.hv + h) * D * D + col;
#pragma unroll
    for (int i = 0; i < 32; i++)
        S[i] = st[(16 * (i >> 2) + 4 * kl + (i & 3)) * D];
    if (OUT)
        ask_ahead(p, l, h, kh);
    pdl_wait(); /* the state is older than this step, the rows are not */
    pdl_trigger();
    for (int r0 = 0; r0 < rows; r0 += ROWS) {
        int n = min(ROWS, rows - r0), row = l.row0 + r0;
        float4 z = make_float4(0.f, 0.f, 0.f, 0.f);
        if (OUT) {
            z = gate_in(p, row, n, h);
            make_rows(p, l, s, r0, n, h, kh);
        } else {
            fetch_rows(p, s, row, n, h, kh);
        }
        __syncthreads(); /* rows staged and the window read -> used below, counted */
        if (OUT && !p.keep_state && r0 == 0 && threadIdx.x == 0) {
            int *count = p.count + (size_t)blockIdx.y * p.hk + kh;
            __threadfence();
            s->last = atomicAdd(count, 1) == group - 1;
            if (s->last)
                *count = 0;
        }
        for (int r = 0; r < n; r++) {
            float o = row_step<OUT>(S, s, r, kl, s->v[r][col]);
            if (OUT && kl == 0)
                s->o[r][col] = o;
        }
        __syncthreads();
        if (OUT)
            gated_norm(p, s, row, n, h, z);
    }
    if (OUT && p.keep_state)
        return;
    conv_move<!OUT>(p, l, rows, h, OUT ? kh : h, OUT ? s->last != 0 : h < p.hk);
#pragma unroll
    for (int i = 0; i < 32; i++)
        st[(16 * (i >> 2) + 4 * kl + (i & 3)) * D] = S[i];
}

extern "C" __global__ void __launch_bounds__(512) gdn_recur(const struct lk_gdn_params p) { recur<true>(p); }

/* All layers at once: blockIdx.z. */
extern "C" __global__ void __launch_bounds__(512) gdn_fold(const struct lk_gdn_fold_params f)
{
    struct lk_gdn_params p = f.p;
    p.state = f.state[blockIdx.z];
    p.conv = f.conv[blockIdx.z];
    p.qkv = f.record[blockIdx.z];
    p.k = p.qkv + (size_t)(2 * p.hk + p.hv) * D;
    p.v = p.k + (size_t)p.hk * D;
    p.g = p.v + (size_t)p.hv * D;
    p.beta = p.g + p.hv;
    recur<false>(p);
}
