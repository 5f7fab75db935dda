/* Cases of linear, gate_up, embed and draft_in, and of a norm made between two linears: every weight format, the real shapes of the 0.8B, 4B and 27B
 * and their halves under tensor parallelism, one row to a prefill chunk, and edges where a tile
 * ends. */
#include "cases/cases.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

/* p: 0 format, 1 n, 2 k, 3 group, 4 T, 5 add, 6 n of a second part, 7 its format, 8 extra row
 * stride, 9 not 0: the parts are one weight, this many rows of the first and of the second in turns */
struct lin {
    struct lk_mat *m;
    void *x, *out;
    int ldy;
};

static const char why_f32[] =
    "f32 sums of k products in another order: sqrt(k) * 2^-24 of rms, with room of 10";

static void lin_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct lin *l = r->fam = ot_host(r, sizeof *l);
    struct lk_weight w[2];
    if (!l) return;
    ot_weight(r, w, (enum lk_fmt)p[0], p[1], p[2], p[3]);
    if (p[6]) ot_weight(r, w + 1, (enum lk_fmt)p[7], p[6], p[2], p[3]);
    if (p[9]) {
        struct lk_rows *two = ot_host(r, sizeof *two);
        if (!two) return;
        *two = (struct lk_rows){{w[0], w[1]}, {p[9], (int64_t)p[9] * p[6] / p[1]}};
        w[0] = (struct lk_weight){.fmt = LK_FMT_ROWS, .n = p[1] + p[6], .k = p[2], .data = two, .global = 1};
    }
    l->m = ot_mat(r, LK_MAT_STACK, w, p[6] && !p[9] ? 2 : 1);
    l->ldy = p[1] + p[6] + p[8];
    l->x = ot_up_act(r, ot_rand(r, (size_t)p[4] * (size_t)p[2], 1), (size_t)p[4] * (size_t)p[2]);
    size_t n = (size_t)p[4] * (size_t)l->ldy;
    l->out = ot_up(r, ot_rand(r, n, 1), n * 4); /* old content: kept by add and between the rows */
}

static void lin_issue(struct op_run *r)
{
    struct lin *l = r->fam;
    struct lk_linear_args a = {.w = l->m, .x = l->x, .y = l->out, .T = r->c->p[4], .ldy = l->ldy, .add = r->c->p[5]};
    r->d->ops->linear(r->d, &a);
}

/* A device whose activations are f16 multiplies f16 weights. BF16 under a power of two a row, FP8, NVFP4 and one scale a row are
 * exact there; every other value (code x group scale, F32, GGUF blocks) is rounded to 11 bits, up to 2^-11 of each product: 1.6e-4 of
 * the rms of a sum, and six of that at the worst of 1e5 outputs. More than 32 rows take de-quantised f16 tiles: there a scale that
 * differs from row to row and is no power of two is rounded in as well, so twice. Formats laid out anew (GPTQ and behind) have scales of more
 * than 11 bits, which are rounded before the product is: twice too. */
static double f16_weights(const struct op_run *r, int fmt)
{
    int group = r->c->p[3], wide = r->c->p[4] > 32;
    if (r->d->act_bytes == 4 || fmt == LK_FMT_BF16 || fmt == LK_FMT_F16 || fmt == LK_FMT_NVFP4) return 0;
    if (!wide && (fmt == LK_FMT_FP8 || (fmt == LK_FMT_I8 && group >= r->c->p[2]))) return 0;
    return wide || fmt >= LK_FMT_GPTQ4 ? 2e-3 : 1e-3;
}

static void lin_fetch(struct op_run *r)
{
    struct lin *l = r->fam;
    double more = f16_weights(r, r->c->p[0]);
    if (r->c->p[6] && f16_weights(r, r->c->p[7]) > more) more = f16_weights(r, r->c->p[7]);
    ot_out_f32(r, "y", l->out, (size_t)r->c->p[4] * (size_t)l->ldy, r->c->tol + more);
}

static double fmt_bytes(int fmt, double n, double k)
{
    return n * k * (double)lk_fmt_info((enum lk_fmt)fmt)->bits / 8;
}

