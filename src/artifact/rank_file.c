/* Rank files: see rank_file.h. The reader trusts nothing: every array must be exactly as long as its format makes it. */
#include "artifact/rank_file.h"

#include "artifact/json_read.h"
#include "artifact/safetensors.h"
#include "artifact/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define INFO "laoka.rank"
#define HEAD_A_TENSOR 1200 /* bytes of header kept for a tensor of up to four arrays: names under 128 bytes */
#define MAX_DIM (1 << 28)

static const char *file_name(int rank, int n, char *buf, size_t cap)
{
    snprintf(buf, cap, "rank-%d-of-%d.safetensors", rank + 1, n);
    return buf;
}

/* ---- writing ---- */

static int no_memory(struct lk_err *e)
{
    return lk_fail(e, LK_ENOMEM, "convert --tp: no memory");
}

int lk_rank_writer_open(struct lk_rank_writer *w, const char *dir, int rank, int n, size_t tensors, struct lk_err *e)
{
    char name[64];
    *w = (struct lk_rank_writer){.fd = -1, .rank = rank, .n = n, .base = 4096 + (tensors * HEAD_A_TENSOR + 4095) / 4096 * 4096};
    w->head = json_pack("{s:{s:s}}", "__metadata__", "format", "laoka rank");
    w->list = json_array();
    if (!w->head || !w->list || lk_path_join(&w->path, dir, file_name(rank, n, name, sizeof name))) return no_memory(e);
    w->fd = open(w->path.data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return w->fd >= 0 ? 0 : lk_fail(e, LK_ESYS, "%s: cannot write: %s", w->path.data, strerror(errno));
}

static int put(struct lk_rank_writer *w, const void *data, size_t n, size_t pos, struct lk_err *e)
{
    return lk_fd_put(w->fd, data, n, pos) ? lk_fail(e, LK_ESYS, "%s: cannot write: %s", w->path.data, strerror(errno)) : 0;
}

/* One array; `part` "" for one without a suffix. Each begins at a multiple of 64. */
static int array_add(struct lk_rank_writer *w, const char *name, const char *part, const void *data, size_t n, struct lk_err *e)
{
    char key[320];
    if (!data) return 0;
    snprintf(key, sizeof key, "%s%s", name, part);
    json_t *o = json_pack("{s:s, s:[I], s:[I, I]}", "dtype", "U8", "shape", (json_int_t)n, "data_offsets", (json_int_t)w->at,
                          (json_int_t)(w->at + n));
    if (!o || json_object_set_new(w->head, key, o)) return no_memory(e);
    int rc = put(w, data, n, w->base + w->at, e);
    static const char zeros[64];
    w->at += n;
    if (!rc && w->at % 64) { /* the padding belongs to the array: safetensors has no holes */
        size_t pad = 64 - w->at % 64;
        json_array_set_new(json_object_get(o, "shape"), 0, json_integer((json_int_t)(n + pad)));
        json_array_set_new(json_object_get(o, "data_offsets"), 1, json_integer((json_int_t)(w->at + pad)));
        rc = put(w, zeros, pad, w->base + w->at, e);
        w->at += pad;
    }
    return rc;
}

int lk_rank_writer_add(struct lk_rank_writer *w, const struct lk_tensor *t, const struct lk_weight *p, int is_part, struct lk_err *e)
{
    int rc = array_add(w, t->name, ".data", p->data, lk_weight_data_bytes(p), e);
    if (!rc) rc = array_add(w, t->name, ".scale", p->scale, lk_weight_scale_bytes(p), e);
    if (!rc) rc = array_add(w, t->name, ".zero", p->zero, p->zero ? lk_weight_zero_bytes(p) : 0, e);
    if (!rc) rc = array_add(w, t->name, ".gidx", p->gidx, p->gidx ? (size_t)p->k * 4 : 0, e);
    if (rc) return rc;
    json_t *dims = json_array();
    for (int i = 0; i < t->n_dims; i++) json_array_append_new(dims, json_integer(t->dims[i]));
    json_t *o = json_pack("{s:s, s:s, s:I, s:I, s:o, s:b, s:s, s:I, s:I, s:I, s:f, s:b, s:b}", "name", t->name, "format", lk_fmt_info(p->fmt)->name,
                          "n", (json_int_t)p->n, "k", (json_int_t)p->k, "whole", dims, "is_part", is_part, "scale_dtype",
                          lk_dtype_name(p->scale_dtype), "block_n", (json_int_t)p->block_n, "block_k", (json_int_t)p->block_k, "group",
                          (json_int_t)p->group, "global", (double)p->global, "global_div", p->global_div, "zero_plus1", p->zero_plus1);
    return json_array_append_new(w->list, o) ? no_memory(e) : 0;
}

static int info_add(struct lk_rank_writer *w, const struct lk_artifact *a, struct lk_err *e)
{
    const struct lk_config *c = lk_artifact_config(a);
    size_t n;
    const int32_t *map = lk_artifact_draft_map(a, &n);
    int rc = array_add(w, "draft_map", "", map, n * 4, e);
    json_t *o = json_pack("{s:i, s:i, s:b, s:b, s:b, s:I, s:O}", "rank", w->rank + 1, "of", w->n, "norm_plus_one", c->norm_plus_one,
                          "a_is_coef", c->a_is_coef, "gdn_tiled", c->gdn_tiled, "draft_rows", (json_int_t)n, "tensors", w->list);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    if (!text) return no_memory(e);
    size_t len = strlen(text), pad = (64 - len % 64) % 64; /* spaces, not zeros: it is parsed */
    char *padded = rc ? NULL : lk_malloc(len + pad + 1);
    if (padded) {
        memcpy(padded, text, len);
        memset(padded + len, ' ', pad);
        rc = array_add(w, INFO, "", padded, len + pad, e);
    } else if (!rc) {
        rc = no_memory(e);
    }
    lk_free(padded);
    free(text);
    return rc;
}

static int header_write(struct lk_rank_writer *w, struct lk_err *e)
{
    size_t room = w->base - 8, n = json_dumpb(w->head, NULL, 0, JSON_COMPACT);
    if (!n || n > room) return lk_fail(e, LK_EINPUT, "%s: names of tensors are too long for a rank file", w->path.data);
    char *head = lk_malloc(w->base);
    if (!head) return no_memory(e);
    uint64_t len = room;
    memset(head, ' ', w->base);
    memcpy(head, &len, 8);
    json_dumpb(w->head, head + 8, room, JSON_COMPACT);
    int rc = put(w, head, w->base, 0, e);
    lk_free(head);
    return rc;
}

int lk_rank_writer_close(struct lk_rank_writer *w, const struct lk_artifact *a, int rc, struct lk_err *e)
{
    if (!rc) rc = info_add(w, a, e);
    if (!rc) rc = header_write(w, e);
    if (w->fd >= 0) {
        int bad = rc ? 0 : fsync(w->fd);
        bad = close(w->fd) || bad;
        if (bad && !rc) rc = lk_fail(e, LK_ESYS, "%s: cannot write: %s", w->path.data, strerror(errno));
    }
    json_decref(w->head);
    json_decref(w->list);
    lk_buf_free(&w->path);
    return rc;
}

/* ---- reading ---- */

int lk__ranks_in(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0, of, used;
    for (struct dirent *x; d && (x = readdir(d));) {
        used = 0;
        if (sscanf(x->d_name, "rank-1-of-%4d.safetensors%n", &of, &used) == 1 && used && !x->d_name[used] && of > 0) n = of;
    }
    if (d) closedir(d);
    return n;
}

struct reader {
    struct lk_artifact *a;
    struct raw_table t;
    const char *file;
    struct lk_err *e;
};

/* The array NAME.PART of exactly `bytes` (and its padding). */
static int array_get(struct reader *r, const char *name, const char *part, size_t bytes, const void **out)
{
    char key[320];
    snprintf(key, sizeof key, "%s%s", name, part);
    const struct raw_tensor *x = lk__raw_find(&r->t, key);
    if (!x || x->bytes != (bytes + 63) / 64 * 64)
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected %zu bytes, found %zu", r->file, key, bytes, x ? x->bytes : 0);
    *out = x->data;
    return 0;
}

static int weight_read(struct reader *r, const json_t *o, const char *name, struct lk_weight *w)
{
    const char *fmt = json_string_value(json_object_get(o, "format")), *sdt = json_string_value(json_object_get(o, "scale_dtype"));
    int64_t groups;
    double global = 1;
    int div = 0, plus = 0, rc = lk__json_int(o, "n", 1, MAX_DIM, &w->n, r->file, r->e);
    if (!rc) rc = lk__json_int(o, "k", 1, MAX_DIM, &w->k, r->file, r->e);
    if (!rc) rc = lk__json_int(o, "block_n", 0, MAX_DIM, &w->block_n, r->file, r->e);
    if (!rc) rc = lk__json_int(o, "block_k", 0, MAX_DIM, &w->block_k, r->file, r->e);
    if (!rc) rc = lk__json_int(o, "group", 0, MAX_DIM, &w->group, r->file, r->e);
    if (!rc) rc = lk__json_real(o, "global", -3.5e38, 3.5e38, &global, r->file, r->e);
    if (!rc) rc = lk__json_bool(o, "global_div", &div, r->file, r->e);
    if (!rc) rc = lk__json_bool(o, "zero_plus1", &plus, r->file, r->e);
    if (rc) return rc;
    w->fmt = fmt ? lk_fmt_find(fmt) : LK_FMT_NONE;
    w->scale_dtype = sdt ? lk_dtype_find(sdt) : LK_DT_NONE;
    w->global = (float)global, w->global_div = (uint8_t)div, w->zero_plus1 = (uint8_t)plus;
    int block = lk_fmt_info(w->fmt)->block;
    if (!w->fmt || w->fmt >= LK_FMT_KERNELS || !w->n || !w->k || (block && w->k % block) || (w->fmt == LK_FMT_FP8 && (w->block_n < 1 || w->block_k < 1)) ||
        (w->fmt >= LK_FMT_I8 && w->fmt <= LK_FMT_AWQ4 && w->group < 1))
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected a format with its sizes, found %s", r->file, name, fmt ? fmt : "none");
    rc = array_get(r, name, ".data", lk_weight_data_bytes(w), &w->data);
    if (!rc && lk_weight_scale_bytes(w)) rc = array_get(r, name, ".scale", lk_weight_scale_bytes(w), &w->scale);
    char key[320];
    snprintf(key, sizeof key, "%s.zero", name);
    int has_zero = lk__raw_find(&r->t, key) != NULL, needs_zero = w->fmt >= LK_FMT_GPTQ4 && w->fmt <= LK_FMT_AWQ4;
    if (!rc && (has_zero || needs_zero)) rc = array_get(r, name, ".zero", lk_weight_zero_bytes(w), &w->zero);
    snprintf(key, sizeof key, "%s.gidx", name);
    if (!rc && lk__raw_find(&r->t, key)) rc = array_get(r, name, ".gidx", (size_t)w->k * 4, (const void **)&w->gidx);
    if (rc || !w->gidx) return rc;
    groups = w->group ? (w->k + w->group - 1) / w->group : 1;
    if ((uintptr_t)w->gidx % 4) return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected data at a multiple of 64", r->file, key);
    for (int64_t i = 0; i < w->k; i++)
        if (w->gidx[i] < 0 || w->gidx[i] >= groups)
            return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected groups below %d, found %d", r->file, key, (int)groups, (int)w->gidx[i]);
    return 0;
}

static int tensor_read(struct reader *r, const json_t *o)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    const json_t *dims = json_object_get(o, "whole");
    if (!name || strlen(name) > 200) return lk_fail(r->e, LK_EINPUT, "%s: " INFO ": expected a name for each tensor, found %s", r->file, lk__json_kind(o));
    struct lk_tensor t = {.file = r->file, .name = lk_arena_strndup(&r->a->mem, name, strlen(name)), .n_dims = (int)json_array_size(dims)};
    t.stored = t.name;
    if (!t.name) return lk_fail(r->e, LK_ENOMEM, "%s: no memory for the tensor directory", r->file);
    if (t.n_dims < 1 || t.n_dims > 4) return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected 1 to 4 dimensions, found %d", r->file, name, t.n_dims);
    int rc = lk__json_bool(o, "is_part", &t.is_part, r->file, r->e);
    if (!rc) rc = weight_read(r, o, t.name, &t.w);
    if (rc) return rc;
    t.bytes = lk_weight_bytes(&t.w);
    for (int i = 0; i < t.n_dims; i++) t.dims[i] = json_integer_value(json_array_get(dims, (size_t)i));
    if (t.n_dims == 1) t.dims[0] = t.w.k; /* of the part: what a loader of vectors counts */
    if (t.n_dims > 1) t.dims[0] = t.n_dims == 2 ? t.w.n : t.dims[0];
    return lk__artifact_add(r->a, &t, r->e);
}

