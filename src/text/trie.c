/* The vocabulary as a tree of bytes: see trie.h. */
#include "text/trie.h"

#include "base/mem.h"
#include "text/repeat.h"
#include "text/span.h"
#include "text/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

struct word {
    const char *p;
    uint32_t len;
    int32_t id;
};

static int word_cmp(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->len < y->len ? x->len : y->len);
    if (c) return c;
    return x->len != y->len ? (x->len < y->len ? -1 : 1) : x->id - y->id;
}

/* Sorted words -> nodes in preorder; open[] is the path to the last word. */
static void trie_fill(struct lk_trie *t, const struct word *w, size_t n)
{
    int32_t open[LK_TRIE_DEPTH + 1];
    uint32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t keep = 0;
        while (i && keep < depth && keep < w[i].len && w[i].p[keep] == w[i - 1].p[keep]) keep++;
        while (depth > keep) t->nodes[open[--depth]].end = t->n_nodes;
        for (; depth < w[i].len; depth++) {
            open[depth] = t->n_nodes;
            t->nodes[t->n_nodes++] = (struct lk_trie_node){0, -1, (uint8_t)w[i].p[depth]};
        }
        struct lk_trie_node *last = &t->nodes[open[depth - 1]];
        if (last->token >= 0) t->same[w[i].id] = last->token;
        last->token = w[i].id;
    }
    while (depth) t->nodes[open[--depth]].end = t->n_nodes;
}

struct lk_trie *lk__trie_new(const struct lk_tokenizer *tok)
{
    int32_t n_ids = lk_tokenizer_vocab(tok);
    size_t n = 0, bytes = 0;
    struct lk_trie *t = lk_calloc(1, sizeof *t);
    struct word *w = lk_reallocarray(NULL, (size_t)n_ids + 1, sizeof *w);
    for (int32_t id = 0; w && id < n_ids; id++) {
        size_t len;
        const char *p = lk_tokenizer_bytes(tok, id, &len);
        if (!p || !len || len > LK_TRIE_DEPTH || lk_tokenizer_is_special(tok, id)) continue;
        w[n++] = (struct word){p, (uint32_t)len, id};
        bytes += len;
    }
    if (t && w) {
        qsort(w, n, sizeof *w, word_cmp);
        t->n_tokens = n_ids;
        t->same = lk_reallocarray(NULL, (size_t)n_ids + 1, sizeof *t->same);
        t->nodes = bytes < INT32_MAX ? lk_reallocarray(NULL, bytes + 1, sizeof *t->nodes) : NULL;
    }
    if (!t || !w || !t->same || !t->nodes) {
        lk_free(w);
        lk__trie_free(t);
        return NULL;
    }
    memset(t->same, 0xff, ((size_t)n_ids + 1) * sizeof *t->same);
    trie_fill(t, w, n);
    lk_free(w);
    struct lk_trie_node *fit = lk_reallocarray(t->nodes, (size_t)t->n_nodes + 1,
                                               sizeof *fit); /* shared prefixes give half back */
    if (fit) t->nodes = fit;
    for (int k = 0; k < LK_SPANS; k++) lk__span_make(&t->span[k], (enum lk_span)k);
    return t;
}

void lk__trie_free(struct lk_trie *t)
{
    if (!t) return;
    for (int k = 0; k < LK_SPANS; k++) {
        for (int s = 0; s < LK_SPAN_STATES; s++) {
            lk_free(t->profile[k][s].bits);
            lk_free(t->profile[k][s].inside);
            lk_free(t->profile[k][s].exits);
            lk_free(t->profile[k][s].by_node);
        }
    }
    for (int i = 0; i < LK_RUNS_KEPT; i++) lk__run_free(t->run[i]);
    lk__run_free(t->string);
    lk_free(t->nodes);
    lk_free(t->same);
    lk_free(t);
}

/* Walks the tree with the span's automaton. A character counts when it begins: a token that ends
 * inside one needs it. */
struct profile_walk {
    const struct lk_trie *t;
    const struct lk_span_automaton *a;
    struct lk_span_profile *p;
    uint16_t *chars; /* by token; 0xffff: not inside */
    size_t n_by_node;
};