static void lin_cost(const struct op_case *c, double *bytes, double *flops)
{
    const int *p = c->p;
    *bytes = fmt_bytes(p[0], p[1], p[2]) + fmt_bytes(p[7], p[6], p[2]);
    *flops = 2.0 * p[4] * (p[1] + p[6]) * p[2];
}

static const struct op_family linear = {"linear", lin_setup, lin_issue, lin_fetch, lin_cost};

static void gate_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct lin *l = r->fam = ot_host(r, sizeof *l);
    struct lk_weight w[2];
    if (!l) return;
    for (int i = 0; i < 2; i++) ot_weight(r, w + i, (enum lk_fmt)p[0], p[1], p[2], p[3]);
    l->m = ot_mat(r, LK_MAT_GATE_UP, w, 2);
    l->x = ot_up_act(r, ot_rand(r, (size_t)p[4] * (size_t)p[2], 2), (size_t)p[4] * (size_t)p[2]);
    l->out = ot_dev(r, (size_t)p[4] * (size_t)p[1] * r->d->act_bytes);
}

static void gate_issue(struct op_run *r)
{
    struct lin *l = r->fam;
    struct lk_gate_up_args a = {.w = l->m, .x = l->x, .out = l->out, .T = r->c->p[4]};
    r->d->ops->gate_up(r->d, &a);
}

static void gate_fetch(struct op_run *r)
{
    struct lin *l = r->fam;
    ot_out_act(r, "out", l->out, (size_t)r->c->p[4] * (size_t)r->c->p[1], r->c->tol + 2 * f16_weights(r, r->c->p[0]));
}

static void gate_cost(const struct op_case *c, double *bytes, double *flops)
{
    *bytes = 2 * fmt_bytes(c->p[0], c->p[1], c->p[2]);
    *flops = 4.0 * c->p[4] * c->p[1] * c->p[2];
}

static const struct op_family gate_up = {"gate_up", gate_setup, gate_issue, gate_fetch, gate_cost};

static void embed_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct lin *l = r->fam = ot_host(r, sizeof *l);
    struct lk_weight w;
    if (!l) return;
    ot_weight(r, &w, (enum lk_fmt)p[0], p[1], p[2], p[3]);
    l->m = ot_mat(r, LK_MAT_EMBED, &w, 1);
    int32_t *ids = ot_host(r, (size_t)p[4] * 4);
    for (int i = 0; ids && i < p[4]; i++) ids[i] = (int32_t)(ot_random() % (uint32_t)p[1]);
    if (ids && p[4] > 2) {
        ids[1] = p[1]; /* outside: zeros */
        ids[2] = -1;
    }
    l->x = ot_up(r, ids, (size_t)p[4] * 4);
    l->out = ot_dev(r, (size_t)p[4] * (size_t)p[2] * 4);
}

static void embed_issue(struct op_run *r)
{
    struct lin *l = r->fam;
    r->d->ops->embed(r->d, l->m, l->x, r->c->p[4], l->out);
}

static void embed_fetch(struct op_run *r)
{
    struct lin *l = r->fam;
    ot_out_f32(r, "x", l->out, (size_t)r->c->p[4] * (size_t)r->c->p[2], r->c->tol + f16_weights(r, r->c->p[0]));
}

static void embed_cost(const struct op_case *c, double *bytes, double *flops)
{
    *bytes = fmt_bytes(c->p[0], c->p[4], c->p[2]);
    *flops = 0;
}

static const struct op_family embed = {"embed", embed_setup, embed_issue, embed_fetch, embed_cost};

static void lin_add(struct op_table *t, const struct op_family *f, int use, const char *what,
                    enum lk_fmt fmt, int n, int k, int group, int T)
{
    struct op_case *c =
        ot_add(t, f, use, f->setup != lin_setup && f != &gate_up ? 1e-6 : 2e-5, why_f32, "%s %s %s g%d n%d k%d T%d", f->op,
               what, lk_fmt_info(fmt)->name, group, n, k, T);
    int p[12] = {(int)fmt, n, k, group, T};
    if (c) memcpy(c->p, p, sizeof p);
}

