/* Convert: any readable model -> a Hugging Face folder in a recipe's formats, valid for compressed-tensors and transformers.
 *
 * Works tensor by tensor in slabs of rows: memory is two slabs (16 MB), a row a thread and the pages of the tensor in work, whatever the
 * model's size (an NVFP4 tensor is read whole once for its scale). The folder is
 * written under OUT.tmp-PID and renamed when it is whole, so that nothing half-written stands under the final name. */
#ifndef LK_ARTIFACT_CONVERT_H
#define LK_ARTIFACT_CONVERT_H

#include "artifact/artifact.h"
#include "base/err.h"

#include <signal.h>

struct lk_pool;

struct lk_convert_opts {
    const char *recipe;   /* NULL: every tensor keeps its format */
    int verify;           /* after writing (or instead, when OUT exists): encode again and compare with the bytes on disk */
    int force;            /* replace OUT when it exists */
    int64_t shard_bytes;  /* 0: 5 GB */
    const volatile sig_atomic_t *stop; /* NULL, or set by a signal: give up and leave nothing */
    struct lk_pool *pool; /* worker threads, or NULL: this one alone */
};
int lk_convert(const char *in, const char *out, const struct lk_convert_opts *o, struct lk_err *e);
const char *lk_convert_recipes(void); /* "bf16, fp8, ...", for help and errors */

#endif
