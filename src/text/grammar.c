/* Masks, and tokens accepted and taken back: see grammar.h. */
#include "text/grammar.h"

#include "base/mem.h"
#include "text/states.h"
#include "text/tokenizer_int.h"

#include <string.h>

enum {
    PAST = 256,   /* accepted tokens that can be taken back: drafts are at most 7 */
    CACHED = 48,  /* masks kept: 31 KB each at 248k tokens */
    WORTH = 4000, /* tree nodes a mask must have visited to be kept: below, it is made anew in
                     microseconds */
    SETS_MAX = 1 << 19,
    EDGES_MAX = 1 << 21,
    ENDED = -2, /* a stop token was accepted */
};
#define WORK_MAX                                                                                   \
    50000000u /* threads touched in one mask: half a second; a schema past it is refused, not      \
                 waited for */

struct lk_gram {
    struct lk_syntax syn;
    struct lk_states st;
    const struct lk_tokenizer *tok;
    const struct lk_trie *trie;
    int32_t *stops;
    int n_stops;
    int32_t now, past[PAST];
    size_t n_accepted; /* past[(n_accepted - 1) % PAST] is the state before the last token */
    size_t words;
    uint32_t *mask, *tmp; /* of all tokens */
    struct {
        int32_t set;
        uint32_t *bits;
    } cached[CACHED];
    size_t next_cached;
    uint64_t visited;
};

struct lk_gram *lk_gram_new(struct lk_syntax *s, const struct lk_tokenizer *t,
                            const int32_t *stop_ids, int n_stop_ids, struct lk_err *e)
{
    struct lk_gram *g = lk_calloc(1, sizeof *g);
    struct lk_syntax taken = *s;
    *s = (struct lk_syntax){0};
    if (!g) {
        lk__syn_free(&taken);
        lk_fail(e, LK_ENOMEM, "no memory for a grammar");
        return NULL;
    }
    g->syn = taken;
    g->tok = t;
    if (lk__syn_check(&g->syn, e)) goto out;
    g->trie = lk__tokenizer_trie(t);
    g->words = ((size_t)lk_tokenizer_vocab(t) + 31) / 32;
    g->mask = lk_calloc(g->words + 1, sizeof *g->mask);
    g->tmp = lk_calloc(g->words + 1, sizeof *g->tmp);
    g->stops = lk_calloc((size_t)n_stop_ids + 1, sizeof *g->stops);
    if (!g->trie || !g->mask || !g->tmp || !g->stops || lk__states_init(&g->st, &g->syn, g->trie))
        goto out;
    if (n_stop_ids) memcpy(g->stops, stop_ids, (size_t)n_stop_ids * sizeof *g->stops);
    g->n_stops = n_stop_ids;
    for (int i = 0; i < CACHED; i++) g->cached[i].set = LK_STATE_DEAD;
    g->now = lk__states_at(&g->st, g->syn.root, 0);
    if (g->now >= 0) return g;
out:
    lk_fail(e, LK_ENOMEM, "no memory for a grammar");
    lk_gram_free(g);
    return NULL;
}

void lk_gram_free(void *self)
{
    struct lk_gram *g = self;
    if (!g) return;
    for (int i = 0; i < CACHED; i++) lk_free(g->cached[i].bits);
    lk_free(g->mask);
    lk_free(g->tmp);
    lk_free(g->stops);
    lk__states_free(&g->st);
    lk__syn_free(&g->syn);
    lk_free(g);
}

/* ---- masks ---- */

static void token_set(struct lk_gram *g, int32_t id)
{
    for (; id >= 0; id = g->trie->same[id]) lk__bit_set(g->mask, id);
}