/* The group sizes that files use: block formats ignore it. */
static int fmt_group(enum lk_fmt f, int k)
{
    switch (f) {
    case LK_FMT_FP8:
        return k % 128 ? k : 128;
    case LK_FMT_Q4:
    case LK_FMT_I8:
    case LK_FMT_N_Q4:
    case LK_FMT_N_Q5:
    case LK_FMT_N_Q6:
        return 64;
    case LK_FMT_CT4:
    case LK_FMT_CT8:
    case LK_FMT_GPTQ4:
    case LK_FMT_GPTQ8:
    case LK_FMT_AWQ4:
        return 128;
    default:
        return 0;
    }
}

/* A residual stream's norm on its way from one linear to the next: y += x W1^T with y's norm, then W2 of that. p: 0 format of both,
 * 1 n (of y), 2 k, 3 group, 4 T, 5 W2: 0 a linear, 1 gate and up, 2 a linear with gates of BF16 beside it, 6 rows of W2, 7 log2 of y's size,
 * 8 of x's. */
struct between {
    struct lk_mat *from, *to;
    void *x, *h, *out;
    float *y, *w;
};

static void between_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct between *b = r->fam = ot_host(r, sizeof *b);
    struct lk_weight w[2];
    if (!b) return;
    size_t n = (size_t)p[1], T = (size_t)p[4];
    ot_weight(r, w, (enum lk_fmt)p[0], p[1], p[2], p[3]);
    b->from = ot_mat(r, LK_MAT_STACK, w, 1);
    ot_weight(r, w, (enum lk_fmt)p[0], p[6], p[1], p[3]);
    if (p[5]) ot_weight(r, w + 1, p[5] == 1 ? (enum lk_fmt)p[0] : LK_FMT_BF16, p[5] == 1 ? p[6] : 12, p[1], p[3]);
    b->to = ot_mat(r, p[5] == 1 ? LK_MAT_GATE_UP : LK_MAT_STACK, w, p[5] ? 2 : 1);
    b->x = ot_up_act(r, ot_rand(r, T * (size_t)p[2], ldexp(1, p[8])), T * (size_t)p[2]);
    b->y = ot_up(r, ot_rand(r, T * n, ldexp(1, p[7])), T * n * 4);
    b->w = ot_up(r, ot_rand(r, n, 1), n * 4);
    b->h = ot_dev(r, T * n * r->d->act_bytes);
    b->out = ot_dev(r, T * (size_t)(p[6] + 12) * 4);
}

static void between_issue(struct op_run *r)
{
    const int *p = r->c->p;
    struct between *b = r->fam;
    struct lk_linear_args from = {.w = b->from, .x = b->x, .y = b->y, .T = p[4], .ldy = p[1], .add = 1, .next = {b->w, 1e-6f, b->h}};
    struct lk_linear_args to = {.w = b->to, .x = b->h, .y = b->out, .T = p[4], .ldy = p[6] + (p[5] ? 12 : 0), .normed = 1};
    struct lk_gate_up_args gate = {.w = b->to, .x = b->h, .out = b->out, .T = p[4], .normed = 1};
    r->d->ops->norm(r->d, b->y, b->w, 1e-6f, p[4], p[1], b->h);
    r->d->ops->linear(r->d, &from);
    if (p[5] == 1)
        r->d->ops->gate_up(r->d, &gate);
    else
        r->d->ops->linear(r->d, &to);
}

/* h is rounded to f16 where activations are: 2^-12 of each product, six of that at the worst; as a gate it counts twice. */
static void between_fetch(struct op_run *r)
{
    const int *p = r->c->p;
    struct between *b = r->fam;
    double more = f16_weights(r, p[0]), tol = r->c->tol + more, h = r->d->act_bytes == 2 ? 2e-3 : 0;
    ot_out_f32(r, "y", b->y, (size_t)p[4] * (size_t)p[1], tol);
    if (p[5] == 1)
        ot_out_act(r, "out", b->out, (size_t)p[4] * (size_t)p[6], tol + 2 * (h + more));
    else
        ot_out_f32(r, "out", b->out, (size_t)p[4] * (size_t)(p[6] + (p[5] ? 12 : 0)), tol + h);
}

static void between_cost(const struct op_case *c, double *bytes, double *flops)
{
    const int *p = c->p;
    *bytes = fmt_bytes(p[0], p[1], p[2] + p[6] * (p[5] == 1 ? 2.0 : 1.0));
    *flops = 2.0 * p[4] * p[1] * (p[2] + p[6]);
}

