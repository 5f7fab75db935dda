/* A sequence: one request on its way through the engine, with everything that is its own.
 *
 *     WAIT -> PREFILL -> DECODE -> DONE
 *
 * ids holds prompt and answer in one array, n_ids of them; the first n_done are in KV pages and GDN state. In DECODE exactly the
 * last id is not (n_done == n_ids - 1): it is the first row of the next round, with drafts behind it.
 * The engine thread alone touches a sequence after lk_seq_new, except for `cancel`. Arrays that grow with the answer are
 * reserved before a round (lk_seq_reserve), so that a round allocates nothing. */
#ifndef LK_RUNTIME_SEQ_H
#define LK_RUNTIME_SEQ_H

#include "runtime/engine.h"
#include "text/tokenizer.h"

#include <stdatomic.h>

#define LK_DRAFT_MAX 7   /* tokens the MTP layer drafts */
#define LK_LOOKUP_MAX 15 /* tokens copied from the context */
#define LK_ROUND_MAX (LK_LOOKUP_MAX + 1)

enum lk_seq_phase { LK_SEQ_WAIT, LK_SEQ_PREFILL, LK_SEQ_DECODE, LK_SEQ_DONE };
enum lk_draft_from { LK_DRAFT_NONE, LK_DRAFT_MTP, LK_DRAFT_LOOKUP };

/* Stop strings, matched byte by byte over decoded tokens. */
struct lk_stop_match {
    char **stops;
    size_t *lens;
    int n;
    char *tail; /* the last bytes of the answer */
    size_t n_tail, cap, longest;
};

struct lk_seq {
    uint64_t id;
    enum lk_seq_phase phase;
    int lane; /* index while it runs, -1 */

    int32_t *ids;
    int n_ids, cap_ids, n_prompt, max_out;
    struct lk_sampling sampling; /* its bias array is owned */
    int32_t *stop_ids;
    int n_stop_ids;
    struct lk_stop_match stop;
    int n_logprobs; /* 0: none, else top-n a token */
    struct lk_logprob *logprobs; /* of answer tokens */
    int cap_logprobs;
    struct lk_grammar grammar;
    int draft, priority;
    double t_submit, t_deadline, t_admit, t_first; /* lk_clock; deadline 0: none */
    char *session;
    atomic_int cancel;

    int n_done;
    int32_t *pages;
    int n_pages, cap_pages, reserved; /* reserved: pages promised at admission and not taken yet */
    int32_t slot;
    int cuts[8], n_cuts; /* positions of the prompt where state is snapshotted, rising */

    int32_t drafts[LK_LOOKUP_MAX];
    int n_drafts;
    enum lk_draft_from draft_from;
    int match_len;           /* LOOKUP: length of the match the draft continues */
    float accept[LK_DRAFT_MAX]; /* running share of MTP drafts accepted at depth i, given depth i was reached */
    int probe;               /* rounds since the last draft */
    int last_drafts;         /* of the last plan */

    enum lk_finish finish;
    int stop_index;
    struct lk_err err;
    struct lk_timings t;
    uint64_t order; /* arrival */
};

/* Copies the request. On error (LK_EREQUEST, LK_ENOMEM) nothing is kept; the grammar is freed in both cases of failure. */
int lk_seq_new(struct lk_seq **out, const struct lk_request *r, int vocab, int ctx, struct lk_err *e);
void lk_seq_free(struct lk_seq *q); /* NULL is fine; pages and slot must have been given back */
/* Room for `more` answer tokens beyond n_ids. 0 or LK_ENOMEM. */
int lk_seq_reserve(struct lk_seq *q, int more);
/* Appends an accepted token and looks whether the answer ends with it: stop id, stop string, length. 1: it ended. */
int lk_seq_commit(struct lk_seq *q, const struct lk_tokenizer *tok, int32_t id, int ctx);
static inline int lk_seq_out(const struct lk_seq *q)
{
    return q->n_ids - q->n_prompt;
}
/* Ends the sequence. */
void lk_seq_finish(struct lk_seq *q, enum lk_finish f);
void lk_seq_fail(struct lk_seq *q, const struct lk_err *e);

#endif
