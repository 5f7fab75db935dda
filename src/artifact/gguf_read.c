/* GGUF directory reader: see gguf.h. A cursor that cannot leave the file; every count is compared with the bytes that are left before
 * anything is allocated or walked. */
#include "artifact/gguf.h"

#include "base/num.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char type_bytes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const type_names[GGUF_TYPES] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64",
                                                   "f64"};

static const struct { uint32_t id; enum lk_fmt fmt; } tensor_types[] = {
    {0, LK_FMT_F32}, {1, LK_FMT_F16}, {2, LK_FMT_GG_Q4_0}, {3, LK_FMT_GG_Q4_1}, {6, LK_FMT_GG_Q5_0}, {7, LK_FMT_GG_Q5_1},
    {8, LK_FMT_GG_Q8_0}, {10, LK_FMT_GG_Q2_K}, {11, LK_FMT_GG_Q3_K}, {12, LK_FMT_GG_Q4_K}, {13, LK_FMT_GG_Q5_K}, {14, LK_FMT_GG_Q6_K},
    {16, LK_FMT_GG_IQ2_XXS}, {17, LK_FMT_GG_IQ2_XS}, {18, LK_FMT_GG_IQ3_XXS}, {20, LK_FMT_GG_IQ4_NL}, {21, LK_FMT_GG_IQ3_S},
    {22, LK_FMT_GG_IQ2_S}, {23, LK_FMT_GG_IQ4_XS}, {30, LK_FMT_BF16}, {39, LK_FMT_GG_MXFP4},
};

struct cursor {
    const unsigned char *data;
    size_t size, at;
    const char *file;
    struct lk_err *e;
};

static int take(struct cursor *c, size_t n, const char *what, const unsigned char **out)
{
    if (n > c->size - c->at)
        return lk_fail(c->e, LK_EINPUT, "%s: %s at byte %zu: expected %zu bytes, found %zu to the end of the file", c->file, what, c->at, n,
                       c->size - c->at);
    *out = c->data + c->at;
    c->at += n;
    return 0;
}

static int take_u32(struct cursor *c, const char *what, uint32_t *v)
{
    const unsigned char *p = NULL;
    int rc = take(c, 4, what, &p);
    if (!rc) *v = lk_get32(p);
    return rc;
}

static int take_u64(struct cursor *c, const char *what, uint64_t *v)
{
    const unsigned char *p = NULL;
    int rc = take(c, 8, what, &p);
    if (!rc) *v = lk_get64(p);
    return rc;
}

static int take_string(struct cursor *c, const char *what, const unsigned char **s, uint64_t *n)
{
    int rc = take_u64(c, what, n);
    if (rc) return rc;
    if (*n > c->size - c->at)
        return lk_fail(c->e, LK_EINPUT, "%s: %s at byte %zu: string length: expected at most %zu (the rest of the file), found %" PRIu64, c->file,
                       what, c->at - 8, c->size - c->at, *n);
    return take(c, (size_t)*n, what, s);
}

/* A name into the arena; NULs and emptiness are refused. */
static int take_name(struct cursor *c, struct lk_arena *mem, const char *what, const char **out)
{
    const unsigned char *s = NULL;
    uint64_t n = 0;
    int rc = take_string(c, what, &s, &n);
    if (rc) return rc;
    if (!n || n > 512 || memchr(s, 0, (size_t)n))
        return lk_fail(c->e, LK_EINPUT, "%s: %s at byte %zu: expected a name of 1 to 512 bytes, found %" PRIu64 " bytes", c->file, what,
                       c->at - (size_t)n, n);
    *out = lk_arena_strndup(mem, (const char *)s, (size_t)n);
    return *out ? 0 : lk_fail(c->e, LK_ENOMEM, "%s: no memory for names", c->file);
}

static int take_array(struct cursor *c, struct gguf_value *v)
{
    uint32_t of = 0;
    int rc = take_u32(c, v->key, &of);
    if (!rc) rc = take_u64(c, v->key, &v->n);
    if (rc) return rc;
    if (of >= GGUF_TYPES || of == GGUF_ARRAY)
        return lk_fail(c->e, LK_EINPUT, "%s: key %s: array element type: expected a number or string type, found %u", c->file, v->key, of);
    v->of = (enum gguf_type)of;
    size_t least = of == GGUF_STRING ? 8 : type_bytes[of], bytes;
    if (v->n > (c->size - c->at) / least)
        return lk_fail(c->e, LK_EINPUT, "%s: key %s: array length: expected at most %zu (the rest of the file), found %" PRIu64, c->file, v->key,
                       (c->size - c->at) / least, v->n);
    v->at = c->data + c->at;
    if (of != GGUF_STRING) {
        bytes = (size_t)v->n * least;
        return take(c, bytes, v->key, &v->at);
    }
    const unsigned char *s = NULL;
    uint64_t n = 0;
    for (uint64_t i = 0; i < v->n && !rc; i++) rc = take_string(c, v->key, &s, &n);
    return rc;
}