static const struct op_family between = {"norm_next", between_setup, between_issue, between_fetch, between_cost};

static void cases_between(struct op_table *t)
{
    static const int p[][12] = {
        {LK_FMT_BF16, 64, 128, 0, 1, 0, 72},        {LK_FMT_BF16, 96, 4096, 0, 4, 1, 40},         {LK_FMT_FP8, 200, 512, 0, 5, 2, 80},
        {LK_FMT_NVFP4, 160, 256, 0, 3, 1, 48},      {LK_FMT_NVFP4, 160, 8192, 0, 2, 0, 48},       {LK_FMT_FP8, 1024, 8704, 0, 9, 0, 64},
        {LK_FMT_FP8, 256, 512, 128, 32, 2, 100},    {LK_FMT_FP8, 256, 512, 128, 17, 1, 56},       {LK_FMT_I8, 128, 256, 64, 8, 0, 40},
        {LK_FMT_BF16, 100, 64, 0, 6, 0, 40},        {LK_FMT_BF16, 128, 64, 0, 33, 1, 40},         {LK_FMT_FP8, 128, 8704, 0, 16, 0, 64, -7},
        {LK_FMT_BF16, 128, 256, 0, 4, 0, 40, -9, 5}, {LK_FMT_BF16, 128, 256, 0, 4, 0, 40, 10, -3}, {LK_FMT_FP8, 5120, 17408, 0, 1, 0, 64},
        {LK_FMT_NVFP4, 5120, 6144, 0, 4, 1, 64}};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
        const int *c = p[i];
        struct op_case *add = ot_add(t, &between, OP_CHECK, 2e-5, why_f32, "norm_next %s g%d n%d k%d T%d to%d m%d y2^%d x2^%d",
                                     lk_fmt_info((enum lk_fmt)c[0])->name, c[3], c[1], c[2], c[4], c[5], c[6], c[7], c[8]);
        if (add) memcpy(add->p, c, sizeof add->p);
    }
}

/* p: 0 format of the table, 1 its rows, 2 n, 3 group, 4 T */
static void draft_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct between *b;
    embed_setup(r);
    struct lin *l = r->fam;
    if (!l || !(b = ot_host(r, sizeof *b))) return;
    size_t n = (size_t)p[2], T = (size_t)p[4];
    int32_t *rows = ot_host(r, T * 4);
    for (size_t i = 0; rows && i < T; i++) rows[i] = (int32_t)(ot_random() % 5);
    b->from = l->m, b->x = l->x, b->h = ot_up(r, rows, T * 4);
    b->y = ot_up(r, ot_rand(r, 5 * n, 3), 5 * n * 4);
    b->w = ot_up(r, ot_rand(r, 2 * n, 1), 2 * n * 4);
    b->out = ot_dev(r, T * 2 * n * r->d->act_bytes);
    r->fam = b;
}

static void draft_issue(struct op_run *r)
{
    const int *p = r->c->p;
    struct between *b = r->fam;
    struct lk_draft_in_args a = {.table = b->from, .ids = b->x, .rows = b->h, .hidden = b->y, .embed_norm = b->w,
                                 .hidden_norm = b->w + p[2], .eps = 1e-6f, .T = p[4], .n = p[2], .h = b->out};
    r->d->ops->draft_in(r->d, &a);
}

static void draft_fetch(struct op_run *r)
{
    struct between *b = r->fam;
    ot_out_act(r, "h", b->out, (size_t)r->c->p[4] * 2 * (size_t)r->c->p[2], r->c->tol + f16_weights(r, r->c->p[0]));
}

static const struct op_family draft_in = {"draft_in", draft_setup, draft_issue, draft_fetch, embed_cost};

static void cases_draft_in(struct op_table *t)
{
    static const enum lk_fmt fmt[] = {LK_FMT_BF16, LK_FMT_I8, LK_FMT_FP8};
    static const int n[] = {64, 1024, 5120, 9000};
    for (int i = 0; i < 12; i++) {
        if (n[i % 4] == 9000 && fmt[i / 4] != LK_FMT_BF16) continue;
        lin_add(t, &draft_in, OP_CHECK, "rows", fmt[i / 4], 40, n[i % 4], fmt_group(fmt[i / 4], n[i % 4]), 1 + i * 2);
    }
}

