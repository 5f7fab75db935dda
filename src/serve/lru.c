/* A hash of chains and one list in order of use. */
#include "serve/lru.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

#define BUCKETS 1024

struct item {
    struct item *chain, *newer, *older;
    void *value;
    size_t bytes;
    char key[];
};

struct lk_lru {
    struct item *bucket[BUCKETS], *newest, *oldest;
    size_t n, bytes, max_items, max_bytes;
    void (*free_item)(void *);
};

struct lk_lru *lk_lru_new(size_t max_items, size_t max_bytes, void (*free_item)(void *item))
{
    struct lk_lru *s = lk_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->max_items = max_items;
    s->max_bytes = max_bytes;
    s->free_item = free_item;
    return s;
}

static struct item **slot(struct lk_lru *s, const char *key)
{
    struct item **p = &s->bucket[XXH64(key, strlen(key), 0) % BUCKETS];
    while (*p && strcmp((*p)->key, key)) p = &(*p)->chain;
    return p;
}

static void unlink_use(struct lk_lru *s, struct item *it)
{
    *(it->newer ? &it->newer->older : &s->newest) = it->older;
    *(it->older ? &it->older->newer : &s->oldest) = it->newer;
}

static void link_use(struct lk_lru *s, struct item *it)
{
    it->newer = NULL;
    it->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = it;
    s->newest = it;
}

int lk_lru_drop(struct lk_lru *s, const char *key)
{
    struct item **p = slot(s, key), *it = *p;
    if (!it) return 0;
    *p = it->chain;
    unlink_use(s, it);
    s->n--;
    s->bytes -= it->bytes;
    s->free_item(it->value);
    lk_free(it);
    return 1;
}

int lk_lru_put(struct lk_lru *s, const char *key, void *value, size_t bytes)
{
    size_t len = strlen(key);
    struct item *it = bytes <= s->max_bytes ? lk_calloc(1, sizeof *it + len + 1) : NULL;
    if (!it) {
        s->free_item(value);
        return LK_ENOMEM;
    }
    lk_lru_drop(s, key);
    while (s->oldest && (s->n >= s->max_items || s->bytes + bytes > s->max_bytes)) lk_lru_drop(s, s->oldest->key);
    memcpy(it->key, key, len + 1);
    it->value = value;
    it->bytes = bytes;
    struct item **p = slot(s, key);
    *p = it;
    link_use(s, it);
    s->n++;
    s->bytes += bytes;
    return 0;
}

void *lk_lru_get(struct lk_lru *s, const char *key)
{
    struct item *it = *slot(s, key);
    if (!it) return NULL;
    unlink_use(s, it);
    link_use(s, it);
    return it->value;
}

size_t lk_lru_count(const struct lk_lru *s) { return s->n; }

void lk_lru_free(struct lk_lru *s)
{
    if (!s) return;
    while (s->oldest) lk_lru_drop(s, s->oldest->key);
    lk_free(s);
}
