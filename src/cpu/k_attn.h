/* Gated attention over the paged cache. Compiled once an instruction set.
 *
 * Rows are made ready first (norm, rotation, Hadamard, append); then a task is a block of up to
 * MAX_Q queries that share a kv head, walking the key axis page by page: keys and values of a page
 * are decoded to f32 once for all of the block's queries, scores of a page live in 64 floats a
 * query, softmax is kept running. The key axis is cut every SPLIT positions: a cut's result (max,
 * sum, weighted values) does not depend on the rest, and cuts are merged in order, so it makes no
 * difference whether one thread walks them all or many share them, nor how many rows the call has.
 */
#ifndef LK_CPU_K_ATTN_H
#define LK_CPU_K_ATTN_H

#include "cpu/cpu.h"
#include "cpu/simd.h"

enum {
    MAX_Q =
        32, /* queries a task: a page of keys and one of values are 128 KB decoded, shared by all */
    SPLIT = 512, /* positions a cut: 8 pages */
};
#define ATTN_PARTIAL_MOST                                                                          \
    ((size_t)64 << 20) /* cuts shared by threads: 4 kv heads at 250,000 positions */

struct attn_part { /* result of some keys for some queries */
    float m[MAX_Q], l[MAX_Q];
    float acc[MAX_Q][LK_HEAD];
};

struct attn_scratch { /* a thread's */
    float k[LK_PAGE][LK_HEAD], v[LK_PAGE][LK_HEAD];
    float q[MAX_Q][LK_HEAD];
    float p[MAX_Q][LK_PAGE];
    struct attn_part run, cut;
};

struct attn_run {
    struct cpu_dev *c;
    const struct lk_attn_args *a;
    float *q;                 /* [T][n_q][256] */
    struct attn_part *cuts;   /* [task][n_split] when threads share them */
    int group, rows, n_split; /* heads a kv head, rows a task, cuts of the longest lane */
};

/* ---- rows made ready ---- */

static void attn_norm(const float *x, const float *w, float eps, float *y)
{
    vf s = vf_set(0);
    for (int i = 0; i < LK_HEAD; i += VW) s = vf_fma(vf_load(x + i), vf_load(x + i), s);
    vf r = vf_set(1 / sqrtf(vf_sum(s) / LK_HEAD + eps));
    for (int i = 0; i < LK_HEAD; i += VW)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), r), vf_load(w + i)));
}

static void attn_rotate(const float *cs, int half, float *x)
{
    for (int i = 0; i < half; i++) {
        float u = x[i], v = x[i + half];
        x[i] = u * cs[2 * i] - v * cs[2 * i + 1];
        x[i + half] = v * cs[2 * i] + u * cs[2 * i + 1];
    }
}

static void attn_hadamard(float *x)
{
    for (int s = 1; s < VW; s *= 2)
        for (int i = 0; i < LK_HEAD; i += 2 * s)
            for (int j = i; j < i + s; j++) {
                float u = x[j], v = x[j + s];
                x[j] = u + v;
                x[j + s] = u - v;
            }
    for (int s = VW; s < LK_HEAD; s *= 2)
        for (int i = 0; i < LK_HEAD; i += 2 * s)
            for (int j = i; j < i + s; j += VW) {
                vf u = vf_load(x + j), v = vf_load(x + j + s);
                vf_store(x + j, vf_add(u, v));
                vf_store(x + j + s, vf_sub(u, v));
            }
    for (int i = 0; i < LK_HEAD; i += VW)
        vf_store(x + i, vf_mul(vf_load(x + i), vf_set(1.0f / 16)));
}

/* K (v = 0) or V (v = 1) half of the page that holds position pos of a lane */
static char *attn_half(const struct lk_attn_args *a, const struct lk_lane *l, int64_t pos, int v)
{
    size_t half = lk_kv_half_bytes(a->kv_kind, a->n_kv),
           page = (size_t)a->b->pages[l->page0 + pos / LK_PAGE];
    return (char *)a->kv + (page * 2 + (size_t)v) * half;
}