static void cases_every_format(struct op_table *t)
{
    static const int T[] = {1, 3, 16, 17, 50};
    for (int f = LK_FMT_F32; f < LK_FMT_ROWS; f++) {
        enum lk_fmt fmt = (enum lk_fmt)f;
        if (!lk_fmt_info(fmt)->bits) continue;
        for (size_t i = 0; i < sizeof T / sizeof *T; i++)
            lin_add(t, &linear, OP_CHECK, "edge", fmt, 40 + 8 * (int)(i % 3), 512,
                    fmt_group(fmt, 512), T[i]);
        lin_add(t, &linear, OP_CHECK, "0.8B-down/2", fmt, 512, 1792, fmt_group(fmt, 1792), 1);
        lin_add(t, &gate_up, OP_CHECK, "edge", fmt, 56, 768, fmt_group(fmt, 768), 2);
        lin_add(t, &gate_up, OP_CHECK, "edge", fmt, 56, 768, fmt_group(fmt, 768), 37);
        lin_add(t, &embed, OP_CHECK, "rows", fmt, 64, 1024, fmt_group(fmt, 1024), 7);
    }
    /* the other scale layouts: FP8 a row and a tensor, I8 and Q4 a row and groups of 32 */
    static const struct {
        enum lk_fmt f;
        int g;
    } more[] = {{LK_FMT_FP8, 1024}, {LK_FMT_FP8, 0},  {LK_FMT_I8, 1024},
                {LK_FMT_I8, 32},    {LK_FMT_Q4, 32},  {LK_FMT_Q4, 128},
                {LK_FMT_Q4, 1024},  {LK_FMT_CT4, 32}, {LK_FMT_I8, 128}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        for (int T1 = 1; T1 <= 20; T1 += 19) {
            lin_add(t, &linear, OP_CHECK, "scales", more[i].f, 96, 1024, more[i].g, T1);
            lin_add(t, &gate_up, OP_CHECK, "scales", more[i].f, 64, 1024, more[i].g, T1);
        }
}

/* Lengths that no vector width divides; only formats without blocks can have them. */
static void cases_odd(struct op_table *t)
{
    static const int k[] = {1, 7, 8, 9, 15, 17, 31, 33, 100, 1000, 1023, 1025},
                     n[] = {1, 2, 3, 4, 5, 47, 48, 49};
    static const enum lk_fmt f[] = {LK_FMT_F32, LK_FMT_F16, LK_FMT_BF16, LK_FMT_FP8, LK_FMT_I8};
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        for (size_t j = 0; j < 5; j++) {
            lin_add(t, &linear, OP_CHECK, "odd", f[j], n[i % 8], k[i],
                    f[j] == LK_FMT_I8 ? k[i] : fmt_group(f[j], k[i]), 2);
            lin_add(t, &linear, OP_CHECK, "odd", f[j], n[(i + 3) % 8], k[i],
                    f[j] == LK_FMT_I8 ? k[i] : fmt_group(f[j], k[i]), 19 + (int)i);
        }
    for (int i = 0; i < 4; i++) /* FP8 blocks that end inside: ceil in both directions */
        lin_add(t, &linear, OP_CHECK, "odd", LK_FMT_FP8, 130, 200 + 56 * i, 128, 1 + 18 * (i & 1));
    for (int k16 = 16; k16 <= 112; k16 += 32) { /* NVFP4 and Q4 with a tail of one group */
        lin_add(t, &linear, OP_CHECK, "odd", LK_FMT_NVFP4, 33, k16, 0, 1);
        lin_add(t, &linear, OP_CHECK, "odd", LK_FMT_NVFP4, 33, k16, 0, 21);
        lin_add(t, &linear, OP_CHECK, "odd", LK_FMT_Q4, 33, k16, 64, 1);
        lin_add(t, &linear, OP_CHECK, "odd", LK_FMT_Q4, 33, k16, 64, 18);
    }
}

static void cases_stack(struct op_table *t)
{
    static const int second[][2] = {{32, LK_FMT_BF16}, {5, LK_FMT_F32}};
    static const enum lk_fmt first[] = {LK_FMT_FP8, LK_FMT_NVFP4, LK_FMT_BF16, LK_FMT_GG_Q4_K};
    for (int i = 0; i < 16; i++) {
        enum lk_fmt f = first[i % 4];
        int add = i / 4 % 2, two = i % 2, T = i < 8 ? 3 : 30;
        struct op_case *c =
            ot_add(t, &linear, OP_CHECK, 2e-5, why_f32, "linear stack %s+%s add%d T%d #%d",
                   lk_fmt_info(f)->name, two ? "f32" : "bf16", add, T, i);
        int p[12] = {(int)f,         130,        512, fmt_group(f, 512), T, add, second[two][0],
                     second[two][1], 3 * (i % 3)};
        if (c) memcpy(c->p, p, sizeof p);
    }
}

/* Two weights as one, rows in turns: of one format, of two whose kernels read x alike, of two that must be laid out anew, and runs that
 * end inside a kernel's block of rows. */
static void cases_turns(struct op_table *t)
{
    static const int p[][4] = {{LK_FMT_N_Q4, LK_FMT_N_Q4, 32, 96},      {LK_FMT_N_Q4, LK_FMT_N_Q5, 16, 64},  {LK_FMT_NVFP4_T, LK_FMT_NVFP4_T, 64, 128},
                               {LK_FMT_BF16, LK_FMT_BF16, 48, 96},      {LK_FMT_FP8, LK_FMT_FP8, 16, 32},    {LK_FMT_I8, LK_FMT_I8, 256, 256},
                               {LK_FMT_N_Q6, LK_FMT_NVFP4_T, 64, 128},  {LK_FMT_N_Q6, LK_FMT_N_Q6, 8, 40}};
    static const int T[] = {1, 5, 21};
    for (size_t i = 0; i < sizeof p / sizeof *p; i++)
        for (int j = 0; j < 3; j++) {
            enum lk_fmt a = (enum lk_fmt)p[i][0], b = (enum lk_fmt)p[i][1];
            struct op_case *c = ot_add(t, &linear, OP_CHECK, 2e-5, why_f32, "linear turns %s+%s run%d T%d", lk_fmt_info(a)->name, lk_fmt_info(b)->name, p[i][2], T[j]);
            int v[12] = {(int)a, p[i][3], 512, fmt_group(a, 512), T[j], j == 1, p[i][3] * (1 + j % 2), (int)b, 0, p[i][2]};
            if (c) memcpy(c->p, v, sizeof v);
        }
}

/* n, k of the linears that weigh: mixer in and out, mlp gate (of two) and down. */
static const struct {
    const char *name;
    int n, k, check;
} shapes[] = {
    {"0.8B-qkvz", 8192, 1024, 1},    {"0.8B-out", 1024, 2048, 1},  {"0.8B-down", 1024, 3584, 1},
    {"0.8B-head/4", 62080, 1024, 0}, {"4B-attn", 10240, 2560, 0},  {"4B-down", 2560, 9216, 0},
    {"4B-down/2", 2560, 4608, 0},    {"27B-qkvz", 16384, 5120, 0}, {"27B-down", 5120, 17408, 0},
    {"27B-qkvz/2", 8192, 5120, 0},   {"27B-out/2", 5120, 3072, 0}, {"27B-down/2", 5120, 8704, 0},
    {"27B-attn/2", 7168, 5120, 0},   {"27B-qkvz/4", 4096, 5120, 0}, {"27B-out/4", 5120, 1536, 1},
    {"27B-down/4", 5120, 4352, 0},   {"27B-attn/4", 3584, 5120, 0},
};
static const struct {
    const char *name;
    int n, k;
} gates[] = {{"0.8B", 3584, 1024}, {"4B", 9216, 2560}, {"27B/2", 8704, 5120}, {"27B/4", 4352, 5120}};

static void cases_real(struct op_table *t)
{
    static const enum lk_fmt hot[] = {
        LK_FMT_BF16,    LK_FMT_FP8,     LK_FMT_NVFP4,   LK_FMT_I8,      LK_FMT_Q4,  LK_FMT_GG_Q8_0,
        LK_FMT_GG_Q4_K, LK_FMT_GG_Q5_K, LK_FMT_GG_Q6_K, LK_FMT_GG_Q4_0, LK_FMT_F16, LK_FMT_F32,
        LK_FMT_N_Q4, LK_FMT_N_Q5, LK_FMT_N_Q6};
    static const int T[] = {1, 2, 4, 8, 16, 64, 512};
    for (size_t f = 0; f < sizeof hot / sizeof *hot; f++)
        for (size_t i = 0; i < 7; i++) {
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                int check = shapes[s].check && ((T[i] == 1) || (T[i] == 64 && f < 3 && s == 1));
                lin_add(t, &linear, OP_BENCH | (check ? OP_CHECK : 0), shapes[s].name, hot[f],
                        shapes[s].n, shapes[s].k, fmt_group(hot[f], shapes[s].k), T[i]);
            }
            for (size_t s = 0; s < sizeof gates / sizeof *gates; s++)
                lin_add(t, &gate_up, OP_BENCH | (!s && T[i] == 1 ? OP_CHECK : 0), gates[s].name,
                        hot[f], gates[s].n, gates[s].k, fmt_group(hot[f], gates[s].k), T[i]);
        }
}

