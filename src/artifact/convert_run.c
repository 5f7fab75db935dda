/* Runs a conversion: see convert.h. Tensor by tensor, in slabs of rows; a slab's rows are decoded and encoded in parallel, its bytes then go
 * to their place in a shard (or, verifying, are compared with what lies there). */
#include "artifact/convert.h"

#include "artifact/convert_plan.h"
#include "artifact/encode.h"
#include "artifact/out_folder.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "base/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SLAB_BYTES (16u << 20)
#define PART_ROWS 4

struct shard_file {
    int fd;           /* -1: closed */
    size_t base;      /* file offset of the data part */
    struct lk_map map; /* verify */
};

struct conv {
    struct plan p;
    const struct lk_convert_opts *o;
    struct shard_file *shards;
    const char *dir;  /* the temporary folder */
    int verify;       /* this pass compares */
    struct lk_progress bar;
    uint64_t done;
    float *rows;      /* a row a worker */
    int64_t rows_k;
    unsigned char *slab[2]; /* codes, scales */
    struct lk_err *e;
};

/* What one parallel part needs. */
struct slab {
    const struct conv *c;
    const struct job *j;
    int64_t row0, n;
    float *amax; /* amax pass: one a part */
};

static size_t code_row_bytes(enum scheme s, int64_t k)
{
    return (size_t)(s == SCHEME_F32 ? k * 4 : s == SCHEME_BF16 ? k * 2 : s == SCHEME_NVFP4 || s == SCHEME_Q4 ? k / 2 : k);
}

static size_t scale_row_bytes(enum scheme s, int64_t k)
{
    return (size_t)(s == SCHEME_NVFP4 ? k / 16 : s == SCHEME_Q4 ? k / Q4_GROUP * 2 : s == SCHEME_FP8 || s == SCHEME_I8 ? 4 : 0);
}

static void row_encode(const struct slab *s, int64_t i, const float *x)
{
    const struct job *j = s->j;
    int64_t k = j->t->w.k;
    unsigned char *codes = s->c->slab[0] + (size_t)i * code_row_bytes(j->scheme, k);
    unsigned char *scales = s->c->slab[1] + (size_t)i * scale_row_bytes(j->scheme, k);
    switch (j->scheme) {
    case SCHEME_F32: memcpy(codes, x, (size_t)k * 4); break;
    case SCHEME_BF16:
        for (int64_t c = 0; c < k; c++) {
            uint16_t h = lk_f32_to_bf16(x[c]);
            memcpy(codes + c * 2, &h, 2);
        }
        break;
    case SCHEME_FP8: lk_encode_fp8(x, k, codes, (float *)(void *)scales); break;
    case SCHEME_I8: lk_encode_i8(x, k, (int8_t *)codes, (float *)(void *)scales); break;
    case SCHEME_NVFP4: lk_encode_nvfp4(x, k, j->global, codes, scales); break;
    default: lk_encode_q4(x, k, Q4_GROUP, codes, (uint16_t *)(void *)scales); break;
    }
}

static void slab_part(void *arg, int part, int worker)
{
    struct slab *s = arg;
    int64_t k = s->j->t->w.k, end = ((int64_t)part + 1) * PART_ROWS;
    float *x = s->c->rows + worker * s->c->rows_k;
    for (int64_t i = (int64_t)part * PART_ROWS; i < end && i < s->n; i++) {
        lk__source_row(s->c->p.a, s->j->t, s->row0 + i, x);
        if (!s->amax) {
            row_encode(s, i, x);
            continue;
        }
        float m = lk_amax(x, k);
        if (m > s->amax[part]) s->amax[part] = m;
    }
}

static void parts_run(const struct conv *c, struct slab *s)
{
    int parts = (int)((s->n + PART_ROWS - 1) / PART_ROWS);
    if (c->o->pool)
        lk_pool_run(c->o->pool, parts, slab_part, s);
    else
        for (int i = 0; i < parts; i++) slab_part(s, i, 0);
}