static void attn_quantise(const float *x, int8_t *codes, uint16_t *scales)
{
    for (int g = 0; g < LK_HEAD; g += LK_KV_GROUP) {
        vf m = vf_set(0);
        for (int i = g; i < g + LK_KV_GROUP; i += VW) {
            vf v = vf_load(x + i);
            m = vf_max(m, vf_max(v, vf_sub(vf_set(0), v)));
        }
        scales[g / LK_KV_GROUP] = lk_f32_to_f16(vf_hmax(m) / 127);
        float s = lk_f16_to_f32(scales[g / LK_KV_GROUP]);
        for (int i = g; i < g + LK_KV_GROUP; i++) {
            float c = s > 0 ? rintf(x[i] / s) : 0;
            codes[i] = (int8_t)(c > 127 ? 127 : c < -127 ? -127 : c);
        }
    }
}

static void attn_put(const struct lk_attn_args *a, char *half, int head, int slot, const float *x)
{
    size_t at = ((size_t)head * LK_PAGE + (size_t)slot) * LK_HEAD,
           codes = (size_t)a->n_kv * LK_PAGE * LK_HEAD;
    if (a->kv_kind == LK_KV_F32)
        memcpy(half + at * 4, x, LK_HEAD * sizeof *x);
    else if (a->kv_kind == LK_KV_I8)
        attn_quantise(x, (int8_t *)half + at,
                      (uint16_t *)(void *)(half + codes) + at / LK_KV_GROUP);
    else
        for (size_t i = 0; i < LK_HEAD; i++)
            ((uint16_t *)(void *)half)[at + i] = lk_f32_to_bf16(x[i]);
}

static const struct lk_lane *attn_lane(const struct lk_batch *b, int row)
{
    for (int l = 0; l < b->n_lanes; l++)
        if (row >= b->lanes[l].row0 && row < b->lanes[l].row0 + b->lanes[l].rows)
            return b->lanes + l;
    return NULL;
}

static void attn_ready(void *arg, int row, int worker)
{
    const struct attn_run *r = arg;
    const struct lk_attn_args *a = r->a;
    const struct lk_lane *l = attn_lane(a->b, row);
    if (!l) return;
    float cs[LK_HEAD], x[LK_HEAD];
    int half = a->rope_dim / 2, i8 = a->kv_kind == LK_KV_I8;
    for (int i = 0; i < half; i++) { /* the product is rounded to f32, see ops.h */
        float angle =
            (float)a->b->rope[(size_t)a->section[i] * (size_t)a->b->n_rows + (size_t)row] *
            a->inv_freq[i];
        cs[2 * i] = cosf(angle);
        cs[2 * i + 1] = sinf(angle);
    }
    const float *p = a->proj + (size_t)row * (size_t)a->ld;
    for (int h = 0; h < a->n_q; h++) {
        float *q = r->q + ((size_t)row * (size_t)a->n_q + (size_t)h) * LK_HEAD;
        attn_norm(p + (size_t)h * 2 * LK_HEAD, a->q_norm, a->eps, q);
        attn_rotate(cs, half, q);
        if (i8) attn_hadamard(q);
    }
    const float *k = p + (size_t)a->n_q * 2 * LK_HEAD, *v = k + (size_t)a->n_kv * LK_HEAD;
    int64_t pos = (int64_t)l->pos0 + row - l->row0;
    for (int h = 0; h < a->n_kv; h++) {
        attn_norm(k + (size_t)h * LK_HEAD, a->k_norm, a->eps, x);
        attn_rotate(cs, half, x);
        if (i8) attn_hadamard(x);
        attn_put(a, attn_half(a, l, pos, 0), h, (int)(pos % LK_PAGE), x);
        attn_put(a, attn_half(a, l, pos, 1), h, (int)(pos % LK_PAGE), v + (size_t)h * LK_HEAD);
    }
}

/* ---- a page against a block of queries ---- */

