/* What the answer must look like, as one lk_grammar: a thinking budget with its closing message, then bytes the answer must
 * begin with (a tool call that was required), or a JSON schema. Built in the engine process from a lk_wire_rule. */
#ifndef LK_RUNTIME_CONSTRAINT_H
#define LK_RUNTIME_CONSTRAINT_H

#include "runtime/wire.h"
#include "text/tokenizer.h"

/* Grammars of finished requests, kept for the next of the same schema: what a walk has found once is known then. The 16 used
 * last; thread-safe, since a grammar is built on one thread and freed on another. */
struct lk_rule_pool;
struct lk_rule_pool *lk_rule_pool_new(void); /* NULL: no memory */
/* Frees what is kept, and keeps nothing from now on. Before the tokenizer goes. */
void lk_rule_pool_close(struct lk_rule_pool *p);
void lk_rule_pool_free(struct lk_rule_pool *p); /* after the last grammar was freed */

/* out->self stays NULL when the rule asks for nothing. LK_EREQUEST: the schema cannot be built. tok outlives the grammar.
 * pool may be NULL. */
int lk_constraint_build(struct lk_grammar *out, const struct lk_wire_rule *rule, const struct lk_tokenizer *tok,
                        const int32_t *stop_ids, int n_stop_ids, struct lk_rule_pool *pool, struct lk_err *e);

#endif
