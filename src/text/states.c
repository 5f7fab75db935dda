/* States of a grammar: see states.h. */
#include "text/states.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    CALL_DEPTH = 128
}; /* of calls that may nest: readers of JSON commonly stop at a few hundred levels */

static int grow(struct lk_states *s, void *list, size_t n, size_t *cap, size_t size)
{
    void **p = list;
    if (n < *cap) return 0;
    size_t want = *cap ? *cap * 2 : 64;
    void *grown = lk_reallocarray(*p, want, size);
    if (!grown) {
        s->failed = 1;
        return LK_ENOMEM;
    }
    *p = grown;
    *cap = want;
    return 0;
}

/* ---- hash tables of numbers: -1 empty; kept less than half full ---- */

static int slots_room(struct lk_states *s, struct lk_slots *t, size_t n,
                      uint64_t (*hash)(const struct lk_states *, int32_t))
{
    if (n * 2 < t->cap) return 0;
    size_t cap = t->cap ? t->cap * 2 : 256;
    int32_t *v = lk_reallocarray(NULL, cap, sizeof *v);
    if (!v) {
        s->failed = 1;
        return LK_ENOMEM;
    }
    memset(v, 0xff, cap * sizeof *v);
    for (size_t k = 0; k < t->cap; k++) {
        if (t->v[k] < 0) continue;
        size_t i = (size_t)hash(s, t->v[k]) & (cap - 1);
        while (v[i] >= 0) i = (i + 1) & (cap - 1);
        v[i] = t->v[k];
    }
    lk_free(t->v);
    t->v = v;
    t->cap = cap;
    return 0;
}

static uint64_t mix(uint64_t k)
{
    k *= 0x9e3779b97f4a7c15u;
    return k ^ k >> 31;
}

static uint64_t call_hash(const struct lk_states *s, int32_t i)
{
    return mix((uint64_t)(uint32_t)s->calls[i].parent << 32 | (uint32_t)s->calls[i].node);
}

static uint64_t set_hash(const struct lk_states *s, int32_t i)
{
    return XXH3_64bits(s->threads + s->sets[i].first, (size_t)s->sets[i].n * sizeof *s->threads);
}

/* ---- calls ---- */

static int32_t call_push(struct lk_states *s, int32_t parent, int32_t node)
{
    if (grow(s, &s->calls, s->n_calls, &s->cap_calls, sizeof *s->calls) ||
        slots_room(s, &s->call_slots, s->n_calls + 1, call_hash))
        return -1;
    struct lk_call c = {parent, node, s->calls[parent].depth + 1};
    s->calls[s->n_calls] = c;
    size_t m = s->call_slots.cap - 1, i = (size_t)call_hash(s, (int32_t)s->n_calls) & m;
    for (; s->call_slots.v[i] >= 0; i = (i + 1) & m) {
        const struct lk_call *o = &s->calls[s->call_slots.v[i]];
        if (o->parent == parent && o->node == node) return s->call_slots.v[i];
    }
    s->call_slots.v[i] = (int32_t)s->n_calls;
    return (int32_t)s->n_calls++;
}

/* ---- making a set ---- */

static int seen(struct lk_states *s, int32_t node, int32_t stack)
{
    if (s->n_seen * 2 >= s->cap_seen) { /* the old marks are of this set: move them */
        size_t cap = s->cap_seen ? s->cap_seen * 2 : 256;
        struct lk_seen *v = lk_calloc(cap, sizeof *v);
        if (!v) {
            s->failed = 1;
            return 1;
        }
        for (size_t k = 0; k < s->cap_seen; k++) {
            if (s->seen[k].epoch != s->epoch) continue;
            size_t i = (size_t)mix((uint64_t)(uint32_t)s->seen[k].node << 32 |
                                   (uint32_t)s->seen[k].stack) &
                       (cap - 1);
            while (v[i].epoch) i = (i + 1) & (cap - 1);
            v[i] = s->seen[k];
        }
        lk_free(s->seen);
        s->seen = v;
        s->cap_seen = cap;
    }
    size_t i = (size_t)mix((uint64_t)(uint32_t)node << 32 | (uint32_t)stack) & (s->cap_seen - 1);
    for (; s->seen[i].epoch == s->epoch; i = (i + 1) & (s->cap_seen - 1))
        if (s->seen[i].node == node && s->seen[i].stack == stack) return 1;
    s->seen[i] = (struct lk_seen){node, stack, s->epoch};
    s->n_seen++;
    return 0;
}

static void set_begin(struct lk_states *s)
{
    s->n_out = 0;
    s->n_seen = 0;
    if (++s->epoch == 0) { /* 4 billion sets later */
        if (s->seen) memset(s->seen, 0, s->cap_seen * sizeof *s->seen);
        s->epoch = 1;
    }
}