/* The first n tokens of a page's half in f32: in place when it is, else decoded to buf. */
static const float *attn_page(const struct lk_attn_args *a, const char *half, int head, int n,
                              float *buf)
{
    size_t at = (size_t)head * LK_PAGE * LK_HEAD;
    if (a->kv_kind == LK_KV_F32) return (const float *)(const void *)half + at;
    if (a->kv_kind == LK_KV_BF16) {
        for (int i = 0; i < n * LK_HEAD; i += VW)
            vf_store(buf + i, vf_bf16(half + 2 * (at + (size_t)i)));
        return buf;
    }
    const char *scales = half + (size_t)a->n_kv * LK_PAGE * LK_HEAD + at / LK_KV_GROUP * 2;
    for (int g = 0; g < n * LK_HEAD / LK_KV_GROUP; g++) {
        vf s = vf_set(lk_f16_to_f32(lk_get16(scales + 2 * g)));
        for (int i = g * LK_KV_GROUP; i < (g + 1) * LK_KV_GROUP; i += VW)
            vf_store(buf + i, vf_mul(vf_i8(half + at + (size_t)i), s));
    }
    return buf;
}

/* s[i][0..3] = q[i] . k[0..3] for nq <= 3 queries (constant) */
CPU_INLINE void attn_score_tile(const float *q, const float *k, float *s, const int nq)
{
    vf a[3][4];
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < 4; j++) a[i][j] = vf_set(0);
    for (int d = 0; d < LK_HEAD; d += VW) {
        vf kv[4];
        for (int j = 0; j < 4; j++) kv[j] = vf_load(k + j * LK_HEAD + d);
        for (int i = 0; i < nq; i++) {
            vf x = vf_load(q + i * LK_HEAD + d);
            for (int j = 0; j < 4; j++) a[i][j] = vf_fma(x, kv[j], a[i][j]);
        }
    }
    for (int i = 0; i < nq; i++) vf_sum4_add(s + i * LK_PAGE, a[i][0], a[i][1], a[i][2], a[i][3]);
}

/* acc[i] = acc[i] * keep[i] + sum over keys of p[i][key] v[key], for 4 vectors of the head */
CPU_INLINE void attn_value_tile(const float *p, const float *v, int n, const float *keep,
                                float *acc, const int nq)
{
    vf a[3][4];
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < 4; j++)
            a[i][j] = vf_mul(vf_load(acc + i * LK_HEAD + j * VW), vf_set(keep[i]));
    for (int key = 0; key < n; key++) {
        vf x[4];
        for (int j = 0; j < 4; j++) x[j] = vf_load(v + key * LK_HEAD + j * VW);
        for (int i = 0; i < nq; i++) {
            vf w = vf_set(p[i * LK_PAGE + key]);
            for (int j = 0; j < 4; j++) a[i][j] = vf_fma(w, x[j], a[i][j]);
        }
    }
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < 4; j++) vf_store(acc + i * LK_HEAD + j * VW, a[i][j]);
}

/* A strip of 4 vectors of all values (8 KB) stays in L1 while the queries pass. */
static void attn_values(const struct attn_scratch *s, int n_q, const float *v, int n,
                        const float *keep, struct attn_part *out)
{
    for (int d = 0; d < LK_HEAD; d += 4 * VW)
        for (int i = 0; i < n_q; i += 3) {
            if (n_q - i >= 3)
                attn_value_tile(s->p[i], v + d, n, keep + i, out->acc[i] + d, 3);
            else if (n_q - i == 2)
                attn_value_tile(s->p[i], v + d, n, keep + i, out->acc[i] + d, 2);
            else
                attn_value_tile(s->p[i], v + d, n, keep + i, out->acc[i] + d, 1);
        }
}

static void attn_scores(struct attn_scratch *s, int n_q, const float *k, int n)
{
    memset(s->p, 0, (size_t)n_q * sizeof s->p[0]);
    for (int j = 0; j < n; j += 4)
        for (int i = 0; i < n_q; i += 3) {
            const float *q = s->q[i], *kj = k + j * LK_HEAD;
            if (n_q - i >= 3)
                attn_score_tile(q, kj, s->p[i] + j, 3);
            else if (n_q - i == 2)
                attn_score_tile(q, kj, s->p[i] + j, 2);
            else
                attn_score_tile(q, kj, s->p[i] + j, 1);
        }
}

