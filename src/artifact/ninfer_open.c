/* Opens a .ninfer file, containers 2 and 3 (the latter possibly in several files): framing, object directory, texts. Every number of the
 * directory is checked against the bytes that are there before it is used; tensor bytes are not read. */
#include "artifact/ninfer.h"

#include "artifact/hf.h"
#include "artifact/json_read.h"
#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIRECTORY_MAX (64u << 20) /* the largest published one is 373 KB */

int lk__nf_fail(const struct nf_file *f, const char *object, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return lk_fail(f->e, LK_EINPUT, "%s: %.160s: %s", f->file, object, text);
}

struct nf_object *lk__nf_find(const struct nf_file *f, const char *name)
{
    uint32_t i;
    return lk__names_get(&f->names, name, &i) ? &f->objects[i] : NULL;
}

/* ---- formats and layouts ---- */

static const struct {
    const char *v2, *v3, *layout2, *layout3;
} fmts[NF_FMTS] = {
    [NF_BF16] = {"BF16", "bf16", "contiguous-le-v1", "contiguous_le_v1"},
    [NF_FP32] = {"FP32", "fp32", "contiguous-le-v1", "contiguous_le_v1"},
    [NF_I32] = {"I32", "int32", "contiguous-le-v1", "contiguous_le_v1"},
    [NF_Q4] = {"Q4G64_F16S", "q4_g64_fp16", "row-split-k128-v1", "row_split_k128_v1"},
    [NF_Q5] = {"Q5G64_F16S", "q5_g64_fp16", "row-split-k128-v1", "row_split_k128_v1"},
    [NF_Q6] = {"Q6G64_F16S", "q6_g64_fp16", "row-split-k128-v1", "row_split_k128_v1"},
    [NF_W8] = {"W8G32_F16S", "q8_g32_fp16", "row-split-k128-v1", "row_split_k128_v1"},
    [NF_NVFP4] = {"NVFP4", "nvfp4", "blockscale-k16-m128x4-v1", "block_scale_k16_m128x4_v1"},
    [NF_FP8] = {"FP8_E4M3FN_ROW_BF16S", "fp8_e4m3fn_row_bf16", "row-scale-v1", "row_scale_v1"},
};

const char *lk__nf_fmt_name(enum nf_fmt fmt)
{
    return fmt < NF_FMTS ? fmts[fmt].v2 : "resource";
}

static uint64_t round_up(uint64_t v, uint64_t a)
{
    return (v + a - 1) / a * a;
}

/* Bytes of a tensor; 0: the shape does not fit the format. Sizes are below 2^40 elements, so nothing wraps. */
static uint64_t encoded_bytes(const struct nf_object *o)
{
    uint64_t all = 1, n, k, groups;
    for (int i = 0; i < o->n_dims; i++) all *= (uint64_t)o->dims[i];
    if (o->fmt == NF_BF16) return all * 2;
    if (o->fmt == NF_FP32 || o->fmt == NF_I32) return all * 4;
    if (o->n_dims != 2) return 0;
    n = (uint64_t)o->dims[0], k = (uint64_t)o->dims[1];
    if (o->fmt == NF_FP8) return round_up(n * k, 256) + 2 * n;
    if (o->fmt == NF_NVFP4) {
        if (n % 128 || k % 64 || n % (uint64_t)o->divisors) return 0;
        return round_up(n * k / 2, 256) + n * k / 16 + 4 * (uint64_t)o->divisors;
    }
    groups = n * (round_up(k, 128) / (o->fmt == NF_W8 ? 32 : 64));
    return round_up(groups * 32, 256) + round_up(groups * (o->fmt == NF_Q5 ? 8 : o->fmt == NF_Q6 ? 16 : 0), 256) + groups * 2;
}

/* ---- the directory ---- */

int lk__nf_uint(const struct nf_file *f, const json_t *o, const char *where, const char *key, uint64_t hi, uint64_t *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) return lk__nf_fail(f, where, "%s: expected a whole number, found %s", key, lk__json_kind(v));
    if (json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > hi)
        return lk__nf_fail(f, where, "%s: expected 0 to %llu, found %lld", key, (unsigned long long)hi, (long long)json_integer_value(v));
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