static int take_value(struct cursor *c, struct gguf_file *g, struct lk_arena *mem, size_t i)
{
    struct gguf_value *v = &g->kv[i];
    uint32_t type = 0, at = (uint32_t)i;
    int rc = take_name(c, mem, "key", &v->key);
    if (!rc) rc = take_u32(c, v->key, &type);
    if (rc) return rc;
    if (type >= GGUF_TYPES)
        return lk_fail(c->e, LK_EINPUT, "%s: key %s: value type: expected 0 to %d, found %u", c->file, v->key, GGUF_TYPES - 1, type);
    v->type = (enum gguf_type)type;
    v->n = 1;
    if (type == GGUF_ARRAY)
        rc = take_array(c, v);
    else if (type == GGUF_STRING)
        rc = take_string(c, v->key, &v->at, &v->n);
    else
        rc = take(c, type_bytes[type], v->key, &v->at);
    if (rc) return rc;
    int had = lk__names_put(&g->keys, v->key, &at);
    if (had < 0) return lk_fail(c->e, LK_ENOMEM, "%s: no memory for keys", c->file);
    if (had) return lk_fail(c->e, LK_EINPUT, "%s: key %s: expected once, found twice", c->file, v->key);
    return 0;
}

static int read_alignment(const struct gguf_file *g, size_t *out, struct lk_err *e)
{
    const struct gguf_value *v = lk__gguf_find(g, "general.alignment");
    *out = 32;
    if (!v) return 0;
    if (v->type != GGUF_U32)
        return lk_fail(e, LK_EINPUT, "%s: key general.alignment: expected u32, found %s", g->file, type_names[v->type]);
    uint32_t a = lk_get32(v->at);
    if (a < 8 || a > 65536 || (a & (a - 1)))
        return lk_fail(e, LK_EINPUT, "%s: key general.alignment: expected a power of two from 8 to 65536, found %u", g->file, a);
    *out = a;
    return 0;
}

static int tensor_shape(struct cursor *c, struct raw_tensor *r, uint32_t type, size_t *bytes)
{
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++)
        if (tensor_types[i].id == type) r->fmt = tensor_types[i].fmt;
    if (!r->fmt) return lk_fail(c->e, LK_EINPUT, "%s: tensor %s: type: expected one that laoka reads, found number %u", c->file, r->name, type);
    const struct lk_fmt_info *f = lk_fmt_info(r->fmt);
    size_t block = f->block ? (size_t)f->block : 1, per = f->block ? (size_t)f->block_bytes : r->fmt == LK_FMT_F32 ? 4 : 2, n = 1;
    for (int i = 0; i < r->n_dims; i++)
        if (lk_mul_size(n, (size_t)r->dims[i], &n) || n > (size_t)INT64_MAX / 8)
            return lk_fail(c->e, LK_EINPUT, "%s: tensor %s: the product of its dimensions does not fit 64 bits", c->file, r->name);
    if ((size_t)r->dims[r->n_dims - 1] % block)
        return lk_fail(c->e, LK_EINPUT, "%s: tensor %s: row length: expected a multiple of %zu (%s), found %" PRId64, c->file, r->name, block,
                       f->name, r->dims[r->n_dims - 1]);
    return lk_mul_size(n / block, per, bytes)
               ? lk_fail(c->e, LK_EINPUT, "%s: tensor %s: its bytes do not fit 64 bits", c->file, r->name)
               : 0;
}

