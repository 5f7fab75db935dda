/* Cases of gated attention: each cache kind, head counts of the family and their tensor-parallel
 * halves, one row and prefill chunks, several lanes with scattered pages, page and split edges,
 * window, M-RoPE, idle lanes. */
#include "cases/cases.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

/* p: 0 kv kind, 1 n_q, 2 n_kv, 3 lanes, 4 pos0, 5 rows, 6 rows grow by lane, 7 window, 8 M-RoPE, 9
 * idle lane, 10 extra ld */
struct att {
    struct lk_attn_args a;
    struct lk_batch b;
    struct lk_lane lane[8];
    int32_t *pages_host;
    size_t kv_bytes, out_n;
    int n_pages;
};

static void att_lanes(struct op_run *r, struct att *t)
{
    const int *p = r->c->p;
    int row = 0, page = 0;
    for (int l = 0; l < p[3]; l++) {
        struct lk_lane *n = t->lane + l;
        n->row0 = row;
        n->rows = p[9] && l == 1 ? 0 : p[5] + (p[6] ? l : 0);
        n->pos0 = l ? (p[4] * (l + 2) + 29 * l) % (p[4] + 64) : p[4];
        n->page0 = page;
        row += n->rows;
        page += (n->pos0 + n->rows + LK_PAGE - 1) / LK_PAGE;
        if (n->pos0 + n->rows > t->b.max_ctx) t->b.max_ctx = n->pos0 + n->rows;
    }
    t->b.n_rows = row;
    t->b.n_lanes = p[3];
    t->n_pages = page;
    t->pages_host = ot_host(r, (size_t)page * 4);
    for (int i = 0; t->pages_host && i < page; i++) t->pages_host[i] = i;
    for (int i = page - 1; t->pages_host && i > 0; i--) { /* pages lie anywhere */
        int j = (int)(ot_random() % (uint32_t)(i + 1)), x = t->pages_host[i];
        t->pages_host[i] = t->pages_host[j];
        t->pages_host[j] = x;
    }
}

/* A cache of plausible history: elements about 1. */
static void *att_history(struct op_run *r, struct att *t)
{
    enum lk_kv_kind kind = (enum lk_kv_kind)r->c->p[0];
    int n_kv = r->c->p[2];
    size_t elems = (size_t)n_kv * LK_PAGE * LK_HEAD, half = lk_kv_half_bytes(kind, n_kv);
    t->kv_bytes = (size_t)t->n_pages * 2 * half;
    char *kv = ot_host(r, t->kv_bytes);
    for (size_t h = 0; kv && h < (size_t)t->n_pages * 2; h++) {
        char *p = kv + h * half;
        for (size_t i = 0; i < elems; i++) {
            float v = (float)ot_normal();
            uint16_t b = lk_f32_to_bf16(v);
            if (kind == LK_KV_F32) memcpy(p + 4 * i, &v, 4);
            if (kind == LK_KV_BF16) memcpy(p + 2 * i, &b, 2);
            if (kind == LK_KV_I8) p[i] = (char)(int8_t)(v * 36);
        }
        for (size_t i = 0; kind == LK_KV_I8 && i < elems / LK_KV_GROUP; i++) {
            uint16_t s = lk_f32_to_f16(1 / 36.0f * (0.75f + (float)(i % 5) * 0.1f));
            memcpy(p + elems + 2 * i, &s, 2);
        }
    }
    return ot_up(r, kv, t->kv_bytes);
}

static void att_consts(struct op_run *r, struct att *t)
{
    float inv[32], *w = ot_host(r, 256 * 4);
    uint8_t sec[32];
    for (int i = 0; i < 32; i++) {
        inv[i] = (float)pow(1e7, -2.0 * i / 64);
        sec[i] = (uint8_t)(i % 3 == 1 ? 1 : i % 3 == 2 && i < 30 ? 2 : 0);
    }
    for (int i = 0; w && i < 256; i++) w[i] = 1 + 0.25f * (float)ot_normal();
    t->a.inv_freq = ot_up(r, inv, sizeof inv);
    t->a.section = ot_up(r, sec, sizeof sec);
    t->a.q_norm = ot_up(r, w, 256 * 4);
    for (int i = 0; w && i < 256; i++) w[i] = 1 + 0.25f * (float)ot_normal();
    t->a.k_norm = ot_up(r, w, 256 * 4);
}

