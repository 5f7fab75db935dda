/* Opens a Hugging Face folder or one .safetensors file: finds config.json, the side files and the shards, proves each shard against its
 * header and all of them against the index, then binds. Shards stay mapped; nothing of a tensor is read. */
#include "artifact/hf.h"
#include "artifact/json_read.h"
#include "artifact/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SIDE_MAX (256u << 20) /* tokenizer.json of 20 MB is the largest met */

const char *const lk__side_names[] = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "preprocessor_config.json", "video_preprocessor_config.json", NULL,
};

static int side_open(struct lk_artifact *a, const char *dir, const char *name, struct lk_err *e)
{
    struct lk_buf path = {0};
    struct lk_map m;
    const char *file;
    int rc = lk_path_join(&path, dir, name) ? lk_fail(e, LK_ENOMEM, "%s: no memory", dir) : 0;
    if (!rc && lk_file_exists(path.data) == 1) {
        rc = lk__artifact_map(a, path.data, &m, &file, e);
        if (!rc && m.size > SIDE_MAX) rc = lk_fail(e, LK_EINPUT, "%s: expected at most %u bytes, found %zu", path.data, SIDE_MAX, m.size);
        if (!rc) rc = lk__artifact_text_add(a, name, m.size ? (const char *)m.data : "", m.size, e);
    }
    lk_buf_free(&path);
    return rc;
}

/* Older folders keep the chat template inside tokenizer_config.json, as a string or a list of named ones. */
static int template_from_config(struct lk_artifact *a, const char *dir, struct lk_err *e)
{
    size_t len;
    const char *s = lk_artifact_text(a, "tokenizer_config.json", &len);
    if (!s || lk_artifact_text(a, "chat_template.jinja", &(size_t){0})) return 0;
    json_t *o;
    int rc = lk__json_object(&o, s, len, "tokenizer_config.json", e);
    if (rc) return lk_err_prefix(e, "%s", dir), rc;
    const json_t *t = json_object_get(o, "chat_template"), *v;
    size_t i;
    json_array_foreach(t, i, v)
    {
        const char *name = json_string_value(json_object_get(v, "name"));
        if (name && !strcmp(name, "default")) t = json_object_get(v, "template");
    }
    if (json_is_string(t)) {
        size_t n = json_string_length(t);
        char *copy = lk_arena_strndup(&a->mem, json_string_value(t), n);
        rc = copy ? lk__artifact_text_add(a, "chat_template.jinja", copy, n, e) : lk_fail(e, LK_ENOMEM, "%s: no memory", dir);
    }
    json_decref(o);
    return rc;
}

static int read_configs(struct lk_artifact *a, const char *dir, struct hf_quant *q, struct lk_err *e)
{
    int rc = 0;
    for (const char *const *name = lk__side_names; *name && !rc; name++) rc = side_open(a, dir, *name, e);
    if (rc) return rc;
    size_t len;
    const char *s = lk_artifact_text(a, "config.json", &len);
    if (!s) return lk_fail(e, LK_EINPUT, "%s: expected config.json in it, found none (is this a model folder?)", dir);
    struct lk_buf file = {0};
    if (lk_path_join(&file, dir, "config.json")) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", dir);
    if (!rc) rc = lk__hf_config(&a->cfg, q, s, len, file.data, e);
    s = lk_artifact_text(a, "generation_config.json", &len);
    if (!rc && s) {
        if (lk_path_join(&file, dir, "generation_config.json")) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", dir);
        if (!rc) rc = lk__hf_generation(&a->cfg, &a->gen, s, len, file.data, e);
    }
    lk_buf_free(&file);
    return rc ? rc : template_from_config(a, dir, e);
}

int lk__hf_sides(struct lk_artifact *a, const char *dir, struct lk_err *e)
{
    struct hf_quant q = {0};
    return read_configs(a, dir, &q, e);
}

static int shard_open(struct lk_artifact *a, struct raw_table *t, const char *dir, const char *name, struct lk_err *e)
{
    struct lk_buf path = {0};
    struct lk_map m;
    const char *file;
    int rc = lk_path_join(&path, dir, name) ? lk_fail(e, LK_ENOMEM, "%s: no memory", dir) : 0;
    if (!rc) rc = lk__artifact_map(a, path.data, &m, &file, e);
    if (!rc) rc = lk__safetensors_read(t, &a->mem, m.data, m.size, file, e);
    lk_buf_free(&path);
    return rc;
}

