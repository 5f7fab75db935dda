/* Automata of what repeats, and their profiles: see repeat.h. The automaton is the subset construction
 * over the nodes of one repetition; in a prefix code reaching the end means state 0 and nothing
 * else. */
#include "text/repeat.h"

#include "base/mem.h"
#include "text/tokenizer_int.h"

#include <string.h>
#include <xxhash.h>

enum { NODES = 512, STATES = 250, WORDS = NODES / 32 };

struct build {
    const struct lk_syntax *one;
    int n, full;
    uint32_t (*set)[WORDS]; /* [STATES] */
    uint8_t (*next)[256];   /* [STATES] */
};

static int has(const uint32_t *set, int32_t i)
{
    return set[i >> 5] >> (i & 31) & 1;
}

static void reach(const struct lk_syntax *one, uint32_t *set, int32_t node)
{
    if (node < 0 || has(set, node)) return;
    lk__bit_set(set, node);
    if (one->nodes[node].kind != LK_NODE_SPLIT) return;
    reach(one, set, one->nodes[node].next);
    reach(one, set, one->nodes[node].a);
}

/* The number of the state that holds these nodes. */
static int state_of(struct build *b, const int32_t *nodes, int n)
{
    uint32_t set[WORDS] = {0};
    if (!n) return LK_SPAN_DEAD;
    for (int k = 0; k < n; k++) reach(b->one, set, nodes[k]);
    int ends = 0, goes_on = 0;
    for (int32_t i = 0; i < b->one->n_nodes; i++) {
        ends |= has(set, i) && b->one->nodes[i].kind == LK_NODE_END;
        goes_on |= has(set, i) && b->one->nodes[i].kind == LK_NODE_BYTES;
    }
    b->full |= ends && (goes_on || !b->n); /* no prefix code, or empty */
    if (ends) return 0;
    for (int q = 0; q < b->n; q++)
        if (!memcmp(b->set[q], set, sizeof set)) return q;
    if (b->n == STATES) {
        b->full = 1;
        return LK_SPAN_DEAD;
    }
    memcpy(b->set[b->n], set, sizeof set);
    return b->n++;
}

static void fill_state(struct build *b, int q)
{
    int32_t here[NODES], now[NODES], was[NODES];
    int n_here = 0, n_was = -1, to = LK_SPAN_DEAD;
    for (int32_t i = 0; i < b->one->n_nodes; i++)
        if (has(b->set[q], i) && b->one->nodes[i].kind == LK_NODE_BYTES) here[n_here++] = i;
    for (int byte = 0; byte < 256; byte++) {
        int n = 0;
        for (int k = 0; k < n_here; k++) {
            const struct lk_node *x = &b->one->nodes[here[k]];
            if (has(b->one->sets[x->a], byte)) now[n++] = x->next;
        }
        if (n != n_was || memcmp(now, was, (size_t)n * sizeof *now)) to = state_of(b, now, n);
        memcpy(was, now, (size_t)n * sizeof *now);
        n_was = n;
        b->next[q][byte] = (uint8_t)to;
    }
}

int32_t lk__run_make(struct lk_syntax *s, const struct lk_syntax *one, int32_t body, int32_t lead)
{
    struct build b = {.one = one};
    struct lk_run run = {0};
    if (one->n_nodes > NODES || one->failed) return -1;
    b.set = lk_calloc(STATES, sizeof *b.set);
    b.next = lk_calloc(STATES, sizeof *b.next);
    if (b.set && b.next) {
        state_of(&b, &body, 1);
        if (lead >= 0) run.first = state_of(&b, &lead, 1);
        for (int q = 0; q < b.n && !b.full; q++) fill_state(&b, q);
        run.n = b.n;
        run.next = b.full ? NULL : lk_calloc((size_t)b.n, sizeof *run.next);
    }
    if (run.next) memcpy(run.next, b.next, (size_t)b.n * sizeof *b.next);
    if (!run.next && !b.full) s->failed = LK_ENOMEM;
    lk_free(b.set);
    lk_free(b.next);
    return run.next ? lk__syn_run_of(s, run) : -1;
}

/* ---- profiles ---- */

struct fill {
    const struct lk_trie *t;
    struct lk_run_profile *p;
    uint16_t *chars; /* by token; 0xffff: not inside */
};

/* Characters that the longest token among these siblings and below needs; 255: not all are inside.
 */
