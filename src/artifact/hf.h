/* Hugging Face checkpoints: the parts of the loader. Private to src/artifact. */
#ifndef LK_ARTIFACT_HF_H
#define LK_ARTIFACT_HF_H

#include "artifact/store.h"

/* What config.json says beyond the model's numbers. */
struct hf_quant {
    int64_t block_n, block_k; /* weight_block_size of official FP8; 128 x 128 when not said */
    int gptq_v2;              /* zero points stored as they are (checkpoint_format gptq_v2) */
    int tied_said, tied;      /* tie_word_embeddings */
};

/* config.json -> cfg, quant. Nested (text_config) or flat; old and new spellings. */
int lk__hf_config(struct lk_config *c, struct hf_quant *q, const char *json, size_t len, const char *file, struct lk_err *e);
/* generation_config.json -> defaults and stop ids (put before those of config.json). */
int lk__hf_generation(struct lk_config *c, struct lk_gen_defaults *g, const char *json, size_t len, const char *file,
                      struct lk_err *e);
/* Raw tensors -> logical ones. Decides the format of each linear by what is present. */
int lk__hf_bind(struct lk_artifact *a, const struct raw_table *t, const struct hf_quant *q, struct lk_err *e);

/* The parts of one module ("layers.0.mlp.up_proj"), by the last component of their names. */
enum hf_part {
    HF_WEIGHT, HF_SCALE_INV, HF_SCALE, HF_SCALE_2, HF_PACKED, HF_GLOBAL, HF_SHAPE, HF_ZERO, HF_G_IDX,
    HF_QWEIGHT, HF_QZEROS, HF_SCALES, HF_GPTQ_G_IDX, HF_BIAS, HF_IGNORED, HF_PARTS
};
struct hf_module {
    const char *name;
    const struct raw_tensor *part[HF_PARTS];
};
/* Formats whose codes are packed integers: GPTQ, AWQ, compressed-tensors pack-quantized. Fills t->w and t->dims. */
int lk__hf_packed(struct lk_artifact *a, const struct hf_module *m, const struct hf_quant *q, struct lk_tensor *t, struct lk_err *e);
/* "FILE: tensor NAME: expected WANT, found DTYPE SHAPE" */
int lk__hf_mismatch(const struct raw_tensor *r, struct lk_err *e, const char *want, ...) __attribute__((format(printf, 3, 4)));

#endif