/* Each file of the index once, in order of first mention. */
static int index_shards(struct lk_artifact *a, struct raw_table *t, const char *dir, const json_t *map, const char *file,
                        struct lk_err *e)
{
    struct name_map seen = {0};
    const char *tensor;
    json_t *v;
    int rc = 0;
    json_object_foreach((json_t *)map, tensor, v)
    {
        const char *shard = json_string_value(v);
        uint32_t none = 0;
        if (rc) break;
        if (!shard || !*shard || strchr(shard, '/') || shard[0] == '.') {
            rc = lk_fail(e, LK_EINPUT, "%s: tensor %s: expected the name of a file in the same folder, found %s", file, tensor,
                         shard ? shard : lk__json_kind(v));
            break;
        }
        int had = lk__names_put(&seen, shard, &none);
        if (had < 0) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", file);
        if (had) continue;
        struct lk_buf path = {0};
        if (lk_path_join(&path, dir, shard)) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", file);
        if (!rc && lk_file_exists(path.data) != 1)
            rc = lk_fail(e, LK_EINPUT, "%s: tensor %s: expected in %s, found no such file (shard missing: download it again)", file, tensor,
                         path.data);
        lk_buf_free(&path);
        if (!rc) rc = shard_open(a, t, dir, shard, e);
    }
    lk__names_free(&seen);
    return rc;
}

/* Every tensor of the index must stand in the shard that the index names. */
static int index_check(const struct raw_table *t, const json_t *map, const char *file, struct lk_err *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v)
    {
        const char *shard = json_string_value(v);
        struct raw_tensor *r = lk__raw_find(t, tensor);
        if (!r) return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected in %s, found in no shard (stale index?)", file, tensor, shard);
        const char *base = strrchr(r->file, '/');
        base = base ? base + 1 : r->file;
        if (strcmp(base, shard))
            return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected in %s, found in %s (stale index?)", file, tensor, shard, base);
    }
    return 0;
}

static int index_open(struct lk_artifact *a, struct raw_table *t, const char *dir, const char *file, struct lk_err *e)
{
    struct lk_buf text = {0};
    json_t *root = NULL;
    int rc = lk_file_read(&text, file, LK_ST_HEADER_MAX, e);
    if (!rc) rc = lk__json_object(&root, text.data ? text.data : "", text.len, file, e);
    const json_t *map = json_object_get(root, "weight_map");
    if (!rc && (!json_is_object(map) || !json_object_size(map)))
        rc = lk_fail(e, LK_EINPUT, "%s: weight_map: expected an object of tensor names, found %s", file,
                     json_is_object(map) ? "an empty one" : lk__json_kind(map));
    if (!rc) rc = index_shards(a, t, dir, map, file, e);
    if (!rc) rc = index_check(t, map, file, e);
    json_decref(root);
    lk_buf_free(&text);
    return rc;
}

static int is_shard(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return d->d_name[0] != '.' && n > 12 && !strcmp(d->d_name + n - 12, ".safetensors");
}

/* No index: every .safetensors file of the folder, in order of names. */
static int plain_shards(struct lk_artifact *a, struct raw_table *t, const char *dir, struct lk_err *e)
{
    struct dirent **list = NULL;
    int n = scandir(dir, &list, is_shard, alphasort), rc = 0;
    if (n < 0) return lk_fail(e, LK_EINPUT, "%s: cannot list: %s", dir, strerror(errno));
    if (!n) rc = lk_fail(e, LK_EINPUT, "%s: expected .safetensors files in it, found none", dir);
    for (int i = 0; i < n; i++) {
        if (!rc) rc = shard_open(a, t, dir, list[i]->d_name, e);
        free(list[i]);
    }
    free(list);
    return rc;
}

static int folder_shards(struct lk_artifact *a, struct raw_table *t, const char *dir, struct lk_err *e)
{
    struct lk_buf file = {0};
    int rc = lk_path_join(&file, dir, "model.safetensors.index.json") ? lk_fail(e, LK_ENOMEM, "%s: no memory", dir) : 0;
    if (!rc) rc = lk_file_exists(file.data) == 1 ? index_open(a, t, dir, file.data, e) : plain_shards(a, t, dir, e);
    lk_buf_free(&file);
    return rc;
}

/* A file that is one shard of many ("model-00001-of-00018.safetensors") or the index stands for its folder. */
static int is_one_of_many(const char *name)
{
    const char *of = strstr(name, "-of-");
    return strstr(name, ".json") || (of && strcmp(of, "-of-00001.safetensors"));
}

int lk__hf_open(struct lk_artifact *a, const char *path, struct lk_err *e)
{
    struct raw_table t = {0};
    struct hf_quant q = {0};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dir = path;
    int one = 0, rc;
    if (lk_file_exists(path) != 2) {
        one = !is_one_of_many(name);
        dir = slash ? lk_arena_strndup(&a->mem, path, (size_t)(slash - path)) : ".";
        if (dir && !*dir) dir = "/";
        if (!dir) return lk_fail(e, LK_ENOMEM, "%s: no memory", path);
    }
    a->kind = one ? "safetensors" : "huggingface";
    rc = read_configs(a, dir, &q, e);
    if (!rc) rc = one ? shard_open(a, &t, dir, name, e) : folder_shards(a, &t, dir, e);
    if (!rc) rc = lk__hf_bind(a, &t, &q, e);
    lk__raw_free(&t);
    return rc;
}
