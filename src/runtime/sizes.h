/* How large a run is, decided once and before anything large is opened, because every rank must open the same: context, chunk, pages, slots,
 * prefix store. `lk_host_open` opens by it, `lk_need_make` forecasts by it. Owns no memory. */
#ifndef LK_RUNTIME_SIZES_H
#define LK_RUNTIME_SIZES_H

#include "args/options.h"
#include "runtime/core.h"

struct lk_sizes {
    int ctx, parallel, chunk, mtp;
    int vocab_used;                /* ids that the tokenizer has */
    size_t page_bytes, slot_bytes; /* of one rank */
    int64_t ram, disk;
    struct lk_state_opts state;
};
/* As the memory of device d allows. vocab: of the tokenizer, 0: none. */
int lk_sizes_make(struct lk_sizes *z, const struct lk_artifact *a, struct lk_dev *d, const struct lk_shape *s,
                  const struct lk_opts_engine *o, int vocab, struct lk_err *e);
/* As if there were memory for all of it. */
void lk_sizes_free(struct lk_sizes *z, const struct lk_artifact *a, struct lk_dev *d, const struct lk_shape *s,
                   const struct lk_opts_engine *o, int vocab);
struct lk_model_opts lk_sizes_model(const struct lk_sizes *z, const struct lk_opts_engine *o);
/* Without the ids that only the tokenizer knows. */
struct lk_core_opts lk_sizes_core(const struct lk_sizes *z, const struct lk_opts_engine *o);

#endif
