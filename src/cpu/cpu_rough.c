/* A mat for drafts alone (LK_MAT_ROUGH): a copy of its weights in 4 bits, a quarter of the bytes of BF16, made once at load. A group of
 * 64 columns of a row is 32 bytes, columns 0..31 in the low nibbles, and one F16 scale whose sign follows the group's largest
 * value, so that this value is met by code 0 exactly. Kernels (k_rough.h) make the copy, decoding rows as their products do, and multiply x in 8 bits. */
#include "cpu/cpu_mat.h"

#include "cpu/kern.h"

#define ROWS 64 /* of a part of the work */

struct rough_job {
    const struct cpu_kern *kern;
    const struct cpu_part *from;
    uint8_t *codes;
    uint16_t *scales;
};

static void rough_rows(void *arg, int part, int worker)
{
    const struct rough_job *j = arg;
    int64_t k = j->from->w.k, end = (int64_t)(part + 1) * ROWS;
    for (int64_t r = (int64_t)part * ROWS; r < end && r < j->from->w.n; r++)
        j->kern->rough_row(j->from, r, j->codes + r * k / 2, j->scales + r * (k / ROUGH_G));
}

int cpu_rough_make(struct cpu_dev *c, struct cpu_part *p, const struct lk_weight *w, struct lk_err *e)
{
    size_t codes = (size_t)(w->n * w->k / 2), scales = (size_t)(w->n * w->k / ROUGH_G) * 2;
    codes = (codes + 63) / 64 * 64;
    if (w->k % ROUGH_G || w->k > ROUGH_MAX_K)
        return lk_fail(e, LK_EINPUT, "cpu: a linear for drafts reads whole groups of %d inputs up to %d, found %lld", ROUGH_G,
                       ROUGH_MAX_K, (long long)w->k);
    if (!(p->owned = lk_aligned(codes + scales)))
        return lk_fail(e, LK_ENOMEM, "cpu: no memory for the drafts' copy of the head (%zu MB); --draft 0 needs none",
                       (codes + scales) >> 20);
    int plain = w->fmt != LK_FMT_NVFP4 && w->fmt != LK_FMT_ROWS; /* those kernels want more than the weight: kernel 0, the oracle's decode, does not */
    const struct cpu_part from = {.w = *w, .kern = plain ? c->kern->pick(w) : 0};
    struct rough_job j = {c->kern, &from, p->owned, (uint16_t *)((char *)p->owned + codes)};
    lk_pool_run(c->pool, (int)((w->n + ROWS - 1) / ROWS), rough_rows, &j);
    p->w = (struct lk_weight){.fmt = LK_FMT_Q4, .n = w->n, .k = w->k, .data = j.codes, .scale = j.scales,
                              .scale_dtype = LK_DT_F16, .group = ROUGH_G, .global = 1};
    return 0;
}
