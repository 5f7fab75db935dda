/* Launches attention: prep (norm, rotation, append), then the kernels of the regime: F32 pages plain; up to 16 rows split
 * along the keys and merged; more rows by tiles. Launch shapes follow from n_rows, n_lanes and max_ctx alone. */
#include "cuda/cuda_dev.h"

#include "cuda/attn_shared.h"

static size_t align256(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

int cu_attn_check(struct cu_dev *d, const struct lk_dev_need *n, struct lk_err *e)
{
    if (n->head_dim != LK_HEAD)
        return lk_fail(e, LK_EINPUT, "cuda attention: head size %d; the kernels are made for %d", n->head_dim, LK_HEAD);
    if (n->rope_dim != 64)
        return lk_fail(e, LK_EINPUT, "cuda attention: %d rotated dims; the kernels are made for 64", n->rope_dim);
    if (n->n_kv < 1 || n->n_q % n->n_kv || n->n_q / n->n_kv > LK_ATTN_MAX_GROUP)
        return lk_fail(e, LK_EINPUT, "cuda attention: %d query heads on %d KV heads; at most %d each", n->n_q, n->n_kv,
                       LK_ATTN_MAX_GROUP);
    return 0;
}

/* Queries of the widest step, and the partial sums of 16 rows at the longest context. */
static size_t q_bytes(int rows, int n_q)
{
    return align256((size_t)rows * (size_t)n_q * LK_HEAD * 4);
}

static size_t part_floats(int rows, int n_q, int splits)
{
    return (size_t)rows * (size_t)n_q * (size_t)splits;
}

size_t cu_attn_scratch(struct cu_dev *d, const struct lk_dev_need *n)
{
    int rows = n->max_rows < LK_ATTN_SMALL ? n->max_rows : LK_ATTN_SMALL;
    size_t parts = part_floats(rows, n->n_q, lk_attn_split_of(LK_ATTN_MAX_CTX - 1) + 1);
    return q_bytes(n->max_rows, n->n_q) + align256(parts * LK_HEAD * 4) + align256(parts * 8);
}

static double kv_bytes(const struct lk_attn_args *a)
{
    return (double)lk_kv_page_bytes(a->kv_kind, a->n_kv) / LK_PAGE * a->b->max_ctx;
}

static void launch_prep(struct cu_dev *d, const struct lk_attn_args *a, struct lk_attn_params *p)
{
    static const char *const name[] = {"attn_prep_i8", "attn_prep_bf16", "attn_prep_f32"};
    int items = a->b->n_rows * (a->n_q + 2 * a->n_kv);
    double bytes = (double)a->b->n_rows * LK_HEAD * (a->n_q * 6.0 + a->n_kv * 10.0);
    cu_launch(d, name[a->kv_kind], (struct cu_grid){.gx = cu_div(items, 8), .bx = 256, .flags = CU_PDL, .bytes = bytes}, CU_ARGS(p));
}

static void launch_decode(struct cu_dev *d, const struct lk_attn_args *a, struct lk_attn_params *p)
{
    static const char *const name[2][4] = {
        {"attn_decode_i8_1", "attn_decode_i8_2", "attn_decode_i8_3", "attn_decode_i8_4"},
        {"attn_decode_bf16_1", "attn_decode_bf16_2", "attn_decode_bf16_3", "attn_decode_bf16_4"}};
    int rows = p->n_rows < LK_ATTN_ROWS ? p->n_rows : LK_ATTN_ROWS;
    int tiles = (int)cu_div(rows * (a->n_q / a->n_kv), 8);
    int groups = (int)cu_div(p->n_rows, LK_ATTN_ROWS);
    unsigned tile = a->kv_kind == LK_KV_I8 ? 16384u : 32768u;
    unsigned smem = d->arch < 80 ? (unsigned)LK_ATTN_DECODE_70_SMEM(tiles) : lk_attn_decode_smem(tile, (unsigned)tiles);
    struct cu_grid g = {.gx = (unsigned)(groups * a->n_kv * (p->direct ? 1 : p->n_splits)),
                        .gy = (unsigned)p->n_lanes,
                        .bx = 128,
                        .smem = smem,
                        .flags = CU_PDL,
                        .bytes = kv_bytes(a)};
    cu_launch(d, name[a->kv_kind][tiles - 1], g, CU_ARGS(p));
}

/* Tiles of 128 (below sm_80: 64) packed rows (token x group head) a KV head; a lane has at most n_rows of them. */
static void launch_prefill(struct cu_dev *d, const struct lk_attn_args *a, struct lk_attn_params *p)
{
    int old = d->arch < 80;
    struct cu_grid g = {.gx = cu_div((int64_t)p->n_rows * (a->n_q / a->n_kv), old ? 64 : 128) * (unsigned)a->n_kv,
                        .gy = (unsigned)p->n_lanes,
                        .bx = old ? 256 : 384,
                        .smem = old ? LK_ATTN_PREFILL_70_SMEM : LK_ATTN_PREFILL_SMEM,
                        .bytes = kv_bytes(a)};
    cu_launch(d, a->kv_kind == LK_KV_I8 ? "attn_prefill_i8" : "attn_prefill_bf16", g, CU_ARGS(p));
}

static void cu_attn(struct lk_dev *dev, const struct lk_attn_args *a)
{
    struct cu_dev *d = cu_of(dev);
    const struct lk_batch *b = a->b;
    int ctx = b->max_ctx < 1 ? 1 : b->max_ctx, small = b->n_rows <= LK_ATTN_SMALL;
    if (b->n_rows < 1 || b->n_lanes < 1) return;
    struct lk_attn_params p = {.lanes = b->lanes, .pages = b->pages, .rope = b->rope, .proj = a->proj,
                               .q_norm = a->q_norm, .k_norm = a->k_norm, .inv_freq = a->inv_freq, .section = a->section,
                               .kv = a->kv, .out = a->out, .eps = a->eps, .ld = a->ld, .n_rows = b->n_rows,
                               .n_lanes = b->n_lanes, .n_q = a->n_q, .n_kv = a->n_kv, .window = a->window};
    p.n_splits = lk_attn_split_of(ctx - 1) + 1;
    p.direct = !small;
    size_t q = q_bytes(b->n_rows, a->n_q), parts = small ? part_floats(b->n_rows, a->n_q, p.n_splits) : 0;
    uint8_t *s = cu_scratch(d, q + align256(parts * LK_HEAD * 4) + align256(parts * 8));
    if (!s) return;
    p.q = s;
    p.part = (float *)(void *)(s + q);
    p.ml = (float *)(void *)(s + q + align256(parts * LK_HEAD * 4));
    launch_prep(d, a, &p);
    if (a->kv_kind == LK_KV_F32) {
        cu_launch(d, "attn_plain", (struct cu_grid){.gx = (unsigned)a->n_q, .gy = (unsigned)b->n_rows, .bx = 256,
                                                        .bytes = kv_bytes(a)}, CU_ARGS(&p));
        return;
    }
    if (!small && (d->arch == 90 || d->arch < 80))
        launch_prefill(d, a, &p);
    else
        launch_decode(d, a, &p);
    if (small)
        cu_launch(d, "attn_merge", (struct cu_grid){.gx = (unsigned)a->n_q * 4, .gy = (unsigned)b->n_rows, .bx = 256,
                                                    .flags = CU_PDL, .bytes = (double)parts * (LK_HEAD * 4 + 8)}, CU_ARGS(&p));
}

void cu_attn_ops(struct cu_dev *d)
{
    d->ops.attn = cu_attn;
}
