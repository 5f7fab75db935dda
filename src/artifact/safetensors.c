/* Safetensors reader: see safetensors.h. The header is the only part that is parsed; tensor bytes are never touched here. */
#include "artifact/safetensors.h"

#include "artifact/json_read.h"
#include "base/num.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const char *file;
    const unsigned char *base; /* first data byte */
    size_t room;               /* data bytes in the file */
    struct lk_err *e;
};

static int read_shape(const struct reader *r, const char *name, const json_t *shape, struct raw_tensor *out, size_t *elements)
{
    if (!json_is_array(shape) || json_array_size(shape) > 8)
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: shape: expected an array of at most 8 sizes, found %s", r->file, name,
                       json_is_array(shape) ? "more" : lk__json_kind(shape));
    *elements = 1;
    out->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < out->n_dims; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: shape: expected sizes of 0 or more, found %s", r->file, name,
                           json_is_integer(d) ? "a negative one" : lk__json_kind(d));
        out->dims[i] = json_integer_value(d);
        if (lk_mul_size(*elements, (size_t)out->dims[i], elements) || *elements > (size_t)INT64_MAX)
            return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: shape: the product of its sizes does not fit 64 bits", r->file, name);
    }
    return 0;
}

static int read_range(const struct reader *r, const char *name, const json_t *offsets, struct raw_tensor *out)
{
    const json_t *b = json_array_get(offsets, 0), *x = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(x))
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: data_offsets: expected two integers, found %s", r->file, name,
                       json_is_array(offsets) ? "something else" : lk__json_kind(offsets));
    json_int_t begin = json_integer_value(b), end = json_integer_value(x);
    if (begin < 0 || end < begin)
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: data_offsets: expected begin <= end, found [%" PRId64 ", %" PRId64 "]", r->file,
                       name, (int64_t)begin, (int64_t)end);
    if ((uint64_t)end > r->room)
        return lk_fail(r->e, LK_EINPUT,
                       "%s: tensor %s: data_offsets: expected an end within the %zu data bytes of the file, found %" PRId64
                       " (short or half-downloaded file?)",
                       r->file, name, r->room, (int64_t)end);
    out->data = r->base + begin;
    out->bytes = (size_t)(end - begin);
    return 0;
}

static int read_entry(const struct reader *r, struct raw_table *t, struct lk_arena *mem, const char *name, const json_t *v)
{
    if (!json_is_object(v))
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected an object, found %s", r->file, name, lk__json_kind(v));
    struct raw_tensor x = {.file = r->file, .name = lk_arena_strndup(mem, name, strlen(name))};
    if (!x.name) return lk_fail(r->e, LK_ENOMEM, "%s: no memory for the tensor names", r->file);
    const char *dt = json_string_value(json_object_get(v, "dtype"));
    x.dtype = dt ? lk_dtype_find(dt) : LK_DT_NONE;
    if (!x.dtype)
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: dtype: expected one of BF16, F16, F32, F8_E4M3, U8, I8, I32, ..., found %s", r->file,
                       name, dt ? dt : lk__json_kind(json_object_get(v, "dtype")));
    size_t elements, want;
    int rc = read_shape(r, name, json_object_get(v, "shape"), &x, &elements);
    if (!rc) rc = read_range(r, name, json_object_get(v, "data_offsets"), &x);
    if (rc) return rc;
    char shape[160];
    if (lk_mul_size(elements, lk_dtype_bytes(x.dtype), &want) || want != x.bytes)
        return lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected %zu bytes for %s %s, found %zu", r->file, name,
                       elements * lk_dtype_bytes(x.dtype), dt, lk__raw_shape(&x, shape, sizeof shape), x.bytes);
    return lk__raw_add(t, &x, r->e);
}

static int by_offset(const void *a, const void *b)
{
    const struct raw_tensor *x = *(struct raw_tensor *const *)a, *y = *(struct raw_tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The data of tensors first..t->n must tile the data part of the file. */
static int check_tiling(const struct reader *r, const struct raw_table *t, size_t first)
{
    size_t n = t->n - first;
    struct raw_tensor **order = lk_reallocarray(NULL, n ? n : 1, sizeof *order);
    if (!order) return lk_fail(r->e, LK_ENOMEM, "%s: no memory to check %zu tensors", r->file, n);
    for (size_t i = 0; i < n; i++) order[i] = &t->v[first + i];
    qsort(order, n, sizeof *order, by_offset);
    size_t at = 0;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        size_t begin = (size_t)(order[i]->data - r->base);
        if (begin < at)
            rc = lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected to begin at byte %zu, found %zu: it overlaps tensor %s", r->file,
                         order[i]->name, at, begin, order[i - 1]->name);
        else if (begin > at)
            rc = lk_fail(r->e, LK_EINPUT, "%s: tensor %s: expected to begin at byte %zu, found %zu: a hole in the data", r->file,
                         order[i]->name, at, begin);
        at = begin + order[i]->bytes;
    }
    if (!rc && at != r->room)
        rc = lk_fail(r->e, LK_EINPUT, "%s: expected %zu data bytes after the header, found %zu", r->file, at, r->room);
    lk_free(order);
    return rc;
}

int lk__safetensors_read(struct raw_table *t, struct lk_arena *mem, const unsigned char *data, size_t size, const char *file,
                         struct lk_err *e)
{
    if (size < 8) return lk_fail(e, LK_EINPUT, "%s: expected a safetensors file of at least 8 bytes, found %zu", file, size);
    uint64_t len = lk_get64(data);
    if (!len) return lk_fail(e, LK_EINPUT, "%s: header length: expected more than 0, found 0 (not a safetensors file?)", file);
    if (len > size - 8)
        return lk_fail(e, LK_EINPUT, "%s: header length: expected at most %zu (the rest of the file), found %" PRIu64, file, size - 8, len);
    if (len > LK_ST_HEADER_MAX)
        return lk_fail(e, LK_EINPUT, "%s: header length: expected at most %u, found %" PRIu64, file, LK_ST_HEADER_MAX, len);
    json_t *root;
    int rc = lk__json_object(&root, (const char *)data + 8, (size_t)len, file, e);
    if (rc) return rc;
    struct reader r = {file, data + 8 + len, size - 8 - (size_t)len, e};
    size_t first = t->n;
    const char *name;
    json_t *v;
    json_object_foreach(root, name, v)
    {
        if (!rc && strcmp(name, "__metadata__")) rc = read_entry(&r, t, mem, name, v);
    }
    json_decref(root);
    return rc ? rc : check_tiling(&r, t, first);
}