/* Scores of keys [lo, hi) become weights, the others 0; returns what the old sums keep. */
static float attn_softmax(float *p, int lo, int hi, float *m, float *l)
{
    for (int i = 0; i < LK_PAGE; i++) p[i] = i >= lo && i < hi ? p[i] * (1.0f / 16) : -INFINITY;
    vf top = vf_load(p);
    for (int i = VW; i < LK_PAGE; i += VW) top = vf_max(top, vf_load(p + i));
    float page = vf_hmax(top), now = page > *m ? page : *m;
    if (page == -INFINITY) {
        memset(p, 0, LK_PAGE * sizeof *p);
        return 1;
    }
    float keep = *m == -INFINITY ? 0 : expf(*m - now);
    vf sum = vf_set(0);
    for (int i = 0; i < LK_PAGE; i += VW) {
        vf e = vf_exp(vf_sub(vf_load(p + i), vf_set(now)));
        vf_store(p + i, e);
    }
    for (int i = 0; i < LK_PAGE; i++) /* e^-inf is not quite 0 in vf_exp */
        if (i < lo || i >= hi) p[i] = 0;
    for (int i = 0; i < LK_PAGE; i += VW) sum = vf_add(sum, vf_load(p + i));
    *l = *l * keep + vf_sum(sum);
    *m = now;
    return keep;
}

/* A task: rows [row0, row0 + rows) of a lane and the heads of one kv head. Query i is row i /
 * group, head i % group. */
struct attn_task {
    const struct lk_lane *l;
    int row0, rows, kv_head, id;
};

static int64_t attn_first(const struct lk_attn_args *a, int64_t pos)
{
    return a->window > 0 && pos > a->window ? pos - a->window : 0;
}

/* Keys of one cut, from nothing. */
static void attn_cut(const struct attn_run *r, const struct attn_task *t, int cut,
                     struct attn_scratch *s, struct attn_part *out)
{
    const struct lk_attn_args *a = r->a;
    int n_q = t->rows * r->group;
    int64_t pos0 = (int64_t)t->l->pos0 + t->row0 - t->l->row0, last = pos0 + t->rows - 1;
    int64_t k0 = (int64_t)cut * SPLIT, k1 = k0 + SPLIT - 1 < last ? k0 + SPLIT - 1 : last,
            first = attn_first(a, pos0);
    for (int i = 0; i < n_q; i++) {
        out->m[i] = -INFINITY;
        out->l[i] = 0;
    }
    memset(out->acc, 0, (size_t)n_q * sizeof out->acc[0]);
    for (int64_t base = k0; base <= k1; base += LK_PAGE) {
        int n = last - base + 1 < LK_PAGE ? (int)(last - base + 1) : LK_PAGE;
        if (base + n <= first) continue;
        attn_scores(s, n_q, attn_page(a, attn_half(a, t->l, base, 0), t->kv_head, n, s->k[0]), n);
        const float *v = attn_page(a, attn_half(a, t->l, base, 1), t->kv_head, n, s->v[0]);
        float keep[MAX_Q];
        for (int i = 0; i < n_q; i++) {
            int64_t pos = pos0 + i / r->group, lo = attn_first(a, pos) - base, hi = pos + 1 - base;
            keep[i] = attn_softmax(s->p[i],
                                   (int)(lo < 0         ? 0
                                         : lo > LK_PAGE ? LK_PAGE
                                                        : lo),
                                   (int)(hi < 0   ? 0
                                         : hi > n ? n
                                                  : hi),
                                   out->m + i, out->l + i);
        }
        attn_values(s, n_q, v, n, keep, out);
    }
}