static void out_add(struct lk_states *s, struct lk_thread t)
{
    if (!grow(s, &s->out, s->n_out, &s->cap_out, sizeof *s->out)) s->out[s->n_out++] = t;
}

static void todo_add(struct lk_states *s, int32_t node, int32_t stack)
{
    if (node < 0 || stack < 0) return;
    if (!grow(s, &s->todo, s->n_todo, &s->cap_todo, sizeof *s->todo))
        s->todo[s->n_todo++] = (struct lk_thread){node, stack, 0, 0};
}

static void follow_call(struct lk_states *s, const struct lk_node *n, int32_t stack)
{
    const struct lk_node *after = &s->syn->nodes[n->next];
    if (n->b && s->calls[stack].depth >= CALL_DEPTH) return;
    if (after->kind != LK_NODE_RET)
        stack = call_push(s, stack, n->next); /* a call that ends its rule needs no return */
    todo_add(s, s->syn->rules[n->a], stack);
}

/* A run is inside of itself and, when none of its characters must come, already behind itself. */
static void at_run(struct lk_states *s, const struct lk_node *n, struct lk_thread t)
{
    const uint32_t *limit = s->syn->limits[n->a];
    t.q = (uint32_t)s->syn->runs[n->b].first;
    out_add(s, t);
    if (!limit[0]) todo_add(s, n->next, t.stack);
}

/* Adds what is reachable from (node, stack) to the set being made. */
static void set_add(struct lk_states *s, int32_t node, int32_t stack)
{
    s->n_todo = 0;
    todo_add(s, node, stack);
    while (s->n_todo && !s->failed) {
        struct lk_thread t = s->todo[--s->n_todo];
        const struct lk_node *n = &s->syn->nodes[t.node];
        s->work++;
        if (seen(s, t.node, t.stack)) continue;
        switch (n->kind) {
        case LK_NODE_SPLIT:
            todo_add(s, n->next, t.stack);
            todo_add(s, n->a, t.stack);
            break;
        case LK_NODE_CALL:
            follow_call(s, n, t.stack);
            break;
        case LK_NODE_RET:
            if (t.stack) todo_add(s, s->calls[t.stack].node, s->calls[t.stack].parent);
            break;
        case LK_NODE_RUN:
            at_run(s, n, t);
            break;
        default:
            out_add(s, t);
        }
    }
}

