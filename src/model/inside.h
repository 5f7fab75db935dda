/* What the files of src/model share and nobody else sees: the bound weights, the step's buffers, the state's arrays.
 * Everything a captured graph touches has a fixed address from open to close. */
#ifndef LK_MODEL_INSIDE_H
#define LK_MODEL_INSIDE_H

#include "dev/ops.h"
#include "model/model.h"
#include "model/shape.h"
#include "model/state.h"
#include "tp/comm.h"
#include "tp/shard.h"

#define LK_TOPK_MAX 256
#define LK_EDITS_MAX 4096 /* sparse edits a call of op edit; more are sent in several calls */

struct layer {
    int full, index; /* index among the layers of its kind: which state arrays are its own */
    const float *in_norm, *post_norm;
    struct lk_mat *proj, *out, *gate_up, *down;
    const float *q_norm, *k_norm;                      /* full attention */
    const float *conv_w, *a_coef, *dt_bias, *gdn_norm; /* linear attention */
};

struct weights {
    struct lk_mat *embed, *head; /* head may be embed (tied) */
    const float *norm;
    struct layer *layers;
    struct lk_mat *fc, *draft_head; /* MTP; draft_head NULL: the file has no shortlist */
    struct lk_mat *rough_head;      /* the head once more, for drafts: smaller and not exact; NULL: not worth it */
    const float *mtp_embed_norm, *mtp_hidden_norm, *mtp_norm;
    struct layer mtp;
    const float *inv_freq;   /* [rope_dim/2] */
    const uint8_t *section;
    int32_t *draft_map;      /* host: shortlist row -> token, or NULL */
    int32_t *draft_inverse;  /* host: token -> shortlist row or -1 */
    int draft_rows;          /* all ranks together */
    float *slab;             /* device: all 1-D tensors */
    size_t slab_used, slab_cap;
    void **owned;            /* host blocks that mats on the CPU point into */
    int n_owned, owned_cap;
    size_t step_bytes, mtp_bytes;
};

/* Offsets in int32 of a step's integers inside a control block on the device. Small steps (rows <= dev->small_rows) use a
 * packed layout so that one short upload carries everything; addresses are the same for all small steps. */
struct ctl {
    int32_t *dev, *host;
    size_t cap;
    struct lk_batch batch;
    const int32_t *logit_rows, *hidden_rows;
    int rows, logits; /* of the last call */
    size_t used;      /* int32 of `host` that the last call filled */
};

/* Which logits the last call left, and what was done to them. */
struct results {
    int n, draft;    /* rows; 1: made by the shortlist head */
    int argmax_done;
    int32_t id0;     /* first vocabulary row of this rank */
    int cols, used;  /* columns of this rank; of them, those that may win */
    int whole;       /* columns of all ranks */
};

struct lk_model {
    struct lk_shape shape;
    struct lk_shard_dims dims, local; /* of the model, of this rank */
    struct lk_dev *dev;
    struct lk_comm *comm;
    int rank, n_ranks;
    struct lk_model_opts o;
    struct weights w;
    struct ctl main, mtp; /* fold needs the recorded step's lanes after an MTP call, so there are two */
    int head_ld, proj_ld;
    /* device */
    float *x, *proj, *part, *hidden, *mtp_hidden, *head_x, *logits;
    void *h, *mid, *head_h;
    int32_t *arg_ids, *top_ids, *edit_ids; /* arg_ids: of n rows, and their n values behind them, so that one read brings both */
    float *top_vals, *top_lse, *edit_vals;
    /* host, for results */
    int32_t *host; /* candidates of all ranks behind this rank's own; edits */
    float *row_parts; /* [n_ranks + 1][head_ld]: a row's parts, or a shortlist row */
    struct results res;
    int recorded;        /* rows of a RECORD step that fold may finish; 0: none */
    int mtp_rows;        /* rows of the last MTP call */
    struct lk_team *team; /* team.c; NULL: alone */
    struct lk_err comm_err; /* the first collective that failed in a step; code 0: none */
};

struct lk_state {
    struct lk_dev *dev;
    struct lk_shape shape;
    struct lk_shard_dims local;
    struct lk_state_opts o;
    int n_kv_layers; /* full layers, then the MTP layer */
    void **kv;       /* [n_kv_layers] device */
    float **gdn, **conv; /* [n_gdn] device */
    void **record;   /* [n_gdn] device, or NULL */
    int32_t *refs, *page_free;
    uint8_t *slot_used;
    int n_page_free;
    size_t kv_page, gdn_slot, conv_slot; /* bytes a layer */
    struct lk_team *team; /* team.c; NULL: alone */
};

