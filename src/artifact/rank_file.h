/* Rank files: what one of N ranks needs of a model, cut already (`convert --tp N`).
 *
 * OUT/ holds config.json, the texts and rank-1-of-N.safetensors .. rank-N-of-N.safetensors. A rank file is a valid safetensors file: the bytes of
 * each array as U8 ("layers.0.mlp.up_proj.data", ".scale", ".zero", ".gidx"), and "laoka.rank", a JSON object with rank, of, the flags that
 * tell whose conventions the values follow, and a list of what each tensor is. Any weight format that kernels read can be held. */
#ifndef LK_ARTIFACT_RANK_FILE_H
#define LK_ARTIFACT_RANK_FILE_H

#include "artifact/artifact.h"
#include "base/buf.h"

#include <jansson.h>

struct lk_rank_writer {
    int fd, rank, n;
    struct lk_buf path;
    size_t base, at; /* start of the data part; bytes of it so far */
    json_t *head, *list;
};
/* tensors: how many will be added at most (sizes the header). */
int lk_rank_writer_open(struct lk_rank_writer *w, const char *dir, int rank, int n, size_t tensors, struct lk_err *e);
/* part: the rank's own (is_part) or the whole of t, whose dims are kept. */
int lk_rank_writer_add(struct lk_rank_writer *w, const struct lk_tensor *t, const struct lk_weight *part, int is_part, struct lk_err *e);
/* Writes the header and closes; a: the source. rc: of what came before; returns it or the first error. */
int lk_rank_writer_close(struct lk_rank_writer *w, const struct lk_artifact *a, int rc, struct lk_err *e);

#endif