static int is_in(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, list[i])) return 1;
    return 0;
}

int lk__nf_members(const struct nf_file *f, const json_t *o, const char *where, const char *const *must, size_t n_must, const char *const *may,
                   size_t n_may)
{
    const char *key;
    json_t *v;
    if (!json_is_object(o)) return lk__nf_fail(f, where, "expected an object, found %s", lk__json_kind(o));
    for (size_t i = 0; i < n_must; i++) {
        v = json_object_get(o, must[i]);
        if (!v || json_is_null(v)) return lk__nf_fail(f, where, "%s: expected in the directory, found %s", must[i], lk__json_kind(v));
    }
    json_object_foreach((json_t *)o, key, v)
        if (!is_in(key, must, n_must) && !is_in(key, may, n_may)) return lk__nf_fail(f, where, "%.60s: found a member that the format does not have", key);
    return 0;
}

static int read_shape(struct nf_file *f, struct nf_object *o, const json_t *shape)
{
    uint64_t all = 1;
    if (!json_is_array(shape) || json_array_size(shape) > 4)
        return lk__nf_fail(f, o->name, "shape: expected an array of at most 4 sizes, found %s", json_is_array(shape) ? "more" : lk__json_kind(shape));
    o->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < o->n_dims; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 1 || json_integer_value(d) > 1 << 30)
            return lk__nf_fail(f, o->name, "shape: expected whole sizes of 1 and more, found %s", json_is_integer(d) ? "another" : lk__json_kind(d));
        o->dims[i] = json_integer_value(d);
        all *= (uint64_t)o->dims[i];
        if (all > (uint64_t)1 << 40) return lk__nf_fail(f, o->name, "shape: expected fewer than 2^40 values, found more");
    }
    return 0;
}

static int read_tensor(struct nf_file *f, struct nf_object *o, const json_t *v)
{
    const char *fmt = json_string_value(json_object_get(v, "format")), *layout = json_string_value(json_object_get(v, "layout"));
    uint64_t divisors = 1;
    int rc = read_shape(f, o, json_object_get(v, "shape"));
    o->fmt = NF_FMTS;
    for (int i = 0; i < NF_FMTS && fmt; i++)
        if (!strcmp(fmt, f->version == 2 ? fmts[i].v2 : fmts[i].v3)) o->fmt = (enum nf_fmt)i;
    if (!rc && o->fmt == NF_FMTS) rc = lk__nf_fail(f, o->name, "format: expected one of the profile's, found %.60s", fmt ? fmt : "no string");
    if (rc) return rc;
    const char *want = f->version == 2 ? fmts[o->fmt].layout2 : fmts[o->fmt].layout3;
    if (!layout || strcmp(layout, want)) return lk__nf_fail(f, o->name, "layout: expected %s for %s, found %.60s", want, fmt, layout ? layout : "no string");
    if (json_object_get(v, "divisors")) rc = lk__nf_uint(f, v, o->name, "divisors", 1 << 20, &divisors);
    if (!rc && (divisors < 1 || (divisors > 1 && o->fmt != NF_NVFP4))) rc = lk__nf_fail(f, o->name, "divisors: expected 1, found another number");
    o->divisors = (int64_t)divisors;
    if (rc) return rc;
    uint64_t bytes = encoded_bytes(o);
    if (!bytes) return lk__nf_fail(f, o->name, "shape: no %s tensor has this one", fmt);
    if (bytes != o->bytes) return lk__nf_fail(f, o->name, "bytes: expected %llu for its shape and format, found %llu", (unsigned long long)bytes, (unsigned long long)o->bytes);
    return 0;
}

static const char *const v2_tensor[] = {"name", "kind", "shape", "format", "layout", "offset", "bytes"};
static const char *const v3_tensor[] = {"id", "kind", "shape", "format", "layout", "offset", "bytes"}, *const v3_may[] = {"divisors"};
static const char *const v2_resource[] = {"name", "kind", "encoding", "offset", "bytes"}, *const v3_resource[] = {"id", "kind", "encoding", "offset", "bytes"};