static void att_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct att *t = r->fam = ot_host(r, sizeof *t);
    if (!t) return;
    att_lanes(r, t);
    int rows = t->b.n_rows, n = (2 * p[1] + 2 * p[2]) * LK_HEAD;
    t->a = (struct lk_attn_args){.b = &t->b,
                                 .ld = n + p[10],
                                 .eps = 1e-6f,
                                 .n_q = p[1],
                                 .n_kv = p[2],
                                 .rope_dim = 64,
                                 .kv_kind = (enum lk_kv_kind)p[0],
                                 .window = p[7]};
    att_consts(r, t);
    int32_t *rope = ot_host(r, (size_t)rows * 12);
    for (int s = 0; rope && s < 3; s++)
        for (int l = 0; l < p[3]; l++)
            for (int i = 0; i < t->lane[l].rows; i++)
                rope[s * rows + t->lane[l].row0 + i] =
                    (t->lane[l].pos0 + i) / (p[8] && s ? 2 * s : 1);
    t->b.rope = ot_up(r, rope, (size_t)rows * 12);
    t->b.lanes = ot_up(r, t->lane, sizeof t->lane);
    t->b.pages = ot_up(r, t->pages_host, (size_t)t->n_pages * 4);
    size_t n_proj = (size_t)rows * (size_t)t->a.ld;
    t->a.proj = ot_up(r, ot_rand(r, n_proj, 1), n_proj * 4);
    t->a.kv = att_history(r, t);
    t->out_n = (size_t)rows * (size_t)p[1] * LK_HEAD;
    t->a.out = ot_dev(r, t->out_n * r->d->act_bytes);
}

static void att_issue(struct op_run *r)
{
    struct att *t = r->fam;
    r->d->ops->attn(r->d, &t->a);
}

/* The appended keys and values in f32; an I8 code may fall one step off where the value lies on the
 * edge. */
static void att_fetch_appended(struct op_run *r, struct att *t)
{
    const int *p = r->c->p;
    size_t half = lk_kv_half_bytes(t->a.kv_kind, p[2]), codes = (size_t)p[2] * LK_PAGE * LK_HEAD;
    char *kv = ot_host(r, t->kv_bytes);
    float *v = ot_host(r, (size_t)t->b.n_rows * (size_t)p[2] * 2 * LK_HEAD * 4), *o = v;
    if (!kv || !v || r->d->download(r->d, kv, t->a.kv, t->kv_bytes, NULL)) return;
    for (int l = 0; l < p[3]; l++)
        for (int i = 0; i < t->lane[l].rows * p[2] * 2; i++) {
            int pos = t->lane[l].pos0 + i / (2 * p[2]), h = i / 2 % p[2];
            const char *b = kv + ((size_t)t->pages_host[t->lane[l].page0 + pos / LK_PAGE] * 2 +
                                  (size_t)(i & 1)) *
                                     half;
            for (int e = 0; e < LK_HEAD; e++) {
                size_t at = ((size_t)h * LK_PAGE + (size_t)(pos % LK_PAGE)) * LK_HEAD + (size_t)e;
                if (t->a.kv_kind == LK_KV_F32)
                    memcpy(o, b + 4 * at, 4);
                else if (t->a.kv_kind == LK_KV_BF16)
                    *o = lk_bf16_to_f32(lk_get16(b + 2 * at));
                else
                    *o = (float)(int8_t)b[at] *
                         lk_f16_to_f32(lk_get16(b + codes + at / LK_KV_GROUP * 2));
                o++;
            }
        }
    static const double step[] = {[LK_KV_I8] = 0.03, [LK_KV_BF16] = 0.008, [LK_KV_F32] = 1e-5};
    r->out[r->n_out++] =
        (struct op_out){"appended k, v", v, (size_t)(o - v), step[t->a.kv_kind], 0};
}

