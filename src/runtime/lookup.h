/* Drafts by looking back: where did the last tokens stand before, and what followed them there?
 *
 * One index a lane: the position behind every 4-gram, newest first (a hash head and a chain). Finding walks at most 32
 * chain links and takes the longest match, the newest of equals. Adding and finding allocate nothing. */
#ifndef LK_RUNTIME_LOOKUP_H
#define LK_RUNTIME_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

#define LK_LOOKUP_GRAM 4

struct lk_lookup {
    int32_t *head, *next; /* [1 << bits], [ctx]: position of the gram's last token, -1 none */
    int bits, ctx, n;     /* n: tokens indexed */
};
size_t lk_lookup_bytes(int ctx);
int lk_lookup_init(struct lk_lookup *l, int ctx); /* 0 or LK_ENOMEM */
void lk_lookup_free(struct lk_lookup *l);
void lk_lookup_reset(struct lk_lookup *l);
/* Indexes ids[l->n .. n). */
void lk_lookup_add(struct lk_lookup *l, const int32_t *ids, int n);
/* What followed the longest earlier occurrence of the last tokens of ids[0..n): up to max tokens into out; returns how many.
 * match_len: tokens that agree (capped at 32). */
int lk_lookup_find(const struct lk_lookup *l, const int32_t *ids, int n, int max, int32_t *out, int *match_len);

#endif
