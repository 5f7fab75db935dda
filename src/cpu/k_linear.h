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
    AHEAD = 1024, /* bytes to fetch ahead: two rows of a small model, a fifth of one of the 27B */
    WN = 48,  /* weight rows of a wide part: the panel (48 x 512 f32) takes 96 KB of a 512 KB L2 */
    WK = 512, /* columns of a panel: 8 rows of x take 16 KB, 3 of weight 6 KB, together in a 32 KB
                 L1 */
};

typedef void (*small_fn)(const struct cpu_part *p, int64_t row, int rows, const float *x,
                         int64_t ldx, int T, float *sum);
typedef void (*panel_fn)(const struct cpu_part *p, int64_t row, int rows, int64_t b0, int nb,
                         float *out);

/* What the compiler must know of a format to write its loops. */
struct shape {
    enum perm perm;
    int ns; /* scales a block: 0 (the codes are the weights), 1, 2 or 4 */
    enum cls cls;
    int mins, nans, xexp;
    int super; /* blocks come in fours, k is whole fours */
    int ahead; /* fetch ahead of the cursor's codes; 0: the processor's own guess is best */
};

/* acc[t] += block . x[t]: products of a class in a chain, then its scale. The same order for any T. */
CPU_INLINE void block_dot(const struct shape f, struct codes *o, const float *x, int64_t ldx,
                          const int T, vf *acc)
{
    int classes = f.ns == 4 ? 4 : 2;
    enum cls cls = f.ns > 1 ? f.cls : CLS_HALVES;
    if (f.mins)
        for (int i = 0; i < NV; i++)
            o->v[i] = vf_fma(o->v[i], o->s[cls_of(f.cls, i)], o->m[cls_of(f.cls, i)]);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
        vf g[4];
        for (int i = 0; i < classes; i++) g[i] = vf_set(0);
#pragma GCC unroll 16
        for (int i = 0; i < NV; i++) {
            int k = cls_of(cls, i);
            g[k] = vf_fma(o->v[i], vf_load(x + t * ldx + i * VW), g[k]);
        }
        if (f.ns == 0 || f.mins)
            acc[t] = vf_add(acc[t], vf_add(g[0], g[1]));
        else if (f.ns == 1)
            acc[t] = vf_fma(o->s[0], vf_add(g[0], g[1]), acc[t]);
        else
            for (int i = 0; i < f.ns; i++) acc[t] = vf_fma(o->s[i], g[i], acc[t]);
    }
}

/* sum[t * SN + r] = row `row + r` times x row t, for one constant T */
CPU_INLINE void small_rows(open_fn open, dec_fn dec, const struct shape f,
                           const struct cpu_part *p, int64_t row, int rows, const float *x,
                           int64_t ldx, const int T, float *sum)
{
    int64_t nb = p->w.k / KB, tail = p->w.k % KB;
    for (int r = 0; r < rows; r++) {
        struct cur c = {.p = p, .row = row + r};
        struct codes o;
        vf acc[ST];
        for (int t = 0; t < T; t++) acc[t] = vf_set(0);
        open(&c, 0);
        for (int64_t b = 0; f.super && b < nb; b += 4) {
            __builtin_prefetch(c.s + AHEAD);
            __builtin_prefetch(c.s + AHEAD + 64);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                c.left = j; /* known to the compiler: offsets and shifts are constants */
                dec(&c, &o);
                block_dot(f, &o, x + (b + j) * KB, ldx, T, acc);
            }
        }
        for (int64_t b = 0; !f.super && b < nb; b++) {
            c.b = b;
            dec(&c, &o);
            if (f.ahead) __builtin_prefetch(c.d + AHEAD);
            block_dot(f, &o, x + b * KB, ldx, T, acc);
        }
        if (!f.super && tail) {
            const struct shape plain = {.cls = CLS_HALVES};
            dec_oracle(p, row + r, nb, f.perm, o.v);
            vf unit = vf_set(ldexpf(1, -f.xexp));
            for (int i = 0; i < NV; i++) o.v[i] = vf_mul(o.v[i], unit);
            block_dot(plain, &o, x + nb * KB, ldx, T, acc);
        }
        float bad = f.nans && fp8_nan(&c) ? NAN : 0;
        for (int t = 0; t < T; t++) sum[t * SN + r] = vf_sum(acc[t]) + bad;
    }
}