static inline struct lk_shard_dims lk_shape_dims(const struct lk_shape *s)
{
    struct lk_shard_dims d = {.n_q = s->n_q, .n_kv = s->n_kv, .head_dim = s->head_dim, .hk = s->hk,
                              .hv = s->hv, .gdn_dim = s->gdn_dim, .tiled = s->gdn_tiled,
                              .inter = s->inter, .vocab = s->vocab};
    return d;
}

static inline int lk_conv_channels(const struct lk_shard_dims *d)
{
    return (2 * d->hk + d->hv) * d->gdn_dim;
}

/* Which head a call multiplies with: the model's, a file's shortlist, or the rough copy (columns as the model's). */
enum which_head { HEAD_OWN, HEAD_SHORT, HEAD_ROUGH };

/* parts.c */
enum lk_part lk__part_of(const char *name);
/* weights.c */
int lk__weights_bind(struct lk_model *m, const struct lk_artifact *a, struct lk_err *e);
/* Walks as bind does, but reads no weight: every tensor is looked up, checked and counted. m's mats know their bytes afterwards and must not be used. */
int lk__weights_count(struct lk_model *m, const struct lk_artifact *a, struct lk_model_need *need, struct lk_err *e);
void lk__weights_free(struct lk_model *m);
/* step.c: the pieces that step and MTP share */
size_t lk__ctl_words(const struct lk_model *m);
int lk__ctl_open(struct lk_model *m, struct ctl *c, struct lk_err *e);
int lk__ctl_fill(struct lk_model *m, const struct lk_state *s, struct ctl *c, const struct lk_step *st,
                 const int32_t *hidden_rows, struct lk_err *e);
/* One layer: takes m->h = norm(m->x), leaves m->x and, unless next_norm is NULL, m->h = norm(m->x) by it. */
void lk__layer(struct lk_model *m, const struct lk_state *s, const struct layer *l,
               const struct lk_batch *b, int record, int window, const float *next_norm);
/* hidden = norm(m->x), and head_h of the n rows listed; then logits of head_h's n rows. */
void lk__final_norm(struct lk_model *m, const float *w, int T, float *hidden, const int32_t *rows, int n);
void lk__head(struct lk_model *m, int n, enum which_head head, int argmax);
void lk__results_set(struct lk_model *m, int n, int draft, int argmax);
uint64_t lk__graph_key(const struct lk_state *s, const struct ctl *c, int kind, int flags);
int lk__comm_status(const struct lk_model *m, struct lk_err *e);


/* What one rank does for the public function of the same name; team.c makes all ranks do it. */
int lk__model_step(struct lk_model *m, struct lk_state *s, const struct lk_step *st, struct lk_err *e);
int lk__model_head(struct lk_model *m, int n, const int32_t *rows, int flags, struct lk_err *e);
int lk__model_fold(struct lk_model *m, struct lk_state *s, const int32_t *keep, int n_lanes, struct lk_err *e);
int lk__model_mtp(struct lk_model *m, struct lk_state *s, const struct lk_mtp_step *st, struct lk_err *e);
int lk__model_argmax(struct lk_model *m, int32_t *ids, struct lk_err *e);
int lk__model_logits(struct lk_model *m, int row, float *out, struct lk_err *e);
int lk__model_topk(struct lk_model *m, int k, int32_t *ids, float *vals, float *lse, struct lk_err *e);
int lk__model_edit(struct lk_model *m, int n, const int32_t *rows, const int32_t *ids, const float *rep,
                   const float *add, struct lk_err *e);
void lk__state_page_copy(struct lk_state *s, int32_t dst, int32_t src);
int lk__state_slot_alloc(struct lk_state *s, int32_t *slot);
void lk__state_slot_zero(struct lk_state *s, int32_t slot);
void lk__state_slot_copy(struct lk_state *s, int32_t dst, int32_t src);
size_t lk__state_page_bytes(const struct lk_state *s);
size_t lk__state_slot_bytes(const struct lk_state *s);
int lk__state_page_get(struct lk_state *s, int32_t page, void *host, struct lk_err *e);
void lk__state_page_put(struct lk_state *s, int32_t page, const void *host);
int lk__state_slot_get(struct lk_state *s, int32_t slot, void *host, struct lk_err *e);
void lk__state_slot_put(struct lk_state *s, int32_t slot, const void *host);

#endif