static int read_object(struct nf_file *f, struct nf_object *o, const json_t *v, size_t i, uint64_t *cursor)
{
    int v2 = f->version == 2;
    const char *kind = json_string_value(json_object_get(v, "kind")), *key = v2 ? "name" : "id", *name = json_string_value(json_object_get(v, key));
    char where[32];
    snprintf(where, sizeof where, "objects[%zu]", i);
    if (!name || !*name || strlen(name) > 200) return lk__nf_fail(f, where, "%s: expected a string of 1 to 200 bytes, found %s", key, name ? "another" : lk__json_kind(json_object_get(v, key)));
    o->name = lk_arena_strndup(&f->a->mem, name, strlen(name));
    if (!o->name) return lk_fail(f->e, LK_ENOMEM, "%s: no memory for the directory", f->file);
    int tensor = kind && !strcmp(kind, "tensor");
    if (!tensor && (!kind || strcmp(kind, "resource"))) return lk__nf_fail(f, o->name, "kind: expected tensor or resource, found %.60s", kind ? kind : "no string");
    int rc = tensor ? lk__nf_members(f, v, o->name, v2 ? v2_tensor : v3_tensor, 7, v3_may, v2 ? 0 : 1)
                    : lk__nf_members(f, v, o->name, v2 ? v2_resource : v3_resource, 5, NULL, 0);
    if (!rc) rc = lk__nf_uint(f, v, o->name, "offset", INT64_MAX, &o->offset);
    if (!rc) rc = lk__nf_uint(f, v, o->name, "bytes", INT64_MAX, &o->bytes);
    if (rc) return rc;
    if (o->offset < *cursor) return lk__nf_fail(f, o->name, "offset: expected %llu or more (behind the object before it), found %llu", (unsigned long long)*cursor, (unsigned long long)o->offset);
    if (tensor && o->offset % 256) return lk__nf_fail(f, o->name, "offset: expected a multiple of 256, found %llu", (unsigned long long)o->offset);
    if (!o->bytes || o->offset > f->payload || o->bytes > f->payload - o->offset)
        return lk__nf_fail(f, o->name, "bytes: expected 1 to %llu inside the file, found %llu", (unsigned long long)(o->offset > f->payload ? 0 : f->payload - o->offset), (unsigned long long)o->bytes);
    *cursor = o->offset + o->bytes;
    if (tensor) return read_tensor(f, o, v);
    const char *enc = json_string_value(json_object_get(v, "encoding")), *want = v2 ? "raw-bytes-v1" : "raw_bytes_v1";
    o->fmt = NF_RESOURCE;
    return enc && !strcmp(enc, want) ? 0 : lk__nf_fail(f, o->name, "encoding: expected %s, found %.60s", want, enc ? enc : "no string");
}

/* Bytes of an object: in place, or, where it straddles two files, as a copy. */
static int locate(struct nf_file *f, struct nf_object *o)
{
    for (size_t i = 0; i < f->n_segments; i++) {
        const struct nf_segment *s = &f->segments[i];
        if (o->offset >= s->at && o->offset + o->bytes <= s->at + s->bytes) {
            o->data = s->data + (o->offset - s->at);
            return 0;
        }
    }
    unsigned char *copy = lk_arena_alloc(&f->a->mem, o->bytes + 64);
    if (!copy) return lk_fail(f->e, LK_ENOMEM, "%s: %s: no memory for %llu bytes", f->file, o->name, (unsigned long long)o->bytes);
    copy += (64 - (uintptr_t)copy % 64) % 64;
    for (size_t i = 0; i < f->n_segments; i++) {
        const struct nf_segment *s = &f->segments[i];
        uint64_t from = o->offset > s->at ? o->offset : s->at, end = o->offset + o->bytes < s->at + s->bytes ? o->offset + o->bytes : s->at + s->bytes;
        if (from < end) memcpy(copy + (from - o->offset), s->data + (from - s->at), end - from);
    }
    o->data = copy;
    return 0;
}

