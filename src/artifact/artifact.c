/* The artifact: see artifact.h. This file owns the object, its tables and its life; what a file format means stands with its loader. */
#include "artifact/artifact.h"

#include "artifact/store.h"

#include <string.h>

static int has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static int artifact_load(struct lk_artifact *a, const char *path, int rank, int n, struct lk_err *e)
{
    int what = lk_file_exists(path);
    if (!what) return lk_fail(e, LK_EINPUT, "%s: no such file or folder", path);
    int of = what == 2 ? lk__ranks_in(path) : 0;
    if (of) return lk__rank_open(a, path, of, rank, n, e);
    if (what == 2 || has_suffix(path, ".safetensors") || has_suffix(path, ".json")) return lk__hf_open(a, path, e);
    if (has_suffix(path, ".gguf")) return lk__gguf_open(a, path, e);
    if (has_suffix(path, ".ninfer")) return lk__ninfer_open(a, path, e);
    return lk_fail(e, LK_EINPUT, "%s: expected a Hugging Face folder, a .safetensors, .gguf or .ninfer file, found another kind of file", path);
}

int lk_artifact_open(struct lk_artifact **out, const char *path, struct lk_err *e)
{
    return lk_artifact_open_rank(out, path, 0, 0, e);
}

int lk_artifact_open_rank(struct lk_artifact **out, const char *path, int rank, int n, struct lk_err *e)
{
    *out = NULL;
    struct lk_artifact *a = lk_calloc(1, sizeof *a);
    if (!a) return lk_fail(e, LK_ENOMEM, "%s: no memory", path);
    int rc = 0;
    a->path = lk_arena_strndup(&a->mem, path, strlen(path));
    if (!a->path) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", path);
    if (!rc) rc = artifact_load(a, path, rank, n, e);
    if (rc) {
        lk_artifact_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void lk_artifact_close(struct lk_artifact *a)
{
    if (!a) return;
    for (size_t i = 0; i < a->n_maps; i++) lk_map_close(&a->maps[i]);
    lk_free(a->maps);
    lk_free(a->tensors);
    lk__names_free(&a->names);
    lk_buf_free(&a->made_text);
    lk_arena_free(&a->mem);
    lk_free(a);
}

const struct lk_config *lk_artifact_config(const struct lk_artifact *a)
{
    return &a->cfg;
}

const struct lk_gen_defaults *lk_artifact_gen(const struct lk_artifact *a)
{
    return &a->gen;
}

const char *lk_artifact_path(const struct lk_artifact *a)
{
    return a->path;
}

const char *lk_artifact_kind(const struct lk_artifact *a)
{
    return a->kind;
}

int lk_artifact_ranks(const struct lk_artifact *a)
{
    return a->ranks;
}

size_t lk_artifact_count(const struct lk_artifact *a)
{
    return a->n_tensors;
}

const struct lk_tensor *lk_artifact_at(const struct lk_artifact *a, size_t i)
{
    return i < a->n_tensors ? &a->tensors[i] : NULL;
}

const struct lk_tensor *lk_artifact_find(const struct lk_artifact *a, const char *name)
{
    uint32_t i;
    return lk__names_get(&a->names, name, &i) ? &a->tensors[i] : NULL;
}

const char *lk_artifact_text(const struct lk_artifact *a, const char *name, size_t *len)
{
    for (int i = 0; i < a->n_texts; i++)
        if (!strcmp(a->texts[i].name, name)) {
            *len = a->texts[i].len;
            return a->texts[i].data;
        }
    *len = 0;
    return NULL;
}

const int32_t *lk_artifact_draft_map(const struct lk_artifact *a, size_t *n)
{
    *n = a->n_draft;
    return a->draft_map;
}

/* Grows an array for one more element; 0 or LK_ENOMEM. */
static int grow(void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return 0;
    size_t want = *cap ? *cap * 2 : 64;
    void *p = lk_reallocarray(*(void **)array, want, size);
    if (!p) return LK_ENOMEM;
    *(void **)array = p;
    *cap = want;
    return 0;
}

int lk__artifact_map(struct lk_artifact *a, const char *path, struct lk_map *out, const char **file, struct lk_err *e)
{
    *file = lk_arena_strndup(&a->mem, path, strlen(path));
    if (!*file || grow(&a->maps, a->n_maps, &a->cap_maps, sizeof *a->maps)) return lk_fail(e, LK_ENOMEM, "%s: no memory", path);
    int rc = lk_map_open(out, path, e);
    if (!rc) a->maps[a->n_maps++] = *out;
    return rc;
}

static void forget(const struct lk_artifact *a, const void *p, size_t n)
{
    for (size_t i = 0; p && i < a->n_maps; i++) {
        const struct lk_map *m = &a->maps[i];
        if ((const unsigned char *)p >= m->data && (const unsigned char *)p < m->data + m->size) lk_map_forget(m, p, n);
    }
}

void lk_artifact_forget(const struct lk_artifact *a, const struct lk_weight *w)
{
    const struct lk_rows *r = w->fmt == LK_FMT_ROWS ? w->data : NULL;
    for (int i = 0; r && i < 2; i++) lk_artifact_forget(a, &r->part[i]);
    if (r) return;
    forget(a, w->data, lk_weight_data_bytes(w));
    forget(a, w->scale, lk_weight_scale_bytes(w));
    forget(a, w->zero, w->zero ? lk_weight_zero_bytes(w) : 0);
}

int lk__artifact_add(struct lk_artifact *a, const struct lk_tensor *t, struct lk_err *e)
{
    if (grow(&a->tensors, a->n_tensors, &a->cap_tensors, sizeof *a->tensors))
        return lk_fail(e, LK_ENOMEM, "%s: no memory for the tensor directory", t->file);
    uint32_t i = (uint32_t)a->n_tensors;
    int rc = lk__names_put(&a->names, t->name, &i);
    if (rc < 0) return lk_fail(e, LK_ENOMEM, "%s: no memory for the tensor directory", t->file);
    if (rc > 0)
        return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected one tensor for %s, found also %s in %s", t->file, t->stored, t->name,
                       a->tensors[i].stored, a->tensors[i].file);
    a->tensors[a->n_tensors++] = *t;
    return 0;
}

int lk__artifact_text_add(struct lk_artifact *a, const char *name, const char *data, size_t len, struct lk_err *e)
{
    if (a->n_texts == LK_MAX_TEXTS) return lk_fail(e, LK_EINPUT, "%s: more than %d side files", a->path, LK_MAX_TEXTS);
    a->texts[a->n_texts].name = name;
    a->texts[a->n_texts].data = data;
    a->texts[a->n_texts++].len = len;
    return 0;
}
