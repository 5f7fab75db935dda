/* Things kept by name for a while: responses for previous_response_id, sampled tool calls for exact replay. Least recently
 * used goes first, by count and by bytes. One thread. */
#ifndef LK_SERVE_LRU_H
#define LK_SERVE_LRU_H

#include <stddef.h>

struct lk_lru;

struct lk_lru *lk_lru_new(size_t max_items, size_t max_bytes, void (*free_item)(void *item));
void lk_lru_free(struct lk_lru *s);
/* Takes the item (freed on failure too). An item larger than the store is refused. 0 or LK_ENOMEM. */
int lk_lru_put(struct lk_lru *s, const char *key, void *item, size_t bytes);
void *lk_lru_get(struct lk_lru *s, const char *key); /* NULL: not there; marks it as used */
int lk_lru_drop(struct lk_lru *s, const char *key);  /* 1: was there */
size_t lk_lru_count(const struct lk_lru *s);

#endif
