/* Masks, and tokens accepted and taken back: see grammar.h. */
#include "text/grammar.h"

#include "base/mem.h"
#include "text/repeat.h"
#include "text/states.h"
#include "text/tokenizer_int.h"

#include <string.h>

enum {
    PAST = 256,   /* accepted tokens that can be taken back: drafts are at most 7 */
    CACHED = 128, /* masks kept: 31 KB each at 248k tokens */
    WORTH = 4000, /* tree nodes a mask must have visited to be kept: below, it is made anew in
                     microseconds */
    SETS_MAX = 1 << 19,
    ROWS_MAX = 1 << 23,    /* steps remembered: 32 MB */
    THREADS_MAX = 1 << 22, /* 64 MB */
    LONG_WALK = 50,        /* a walk of a 50th of the tree is worth a table */
    SKIPS = 4,             /* runs whose branches a walk leaves out */
    ENDED = -2,            /* a stop token was accepted */
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
    int32_t first, now, past[PAST];
    size_t n_accepted; /* past[(n_accepted - 1) % PAST] is the state before the last token */
    size_t words;
    uint32_t *mask, *tmp; /* of all tokens */
    struct {
        int32_t set;
        uint32_t *bits;
    } cached[CACHED];
    size_t next_cached;
    struct lk_gram_run { /* of syn.runs; by state: NULL: not asked for, or not there */
        const struct lk_run_profile **p;
        uint8_t *asked;
    } * runs;
    struct {
        const uint8_t *full;
        uint32_t room;
    } skip[SKIPS];
    int n_skips, root_done; /* root_done: string_root has set what stays inside */
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
    g->runs = lk_calloc((size_t)g->syn.n_runs + 1, sizeof *g->runs);
    if (!g->trie || !g->mask || !g->tmp || !g->stops || !g->runs ||
        lk__states_init(&g->st, &g->syn, g->trie))
        goto out;
    for (int32_t i = 0; i < g->syn.n_runs; i++) {
        g->runs[i].p = lk_calloc((size_t)g->syn.runs[i].n, sizeof *g->runs[i].p);
        g->runs[i].asked = lk_calloc((size_t)g->syn.runs[i].n, 1);
        if (!g->runs[i].p || !g->runs[i].asked) goto out;
    }
    if (n_stop_ids) memcpy(g->stops, stop_ids, (size_t)n_stop_ids * sizeof *g->stops);
    g->n_stops = n_stop_ids;
    for (int i = 0; i < CACHED; i++) g->cached[i].set = LK_STATE_DEAD;
    g->first = g->now = lk__states_at(&g->st, g->syn.root, 0);
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
    for (int32_t i = 0; g->runs && i < g->syn.n_runs; i++) {
        for (int q = 0; g->runs[i].p && q < g->syn.runs[i].n; q++)
            lk__run_give(g->tok, g->runs[i].p[q]);
        lk_free(g->runs[i].p);
        lk_free(g->runs[i].asked);
    }
    lk_free(g->runs);
    lk_free(g->mask);
    lk_free(g->tmp);
    lk_free(g->stops);
    lk__states_free(&g->st);
    lk__syn_free(&g->syn);
    lk_free(g);
}

/* ---- masks ---- */

static void string_branch(struct lk_gram *g, int32_t node, int32_t set, int depth);

/* Of records that begin with a node and are in order: the first at or behind it. */
static size_t first_at(const void *list, size_t size, size_t n, int32_t node)
{
    size_t lo = 0;
    while (lo < n) {
        size_t mid = lo + (n - lo) / 2;
        int32_t at;
        memcpy(&at, (const char *)list + mid * size, sizeof at);
        if (at < node)
            lo = mid + 1;
        else
            n = mid;
    }
    return lo;
}

static void token_set(struct lk_gram *g, int32_t id)
{
    for (; id >= 0; id = g->trie->same[id]) lk__bit_set(g->mask, id);
}

/* ---- walks ---- */

