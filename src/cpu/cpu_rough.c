/* A mat for drafts alone (LK_MAT_ROUGH): a copy of its weights in 4 bits, a quarter of the bytes of BF16, made once at load. A group of
 * 64 columns of a row is 32 bytes, columns 0..31 in the low nibbles, and one F16 scale whose sign follows the group's largest
 * value, so that this value is met by code 0 exactly. Kernels (k_rough.h) make the copy, decoding rows as their products do, and
 * multiply x in 8 bits. */
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

int cpu_rough_make(struct cpu_dev *c, struct cpu_part *p, struct lk_err *e)
{
    const struct cpu_part from = *p;
    int64_t n = from.w.n, k = from.w.k;
    size_t codes = ((size_t)(n * k / 2) + 63) / 64 * 64, scales = (size_t)(n * k / ROUGH_G) * 2;
    if (k % ROUGH_G || k > ROUGH_MAX_K)
        return lk_fail(e, LK_EINPUT, "cpu: a linear for drafts reads whole groups of %d inputs up to %d, found %lld", ROUGH_G,
                       ROUGH_MAX_K, (long long)k);
    void *copy = lk_aligned(codes + scales);
    if (!copy)
        return lk_fail(e, LK_ENOMEM, "cpu: no memory for the drafts' copy of the head (%zu MB); --draft 0 needs none",
                       (codes + scales) >> 20);
    struct rough_job j = {c->kern, &from, copy, (uint16_t *)((char *)copy + codes)};
    lk_pool_run(c->pool, (int)((n + ROWS - 1) / ROWS), rough_rows, &j);
    lk_free(from.owned);
    *p = (struct cpu_part){.owned = copy, .w = {.fmt = LK_FMT_Q4, .n = n, .k = k, .data = j.codes, .scale = j.scales,
                                                .scale_dtype = LK_DT_F16, .group = ROUGH_G, .global = 1}};
    return 0;
}
