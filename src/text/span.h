/* Builds the automaton of a span; see trie.h. */
#ifndef LK_TEXT_SPAN_H
#define LK_TEXT_SPAN_H

#include "text/trie.h"

void lk__span_make(struct lk_span_automaton *a, enum lk_span span);

#endif
