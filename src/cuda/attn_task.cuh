/* What a block of a decode attention kernel works on: its lane, rows, KV head and run of keys, and where a page's codes and scales
 * lie. Shared by the kernels for sm_80 and up and those below. No kernel. */
#ifndef LK_CUDA_ATTN_TASK_CUH
#define LK_CUDA_ATTN_TASK_CUH

#include "cuda/attn_shared.h"

struct task {
    int row0, nr, cols, kvh, pos0; /* first batch row, rows, columns = rows * group, position of the first row */
    int lane_pos0;                 /* position of the lane's first row: older keys are not of this step */
    int window, k0, k1;            /* keys [k0, k1), k0 a multiple of 64 */
    const int32_t *pages;
};

static __device__ bool task_find(const struct lk_attn_params &p, struct task *t, int *split)
{
    int groups = gridDim.x / (p.n_kv * (p.direct ? 1 : p.n_splits));
    int x = blockIdx.x, rg = x % groups;
    x /= groups;
    t->kvh = x % p.n_kv;
    *split = p.direct ? 0 : p.n_splits - 1 - x / p.n_kv; /* the long splits start first */
    const struct lk_lane &l = p.lanes[blockIdx.y];
    t->nr = min(LK_ATTN_ROWS, l.rows - rg * LK_ATTN_ROWS);
    if (t->nr <= 0)
        return false;
    t->cols = t->nr * (p.n_q / p.n_kv);
    t->row0 = l.row0 + rg * LK_ATTN_ROWS;
    t->pos0 = l.pos0 + rg * LK_ATTN_ROWS;
    t->lane_pos0 = l.pos0;
    t->window = p.window;
    t->pages = p.pages + l.page0;
    int lo = p.window > 0 ? max(0, t->pos0 - p.window) & ~63 : 0;
    t->k0 = p.direct ? lo : max(lo, lk_attn_split_at(*split));
    t->k1 = t->pos0 + t->nr;
    if (!p.direct)
        t->k1 = min(t->k1, lk_attn_split_at(*split + 1));
    return t->k0 < t->k1;
}

/* May query column n of the block see this key? */
static __device__ __forceinline__ bool sees(const struct task &t, int group, int n, int key)
{
    int pos = t.pos0 + n / group;
    return key <= pos && (t.window == 0 || key >= pos - t.window);
}

template <int KIND> struct geom {
    static constexpr int elem = KIND == LK_KV_I8 ? 1 : 2;
    static constexpr int row = LK_HEAD * elem; /* bytes of a key */
    static constexpr int tile = LK_PAGE * row;
};

struct page_ptr {
    const uint8_t *k, *v;
    const uint16_t *ks, *vs;
};

template <int KIND>
static __device__ __forceinline__ struct page_ptr page_at(const struct lk_attn_params &p, const struct task &t, int page)
{
    size_t elems = (size_t)p.n_kv * LK_PAGE * LK_HEAD, half = lk_kv_half_bytes((enum lk_kv_kind)KIND, p.n_kv);
    struct page_ptr r;
    r.k = p.kv + (size_t)page * 2 * half + (size_t)t.kvh * LK_PAGE * LK_HEAD * geom<KIND>::elem;
    r.v = r.k + half;
    r.ks = (const uint16_t *)(p.kv + (size_t)page * 2 * half + elems) + t.kvh * LK_PAGE * 4;
    r.vs = (const uint16_t *)((const uint8_t *)r.ks + half);
    return r;
}

#endif
