/* Rows of a weight against x, format by format: the small product (up to 16 rows of x) and the
 * panels of the wide one. Compiled once an instruction set.
 *
 * A weight row is decoded in registers, block of 64 by block, and multiplied with up to 8 rows of x
 * at once; the order of a sum is the same whatever T: batch-invariant, and the weight's bytes are
 * read from memory once. */
#ifndef LK_CPU_K_ROWS_H
#define LK_CPU_K_ROWS_H

#include "cpu/k_int.h"
#include "cpu/k_ninfer.h"
#include "cpu/kern.h"

enum {
    ST = 8,   /* most rows of x at once: 8 sums and 8 weight vectors are 16 registers */
    AHEAD = 2048, /* bytes to fetch ahead: 150 ns at the 12 GB/s that one core reads */
    PLAIN_AHEAD = 1024, /* the same for plain numbers: 512 and 2,048 were no better at one row of x and worse at two */
    WK = 256, /* columns of a panel */
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
    int ints;  /* the small product reads x as blocks of whole numbers (k_int.h) */
};

/* acc[t] += block . x[t]: products of a class in a chain, then its scale. The same order for any T. */
CPU_INLINE void block_dot(const struct shape f, struct codes *o, const float *x, int64_t ldx,
                          const int T, vf *acc)
{
    int classes = f.ns == 4 && !f.mins ? 4 : 2; /* with minimums the codes are the weights by then */
    enum cls cls = f.ns > 1 && (classes == 4 || f.cls != CLS_EACH) ? f.cls : CLS_HALVES;
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

/* ---- weights that are plain numbers ---- */

typedef vf (*plain_fn)(const void *w);

/* A weight vector meets all rows of x at once, so that up to eight rows wait for little but the memory (block_dot's order would read x
 * in chains of its own). A block's products are a chain from zero, whatever T, and blocks follow each other. */
CPU_INLINE void plain_rows(plain_fn get, const int bytes, const struct cpu_part *p, int64_t row,
                           int rows, const float *x, int64_t ldx, const int T, float *sum)
{
    int64_t k = p->w.k, whole = k / KB * KB;
    const char *w = (const char *)p->w.data + row * k * bytes;
    for (int r = 0; r < rows; r++, w += k * bytes) {
        vf acc[ST], g[ST], v[NV];
        for (int t = 0; t < T; t++) acc[t] = vf_set(0);
        for (int64_t b = 0; b < whole; b += KB) {
#pragma GCC unroll 4
            for (int i = 0; i < KB * bytes; i += 64) __builtin_prefetch(w + b * bytes + PLAIN_AHEAD + i);
#pragma GCC unroll 16
            for (int i = 0; i < NV; i++) {
                vf one = get(w + (b + i * VW) * bytes);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    vf xv = vf_load(x + t * ldx + b + i * VW);
                    g[t] = i ? vf_fma(one, xv, g[t]) : vf_mul(one, xv);
                }
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) acc[t] = vf_add(acc[t], g[t]);
        }
        if (whole < k) dec_oracle(p, row + r, whole / KB, PERM_NATURAL, v);
        for (int i = 0; whole < k && i < NV; i++)
            for (int t = 0; t < T; t++)
                acc[t] = vf_fma(v[i], vf_load(x + t * ldx + whole + i * VW), acc[t]);
        for (int t = 0; t < T; t++) sum[t * SN + r] = vf_sum(acc[t]);
    }
}