int lk__nf_objects(struct nf_file *f, const json_t *list)
{
    const json_t *v;
    size_t i;
    uint64_t cursor = 0;
    if (!json_array_size(list)) return lk__nf_fail(f, "objects", "expected a list of objects, found %s", json_is_array(list) ? "an empty one" : lk__json_kind(list));
    f->objects = lk_calloc(json_array_size(list), sizeof *f->objects);
    if (!f->objects) return lk_fail(f->e, LK_ENOMEM, "%s: no memory for the directory", f->file);
    json_array_foreach(list, i, v)
    {
        struct nf_object *o = &f->objects[i];
        int rc = read_object(f, o, v, i, &cursor);
        if (!rc) rc = locate(f, o);
        if (rc) return rc;
        uint32_t at = (uint32_t)f->n_objects++;
        rc = lk__names_put(&f->names, o->name, &at);
        if (rc < 0) return lk_fail(f->e, LK_ENOMEM, "%s: no memory for the directory", f->file);
        if (rc > 0) return lk__nf_fail(f, o->name, "name: expected one object of it, found two");
    }
    return 0;
}

/* ---- files ---- */

static int segment_add(struct nf_file *f, const unsigned char *data, uint64_t bytes)
{
    struct nf_segment *s = lk_reallocarray(f->segments, f->n_segments + 1, sizeof *s);
    if (!s) return lk_fail(f->e, LK_ENOMEM, "%s: no memory", f->file);
    f->segments = s;
    s[f->n_segments++] = (struct nf_segment){data, f->payload, bytes};
    f->payload += bytes;
    return 0;
}

static int part_open(struct nf_file *f, const char *name, size_t index, uint64_t bytes, const unsigned char *id)
{
    const char *slash = strrchr(f->file, '/'), *file;
    struct lk_buf path = {0};
    struct lk_map m;
    int dir = slash ? (int)(slash - f->file) + 1 : 0;
    lk_buf_fmt(&path, "%.*s%s", dir, f->file, name);
    int rc = path.failed ? lk_fail(f->e, LK_ENOMEM, "%s: no memory", f->file) : lk__artifact_map(f->a, path.data, &m, &file, f->e);
    lk_buf_free(&path);
    if (rc) return rc;
    if (m.size < 4096 || memcmp(m.data, "NINPRT\0\3", 8)) return lk_fail(f->e, LK_EINPUT, "%s: expected a part of a .ninfer model, found another kind of file", file);
    if (lk_get64(m.data + 8) != index) return lk_fail(f->e, LK_EINPUT, "%s: part_index: expected %zu, found %llu", file, index, (unsigned long long)lk_get64(m.data + 8));
    if (memcmp(m.data + 16, id, 16)) return lk_fail(f->e, LK_EINPUT, "%s: artifact_id: expected that of %s, found another (parts of two downloads?)", file, f->file);
    if (m.size - 4096 != bytes) return lk_fail(f->e, LK_EINPUT, "%s: expected %llu bytes of payload, found %zu", file, (unsigned long long)bytes, m.size - 4096);
    return segment_add(f, m.data + 4096, bytes);
}

/* Container 3 lists its files: the first is this one, the others lie beside it. */
static int files_open(struct nf_file *f, const struct lk_map *m, uint64_t payload_at)
{
    static const char *const must[] = {"payload_bytes"}, *const may[] = {"path"};
    const json_t *files = json_object_get(f->root, "files"), *v;
    size_t i;
    if (!json_array_size(files) || json_array_size(files) > NF_MAX_FILES)
        return lk__nf_fail(f, "files", "expected a list of 1 to %d files, found %s", NF_MAX_FILES, lk__json_kind(files));
    json_array_foreach(files, i, v)
    {
        char where[32];
        uint64_t bytes = 0;
        snprintf(where, sizeof where, "files[%zu]", i);
        int rc = lk__nf_members(f, v, where, must, 1, may, 1);
        if (!rc) rc = lk__nf_uint(f, v, where, "payload_bytes", INT64_MAX / NF_MAX_FILES, &bytes);
        if (rc) return rc;
        const char *path = json_string_value(json_object_get(v, "path"));
        if (!i && !json_is_null(json_object_get(v, "path"))) return lk__nf_fail(f, where, "path: expected null for the entry file, found %s", lk__json_kind(json_object_get(v, "path")));
        if (!i && m->size - payload_at != bytes)
            return lk__nf_fail(f, where, "payload_bytes: expected %llu (the file's size), found %llu", (unsigned long long)(m->size - payload_at), (unsigned long long)bytes);
        if (i && (!path || !*path || path[0] == '.' || strpbrk(path, "/\\") || strlen(path) != json_string_length(json_object_get(v, "path"))))
            return lk__nf_fail(f, where, "path: expected the name of a file beside this one, found %.60s", path ? path : "no string");
        rc = i ? part_open(f, path, i, bytes, m->data + 16) : segment_add(f, m->data + payload_at, bytes);
        if (rc) return rc;
    }
    return 0;
}