static void attn_merge(struct attn_part *run, const struct attn_part *cut, int n_q)
{
    for (int i = 0; i < n_q; i++) {
        if (cut->m[i] == -INFINITY) continue;
        float m = run->m[i] > cut->m[i] ? run->m[i] : cut->m[i];
        float a = run->m[i] == -INFINITY ? 0 : expf(run->m[i] - m), b = expf(cut->m[i] - m);
        run->m[i] = m;
        run->l[i] = run->l[i] * a + cut->l[i] * b;
        for (int d = 0; d < LK_HEAD; d += VW)
            vf_store(run->acc[i] + d, vf_fma(vf_load(cut->acc[i] + d), vf_set(b),
                                             vf_mul(vf_load(run->acc[i] + d), vf_set(a))));
    }
}

static void attn_finish(const struct attn_run *r, const struct attn_task *t,
                        const struct attn_part *run)
{
    const struct lk_attn_args *a = r->a;
    for (int i = 0; i < t->rows * r->group; i++) {
        size_t row = (size_t)(t->row0 + i / r->group),
               h = (size_t)(t->kv_head * r->group + i % r->group);
        const float *gate = a->proj + row * (size_t)a->ld + (h * 2 + 1) * LK_HEAD;
        float *out = (float *)a->out + (row * (size_t)a->n_q + h) * LK_HEAD;
        vf inv = vf_set(1 / run->l[i]);
        for (int d = 0; d < LK_HEAD; d += VW)
            vf_store(out + d,
                     vf_mul(vf_mul(vf_load(run->acc[i] + d), inv), vf_sigmoid(vf_load(gate + d))));
    }
}

/* ---- tasks ---- */

static int attn_task_of(const struct attn_run *r, int id, struct attn_task *t)
{
    int block = id / r->a->n_kv;
    for (int l = 0; l < r->a->b->n_lanes; l++) {
        const struct lk_lane *n = r->a->b->lanes + l;
        int blocks = (n->rows + r->rows - 1) / r->rows;
        if (block < blocks) {
            int at = block * r->rows, left = n->rows - at;
            *t = (struct attn_task){n, n->row0 + at, left < r->rows ? left : r->rows,
                                    id % r->a->n_kv, id};
            return 1;
        }
        block -= blocks;
    }
    return 0;
}

static int attn_cuts(const struct attn_task *t)
{
    return (t->l->pos0 + t->row0 - t->l->row0 + t->rows - 1) / SPLIT + 1;
}

static struct attn_scratch *attn_scratch(const struct attn_run *r, const struct attn_task *t,
                                         int worker)
{
    struct attn_scratch *s = (void *)((char *)r->c->worker.p + (size_t)worker * r->c->worker_bytes);
    for (int i = 0; i < t->rows; i++)
        memcpy(s->q[i * r->group],
               r->q +
                   ((size_t)(t->row0 + i) * (size_t)r->a->n_q + (size_t)(t->kv_head * r->group)) *
                       LK_HEAD,
               (size_t)r->group * sizeof s->q[0]);
    return s;
}

static void attn_start(struct attn_part *p, int n_q)
{
    for (int i = 0; i < n_q; i++) {
        p->m[i] = -INFINITY;
        p->l[i] = 0;
    }
    memset(p->acc, 0, (size_t)n_q * sizeof p->acc[0]);
}

static void attn_whole(void *arg, int part, int worker)
{
    const struct attn_run *r = arg;
    struct attn_task t;
    if (!attn_task_of(r, part, &t)) return;
    struct attn_scratch *s = attn_scratch(r, &t, worker);
    attn_start(&s->run, t.rows * r->group);
    int64_t first = attn_first(r->a, (int64_t)t.l->pos0 + t.row0 - t.l->row0);
    for (int c = (int)(first / SPLIT); c < attn_cuts(&t); c++) {
        attn_cut(r, &t, c, s, &s->cut);
        attn_merge(&s->run, &s->cut, t.rows * r->group);
    }
    attn_finish(r, &t, &s->run);
}