/* data points at the offset for now; the data part's begin is known only after the last entry. */
static int take_tensor(struct cursor *c, struct raw_table *t, struct lk_arena *mem, size_t align)
{
    struct raw_tensor r = {.file = c->file};
    uint32_t dims = 0, type = 0;
    uint64_t d = 0, offset = 0;
    int rc = take_name(c, mem, "tensor name", &r.name);
    if (!rc) rc = take_u32(c, r.name, &dims);
    if (rc) return rc;
    if (dims < 1 || dims > 4)
        return lk_fail(c->e, LK_EINPUT, "%s: tensor %s: dimensions: expected 1 to 4, found %u", c->file, r.name, dims);
    r.n_dims = (int)dims;
    for (int i = r.n_dims - 1; i >= 0 && !rc; i--) { /* GGUF lists the fastest first */
        rc = take_u64(c, r.name, &d);
        if (!rc && (d < 1 || d > (uint64_t)INT64_MAX))
            rc = lk_fail(c->e, LK_EINPUT, "%s: tensor %s: dimension %d: expected 1 or more, found %" PRIu64, c->file, r.name, r.n_dims - 1 - i, d);
        r.dims[i] = (int64_t)d;
    }
    if (!rc) rc = take_u32(c, r.name, &type);
    if (!rc) rc = take_u64(c, r.name, &offset);
    if (!rc) rc = tensor_shape(c, &r, type, &r.bytes);
    if (rc) return rc;
    if (offset % align || offset > c->size)
        return lk_fail(c->e, LK_EINPUT, "%s: tensor %s: offset: expected a multiple of %zu inside the file, found %" PRIu64, c->file, r.name,
                       align, offset);
    r.data = c->data + offset;
    return lk__raw_add(t, &r, c->e);
}

static int by_data(const void *a, const void *b)
{
    const struct raw_tensor *x = *(struct raw_tensor *const *)a, *y = *(struct raw_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* Moves offsets to addresses and proves that ranges lie in the file and apart. */
static int place_tensors(struct cursor *c, struct raw_table *t, size_t first, size_t align)
{
    size_t base = (c->at + align - 1) / align * align, n = t->n - first;
    if (base > c->size && n) return lk_fail(c->e, LK_EINPUT, "%s: expected tensor data from byte %zu, found the end at %zu", c->file, base, c->size);
    struct raw_tensor **order = lk_reallocarray(NULL, n ? n : 1, sizeof *order);
    if (!order) return lk_fail(c->e, LK_ENOMEM, "%s: no memory to check %zu tensors", c->file, n);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        struct raw_tensor *r = order[i] = &t->v[first + i];
        size_t offset = (size_t)(r->data - c->data), room = c->size - base;
        if (offset > room || r->bytes > room - offset)
            rc = lk_fail(c->e, LK_EINPUT, "%s: tensor %s: expected %zu bytes at offset %zu, found %zu bytes of data (short file?)", c->file,
                         r->name, r->bytes, offset, room);
        else
            r->data = c->data + base + offset;
    }
    if (!rc) qsort(order, n, sizeof *order, by_data);
    for (size_t i = 1; i < n && !rc; i++)
        if (order[i]->data < order[i - 1]->data + order[i - 1]->bytes)
            rc = lk_fail(c->e, LK_EINPUT, "%s: tensor %s: expected data of its own, found it overlaps tensor %s", c->file, order[i]->name,
                         order[i - 1]->name);
    lk_free(order);
    return rc;
}

int lk__gguf_read(struct gguf_file *g, struct raw_table *t, struct lk_arena *mem, const unsigned char *data, size_t size, const char *file,
                  struct lk_err *e)
{
    struct cursor c = {data, size, 0, file, e};
    const unsigned char *magic = NULL;
    uint32_t version = 0;
    uint64_t n_kv = 0;
    size_t align = 32, first = t->n;
    *g = (struct gguf_file){.file = file};
    int rc = take(&c, 4, "magic", &magic);
    if (!rc && memcmp(magic, "GGUF", 4)) rc = lk_fail(e, LK_EINPUT, "%s: expected the magic GGUF, found other bytes", file);
    if (!rc) rc = take_u32(&c, "version", &version);
    if (!rc && version != 2 && version != 3) rc = lk_fail(e, LK_EINPUT, "%s: version: expected 2 or 3, found %u", file, version);
    if (!rc) rc = take_u64(&c, "tensor count", &g->n_tensors);
    if (!rc) rc = take_u64(&c, "key count", &n_kv);
    if (rc) return rc;
    if (n_kv > (size - c.at) / 13) /* the least key: length, one byte, type */
        return lk_fail(e, LK_EINPUT, "%s: key count: expected at most %zu, found %" PRIu64, file, (size - c.at) / 13, n_kv);
    g->kv = lk_calloc((size_t)n_kv ? (size_t)n_kv : 1, sizeof *g->kv);
    if (!g->kv) return lk_fail(e, LK_ENOMEM, "%s: no memory for %" PRIu64 " keys", file, n_kv);
    for (; g->n_kv < n_kv && !rc; g->n_kv += !rc) rc = take_value(&c, g, mem, g->n_kv);
    if (!rc) rc = read_alignment(g, &align, e);
    if (!rc && g->n_tensors > (size - c.at) / 33) /* the least entry: name of one byte, one dimension */
        rc = lk_fail(e, LK_EINPUT, "%s: tensor count: expected at most %zu, found %" PRIu64, file, (size - c.at) / 33, g->n_tensors);
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++) rc = take_tensor(&c, t, mem, align);
    return rc ? rc : place_tensors(&c, t, first, align);
}