static void att_fetch(struct op_run *r)
{
    struct att *t = r->fam;
    /* A device with f16 activations has tensor cores: queries and weights are f16 there, 2^-12 of each score and weight off,
     * which 4 sigma over the outputs and an open gate make 2e-3 of the rms. */
    double f16 = r->d->act_bytes == 2 && t->a.kv_kind != LK_KV_F32 ? 2e-3 : 0;
    ot_out_act(r, "out", t->a.out, t->out_n, r->c->tol + f16);
    att_fetch_appended(r, t);
}

static void att_cost(const struct op_case *c, double *bytes, double *flops)
{
    const int *p = c->p;
    double ctx = 0, pairs = 0;
    for (int l = 0; l < p[3]; l++) {
        double pos = l ? (p[4] * (l + 2) + 29 * l) % (p[4] + 64) : p[4],
               rows = p[5] + (p[6] ? l : 0);
        if (p[7] && pos > p[7]) pos = p[7];
        ctx += pos + rows;
        pairs += rows * (pos + rows / 2);
    }
    *bytes = ctx * (double)lk_kv_page_bytes((enum lk_kv_kind)p[0], p[2]) / LK_PAGE;
    *flops = pairs * p[1] * LK_HEAD * 4;
}

static const struct op_family attn = {"attn", att_setup, att_issue, att_fetch, att_cost};

static void att_add(struct op_table *t, int use, const int p[12])
{
    static const char *kind[] = {"i8", "bf16", "f32"};
    /* I8 and BF16: a code of the new rows may round to the other side: 2^-8 of a value times its key's weight, which
     * is 0.1 where a window leaves 100 keys */
    static const double tol[] = {2e-3, 2e-3, 2e-5};
    struct op_case *c =
        ot_add(t, &attn, use, tol[p[0]],
               p[0] == LK_KV_F32
                   ? "f32 online softmax over ctx keys"
                   : "a code of a new key may round the other way: 1 step in one of 256 products",
               "attn %s q%d/%d lanes%d pos%d rows%d+%d win%d mrope%d idle%d ld+%d", kind[p[0]],
               p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10]);
    if (c) memcpy(c->p, p, sizeof c->p);
}

void cases_attn(struct op_table *t)
{
    static const int heads[][2] = {{8, 2}, {4, 1}, {16, 4}, {8, 2}, {24, 4}, {12, 2}, {6, 1}};
    static const int pos[] = {0, 1, 62, 63, 64, 127, 130, 511, 512, 700};
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 10; i++) {
            const int *h = heads[(i + kind) % 7];
            int one[12] = {kind, h[0], h[1], 1, pos[i], 1},
                few[12] = {kind, h[0], h[1], 1, pos[i], 2 + i};
            att_add(t, OP_CHECK, one);
            att_add(t, OP_CHECK, few);
        }
        int more[][12] = {
            {kind, 8, 2, 3, 100, 1, 0},         {kind, 8, 2, 3, 100, 1, 1, 0, 1, 0, 8},
            {kind, 4, 1, 3, 70, 2, 0, 0, 0, 1}, {kind, 8, 2, 1, 0, 65},
            {kind, 4, 2, 1, 60, 130, 0, 0, 1},  {kind, 8, 2, 1, 300, 4, 0, 64},
            {kind, 8, 2, 1, 300, 70, 0, 100},   {kind, 24, 4, 2, 600, 1, 0, 1},
            {kind, 2, 2, 8, 40, 3, 1},          {kind, 4, 1, 1, 1023, 3},
            {kind, 4, 1, 1, 2047, 2},           {kind, 4, 1, 1, 4100, 1}};
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) att_add(t, OP_CHECK, more[i]);
        int deep[][12] = {{kind, 6, 1, 1, 8191, 4}, {kind, 6, 1, 1, 65535, 3}, {kind, 6, 1, 1, 262140, 4}, {kind, 6, 1, 1, 8150, 40}};
        for (size_t i = 0; kind != LK_KV_F32 && i < sizeof deep / sizeof *deep; i++) att_add(t, OP_LONG, deep[i]);
        int bench[][12] = {{kind, 8, 2, 1, 64, 1},     {kind, 8, 2, 1, 4096, 1},
                           {kind, 24, 4, 1, 4096, 1},  {kind, 24, 4, 1, 32768, 1},
                           {kind, 8, 2, 1, 4096, 4},   {kind, 8, 2, 1, 0, 512},
                           {kind, 8, 2, 1, 3584, 512}, {kind, 24, 4, 1, 3584, 512},
                           {kind, 12, 2, 1, 32768, 4}, {kind, 6, 1, 1, 32768, 4}}; /* 27B on 2 and 4 ranks */
        for (size_t i = 0; i < sizeof bench / sizeof *bench; i++) att_add(t, OP_BENCH, bench[i]);
    }
}

