/* Launches the gated delta net: up to 16 rows, and any number below sm_80, by one recurrent kernel; more in chunks, behind prep
 * (convolution, norms, gates). Fold replays recorded rows of all layers in one launch. */
#include "cuda/cuda_dev.h"

#include "cuda/gdn_shared.h"

#define GDN_SOLVE_SMEM (4 * 16384 + LK_GDN_CHUNK * (LK_GDN_CHUNK + 4) * 4 + 2 * LK_GDN_CHUNK * 4)
#define GDN_PASS_SMEM (8 * 16384 + 6 * 8192 + LK_GDN_CHUNK * 4)
#define RECUR_SMEM (4 * LK_GDN_BLOCK * LK_GDN_D * 4 + 3 * LK_GDN_BLOCK * 4 + 16)

int cu_gdn_check(struct cu_dev *d, const struct lk_dev_need *n, struct lk_err *e)
{
    if (n->hv == 0) return 0;
    if (n->gdn_dim != LK_GDN_D)
        return lk_fail(e, LK_EINPUT, "cuda gated delta net: head size %d; the kernels are made for %d", n->gdn_dim, LK_GDN_D);
    if (n->conv_k != 4)
        return lk_fail(e, LK_EINPUT, "cuda gated delta net: convolution of %d; the kernels are made for 4", n->conv_k);
    if (n->hk < 1 || n->hv % n->hk)
        return lk_fail(e, LK_EINPUT, "cuda gated delta net: %d value heads on %d key heads", n->hv, n->hk);
    if (n->max_lanes * n->hk > CU_COUNT_GDN)
        return lk_fail(e, LK_EINPUT, "cuda gated delta net: %d sequences of %d key heads; at most %d in all", n->max_lanes, n->hk, CU_COUNT_GDN);
    return 0;
}

/* k [hk*128], v [hv*128], g and beta [hv] of a row in scratch, whole 16 bytes; its queries [hk*128] lie before all of them */
static size_t rld_floats(int hk, int hv)
{
    return ((size_t)(hk + hv) * LK_GDN_D + 2 * (size_t)hv + 3) / 4 * 4;
}

static size_t row_floats(int hk, int hv)
{
    return (size_t)hk * LK_GDN_D + rld_floats(hk, hv);
}

/* The chunked form, beside the rows: u, w (f32 in size) and the masked scores of each chunk and head, and its summed decay. */
static size_t chunk_floats(int hv)
{
    return (size_t)hv * (2 * LK_GDN_CHUNK * LK_GDN_D + LK_GDN_CHUNK * LK_GDN_CHUNK + LK_GDN_CHUNK);
}

static size_t chunks_of(int rows, int lanes) /* at most: each lane may end in a part of one */
{
    return (size_t)rows / LK_GDN_CHUNK + (size_t)lanes;
}

size_t cu_gdn_scratch(struct cu_dev *d, const struct lk_dev_need *n)
{
    if (!n->hv || d->arch < 80) return 0;
    return ((size_t)n->max_rows * row_floats(n->hk, n->hv) + chunks_of(n->max_rows, n->max_lanes) * chunk_floats(n->hv)) * 4;
}

/* Where k, v, g and beta of a row lie: in the record, or in scratch behind the queries. */
static void bind_rows(struct lk_gdn_params *p, float *row0)
{
    p->k = row0;
    p->v = p->k + (size_t)p->hk * LK_GDN_D;
    p->g = p->v + (size_t)p->hv * LK_GDN_D;
    p->beta = p->g + p->hv;
}

static void bind_record(struct lk_gdn_params *p, const void *record)
{
    p->rld = (int32_t)(lk_gdn_record_bytes(p->hk, p->hv) / 4);
    p->qkv = (float *)(uintptr_t)record;
    bind_rows(p, p->qkv + (size_t)(2 * p->hk + p->hv) * LK_GDN_D);
}

static double state_bytes(const struct lk_batch *b, int hv)
{
    return (double)b->n_lanes * hv * LK_GDN_D * LK_GDN_D * 4;
}

static void launch_recur(struct cu_dev *d, const struct lk_batch *b, struct lk_gdn_params *p)
{
    struct cu_grid g = {.gx = (unsigned)p->hv, .gy = (unsigned)b->n_lanes, .bx = 512, .smem = RECUR_SMEM, .flags = CU_PDL,
                        .bytes = state_bytes(b, p->hv) * (p->keep_state ? 1 : 2)};
    cu_launch(d, "gdn_recur", g, CU_ARGS(p));
}

