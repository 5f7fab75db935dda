/* Look-up drafts: see lookup.h. */
#include "runtime/lookup.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

#define CHAIN_MAX 32
#define MATCH_MAX 32

static int bits_for(int ctx)
{
    int bits = 10;
    while (bits < 18 && (1 << bits) < ctx) bits++;
    return bits;
}

size_t lk_lookup_bytes(int ctx)
{
    return (((size_t)1 << bits_for(ctx)) + (size_t)ctx) * sizeof(int32_t);
}

int lk_lookup_init(struct lk_lookup *l, int ctx)
{
    l->ctx = ctx;
    l->bits = bits_for(ctx);
    l->head = lk_calloc((size_t)1 << l->bits, sizeof *l->head);
    l->next = lk_calloc((size_t)ctx, sizeof *l->next);
    if (!l->head || !l->next) return LK_ENOMEM;
    lk_lookup_reset(l);
    return 0;
}

void lk_lookup_free(struct lk_lookup *l)
{
    lk_free(l->head);
    lk_free(l->next);
    *l = (struct lk_lookup){0};
}

void lk_lookup_reset(struct lk_lookup *l)
{
    memset(l->head, 0xff, ((size_t)1 << l->bits) * sizeof *l->head);
    l->n = 0;
}

/* slot of the gram that ends at position p */
static uint32_t gram_slot(const struct lk_lookup *l, const int32_t *ids, int p)
{
    uint64_t h = 0;
    for (int i = 0; i < LK_LOOKUP_GRAM; i++)
        h = (h + (uint64_t)(uint32_t)ids[p - i] + 1) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> (64 - l->bits));
}

void lk_lookup_add(struct lk_lookup *l, const int32_t *ids, int n)
{
    if (n > l->ctx) n = l->ctx;
    for (; l->n < n; l->n++) {
        if (l->n < LK_LOOKUP_GRAM - 1) continue;
        uint32_t s = gram_slot(l, ids, l->n);
        l->next[l->n] = l->head[s];
        l->head[s] = l->n;
    }
}

int lk_lookup_find(const struct lk_lookup *l, const int32_t *ids, int n, int max, int32_t *out, int *match_len)
{
    *match_len = 0;
    if (n < LK_LOOKUP_GRAM + 1 || n > l->n) return 0;
    int best = -1, best_len = 0, walked = 0;
    for (int p = l->head[gram_slot(l, ids, n - 1)]; p >= 0 && walked < CHAIN_MAX; p = l->next[p]) {
        if (p >= n - 1) continue; /* the end itself */
        walked++;
        int m = 0;
        while (m < MATCH_MAX && m <= p && ids[p - m] == ids[n - 1 - m]) m++;
        if (m >= LK_LOOKUP_GRAM && m > best_len) {
            best = p;
            best_len = m;
        }
    }
    if (best < 0) return 0;
    *match_len = best_len;
    int k = 0;
    while (k < max && best + 1 + k < n) {
        out[k] = ids[best + 1 + k];
        k++;
    }
    return k;
}