/* Are all tokens of this branch in the mask already? */
static int skipped(const struct lk_gram *g, int32_t node)
{
    for (int k = 0; k < g->n_skips; k++)
        if (g->skip[k].full[node] <= g->skip[k].room) return 1;
    return 0;
}

/* depth: bytes to this level's nodes; q: where they are in a string that began with the token, or
 * LK_SPAN_DEAD. */
static void walk(struct lk_gram *g, int32_t from, int32_t to, int32_t set, int depth, int q)
{
    struct lk_states *s = &g->st;
    for (int32_t i = from; i < to; i = g->trie->nodes[i].end) {
        const struct lk_trie_node *n = &g->trie->nodes[i];
        g->visited++;
        if (g->n_skips && skipped(g, i)) continue;
        int32_t next = s->rows[(size_t)set * (size_t)s->n_classes + s->class_of[n->byte]];
        if (next == LK_STATE_UNKNOWN) next = lk__states_step(s, set, n->byte);
        if (next < 0 || s->work > WORK_MAX) continue;
        int in = q == LK_SPAN_DEAD ? q : g->trie->span[LK_SPAN_STRING].next[q][n->byte];
        if (!in && s->sets[next].has_string) {
            string_branch(g, i, next, depth);
            continue;
        }
        if (n->token >= 0) token_set(g, n->token);
        if (n->end > i + 1)
            walk(g, i + 1, n->end, next, depth + 1, in == LK_SPAN_EXIT ? LK_SPAN_DEAD : in);
    }
}

/* The same in a cut, which is small. */
static void walk_cut(struct lk_gram *g, const struct lk_trie_node *nodes, int32_t from, int32_t to,
                     int32_t set)
{
    struct lk_states *s = &g->st;
    for (int32_t i = from; i < to; i = nodes[i].end) {
        const struct lk_trie_node *n = &nodes[i];
        g->visited++;
        int32_t next = s->rows[(size_t)set * (size_t)s->n_classes + s->class_of[n->byte]];
        if (next == LK_STATE_UNKNOWN) next = lk__states_step(s, set, n->byte);
        if (next < 0 || s->work > WORK_MAX) continue;
        if (n->token >= 0) token_set(g, n->token);
        if (n->end > i + 1) walk_cut(g, nodes, i + 1, n->end, next);
    }
}

/* Sets or clears, in the mask or in tmp, the tokens below a node that stay inside a string. */
static void inside_below(struct lk_gram *g, const struct lk_span_profile *p, int32_t node, int on)
{
    size_t n = p->at[LK_TRIE_DEPTH + 1], i = first_at(p->by_node, sizeof *p->by_node, n, node);
    for (int32_t end = g->trie->nodes[node].end; i < n && p->by_node[i].node < end; i++) {
        int32_t id = p->by_node[i].id;
        if (on)
            lk__bit_set(g->mask, id);
        else
            g->tmp[id >> 5] &= ~(1u << (id & 31));
    }
}

/* Where a set is inside a string after nearly any first byte, all that stays inside is set at once
 * and the rest taken out: a key that is none of the declared ones. */
static void string_root(struct lk_gram *g, int32_t set)
{
    const struct lk_span_profile *p = NULL;
    const struct lk_trie_node *nodes = g->trie->nodes;
    int in[256] = {0}, n = 0;
    for (int32_t i = 0; i < g->trie->n_nodes; i = nodes[i].end) {
        int b = nodes[i].byte;
        if (g->trie->span[LK_SPAN_STRING].next[0][b]) continue;
        int32_t next = lk__states_step(&g->st, set, (uint8_t)b);
        n += in[b] = next >= 0 && g->st.sets[next].has_string;
    }
    if (n < 64 || !(p = lk__tokenizer_profile(g->tok, LK_SPAN_STRING, 0))) return;
    memcpy(g->tmp, p->bits, g->words * sizeof *g->tmp);
    for (int32_t i = 0; i < g->trie->n_nodes; i = nodes[i].end)
        if (!in[nodes[i].byte]) inside_below(g, p, i, 0);
    for (size_t i = 0; i < g->words; i++) g->mask[i] |= g->tmp[i];
    g->root_done = 1;
}

