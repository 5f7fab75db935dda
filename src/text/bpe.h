/* Byte-pair merging: the table of merges, and its application to one pre-token. The pair with the
 * lowest rank merges first, the leftmost among equals, until none is left. Short pieces scan an
 * array, long ones use a heap over a linked list: O(n log n), so that 200 KB of one character cost
 * what 200 KB of text cost. Knows nothing of JSON, regexes or bytes' names. */
#ifndef LK_TEXT_BPE_H
#define LK_TEXT_BPE_H

#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

struct lk_bpe_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: an empty slot */
    int32_t rank, id;
};
struct lk_bpe {
    struct lk_bpe_merge *slots;
    size_t mask; /* slots - 1, a power of two less one */
};
/* Room for n merges. A pair put twice keeps the later rank, as the reference library does. */
int lk__bpe_init(struct lk_bpe *b, size_t n);
void lk__bpe_put(struct lk_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
const struct lk_bpe_merge *lk__bpe_get(const struct lk_bpe *b, int32_t left,
                                       int32_t right); /* NULL: no such merge */
void lk__bpe_free(struct lk_bpe *b);

/* Scratch of one encode call, grown as needed. Zero-initialised is valid. */
struct lk_bpe_work {
    struct lk_bpe_node *nodes;
    struct lk_bpe_cand *heap;
    size_t n_nodes, n_heap, heap_cap;
};
void lk__bpe_work_free(struct lk_bpe_work *w);

/* Appends the ids of piece; byte_id maps a byte to its token. len < 2^31. 0 or LK_ENOMEM. */
int lk__bpe_encode(const struct lk_bpe *b, const int32_t byte_id[256], const char *piece,
                   size_t len, struct lk_bpe_work *w, struct lk_ids *out);

#endif
