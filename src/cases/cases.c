/* The frame of the op cases: see cases.h. */
#include "cases/cases.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers: splitmix64, and a normal of twelve uniforms less six ---- */

static uint64_t rng_state;

void ot_seed(uint64_t seed)
{
    rng_state = seed;
}

uint32_t ot_random(void)
{
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

double ot_normal(void)
{
    double s =
        0; /* four uniforms: bounded by 3.5, near enough, and three times cheaper than twelve */
    for (int i = 0; i < 4; i++) s += ot_random() * 0x1p-32;
    return (s - 2) * 1.7320508075688772;
}

float *ot_rand(struct op_run *r, size_t n, double scale)
{
    float *v = ot_host(r, n * sizeof *v);
    if (!v) return NULL;
    for (size_t i = 0; i < n; i++)
        v[i] = lk_f16_to_f32(lk_f32_to_f16((float)(ot_normal() * scale)));
    return v;
}

/* ---- table ---- */

struct op_case *ot_add(struct op_table *t, const struct op_family *f, int use, double tol,
                       const char *why, const char *fmt, ...)
{
    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        struct op_case *v = lk_reallocarray(t->v, (size_t)cap, sizeof *v);
        if (!v) return NULL;
        t->v = v;
        t->cap = cap;
    }
    struct op_case *c = t->v + t->n++;
    *c = (struct op_case){.f = f, .use = use, .tol = tol, .why = why};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->name, sizeof c->name, fmt, ap);
    va_end(ap);
    return c;
}

void ot_table_free(struct op_table *t)
{
    lk_free(t->v);
    *t = (struct op_table){0};
}

/* Cases of one op stand together, in the order the families gave them. */
static void table_group(struct op_table *t)
{
    for (int i = 1; i < t->n; i++) {
        struct op_case c = t->v[i];
        int j = i;
        while (j > 0 && strcmp(t->v[j - 1].f->op, c.f->op) > 0) j--;
        memmove(t->v + j + 1, t->v + j, (size_t)(i - j) * sizeof c);
        t->v[j] = c;
    }
}

int ot_table_all(struct op_table *t)
{
    *t = (struct op_table){0};
    cases_linear(t);
    cases_vector(t);
    cases_attn(t);
    cases_gdn(t);
    table_group(t);
    return t->n;
}

/* ---- devices ---- */

int ot_open(struct lk_dev **d, const char *name, const char *image, int threads, struct lk_err *e)
{
    /* the 27B, with room for the largest case of each kind */
    static const struct lk_dev_need need = {.hidden = 5120,
                                            .inter = 17408,
                                            .n_q = 24,
                                            .n_kv = 4,
                                            .head_dim = 256,
                                            .rope_dim = 64,
                                            .hk = 16,
                                            .hv = 48,
                                            .gdn_dim = 128,
                                            .conv_k = 4,
                                            .vocab = 248320,
                                            .max_rows = 512,
                                            .max_lanes = 8};
    int rc;
    if (!strncmp(name, "cuda", 4))
        rc = lk_cuda_open(d, name[4] == ':' ? atoi(name + 5) : 0, image, e);
    else
        rc = lk_cpu_open(d, threads, strcmp(name, "cpu") ? name : NULL, e);
    if (!rc && (rc = (*d)->check(*d, &need, e))) {
        (*d)->close(*d);
        *d = NULL;
    }
    return rc;
}

/* ---- a run's memory ---- */

static void *run_fail(struct op_run *r, const char *what)
{
    lk_log_warn("%s: %s", r->c->name, what);
    snprintf(r->why, sizeof r->why, "%.199s", what);
    r->failed = 1;
    return NULL;
}

void *ot_host(struct op_run *r, size_t bytes)
{
    void *p = r->n_host < 64 ? lk_calloc(1, bytes ? bytes : 1) : NULL;
    if (!p) return run_fail(r, "no host memory");
    return r->host_mem[r->n_host++] = p;
}

void *ot_dev(struct op_run *r, size_t bytes)
{
    void *p = r->n_dev < 64 ? r->d->alloc(r->d, bytes ? bytes : 4, "op test") : NULL;
    if (!p) return run_fail(r, "no device memory");
    return r->dev_mem[r->n_dev++] = p;
}

void *ot_up(struct op_run *r, const void *src, size_t bytes)
{
    void *p = src ? ot_dev(r, bytes) : NULL;
    if (p) r->d->upload(r->d, p, src, bytes);
    return p;
}

void *ot_up_act(struct op_run *r, const float *src, size_t n)
{
    if (r->d->act_bytes == 4) return ot_up(r, src, n * 4);
    uint16_t *h = ot_host(r, n * 2);
    if (!h) return NULL;
    for (size_t i = 0; i < n; i++) h[i] = lk_f32_to_f16(src[i]);
    return ot_up(r, h, n * 2);
}

/* As a model would load them: .ninfer layouts that the device does not read are repacked. */
struct lk_mat *ot_mat(struct op_run *r, enum lk_mat_kind k, const struct lk_weight *w, int n)
{
    struct lk_err e = {0};
    struct lk_mat *m = NULL;
    struct lk_weight ready[2];
    if (r->failed) return NULL;
    if (n > 2 || r->n_mats == 4 || r->n_host + n > 64) return run_fail(r, "too many matrices");
    for (int i = 0; i < n; i++) {
        void *own = NULL;
        ready[i] = w[i];
        if (w[i].fmt < LK_FMT_KERNELS || (r->d->in_place && r->d->in_place(r->d, w + i))) continue;
        if (lk_repack(w + i, ready + i, &own, NULL, &e)) return run_fail(r, e.text);
        r->host_mem[r->n_host++] = own;
    }
    if (r->d->mat_load(r->d, k, ready, n, &m, &e)) return run_fail(r, e.text);
    return r->mats[r->n_mats++] = m;
}