static int thread_cmp(const void *a, const void *b)
{
    const struct lk_thread *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    if (x->stack != y->stack) return x->stack < y->stack ? -1 : 1;
    if (x->q != y->q) return x->q < y->q ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

/* Sets of one thread, and of threads that are in order already, are the most. */
static void threads_sort(struct lk_thread *v, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (thread_cmp(&v[i - 1], &v[i]) > 0) {
            qsort(v, n, sizeof *v, thread_cmp);
            return;
        }
}

static void set_describe(struct lk_states *s, struct lk_state_set *x)
{
    for (int32_t i = 0; i < x->n; i++) {
        const struct lk_thread *t = &s->threads[x->first + (size_t)i];
        const struct lk_node *n = &s->syn->nodes[t->node];
        if (n->kind == LK_NODE_END) x->has_end = 1;
        if (n->kind == LK_NODE_TOKEN) x->has_token = 1;
        if (n->kind == LK_NODE_BYTES)
            for (int k = 0; k < 8; k++) x->bytes[k] |= s->syn->sets[n->a][k];
        for (int b = 0; n->kind == LK_NODE_RUN && b < 256; b++)
            if (s->syn->runs[n->b].next[t->q][b] != LK_SPAN_DEAD) lk__bit_set(x->bytes, b);
        if (n->kind != LK_NODE_SPAN) continue;
        x->has_span = 1;
        if (n->b == LK_SPAN_STRING && !t->q && s->syn->limits[n->a][1] == LK_NO_LIMIT)
            x->has_string = 1;
        for (int b = 0; b < 256; b++)
            if (s->trie->span[n->b].next[t->q][b] != LK_SPAN_DEAD) lk__bit_set(x->bytes, b);
    }
}

static int rows_room(struct lk_states *s)
{
    size_t n = (size_t)s->n_classes, need = (s->n_sets + 1) * n;
    if (need > s->cap_rows) {
        size_t cap = s->cap_rows * 2 > need ? s->cap_rows * 2 : need * 64;
        int32_t *v = lk_reallocarray(s->rows, cap, sizeof *v);
        if (!v) {
            s->failed = 1;
            return LK_ENOMEM;
        }
        s->rows = v;
        s->cap_rows = cap;
    }
    for (size_t k = need - n; k < need; k++) s->rows[k] = LK_STATE_UNKNOWN;
    return 0;
}

/* The number of the set made; an equal one is found again. */
static int32_t set_end(struct lk_states *s)
{
    if (!s->n_out || s->failed) return LK_STATE_DEAD;
    threads_sort(s->out, s->n_out);
    size_t n = 0;
    for (size_t i = 0; i < s->n_out; i++)
        if (!n || memcmp(&s->out[i], &s->out[n - 1], sizeof *s->out)) s->out[n++] = s->out[i];
    while (s->n_threads + n > s->cap_threads) {
        if (grow(s, &s->threads, s->cap_threads, &s->cap_threads, sizeof *s->threads))
            return LK_STATE_DEAD;
    }
    if (grow(s, &s->sets, s->n_sets, &s->cap_sets, sizeof *s->sets) || rows_room(s) ||
        slots_room(s, &s->set_slots, s->n_sets + 1, set_hash))
        return LK_STATE_DEAD;
    memcpy(s->threads + s->n_threads, s->out, n * sizeof *s->out);
    s->sets[s->n_sets] = (struct lk_state_set){.first = s->n_threads, .n = (int32_t)n, .rest = -2};
    size_t m = s->set_slots.cap - 1, i = (size_t)set_hash(s, (int32_t)s->n_sets) & m;
    for (; s->set_slots.v[i] >= 0; i = (i + 1) & m) {
        const struct lk_state_set *o = &s->sets[s->set_slots.v[i]];
        if (o->n == (int32_t)n && !memcmp(s->threads + o->first, s->out, n * sizeof *s->out))
            return s->set_slots.v[i];
    }
    set_describe(s, &s->sets[s->n_sets]);
    s->set_slots.v[i] = (int32_t)s->n_sets;
    s->n_threads += n;
    return (int32_t)s->n_sets++;
}

int32_t lk__states_at(struct lk_states *s, int32_t node, int32_t stack)
{
    set_begin(s);
    set_add(s, node, stack);
    return set_end(s);
}

/* ---- steps ---- */

static void step_span(struct lk_states *s, const struct lk_thread *t, uint8_t byte)
{
    const struct lk_node *n = &s->syn->nodes[t->node];
    const uint32_t *limit = s->syn->limits[n->a];
    uint32_t q = s->trie->span[n->b].next[t->q][byte], count = t->count;
    if (q == LK_SPAN_DEAD) return;
    if (q == LK_SPAN_EXIT) {
        if (count >= limit[0] && count <= limit[1]) set_add(s, n->next, t->stack);
        return;
    }
    if (n->b == LK_SPAN_STRING) {
        count += q == 0;
        if (limit[1] != LK_NO_LIMIT && count + (q != 0) > limit[1]) return;
        if (limit[1] == LK_NO_LIMIT && count > limit[0])
            count = limit[0]; /* enough is enough: the set repeats */
    }
    out_add(s, (struct lk_thread){t->node, t->stack, q, count});
}

static void step_run(struct lk_states *s, const struct lk_thread *t, uint8_t byte)
{
    const struct lk_node *n = &s->syn->nodes[t->node];
    const uint32_t *limit = s->syn->limits[n->a];
    uint32_t q = s->syn->runs[n->b].next[t->q][byte], count = t->count + (q == 0);
    if (q == LK_SPAN_DEAD) return;
    if (limit[1] == LK_NO_LIMIT && count > limit[0]) count = limit[0]; /* so that the set repeats */
    struct lk_thread in = {t->node, t->stack, q, count};
    if (q) {
        out_add(s, in);
        return;
    }
    if (count < limit[1]) out_add(s, in);
    if (count >= limit[0]) set_add(s, n->next, t->stack);
}

int32_t lk__states_step(struct lk_states *s, int32_t set, uint8_t byte)
{
    size_t at = (size_t)set * (size_t)s->n_classes + s->class_of[byte];
    if (s->rows[at] != LK_STATE_UNKNOWN) return s->rows[at];
    if (!(s->sets[set].bytes[byte >> 5] >> (byte & 31) & 1)) return s->rows[at] = LK_STATE_DEAD;
    set_begin(s);
    for (int32_t k = 0; k < s->sets[set].n; k++) {
        const struct lk_thread t = s->threads[s->sets[set].first + (size_t)k];
        const struct lk_node *n = &s->syn->nodes[t.node];
        s->work++;
        if (n->kind == LK_NODE_BYTES && s->syn->sets[n->a][byte >> 5] >> (byte & 31) & 1)
            set_add(s, n->next, t.stack);
        if (n->kind == LK_NODE_SPAN) step_span(s, &t, byte);
        if (n->kind == LK_NODE_RUN) step_run(s, &t, byte);
    }
    int32_t to = set_end(s);
    if (s->failed) return LK_STATE_DEAD;
    return s->rows[at] = to;
}

int32_t lk__states_token(struct lk_states *s, int32_t set, int32_t id)
{
    set_begin(s);
    for (int32_t k = 0; k < s->sets[set].n; k++) {
        const struct lk_thread t = s->threads[s->sets[set].first + (size_t)k];
        const struct lk_node *n = &s->syn->nodes[t.node];
        if (n->kind == LK_NODE_TOKEN && n->a == id) set_add(s, n->next, t.stack);
    }
    return set_end(s);
}

int32_t lk__states_rest(struct lk_states *s, int32_t set)
{
    if (s->sets[set].rest != -2) return s->sets[set].rest;
    set_begin(s);
    for (int32_t k = 0; k < s->sets[set].n; k++) {
        const struct lk_thread t = s->threads[s->sets[set].first + (size_t)k];
        int32_t kind = s->syn->nodes[t.node].kind;
        if (kind == LK_NODE_BYTES || kind == LK_NODE_RUN) out_add(s, t);
    }
    int32_t rest = set_end(s);
    return s->sets[set].rest = rest;
}

/* ---- life ---- */

/* Bytes stay in one class while no set and no automaton tells them apart. */
static void part(struct lk_states *s, const uint8_t key[256], int keys)
{
    int16_t to[256 * 256];
    int n = 0;
    memset(to, 0xff, (size_t)s->n_classes * (size_t)keys * sizeof *to);
    for (int b = 0; b < 256; b++) {
        int16_t *c = &to[s->class_of[b] * keys + key[b]];
        if (*c < 0) *c = (int16_t)n++;
        s->class_of[b] = (uint8_t)*c;
    }
    s->n_classes = n;
}

static void classes_make(struct lk_states *s)
{
    uint8_t key[256];
    int spans = 0;
    for (int32_t i = 0; i < s->syn->n_nodes; i++)
        if (s->syn->nodes[i].kind == LK_NODE_SPAN) spans |= 1 << s->syn->nodes[i].b;
    s->n_classes = 1;
    for (int32_t i = 0; i < s->syn->n_sets && s->n_classes < 256; i++) {
        for (int b = 0; b < 256; b++) key[b] = s->syn->sets[i][b >> 5] >> (b & 31) & 1;
        part(s, key, 2);
    }
    for (int k = 0; k < LK_SPANS; k++)
        for (int q = 0; spans >> k & 1 && q < s->trie->span[k].n; q++)
            part(s, s->trie->span[k].next[q], 256);
    for (int32_t i = 0; i < s->syn->n_runs; i++)
        for (int q = 0; q < s->syn->runs[i].n && s->n_classes < 256; q++)
            part(s, s->syn->runs[i].next[q], 256);
}

int lk__states_init(struct lk_states *s, const struct lk_syntax *syn, const struct lk_trie *trie)
{
    *s = (struct lk_states){.syn = syn, .trie = trie};
    classes_make(s);
    if (grow(s, &s->calls, 0, &s->cap_calls, sizeof *s->calls)) return LK_ENOMEM;
    s->calls[0] = (struct lk_call){-1, -1, 0};
    s->n_calls = 1;
    return 0;
}

int lk__states_forget(struct lk_states *s, int32_t *keep, size_t n)
{
    struct lk_states fresh = {.syn = s->syn,
                              .trie = s->trie,
                              .calls = s->calls,
                              .n_calls = s->n_calls,
                              .cap_calls = s->cap_calls,
                              .call_slots = s->call_slots,
                              .n_classes = s->n_classes};
    memcpy(fresh.class_of, s->class_of, sizeof fresh.class_of);
    for (size_t k = 0; k < n && !fresh.failed; k++) {
        if (keep[k] < 0) continue;
        const struct lk_state_set *x = &s->sets[keep[k]];
        set_begin(&fresh);
        for (int32_t i = 0; i < x->n; i++) out_add(&fresh, s->threads[x->first + (size_t)i]);
        keep[k] = set_end(&fresh);
    }
    s->calls = NULL;
    s->call_slots = (struct lk_slots){0};
    lk__states_free(s);
    *s = fresh;
    return s->failed ? LK_ENOMEM : 0;
}

void lk__states_free(struct lk_states *s)
{
    lk_free(s->threads);
    lk_free(s->sets);
    lk_free(s->calls);
    lk_free(s->set_slots.v);
    lk_free(s->call_slots.v);
    lk_free(s->rows);
    lk_free(s->out);
    lk_free(s->todo);
    lk_free(s->seen);
    *s = (struct lk_states){0};
}