static int read_directory(struct nf_file *f, const struct lk_map *m)
{
    uint64_t head = f->version == 2 ? 16 : 32, len = m->size >= 16 ? lk_get64(m->data + 8) : 0;
    if (m->size < head || !len || len > DIRECTORY_MAX || len > m->size - head)
        return lk__nf_fail(f, "json_bytes", "expected 1 to %llu, found %llu", (unsigned long long)(m->size < head ? 0 : m->size - head), (unsigned long long)len);
    uint64_t payload_at = round_up(head + len, 4096);
    if (payload_at > m->size) return lk__nf_fail(f, "json_bytes", "expected a file of %llu bytes and more, found %zu", (unsigned long long)payload_at, m->size);
    int rc = lk__json_object(&f->root, (const char *)m->data + head, len, f->file, f->e);
    if (rc) return rc;
    if (f->version == 2) rc = segment_add(f, m->data + payload_at, m->size - payload_at);
    if (!rc && f->version == 3) rc = files_open(f, m, payload_at);
    if (!rc) rc = f->version == 2 ? lk__nf2_read(f, f->root) : lk__nf3_read(f, f->root);
    return rc;
}

/* The Hugging Face side files that the model carries, by the last part of their names. */
static int read_texts(struct nf_file *f)
{
    const char *const *names = lk__side_names + 1; /* the directory stands for config.json */
    struct lk_artifact *a = f->a;
    int rc = 0;
    size_t len;
    for (size_t i = 0; i < f->n_objects && !rc; i++) {
        const struct nf_object *o = &f->objects[i];
        const char *slash = strrchr(o->name, '/'), *base = slash ? slash + 1 : o->name;
        for (size_t k = 0; o->fmt == NF_RESOURCE && names[k] && !rc; k++)
            if (!strcmp(base, names[k]) && !lk_artifact_text(a, names[k], &len)) rc = lk__artifact_text_add(a, names[k], (const char *)o->data, o->bytes, f->e);
    }
    const char *gen = lk_artifact_text(a, "generation_config.json", &len);
    return !rc && gen ? lk__hf_generation(&a->cfg, &a->gen, gen, len, f->file, f->e) : rc;
}

int lk__ninfer_open(struct lk_artifact *a, const char *path, struct lk_err *e)
{
    struct nf_file f = {.a = a, .e = e, .file = path};
    struct lk_map m;
    int rc = lk__artifact_map(a, path, &m, &f.file, e);
    a->kind = "ninfer";
    if (!rc && (m.size < 8 || memcmp(m.data, "NINFER\0", 7)))
        rc = lk_fail(e, LK_EINPUT, "%s: magic: expected NINFER, found another kind of file", f.file);
    if (!rc && m.data[7] != 2 && m.data[7] != 3)
        rc = lk_fail(e, LK_EINPUT, "%s: magic: expected container version 2 or 3, found %d%s", f.file, m.data[7],
                     m.data[7] == 1 ? " (download the model again: version 1 is no longer published)" : "");
    if (!rc) {
        f.version = m.data[7];
        rc = read_directory(&f, &m);
    }
    if (!rc) rc = lk__nf_bind(&f);
    if (!rc) rc = read_texts(&f);
    json_decref(f.root);
    lk_free(f.objects);
    lk_free(f.segments);
    lk__names_free(&f.names);
    return rc;
}