static int fill(struct fill *f, int32_t from, int32_t to, int state, int done)
{
    int most = 0;
    for (int32_t i = from; i < to; i = f->t->nodes[i].end) {
        const struct lk_trie_node *n = &f->t->nodes[i];
        int s = f->p->run.next[state][n->byte], k = done + (s == 0);
        if (s == LK_SPAN_DEAD) {
            most = 255;
            continue;
        }
        for (int32_t id = n->token; id >= 0; id = f->t->same[id])
            f->chars[id] = (uint16_t)(k + (s != 0));
        int below = fill(f, i + 1, n->end, s, k), own = n->token >= 0 ? k + (s != 0) : 0;
        if (own > below) below = own;
        f->p->full[i] = (uint8_t)(below > 255 ? 255 : below);
        if (below > most) most = below;
    }
    return most;
}

static struct lk_run_profile *profile_new(const struct lk_trie *t, const struct lk_run *run,
                                          int start, uint64_t hash)
{
    struct lk_run_profile *p = lk_calloc(1, sizeof *p);
    uint16_t *chars = lk_reallocarray(NULL, (size_t)t->n_tokens + 1, sizeof *chars);
    struct fill f = {t, p, chars};
    int ok = 0;
    if (p) {
        p->hash = hash;
        p->start = start;
        p->run.n = run->n;
        p->run.next = lk_calloc((size_t)run->n, sizeof *p->run.next);
        p->full = lk_calloc((size_t)t->n_nodes + 1, 1);
    }
    if (p && chars && p->run.next && p->full) {
        memcpy(p->run.next, run->next, (size_t)run->n * sizeof *run->next);
        memset(chars, 0xff, ((size_t)t->n_tokens + 1) * sizeof *chars);
        memset(p->full, 255, (size_t)t->n_nodes + 1);
        fill(&f, 0, t->n_nodes, start, 0);
        for (int32_t i = 0; i < t->n_tokens; i++)
            if (chars[i] != 0xffff && chars[i] > p->longest) p->longest = chars[i];
        ok = !lk__profile_sort(t, &p->p, chars);
    }
    lk_free(chars);
    if (ok) return p;
    lk__run_free(p);
    return NULL;
}

void lk__run_free(struct lk_run_profile *p)
{
    if (!p) return;
    lk_free(p->p.bits);
    lk_free(p->p.inside);
    for (int i = 0; i < p->n_cuts; i++) lk_free(p->cut[i].nodes);
    lk_free(p->run.next);
    lk_free(p->full);
    lk_free(p);
}

/* ---- cuts ---- */

struct cutting {
    const struct lk_trie *t;
    const struct lk_run *run;
    struct lk_run_cut *c;
    uint32_t room;
    int32_t cap;
    int failed;
};

static int32_t cut_add(struct cutting *w, const struct lk_trie_node *n)
{
    if (w->c->n == w->cap) {
        int32_t cap = w->cap ? w->cap * 2 : 1024;
        struct lk_trie_node *v = lk_reallocarray(w->c->nodes, (size_t)cap, sizeof *v);
        if (!v) {
            w->failed = 1;
            return 0;
        }
        w->c->nodes = v;
        w->cap = cap;
    }
    w->c->nodes[w->c->n] = *n;
    return w->c->n++;
}

/* Siblings that leave by one of the bytes, need too much, or have something below that does. */
static void cut_walk(struct cutting *w, int32_t from, int32_t to, int state, uint32_t done)
{
    for (int32_t i = from; i < to && !w->failed; i = w->t->nodes[i].end) {
        const struct lk_trie_node *n = &w->t->nodes[i];
        int s = w->run->next[state][n->byte];
        if (s == LK_SPAN_DEAD && !has(w->c->bytes, n->byte)) continue;
        int32_t at = cut_add(w, n), first = w->c->n;
        uint32_t k = done + (s == 0);
        int keep = n->token >= 0 && k + (s != 0) > w->room;
        for (int32_t x = i + 1; s == LK_SPAN_DEAD && x < n->end && !w->failed; x++) {
            int32_t below = cut_add(w, &w->t->nodes[x]); /* left: all that follows */
            if (!w->failed) w->c->nodes[below].end += first - (i + 1);
        }
        if (s != LK_SPAN_DEAD) {
            cut_walk(w, i + 1, n->end, s, k);
            if (w->c->n == first && !keep) w->c->n = at; /* nothing below: out again */
        }
        if (!w->failed && w->c->n > at) w->c->nodes[at].end = w->c->n;
    }
}

