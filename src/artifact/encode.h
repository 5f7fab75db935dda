/* Quantisers of `laoka convert`: f32 rows -> codes and scales, by the rules of compressed-tensors, so that its de-quantisation of these
 * bytes gives the values its own compressor would give. Rows are independent. Private to src/artifact and its tests. */
#ifndef LK_ARTIFACT_ENCODE_H
#define LK_ARTIFACT_ENCODE_H

#include <stddef.h>
#include <stdint.h>

float lk_amax(const float *x, int64_t k); /* largest magnitude; NaN counts as 0 */

/* FP8 E4M3, one scale a row: scale = amax / 448. */
void lk_encode_fp8(const float *x, int64_t k, uint8_t *codes, float *scale);
/* INT8, one scale a row: scale = amax / 127, codes -127..127. */
void lk_encode_i8(const float *x, int64_t k, int8_t *codes, float *scale);
/* NVFP4: scales e4m3 a group of 16 = global * amax / 6; two codes a byte, low nibble first. k a multiple of 16. */
float lk_nvfp4_global(float amax); /* 448 * 6 / amax, 1 when that is not finite */
void lk_encode_nvfp4(const float *x, int64_t k, float global, uint8_t *packed, uint8_t *scales);
/* Symmetric 4-bit codes (code - 8) with one BF16 scale a group; of 16 candidate scales the one with the least squared error.
 * k a multiple of group, group even. */
void lk_encode_q4(const float *x, int64_t k, int64_t group, uint8_t *packed, uint16_t *scales);

#endif