static void walk(struct lk_gram *g, int32_t from, int32_t to, int32_t set)
{
    uint32_t bytes[8]; /* a copy: the array of sets may move */
    memcpy(bytes, g->st.sets[set].bytes, sizeof bytes);
    for (int32_t i = from; i < to; i = g->trie->nodes[i].end) {
        const struct lk_trie_node *n = &g->trie->nodes[i];
        g->visited++;
        if (!(bytes[n->byte >> 5] >> (n->byte & 31) & 1)) continue;
        int32_t next = lk__states_step(&g->st, set, n->byte);
        if (next < 0 || g->st.work > WORK_MAX) continue;
        if (n->token >= 0) token_set(g, n->token);
        if (n->end > i + 1) walk(g, i + 1, n->end, next);
    }
}

/* Tokens that stay inside the span and keep its limit. */
static void span_inside(struct lk_gram *g, const struct lk_span_profile *p, uint32_t room)
{
    const uint32_t *from = p->bits;
    uint32_t fit = room > LK_TRIE_DEPTH ? p->at[LK_TRIE_DEPTH + 1] : p->at[room + 1],
             all = p->at[LK_TRIE_DEPTH + 1];
    if (fit < all / 2) { /* name those that fit, or strike those that do not */
        for (uint32_t i = 0; i < fit; i++) lk__bit_set(g->mask, p->inside[i]);
        return;
    }
    if (fit < all) {
        memcpy(g->tmp, p->bits, g->words * sizeof *g->tmp);
        for (uint32_t i = fit; i < all; i++)
            g->tmp[p->inside[i] >> 5] &= ~(1u << (p->inside[i] & 31));
        from = g->tmp;
    }
    for (size_t i = 0; i < g->words; i++) g->mask[i] |= from[i];
}

static void span_mask(struct lk_gram *g, const struct lk_thread t)
{
    const struct lk_node *n = &g->syn.nodes[t.node];
    uint32_t least = g->syn.limits[n->a][0], most = g->syn.limits[n->a][1];
    const struct lk_span_profile *p = lk__tokenizer_profile(g->tok, (enum lk_span)n->b, (int)t.q);
    if (!p) {
        g->st.failed = 1;
        return;
    }
    int counted = n->b == LK_SPAN_STRING;
    span_inside(g, p, !counted || most == LK_NO_LIMIT ? LK_NO_LIMIT : most - t.count);
    int32_t after = lk__states_at(&g->st, n->next, t.stack);
    if (after < 0) return;
    for (size_t i = 0; i < p->n_exits; i++) {
        uint32_t count = t.count + (uint32_t)(counted ? p->exits[i].chars : 0);
        const struct lk_trie_node *x = &g->trie->nodes[p->exits[i].node];
        if (count < least || count > most) continue;
        g->visited++;
        if (x->token >= 0) token_set(g, x->token);
        if (x->end > p->exits[i].node + 1) walk(g, p->exits[i].node + 1, x->end, after);
    }
}

static void mask_make(struct lk_gram *g)
{
    struct lk_state_set x = g->st.sets[g->now];
    memset(g->mask, 0, g->words * sizeof *g->mask);
    g->visited = 0;
    g->st.work = 0;
    for (int i = 0; x.has_end && i < g->n_stops; i++)
        if (g->stops[i] >= 0 && (size_t)g->stops[i] < g->words * 32)
            lk__bit_set(g->mask, g->stops[i]);
    for (int32_t i = 0; i < x.n && (x.has_span || x.has_token); i++) {
        const struct lk_thread t = g->st.threads[x.first + (size_t)i];
        const struct lk_node *n = &g->syn.nodes[t.node];
        if (n->kind == LK_NODE_TOKEN) lk__bit_set(g->mask, n->a);
        if (n->kind == LK_NODE_SPAN) span_mask(g, t);
    }
    int32_t rest = lk__states_rest(&g->st, g->now);
    if (rest >= 0) walk(g, 0, g->trie->n_nodes, rest);
    if (g->st.failed || g->st.work > WORK_MAX) memset(g->mask, 0, g->words * sizeof *g->mask);
}

