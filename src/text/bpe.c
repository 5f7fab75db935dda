/* Byte-pair merging: see bpe.h. */
#include "text/bpe.h"

#include "base/mem.h"

#include <string.h>

enum {
    SHORT = 32
}; /* pieces up to this many bytes (nearly all) are merged by scanning; no set-up, all in registers
      and L1 */

struct lk_bpe_node {
    int32_t id, prev, next; /* -1: none; id -1: merged away */
};
struct lk_bpe_cand {
    uint64_t order; /* rank << 32 | position of the left part */
    int32_t left, right, id;
};

static size_t pair_hash(uint64_t k)
{
    k *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: spreads ids that differ in low bits only */
    return (size_t)(k ^ k >> 29);
}

int lk__bpe_init(struct lk_bpe *b, size_t n)
{
    size_t cap = 16;
    while (cap < n * 2) cap *= 2;
    b->slots = lk_reallocarray(NULL, cap, sizeof *b->slots);
    if (!b->slots) return LK_ENOMEM;
    memset(b->slots, 0xff, cap * sizeof *b->slots);
    b->mask = cap - 1;
    return 0;
}

static struct lk_bpe_merge *slot_find(const struct lk_bpe *b, uint64_t pair)
{
    size_t i = pair_hash(pair) & b->mask;
    while (b->slots[i].pair != pair && b->slots[i].pair != UINT64_MAX) i = (i + 1) & b->mask;
    return &b->slots[i];
}

void lk__bpe_put(struct lk_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    *slot_find(b, pair) = (struct lk_bpe_merge){pair, rank, id};
}

const struct lk_bpe_merge *lk__bpe_get(const struct lk_bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    const struct lk_bpe_merge *m = slot_find(b, pair);
    return m->pair == pair ? m : NULL;
}

void lk__bpe_free(struct lk_bpe *b)
{
    lk_free(b->slots);
    *b = (struct lk_bpe){0};
}

void lk__bpe_work_free(struct lk_bpe_work *w)
{
    lk_free(w->nodes);
    lk_free(w->heap);
    *w = (struct lk_bpe_work){0};
}

static int encode_short(const struct lk_bpe *b, const int32_t *byte_id, const char *piece,
                        size_t len, struct lk_ids *out)
{
    int32_t id[SHORT];
    const struct lk_bpe_merge *m[SHORT]; /* m[i]: merge of id[i] and id[i+1] */
    size_t n = len;
    for (size_t i = 0; i < n; i++) id[i] = byte_id[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++) m[i] = lk__bpe_get(b, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (m[i] && (best == n || m[i]->rank < m[best]->rank)) best = i;
        if (best == n) break;
        id[best] = m[best]->id;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(m + best, m + best + 1, (n - best - 1) * sizeof *m);
        if (best > 0) m[best - 1] = lk__bpe_get(b, id[best - 1], id[best]);
        if (best + 1 < n) m[best] = lk__bpe_get(b, id[best], id[best + 1]);
    }
    for (size_t i = 0; i < n; i++)
        if (lk_ids_add(out, id[i])) return LK_ENOMEM;
    return 0;
}

static void heap_up(struct lk_bpe_cand *h, size_t i)
{
    struct lk_bpe_cand c = h[i];
    for (; i > 0 && h[(i - 1) / 2].order > c.order; i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = c;
}

static struct lk_bpe_cand heap_pop(struct lk_bpe_work *w)
{
    struct lk_bpe_cand top = w->heap[0], c = w->heap[--w->n_heap];
    size_t i = 0, n = w->n_heap;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k >= n) break;
        if (k + 1 < n && w->heap[k + 1].order < w->heap[k].order) k++;
        if (w->heap[k].order >= c.order) break;
        w->heap[i] = w->heap[k];
        i = k;
    }
    w->heap[i] = c;
    return top;
}

/* Offers the pair (pos, its next) when it has a merge. Each merge offers at most two, so the heap
 * stays below 3n. */
static int pair_offer(const struct lk_bpe *b, struct lk_bpe_work *w, int32_t pos)
{
    if (pos < 0 || w->nodes[pos].next < 0) return 0;
    int32_t l = w->nodes[pos].id, r = w->nodes[w->nodes[pos].next].id;
    const struct lk_bpe_merge *m = lk__bpe_get(b, l, r);
    if (!m) return 0;
    if (w->n_heap == w->heap_cap) {
        size_t cap = w->heap_cap ? w->heap_cap * 2 : 256;
        struct lk_bpe_cand *h = lk_reallocarray(w->heap, cap, sizeof *h);
        if (!h) return LK_ENOMEM;
        w->heap = h;
        w->heap_cap = cap;
    }
    w->heap[w->n_heap] =
        (struct lk_bpe_cand){(uint64_t)(uint32_t)m->rank << 32 | (uint32_t)pos, l, r, m->id};
    heap_up(w->heap, w->n_heap++);
    return 0;
}

static int merge_long(const struct lk_bpe *b, struct lk_bpe_work *w)
{
    while (w->n_heap) {
        struct lk_bpe_cand c = heap_pop(w);
        int32_t pos = (int32_t)(uint32_t)c.order;
        struct lk_bpe_node *left = &w->nodes[pos];
        if (left->id != c.left || left->next < 0) continue; /* overtaken by another merge */
        struct lk_bpe_node *right = &w->nodes[left->next];
        if (right->id != c.right) continue;
        left->id = c.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) w->nodes[left->next].prev = pos;
        if (pair_offer(b, w, left->prev) || pair_offer(b, w, pos)) return LK_ENOMEM;
    }
    return 0;
}

int lk__bpe_encode(const struct lk_bpe *b, const int32_t byte_id[256], const char *piece,
                   size_t len, struct lk_bpe_work *w, struct lk_ids *out)
{
    if (len <= SHORT) return encode_short(b, byte_id, piece, len, out);
    if (len > w->n_nodes) {
        struct lk_bpe_node *grown = lk_reallocarray(w->nodes, len, sizeof *grown);
        if (!grown) return LK_ENOMEM;
        w->nodes = grown;
        w->n_nodes = len;
    }
    w->n_heap = 0;
    for (size_t i = 0; i < len; i++)
        w->nodes[i] = (struct lk_bpe_node){byte_id[(unsigned char)piece[i]], (int32_t)i - 1,
                                           i + 1 < len ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i + 1 < len; i++)
        if (pair_offer(b, w, (int32_t)i)) return LK_ENOMEM;
    if (merge_long(b, w)) return LK_ENOMEM;
    for (int32_t i = 0; i >= 0; i = w->nodes[i].next)
        if (lk_ids_add(out, w->nodes[i].id)) return LK_ENOMEM;
    return 0;
}
