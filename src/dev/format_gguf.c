/* Exact decode of GGUF blocks, one function a type, in the order of operations of the `gguf` Python package, so that values agree bit for
 * bit. A block is 32 or 256 elements; a row is whole blocks. Grids of the IQ types stand in iq_grids.c. */
#include "base/num.h"
#include "dev/format_row.h"
#include "dev/iq_grids.h"

static const int8_t kvalues_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t kvalues_mx4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float half_at(const uint8_t *p)
{
    return lk_f16_to_f32(lk_get16(p));
}

static void q8_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = (float)(int8_t)b[2 + j] * d;
}

static void q4_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)((b[2 + j % 16] >> j / 16 * 4 & 15) - 8);
}

static void q4_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(b[4 + j % 16] >> j / 16 * 4 & 15) + m;
}

static int q5_code(const uint8_t *qh, const uint8_t *qs, int j)
{
    return (qs[j % 16] >> j / 16 * 4 & 15) | (int)(lk_get32(qh) >> j & 1) << 4;
}

static void q5_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(q5_code(b + 2, b + 6, j) - 16);
}

static void q5_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 32; j++) y[j] = d * (float)q5_code(b + 4, b + 8, j) + m;
}

static void iq4_nl(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)kvalues_iq4[b[2 + j % 16] >> j / 16 * 4 & 15];
}

static void mxfp4(const uint8_t *b, float *y)
{
    /* half of 2^(e-127), as the value table is doubled; 0xff is not treated as NaN by the reference */
    float d = lk_f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    for (int j = 0; j < 32; j++) y[j] = d * (float)kvalues_mx4[b[1 + j % 16] >> j / 16 * 4 & 15];
}

static void q2_k(const uint8_t *b, float *y)
{
    const uint8_t *sc = b, *qs = b + 16;
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int j = 0; j < 256; j++) {
        int s = sc[j / 16], q = qs[j / 128 * 32 + j % 32] >> j / 32 % 4 * 2 & 3;
        float dl = d * (float)(s & 15), ml = dmin * (float)(s >> 4);
        y[j] = dl * (float)q - ml;
    }
}

static void q3_k(const uint8_t *b, float *y)
{
    const uint8_t *hm = b, *qs = b + 32, *sc = b + 96;
    float d = half_at(b + 108);
    for (int j = 0; j < 256; j++) {
        int s = j / 16, lo = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4, hi = sc[8 + s % 4] >> s / 4 * 2 & 3;
        int q = qs[j / 128 * 32 + j % 32] >> j / 32 % 4 * 2 & 3;
        if (!(hm[j % 32] >> j / 32 & 1)) q -= 4;
        y[j] = d * (float)((lo | hi << 4) - 32) * (float)q;
    }
}

/* The 6-bit scale and minimum of sub-block j of Q4_K and Q5_K. */
static void k4_scale(const uint8_t *p, int j, int *sc, int *m)
{
    if (j < 4) {
        *sc = p[j] & 63;
        *m = p[j + 4] & 63;
    } else {
        *sc = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
        *m = (p[j + 4] >> 4) | (p[j] >> 6) << 4;
    }
}

static void q4_k(const uint8_t *b, float *y)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 256; j++) {
        int sc, m;
        k4_scale(b + 4, j / 32, &sc, &m);
        int q = b[16 + j / 64 * 32 + j % 32] >> j / 32 % 2 * 4 & 15;
        y[j] = d * (float)sc * (float)q - dmin * (float)m;
    }
}

static void q5_k(const uint8_t *b, float *y)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 256; j++) {
        int sc, m;
        k4_scale(b + 4, j / 32, &sc, &m);
        int q = (b[48 + j / 64 * 32 + j % 32] >> j / 32 % 2 * 4 & 15) | (b[16 + j % 32] >> j / 32 & 1) << 4;
        y[j] = d * (float)sc * (float)q - dmin * (float)m;
    }
}

static void q6_k(const uint8_t *b, float *y)
{
    const uint8_t *ql = b, *qh = b + 128, *sc = b + 192;
    float d = half_at(b + 208);
    for (int j = 0; j < 256; j++) {
        int half = j / 128, g = j / 32 % 4, l = j % 32; /* g: which quarter of the 128 */
        int lo = ql[half * 64 + g % 2 * 32 + l] >> g / 2 * 4 & 15, hi = qh[half * 32 + l] >> g * 2 & 3;
        y[j] = d * (float)(int8_t)sc[j / 16] * (float)((lo | hi << 4) - 32);
    }
}

static void iq4_xs(const uint8_t *b, float *y)
{
    float d = half_at(b);
    int high = lk_get16(b + 2);
    for (int j = 0; j < 256; j++) {
        int ib = j / 32, ls = (b[4 + ib / 2] >> ib % 2 * 4 & 15) | (high >> ib * 2 & 3) << 4;
        int c = b[8 + ib * 16 + j % 16] >> j % 32 / 16 * 4 & 15;
        y[j] = d * (float)(ls - 32) * (float)kvalues_iq4[c];
    }
}