/* One lane's rows in one call against cuts of the same rows; and the whole batch with its lanes the
 * other way round. */
static int invariant_cut(struct lk_dev *d, const struct op_case *c, int cut)
{
    struct op_run all, part;
    ot_run_begin(&all, c, d);
    ot_run_begin(&part, c, d);
    ot_run_do(&all);
    struct att *t = part.fam;
    int rows = t->b.n_rows, bad = all.failed || part.failed;
    const float *proj = t->a.proj;
    const int32_t *rope = t->b.rope;
    char *out = t->a.out;
    for (int r0 = 0; r0 < rows && !bad; r0 += cut) {
        int n = rows - r0 < cut ? rows - r0 : cut;
        int32_t pos[3 * 16];
        struct lk_lane l = t->lane[0];
        l.rows = n;
        l.pos0 += r0;
        for (int s = 0; s < 3 && !bad; s++)
            bad = d->download(d, pos + s * n, rope + s * rows + r0, (size_t)n * 4, NULL);
        d->upload(d, (void *)(uintptr_t)t->b.lanes, &l, sizeof l);
        int32_t *rope_n = ot_up(&part, pos, (size_t)n * 12);
        t->b.rope = rope_n;
        t->b.n_rows = n;
        t->a.proj = proj + (size_t)r0 * (size_t)t->a.ld;
        t->a.out = out + (size_t)r0 * (size_t)c->p[1] * LK_HEAD * d->act_bytes;
        d->ops->attn(d, &t->a);
    }
    t->a.out = out;
    t->b.n_rows = rows;
    if (!bad) c->f->fetch(&part);
    bad = bad || !ot_same_bits(&all, &part);
    if (bad) printf("  %s: rows cut by %d differ from one call\n", c->name, cut);
    ot_run_end(&all);
    ot_run_end(&part);
    return bad;
}

static int invariant_lanes(struct lk_dev *d, const struct op_case *c)
{
    struct op_run r;
    ot_run_begin(&r, c, d);
    ot_run_do(&r);
    struct att *t = r.fam;
    int bad = r.failed, n = c->p[3];
    struct lk_lane back[8];
    for (int l = 0; l < n; l++)
        back[l] = t->lane[n - 1 - l]; /* rows keep their place, lanes are listed from the end */
    d->upload(d, (void *)(uintptr_t)t->b.lanes, back, sizeof back);
    float *first = r.out[0].v;
    if (!bad) {
        c->f->issue(&r);
        ot_out_act(&r, "out", t->a.out, t->out_n, 0);
        bad = r.n_out < 3 || memcmp(first, r.out[2].v, t->out_n * sizeof *first);
    }
    if (bad) printf("  %s: the order of lanes changes the result\n", c->name);
    ot_run_end(&r);
    return bad;
}

int invariant_attn(struct lk_dev *d)
{
    struct op_table t = {0};
    for (int kind = 0; kind < 3; kind++) {
        int one[][12] = {{kind, 8, 2, 1, 60, 16},
                         {kind, 6, 1, 1, 500, 16},
                         {kind, 12, 2, 1, 2040, 16},
                         {kind, 8, 2, 1, 300, 16, 0, 90}};
        for (size_t i = 0; i < sizeof one / sizeof *one; i++) att_add(&t, OP_CHECK, one[i]);
    }
    int bad = 0, n = t.n;
    for (int i = 0; i < n; i++)
        bad += invariant_cut(d, t.v + i, 1) + invariant_cut(d, t.v + i, 3) +
               invariant_cut(d, t.v + i, 8);
    for (int kind = 0; kind < 3; kind++) {
        int many[12] = {kind, 8, 2, 4, 200, 2, 1};
        att_add(&t, OP_CHECK, many);
    }
    for (int i = n; i < t.n; i++) bad += invariant_lanes(d, t.v + i);
    ot_table_free(&t);
    return bad;
}