/* A row of a panel that holds NaN codes. */
static void panel_oracle(const struct cpu_part *p, int64_t row, int64_t b0, int nb, enum perm perm,
                         float *out)
{
    vf v[NV];
    for (int b = 0; b < nb; b++) {
        dec_oracle(p, row, b0 + b, perm, v);
        for (int i = 0; i < NV; i++) vf_store(out + b * KB + i * VW, v[i]);
    }
}

/* Rows of a panel, WK floats apart: the weights themselves. */
CPU_INLINE void panel_rows(open_fn open, dec_fn dec, const struct shape f,
                           const struct cpu_part *p, int64_t row, int rows, int64_t b0, int nb,
                           float *out)
{
    vf unit = vf_set(ldexpf(1, f.xexp));
    for (int r = 0; r < rows; r++) {
        struct cur c = {.p = p, .row = row + r};
        struct codes o;
        float *w = out + r * WK;
        open(&c, b0);
        for (int b = 0; b < nb; b++, w += KB) {
            c.b = b0 + b;
            if ((b0 + b + 1) * KB > p->w.k) {
                dec_oracle(p, row + r, b0 + b, f.perm, o.v);
            } else {
                dec(&c, &o);
                for (int i = 0; i < NV; i++) {
                    int k = f.ns > 1 || f.mins ? cls_of(f.cls, i) : 0;
                    if (f.xexp) o.v[i] = vf_mul(o.v[i], unit);
                    if (f.mins)
                        o.v[i] = vf_fma(o.v[i], o.s[k], o.m[k]);
                    else if (f.ns)
                        o.v[i] = vf_mul(o.v[i], o.s[k]);
                }
            }
            for (int i = 0; i < NV; i++) vf_store(w + i * VW, o.v[i]);
        }
        if (f.nans && fp8_nan(&c)) panel_oracle(p, row + r, b0, nb, f.perm, out + r * WK);
    }
}