/* Seven stored sign bits; the eighth makes their number even. */
static int sign_byte(uint32_t i)
{
    i &= 127;
    return (int)(i | (uint32_t)__builtin_parity(i) << 7);
}

static float signed_by(float v, int signs, int bit)
{
    return signs >> bit & 1 ? -v : v;
}

static void iq3_s(const uint8_t *b, float *y)
{
    const uint8_t *qs = b + 2, *qh = b + 66, *sg = b + 74, *sc = b + 106;
    float d = half_at(b);
    for (int j = 0; j < 256; j++) {
        int ib = j / 32, e = j % 32 / 4, idx = qs[j / 4] | (qh[ib] >> e & 1) << 8;
        float db = d * (float)(1 + 2 * (sc[ib / 2] >> ib % 2 * 4 & 15));
        y[j] = signed_by(db * (float)lk_iq3s_value(idx, j % 4), sg[j / 8], j % 8);
    }
}

static void iq3_xxs(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 256; j++) {
        uint32_t u = lk_get32(b + 66 + j / 32 * 4);
        float db = d * (0.5f + (float)(u >> 28)) * 0.5f;
        y[j] = signed_by(db * (float)lk_iq3xxs_value(b[2 + j / 4], j % 4), sign_byte(u >> j % 32 / 8 * 7), j % 8);
    }
}

static void iq2_s(const uint8_t *b, float *y)
{
    const uint8_t *qs = b + 2, *sg = b + 34, *qh = b + 66, *sc = b + 74;
    float d = half_at(b);
    for (int j = 0; j < 256; j++) {
        int l = j / 8, idx = qs[l] | (qh[l / 4] >> l % 4 * 2 & 3) << 8;
        float db = d * (0.5f + (float)(sc[j / 32] >> j % 32 / 16 * 4 & 15)) * 0.25f;
        y[j] = signed_by(db * (float)lk_iq2s_value(idx, j % 8), sg[l], j % 8);
    }
}

static void iq2_xs(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 256; j++) {
        uint32_t u = lk_get16(b + 2 + j / 8 * 2);
        float db = d * (0.5f + (float)(b[66 + j / 32] >> j % 32 / 16 * 4 & 15)) * 0.25f;
        y[j] = signed_by(db * (float)lk_iq2xs_value((int)(u & 511), j % 8), sign_byte(u >> 9), j % 8);
    }
}

static void iq2_xxs(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int j = 0; j < 256; j++) {
        const uint8_t *p = b + 2 + j / 32 * 8;
        uint32_t u = lk_get32(p + 4);
        int l = j % 32 / 8;
        float db = d * (0.5f + (float)(u >> 28)) * 0.25f;
        y[j] = signed_by(db * (float)lk_iq2xxs_value(p[l], j % 8), sign_byte(u >> l * 7), j % 8);
    }
}

static void block_decode(enum lk_fmt f, const uint8_t *b, float *y)
{
    switch (f) {
    case LK_FMT_GG_Q4_0: q4_0(b, y); break;
    case LK_FMT_GG_Q4_1: q4_1(b, y); break;
    case LK_FMT_GG_Q5_0: q5_0(b, y); break;
    case LK_FMT_GG_Q5_1: q5_1(b, y); break;
    case LK_FMT_GG_Q8_0: q8_0(b, y); break;
    case LK_FMT_GG_Q2_K: q2_k(b, y); break;
    case LK_FMT_GG_Q3_K: q3_k(b, y); break;
    case LK_FMT_GG_Q4_K: q4_k(b, y); break;
    case LK_FMT_GG_Q5_K: q5_k(b, y); break;
    case LK_FMT_GG_Q6_K: q6_k(b, y); break;
    case LK_FMT_GG_IQ4_NL: iq4_nl(b, y); break;
    case LK_FMT_GG_IQ4_XS: iq4_xs(b, y); break;
    case LK_FMT_GG_IQ3_S: iq3_s(b, y); break;
    case LK_FMT_GG_IQ3_XXS: iq3_xxs(b, y); break;
    case LK_FMT_GG_IQ2_S: iq2_s(b, y); break;
    case LK_FMT_GG_IQ2_XS: iq2_xs(b, y); break;
    case LK_FMT_GG_IQ2_XXS: iq2_xxs(b, y); break;
    case LK_FMT_GG_MXFP4: mxfp4(b, y); break;
    default: break;
    }
}

void lk__row_gguf(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out)
{
    const struct lk_fmt_info *f = lk_fmt_info(w->fmt);
    const uint8_t *d = (const uint8_t *)w->data + row * (w->k / f->block) * f->block_bytes;
    float y[256];
    while (count > 0) {
        int64_t b = k0 / f->block, off = k0 % f->block, n = f->block - off;
        if (n > count) n = count;
        block_decode(w->fmt, d + b * f->block_bytes, y);
        memcpy(out, y + off, (size_t)n * sizeof *out);
        out += n;
        k0 += n;
        count -= n;
    }
}
