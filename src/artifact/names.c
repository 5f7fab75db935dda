/* Tables by name: the map from names to indices and the list of raw tensors (see store.h). */
#include "artifact/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static size_t slot_of(const struct name_map *m, const char *key)
{
    size_t i = (size_t)XXH64(key, strlen(key), 0) & (m->cap - 1);
    while (m->slots[i].key && strcmp(m->slots[i].key, key)) i = (i + 1) & (m->cap - 1);
    return i;
}

static int names_grow(struct name_map *m)
{
    struct name_map big = {.cap = m->cap ? m->cap * 2 : 256};
    big.slots = lk_calloc(big.cap, sizeof *big.slots);
    if (!big.slots) return LK_ENOMEM;
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].key) big.slots[slot_of(&big, m->slots[i].key)] = m->slots[i];
    big.n = m->n;
    lk_free(m->slots);
    *m = big;
    return 0;
}

int lk__names_put(struct name_map *m, const char *key, uint32_t *value)
{
    if (m->n * 2 >= m->cap && names_grow(m)) return LK_ENOMEM;
    size_t i = slot_of(m, key);
    if (m->slots[i].key) {
        *value = m->slots[i].value;
        return 1;
    }
    m->slots[i].key = key;
    m->slots[i].value = *value;
    m->n++;
    return 0;
}

int lk__names_get(const struct name_map *m, const char *key, uint32_t *value)
{
    if (!m->cap) return 0;
    size_t i = slot_of(m, key);
    if (!m->slots[i].key) return 0;
    *value = m->slots[i].value;
    return 1;
}

void lk__names_free(struct name_map *m)
{
    lk_free(m->slots);
    *m = (struct name_map){0};
}

int lk__raw_add(struct raw_table *t, const struct raw_tensor *r, struct lk_err *e)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        struct raw_tensor *v = lk_reallocarray(t->v, cap, sizeof *v);
        if (!v) return lk_fail(e, LK_ENOMEM, "%s: no memory for %zu tensor entries", r->file, cap);
        t->v = v;
        t->cap = cap;
    }
    uint32_t i = (uint32_t)t->n;
    int rc = lk__names_put(&t->names, r->name, &i);
    if (rc < 0) return lk_fail(e, LK_ENOMEM, "%s: no memory for the tensor names", r->file);
    if (rc > 0)
        return lk_fail(e, LK_EINPUT, "%s: tensor %s: expected in one file, found also in %s", r->file, r->name, t->v[i].file);
    t->v[t->n++] = *r;
    return 0;
}

struct raw_tensor *lk__raw_find(const struct raw_table *t, const char *name)
{
    uint32_t i;
    return lk__names_get(&t->names, name, &i) ? &t->v[i] : NULL;
}

void lk__raw_free(struct raw_table *t)
{
    lk_free(t->v);
    lk__names_free(&t->names);
    *t = (struct raw_table){0};
}

int64_t lk__raw_count(const struct raw_tensor *r)
{
    int64_t n = 1;
    for (int i = 0; i < r->n_dims; i++) n *= r->dims[i];
    return n;
}

const char *lk__raw_shape(const struct raw_tensor *r, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int i = 0; i < r->n_dims && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId64, i ? ", " : "", r->dims[i]);
    if (n < cap) snprintf(buf + n, cap - n, "]");
    return buf;
}
