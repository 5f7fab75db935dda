/* Cases of the gated delta net and its fold (which takes a second layer along, equal to the first). The state is opaque (a backend may transpose it), so
 * it is judged by what comes after: each case starts from a state made by a few rows, and a
 * following step of three rows is part of its output. */
#include "cases/cases.h"

#include <math.h>
#include <string.h>

enum { D = 128, NEXT = 3, WARM = 5 };
enum how { RUN, RECORD, FOLD };

/* p: 0 hk, 1 hv, 2 tiled, 3 lanes, 4 rows, 5 how, 6 rows grow by lane, 7 keep (FOLD), 8 from an
 * empty state, 9 extra ld */
struct net {
    struct lk_gdn_args a;
    struct lk_batch b;
    struct lk_lane lane[8];
    float *main_out, *next_out, *next_proj;
    float *twin_state, *twin_conv; /* of the second layer that a fold takes */
    size_t state_bytes, conv_bytes;
    int rows, folded_twin;
};

static void net_lanes(struct op_run *r, struct net *t, int rows, int grow)
{
    int at = 0;
    for (int l = 0; l < r->c->p[3]; l++) {
        int n = rows + (grow ? l : 0);
        t->lane[l] =
            (struct lk_lane){.row0 = at, .rows = n, .slot = (l * 3 + 1) % 8, .keep = r->c->p[7]};
        at += n;
    }
    t->b.n_rows = at;
    t->b.n_lanes = r->c->p[3];
    r->d->upload(r->d, (void *)(uintptr_t)t->b.lanes, t->lane, sizeof t->lane);
}

static void net_weights(struct op_run *r, struct net *t, size_t c)
{
    const int *p = r->c->p;
    float *a = ot_host(r, (size_t)p[1] * 4), *dt = ot_host(r, (size_t)p[1] * 4),
          *w = ot_rand(r, D, 0.2);
    for (int h = 0; a && dt && h < p[1]; h++) {
        a[h] =
            -(0.05f + (float)(ot_random() % 1000) * 0.004f); /* decay from 0.999 to 0.1 a token */
        dt[h] = (float)ot_normal() - 2;
    }
    for (int i = 0; w && i < D; i++) w[i] += 1;
    t->a.conv_w = ot_up(r, ot_rand(r, c * 4, 0.5), c * 16);
    t->a.a_coef = ot_up(r, a, (size_t)p[1] * 4);
    t->a.dt_bias = ot_up(r, dt, (size_t)p[1] * 4);
    t->a.norm_w = ot_up(r, w, D * 4);
}

static float *net_proj(struct op_run *r, struct net *t, int rows)
{
    size_t n = (size_t)rows * (size_t)t->a.ld;
    return ot_up(r, ot_rand(r, n, 1), n * 4);
}

static void net_setup(struct op_run *r)
{
    const int *p = r->c->p;
    struct net *t = r->fam = ot_host(r, sizeof *t);
    if (!t) return;
    size_t c = (size_t)(2 * p[0] + p[1]) * D;
    t->a = (struct lk_gdn_args){.b = &t->b,
                                .ld = (int)c + p[1] * D + 2 * p[1] + p[9],
                                .hk = p[0],
                                .hv = p[1],
                                .tiled = p[2],
                                .eps = 1e-6f};
    net_weights(r, t, c);
    t->state_bytes = (size_t)8 * (size_t)p[1] * D * D * 4, t->conv_bytes = 8 * 3 * c * 4;
    t->a.state = ot_dev(r, t->state_bytes);
    t->a.conv = ot_dev(r, t->conv_bytes);
    if (p[5] == FOLD) t->twin_state = ot_dev(r, t->state_bytes), t->twin_conv = ot_dev(r, t->conv_bytes);
    t->b.lanes = ot_dev(r, sizeof t->lane);
    if (r->failed) return;
    if (!p[8]) {
        net_lanes(r, t, WARM, 0);
        t->a.proj = net_proj(r, t, t->b.n_rows);
        t->a.out = ot_dev(r, (size_t)t->b.n_rows * (size_t)p[1] * D * r->d->act_bytes);
        if (!r->failed) r->d->ops->gdn(r->d, &t->a);
    }
    net_lanes(r, t, NEXT, 0);
    t->next_proj = net_proj(r, t, t->b.n_rows);
    t->next_out = ot_dev(r, (size_t)t->b.n_rows * (size_t)p[1] * D * r->d->act_bytes);
    net_lanes(r, t, p[4], p[6]);
    t->rows = t->b.n_rows;
    t->a.proj = net_proj(r, t, t->rows);
    t->a.out = t->main_out = ot_dev(r, (size_t)t->rows * (size_t)p[1] * D * r->d->act_bytes);
    t->a.mode = p[5] == RUN ? LK_GDN_RUN : LK_GDN_RECORD;
    if (p[5] != RUN) t->a.record = ot_dev(r, (size_t)t->rows * lk_gdn_record_bytes(p[0], p[1]));
}

