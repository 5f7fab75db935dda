/* Rank files: see split.h. Memory is one tensor's part; pages of the source are let go tensor by tensor. */
#include "model/split.h"

#include "artifact/out_folder.h"
#include "artifact/rank_file.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/inside.h"
#include "tp/slice.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define PART_ROWS 16

struct split {
    const struct lk_artifact *a;
    const struct lk_convert_opts *o;
    struct lk_shard_dims dims;
    int n;
    struct lk_progress bar;
    float *rows;    /* two rows a worker */
    int64_t rows_k;
    unsigned char *seen; /* of one tensor's axis: which rows or columns some rank holds */
    struct lk_err *e;
};

static int is_vector(const struct lk_tensor *t)
{
    const char *dot = strrchr(t->name, '.'), *last = dot ? dot + 1 : t->name;
    return !strcmp(last, "A_log") || !strcmp(last, "dt_bias") || !strcmp(last, "conv1d");
}

/* A tensor as rows that a rule can cut: gates are a column of heads, the convolution a matrix of channels, .ninfer layouts repacked as for
 * a run. *own: to lk_free. */
static int as_rows(const struct split *s, const struct lk_tensor *t, struct lk_weight *w, void **own)
{
    int rc = lk_repack(&t->w, w, own, NULL, s->e);
    int64_t all = w->n * w->k, width = strstr(t->name, "conv1d") ? lk_artifact_config(s->a)->conv_k : 1;
    if (is_vector(t)) w->n = all / width, w->k = width;
    return rc;
}

static void ranges_of(const struct split *s, const struct lk_tensor *t, const struct lk_weight *w, int rank, struct lk_ranges *r)
{
    lk_shard(&s->dims, lk__part_of(t->name), w->n, rank, s->n, r); /* parts cut by columns know their whole */
}

static int is_used(const struct lk_tensor *t)
{
    return strncmp(t->name, "visual.", 7) != 0;
}

static int stopped(struct split *s)
{
    return s->o->stop && *s->o->stop ? lk_fail(s->e, LK_EINPUT, "convert: interrupted; what stood under the final name, or nothing, still does") : 0;
}

static int part_write(struct split *s, struct lk_rank_writer *w, const struct lk_tensor *t, const struct lk_weight *whole, int rank)
{
    struct lk_weight part;
    struct lk_ranges r;
    void *own = NULL;
    ranges_of(s, t, whole, rank, &r);
    int rc = lk_slice(whole, &r, &part, &own, s->e);
    if (rc)
        lk_err_prefix(s->e, "%s: tensor %s", t->file, t->stored);
    else
        rc = lk_rank_writer_add(w, t, &part, lk__part_of(t->name) != LK_PART_WHOLE, s->e);
    lk_free(own);
    lk_progress_set(&s->bar, s->bar.done + t->bytes);
    return rc ? rc : stopped(s);
}

/* Laid out once, then cut for every rank. */
static int tensor_write(struct split *s, struct lk_rank_writer *w, const struct lk_tensor *t)
{
    struct lk_weight whole;
    void *own = NULL;
    int rc = as_rows(s, t, &whole, &own);
    if (rc) lk_err_prefix(s->e, "%s: tensor %s", t->file, t->stored);
    for (int i = 0; i < s->n && !rc; i++) rc = part_write(s, w + i, t, &whole, i);
    lk_free(own);
    lk_artifact_forget(s->a, &t->w);
    return rc;
}

static int ranks_write(struct split *s, const char *dir)
{
    struct lk_rank_writer *w = lk_calloc((size_t)s->n, sizeof *w);
    int rc = w ? 0 : lk_fail(s->e, LK_ENOMEM, "convert --tp: no memory for %d files", s->n), open = 0;
    for (; open < s->n && !rc; open++) rc = lk_rank_writer_open(&w[open], dir, open, s->n, lk_artifact_count(s->a), s->e);
    for (size_t i = 0; i < lk_artifact_count(s->a) && !rc; i++)
        if (is_used(lk_artifact_at(s->a, i))) rc = tensor_write(s, w, lk_artifact_at(s->a, i));
    while (open > 0) rc = lk_rank_writer_close(&w[--open], s->a, rc, s->e);
    lk_free(w);
    return rc;
}

/* ---- verify ---- */

struct compare {
    const struct split *s;
    const struct lk_weight *whole, *part;
    const struct lk_ranges *r;
    atomic_int bad;
};

/* Where row i of a rank's part lies in the whole; axis 1: the same row. */
static int64_t home_row(const struct lk_ranges *r, int64_t i)
{
    if (r->axis) return i;
    int k = 0;
    while (i >= r->r[k].count) i -= r->r[k++].count;
    return r->r[k].at + i;
}

