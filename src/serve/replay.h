/* Answers as they were sampled, found by what they read as.
 *
 * A model does not always spell a text in the tokens that the tokenizer would choose, least of all under a grammar. When
 * the text comes back in the next turn it must become the tokens that were sampled: the state kept behind the answer is of
 * use to exactly those. Text and control tokens stay what they are; only the cut of the text into tokens is remembered.
 *
 * A turn is what stands between <|im_start|> and <|im_end|>. */
#ifndef LK_SERVE_REPLAY_H
#define LK_SERVE_REPLAY_H

#include "serve/lru.h"
#include "text/tokenizer.h"

#include <stddef.h>

struct lk_lru *lk_replay_new(void); /* NULL: no memory */
/* Begins to record a turn: the part of it that the prompt ends with. */
int lk_replay_begin(struct lk_ids *turn, const struct lk_tokenizer *t, const struct lk_ids *prompt);
/* The finished turn (without <|im_end|>). Kept only when the tokenizer would cut its text in another way. */
void lk_replay_learn(struct lk_lru *s, const struct lk_tokenizer *t, const struct lk_ids *turn);
/* Puts sampled tokens in the place of turns of the prompt that read the same. 0 or LK_ENOMEM. */
int lk_replay_apply(struct lk_lru *s, const struct lk_tokenizer *t, struct lk_ids *prompt);

#endif
