/* What the answer must look like, as one lk_grammar: a thinking budget with its closing message, then bytes the answer must
 * begin with (a tool call that was required), or a JSON schema. Built in the engine process from a lk_wire_rule. */
#ifndef LK_RUNTIME_CONSTRAINT_H
#define LK_RUNTIME_CONSTRAINT_H

#include "runtime/wire.h"
#include "text/tokenizer.h"

/* out->self stays NULL when the rule asks for nothing. LK_EREQUEST: the schema cannot be built. tok outlives the grammar. */
int lk_constraint_build(struct lk_grammar *out, const struct lk_wire_rule *rule, const struct lk_tokenizer *tok,
                        const int32_t *stop_ids, int n_stop_ids, struct lk_err *e);

#endif
