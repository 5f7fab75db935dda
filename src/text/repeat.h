/* What a pattern repeats: [a-z]+, \w{2,40}, (\w+\.)*, and the anything in front of a pattern
 * without ^.
 *
 * Nearly all tokens lie wholly inside such a run or leave it at once, so the vocabulary's part in
 * it is worth knowing in advance: a profile, kept with the tokenizer, says which tokens stay inside
 * and which branches of the tree need not be walked. What repeats must be a prefix code, as
 * characters are: then an automaton follows it without looking back. */
#ifndef LK_TEXT_REPEAT_H
#define LK_TEXT_REPEAT_H

#include "text/states.h"
#include "text/syntax.h"
#include "text/tokenizer.h"
#include "text/trie.h"

/* What repeats (a syntax from body to its only end) as a run of s; lead: what stands in its place
 * the first time, or -1. -1: no prefix code, or too many states. */
int32_t lk__run_make(struct lk_syntax *s, const struct lk_syntax *one, int32_t body, int32_t lead);

/* Of a run from one of its states. Lengths are counted in repetitions. */
enum { LK_RUN_CUTS = 8 };
struct lk_run_profile {
    int refs, start, longest; /* longest: what the longest token inside needs */
    uint64_t hash, used;
    struct lk_run run;        /* own copy */
    struct lk_span_profile p; /* no exits */
    uint8_t *
        full; /* by tree node: what the longest token there needs; 255: one leaves, or needs more */
    struct lk_run_cut { /* the tree without branches where nothing leaves by one of these bytes or
                           needs more than room */
        uint32_t bytes[8], room;
        struct lk_trie_node *nodes;
        int32_t n;
    } cut[LK_RUN_CUTS];
    int n_cuts;
};
/* NULL: no memory, too many are in use, or not there and make is 0; a mask is then walked in full.
 * Thread-safe. */
const struct lk_run_profile *lk__run_take(const struct lk_tokenizer *t, const struct lk_run *run,
                                          int start, int make);
/* For at least room more repetitions. Made on first use, and kept; NULL: no memory, or there are
 * too many already. Thread-safe. */
const struct lk_run_cut *lk__run_cut(const struct lk_tokenizer *t, const struct lk_run_profile *p,
                                     const uint32_t bytes[8], uint32_t room);
/* By which bytes could the run, in state q, be left from this set? 1: threads beside it may also
 * live on bytes that stay. */
int lk__run_leave(const struct lk_states *s, int32_t set, int32_t run, int q, uint32_t bytes[8]);
/* The cut of a JSON string at its closing quote, from its beginning. */
const struct lk_run_cut *lk__string_cut(const struct lk_tokenizer *t);
void lk__run_give(const struct lk_tokenizer *t, const struct lk_run_profile *p);
void lk__run_free(struct lk_run_profile *p);

#endif
