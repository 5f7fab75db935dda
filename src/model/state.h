/* Sequence state on a device: KV pages (can be cut back), GDN state and convolution windows (cannot: only snapshotted or
 * replayed). One pool of pages and one of slots serve all sequences; who owns which is the runtime's business, this file
 * owns the memory and the copies.
 *
 * A page number is valid in every full-attention layer and in the MTP layer at once: page p of a sequence takes
 * lk_state_page_bytes bytes over all layers. A slot holds the GDN state of all linear layers of one sequence.
 * Debug builds fill freed pages and slots with NaN bytes (poison), so that a leak from one session into another shows. */
#ifndef LK_MODEL_STATE_H
#define LK_MODEL_STATE_H

#include "base/err.h"
#include "dev/dev.h"
#include "dev/kv.h"
#include "model/shape.h"

struct lk_state;

struct lk_state_opts {
    enum lk_kv_kind kv;
    int n_pages, n_slots;
    int max_record_rows; /* rows a RECORD step may have */
    int rank, n_ranks;
    int no_mtp;
    uint64_t model_id; /* lk_artifact_identity: goes into the signature */
};
/* Bytes of one page and one slot on one rank, and of the record of a verify step, for sizing before anything is allocated. */
void lk_state_sizes(const struct lk_shape *s, const struct lk_state_opts *o, size_t *page_bytes, size_t *slot_bytes);
size_t lk_state_record_bytes(const struct lk_shape *s, const struct lk_state_opts *o);
int lk_state_open(struct lk_state **out, struct lk_dev *d, const struct lk_shape *s, const struct lk_state_opts *o, struct lk_err *e);
void lk_state_close(struct lk_state *s);

int lk_state_page_alloc(struct lk_state *s, int32_t *page); /* 0, or LK_EBUSY when none is free; refcount 1 */
void lk_state_page_ref(struct lk_state *s, int32_t page);
void lk_state_page_unref(struct lk_state *s, int32_t page);
int lk_state_page_refs(const struct lk_state *s, int32_t page);
void lk_state_page_copy(struct lk_state *s, int32_t dst, int32_t src); /* all layers; both allocated */
int lk_state_pages_free(const struct lk_state *s);
int lk_state_slot_alloc(struct lk_state *s, int32_t *slot); /* zeroed state; LK_EBUSY */
void lk_state_slot_free(struct lk_state *s, int32_t slot);
void lk_state_slot_zero(struct lk_state *s, int32_t slot);
void lk_state_slot_copy(struct lk_state *s, int32_t dst, int32_t src);
size_t lk_state_page_bytes(const struct lk_state *s);
size_t lk_state_slot_bytes(const struct lk_state *s);
/* Host copies for the prefix store and session files: exactly page_bytes / slot_bytes. */
int lk_state_page_get(struct lk_state *s, int32_t page, void *host, struct lk_err *e);
void lk_state_page_put(struct lk_state *s, int32_t page, const void *host);
int lk_state_slot_get(struct lk_state *s, int32_t slot, void *host, struct lk_err *e);
void lk_state_slot_put(struct lk_state *s, int32_t slot, const void *host);
/* Identifies what a saved state may be loaded into: model, its shape, kv kind, rank, backend layout. */
uint64_t lk_state_signature(const struct lk_state *s);

#endif