static void attn_shared(void *arg, int part, int worker)
{
    const struct attn_run *r = arg;
    struct attn_task t;
    int cut = part % r->n_split;
    if (!attn_task_of(r, part / r->n_split, &t) || cut >= attn_cuts(&t)) return;
    attn_cut(r, &t, cut, attn_scratch(r, &t, worker), r->cuts + part);
}

static void attn_join(void *arg, int part, int worker)
{
    const struct attn_run *r = arg;
    struct attn_task t;
    if (!attn_task_of(r, part, &t)) return;
    struct attn_scratch *s = attn_scratch(r, &t, worker);
    attn_start(&s->run, t.rows * r->group);
    for (int c = 0; c < attn_cuts(&t); c++)
        attn_merge(&s->run, r->cuts + (size_t)part * (size_t)r->n_split + c, t.rows * r->group);
    attn_finish(r, &t, &s->run);
}

static size_t attn_q_bytes(int rows, int n_q)
{
    return ((size_t)rows * (size_t)n_q * LK_HEAD * sizeof(float) + 63) / 64 * 64;
}

/* Threads share the cuts of fewer than two tasks a thread; more tasks keep them busy as they are. */
static int attn_shares(int tasks, int threads)
{
    return tasks < 2 * threads;
}

/* The most bytes of shared cuts: tasks come in whole sets of kv heads. */
static size_t attn_partial_bytes(const struct lk_dev_need *n, int threads)
{
    size_t tasks = (size_t)((2 * threads - 1) / n->n_kv * n->n_kv), splits = (size_t)n->max_ctx / SPLIT + 1;
    size_t bytes = tasks * splits * sizeof(struct attn_part);
    return !n->max_ctx || bytes > ATTN_PARTIAL_MOST ? ATTN_PARTIAL_MOST : bytes;
}

static size_t attn_work_bytes(const struct lk_dev_need *n, int threads)
{
    int rows = (2 * threads - 1) / n->n_kv * (MAX_Q / (n->n_q / n->n_kv)); /* more rows are too many tasks */
    size_t all = attn_q_bytes(n->max_rows, n->n_q);
    size_t few = attn_q_bytes(rows < n->max_rows ? rows : n->max_rows, n->n_q) + attn_partial_bytes(n, threads);
    return all > few ? all : few;
}

static void k_attn(struct lk_dev *d, const struct lk_attn_args *a)
{
    const struct lk_batch *b = a->b;
    struct attn_run r = {.c = cpu_of(d), .a = a, .group = a->n_q / a->n_kv};
    if (r.group > MAX_Q || r.c->worker_bytes < sizeof(struct attn_scratch)) {
        lk_fail(&r.c->err, LK_EDEVICE, "cpu: op attn with %d heads a kv head, at most %d", r.group,
                MAX_Q);
        return;
    }
    r.rows = MAX_Q / r.group;
    int tasks = 0;
    for (int l = 0; l < b->n_lanes; l++) {
        const struct lk_lane *n = b->lanes + l;
        tasks += (n->rows + r.rows - 1) / r.rows * a->n_kv;
        int split = n->rows > 0 ? (n->pos0 + n->rows - 1) / SPLIT + 1 : 0;
        if (split > r.n_split) r.n_split = split;
    }
    size_t shared = (size_t)tasks * (size_t)r.n_split, q = attn_q_bytes(b->n_rows, a->n_q);
    if (r.n_split < 2 || !attn_shares(tasks, r.c->threads) ||
        shared > attn_partial_bytes(&r.c->need, r.c->threads) / sizeof(struct attn_part))
        shared = 0;
    r.q = cpu_work(r.c, q + shared * sizeof(struct attn_part), "attn");
    if (!r.q) return;
    r.cuts = (void *)((char *)r.q + q);
    lk_pool_run(r.c->pool, b->n_rows, attn_ready, &r);
    if (shared) {
        lk_pool_run(r.c->pool, (int)shared, attn_shared, &r);
        lk_pool_run(r.c->pool, tasks, attn_join, &r);
    } else {
        lk_pool_run(r.c->pool, tasks, attn_whole, &r);
    }
}

#endif