/* A branch that begins inside a string, in a state that is inside one too: what stays inside is
 * known. */
static void string_branch(struct lk_gram *g, int32_t node, int32_t set, int depth)
{
    const struct lk_span_profile *p = lk__tokenizer_profile(g->tok, LK_SPAN_STRING, 0);
    const struct lk_run_cut *cut = lk__string_cut(g->tok);
    const struct lk_trie_node *nodes = g->trie->nodes;
    int32_t named = node;
    if (!p || !cut) {
        g->st.failed = 1;
        return;
    }
    if (depth > 1 || !g->root_done) inside_below(g, p, node, 1);
    while (nodes[named].token < 0)
        named++; /* the first below that has a name: its bytes lead here */
    size_t len;
    const char *bytes = lk_tokenizer_bytes(g->tok, nodes[named].token, &len);
    int32_t from = 0, to = cut->n;
    for (int d = 0; d < depth; d++) {
        while (from < to && cut->nodes[from].byte != (uint8_t)bytes[d]) from = cut->nodes[from].end;
        if (from == to) return; /* no token closes the string here */
        to = cut->nodes[from++].end;
    }
    walk_cut(g, cut->nodes, from, to, set);
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
        if (x->end > p->exits[i].node + 1)
            walk(g, p->exits[i].node + 1, x->end, after, p->exits[i].depth + 1, LK_SPAN_DEAD);
    }
}

/* Between repetitions a profile always pays; in the middle of one (behind a backslash, within a
 * letter) few tokens are possible as a rule, and it is made once a walk was long. */
static const struct lk_run_profile *run_profile(struct lk_gram *g, int32_t run, uint32_t q,
                                                int make)
{
    struct lk_gram_run *r = &g->runs[run];
    make |= !q || (int)q == g->syn.runs[run].first;
    if (!r->p[q] && r->asked[q] < 1 + make)
        r->p[q] = lk__run_take(g->tok, &g->syn.runs[run], (int)q, make);
    r->asked[q] = (uint8_t)(1 + make);
    return r->p[q];
}

/* The smallest cut that is enough to walk: every token that may be missing in the mask lies in it.
 * NULL: none. */
static const struct lk_run_cut *run_cut(struct lk_gram *g, int32_t set, const struct lk_thread *t,
                                        const struct lk_run_profile *p, uint32_t room)
{
    static const uint32_t rooms[] = {LK_NO_LIMIT, 64, 32, 16, 8};
    uint32_t bytes[8], some = 0;
    int others = lk__run_leave(&g->st, set, g->syn.nodes[t->node].b, (int)t->q, bytes), k = 0;
    for (int i = 0; i < 8; i++) some += (uint32_t)__builtin_popcount(bytes[i]);
    if (some > 128) return NULL; /* nearly the whole tree */
    if (others && room < (uint32_t)p->longest)
        while (k < 5 && rooms[k] > room) k++;
    return k < 5 ? lk__run_cut(g->tok, p, bytes, rooms[k]) : NULL;
}

/* The runs a set is in: their tokens go into the mask, and their branches are left out of the walk.
 */
static const struct lk_run_cut *run_masks(struct lk_gram *g, int32_t set)
{
    const struct lk_state_set x = g->st.sets[set];
    const struct lk_run_cut *best = NULL, *cut;
    for (int32_t i = 0; i < x.n; i++) {
        const struct lk_thread *t = &g->st.threads[x.first + (size_t)i];
        const struct lk_node *n = &g->syn.nodes[t->node];
        const struct lk_run_profile *p =
            n->kind == LK_NODE_RUN ? run_profile(g, n->b, t->q, 0) : NULL;
        if (!p) continue;
        uint32_t most = g->syn.limits[n->a][1], room = most == LK_NO_LIMIT ? most : most - t->count;
        int k = 0;
        while (k < g->n_skips && g->skip[k].full != p->full) k++;
        if (k == SKIPS || (k < g->n_skips && g->skip[k].room >= (room > 254 ? 254 : room)))
            continue;
        span_inside(g, &p->p, room);
        g->skip[k].full = p->full;
        g->skip[k].room = room > 254 ? 254 : room; /* 255: not all are inside */
        g->n_skips += k == g->n_skips;
        if ((cut = run_cut(g, set, t, p, room)) && (!best || cut->n < best->n)) best = cut;
    }
    return best;
}

