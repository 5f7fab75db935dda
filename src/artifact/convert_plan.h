/* The plan of a conversion: which output tensors each logical tensor becomes, and where each lies. Private to src/artifact. */
#ifndef LK_ARTIFACT_CONVERT_PLAN_H
#define LK_ARTIFACT_CONVERT_PLAN_H

#include "artifact/convert.h"
#include "base/buf.h"
#include "base/mem.h"

#include <jansson.h>

enum scheme { /* what is done with one logical tensor */
    SCHEME_COPY,  /* the stored parts, byte for byte */
    SCHEME_BF16,
    SCHEME_F32,
    SCHEME_FP8,
    SCHEME_I8,
    SCHEME_NVFP4,
    SCHEME_Q4,
    SCHEME_COUNT
};
#define Q4_GROUP 64

struct out_tensor {
    const char *name;
    enum lk_dtype dtype;
    int n_dims;
    int64_t dims[8];
    size_t bytes, offset; /* offset: in the shard's data part */
    int shard;
    const void *copy;     /* COPY: source bytes */
};

struct job {
    const struct lk_tensor *t;
    enum scheme scheme;
    int first, n_out;     /* plan->out[first ..]: the codes, then scales, then the global scale or the shape */
    float amax;           /* NVFP4: of the tensor, -1 unknown */
    float global;         /* NVFP4: shared by the linears that other engines fuse; 0 unknown */
};

struct plan {
    const struct lk_artifact *a;
    struct lk_arena mem;
    const struct recipe *recipe; /* NULL: keep */
    struct job *jobs;     /* one a logical tensor, same order */
    size_t n_jobs;
    struct out_tensor *out;
    size_t n_out, cap_out;
    int n_shards;
    size_t *shard_bytes;  /* [n_shards] data bytes */
    size_t total;
};

int lk__plan_make(struct plan *p, const struct lk_artifact *a, const char *recipe, size_t shard_limit, struct lk_err *e);
void lk__plan_free(struct plan *p);
const char *lk__shard_name(const struct plan *p, int shard, char *buf, size_t cap); /* "model-00001-of-00002.safetensors" */
/* Header of a shard, padded so that the data begins at a multiple of 64 (kernels then read most weights aligned, in place). */
int lk__shard_header(const struct plan *p, int shard, struct lk_buf *out, struct lk_err *e);
int lk__index_text(const struct plan *p, struct lk_buf *out, struct lk_err *e);
/* config.json of the output: the source's, with the recipe's quantization_config. */
int lk__config_text(const struct plan *p, struct lk_buf *out, struct lk_err *e);

/* GGUF and .ninfer sources store some values transformed; these give them as a Hugging Face file has them. */
void lk__source_row(const struct lk_artifact *a, const struct lk_tensor *t, int64_t row, float *out);

#endif
