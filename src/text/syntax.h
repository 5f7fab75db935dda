/* A syntax: what texts are allowed, as a graph of nodes over bytes. Built once a request by
 * json_schema.c and the like, then read-only; grammar.c walks it. Nodes are made from the end to
 * the front: every maker takes the node that follows. */
#ifndef LK_TEXT_SYNTAX_H
#define LK_TEXT_SYNTAX_H

#include "base/err.h"
#include "text/trie.h"

#include <stddef.h>
#include <stdint.h>

enum lk_node_kind {
    LK_NODE_END,   /* the text may end */
    LK_NODE_BYTES, /* one byte of set a */
    LK_NODE_SPLIT, /* next or a */
    LK_NODE_CALL,  /* rule a, then next; b: 1 when it may nest, which is limited */
    LK_NODE_RET,   /* the rule's end */
    LK_NODE_SPAN,  /* span kind b with the limits at index a, then next */
    LK_NODE_TOKEN, /* the added token a */
    LK_NODE_RUN,   /* run b, as often as the limits at index a say, then next */
};
struct lk_node {
    int32_t kind, next, a, b;
};
/* What is repeated, as an automaton over bytes; state 0: between two repetitions. */
struct lk_run {
    int n, first; /* first: the state it begins in; not 0 when the first time is another class than
                     the rest */
    uint8_t (*next)[256]; /* [n]; LK_SPAN_DEAD: no */
};
struct lk_syntax {
    struct lk_node *nodes;
    uint32_t (*sets)[8];
    int32_t *rules;        /* rule -> its first node, -1 while it is being made */
    uint32_t (*limits)[2]; /* least and most characters of a span or run */
    struct lk_run *runs;
    int32_t n_nodes, n_sets, n_rules, n_limits, n_runs;
    int32_t cap_nodes, cap_sets, cap_rules, cap_limits, cap_runs;
    int32_t root;
    int failed; /* LK_ENOMEM, or LK_EREQUEST: too many nodes */
};
#define LK_NO_LIMIT UINT32_MAX
enum { LK_SYNTAX_MAX = 60000 }; /* nodes: a large schema has a few thousand */

void lk__syn_free(struct lk_syntax *s);
int32_t lk__syn_end(struct lk_syntax *s);
int32_t lk__syn_ret(struct lk_syntax *s);
int32_t lk__syn_set(struct lk_syntax *s, const uint32_t set[8], int32_t next);
int32_t lk__syn_range(struct lk_syntax *s, int lo, int hi, int32_t next);
int32_t lk__syn_chars(struct lk_syntax *s, const char *any_of, int32_t next);
int32_t lk__syn_text(struct lk_syntax *s, const char *p, size_t n,
                     int32_t next); /* exactly these bytes */
int32_t lk__syn_split(struct lk_syntax *s, int32_t a, int32_t b);
void lk__syn_aim(struct lk_syntax *s, int32_t split, int32_t a,
                 int32_t b); /* sets a split's ways: for loops */
int32_t lk__syn_rule(struct lk_syntax *s);
void lk__syn_rule_is(struct lk_syntax *s, int32_t rule, int32_t first);
int32_t lk__syn_call(struct lk_syntax *s, int32_t rule, int nests, int32_t next);
int32_t lk__syn_span(struct lk_syntax *s, enum lk_span kind, uint32_t least, uint32_t most,
                     int32_t next);
int32_t lk__syn_token(struct lk_syntax *s, int32_t id, int32_t next);
/* Takes run.next over (from lk_calloc); the number of the run, an equal one is found again. */
int32_t lk__syn_run_of(struct lk_syntax *s, struct lk_run run);
int32_t lk__syn_run(struct lk_syntax *s, int32_t run, uint32_t least, uint32_t most, int32_t next);
/* 0, or the failure as an error. */
int lk__syn_check(const struct lk_syntax *s, struct lk_err *e);

/* a or b, where -1 means there is no such way. */
int32_t lk__syn_either(struct lk_syntax *s, int32_t a, int32_t b);
/* A character of the range as UTF-8; -1 for an empty range or one of surrogates only. */
int32_t lk__syn_utf8(struct lk_syntax *s, uint32_t lo, uint32_t hi, int32_t next);
/* Between least and most digits. */
int32_t lk__syn_digits(struct lk_syntax *s, int least, int most, int32_t next);

#endif