static void net_fold(struct op_run *r, struct net *t)
{
    float *state[] = {t->a.state, t->twin_state}, *conv[] = {t->a.conv, t->twin_conv};
    void *record[] = {t->a.record, t->a.record};
    struct lk_gdn_fold_args f = {&t->b, t->a.hk, t->a.hv, t->a.tiled, 2, state, conv, record};
    r->d->copy(r->d, t->twin_state, t->a.state, t->state_bytes);
    r->d->copy(r->d, t->twin_conv, t->a.conv, t->conv_bytes);
    r->d->ops->gdn_fold(r->d, &f);
}

static void net_issue(struct op_run *r)
{
    struct net *t = r->fam;
    r->d->ops->gdn(r->d, &t->a);
    if (r->c->p[5] == FOLD) net_fold(r, t);
    t->folded_twin = r->c->p[5] == FOLD && t->rows % 2;
}

static void net_fetch(struct op_run *r)
{
    struct net *t = r->fam;
    size_t w = (size_t)r->c->p[1] * D;
    ot_out_act(r, "out", t->main_out, (size_t)t->rows * w, r->c->tol);
    net_lanes(r, t, NEXT, 0);
    struct lk_gdn_args next = t->a;
    if (t->folded_twin) next.state = t->twin_state, next.conv = t->twin_conv; /* so that both layers of a fold are judged by some case */
    next.mode = LK_GDN_RUN;
    next.proj = t->next_proj;
    next.out = t->next_out;
    r->d->ops->gdn(r->d, &next);
    ot_out_act(r, "the next rows", t->next_out, (size_t)t->b.n_rows * w, r->c->tol);
}

static void net_cost(const struct op_case *c, double *bytes, double *flops)
{
    const int *p = c->p;
    *bytes = 2.0 * p[3] * p[1] * D * D * 4; /* state in and out */
    *flops =
        (double)p[3] * p[4] * p[1] * D * D * 7; /* decay, S^T k, update, S^T q of the recurrence */
}

static const struct op_family gdn = {"gdn", net_setup, net_issue, net_fetch, net_cost};
static const struct op_family fold = {"gdn_fold", net_setup, net_issue, net_fetch, net_cost};

static void net_add(struct op_table *t, int use, const int p[12])
{
    static const char *how[] = {"run", "record", "fold"};
    int wide = p[4] > 16;
    struct op_case *c =
        ot_add(t, p[5] == FOLD ? &fold : &gdn, use, wide ? 1e-4 : 2e-5,
               wide ? "chunked form against the recurrence: a triangular solve of 64 in f32"
                    : "f32 state and sums against f64 sums",
               "gdn %s k%d v%d tiled%d lanes%d rows%d+%d keep%d new%d ld+%d", how[p[5]], p[0], p[1],
               p[2], p[3], p[4], p[6], p[7], p[8], p[9]);
    if (c) memcpy(c->p, p, sizeof c->p);
}

