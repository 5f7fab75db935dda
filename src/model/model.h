/* The model: weights bound to fields, and the one function that moves token rows through the layers.
 * It knows the architecture and nothing of requests. State (KV pages, GDN slots) is owned by model/state.h.
 *
 * Call order of one step: fill a lk_step (ids, lanes, pages) -> lk_model_step -> read ids or logits.
 * A model belongs to one thread. Nothing in a step allocates. */
#ifndef LK_MODEL_MODEL_H
#define LK_MODEL_MODEL_H

#include "artifact/artifact.h"
#include "base/err.h"
#include "dev/batch.h"
#include "dev/dev.h"
#include "dev/kv.h"
#include "model/shape.h"

struct lk_comm; /* tp/comm.h; NULL or n = 1: alone */
struct lk_model;
struct lk_state;

struct lk_model_opts {
    int max_rows;   /* rows a step: the prefill chunk, at least 16 */
    int max_lanes;  /* sequences a step, 1..8 */
    int max_pages;  /* sum over lanes of page table lengths */
    int max_logit_rows; /* rows that may ask for logits in one step */
    int vocab_used; /* argmax and topk look at ids below this only (ids the tokenizer has); 0: all */
    int max_edits;  /* lk_model_edit takes at most this many a call; 0: none */
    int no_mtp;
    int draft_window; /* 0: whole context */
    struct lk_comm *comm;
};

/* What a model takes of the host's memory on one rank, from the same walk and the same list of buffers as lk_model_open; reads no weight. */
struct lk_model_need {
    size_t mapped;           /* weights used where the file lies in memory: resident once a step has read them */
    size_t copied;           /* weights that are laid out anew or cut for the rank, small tensors as f32: resident after loading */
    size_t embed, embed_row; /* mapped embedding table of which a step reads rows only, and one row; 0: copied, or counted as the head */
    size_t step;             /* buffers of a step of max_rows rows */
};
/* o->comm is not used: rank of n_ranks. d: a CPU; check reserves its work memory (lk_dev_info.work). */
int lk_model_need(struct lk_model_need *out, const struct lk_artifact *a, struct lk_dev *d, const struct lk_model_opts *o,
                  int rank, int n_ranks, struct lk_err *e);

/* The artifact must outlive the model on the CPU (weights are used in place). */
int lk_model_open(struct lk_model **out, const struct lk_artifact *a, struct lk_dev *d, const struct lk_model_opts *o,
                  struct lk_err *e);
void lk_model_close(struct lk_model *m);
const struct lk_shape *lk_model_shape(const struct lk_model *m);
struct lk_dev *lk_model_dev(const struct lk_model *m);
/* Bytes of weights read by one decode step of T = 1 without drafts (embedding row excluded), and by one MTP pass. */
size_t lk_model_step_bytes(const struct lk_model *m);
size_t lk_model_mtp_bytes(const struct lk_model *m);

/* What a step computes beyond state. */
enum {
    LK_STEP_LOGITS = 1,  /* logits of the rows listed in logit_rows */
    LK_STEP_RECORD = 2,  /* verify: GDN state is recorded, not advanced; lk_model_fold finishes it */
    LK_STEP_HIDDEN = 4,  /* tap called after the embedding and each layer (score --hidden) */
    LK_STEP_ARGMAX = 8,  /* greedy ids of the logit rows */
    LK_STEP_FULL = 16,   /* lk_model_mtp: the model's own head, not the file's shortlist or the device's rough copy */
};

struct lk_step { /* host memory; copied to the device by lk_model_step */
    int flags;
    int n_rows, n_lanes, n_pages, n_logits;
    const int32_t *ids;          /* [n_rows] */
    const struct lk_lane *lanes; /* [n_lanes], rows consecutive and in lane order */
    const int32_t *pages;        /* [n_pages] */
    const int32_t *logit_rows;   /* [n_logits] */
    const int32_t *rope;         /* [3][n_rows] t, h, w positions, or NULL: text, the row's position three times */
    /* device f32 [rows, hidden]; layer 0 = embedding, l = after layer l; after the last layer once more, as layers,
     * with the final norm's output instead */
    void (*tap)(void *arg, int layer, const float *x, int rows);
    void *tap_arg;
};

/* Runs a step on `s`. Afterwards, on the device until the next step:
 * logits f32 [n_logits, vocab] (all vocabulary; a tensor-parallel model holds its shard, see lk_model_logits). */
int lk_model_step(struct lk_model *m, struct lk_state *s, const struct lk_step *st, struct lk_err *e);
/* Logits of more rows of the last step, in place of those it left; nothing else changes. For callers that want every
 * row of a long chunk and have room for max_logit_rows at once. flags: LK_STEP_ARGMAX. */
int lk_model_head(struct lk_model *m, int n, const int32_t *rows, int flags, struct lk_err *e);
/* After a RECORD step: fold keep[l] rows of lane l into the state. The record stays until the next step, so that a caller who put the
 * state back may fold another number. */
int lk_model_fold(struct lk_model *m, struct lk_state *s, const int32_t *keep, int n_lanes, struct lk_err *e);

/* The MTP layer over rows of the LAST step (or of the last mtp call): row r pairs the normed final hidden state of
 * hidden_rows[r] with token ids[r] (the next token), at position lanes[].pos0 + i of the hidden state. Appends to the MTP layer's own KV pages (same page tables)
 * and gives draft logits for the row after. hidden_from: 0 = rows of the last lk_model_step, 1 = rows of the last lk_model_mtp. */
struct lk_mtp_step {
    int flags;                   /* LK_STEP_LOGITS, LK_STEP_ARGMAX */
    int n_rows, n_lanes, n_pages, n_logits, hidden_from;
    const int32_t *ids, *hidden_rows;
    const struct lk_lane *lanes;
    const int32_t *pages, *logit_rows;
    const int32_t *rope;         /* as in lk_step */
};
int lk_model_mtp(struct lk_model *m, struct lk_state *s, const struct lk_mtp_step *st, struct lk_err *e);

/* Results of the last step or mtp call. After lk_model_mtp ids are vocabulary ids too (a shortlist's map is applied; an edit of a token
 * that the shortlist lacks does nothing). */
int lk_model_argmax(struct lk_model *m, int32_t *ids, struct lk_err *e); /* [n_logits]; -1: the row holds numbers that are none (NaN) */
int lk_model_logits(struct lk_model *m, int row, float *out, struct lk_err *e);              /* one whole row [vocab], gathered over ranks */
/* [n_logits, k]; a row with fewer candidates (a short shortlist) ends in ids of -1 worth minus infinity */
int lk_model_topk(struct lk_model *m, int k, int32_t *ids, float *vals, float *lse, struct lk_err *e);
/* Sparse edits before argmax/topk (penalties, bias, masks): see lk_edit_args; host arrays. */
int lk_model_edit(struct lk_model *m, int n, const int32_t *rows, const int32_t *ids, const float *rep, const float *add,
                  struct lk_err *e);
/* Rows of hidden states of the last step: final norm output f32 [n, hidden] to the host. */
int lk_model_hidden(struct lk_model *m, int row0, int n, float *out, struct lk_err *e);

#endif
