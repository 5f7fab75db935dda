/* Quantisers: see encode.h. All arithmetic in f32, in the order of the reference. */
#include "artifact/encode.h"

#include "base/num.h"

#include <float.h>

float lk_amax(const float *x, int64_t k)
{
    float m = 0;
    for (int64_t i = 0; i < k; i++)
        if (fabsf(x[i]) > m) m = fabsf(x[i]);
    return m;
}

static float clamp(float v, float lo, float hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

void lk_encode_fp8(const float *x, int64_t k, uint8_t *codes, float *scale)
{
    float s = lk_amax(x, k) / 448.0f;
    if (s == 0) s = FLT_EPSILON;
    *scale = s;
    for (int64_t i = 0; i < k; i++) codes[i] = lk_f32_to_e4m3(clamp(x[i] / s, -448.0f, 448.0f));
}

void lk_encode_i8(const float *x, int64_t k, int8_t *codes, float *scale)
{
    float s = lk_amax(x, k) / 127.0f;
    if (s == 0) s = FLT_EPSILON;
    *scale = s;
    for (int64_t i = 0; i < k; i++) codes[i] = (int8_t)clamp(nearbyintf(x[i] / s), -127.0f, 127.0f);
}

float lk_nvfp4_global(float amax)
{
    float g = 448.0f * 6.0f / (amax < FLT_MIN ? FLT_MIN : amax);
    return isfinite(g) ? g : 1.0f;
}

/* Nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code; the sign bit is kept also for zero. */
static uint8_t e2m1_code(float v)
{
    float a = fabsf(v);
    int c = a <= 0.25f ? 0 : a < 0.75f ? 1 : a <= 1.25f ? 2 : a < 1.75f ? 3 : a <= 2.5f ? 4 : a < 3.5f ? 5 : a <= 5.0f ? 6 : 7;
    return (uint8_t)(c | (signbit(v) ? 8 : 0));
}

void lk_encode_nvfp4(const float *x, int64_t k, float global, uint8_t *packed, uint8_t *scales)
{
    for (int64_t g = 0; g < k / 16; g++, x += 16, packed += 8) {
        scales[g] = lk_f32_to_e4m3(global * (lk_amax(x, 16) / 6.0f));
        if (!scales[g]) scales[g] = lk_f32_to_e4m3(0.125f); /* the reference's stand-in for a zero scale */
        float s = lk_e4m3_to_f32(scales[g]) / global;
        for (int j = 0; j < 8; j++) packed[j] = (uint8_t)(e2m1_code(x[2 * j] / s) | e2m1_code(x[2 * j + 1] / s) << 4);
    }
}

/* Squared error of one group under scale s. */
static float q4_error(const float *x, int64_t n, float s)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = x[i] - s * clamp(nearbyintf(x[i] / s), -8.0f, 7.0f);
        sum += d * d;
    }
    return sum;
}

/* The sign of the scale lets the larger side use code -8; shrinking it trades the clipped few against the many. */
static float q4_scale(const float *x, int64_t n)
{
    float top = 0, best = 0, least = FLT_MAX;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(top)) top = x[i];
    for (int c = 0; c < 16 && top != 0; c++) {
        float s = lk_bf16_to_f32(lk_f32_to_bf16(-top / (7.25f + 0.125f * (float)c)));
        float err = s != 0 ? q4_error(x, n, s) : FLT_MAX;
        if (err < least) {
            least = err;
            best = s;
        }
    }
    return best;
}

void lk_encode_q4(const float *x, int64_t k, int64_t group, uint8_t *packed, uint16_t *scales)
{
    for (int64_t g = 0; g < k / group; g++, x += group, packed += group / 2) {
        float s = q4_scale(x, group);
        scales[g] = lk_f32_to_bf16(s);
        for (int64_t j = 0; j < group; j += 2) {
            int a = s != 0 ? (int)clamp(nearbyintf(x[j] / s), -8.0f, 7.0f) : 0;
            int b = s != 0 ? (int)clamp(nearbyintf(x[j + 1] / s), -8.0f, 7.0f) : 0;
            packed[j / 2] = (uint8_t)((a + 8) | (b + 8) << 4);
        }
    }
}