/* Under the lock. */
static const struct lk_run_cut *cut_get(const struct lk_trie *t, struct lk_run_profile *p,
                                        const uint32_t bytes[8], uint32_t room)
{
    for (int i = 0; i < p->n_cuts; i++)
        if (p->cut[i].room == room && !memcmp(p->cut[i].bytes, bytes, sizeof p->cut[i].bytes))
            return &p->cut[i];
    if (p->n_cuts == LK_RUN_CUTS) return NULL;
    struct lk_run_cut *c = &p->cut[p->n_cuts];
    struct cutting w = {.t = t, .run = &p->run, .c = c, .room = room};
    c->room = room;
    memcpy(c->bytes, bytes, sizeof c->bytes);
    cut_walk(&w, 0, t->n_nodes, p->start, 0);
    if (!w.failed) return &p->cut[p->n_cuts++];
    lk_free(c->nodes);
    *c = (struct lk_run_cut){0};
    return NULL;
}

const struct lk_run_cut *lk__run_cut(const struct lk_tokenizer *t, const struct lk_run_profile *p,
                                     const uint32_t bytes[8], uint32_t room)
{
    struct lk_tokenizer *own = (struct lk_tokenizer *)t;
    pthread_mutex_lock(&own->trie_lock);
    const struct lk_run_cut *c = cut_get(own->trie, (struct lk_run_profile *)p, bytes, room);
    pthread_mutex_unlock(&own->trie_lock);
    return c;
}

const struct lk_run_cut *lk__string_cut(const struct lk_tokenizer *t)
{
    struct lk_tokenizer *own = (struct lk_tokenizer *)t;
    const uint32_t quote[8] = {0, 1u << ('"' - 32)};
    const struct lk_run_cut *c = NULL;
    pthread_mutex_lock(&own->trie_lock);
    struct lk_trie *trie = own->trie;
    const struct lk_span_automaton *a = &trie->span[LK_SPAN_STRING];
    struct lk_run_profile *p = trie->string ? trie->string : lk_calloc(1, sizeof *p);
    if (p && !trie->string && (p->run.next = lk_calloc((size_t)a->n, sizeof *p->run.next))) {
        p->run.n = a->n;
        memcpy(p->run.next, a->next, (size_t)a->n * sizeof *p->run.next);
        p->run.next[0]['"'] = LK_SPAN_DEAD;
        trie->string = p;
    }
    if (trie->string)
        c = cut_get(trie, p, quote, LK_NO_LIMIT);
    else
        lk__run_free(p);
    pthread_mutex_unlock(&own->trie_lock);
    return c;
}

/* ---- ways out ---- */

enum { PLACES = 4096 };

/* A thread's node and its automaton's state, beside the state of the run that is asked about. */
struct place {
    int32_t node;
    uint8_t own, q, base; /* base: it is in the run itself */
};
struct ways {
    const struct lk_syntax *syn;
    const struct lk_run *run;
    uint32_t *bytes;
    int others, full;
    struct place v[PLACES];
    size_t n;
    uint16_t slot[PLACES * 2]; /* hash of places; 0: empty, else number + 1 */
};

static void place_add(struct ways *w, struct place p)
{
    if (p.node < 0) return;
    size_t m = PLACES * 2 - 1, i = XXH3_64bits(&p, sizeof p) & m;
    for (; w->slot[i]; i = (i + 1) & m)
        if (!memcmp(&w->v[w->slot[i] - 1], &p, sizeof p)) return;
    if (w->n == PLACES) {
        w->full = 1;
        return;
    }
    w->v[w->n++] = p;
    w->slot[i] = (uint16_t)w->n;
}

static void place_enter(struct ways *w, int32_t node, int q)
{
    const struct lk_node *n = node < 0 ? NULL : &w->syn->nodes[node];
    int own = n && n->kind == LK_NODE_RUN ? w->syn->runs[n->b].first : 0;
    place_add(w, (struct place){node, (uint8_t)own, (uint8_t)q, 0});
    if (n && n->kind == LK_NODE_RUN && !w->syn->limits[n->a][0]) place_enter(w, n->next, q);
}

/* The run's state behind one byte of another thread; LK_SPAN_DEAD: this is a way out. */
static int place_step(struct ways *w, const struct place *p, int byte)
{
    int q = w->run->next[p->q][byte];
    if (q == LK_SPAN_DEAD)
        lk__bit_set(w->bytes, byte);
    else
        w->others |= !p->base;
    return q;
}

