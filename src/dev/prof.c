/* Profiles: see prof.h. On the CPU ops run when they are called, so a clock around each entry of the table is the whole of it; the table is swapped
 * for the time of the profile. CUDA times its launches itself. */
#include "dev/prof.h"

#include "base/log.h"
#include "dev/ops.h"

#include <string.h>

enum { EMBED, NORM, NORM_F32, NORM_OUT, DRAFT_IN, TO_ACT, LINEAR, GATE_UP, ATTN, GDN, GDN_FOLD, ADD, GATHER, ARGMAX, TOPK, EDIT, OPS };
static const char *const names[OPS] = {"embed", "norm_act", "norm_f32", "norm_out", "draft_in", "to_act", "linear", "gate_up", "attn", "gdn", "gdn_fold", "add", "gather",
                                       "argmax", "topk", "edit"};
static struct lk_prof_row row[OPS];
static const struct lk_ops *inner; /* the timed table; NULL: no profile on a CPU */

#define TIMED(at, size, call)                  \
    do {                                       \
        double t0 = lk_clock();                \
        call;                                  \
        row[at].ms += (lk_clock() - t0) * 1e3; \
        row[at].bytes += (double)(size);       \
        row[at].calls++;                       \
    } while (0)

static void embed(struct lk_dev *d, const struct lk_mat *table, const int32_t *ids, int T, float *x)
{
    TIMED(EMBED, 0, inner->embed(d, table, ids, T, x));
}

static void norm(struct lk_dev *d, const float *x, const float *w, float eps, int T, int n, void *h)
{
    TIMED(NORM, 0, inner->norm(d, x, w, eps, T, n, h));
}

static void norm_f32(struct lk_dev *d, const float *x, int ldx, const float *w, float eps, int T, int n, float *y, int ldy)
{
    TIMED(NORM_F32, 0, inner->norm_f32(d, x, ldx, w, eps, T, n, y, ldy));
}

static void norm_out(struct lk_dev *d, const struct lk_norm_out_args *a)
{
    TIMED(NORM_OUT, 0, inner->norm_out(d, a));
}

static void draft_in(struct lk_dev *d, const struct lk_draft_in_args *a)
{
    TIMED(DRAFT_IN, 0, inner->draft_in(d, a));
}

static void to_act(struct lk_dev *d, const float *x, int ldx, int T, int n, void *h)
{
    TIMED(TO_ACT, 0, inner->to_act(d, x, ldx, T, n, h));
}

static void linear(struct lk_dev *d, const struct lk_linear_args *a)
{
    TIMED(LINEAR, lk_mat_head(a->w)->bytes, inner->linear(d, a));
}

static void gate_up(struct lk_dev *d, const struct lk_gate_up_args *a)
{
    TIMED(GATE_UP, lk_mat_head(a->w)->bytes, inner->gate_up(d, a));
}

static void attn(struct lk_dev *d, const struct lk_attn_args *a)
{
    TIMED(ATTN, 0, inner->attn(d, a));
}

static void gdn(struct lk_dev *d, const struct lk_gdn_args *a)
{
    TIMED(GDN, 0, inner->gdn(d, a));
}

static void gdn_fold(struct lk_dev *d, const struct lk_gdn_fold_args *a)
{
    TIMED(GDN_FOLD, 0, inner->gdn_fold(d, a));
}

static void add(struct lk_dev *d, float *y, const float *x, size_t n)
{
    TIMED(ADD, 0, inner->add(d, y, x, n));
}

static void gather(struct lk_dev *d, const float *x, int ldx, const int32_t *rows, int n_out, int n, float *y)
{
    TIMED(GATHER, 0, inner->gather(d, x, ldx, rows, n_out, n, y));
}

static void argmax(struct lk_dev *d, const float *logits, int T, int n, int ld, int32_t id0, int32_t *ids, float *val)
{
    TIMED(ARGMAX, 0, inner->argmax(d, logits, T, n, ld, id0, ids, val));
}

static void topk(struct lk_dev *d, const struct lk_topk_args *a)
{
    TIMED(TOPK, 0, inner->topk(d, a));
}

static void edit(struct lk_dev *d, const struct lk_edit_args *a)
{
    TIMED(EDIT, 0, inner->edit(d, a));
}

static const struct lk_ops timed = {embed, norm, norm_f32, norm_out, draft_in, to_act, linear, gate_up, attn, gdn, gdn_fold, add, gather, argmax, topk, edit};

static int is_cuda(struct lk_dev *d)
{
    struct lk_dev_info i;
    d->info(d, &i);
    return i.is_cuda;
}

int lk_profile_on(struct lk_dev *d, struct lk_err *e)
{
    if (is_cuda(d)) return lk_cuda_profile_on(d, e);
    if (inner) return lk_fail(e, LK_EBUSY, "another device is being profiled");
    memset(row, 0, sizeof row);
    inner = d->ops;
    d->ops = &timed;
    return 0;
}

int lk_profile_read(struct lk_dev *d, struct lk_prof_row *rows, int cap)
{
    int n = 0;
    if (!inner) return lk_cuda_profile_read(d, rows, cap);
    for (int i = 0; i < OPS && n < cap; i++) {
        if (!row[i].calls) continue;
        rows[n] = row[i];
        rows[n++].name = names[i];
    }
    memset(row, 0, sizeof row);
    return n;
}

void lk_profile_off(struct lk_dev *d)
{
    if (!inner) {
        lk_cuda_profile_off(d);
        return;
    }
    d->ops = inner;
    inner = NULL;
}

const char *const lk_prof_families[LK_PROF_FAMILIES] = {"linear", "attention", "delta net", "norms", "other"};

int lk_prof_family(const char *name)
{
    static const struct {
        const char *start;
        int family;
    } of[] = {{"lin", 0}, {"gate_up", 0}, {"glu", 0}, {"cublas", 0}, {"dequant", 0}, {"pad_", 0}, {"wide", 0}, {"attn", 1}, {"gdn", 2},
              {"norm", 3}, {"draft_in", 3}, {"to_act", 3}, {"add", 3}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (!strncmp(name, of[i].start, strlen(of[i].start))) return of[i].family;
    return LK_PROF_FAMILIES - 1;
}