static void mask_keep(struct lk_gram *g)
{
    size_t k = g->next_cached++ % CACHED;
    if (!g->cached[k].bits)
        g->cached[k].bits = lk_reallocarray(NULL, g->words + 1, sizeof(uint32_t));
    g->cached[k].set = g->cached[k].bits ? g->now : LK_STATE_DEAD;
    if (g->cached[k].bits) memcpy(g->cached[k].bits, g->mask, g->words * sizeof(uint32_t));
}

/* Steps are remembered for ever otherwise; a limit on memory, met by texts of megabytes only. */
static void forget(struct lk_gram *g)
{
    int32_t keep[PAST + 1];
    if (g->st.n_sets < SETS_MAX && g->st.n_edges < EDGES_MAX) return;
    memcpy(keep, g->past, sizeof g->past);
    size_t n = g->n_accepted < PAST ? g->n_accepted : PAST;
    for (size_t i = n; i < PAST; i++) keep[i] = LK_STATE_DEAD;
    keep[PAST] = g->now;
    lk__states_forget(&g->st, keep, PAST + 1);
    memcpy(g->past, keep, sizeof g->past);
    g->now = keep[PAST];
    for (int i = 0; i < CACHED; i++) g->cached[i].set = LK_STATE_DEAD;
}

int lk_gram_mask(void *self, uint32_t *bits, int vocab)
{
    struct lk_gram *g = self;
    size_t want = ((size_t)vocab + 31) / 32, have = want < g->words ? want : g->words;
    const uint32_t *from = NULL;
    memset(bits, 0, want * sizeof *bits);
    if (g->now < 0) {
        for (int i = 0; g->now == ENDED && i < g->n_stops; i++)
            if (g->stops[i] >= 0 && g->stops[i] < vocab) lk__bit_set(bits, g->stops[i]);
        return 1;
    }
    forget(g);
    if (g->now < 0) return 1;
    for (int i = 0; i < CACHED && !from; i++)
        if (g->cached[i].set == g->now) from = g->cached[i].bits;
    if (!from) {
        mask_make(g);
        from = g->mask;
        if (g->visited > WORTH && !g->st.failed) mask_keep(g);
    }
    memcpy(bits, from, have * sizeof *bits);
    if (vocab & 31) bits[want - 1] &= (1u << (vocab & 31)) - 1;
    return 1;
}

/* ---- tokens ---- */

static int is_stop(const struct lk_gram *g, int32_t id)
{
    for (int i = 0; i < g->n_stops; i++)
        if (g->stops[i] == id) return 1;
    return 0;
}

int lk_gram_accept(void *self, int32_t id)
{
    struct lk_gram *g = self;
    size_t len;
    const char *p = lk_tokenizer_bytes(g->tok, id, &len);
    int32_t to = g->now;
    if (g->now < 0) return -1;
    g->st.work = 0;
    if (is_stop(g, id)) {
        if (!g->st.sets[g->now].has_end) return -1;
        to = ENDED;
    } else if (!p || !len || len > LK_TRIE_DEPTH) {
        return -1;
    } else if (lk_tokenizer_is_special(g->tok, id)) {
        to = lk__states_token(&g->st, g->now, id);
    } else {
        for (size_t i = 0; i < len && to >= 0; i++) to = lk__states_step(&g->st, to, (uint8_t)p[i]);
    }
    if (to == LK_STATE_DEAD) return -1;
    g->past[g->n_accepted++ % PAST] = g->now;
    g->now = to;
    return 0;
}

void lk_gram_rewind(void *self, int n)
{
    struct lk_gram *g = self;
    if ((size_t)(n < 0 ? 0 : n) > g->n_accepted) n = (int)g->n_accepted;
    if (n <= 0) return;
    g->n_accepted -= (size_t)n;
    g->now = n > PAST ? LK_STATE_DEAD : g->past[g->n_accepted % PAST];
}

int lk_gram_done(const struct lk_gram *g)
{
    return g->now == ENDED || (g->now >= 0 && g->st.sets[g->now].has_end);
}