static void compare_rows(void *arg, int part, int worker)
{
    struct compare *c = arg;
    int64_t k = c->part->k, end = ((int64_t)part + 1) * PART_ROWS;
    float *x = c->s->rows + 2 * c->s->rows_k * worker, *y = x + c->s->rows_k;
    for (int64_t i = (int64_t)part * PART_ROWS; i < end && i < c->part->n; i++) {
        int64_t at = 0;
        lk_weight_row(c->part, i, 0, k, x);
        if (!c->r->axis) lk_weight_row(c->whole, home_row(c->r, i), 0, k, y);
        for (int q = 0; c->r->axis && q < c->r->n; at += c->r->r[q++].count)
            lk_weight_row(c->whole, i, c->r->r[q].at, c->r->r[q].count, y + at);
        if (memcmp(x, y, (size_t)k * sizeof *x)) atomic_store(&c->bad, 1);
    }
}

static int same_values(const struct split *s, const struct lk_weight *whole, const struct lk_weight *part, const struct lk_ranges *r)
{
    struct compare c = {.s = s, .whole = whole, .part = part, .r = r};
    int parts = (int)((part->n + PART_ROWS - 1) / PART_ROWS);
    if (s->o->pool)
        lk_pool_run(s->o->pool, parts, compare_rows, &c);
    else
        for (int i = 0; i < parts; i++) compare_rows(&c, i, 0);
    return !atomic_load(&c.bad);
}

static int same_array(const void *a, const void *b, size_t n)
{
    return (!a && !b) || (a && b && !memcmp(a, b, n));
}

static int same_bytes(const struct lk_weight *a, const struct lk_weight *b)
{
    if (a->fmt != b->fmt || a->n * a->k != b->n * b->k || a->group != b->group || a->block_n != b->block_n || a->block_k != b->block_k ||
        a->scale_dtype != b->scale_dtype || a->global != b->global || a->global_div != b->global_div || a->zero_plus1 != b->zero_plus1)
        return 0;
    return same_array(a->data, b->data, lk_weight_data_bytes(a)) && same_array(a->scale, b->scale, lk_weight_scale_bytes(a)) &&
           same_array(a->zero, b->zero, a->zero ? lk_weight_zero_bytes(a) : 0) && same_array(a->gidx, b->gidx, (size_t)a->k * 4);
}

/* One rank's part of a tensor: present, the bytes of the source's cut, the source's values in their places. */
static int part_check(struct split *s, const struct lk_artifact *rank, const struct lk_tensor *t, const struct lk_weight *whole, int i)
{
    const struct lk_tensor *p = lk_artifact_find(rank, t->name);
    struct lk_weight cut, part;
    struct lk_ranges r;
    void *own;
    ranges_of(s, t, whole, i, &r);
    for (int q = 0; q < r.n; q++) memset(s->seen + r.r[q].at, 1, (size_t)r.r[q].count);
    if (!p) return lk_fail(s->e, LK_EINPUT, "convert --verify: rank %d: tensor %s: not in the rank's file", i + 1, t->name);
    int rc = lk_slice(whole, &r, &cut, &own, s->e);
    if (rc) return rc;
    part = p->w;
    if (is_vector(t)) part.n = cut.n, part.k = cut.k;
    if (p->w.n * p->w.k != cut.n * cut.k || !same_bytes(&cut, &part) || !same_values(s, whole, &part, &r))
        rc = lk_fail(s->e, LK_EINPUT, "convert --verify: %s: tensor %s: the rank's bytes differ from the source's", p->file, t->name);
    lk_free(own);
    lk_artifact_forget(rank, &p->w);
    return rc;
}

static int tensor_check(struct split *s, struct lk_artifact *const *ranks, const struct lk_tensor *t)
{
    struct lk_weight whole;
    struct lk_ranges r;
    void *own;
    int rc = as_rows(s, t, &whole, &own);
    ranges_of(s, t, &whole, 0, &r);
    size_t axis = (size_t)(r.axis ? whole.k : whole.n);
    memset(s->seen, 0, axis);
    for (int i = 0; i < s->n && !rc; i++) rc = part_check(s, ranks[i], t, &whole, i);
    if (!rc && memchr(s->seen, 0, axis)) rc = lk_fail(s->e, LK_EINPUT, "convert --verify: tensor %s: a part of it is in no rank's file", t->name);
    lk_free(own);
    lk_artifact_forget(s->a, &t->w);
    lk_progress_set(&s->bar, s->bar.done + t->bytes);
    return rc ? rc : stopped(s);
}