CPU_INLINE void plain_small(plain_fn get, const int bytes, const struct cpu_part *p, int64_t row,
                            int rows, const float *x, int64_t ldx, int T, float *sum)
{
    for (; T > ST; T -= ST, x += ST * ldx, sum += ST * SN)
        plain_rows(get, bytes, p, row, rows, x, ldx, ST, sum);
    switch (T) { /* every count has its own code: rows of x read in two goes would decode twice */
    case 1: plain_rows(get, bytes, p, row, rows, x, ldx, 1, sum); break;
    case 2: plain_rows(get, bytes, p, row, rows, x, ldx, 2, sum); break;
    case 3: plain_rows(get, bytes, p, row, rows, x, ldx, 3, sum); break;
    case 4: plain_rows(get, bytes, p, row, rows, x, ldx, 4, sum); break;
    case 5: plain_rows(get, bytes, p, row, rows, x, ldx, 5, sum); break;
    case 6: plain_rows(get, bytes, p, row, rows, x, ldx, 6, sum); break;
    case 7: plain_rows(get, bytes, p, row, rows, x, ldx, 7, sum); break;
    default: plain_rows(get, bytes, p, row, rows, x, ldx, ST, sum);
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

#define FORMAT_PANEL(name, ...)                                                                    \
    static void panel_##name(const struct cpu_part *p, int64_t row, int rows, int64_t b0, int nb,  \
                             float *out)                                                           \
    {                                                                                              \
        const struct shape f = {__VA_ARGS__};                                                      \
        panel_rows(open_##name, dec_##name, f, p, row, rows, b0, nb, out);                         \
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
    FORMAT_PANEL(name, __VA_ARGS__)

/* the small product in whole numbers: k_int.h */
#define FORMAT_INTS(name, ...)                                                                     \
    static const struct shape shape_##name = {.ints = 1, __VA_ARGS__};                             \
    FORMAT_PANEL(name, __VA_ARGS__)

#define PLAIN(name, get, bytes)                                                                    \
    static const struct shape shape_##name = {.perm = PERM_NATURAL};                               \
    static void small_##name(const struct cpu_part *p, int64_t row, int rows, const float *x,      \
                             int64_t ldx, int T, float *sum)                                       \
    {                                                                                              \
        plain_small(get, bytes, p, row, rows, x, ldx, T, sum);                                     \
    }                                                                                              \
    FORMAT_PANEL(name, .perm = PERM_NATURAL)

CPU_INLINE vf vf_f32(const void *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

FORMAT(any, .perm = PERM_NATURAL)
PLAIN(f32, vf_f32, 4)
PLAIN(f16s, vf_f16, 2)
PLAIN(bf16, vf_bf16, 2)
FORMAT(fp8, .ns = 1, .nans = 1, .xexp = FP8_XEXP, .ahead = 1)
FORMAT(i8, .ns = 2, .ahead = 1)
FORMAT(ct8, .ns = 2, .ahead = 1)
FORMAT(q8_0, .ns = 2, .ahead = 1)
#if defined(__AVX2__)
FORMAT(nvfp4, .perm = PERM_PAIRS, .ns = 2, .cls = CLS_ALT, .xexp = CODE_XEXP - 1, .ahead = 1)
FORMAT(n4, .perm = PERM_PAIRS, .ns = 1, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(n5, .perm = PERM_PAIRS, .ns = 1, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(n6, .perm = PERM_PAIRS, .ns = 1, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(q4, .perm = PERM_PAIRS, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(q4_0, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(iq4_nl, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP)
FORMAT(mxfp4, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP)
FORMAT(iq4_xs, .super = 1, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT)
FORMAT_INTS(q4_k, .super = 1, .perm = PERM_QUADS, .ns = 2, .mins = 1)
FORMAT_INTS(q5_k, .super = 1, .perm = PERM_QUADS, .ns = 2, .mins = 1)
FORMAT_INTS(q6_k, .super = 1, .perm = PERM_QUADS, .ns = Q6_NS, .cls = Q6_CLS)
FORMAT(q3_k, .super = 1, .perm = PERM_QUADS, .ns = Q6_NS, .cls = Q6_CLS)
FORMAT(q2_k, .super = 1, .perm = PERM_QUADS, .ns = Q6_NS, .cls = Q6_CLS, .mins = 1)
FORMAT(q4_1, .perm = PERM_SPLIT32, .ns = 2, .cls = CLS_ALT, .mins = 1, .ahead = 1)
FORMAT(q5_0, .perm = PERM_SPLIT32, .ns = RUN_NS, .cls = CLS_ALT, .xexp = CODE_XEXP, .ahead = 1)
FORMAT(q5_1, .perm = PERM_SPLIT32, .ns = 2, .cls = CLS_ALT, .mins = 1, .ahead = 1)
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
    ID_N4,
    ID_N5,
    ID_N6,
    ID_Q4,
    ID_Q4_0,
    ID_IQ4_NL,
    ID_MXFP4,
    ID_IQ4_XS,
    ID_Q4_K,
    ID_Q5_K,
    ID_Q6_K,
    ID_Q3_K,
    ID_Q2_K,
    ID_Q4_1,
    ID_Q5_0,
    ID_Q5_1
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
    [ID_N4] = {small_n4, panel_n4, &shape_n4},
    [ID_N5] = {small_n5, panel_n5, &shape_n5},
    [ID_N6] = {small_n6, panel_n6, &shape_n6},
    [ID_Q4] = {small_q4, panel_q4, &shape_q4},
    [ID_Q4_0] = {small_q4_0, panel_q4_0, &shape_q4_0},
    [ID_IQ4_NL] = {small_iq4_nl, panel_iq4_nl, &shape_iq4_nl},
    [ID_MXFP4] = {small_mxfp4, panel_mxfp4, &shape_mxfp4},
    [ID_IQ4_XS] = {small_iq4_xs, panel_iq4_xs, &shape_iq4_xs},
    [ID_Q4_K] = {ints_q4_k, panel_q4_k, &shape_q4_k},
    [ID_Q5_K] = {ints_q5_k, panel_q5_k, &shape_q5_k},
    [ID_Q6_K] = {ints_q6_k, panel_q6_k, &shape_q6_k},
    [ID_Q3_K] = {small_q3_k, panel_q3_k, &shape_q3_k},
    [ID_Q2_K] = {small_q2_k, panel_q2_k, &shape_q2_k},
    [ID_Q4_1] = {small_q4_1, panel_q4_1, &shape_q4_1},
    [ID_Q5_0] = {small_q5_0, panel_q5_0, &shape_q5_0},
    [ID_Q5_1] = {small_q5_1, panel_q5_1, &shape_q5_1},
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
    case LK_FMT_GG_Q3_K:
        return ID_Q3_K;
    case LK_FMT_GG_Q2_K:
        return ID_Q2_K;
    case LK_FMT_GG_Q4_1:
        return ID_Q4_1;
    case LK_FMT_GG_Q5_0:
        return ID_Q5_0;
    case LK_FMT_GG_Q5_1:
        return ID_Q5_1;
    case LK_FMT_NVFP4:
        return ID_NVFP4;
    case LK_FMT_N_Q4:
        return w->k % KB ? ID_ANY : ID_N4;
    case LK_FMT_N_Q5:
        return w->k % KB ? ID_ANY : ID_N5;
    case LK_FMT_N_Q6:
        return w->k % KB ? ID_ANY : ID_N6;
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
    int slices; /* of x's rows, wide only */
};

#endif