#define FORMAT(name, ...)                                                                          \
    static const struct shape shape_##name = {__VA_ARGS__};                                        \
    static void small_##name(const struct cpu_part *p, int64_t row, int rows, const float *x,      \
                             int64_t ldx, int T, float *sum)                                       \
    {                                                                                              \
        const struct shape f = {__VA_ARGS__};                                                      \
        for (int t; T > 0; T -= t, x += t * ldx, sum += t * SN) {                                  \
            t = T >= 8 ? 8 : T >= 4 ? 4 : T >= 2 ? 2 : 1;                                          \
            if (t == 8)                                                                            \
                small_rows(open_##name, dec_##name, f, p, row, rows, x, ldx, 8, sum);              \
            else if (t == 4)                                                                       \
                small_rows(open_##name, dec_##name, f, p, row, rows, x, ldx, 4, sum);              \
            else if (t == 2)                                                                       \
                small_rows(open_##name, dec_##name, f, p, row, rows, x, ldx, 2, sum);              \
            else                                                                                   \
                small_rows(open_##name, dec_##name, f, p, row, rows, x, ldx, 1, sum);              \
        }                                                                                          \
    }                                                                                              \
    static void panel_##name(const struct cpu_part *p, int64_t row, int rows, int64_t b0, int nb,  \
                             float *out)                                                           \
    {                                                                                              \
        const struct shape f = {__VA_ARGS__};                                                      \
        panel_rows(open_##name, dec_##name, f, p, row, rows, b0, nb, out);                         \
    }

FORMAT(any, .perm = PERM_NATURAL)
FORMAT(f32, .perm = PERM_NATURAL)
FORMAT(f16s, .perm = PERM_NATURAL)
FORMAT(bf16, .perm = PERM_NATURAL)
FORMAT(fp8, .ns = 1, .nans = 1, .xexp = FP8_XEXP, .ahead = 1)
FORMAT(i8, .ns = 2, .ahead = 1)
FORMAT(ct8, .ns = 2, .ahead = 1)
FORMAT(q8_0, .ns = 2, .ahead = 1)
#if defined(__AVX2__)
FORMAT(nvfp4, .perm = PERM_PAIRS, .ns = 2, .cls = CLS_ALT, .xexp = CODE_XEXP - 1, .ahead = 1)
FORMAT(q4, .perm = PERM_PAIRS, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(q4_0, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(iq4_nl, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP)
FORMAT(mxfp4, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP)
FORMAT(iq4_xs, .super = 1, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT)
FORMAT(q4_k, .super = 1, .perm = PERM_QUADS, .ns = 2, .mins = 1)
FORMAT(q5_k, .super = 1, .perm = PERM_QUADS, .ns = 2, .mins = 1)
FORMAT(q6_k, .super = 1, .perm = PERM_QUADS, .ns = Q6_NS, .cls = Q6_CLS)
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
    ID_NVFP4,
    ID_Q4,
    ID_Q4_0,
    ID_IQ4_NL,
    ID_MXFP4,
    ID_IQ4_XS,
    ID_Q4_K,
    ID_Q5_K,
    ID_Q6_K
};

static const struct fmt_kern {
    small_fn small;
    panel_fn panel;
    const struct shape *f;
} fmts[] = {
    [ID_ANY] = {small_any, panel_any, &shape_any},
    [ID_F32] = {small_f32, panel_f32, &shape_f32},
    [ID_F16] = {small_f16s, panel_f16s, &shape_f16s},
    [ID_BF16] = {small_bf16, panel_bf16, &shape_bf16},
    [ID_FP8] = {small_fp8, panel_fp8, &shape_fp8},
    [ID_I8] = {small_i8, panel_i8, &shape_i8},
    [ID_CT8] = {small_ct8, panel_ct8, &shape_ct8},
    [ID_Q8_0] = {small_q8_0, panel_q8_0, &shape_q8_0},
#if defined(__AVX2__)
    [ID_NVFP4] = {small_nvfp4, panel_nvfp4, &shape_nvfp4},
    [ID_Q4] = {small_q4, panel_q4, &shape_q4},
    [ID_Q4_0] = {small_q4_0, panel_q4_0, &shape_q4_0},
    [ID_IQ4_NL] = {small_iq4_nl, panel_iq4_nl, &shape_iq4_nl},
    [ID_MXFP4] = {small_mxfp4, panel_mxfp4, &shape_mxfp4},
    [ID_IQ4_XS] = {small_iq4_xs, panel_iq4_xs, &shape_iq4_xs},
    [ID_Q4_K] = {small_q4_k, panel_q4_k, &shape_q4_k},
    [ID_Q5_K] = {small_q5_k, panel_q5_k, &shape_q5_k},
    [ID_Q6_K] = {small_q6_k, panel_q6_k, &shape_q6_k},
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
#if defined(__AVX2__)
    case LK_FMT_GG_Q5_K:
        return ID_Q5_K;
    case LK_FMT_GG_Q6_K:
        return ID_Q6_K;
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

static void lin_init(void) {}

/* ---- x in the order of a format ---- */

static int64_t k_padded(int64_t k)
{
    return (k + KB - 1) / KB * KB;
}

/* One row of x to dst, times m; the end is zero up to a whole block. */
static void pack_row(const float *x, int64_t k, enum perm c, float m, float *dst)
{
    int64_t b = 0;
    vf mv = vf_set(m);
    if (c == PERM_PAIRS)
        for (; b + KB <= k; b += KB) perm_block(x + b, PERM_PAIRS, mv, dst + b);
    else if (c == PERM_SPLIT32)
        for (; b + KB <= k; b += KB) perm_block(x + b, PERM_SPLIT32, mv, dst + b);
    else if (c == PERM_QUADS)
        for (; b + KB <= k; b += KB) perm_block(x + b, PERM_QUADS, mv, dst + b);
    else
        for (; b + KB <= k; b += KB) perm_block(x + b, PERM_NATURAL, mv, dst + b);
    if (b == k) return;
    float end[KB] = {0};
    memcpy(end, x + b, (size_t)(k - b) * sizeof *x);
    for (int i = 0; i < KB; i++) dst[b + i] = end[perm_place(c, i)] * m;
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
            if (part * 4 + t < j->T)
                pack_row(x + b, j->k - b < KB ? j->k - b : KB, j->perm, 1, tmp);
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
    const struct shape *f = fmts[j->p->kern].f;
    int wide = j->T > CPU_SMALL_ROWS, step = wide ? WN : SN;
    j->ldx = k_padded(k);
    j->x = packed;
    if (wide) {
        struct pack_job pj = {x, packed, k, j->T, f->perm};
        lk_pool_run(j->c->pool, (j->T + 3) / 4, pack_quad, &pj);
    } else if (f->perm == PERM_NATURAL && !f->xexp && k % KB == 0) {
        j->x = x;
    } else {
        float m = ldexpf(1, f->xexp);
        for (int t = 0; t < j->T; t++) pack_row(x + t * k, k, f->perm, m, packed + t * j->ldx);
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