static int info_read(struct reader *r, int rank, int of)
{
    const struct raw_tensor *x = lk__raw_find(&r->t, INFO);
    json_t *root = NULL;
    int64_t is_rank = 0, is_of = 0, rows = 0;
    struct lk_config *c = &r->a->cfg;
    if (!x) return lk_fail(r->e, LK_EINPUT, "%s: tensor " INFO ": expected in a rank file, found nothing", r->file);
    int rc = lk__json_object(&root, (const char *)x->data, x->bytes, r->file, r->e);
    if (!rc) rc = lk__json_int(root, "rank", 1, 1 << 20, &is_rank, r->file, r->e);
    if (!rc) rc = lk__json_int(root, "of", 1, 1 << 20, &is_of, r->file, r->e);
    if (!rc) rc = lk__json_bool(root, "norm_plus_one", &c->norm_plus_one, r->file, r->e);
    if (!rc) rc = lk__json_bool(root, "a_is_coef", &c->a_is_coef, r->file, r->e);
    if (!rc) rc = lk__json_bool(root, "gdn_tiled", &c->gdn_tiled, r->file, r->e);
    if (!rc) rc = lk__json_int(root, "draft_rows", 0, MAX_DIM, &rows, r->file, r->e);
    if (!rc && (is_rank != rank + 1 || is_of != of))
        rc = lk_fail(r->e, LK_EINPUT, "%s: expected rank %d of %d, found %d of %d", r->file, rank + 1, of, (int)is_rank, (int)is_of);
    const json_t *list = json_object_get(root, "tensors"), *o;
    size_t i;
    if (!rc && !json_array_size(list)) rc = lk_fail(r->e, LK_EINPUT, "%s: " INFO ": expected a list of tensors, found %s", r->file, lk__json_kind(list));
    json_array_foreach(list, i, o) if (!rc) rc = tensor_read(r, o);
    if (!rc && rows) rc = array_get(r, "draft_map", "", (size_t)rows * 4, (const void **)&r->a->draft_map);
    if (!rc && rows && (uintptr_t)r->a->draft_map % 4) rc = lk_fail(r->e, LK_EINPUT, "%s: draft_map: expected data at a multiple of 64", r->file);
    r->a->n_draft = rc ? 0 : (size_t)rows;
    json_decref(root);
    return rc;
}

int lk__rank_open(struct lk_artifact *a, const char *dir, int of, int rank, int n, struct lk_err *e)
{
    struct lk_buf path = {0};
    struct reader r = {.a = a, .e = e};
    struct lk_map m;
    char name[64];
    a->kind = "rank files";
    a->ranks = of;
    if (n && n != a->ranks)
        return lk_fail(e, LK_EINPUT, "%s: made for %d devices (convert --tp %d), found %d; name that many with --devices, or take the unsplit model",
                       dir, a->ranks, a->ranks, n);
    int rc = lk__hf_sides(a, dir, e);
    if (!rc && lk_path_join(&path, dir, file_name(rank, a->ranks, name, sizeof name))) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", dir);
    if (!rc) rc = lk__artifact_map(a, path.data, &m, &r.file, e);
    if (!rc) rc = lk__safetensors_read(&r.t, &a->mem, m.data, m.size, r.file, e);
    if (!rc) rc = info_read(&r, rank, a->ranks);
    a->cfg.tied = !rc && !lk_artifact_find(a, "lm_head");
    lk__raw_free(&r.t);
    lk_buf_free(&path);
    return rc;
}
