/* A syntax walked token by token: which tokens may come next, take one, take some back. Its four
 * functions are those of struct lk_grammar in runtime/engine.h.
 *
 * A state is a set of threads, each a node and the calls it is inside of; sets are kept and
 * numbered, and the step from a set by a byte is remembered, so text that repeats its structure
 * costs a look-up. A mask walks the vocabulary's tree from the current set and never enters what no
 * thread allows; inside strings, where nearly everything is allowed, a table a span state gives the
 * mask (trie.h). Not thread-safe: one request, one thread. Allocates in mask and accept. */
#ifndef LK_TEXT_GRAMMAR_H
#define LK_TEXT_GRAMMAR_H

#include "base/err.h"
#include "text/syntax.h"
#include "text/tokenizer.h"

#include <stdint.h>

struct lk_gram;
/* Takes the syntax over (it is emptied, also on error). The tokenizer outlives the grammar.
 * stop_ids: tokens that end the answer, allowed where the text may end. NULL and LK_ENOMEM or
 * LK_EREQUEST. */
struct lk_gram *lk_gram_new(struct lk_syntax *s, const struct lk_tokenizer *t,
                            const int32_t *stop_ids, int n_stop_ids, struct lk_err *e);
/* Fills bits (1: allowed) for ids below vocab; always 1. No bit at all: no memory, or a syntax too
 * hard to follow. */
int lk_gram_mask(void *self, uint32_t *bits, int vocab);
int lk_gram_accept(void *self, int32_t id); /* -1: not allowed, nothing changed */
/* Takes back the last n accepted tokens; the last 256 are remembered. */
void lk_gram_rewind(void *self, int n);
void lk_gram_free(void *self);
/* Back to the beginning, for a new text. States and masks that were found stay known. */
void lk_gram_restart(struct lk_gram *g);
size_t lk_gram_bytes(const struct lk_gram *g); /* of memory, about */
int lk_gram_done(const struct lk_gram *g);     /* the text may end here */

#endif
