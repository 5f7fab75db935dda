/* The wide product: more than 16 rows of x. Compiled once an instruction set.
 *
 * A part is WN weight rows by a slice of x's rows. Chunk of WK columns by chunk, the weights are
 * decoded once into a panel, columns first, and multiplied by tiles of TQ rows of x times three
 * vectors of weight rows that stay in registers: per column three loads of weights and TQ broadcasts
 * for 3 TQ multiply-adds. A sum is one chain over the columns of a chunk, the chunks added up:
 * neither the cut in parts nor the number of threads changes a bit. */
#ifndef LK_CPU_K_GEMM_H
#define LK_CPU_K_GEMM_H

#include "cpu/k_rows.h"

#if VW == 16
enum { TQ = 8 }; /* 24 sums of 32 registers */
#else
enum { TQ = 4 }; /* 12 sums of 16 */
#endif

enum {
    SW = 3 * VW, /* weight rows a strip: a strip of a panel, 24 x 256 f32, takes 24 KB of a 32 KB L1 */
    WN = 48,     /* weight rows a part: whole strips at any width */
    GR = 8,      /* rows decoded together, then turned */
};

/* ---- turning rows into columns ---- */

/* dst[c * ldd + r] = src[r * lds + c], 8 x 8 */
CPU_INLINE void turn8(const float *src, int64_t lds, float *dst, int64_t ldd)
{
#if defined(__AVX2__)
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(src + i * lds);
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * ldd, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * ldd, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
#else
    for (int c = 0; c < 8; c++)
        for (int r = 0; r < 8; r++) dst[c * ldd + r] = src[r * lds + c];
#endif
}

/* the same for TQ rows and 8 columns, ldd TQ */
CPU_INLINE void turn_quad(const float *src, int64_t lds, float *dst)
{
#if VW == 16
    turn8(src, lds, dst, TQ);
#elif VW == 8
    __m256 a = _mm256_loadu_ps(src), b = _mm256_loadu_ps(src + lds),
           c = _mm256_loadu_ps(src + 2 * lds), d = _mm256_loadu_ps(src + 3 * lds);
    __m256 p = _mm256_unpacklo_ps(a, b), q = _mm256_unpackhi_ps(a, b),
           r = _mm256_unpacklo_ps(c, d), s = _mm256_unpackhi_ps(c, d);
    __m256 e = _mm256_shuffle_ps(p, r, 0x44), f = _mm256_shuffle_ps(p, r, 0xee),
           g = _mm256_shuffle_ps(q, s, 0x44), h = _mm256_shuffle_ps(q, s, 0xee);
    _mm256_storeu_ps(dst, _mm256_permute2f128_ps(e, f, 0x20));
    _mm256_storeu_ps(dst + 8, _mm256_permute2f128_ps(g, h, 0x20));
    _mm256_storeu_ps(dst + 16, _mm256_permute2f128_ps(e, f, 0x31));
    _mm256_storeu_ps(dst + 24, _mm256_permute2f128_ps(g, h, 0x31));
#else
    for (int c = 0; c < 8; c++)
        for (int r = 0; r < TQ; r++) dst[c * TQ + r] = src[r * lds + c];
#endif
}

/* ---- x: [chunk][TQ rows][column][row], rows past T are zero ---- */

struct pack_job {
    const float *x;
    float *dst;
    int64_t k;
    int T;
    enum perm perm;
};

static int64_t quads_of(int T)
{
    return (T + TQ - 1) / TQ;
}

static void pack_quad(void *arg, int part, int worker)
{
    const struct pack_job *j = arg;
    int64_t kp = k_padded(j->k), nq = quads_of(j->T);
    for (int64_t k0 = 0; k0 < kp; k0 += WK) {
        int64_t len = kp - k0 < WK ? kp - k0 : WK;
        float *dst = j->dst + k0 * nq * TQ + part * len * TQ;
        for (int64_t b = k0; b < k0 + len; b += KB, dst += KB * TQ) {
            float tmp[TQ][KB] = {{0}};
            for (int t = 0; t < TQ && part * TQ + t < j->T; t++)
                pack_row(j->x + (int64_t)(part * TQ + t) * j->k + b,
                         j->k - b < KB ? j->k - b : KB, j->perm, 1, tmp[t]);
            for (int i = 0; i < KB; i += 8) turn_quad(tmp[0] + i, KB, dst + i * TQ);
        }
    }
}

/* ---- the product ---- */

struct gemm_scratch { /* a thread's; the tiles of gate and up follow */
    float rows[GR * WK], panel[WN * WK];
};

