/* The vocabulary as a tree of bytes, for questions about all tokens at once: which may follow here?
 *
 * Nodes lie in preorder: the children of node i start at i + 1, its next sibling is node[i].end.
 * Added tokens are not in the tree (they are no text), nor are tokens longer than LK_TRIE_DEPTH
 * bytes. Built once a tokenizer, on first use (lk__tokenizer_trie), and read-only but for the
 * profiles of spans, which are made on first use under a lock. */
#ifndef LK_TEXT_TRIE_H
#define LK_TEXT_TRIE_H

#include "text/tokenizer.h"

#include <stdint.h>

enum { LK_TRIE_DEPTH = 255 };

struct lk_trie_node {
    int32_t end;   /* one past the last node below */
    int32_t token; /* the token that ends here; -1 none */
    uint8_t byte;
};

/* Two kinds of text that most tokens fit in wholly: the inside of a JSON string up to its closing
 * quote, and raw text up to
 * "\n</parameter>\n". Each is a small automaton over bytes; state 0 is its beginning. */
enum lk_span { LK_SPAN_STRING, LK_SPAN_RAW, LK_SPANS };
enum { LK_SPAN_DEAD = 255, LK_SPAN_EXIT = 254, LK_SPAN_STATES = 40 };
struct lk_span_automaton {
    int n;
    uint8_t next[LK_SPAN_STATES][256]; /* a state, DEAD, or EXIT (the span is over) */
};

/* What the vocabulary does from one state of a span: the tokens that stay inside, and where in the
 * tree it is left. Characters are counted so that a length limit can be applied afterwards: one
 * table serves every limit. */
struct lk_span_profile {
    int ready;
    uint32_t *bits;                 /* tokens that stay inside, whatever the limit */
    int32_t *inside;                /* the same tokens, by characters needed */
    uint32_t at[LK_TRIE_DEPTH + 2]; /* inside[at[k]..at[k+1]) need k characters */
    struct lk_span_exit {
        int32_t node, chars, depth; /* depth: bytes to the node, its own included */
    } * exits;                      /* in the order of nodes */
    size_t n_exits;
    struct lk_span_inside {
        int32_t node, id;
    } * by_node; /* the tokens inside again, in the order of nodes; of a string's beginning only */
};

enum { LK_RUNS_KEPT = 24 }; /* about 2 MB each at 248k tokens */
struct lk_run_profile;      /* repeat.h */

struct lk_trie {
    struct lk_trie_node *nodes;
    int32_t n_nodes, n_tokens; /* ids are below n_tokens */
    int32_t *same;             /* same[id]: another token of the same bytes, -1 none */
    struct lk_span_automaton span[LK_SPANS];
    struct lk_span_profile profile[LK_SPANS][LK_SPAN_STATES];
    struct lk_run_profile *run[LK_RUNS_KEPT];
    uint64_t run_uses;
    struct lk_run_profile *string; /* inside of a string, as a run; for its cut */
};

struct lk_trie *lk__trie_new(const struct lk_tokenizer *t);
void lk__trie_free(struct lk_trie *t);
/* Fills p's lists from chars[token]: characters needed, 0xffff: not inside. */
int lk__profile_sort(const struct lk_trie *t, struct lk_span_profile *p, const uint16_t *chars);

static inline void lk__bit_set(uint32_t *bits, int32_t i)
{
    bits[i >> 5] |= 1u << (i & 31);
}

#endif