void cases_linear(struct op_table *t)
{
    cases_every_format(t);
    cases_odd(t);
    cases_stack(t);
    cases_turns(t);
    cases_real(t);
    cases_between(t);
    cases_draft_in(t);
}

/* Rows of one 16-row call against calls of fewer rows starting anywhere: the same bits. */
static int invariant_mat(struct lk_dev *d, const struct op_case *c)
{
    struct op_run r;
    ot_run_begin(&r, c, d);
    ot_run_do(&r);
    struct lin *l = r.fam;
    int bad = r.failed, k = c->p[2], n = c->p[1], gate = c->f == &gate_up;
    size_t out_bytes = gate ? d->act_bytes : 4, row = (size_t)n * out_bytes;
    char *all = ot_host(&r, 16 * row), *some = ot_host(&r, 16 * row);
    if (!bad) bad = d->download(d, all, l->out, 16 * row, NULL);
    for (int T = 1; T < 16 && !bad; T++) {
        int t0 = (T * 5) % (16 - T + 1);
        const char *x = (const char *)l->x + (size_t)t0 * (size_t)k * d->act_bytes;
        struct lk_linear_args a = {.w = l->m, .x = x, .y = l->out, .T = T, .ldy = n};
        struct lk_gate_up_args g = {.w = l->m, .x = x, .out = l->out, .T = T};
        if (gate)
            d->ops->gate_up(d, &g);
        else
            d->ops->linear(d, &a);
        bad = d->download(d, some, l->out, (size_t)T * row, NULL) ||
              memcmp(some, all + (size_t)t0 * row, (size_t)T * row);
        if (bad)
            printf("  %s: rows %d..%d alone differ from 16 rows together\n", c->name, t0,
                   t0 + T - 1);
    }
    ot_run_end(&r);
    return bad != 0;
}

