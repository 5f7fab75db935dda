/* linear, gate_up and embed. Compiled once an instruction set.
 *
 * Two regimes. Up to 16 rows of x ("small"): a weight row is decoded in registers, block of 64 by
 * block, and multiplied with up to 8 rows of x at once; a sum is 64 products in a chain, the chains
 * added up, whatever T: batch-invariant, and the weight's bytes are read from memory once. Above
 * ("wide"): panels of WN weight rows x WK columns are decoded to f32 in the cache and multiplied
 * tile by tile, 4 rows of x by 3 of weight. Parts are blocks of weight rows of fixed size, so the
 * number of threads changes nothing. */
#ifndef LK_CPU_K_LINEAR_H
#define LK_CPU_K_LINEAR_H

#include "cpu/k_decode.h"
#include "cpu/kern.h"

enum {
    SN = 16,  /* weight rows of a small part: 16 x 17408 bf16 is 557 KB, read once */
    ST = 8,   /* most rows of x at once: 8 sums and 8 weight vectors are 16 registers */
    WN = 48,  /* weight rows of a wide part: the panel (48 x 512 f32) takes 96 KB of a 512 KB L2 */
    WK = 512, /* columns of a panel: 8 rows of x take 16 KB, 3 of weight 6 KB, together in a 32 KB
                 L1 */
};

typedef void (*small_fn)(const struct cpu_part *p, int64_t row, int rows, const float *x,
                         int64_t ldx, int T, float *sum);
typedef void (*panel_fn)(const struct cpu_part *p, int64_t row, int rows, int64_t b0, int nb,
                         float *out);

static uint8_t perms[PERM_COUNT][KB];

/* sum[t * SN + r] = row `row + r` times x row t, for one constant T */
CPU_INLINE void small_rows(dec_fn dec, const struct cpu_part *p, int64_t row, int rows,
                           const float *x, int64_t ldx, const int T, float *sum,
                           const uint8_t *perm)
{
    int64_t nb = p->w.k / KB, tail = p->w.k % KB;
    for (int r = 0; r < rows; r++) {
        vf acc[ST], v[NV];
        for (int t = 0; t < T; t++) acc[t] = vf_set(0);
        for (int64_t b = 0; b < nb + (tail > 0); b++) {
            if (__builtin_expect(b < nb, 1))
                dec(p, row + r, b, v);
            else
                dec_oracle(p, row + r, b, perm, v);
            const float *xb = x + b * KB;
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                vf s = vf_mul(v[0], vf_load(xb + t * ldx));
#pragma GCC unroll 16
                for (int i = 1; i < NV; i++) s = vf_fma(v[i], vf_load(xb + t * ldx + i * VW), s);
                acc[t] = vf_add(acc[t], s);
            }
        }
        for (int t = 0; t < T; t++) sum[t * SN + r] = vf_sum(acc[t]);
    }
}

/* Rows of a panel, WK floats apart. */
CPU_INLINE void panel_rows(dec_fn dec, const struct cpu_part *p, int64_t row, int rows, int64_t b0,
                           int nb, float *out, const uint8_t *perm)
{
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < nb; b++) {
            vf v[NV];
            if ((b0 + b + 1) * KB <= p->w.k)
                dec(p, row + r, b0 + b, v);
            else
                dec_oracle(p, row + r, b0 + b, perm, v);
            for (int i = 0; i < NV; i++) vf_store(out + r * WK + b * KB + i * VW, v[i]);
        }
}

