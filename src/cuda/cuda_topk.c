/* Launches top-k (a pass over chunks of the vocabulary and a pass over what they kept) and argmax (both in one launch). */
#include "cuda/cuda_dev.h"

#include "cuda/topk_shared.h"

static size_t cand_bytes(int T, int n, int k)
{
    return (size_t)T * cu_div(n, LK_TOPK_CHUNK) * (size_t)k * 8;
}

/* Rows of logits are few: a step never samples more rows than this. */
size_t cu_topk_scratch(struct cu_dev *d, const struct lk_dev_need *n)
{
    int rows = n->max_lanes * 16 > 64 ? n->max_lanes * 16 : 64;
    return cand_bytes(rows, n->vocab, LK_TOPK_MAX) + (size_t)rows * cu_div(n->vocab, LK_TOPK_CHUNK) * 8;
}

static void cu_topk(struct lk_dev *dev, const struct lk_topk_args *a)
{
    struct cu_dev *d = cu_of(dev);
    if (a->T < 1 || a->n < 1) return;
    if (a->k < 1 || a->k > LK_TOPK_MAX) {
        cu_refuse(d, "topk: k = %d; 1 to %d", a->k, LK_TOPK_MAX);
        return;
    }
    struct lk_topk_params p = {.logits = a->logits, .T = a->T, .n = a->n, .ld = a->ld, .k = a->k, .id0 = a->id0,
                               .chunks = (int32_t)cu_div(a->n, LK_TOPK_CHUNK), .ids = a->ids, .vals = a->vals, .lse = a->lse};
    size_t cand = cand_bytes(a->T, a->n, a->k);
    p.cand = cu_scratch(d, cand + (size_t)a->T * (size_t)p.chunks * 8);
    if (!p.cand) return;
    p.ms = (float *)(void *)((char *)p.cand + cand);
    cu_launch(d, "topk_chunk", (struct cu_grid){.gx = (unsigned)p.chunks, .gy = (unsigned)a->T, .bx = LK_TOPK_THREADS,
                                                .bytes = (double)a->T * a->n * 4}, CU_ARGS(&p));
    cu_launch(d, "topk_merge", (struct cu_grid){.gx = (unsigned)a->T, .bx = LK_TOPK_THREADS, .bytes = (double)cand},
              CU_ARGS(&p));
}

static void cu_argmax(struct lk_dev *dev, const float *logits, int T, int n, int ld, int32_t id0, int32_t *ids, float *val)
{
    struct cu_dev *d = cu_of(dev);
    if (T < 1 || n < 1) return;
    for (int t = 0; t < T; t += CU_COUNT_TOPK) {
        struct lk_topk_params p = {.logits = logits + (size_t)t * (size_t)ld, .T = T - t < CU_COUNT_TOPK ? T - t : CU_COUNT_TOPK, .n = n, .ld = ld,
                                   .k = 1, .id0 = id0, .chunks = (int32_t)cu_div(n, LK_TOPK_CHUNK), .ids = ids + t, .vals = val ? val + t : NULL,
                                   .count = d->count + CU_COUNT_TOPK_AT};
        p.cand = cu_scratch(d, cand_bytes(p.T, n, 1));
        if (!p.cand) return;
        cu_launch(d, "argmax_rows", (struct cu_grid){.gx = (unsigned)p.chunks, .gy = (unsigned)p.T, .bx = LK_TOPK_THREADS, .flags = CU_PDL,
                                                     .bytes = (double)p.T * n * 4}, CU_ARGS(&p));
    }
}

void cu_topk_ops(struct cu_dev *d)
{
    d->ops.topk = cu_topk;
    d->ops.argmax = cu_argmax;
}