static void launch_chunks(struct cu_dev *d, const struct lk_batch *b, struct lk_gdn_params *p, float *room)
{
    size_t chunks = chunks_of(b->n_rows, b->n_lanes), part = chunks * (size_t)p->hv * LK_GDN_CHUNK;
    p->u = room;
    p->w = (uint16_t *)(void *)(p->u + part * LK_GDN_D);
    p->pm = p->w + part * 2 * LK_GDN_D;
    p->gsum = (float *)(void *)(p->pm + part * 2 * LK_GDN_CHUNK);
    struct cu_grid g = {.gx = (unsigned)chunks, .gy = (unsigned)p->hv, .bx = 256, .smem = GDN_SOLVE_SMEM,
                        .bytes = (double)part * LK_GDN_D * 20};
    cu_launch(d, "gdn_chunk_solve", g, CU_ARGS(p));
    g = (struct cu_grid){.gx = (unsigned)p->hv * 2, .gy = (unsigned)b->n_lanes, .bx = 256, .smem = GDN_PASS_SMEM,
                         .bytes = (double)part * LK_GDN_D * 24};
    cu_launch(d, "gdn_chunk_pass", g, CU_ARGS(p));
    g = (struct cu_grid){.gx = (unsigned)chunks, .gy = (unsigned)p->hv, .bx = 256, .bytes = (double)part * LK_GDN_D * 10};
    cu_launch(d, "gdn_chunk_norm", g, CU_ARGS(p));
}

static void launch_wide(struct cu_dev *d, const struct lk_batch *b, struct lk_gdn_params *p)
{
    int units = 2 * p->hk + p->hv;
    size_t rows = (size_t)b->n_rows * row_floats(p->hk, p->hv);
    p->q = cu_scratch(d, (rows + chunks_of(b->n_rows, b->n_lanes) * chunk_floats(p->hv)) * 4);
    if (!p->q) return;
    p->rld = (int32_t)rld_floats(p->hk, p->hv);
    bind_rows(p, p->q + (size_t)b->n_rows * (size_t)p->hk * LK_GDN_D);
    struct cu_grid g = {.gx = cu_div(units, 8), .gy = cu_div(b->n_rows, LK_GDN_PREP_ROWS), .gz = (unsigned)b->n_lanes,
                        .bx = 256, .flags = CU_PDL, .bytes = (double)b->n_rows * units * LK_GDN_D * 8};
    cu_launch(d, "gdn_prep", g, CU_ARGS(p));
    launch_chunks(d, b, p, p->q + rows);
}

static void cu_gdn(struct lk_dev *dev, const struct lk_gdn_args *a)
{
    struct cu_dev *d = cu_of(dev);
    const struct lk_batch *b = a->b;
    if (b->n_rows < 1 || b->n_lanes < 1) return;
    int record = a->mode == LK_GDN_RECORD;
    struct lk_gdn_params p = {.lanes = b->lanes, .proj = a->proj, .conv_w = a->conv_w, .a_coef = a->a_coef,
                              .dt_bias = a->dt_bias, .norm_w = a->norm_w, .state = a->state, .conv = a->conv,
                              .out = a->out, .count = d->count + CU_COUNT_GDN_AT, .eps = a->eps, .ld = a->ld, .n_rows = b->n_rows,
                              .n_lanes = b->n_lanes, .hk = a->hk, .hv = a->hv, .tiled = a->tiled, .keep_state = record};
    if (record) bind_record(&p, a->record);
    if (!record && b->n_rows > LK_GDN_BLOCK && d->arch >= 80)
        launch_wide(d, b, &p);
    else
        launch_recur(d, b, &p);
}

static void cu_gdn_fold(struct lk_dev *dev, const struct lk_gdn_fold_args *a)
{
    struct cu_dev *d = cu_of(dev);
    const struct lk_batch *b = a->b;
    if (b->n_lanes < 1) return;
    for (int at = 0; at < a->n_layers; at += LK_GDN_FOLD_LAYERS) {
        int n = a->n_layers - at < LK_GDN_FOLD_LAYERS ? a->n_layers - at : LK_GDN_FOLD_LAYERS;
        struct lk_gdn_fold_params f = {.p = {.lanes = b->lanes, .n_rows = b->n_rows, .n_lanes = b->n_lanes, .hk = a->hk, .hv = a->hv,
                                             .tiled = a->tiled, .rld = (int32_t)(lk_gdn_record_bytes(a->hk, a->hv) / 4)}};
        for (int i = 0; i < n; i++) f.state[i] = a->state[at + i], f.conv[i] = a->conv[at + i], f.record[i] = a->record[at + i];
        cu_launch(d, "gdn_fold", (struct cu_grid){.gx = (unsigned)a->hv, .gy = (unsigned)b->n_lanes, .gz = (unsigned)n, .bx = 512,
                                                  .smem = RECUR_SMEM, .flags = CU_PDL, .bytes = state_bytes(b, a->hv) * 2 * n}, CU_ARGS(&f));
    }
}

void cu_gdn_ops(struct cu_dev *d)
{
    d->ops.gdn = cu_gdn;
    d->ops.gdn_fold = cu_gdn_fold;
}