int invariant_linear(struct lk_dev *d)
{
    struct op_table t = {0};
    for (int f = LK_FMT_F32; f < LK_FMT_ROWS; f++) {
        if (!lk_fmt_info((enum lk_fmt)f)->bits) continue;
        lin_add(&t, &linear, OP_CHECK, "invariant", (enum lk_fmt)f, 72, 512,
                fmt_group((enum lk_fmt)f, 512), 16);
        lin_add(&t, &gate_up, OP_CHECK, "invariant", (enum lk_fmt)f, 40, 512,
                fmt_group((enum lk_fmt)f, 512), 16);
    }
    lin_add(&t, &linear, OP_CHECK, "invariant", LK_FMT_BF16, 51, 1001, 0, 16);
    lin_add(&t, &linear, OP_CHECK, "invariant", LK_FMT_FP8, 51, 1001, 1001, 16);
    lin_add(&t, &linear, OP_CHECK, "invariant", LK_FMT_NVFP4, 50, 5120, 0, 16);
    int bad = 0;
    for (int i = 0; i < t.n; i++) bad += invariant_mat(d, t.v + i);
    ot_table_free(&t);
    return bad;
}

/* An FP8 weight whose rows 3 and 40 hold a NaN code (0x7f, 0xff): those answer NaN, as the oracle
 * does, and the others do not. Returns the number of wrong outputs. */
