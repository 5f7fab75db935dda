/* States of a grammar: numbered sets of threads, and the steps between them, found once and
 * remembered.
 *
 * A thread stands on a node that consumes something (bytes, a span, a token) or on the end; what
 * leads there without consuming is followed when the set is made. Calls it is inside of are a
 * linked list, shared and numbered too, so two threads with the same future are the same thread.
 * Inside a span or run a thread also has the automaton's state and a count of characters. Bytes
 * that no part of the syntax tells apart are one class, and a set's steps are a row of classes. */
#ifndef LK_TEXT_STATES_H
#define LK_TEXT_STATES_H

#include "text/syntax.h"

#include <stddef.h>
#include <stdint.h>

struct lk_thread {
    int32_t node, stack;
    uint32_t q, count; /* inside a span or run */
};
struct lk_state_set {
    size_t first; /* in threads[] */
    int32_t n;
    int32_t rest;      /* the set of its byte and run threads; -2 not made yet, -1 none */
    uint32_t bytes[8]; /* that lead anywhere */
    uint8_t has_end, has_span, has_token,
        has_string; /* string: inside one, at a character, no limit */
};
struct lk_call {
    int32_t parent, node, depth;
};
struct lk_states {
    const struct lk_syntax *syn;
    const struct lk_trie *trie;
    struct lk_thread *threads;
    struct lk_state_set *sets;
    struct lk_call *calls; /* [0]: outside of all */
    size_t n_threads, cap_threads, n_sets, cap_sets, n_calls, cap_calls;
    struct lk_slots {
        int32_t *v;
        size_t cap;
    } set_slots, call_slots; /* hash tables of numbers */
    uint8_t class_of[256];
    int n_classes;
    int32_t *rows; /* [sets][classes]: the next set, LK_STATE_DEAD or LK_STATE_UNKNOWN */
    size_t cap_rows;
    struct lk_thread *out, *todo; /* scratch of the set being made */
    size_t n_out, cap_out, n_todo, cap_todo;
    struct lk_seen {
        int32_t node, stack;
        uint32_t epoch;
    } * seen;
    size_t n_seen, cap_seen;
    uint32_t epoch;
    uint64_t work; /* threads touched; the caller sets a limit */
    int failed;    /* no memory */
};
enum { LK_STATE_DEAD = -1, LK_STATE_UNKNOWN = -2 };

int lk__states_init(struct lk_states *s, const struct lk_syntax *syn, const struct lk_trie *trie);
void lk__states_free(struct lk_states *s);
/* The set of everything reachable from a node inside of the calls of stack, without consuming. */
int32_t lk__states_at(struct lk_states *s, int32_t node, int32_t stack);
int32_t lk__states_step(struct lk_states *s, int32_t set, uint8_t byte);
int32_t lk__states_token(struct lk_states *s, int32_t set, int32_t id); /* by an added token */
int32_t lk__states_rest(struct lk_states *s, int32_t set);
/* Forgets all sets and steps but those in keep[], whose numbers are replaced (negative ones stay).
 * 0 or LK_ENOMEM. */
int lk__states_forget(struct lk_states *s, int32_t *keep, size_t n);

#endif
