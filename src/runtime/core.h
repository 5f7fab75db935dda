/* The core: what the engine thread owns, without threads or queues. Tests drive it directly.
 *
 *     lk_core_admit(c, q)   a waiting sequence gets a lane, its longest stored prefix and a promise of pages
 *     lk_core_turn(c)       one decode round of all ready lanes and of prompts' short ends, then one prefill chunk of one lane
 *     lk_core_release(c, q) a DONE sequence leaves its lane
 *
 * A turn is the unit of everything: cancels and deadlines are looked at between turns, so a long prompt holds others for one
 * chunk and a cancel takes effect within one round or chunk.
 *
 * What a lane computes does not depend on its company: a decode round never has more rows than the device keeps batch-invariant
 * (dev->small_rows, 16 or more), and a prefill chunk is always one lane's, cut at absolute positions. A prompt's short end has the bits
 * of decode rows wherever it runs, so it goes with a round when there is room: who joins costs the others a row, not a step. */
#ifndef LK_RUNTIME_CORE_H
#define LK_RUNTIME_CORE_H

#include "artifact/artifact.h"
#include "model/model.h"
#include "model/state.h"
#include "runtime/lookup.h"
#include "runtime/policy.h"
#include "runtime/prefix.h"
#include "runtime/sampler.h"
#include "runtime/seq.h"

#define LK_LANES 8
#define LK_EDITS 16384    /* sparse logit edits a step; a lane that would need more takes whole rows */
#define LK_SNAP_EVERY 4096 /* tokens between snapshots inside a long prompt */

enum { LK_SEEN_LISTED = 1, LK_SEEN_PROMPT = 2 };
/* Tokens a lane has used, for the penalties. */
struct lk_counts {
    int32_t *gen;  /* [vocab] times generated */
    uint8_t *seen; /* [vocab] LK_SEEN_* */
    int32_t *list; /* [vocab] ids that occurred, n of them */
    int n;
};

struct lk_core_opts {
    int ctx, parallel, chunk, draft, draft_window;
    int n_pages, n_slots;
    int vocab_used; /* ids that the tokenizer has */
    int turn_id, newline_id; /* ids of "<|im_start|>" and "\n", which frame a turn's header; -1: none */
    struct lk_prefix_opts prefix;
};

struct lk_core {
    struct lk_core_opts o;
    struct lk_model *model;
    struct lk_state *state;
    struct lk_dev *dev;
    const struct lk_tokenizer *tok; /* NULL: stop strings are off */
    int vocab;      /* length of a logits row */
    int mtp;        /* the draft layer is there and kept up to date */
    int rows_max;   /* rows of a decode round */
    double force_accept; /* bench: share of drafts taken whatever the target says; < 0: off */

    struct lk_seq *lane[LK_LANES];
    struct lk_counts counts[LK_LANES];
    struct lk_lookup lookup[LK_LANES];
    struct lk_prefix *prefix;
    struct lk_policy policy;
    int32_t spare_slot;
    int prefill_next; /* lane the next chunk is offered to first */

    /* the step being built, and its results */
    struct lk_lane lanes[LK_LANES];
    struct lk_seq *step_seq[LK_LANES]; /* whose lane it is */
    int row_count[LK_LANES], logit0[LK_LANES], whole[LK_LANES];
    int n_lanes, n_rows, n_pages, n_logits, n_edits;
    int32_t *ids, *pages, *logit_rows, *hidden_rows;
    int32_t *edit_rows, *edit_ids;
    float *edit_rep, *edit_add;
    int32_t *got_ids; /* [logit rows][got_k] */
    float *got_vals, *got_lse;
    int got_k;
    float *row; /* [vocab] */
    struct lk_cand *cands;
    uint32_t *mask;

    uint64_t tokens_prompt, tokens_cached, tokens_out, drafts, drafts_accepted, rounds, requests;
    int perfect_rounds, perfect_said;
    double step_ms;
};

/* Takes model and state that are open; owns neither. */
int lk_core_init(struct lk_core *c, struct lk_model *m, struct lk_state *s, const struct lk_tokenizer *tok,
                 const struct lk_core_opts *o, struct lk_err *e);
/* Bytes of the core's own lists, for sizing before anything is opened. */
size_t lk_core_bytes(const struct lk_core_opts *o, int vocab, const struct lk_dev *d);
/* State snapshots that one conversation of n tokens leaves in the prefix store. */
static inline int lk_core_snapshots(int n)
{
    return (n - 1) / LK_SNAP_EVERY + 4; /* behind the last two headers, before the prompt's last token, after the answer */
}
void lk_core_fini(struct lk_core *c); /* every lane must be released; zero-initialised is fine */

/* 0: it runs (phase PREFILL). LK_EBUSY: not now, ask again after something ended. LK_EREQUEST: never (pages). */
int lk_core_admit(struct lk_core *c, struct lk_seq *q, struct lk_err *e);
/* 1: something ran; 0: no lane had work; negative: the device is dead. */
int lk_core_turn(struct lk_core *c, struct lk_err *e);
/* Ends a running sequence where it stands (cancel, deadline): its state is kept in the prefix store, its pages go back. */
void lk_core_end(struct lk_core *c, struct lk_seq *q);
void lk_core_release(struct lk_core *c, struct lk_seq *q);

/* Inside (core.c, prefill.c, round.c, choose.c). */
int core_pages_ensure(struct lk_core *c, struct lk_seq *q, int tokens, struct lk_err *e);
void core_step_reset(struct lk_core *c);
/* Appends a lane of n rows; want: 0 no logits, 1 of the last row, 2 of all rows. */
void core_step_lane(struct lk_core *c, struct lk_seq *q, const int32_t *ids, int n, int pos0, int want);
int core_prefill(struct lk_core *c, struct lk_seq *q, struct lk_err *e);
/* Rows of the prompt's last chunk when that is next and short enough to be a recorded step with the bits of decode; else 0. */
int core_tail(const struct lk_core *c, const struct lk_seq *q);
/* After a recorded step whose lane l is a tail: keeps the state before its last row, and leaves the slot as it was. */
int core_tail_snapshot(struct lk_core *c, int l, struct lk_err *e);
/* The first token of the answer, from logit row 0 of step lane l. */
int core_first(struct lk_core *c, int l, struct lk_err *e);
int core_round(struct lk_core *c, struct lk_err *e);
/* Draft-layer pass over the rows just run (they became positions pos0.. of their lanes), then the drafts of the next round. */
int core_draft(struct lk_core *c, struct lk_err *e);
/* After a step: brings candidates of all logit rows to the host, edits applied. */
int core_fetch(struct lk_core *c, int draft, struct lk_err *e);
/* Before a step's results are read: penalties and bias of step lane l into the list of sparse edits, or its mark `whole`. Row i counts
 * drafts[0..i) as taken. */
void core_edits(struct lk_core *c, int l, const int32_t *drafts, int draft);
/* The token of logit row `i` of step lane `l`; -1 and e filled when none is allowed or the device died. */
int32_t core_choose(struct lk_core *c, int l, int i, struct lk_err *e);
void core_count(struct lk_core *c, struct lk_seq *q, int32_t id, int sign);
int core_commit(struct lk_core *c, struct lk_seq *q, int32_t id);

#endif