#define FORMAT(name, class)                                                                        \
    static void small_##name(const struct cpu_part *p, int64_t row, int rows, const float *x,      \
                             int64_t ldx, int T, float *sum)                                       \
    {                                                                                              \
        for (int t; T > 0; T -= t, x += t * ldx, sum += t * SN) {                                  \
            t = T >= 8 ? 8 : T >= 4 ? 4 : T >= 2 ? 2 : 1;                                          \
            if (t == 8)                                                                            \
                small_rows(dec_##name, p, row, rows, x, ldx, 8, sum, perms[class]);                \
            else if (t == 4)                                                                       \
                small_rows(dec_##name, p, row, rows, x, ldx, 4, sum, perms[class]);                \
            else if (t == 2)                                                                       \
                small_rows(dec_##name, p, row, rows, x, ldx, 2, sum, perms[class]);                \
            else                                                                                   \
                small_rows(dec_##name, p, row, rows, x, ldx, 1, sum, perms[class]);                \
        }                                                                                          \
    }                                                                                              \
    static void panel_##name(const struct cpu_part *p, int64_t row, int rows, int64_t b0, int nb,  \
                             float *out)                                                           \
    {                                                                                              \
        panel_rows(dec_##name, p, row, rows, b0, nb, out, perms[class]);                           \
    }

FORMAT(any, PERM_NATURAL)
FORMAT(f32, PERM_NATURAL)
FORMAT(f16s, PERM_NATURAL)
FORMAT(bf16, PERM_NATURAL)
FORMAT(fp8, PERM_NATURAL)
FORMAT(i8, PERM_NATURAL)
FORMAT(ct8, PERM_NATURAL)
FORMAT(q8_0, PERM_NATURAL)
FORMAT(q5_k, PERM_NATURAL)
FORMAT(q6_k, PERM_NATURAL)
#if defined(__AVX2__)
FORMAT(nvfp4, PERM_PAIRS)
FORMAT(q4, PERM_PAIRS)
FORMAT(q4_0, PERM_SPLIT32)
FORMAT(iq4_nl, PERM_SPLIT32)
FORMAT(iq4_xs, PERM_SPLIT32)
FORMAT(mxfp4, PERM_SPLIT32)
FORMAT(q4_k, PERM_SPLIT64)
#endif

enum fmt_id {
    ID_ANY,
    ID_F32,
    ID_F16,
    ID_BF16,
    ID_FP8,
    ID_I8,
    ID_CT8,
    ID_Q8_0,
    ID_Q5_K,
    ID_Q6_K,
    ID_NVFP4,
    ID_Q4,
    ID_Q4_0,
    ID_IQ4_NL,
    ID_IQ4_XS,
    ID_MXFP4,
    ID_Q4_K
};

static const struct fmt_kern {
    small_fn small;
    panel_fn panel;
    enum perm perm;
} fmts[] = {
    [ID_ANY] = {small_any, panel_any, PERM_NATURAL},
    [ID_F32] = {small_f32, panel_f32, PERM_NATURAL},
    [ID_F16] = {small_f16s, panel_f16s, PERM_NATURAL},
    [ID_BF16] = {small_bf16, panel_bf16, PERM_NATURAL},
    [ID_FP8] = {small_fp8, panel_fp8, PERM_NATURAL},
    [ID_I8] = {small_i8, panel_i8, PERM_NATURAL},
    [ID_CT8] = {small_ct8, panel_ct8, PERM_NATURAL},
    [ID_Q8_0] = {small_q8_0, panel_q8_0, PERM_NATURAL},
    [ID_Q5_K] = {small_q5_k, panel_q5_k, PERM_NATURAL},
    [ID_Q6_K] = {small_q6_k, panel_q6_k, PERM_NATURAL},
#if defined(__AVX2__)
    [ID_NVFP4] = {small_nvfp4, panel_nvfp4, PERM_PAIRS},
    [ID_Q4] = {small_q4, panel_q4, PERM_PAIRS},
    [ID_Q4_0] = {small_q4_0, panel_q4_0, PERM_SPLIT32},
    [ID_IQ4_NL] = {small_iq4_nl, panel_iq4_nl, PERM_SPLIT32},
    [ID_IQ4_XS] = {small_iq4_xs, panel_iq4_xs, PERM_SPLIT32},
    [ID_MXFP4] = {small_mxfp4, panel_mxfp4, PERM_SPLIT32},
    [ID_Q4_K] = {small_q4_k, panel_q4_k, PERM_SPLIT64},
#endif
};

/* A kernel needs scales that cover whole blocks of 64, halves of one, or the row. */
static int group_fits(const struct lk_weight *w, int64_t group)
{
    return group >= w->k || group % KB == 0;
}

static enum fmt_id pick_int(const struct lk_weight *w)
{
    if (w->gidx || w->zero || !(group_fits(w, w->group) || w->group == 32)) return ID_ANY;
    if (w->fmt == LK_FMT_I8) return ID_I8;
    if (w->fmt == LK_FMT_CT8) return w->k % 4 ? ID_ANY : ID_CT8;
#if defined(__AVX2__)
    if (w->fmt == LK_FMT_Q4 || (w->fmt == LK_FMT_CT4 && w->k % 8 == 0)) return ID_Q4;
#endif
    return ID_ANY;
}

static int lin_pick(const struct lk_weight *w)
{
    switch (w->fmt) {
    case LK_FMT_F32:
        return ID_F32;
    case LK_FMT_F16:
        return ID_F16;
    case LK_FMT_BF16:
        return ID_BF16;
    case LK_FMT_FP8:
        return group_fits(w, w->block_k) ? ID_FP8 : ID_ANY;
    case LK_FMT_I8:
    case LK_FMT_Q4:
    case LK_FMT_CT4:
    case LK_FMT_CT8:
        return pick_int(w);
    case LK_FMT_GG_Q8_0:
        return ID_Q8_0;
    case LK_FMT_GG_Q5_K:
        return ID_Q5_K;
    case LK_FMT_GG_Q6_K:
        return ID_Q6_K;
#if defined(__AVX2__)
    case LK_FMT_NVFP4:
        return ID_NVFP4;
    case LK_FMT_GG_Q4_0:
        return ID_Q4_0;
    case LK_FMT_GG_IQ4_NL:
        return ID_IQ4_NL;
    case LK_FMT_GG_IQ4_XS:
        return ID_IQ4_XS;
    case LK_FMT_GG_MXFP4:
        return ID_MXFP4;
    case LK_FMT_GG_Q4_K:
        return ID_Q4_K;
#endif
    default:
        return ID_ANY;
    }
}

static void lin_init(void)
{
    for (int c = 0; c < PERM_COUNT; c++)
        for (int i = 0; i < KB; i++) perms[c][i] = perm_place((enum perm)c, i);
}

/* ---- x in the order of a format ---- */

static int64_t k_padded(int64_t k)
{
    return (k + KB - 1) / KB * KB;
}

/* One row of x to dst: natural rows are copied, the end is zero up to a whole block. */
static void pack_row(const float *x, int64_t k, enum perm c, float *dst)
{
    int64_t whole = k / KB * KB;
    if (c == PERM_NATURAL || VW == 4) {
        memcpy(dst, x, (size_t)k * sizeof *x);
        for (int64_t i = k; i < k_padded(k); i++) dst[i] = 0;
        return;
    }
    const uint8_t *perm = perms[c];
    for (int64_t b = 0; b < whole; b += KB)
        for (int i = 0; i < KB; i++) dst[b + i] = x[b + perm[i]];
    if (whole == k) return;
    for (int i = 0; i < KB; i++) dst[whole + i] = whole + perm[i] < k ? x[whole + perm[i]] : 0;
}

struct lin_job {
    struct cpu_dev *c;
    const struct cpu_part *p; /* gate_up: the gate; the up part follows */
    const float *x;           /* packed */
    int64_t ldx;
    float *y;
    int T, ldy, add, gate;
};

/* ---- small ---- */

static void small_part(void *arg, int part, int worker)
{
    const struct lin_job *j = arg;
    int64_t row = (int64_t)part * SN;
    int rows = j->p->w.n - row < SN ? (int)(j->p->w.n - row) : SN;
    float s[2][CPU_SMALL_ROWS * SN];
    fmts[j->p->kern].small(j->p, row, rows, j->x, j->ldx, j->T, s[0]);
    if (j->gate) {
        fmts[j->p[1].kern].small(j->p + 1, row, rows, j->x, j->ldx, j->T, s[1]);
        for (int i = rows; i < SN; i++) /* whole vectors below; these lanes are not stored */
            for (int t = 0; t < j->T; t++) s[0][t * SN + i] = s[1][t * SN + i] = 0;
    }
    for (int t = 0; t < j->T; t++) {
        float *y = j->y + (int64_t)t * j->ldy + row, *v = s[0] + t * SN;
        if (j->gate)
            for (int i = 0; i < SN; i += VW)
                vf_store(v + i, vf_mul(vf_silu(vf_load(v + i)), vf_load(s[1] + t * SN + i)));
        for (int i = 0; i < rows; i++) y[i] = j->add ? y[i] + v[i] : v[i];
    }
}

/* ---- wide ---- */

/* x of four rows, interleaved vector by vector: [T/4][k/VW][4][VW]; rows past T are zero. */
struct pack_job {
    const float *x;
    float *dst;
    int64_t k;
    int T;
    enum perm perm;
};

static void pack_quad(void *arg, int part, int worker)
{
    const struct pack_job *j = arg;
    int64_t kp = k_padded(j->k);
    float *dst = j->dst + (int64_t)part * 4 * kp;
    for (int t = 0; t < 4; t++) {
        const float *x = j->x + (int64_t)(part * 4 + t) * j->k;
        for (int64_t b = 0; b < kp; b += KB) {
            float tmp[KB] = {0};
            if (part * 4 + t < j->T) pack_row(x + b, j->k - b < KB ? j->k - b : KB, j->perm, tmp);
            for (int i = 0; i < NV; i++)
                memcpy(dst + b * 4 + i * 4 * VW + t * VW, tmp + i * VW, VW * sizeof *tmp);
        }
    }
}

/* tile[r][t] += w[r] . x[t] over nv vectors; w rows are WK apart, x interleaved by four */
CPU_INLINE void wide_tile(const float *w, const float *x, int nv, float *tile, int64_t ldt)
{
    vf a[3][4];
    for (int r = 0; r < 3; r++)
        for (int t = 0; t < 4; t++) a[r][t] = vf_set(0);
    for (int i = 0; i < nv; i++) {
        vf w0 = vf_load(w + i * VW), w1 = vf_load(w + WK + i * VW),
           w2 = vf_load(w + 2 * WK + i * VW);
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
            vf xt = vf_load(x + (i * 4 + t) * VW);
            a[0][t] = vf_fma(w0, xt, a[0][t]);
            a[1][t] = vf_fma(w1, xt, a[1][t]);
            a[2][t] = vf_fma(w2, xt, a[2][t]);
        }
    }
    for (int r = 0; r < 3; r++) vf_sum4_add(tile + r * ldt, a[r][0], a[r][1], a[r][2], a[r][3]);
}

/* tile[WN][T4] = the part's rows times all rows of x. panel: WN x WK scratch, rows past the end are
 * zero. */
static void wide_rows(const struct lin_job *j, const struct cpu_part *p, int64_t row, float *panel,
                      float *tile)
{
    int64_t k = p->w.k, T4 = (j->T + 3) / 4 * 4;
    int rows = p->w.n - row < WN ? (int)(p->w.n - row) : WN, rows3 = (rows + 2) / 3 * 3;
    memset(tile, 0, (size_t)(rows3 * T4) * sizeof *tile);
    if (rows3 > rows) memset(panel + rows * WK, 0, (size_t)(rows3 - rows) * WK * sizeof *panel);
    for (int64_t k0 = 0; k0 < k; k0 += WK) {
        int nb = (int)((k - k0 < WK ? k - k0 + KB - 1 : WK) / KB), nv = nb * NV;
        fmts[p->kern].panel(p, row, rows, k0 / KB, nb, panel);
        for (int64_t t = 0; t < T4; t += 8)
            for (int r = 0; r < rows3; r += 3) {
                const float *x = j->x + t * j->ldx + k0 * 4;
                wide_tile(panel + r * WK, x, nv, tile + r * T4 + t, T4);
                if (t + 4 < T4)
                    wide_tile(panel + r * WK, x + 4 * j->ldx, nv, tile + r * T4 + t + 4, T4);
            }
    }
}

static void wide_part(void *arg, int part, int worker)
{
    const struct lin_job *j = arg;
    int64_t row = (int64_t)part * WN, T4 = (j->T + 3) / 4 * 4;
    int rows = j->p->w.n - row < WN ? (int)(j->p->w.n - row) : WN;
    float *panel = (float *)((char *)j->c->worker.p + (size_t)worker * j->c->worker_bytes);
    float *tile = panel + WN * WK, *up = tile + WN * T4;
    wide_rows(j, j->p, row, panel, tile);
    if (j->gate) {
        wide_rows(j, j->p + 1, row, panel, up);
        for (int64_t i = 0; i < rows * T4 / VW * VW; i += VW)
            vf_store(tile + i, vf_mul(vf_silu(vf_load(tile + i)), vf_load(up + i)));
        for (int64_t i = rows * T4 / VW * VW; i < rows * T4; i++)
            tile[i] = tile[i] / (1 + expf(-tile[i])) * up[i];
    }
    for (int t = 0; t < j->T; t++) {
        float *y = j->y + (int64_t)t * j->ldy + row;
        for (int r = 0; r < rows; r++) y[r] = j->add ? y[r] + tile[r * T4 + t] : tile[r * T4 + t];
    }
}

static size_t lin_worker_bytes(int max_rows)
{
    size_t t4 = ((size_t)max_rows + 3) / 4 * 4;
    return (WN * WK + 2 * WN * t4 + VW) * sizeof(float);
}

static size_t lin_work_bytes(int64_t k, int max_rows)
{
    size_t t4 = ((size_t)max_rows + 3) / 4 * 4;
    return t4 * (size_t)k_padded(k) * sizeof(float);
}

/* Lays x out for one part's format and runs its row blocks. */
static void lin_run(struct lin_job *j, const float *x, float *packed, int64_t k)
{
    enum perm c = fmts[j->p->kern].perm;
    int wide = j->T > CPU_SMALL_ROWS, step = wide ? WN : SN;
    j->ldx = k_padded(k);
    j->x = packed;
    if (wide) {
        struct pack_job pj = {x, packed, k, j->T, c};
        lk_pool_run(j->c->pool, (j->T + 3) / 4, pack_quad, &pj);
    } else if (c == PERM_NATURAL && k % KB == 0) {
        j->x = x;
    } else {
        for (int t = 0; t < j->T; t++) pack_row(x + t * k, k, c, packed + t * j->ldx);
    }
    lk_pool_run(j->c->pool, (int)((j->p->w.n + step - 1) / step), wide ? wide_part : small_part, j);
}

static float *lin_begin(struct lin_job *j, struct lk_dev *d, int64_t k, const char *op)
{
    j->c = cpu_of(d);
    if (j->T > CPU_SMALL_ROWS && j->c->worker_bytes < lin_worker_bytes(j->T)) {
        lk_fail(&j->c->err, LK_EDEVICE, "cpu: op %s got %d rows, check reserved less", op, j->T);
        return NULL;
    }
    return cpu_work(j->c, lin_work_bytes(k, j->T), op);
}

static void k_linear(struct lk_dev *d, const struct lk_linear_args *a)
{
    struct lin_job j = {.y = a->y, .T = a->T, .ldy = a->ldy, .add = a->add};
    float *packed = a->T > 0 ? lin_begin(&j, d, a->w->head.k, "linear") : NULL;
    if (!packed) return;
    for (int p = 0; p < a->w->head.n_parts; p++) {
        j.p = a->w->parts + p;
        lin_run(&j, a->x, packed, a->w->head.k);
        j.y += j.p->w.n;
    }
}

/* Gate and up may differ in format but not in the order of their columns (mat_load sees to it). */
static void k_gate_up(struct lk_dev *d, const struct lk_gate_up_args *a)
{
    struct lin_job j = {
        .p = a->w->parts, .y = a->out, .T = a->T, .ldy = (int)a->w->parts[0].w.n, .gate = 1};
    float *packed = a->T > 0 ? lin_begin(&j, d, a->w->head.k, "gate_up") : NULL;
    if (packed) lin_run(&j, a->x, packed, a->w->head.k);
}

#endif