static void walk(struct profile_walk *w, int32_t from, int32_t to, int state, int done, int depth)
{
    for (int32_t i = from; i < to; i = w->t->nodes[i].end) {
        const struct lk_trie_node *n = &w->t->nodes[i];
        int s = w->a->next[state][n->byte], k = done;
        if (s == LK_SPAN_DEAD) continue;
        if (s == LK_SPAN_EXIT) {
            if (w->p->exits) w->p->exits[w->p->n_exits] = (struct lk_span_exit){i, k, depth};
            w->p->n_exits++;
            continue;
        }
        k += s == 0;
        int32_t id = w->chars ? n->token : -1;
        for (; id >= 0; id = w->t->same[id]) {
            w->chars[id] = (uint16_t)(k + (s != 0));
            if (w->p->by_node) w->p->by_node[w->n_by_node++] = (struct lk_span_inside){i, id};
        }
        walk(w, i + 1, n->end, s, k, depth + 1);
    }
}

int lk__profile_sort(const struct lk_trie *t, struct lk_span_profile *p, const uint16_t *chars)
{
    uint32_t count[LK_TRIE_DEPTH + 2] = {0}, n = 0;
    for (int32_t id = 0; id < t->n_tokens; id++)
        if (chars[id] != 0xffff) count[chars[id]]++;
    for (int k = 0; k <= LK_TRIE_DEPTH; k++) {
        p->at[k] = n;
        n += count[k];
    }
    p->at[LK_TRIE_DEPTH + 1] = n;
    p->inside = lk_reallocarray(NULL, (size_t)n + 1, sizeof *p->inside);
    p->bits = lk_calloc(((size_t)t->n_tokens + 31) / 32 + 1, sizeof *p->bits);
    if (!p->inside || !p->bits) return LK_ENOMEM;
    memcpy(count, p->at, sizeof count);
    for (int32_t id = 0; id < t->n_tokens; id++) {
        if (chars[id] == 0xffff) continue;
        p->inside[count[chars[id]]++] = id;
        lk__bit_set(p->bits, id);
    }
    return 0;
}

static const struct lk_span_profile *profile_get(struct lk_trie *t, enum lk_span span, int state)
{
    struct lk_span_profile *p = &t->profile[span][state];
    struct profile_walk w = {t, &t->span[span], p, NULL, 0};
    int listed = span == LK_SPAN_STRING && !state;
    if (p->ready) return p;
    uint16_t *chars = lk_reallocarray(NULL, (size_t)t->n_tokens + 1, sizeof *chars);
    walk(&w, 0, t->n_nodes, state, 0, 1); /* counts the exits */
    p->exits = lk_reallocarray(NULL, p->n_exits + 1, sizeof *p->exits);
    if (listed) p->by_node = lk_reallocarray(NULL, (size_t)t->n_tokens + 1, sizeof *p->by_node);
    p->n_exits = 0;
    w.chars = chars;
    if (chars && p->exits && (p->by_node || !listed)) {
        memset(chars, 0xff, (size_t)t->n_tokens * sizeof *chars);
        walk(&w, 0, t->n_nodes, state, 0, 1);
        p->ready = !lk__profile_sort(t, p, chars);
    }
    lk_free(chars);
    if (p->ready) return p;
    lk_free(p->exits);
    lk_free(p->by_node);
    lk_free(p->inside);
    lk_free(p->bits);
    *p = (struct lk_span_profile){0};
    return NULL;
}

const struct lk_trie *lk__tokenizer_trie(const struct lk_tokenizer *t)
{
    struct lk_tokenizer *own = (struct lk_tokenizer *)t; /* immutable but for this */
    pthread_mutex_lock(&own->trie_lock);
    if (!own->trie) own->trie = lk__trie_new(t);
    pthread_mutex_unlock(&own->trie_lock);
    return own->trie;
}

const struct lk_span_profile *lk__tokenizer_profile(const struct lk_tokenizer *t, enum lk_span span,
                                                    int state)
{
    struct lk_tokenizer *own = (struct lk_tokenizer *)t;
    pthread_mutex_lock(&own->trie_lock);
    const struct lk_span_profile *p = own->trie ? profile_get(own->trie, span, state) : NULL;
    pthread_mutex_unlock(&own->trie_lock);
    return p;
}