/* Weight rows row..row+rows of a chunk, by strips, columns first; rows past the end are zero. */
static void gemm_panel(const struct cpu_part *p, int64_t row, int rows, int64_t k0, int len,
                       struct gemm_scratch *s)
{
    for (int r = 0; r < rows; r += GR) {
        int n = rows - r < GR ? rows - r : GR;
        int64_t at = row + r;
        const struct cpu_part *one = cpu_turn(p, &at);
        fmts[one->kern].panel(one, at, n, k0 / KB, len / KB, s->rows);
        if (n < GR) memset(s->rows + n * WK, 0, (size_t)((GR - n) * WK) * sizeof *s->rows);
        for (int k = 0; k < len; k += 8)
            for (int h = 0; h < GR; h += 8) {
                int at = r + h;
                float *dst = s->panel + at / SW * SW * WK + k * SW + at % SW;
                if (SW % 8 == 0) {
                    turn8(s->rows + h * WK + k, WK, dst, SW);
                    continue;
                }
                for (int i = 0; i < 8; i++, at++) /* a narrow strip ends inside eight rows */
                    for (int c = 0; c < 8; c++)
                        s->panel[at / SW * SW * WK + (k + c) * SW + at % SW] =
                            s->rows[(h + i) * WK + k + c];
            }
    }
}

/* c[t][0..SW) (+)= sum over len columns; first: the chunk that begins the sum */
CPU_INLINE void gemm_tile(const float *w, const float *x, int len, float *c, int first)
{
    vf a[TQ][3];
#pragma GCC unroll 8
    for (int t = 0; t < TQ; t++) a[t][0] = a[t][1] = a[t][2] = vf_set(0);
    for (int k = 0; k < len; k++, w += SW, x += TQ) {
        vf w0 = vf_load(w), w1 = vf_load(w + VW), w2 = vf_load(w + 2 * VW);
#pragma GCC unroll 8
        for (int t = 0; t < TQ; t++) {
            vf xt = vf_set(x[t]);
            a[t][0] = vf_fma(w0, xt, a[t][0]);
            a[t][1] = vf_fma(w1, xt, a[t][1]);
            a[t][2] = vf_fma(w2, xt, a[t][2]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TQ; t++)
        for (int i = 0; i < 3; i++) {
            float *p = c + t * WN + i * VW;
            vf_store(p, first ? a[t][i] : vf_add(vf_load(p), a[t][i]));
        }
}

/* tile[rows of x][WN] of some rows of TQ: q0..q1 */
static void gemm_rows(const struct lin_job *j, const struct cpu_part *p, int64_t row, int q0, int q1,
                      struct gemm_scratch *s, float *tile)
{
    int64_t kp = k_padded(p->w.k), nq = quads_of(j->T);
    int rows = p->w.n - row < WN ? (int)(p->w.n - row) : WN;
    for (int64_t k0 = 0; k0 < kp; k0 += WK) {
        int len = (int)(kp - k0 < WK ? kp - k0 : WK);
        gemm_panel(p, row, rows, k0, len, s);
        for (int n = 0; n < rows; n += SW)
            for (int q = q0; q < q1; q++)
                gemm_tile(s->panel + n * WK, j->x + k0 * nq * TQ + (int64_t)q * len * TQ, len,
                          tile + (int64_t)(q - q0) * TQ * WN + n, k0 == 0);
    }
}

static void gemm_part(void *arg, int part, int worker)
{
    const struct lin_job *j = arg;
    int nq = (int)quads_of(j->T), slice = part % j->slices, per = (nq + j->slices - 1) / j->slices;
    int q0 = slice * per, q1 = q0 + per < nq ? q0 + per : nq;
    int64_t row = (int64_t)(part / j->slices) * WN;
    int rows = j->p->w.n - row < WN ? (int)(j->p->w.n - row) : WN;
    struct gemm_scratch *s =
        (void *)((char *)j->c->worker.p + (size_t)worker * j->c->worker_bytes);
    float *tile = (float *)(s + 1), *up = tile + (int64_t)nq * TQ * WN;
    if (q0 >= q1) return;
    gemm_rows(j, j->p, row, q0, q1, s, tile);
    if (j->gate) gemm_rows(j, j->p + 1, row, q0, q1, s, up);
    for (int t = q0 * TQ; t < q1 * TQ && t < j->T; t++, tile += WN, up += WN) {
        float *y = j->y + (int64_t)t * j->ldy + row;
        if (j->gate) /* lanes past `rows` hold old numbers and are not stored */
            for (int i = 0; i < WN; i += VW)
                vf_store(tile + i, vf_mul(vf_silu(vf_load(tile + i)), vf_load(up + i)));
        if (j->add)
            for (int r = 0; r < rows; r++) y[r] += tile[r];
        else
            memcpy(y, tile, (size_t)rows * sizeof *y);
    }
}

/* Slices of x's rows: at least four parts a thread where the weight has few rows. */
static int gemm_slices(const struct lin_job *j, int blocks)
{
    int slices = 1;
    while (blocks * slices < 4 * j->c->threads && slices * 16 * TQ < j->T) slices *= 2;
    return slices;
}

static size_t lin_worker_bytes(int max_rows)
{
    return sizeof(struct gemm_scratch) +
           2 * WN * (size_t)quads_of(max_rows) * TQ * sizeof(float);
}

static size_t lin_work_bytes(int64_t k, int max_rows)
{
    return (size_t)quads_of(max_rows) * TQ * (size_t)k_padded(k) * sizeof(float);
}

#endif
