/* A mat for drafts alone (LK_MAT_ROUGH): a copy of its weights in 4 bits, a quarter of the bytes of BF16, made once at load. A group of
 * 64 columns of a row is 32 bytes, columns 0..31 in the low nibbles, and one F16 scale whose sign follows the group's largest
 * value, so that this value is met by code 0 exactly. Kernels (k_rough.h) round x to 8 bits and multiply integers. */
#include "cpu/cpu_mat.h"

#include "base/num.h"
#include "cpu/kern.h"

#include <math.h>

#define ROWS 64 /* of a part of the work */

struct rough_job {
    struct cpu_dev *c;
    const struct lk_weight *w;
    uint8_t *codes;
    uint16_t *scales;
};

static void group_encode(const float *x, uint8_t *codes, uint16_t *scale)
{
    float most = 0;
    for (int i = 0; i < ROUGH_G; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    *scale = lk_f32_to_f16(most / -8);
    float s = lk_f16_to_f32(*scale), inv = s != 0 && isfinite(s) ? 1 / s : 0;
    int q[ROUGH_G];
    for (int i = 0; i < ROUGH_G; i++) {
        float v = x[i] * inv + 8.5f;
        q[i] = v >= 15 ? 15 : v > 0 ? (int)v : 0; /* NaN: 0 */
    }
    for (int i = 0; i < ROUGH_G / 2; i++) codes[i] = (uint8_t)(q[i] | q[i + ROUGH_G / 2] << 4);
}

static void rough_rows(void *arg, int part, int worker)
{
    const struct rough_job *j = arg;
    int64_t k = j->w->k, end = (int64_t)(part + 1) * ROWS;
    float *x = cpu_row(j->c, worker);
    for (int64_t r = (int64_t)part * ROWS; r < end && r < j->w->n; r++) {
        lk_weight_row(j->w, r, 0, k, x);
        for (int64_t g = 0; g < k / ROUGH_G; g++)
            group_encode(x + g * ROUGH_G, j->codes + (r * k + g * ROUGH_G) / 2, j->scales + r * (k / ROUGH_G) + g);
    }
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
    struct rough_job j = {c, w, p->owned, (uint16_t *)((char *)p->owned + codes)};
    lk_pool_run(c->pool, (int)((w->n + ROWS - 1) / ROWS), rough_rows, &j);
    p->w = (struct lk_weight){.fmt = LK_FMT_Q4, .n = w->n, .k = w->k, .data = j.codes, .scale = j.scales,
                              .scale_dtype = LK_DT_F16, .group = ROUGH_G, .global = 1};
    return 0;
}
