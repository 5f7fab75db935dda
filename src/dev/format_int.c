/* Exact decode of packed integer layouts: compressed-tensors pack-quantized, GPTQ and AWQ (layouts in format.h). Codes, zero
 * points and scales lie in three arrays of little-endian words, possibly unaligned. */
#include "base/num.h"
#include "dev/format_row.h"

/* Field i of `bits` bits in an array of 32-bit words, low bits first. */
static int word_field(const void *words, int64_t i, int bits)
{
    int per = 32 / bits;
    uint32_t u = lk_get32((const uint8_t *)words + i / per * 4);
    return (int)(u >> (i % per * bits) & ((1u << bits) - 1));
}

static int64_t group_of(const struct lk_weight *w, int64_t k)
{
    return w->gidx ? w->gidx[k] : k / w->group;
}

void lk__row_ct(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    int bits = w->fmt == LK_FMT_CT4 ? 4 : 8, per = 32 / bits;
    int64_t words = (w->k + per - 1) / per, groups = (w->k + w->group - 1) / w->group;
    const uint8_t *d = (const uint8_t *)w->data + row * words * 4;
    for (int64_t k = k0; k < k0 + count; k++) {
        int64_t g = group_of(w, k);
        int q = word_field(d, k, bits), z = 1 << (bits - 1);
        if (w->zero) /* packed along n: word [n / per, g] */
            z = (int)(lk_get32((const uint8_t *)w->zero + (row / per * groups + g) * 4) >> (row % per * bits) &
                      ((1u << bits) - 1));
        *out++ = (float)(q - z) * lk_dtype_get(w->scale_dtype, w->scale, row * groups + g);
    }
}

void lk__row_gptq(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    int bits = w->fmt == LK_FMT_GPTQ4 ? 4 : 8, per = 32 / bits;
    int64_t zero_words = (w->n + per - 1) / per;
    uint32_t mask = (1u << bits) - 1;
    for (int64_t k = k0; k < k0 + count; k++) {
        int64_t g = group_of(w, k);
        uint32_t word = lk_get32((const uint8_t *)w->data + (k / per * w->n + row) * 4);
        int q = (int)(word >> (k % per * bits) & mask);
        int z = word_field((const uint8_t *)w->zero + g * zero_words * 4, row, bits) + w->zero_plus1;
        *out++ = (float)(q - z) * lk_dtype_get(w->scale_dtype, w->scale, g * w->n + row);
    }
}

void lk__row_awq(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    static const uint8_t shift[8] = {0, 16, 4, 20, 8, 24, 12, 28}; /* column j of a word sits in nibble 0,4,1,5,2,6,3,7 */
    int64_t words = (w->n + 7) / 8;
    int sh = shift[row % 8];
    for (int64_t k = k0; k < k0 + count; k++) {
        int64_t g = group_of(w, k);
        int q = (int)(lk_get32((const uint8_t *)w->data + (k * words + row / 8) * 4) >> sh & 15);
        int z = (int)(lk_get32((const uint8_t *)w->zero + (g * words + row / 8) * 4) >> sh & 15);
        *out++ = (float)(q - z) * lk_dtype_get(w->scale_dtype, w->scale, g * w->n + row);
    }
}