void lk__gguf_free(struct gguf_file *g)
{
    lk_free(g->kv);
    lk__names_free(&g->keys);
    *g = (struct gguf_file){0};
}

const struct gguf_value *lk__gguf_find(const struct gguf_file *g, const char *key)
{
    uint32_t i;
    return lk__names_get(&g->keys, key, &i) ? &g->kv[i] : NULL;
}

/* 1 when the type is a whole number. */
static int whole_at(enum gguf_type type, const unsigned char *p, int64_t *v)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: *v = *p; return 1;
    case GGUF_I8: *v = (int8_t)*p; return 1;
    case GGUF_U16: *v = lk_get16(p); return 1;
    case GGUF_I16: *v = (int16_t)lk_get16(p); return 1;
    case GGUF_U32: *v = lk_get32(p); return 1;
    case GGUF_I32: *v = (int32_t)lk_get32(p); return 1;
    case GGUF_U64: *v = lk_get64(p) > INT64_MAX ? INT64_MAX : (int64_t)lk_get64(p); return 1;
    case GGUF_I64: *v = (int64_t)lk_get64(p); return 1;
    default: return 0;
    }
}

int lk__gguf_int(const struct gguf_file *g, const char *key, int64_t lo, int64_t hi, int64_t *out, struct lk_err *e)
{
    const struct gguf_value *v = lk__gguf_find(g, key);
    if (!v) return 0;
    enum gguf_type type = v->type == GGUF_ARRAY ? v->of : v->type;
    int64_t best = INT64_MIN, x;
    for (uint64_t i = 0; i < v->n && whole_at(type, v->at + i * type_bytes[type], &x); i++)
        if (x > best) best = x;
    if (best == INT64_MIN)
        return lk_fail(e, LK_EINPUT, "%s: key %s: expected a whole number, found %s", g->file, key, type_names[v->type]);
    if (best < lo || best > hi)
        return lk_fail(e, LK_EINPUT, "%s: key %s: expected %" PRId64 " to %" PRId64 ", found %" PRId64, g->file, key, lo, hi, best);
    *out = best;
    return 0;
}

int lk__gguf_real(const struct gguf_file *g, const char *key, double *out, struct lk_err *e)
{
    const struct gguf_value *v = lk__gguf_find(g, key);
    if (!v) return 0;
    if (v->type != GGUF_F32) return lk_fail(e, LK_EINPUT, "%s: key %s: expected f32, found %s", g->file, key, type_names[v->type]);
    *out = (double)lk_f32_from_bits(lk_get32(v->at));
    if (*out - *out != 0) return lk_fail(e, LK_EINPUT, "%s: key %s: expected a finite number, found %g", g->file, key, *out);
    return 0;
}

const struct gguf_value *lk__gguf_array(const struct gguf_file *g, const char *key, enum gguf_type of, struct lk_err *e)
{
    const struct gguf_value *v = lk__gguf_find(g, key);
    if (!v || v->type != GGUF_ARRAY || v->of != of) {
        lk_fail(e, LK_EINPUT, "%s: key %s: expected an array of %s, found %s%s", g->file, key, type_names[of],
                !v ? "nothing" : v->type == GGUF_ARRAY ? "an array of " : "", !v ? "" : type_names[v->type == GGUF_ARRAY ? v->of : v->type]);
        return NULL;
    }
    return v;
}

const char *lk__gguf_string(const unsigned char **at, uint64_t *len)
{
    *len = lk_get64(*at);
    const char *s = (const char *)*at + 8;
    *at += 8 + *len;
    return s;
}
