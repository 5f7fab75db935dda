/* Rows of formats that a file lays out in a way of its own (GGUF blocks, GPTQ, AWQ, zero points) as what the pack kernels take: codes,
 * and a scale, and perhaps a min, for 32 columns. The codes are the file's; scale and min are rounded to f16 when packed. */
#include "cuda/cuda_mat.h"

#include <math.h>
#include <string.h>

int cu_repack_fmt(const struct lk_weight *w)
{
    struct lk_affine a;
    if (lk_weight_affine(w, &a) != CU_KU || w->k % CU_KU) return -1;
    if (a.has_min) return a.hi <= 15 ? CU_Q4M : -1;
    return a.lo >= -8 && a.hi <= 7 ? CU_Q4 : CU_I8G;
}

/* The code of each of 32 values */
static void codes_of(const float *v, float scale, float min, int lo, int hi, int *c)
{
    float inv = scale != 0 ? 1.0f / scale : 0;
    for (int i = 0; i < CU_KU; i++) {
        float q = rintf((v[i] - min) * inv);
        c[i] = q < (float)lo || !(q == q) ? lo : q > (float)hi ? hi : (int)q; /* a file's NaN scale: any code will do */
        if (scale == 0) c[i] = lo > 0 ? lo : 0;
    }
}

void cu_repack_row(const struct lk_weight *w, int64_t row, int fmt, float *values, uint8_t *codes, float *scale, float *min)
{
    struct lk_affine a;
    lk_weight_affine(w, &a);
    lk_weight_row(w, row, 0, w->k, values);
    for (int64_t g = 0; g < w->k / CU_KU; g++) {
        int c[CU_KU];
        float s, m;
        lk_weight_run(w, row, g * CU_KU, &s, &m);
        codes_of(values + g * CU_KU, s, m, a.lo, a.hi, c);
        scale[g] = s;
        if (min) min[g] = m;
        if (fmt == CU_I8G) {
            for (int i = 0; i < CU_KU; i++) codes[g * CU_KU + i] = (uint8_t)(c[i] + 128);
            continue;
        }
        int bias = fmt == CU_Q4 ? 8 : 0;
        for (int i = 0; i < CU_KU; i += 2) codes[(g * CU_KU + i) / 2] = (uint8_t)((c[i] + bias) | (c[i + 1] + bias) << 4);
    }
}