static int job_amax(struct conv *c, struct job *j)
{
    if (j->amax >= 0) return 0;
    int64_t n = j->t->w.n, parts = (n + PART_ROWS - 1) / PART_ROWS;
    struct slab s = {c, j, 0, n, lk_calloc((size_t)parts, sizeof(float))};
    if (!s.amax) return lk_fail(c->e, LK_ENOMEM, "convert: no memory for tensor %s", j->t->name);
    parts_run(c, &s);
    j->amax = 0;
    for (int64_t i = 0; i < parts; i++)
        if (s.amax[i] > j->amax) j->amax = s.amax[i];
    lk_free(s.amax);
    lk_artifact_forget(c->p.a, &j->t->w);
    return 0;
}

/* Linears that other engines run as one share their global scale, as the published checkpoints do. */
static int job_global(struct conv *c, struct job *j)
{
    static const char *const fused[][3] = {{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", NULL}, {"in_proj_qkv", "in_proj_z", NULL}};
    const char *dot = strrchr(j->t->name, '.'), *last = dot ? dot + 1 : j->t->name;
    int rc = job_amax(c, j);
    float amax = j->amax;
    for (int f = 0; f < 3; f++) {
        int mine = 0;
        for (int i = 0; i < 3 && fused[f][i]; i++) mine |= !strcmp(last, fused[f][i]);
        for (int i = 0; mine && i < 3 && fused[f][i] && !rc; i++) {
            char name[400];
            snprintf(name, sizeof name, "%.*s%s", (int)(last - j->t->name), j->t->name, fused[f][i]);
            const struct lk_tensor *t = lk_artifact_find(c->p.a, name);
            struct job *other = t ? &c->p.jobs[t - lk_artifact_at(c->p.a, 0)] : j;
            if (other->scheme != SCHEME_NVFP4) continue;
            rc = job_amax(c, other);
            if (other->amax > amax) amax = other->amax;
        }
    }
    j->global = lk_nvfp4_global(amax);
    return rc;
}

static int sink(struct conv *c, const struct out_tensor *o, size_t at, const void *data, size_t n)
{
    struct shard_file *f = &c->shards[o->shard];
    size_t pos = f->base + o->offset + at;
    if (c->verify) {
        if (pos + n > f->map.size || memcmp(f->map.data + pos, data, n))
            return lk_fail(c->e, LK_EINPUT, "convert --verify: %s: tensor %s: the bytes on disk differ from the source's encoding", c->dir, o->name);
        lk_map_forget(&f->map, f->map.data + pos, n);
    }
    if (c->o->stop && *c->o->stop) return lk_fail(c->e, LK_EINPUT, "convert: interrupted; what stood under the final name, or nothing, still does");
    if (!c->verify && lk_fd_put(f->fd, data, n, pos)) return lk_fail(c->e, LK_ESYS, "%s: cannot write: %s", c->dir, strerror(errno));
    c->done += n;
    lk_progress_set(&c->bar, c->done);
    return 0;
}

/* Pages of the source are let go slab by slab: they count as memory of this process although they are the file's. */
static int job_copy(struct conv *c, const struct lk_weight *w, const struct out_tensor *o)
{
    int rc = 0;
    for (size_t at = 0; at < o->bytes && !rc; at += SLAB_BYTES) {
        size_t n = o->bytes - at < SLAB_BYTES ? o->bytes - at : SLAB_BYTES;
        rc = sink(c, o, at, (const char *)o->copy + at, n);
        if (o->bytes > SLAB_BYTES) lk_artifact_forget(c->p.a, w);
    }
    return rc;
}

static int job_run(struct conv *c, struct job *j)
{
    const struct out_tensor *o = &c->p.out[j->first];
    int rc = 0;
    if (j->scheme == SCHEME_COPY) {
        for (int i = 0; i < j->n_out && !rc; i++) rc = job_copy(c, &j->t->w, &o[i]);
        lk_artifact_forget(c->p.a, &j->t->w);
        return rc;
    }
    const struct lk_weight *w = &j->t->w;
    size_t cb = code_row_bytes(j->scheme, w->k), sb = scale_row_bytes(j->scheme, w->k);
    int64_t rows = (int64_t)(SLAB_BYTES / (cb + sb + 1)) + 1;
    if (j->scheme == SCHEME_NVFP4) rc = job_global(c, j);
    for (int64_t r = 0; r < w->n && !rc; r += rows) {
        struct slab s = {c, j, r, w->n - r < rows ? w->n - r : rows, NULL};
        parts_run(c, &s);
        rc = sink(c, &o[0], (size_t)r * cb, c->slab[0], (size_t)s.n * cb);
        if (!rc && sb) rc = sink(c, &o[1], (size_t)r * sb, c->slab[1], (size_t)s.n * sb);
        lk_artifact_forget(c->p.a, w);
    }
    if (!rc && j->scheme == SCHEME_NVFP4) rc = sink(c, &o[2], 0, &j->global, 4);
    if (!rc && j->scheme == SCHEME_Q4) rc = job_copy(c, &j->t->w, &o[2]);
    return rc;
}

/* Slabs large enough for every job: a slab is SLAB_BYTES plus one row. */
static int scratch_alloc(struct conv *c)
{
    size_t most = 0;
    for (size_t i = 0; i < c->p.n_jobs; i++) {
        int64_t k = c->p.jobs[i].t->w.k;
        if (k > c->rows_k) c->rows_k = k;
    }
    size_t workers = c->o->pool ? (size_t)lk_pool_threads(c->o->pool) : 1;
    c->rows_k = (c->rows_k + 15) / 16 * 16;
    most = SLAB_BYTES + (size_t)c->rows_k * 4 + 64;
    c->rows = lk_reallocarray(NULL, workers * (size_t)c->rows_k, sizeof(float));
    c->slab[0] = lk_aligned(most);
    c->slab[1] = lk_aligned(most);
    c->shards = lk_calloc((size_t)c->p.n_shards, sizeof *c->shards);
    if (!c->rows || !c->slab[0] || !c->slab[1] || !c->shards) return lk_fail(c->e, LK_ENOMEM, "convert: no memory for the work buffers");
    for (int i = 0; i < c->p.n_shards; i++) c->shards[i].fd = -1;
    return 0;
}

static int shards_create(struct conv *c)
{
    struct lk_buf path = {0}, head = {0};
    char name[64];
    int rc = 0;
    for (int i = 0; i < c->p.n_shards && !rc; i++) {
        rc = lk__shard_header(&c->p, i, &head, c->e);
        if (!rc && lk_path_join(&path, c->dir, lk__shard_name(&c->p, i, name, sizeof name))) rc = lk_fail(c->e, LK_ENOMEM, "convert: no memory");
        if (rc) break;
        c->shards[i].base = head.len;
        c->shards[i].fd = open(path.data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (c->shards[i].fd < 0 || lk_fd_put(c->shards[i].fd, head.data, head.len, 0))
            rc = lk_fail(c->e, LK_ESYS, "%s: cannot write: %s", path.data, strerror(errno));
    }
    lk_buf_free(&path);
    lk_buf_free(&head);
    return rc;
}

static int shards_close(struct conv *c, int rc)
{
    for (int i = 0; c->shards && i < c->p.n_shards; i++) {
        struct shard_file *f = &c->shards[i];
        if (f->fd < 0) continue;
        int bad = rc ? 0 : fsync(f->fd);
        bad = close(f->fd) || bad;
        f->fd = -1;
        if (bad && !rc) rc = lk_fail(c->e, LK_ESYS, "%s: cannot write: %s", c->dir, strerror(errno));
    }
    return rc;
}

static int jobs_run(struct conv *c, const char *what)
{
    int rc = 0;
    c->done = 0;
    lk_progress_begin(&c->bar, what, "B", c->p.total);
    for (size_t i = 0; i < c->p.n_jobs && !rc; i++) rc = job_run(c, &c->p.jobs[i]);
    lk_progress_end(&c->bar);
    return rc;
}

/* Maps a shard and compares its header with the one that the plan gives. */
static int shard_check(struct conv *c, int i)
{
    struct lk_buf path = {0}, head = {0};
    char name[64];
    struct shard_file *f = &c->shards[i];
    int rc = lk_path_join(&path, c->dir, lk__shard_name(&c->p, i, name, sizeof name)) ? lk_fail(c->e, LK_ENOMEM, "convert: no memory") : 0;
    if (!rc) rc = lk_map_open(&f->map, path.data, c->e);
    if (!rc) rc = lk__shard_header(&c->p, i, &head, c->e);
    f->base = head.len;
    if (!rc && (f->map.size != head.len + c->p.shard_bytes[i] || memcmp(f->map.data, head.data, head.len)))
        rc = lk_fail(c->e, LK_EINPUT, "convert --verify: %s: the header is not the one this source and recipe give", path.data);
    lk_buf_free(&path);
    lk_buf_free(&head);
    return rc;
}

static int verify(struct conv *c)
{
    int rc = 0;
    for (int i = 0; i < c->p.n_shards && !rc; i++) rc = shard_check(c, i);
    c->verify = 1;
    if (!rc) rc = jobs_run(c, "verifying");
    for (int i = 0; i < c->p.n_shards; i++) lk_map_close(&c->shards[i].map);
    if (!rc) lk_log_info("verified: %zu tensors, %llu bytes", c->p.n_out, (unsigned long long)c->done);
    return rc;
}

static int sides_write(struct conv *c)
{
    struct lk_buf text = {0};
    int rc = lk__config_text(&c->p, &text, c->e);
    if (!rc) rc = lk_out_side_write(c->dir, "config.json", text.data, text.len, c->e);
    if (!rc) rc = lk_out_texts_write(c->dir, c->p.a, c->e);
    lk_buf_reset(&text);
    if (!rc && c->p.n_shards > 1) rc = lk__index_text(&c->p, &text, c->e);
    if (!rc && c->p.n_shards > 1) rc = lk_out_side_write(c->dir, "model.safetensors.index.json", text.data, text.len, c->e);
    lk_buf_free(&text);
    return rc;
}

static int conv_write(struct conv *c, const char *out)
{
    struct lk_out_folder f;
    int rc = lk_out_folder_begin(&f, out, c->o->force, c->e);
    c->dir = f.tmp.data;
    if (!rc) rc = shards_create(c);
    if (!rc) rc = jobs_run(c, "converting");
    rc = shards_close(c, rc);
    if (!rc) rc = sides_write(c);
    if (!rc && c->o->verify) rc = verify(c);
    return lk_out_folder_end(&f, rc, c->e);
}

int lk_convert(const char *in, const char *out, const struct lk_convert_opts *o, struct lk_err *e)
{
    struct lk_artifact *a = NULL;
    struct conv c = {.o = o, .e = e, .dir = out};
    int check_only = lk_file_exists(out) == 2 && o->verify && !o->force;
    int rc = lk_artifact_open(&a, in, e);
    if (!rc && lk_artifact_ranks(a)) rc = lk_fail(e, LK_EINPUT, "%s: holds rank files; give the unsplit model", in);
    if (!rc) rc = lk__plan_make(&c.p, a, o->recipe, o->shard_bytes > 0 ? (size_t)o->shard_bytes : (size_t)5 << 30, e);
    if (!rc) rc = scratch_alloc(&c);
    if (!rc) rc = check_only ? verify(&c) : conv_write(&c, out);
    lk_free(c.rows);
    lk_free(c.slab[0]);
    lk_free(c.slab[1]);
    lk_free(c.shards);
    lk__plan_free(&c.p);
    lk_artifact_close(a);
    return rc;
}