int nan_linear(struct lk_dev *d)
{
    static const int T[] = {1, 8, 20};
    int bad = 0;
    for (int i = 0; i < 3; i++) {
        struct op_table t = {0};
        lin_add(&t, &linear, OP_CHECK, "nan", LK_FMT_FP8, 50, 700, 128, T[i]);
        struct op_run r = {.d = d, .c = t.v};
        struct lin l = {0};
        struct lk_weight w;
        ot_seed(7);
        ot_weight(&r, &w, LK_FMT_FP8, 50, 700, 128);
        uint8_t *codes = r.failed ? NULL : (uint8_t *)(uintptr_t)w.data;
        if (codes) codes[3 * 700 + 130] = 0x7f, codes[40 * 700 + 699] = 0xff;
        r.fam = &l;
        l.ldy = 50;
        l.m = ot_mat(&r, LK_MAT_STACK, &w, 1);
        l.x = ot_up_act(&r, ot_rand(&r, 20 * 700, 1), 20 * 700);
        l.out = ot_dev(&r, 20 * 50 * 4);
        ot_run_do(&r);
        for (int k = 0; !r.failed && k < T[i] * 50; k++)
            bad += isnan(r.out[0].v[k]) != (k % 50 == 3 || k % 50 == 40);
        bad += r.failed;
        ot_run_end(&r);
        ot_table_free(&t);
    }
    return bad;
}

/* Is row t of y what row t of x asks for? 0: zeros, 1 and 2: no finite number, 3: the products, tiny as x is. */
static int odd_x_row(const struct lk_weight *w, int t, const float *x, const float *y)
{
    float row[512];
    int bad = 0;
    double err = 0, ss = 0;
    for (int r = 0; r < w->n; r++) {
        double want = 0;
        lk_weight_row(w, r, 0, w->k, row);
        for (int i = 0; t == 3 && i < w->k; i++) want += (double)row[i] * x[i];
        if (t == 0) bad += y[r] != 0;
        if (t == 1 || t == 2) bad += isfinite(y[r]) != 0;
        ss += want * want;
        err = fmax(err, fabs(want - y[r]));
    }
    return bad + (t == 3 && err > 4e-5 * sqrt(ss / (double)w->n));
}

/* Rows of x that fixed-point arithmetic could get wrong: zeros, a NaN, an infinity, numbers around 1e-20. Wrong rows. */
int odd_x_linear(struct lk_dev *d)
{
    static const enum lk_fmt f[] = {LK_FMT_BF16, LK_FMT_NVFP4, LK_FMT_GG_Q8_0, LK_FMT_GG_Q4_K, LK_FMT_GG_Q5_K, LK_FMT_GG_Q6_K};
    int bad = 0;
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        struct op_table t = {0};
        lin_add(&t, &linear, OP_CHECK, "odd x", f[i], 20, 512, 0, 4);
        struct op_run r = {.d = d, .c = t.v};
        struct lin l = {.ldy = 20};
        struct lk_weight w;
        ot_seed(11);
        ot_weight(&r, &w, f[i], 20, 512, 0);
        float *x = ot_rand(&r, 4 * 512, 1);
        for (int k = 0; x && k < 512; k++) x[k] = 0, x[3 * 512 + k] *= 1e-20f;
        if (x) x[512 + 300] = NAN, x[2 * 512 + 7] = -INFINITY;
        r.fam = &l;
        l.m = ot_mat(&r, LK_MAT_STACK, &w, 1);
        l.x = ot_up_act(&r, x, 4 * 512);
        l.out = ot_dev(&r, 4 * 20 * 4);
        ot_run_do(&r);
        for (int k = 0; !r.failed && k < 4; k++) {
            int wrong = odd_x_row(&w, k, x + k * 512, r.out[0].v + k * 20);
            if (wrong) printf("  %s: row %d is wrong\n", t.v->name, k);
            bad += wrong;
        }
        bad += r.failed;
        ot_run_end(&r);
        ot_table_free(&t);
    }
    return bad;
}