void cases_gdn(struct op_table *t)
{
    static const int heads[][3] = {{16, 16, 0}, {8, 8, 0},  {4, 8, 0}, {4, 8, 1},
                                   {4, 12, 0},  {4, 12, 1}, {2, 2, 0}};
    static const int rows[] = {1, 2, 3, 4, 5, 8, 16, 17, 31, 63, 64, 65, 127, 128, 129, 200};
    for (int i = 0; i < 16; i++) {
        const int *h = heads[i % 7];
        int lanes = rows[i] < 20 ? 1 + i % 3 : 1;
        int run[12] = {h[0], h[1], h[2], lanes, rows[i], RUN, i % 2, 0, i % 4 == 3, i % 2 * 6};
        net_add(t, OP_CHECK, run);
        if (rows[i] > 16) continue;
        int rec[12] = {h[0], h[1], h[2], lanes, rows[i], RECORD, 0, 0, i % 4 == 2, 0};
        net_add(t, OP_CHECK, rec);
        for (int keep = 0; keep <= rows[i]; keep += 1 + rows[i] / 3) {
            int f[12] = {h[0], h[1], h[2], lanes, rows[i], FOLD, 0, keep, 0, i % 2 * 10};
            net_add(t, OP_CHECK, f);
        }
    }
    int real[][12] = {{16, 16, 0, 1, 1},
                      {16, 32, 0, 1, 1},
                      {16, 48, 0, 1, 1},
                      {8, 24, 0, 1, 1},
                      {4, 12, 0, 1, 1},
                      {16, 48, 1, 1, 1}};
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) net_add(t, OP_CHECK | OP_BENCH, real[i]);
    int bench[][12] = {{16, 16, 0, 1, 4, RECORD},
                       {16, 16, 0, 1, 64},
                       {16, 16, 0, 1, 512},
                       {16, 48, 0, 1, 512},
                       {16, 48, 0, 8, 1}};
    for (size_t i = 0; i < 5; i++) net_add(t, OP_BENCH, bench[i]);
}

/* RECORD of T rows, and fold of each number of them, against T steps of one row. */
static int invariant_rows(struct lk_dev *d, const struct op_case *c)
{
    struct op_run all, one;
    ot_run_begin(&all, c, d);
    ot_run_begin(&one, c, d);
    int bad = all.failed || one.failed, hv = c->p[1], rows = c->p[4];
    if (!bad) ot_run_do(&all);
    struct net *t = one.fam;
    const float *proj = t->a.proj;
    char *out = (char *)t->main_out;
    for (int i = 0; i < rows && !bad; i++) {
        net_lanes(&one, t, 1, 0);
        t->a.mode = i < c->p[7]
                        ? LK_GDN_RUN
                        : LK_GDN_RECORD; /* rows past keep must leave no trace in the state */
        if (i > c->p[7]) break;
        t->a.proj = proj + (size_t)i * (size_t)t->a.ld;
        t->a.out = out + (size_t)i * (size_t)hv * D * d->act_bytes;
        d->ops->gdn(d, &t->a);
    }
    t->rows = rows;
    if (!bad) c->f->fetch(&one);
    size_t same = (size_t)(c->p[7] + (c->p[7] < rows)) * (size_t)hv * D;
    bad = bad || all.n_out != 2 || one.n_out != 2 ||
          memcmp(all.out[0].v, one.out[0].v, same * sizeof(float)) ||
          memcmp(all.out[1].v, one.out[1].v, all.out[1].n * sizeof(float));
    if (bad) printf("  %s: recorded and folded rows differ from rows one by one\n", c->name);
    ot_run_end(&all);
    ot_run_end(&one);
    return bad;
}

int invariant_gdn(struct lk_dev *d)
{
    struct op_table t = {0};
    int bad = 0;
    for (int rows = 1; rows <= 16; rows += rows < 6 ? 1 : 5)
        for (int keep = 0; keep <= rows; keep += 1 + rows / 4) {
            int p[12] = {4, rows % 2 ? 8 : 12, rows % 3 == 0, 1, rows, FOLD, 0, keep};
            net_add(&t, OP_CHECK, p);
        }
    for (int i = 0; i < t.n; i++) bad += invariant_rows(d, t.v + i);
    ot_table_free(&t);
    return bad;
}