static int verify(struct split *s, const char *dir)
{
    struct lk_artifact *ranks[LK_MAX_RANKS] = {NULL};
    int rc = 0;
    size_t used = 0;
    for (int i = 0; i < s->n && !rc; i++) rc = lk_artifact_open_rank(&ranks[i], dir, i, s->n, s->e);
    lk_progress_begin(&s->bar, "verifying", "B", s->bar.total / (uint64_t)s->n);
    for (size_t i = 0; i < lk_artifact_count(s->a) && !rc; i++) {
        if (!is_used(lk_artifact_at(s->a, i))) continue;
        rc = tensor_check(s, ranks, lk_artifact_at(s->a, i));
        used++;
    }
    lk_progress_end(&s->bar);
    for (int i = 0; i < s->n; i++) {
        if (!rc && lk_artifact_count(ranks[i]) != used)
            rc = lk_fail(s->e, LK_EINPUT, "convert --verify: rank %d: expected %zu tensors, found %zu", i + 1, used, lk_artifact_count(ranks[i]));
        lk_artifact_close(ranks[i]);
    }
    if (!rc) lk_log_info("verified: %zu tensors of %d ranks re-join to the source bit for bit", used, s->n);
    return rc;
}

/* ---- the command ---- */

static int split_open(struct split *s, struct lk_err *e)
{
    struct lk_shape shape;
    int rc = lk_shape_read(&shape, lk_artifact_config(s->a), e);
    if (rc) return lk_err_prefix(e, "%s", lk_artifact_path(s->a)), rc;
    s->dims = lk_shape_dims(&shape);
    rc = lk_shard_check(&s->dims, s->n, e);
    int64_t axis = 1;
    for (size_t i = 0; i < lk_artifact_count(s->a); i++) {
        const struct lk_tensor *t = lk_artifact_at(s->a, i);
        s->bar.total += t->bytes * (uint64_t)s->n;
        if (t->w.k > s->rows_k) s->rows_k = t->w.k;
        axis = t->w.n > axis ? t->w.n : axis;
    }
    axis = s->rows_k > axis ? s->rows_k : axis;
    s->rows = lk_reallocarray(NULL, (size_t)s->rows_k * 2 * (s->o->pool ? (size_t)lk_pool_threads(s->o->pool) : 1), sizeof *s->rows);
    s->seen = lk_calloc((size_t)axis, 1);
    return rc ? rc : s->rows && s->seen ? 0 : lk_fail(e, LK_ENOMEM, "convert --tp: no memory for the work buffers");
}

static int split_write(struct split *s, const char *out)
{
    struct lk_out_folder f;
    int rc = lk_out_folder_begin(&f, out, s->o->force, s->e);
    lk_progress_begin(&s->bar, "splitting", "B", s->bar.total);
    if (!rc) rc = ranks_write(s, f.tmp.data);
    lk_progress_end(&s->bar);
    if (!rc) rc = lk_out_config_write(f.tmp.data, s->a, s->e);
    if (!rc) rc = lk_out_texts_write(f.tmp.data, s->a, s->e);
    if (!rc && s->o->verify) rc = verify(s, f.tmp.data);
    return lk_out_folder_end(&f, rc, s->e);
}

static int split_folder(const char *in, const char *out, int n, const struct lk_convert_opts *o, int check_only, struct lk_err *e)
{
    struct split s = {.o = o, .n = n, .e = e};
    struct lk_artifact *a = NULL;
    int rc = lk_artifact_open(&a, in, e);
    s.a = a;
    if (!rc && lk_artifact_ranks(a)) rc = lk_fail(e, LK_EINPUT, "%s: is split already; give the unsplit model", in);
    if (!rc) rc = split_open(&s, e);
    if (!rc) rc = check_only ? verify(&s, out) : split_write(&s, out);
    lk_free(s.rows);
    lk_free(s.seen);
    lk_artifact_close(a);
    return rc;
}

int lk_split(const char *in, const char *out, int n, const struct lk_convert_opts *o, struct lk_err *e)
{
    int check_only = lk_file_exists(out) == 2 && o->verify && !o->force;
    if (!o->recipe) return split_folder(in, out, n, o, check_only, e);
    struct lk_buf whole = {0};
    struct lk_convert_opts once = *o;
    int rc = check_only ? 0 : lk_out_folder_check(out, o->force, e); /* before the work of converting */
    if (rc) return rc;
    once.verify = 0;
    if (lk_buf_fmt(&whole, "%.*s.whole-%ld", lk_out_name_len(out), out, (long)getpid())) return lk_fail(e, LK_ENOMEM, "convert: no memory");
    rc = lk_convert(in, whole.data, &once, e);
    if (!rc) {
        rc = split_folder(whole.data, out, n, o, check_only, e);
        lk_out_folder_remove(whole.data);
    }
    lk_buf_free(&whole);
    return rc;
}