static void place_follow(struct ways *w, const struct place p)
{
    const struct lk_node *n = &w->syn->nodes[p.node];
    const struct lk_run *r = n->kind == LK_NODE_RUN ? &w->syn->runs[n->b] : NULL;
    switch (n->kind) {
    case LK_NODE_SPLIT:
        place_enter(w, n->next, p.q);
        place_enter(w, n->a, p.q);
        return;
    case LK_NODE_BYTES:
        for (int b = 0, q; b < 256; b++)
            if (has(w->syn->sets[n->a], b) && (q = place_step(w, &p, b)) != LK_SPAN_DEAD)
                place_enter(w, n->next, q);
        return;
    case LK_NODE_RUN:
        for (int b = 0, q; b < 256; b++) {
            int own = r->next[p.own][b];
            if (own == LK_SPAN_DEAD || (q = place_step(w, &p, b)) == LK_SPAN_DEAD) continue;
            place_add(w, (struct place){p.node, (uint8_t)own, (uint8_t)q, p.base});
            if (!own) place_enter(w, n->next, q);
        }
        return;
    case LK_NODE_END:
        return;
    default: /* out of the pattern: nothing is known there */
        w->full = 1;
    }
}

int lk__run_leave(const struct lk_states *s, int32_t set, int32_t run, int q, uint32_t bytes[8])
{
    struct ways *w = lk_calloc(1, sizeof *w);
    const struct lk_state_set *x = &s->sets[set];
    memset(bytes, 0, 8 * sizeof *bytes);
    if (w) {
        w->syn = s->syn;
        w->run = &s->syn->runs[run];
        w->bytes = bytes;
    }
    for (int32_t i = 0; w && i < x->n; i++) {
        const struct lk_thread *t = &s->threads[x->first + (size_t)i];
        const struct lk_node *n = &s->syn->nodes[t->node];
        int base = n->kind == LK_NODE_RUN && n->b == run && t->q == (uint32_t)q;
        place_add(w, (struct place){t->node, (uint8_t)t->q, (uint8_t)q, (uint8_t)base});
    }
    for (size_t i = 0; w && i < w->n && !w->full; i++) place_follow(w, w->v[i]);
    int others = !w || w->full || w->others;
    if (!w || w->full) memset(bytes, 0xff, 8 * sizeof *bytes);
    lk_free(w);
    return others;
}

static int find(const struct lk_trie *t, const struct lk_run *run, int start, uint64_t hash)
{
    for (int i = 0; i < LK_RUNS_KEPT; i++) {
        const struct lk_run_profile *p = t->run[i];
        if (p && p->hash == hash && p->start == start && p->run.n == run->n &&
            !memcmp(p->run.next, run->next, (size_t)run->n * sizeof *run->next))
            return i;
    }
    return -1;
}

/* Where one may be put: an empty place, or the least recently used that nobody holds. -1: nowhere.
 */
static int room(const struct lk_trie *t)
{
    int at = -1;
    for (int i = 0; i < LK_RUNS_KEPT; i++) {
        const struct lk_run_profile *p = t->run[i];
        if (!p) return i;
        if (!p->refs && (at < 0 || p->used < t->run[at]->used)) at = i;
    }
    return at;
}

const struct lk_run_profile *lk__run_take(const struct lk_tokenizer *t, const struct lk_run *run,
                                          int start, int make)
{
    struct lk_tokenizer *own = (struct lk_tokenizer *)t; /* immutable but for the tree */
    uint64_t hash = XXH3_64bits(run->next, (size_t)run->n * sizeof *run->next);
    struct lk_run_profile *p = NULL;
    pthread_mutex_lock(&own->trie_lock);
    int at = own->trie ? find(own->trie, run, start, hash) : -1;
    if (make && own->trie && at < 0 && (at = room(own->trie)) >= 0) {
        lk__run_free(own->trie->run[at]);
        own->trie->run[at] = profile_new(own->trie, run, start, hash);
    }
    if (at >= 0 && (p = own->trie->run[at])) {
        p->refs++;
        p->used = ++own->trie->run_uses;
    }
    pthread_mutex_unlock(&own->trie_lock);
    return p;
}

void lk__run_give(const struct lk_tokenizer *t, const struct lk_run_profile *p)
{
    struct lk_tokenizer *own = (struct lk_tokenizer *)t;
    if (!p) return;
    pthread_mutex_lock(&own->trie_lock);
    ((struct lk_run_profile *)p)->refs--;
    pthread_mutex_unlock(&own->trie_lock);
}