/* ---- outputs ---- */

static float *out_new(struct op_run *r, const char *name, size_t n, double tol, int act)
{
    float *v = r->n_out < 4 ? ot_host(r, n * sizeof *v) : NULL;
    if (v) r->out[r->n_out++] = (struct op_out){name, v, n, tol, act};
    return v;
}

static int out_get(struct op_run *r, void *dst, const void *dev, size_t bytes)
{
    struct lk_err e = {0};
    if (!dev) return -1;
    if (!r->d->download(r->d, dst, dev, bytes, &e)) return 0;
    run_fail(r, e.text);
    return -1;
}

void ot_out_f32(struct op_run *r, const char *name, const void *dev, size_t n, double tol)
{
    float *v = out_new(r, name, n, tol, 0);
    if (v) out_get(r, v, dev, n * 4);
}

void ot_out_act(struct op_run *r, const char *name, const void *dev, size_t n, double tol)
{
    float *v = out_new(r, name, n, tol, 1);
    if (!v || r->d->act_bytes == 4) {
        if (v) out_get(r, v, dev, n * 4);
        return;
    }
    uint16_t *h = ot_host(r, n * 2);
    if (!h || out_get(r, h, dev, n * 2)) return;
    for (size_t i = 0; i < n; i++) v[i] = lk_f16_to_f32(h[i]);
}

void ot_out_i32(struct op_run *r, const char *name, const void *dev, size_t n)
{
    float *v = out_new(r, name, n, 0, 0);
    int32_t *h = v ? ot_host(r, n * 4) : NULL;
    if (!h || out_get(r, h, dev, n * 4)) return;
    for (size_t i = 0; i < n; i++) v[i] = (float)h[i]; /* ids are below 2^24: exact */
}

/* ---- driving ---- */

void ot_run_begin(struct op_run *r, const struct op_case *c, struct lk_dev *d)
{
    *r = (struct op_run){.d = d, .c = c};
    uint64_t seed = 1469598103934665603u; /* FNV of the name: a case keeps its numbers when others
                                             come and go */
    for (const char *s = c->name; *s; s++) seed = (seed ^ (unsigned char)*s) * 1099511628211u;
    ot_seed(seed);
    c->f->setup(r);
}

void ot_run_do(struct op_run *r)
{
    struct lk_err e = {0};
    if (r->failed) return;
    r->c->f->issue(r);
    if (r->d->sync(r->d, &e)) {
        run_fail(r, e.text);
        return;
    }
    r->c->f->fetch(r);
}

void ot_run_end(struct op_run *r)
{
    for (int i = 0; i < r->n_mats; i++) r->d->mat_free(r->d, r->mats[i]);
    for (int i = 0; i < r->n_dev; i++) r->d->free(r->d, r->dev_mem[i]);
    for (int i = 0; i < r->n_host; i++) lk_free(r->host_mem[i]);
    *r = (struct op_run){.d = r->d, .c = r->c, .failed = r->failed};
}

static double out_share(const struct op_run *ref, const struct op_out *a, const struct op_out *b,
                        size_t act_bytes)
{
    double ss = 0, worst = 0;
    for (size_t i = 0; i < a->n; i++) ss += (double)a->v[i] * a->v[i];
    double rms = sqrt(ss / (double)(a->n ? a->n : 1)),
           half = a->act && act_bytes == 2 ? 0x1p-11 : 0;
    for (size_t i = 0; i < a->n; i++) {
        double d = fabs((double)a->v[i] - b->v[i]);
        if (d == 0 || (isinf(a->v[i]) && a->v[i] == b->v[i])) continue;
        /* f16 also has a smallest step, 2^-24 */
        double room = b->tol * (fabs((double)a->v[i]) + rms) + half * fabs((double)a->v[i]) +
                      (half > 0 ? 0x1p-25 : 0);
        double share = room > 0 ? d / room : INFINITY;
        if (isnan(share)) share = INFINITY;
        if (share > 1 && worst <= 1)
            printf(
                "  %s: %s[%zu] is %.9g, the oracle has %.9g (tolerance %.3g of value + rms %.3g)\n",
                ref->c->name, a->name, i, b->v[i], a->v[i], b->tol, rms);
        if (share > worst) worst = share;
    }
    return worst;
}

double ot_compare(const struct op_run *ref, const struct op_run *dev)
{
    double worst = 0;
    if (ref->failed || dev->failed || ref->n_out != dev->n_out || !ref->n_out) return INFINITY;
    for (int i = 0; i < ref->n_out; i++) {
        double s = out_share(ref, ref->out + i, dev->out + i, dev->d->act_bytes);
        if (s > worst) worst = s;
    }
    return worst;
}

int ot_same_bits(const struct op_run *a, const struct op_run *b)
{
    if (a->failed || b->failed || a->n_out != b->n_out) return 0;
    for (int i = 0; i < a->n_out; i++)
        if (a->out[i].n != b->out[i].n ||
            memcmp(a->out[i].v, b->out[i].v, a->out[i].n * sizeof(float)))
            return 0;
    return 1;
}