static void walk_rest(struct lk_gram *g, int32_t rest)
{
    const struct lk_run_cut *cut = run_masks(g, rest);
    if (cut)
        walk_cut(g, cut->nodes, 0, cut->n, rest);
    else {
        string_root(g, rest);
        walk(g, 0, g->trie->n_nodes, rest, 1, 0);
    }
    g->n_skips = g->root_done = 0;
    const struct lk_state_set x = g->st.sets[rest];
    for (int32_t i = 0; i < x.n && !cut && g->visited > (uint64_t)g->trie->n_nodes / LONG_WALK;
         i++) {
        const struct lk_thread *t = &g->st.threads[x.first + (size_t)i];
        if (g->syn.nodes[t->node].kind == LK_NODE_RUN)
            run_profile(g, g->syn.nodes[t->node].b, t->q, 1);
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
    if (rest >= 0) walk_rest(g, rest);
    if (g->st.failed || g->st.work > WORK_MAX) memset(g->mask, 0, g->words * sizeof *g->mask);
}

static void mask_keep(struct lk_gram *g)
{
    /* any place: a longer text than the cache holds still meets some of its masks again */
    size_t k = (g->next_cached = g->next_cached * 1103515245u + 12345u) / 65536 % CACHED;
    for (size_t i = 0; i < CACHED && g->cached[k].bits; i++)
        if (!g->cached[i].bits) k = i;
    if (!g->cached[k].bits)
        g->cached[k].bits = lk_reallocarray(NULL, g->words + 1, sizeof(uint32_t));
    g->cached[k].set = g->cached[k].bits ? g->now : LK_STATE_DEAD;
    if (g->cached[k].bits) memcpy(g->cached[k].bits, g->mask, g->words * sizeof(uint32_t));
}

/* Steps are remembered for ever otherwise; a limit on memory, met by texts of megabytes only. */
static void forget(struct lk_gram *g)
{
    int32_t keep[PAST + 2];
    if (g->st.n_sets < SETS_MAX && g->st.n_threads < THREADS_MAX &&
        g->st.n_sets * (size_t)g->st.n_classes < ROWS_MAX)
        return;
    memcpy(keep, g->past, sizeof g->past);
    size_t n = g->n_accepted < PAST ? g->n_accepted : PAST;
    for (size_t i = n; i < PAST; i++) keep[i] = LK_STATE_DEAD;
    keep[PAST] = g->now;
    keep[PAST + 1] = g->first;
    lk__states_forget(&g->st, keep, PAST + 2);
    memcpy(g->past, keep, sizeof g->past);
    g->now = keep[PAST];
    g->first = keep[PAST + 1];
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

void lk_gram_restart(struct lk_gram *g)
{
    g->now = g->first;
    g->n_accepted = 0;
}

size_t lk_gram_bytes(const struct lk_gram *g)
{
    size_t masks = 2;
    for (int i = 0; i < CACHED; i++) masks += g->cached[i].bits != NULL;
    return masks * g->words * sizeof(uint32_t) + g->st.cap_rows * sizeof *g->st.rows +
           g->st.cap_threads * sizeof *g->st.threads + g->st.cap_sets * sizeof *g->st.sets +
           g->st.cap_calls * sizeof *g->st.calls + (size_t)g->syn.cap_nodes * sizeof *g->syn.nodes;
}
