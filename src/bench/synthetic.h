/* A model without its files: random weights at the true shapes of the family, written as a Hugging Face folder, so that a machine can be measured before
 * (or without) a 55 GB download. Speed does not depend on the values; what such a model says means nothing. */
#ifndef LK_BENCH_SYNTHETIC_H
#define LK_BENCH_SYNTHETIC_H

#include "base/err.h"

/* "27b": the published nvfp4 mix (MLPs NVFP4, those of the first and last four layers FP8, mixers FP8 a channel, head and draft layer 8-bit), 21 GB;
 * "27b-bf16" 55 GB, "4b" 9.5 GB and "0.8b" 1.6 GB in BF16; "0.8b-fp8" and "0.8b-nvfp4": its layers in that format, the tied head
 * BF16 as in the published files, 1.1 and 0.9 GB; "tiny": 8 small layers in the formats of "27b", for a try.
 * layers: 0 all, else fewer for a quick try. No tokenizer: for rounds, score and inspect. */
int lk_synthetic_write(const char *shape, const char *dir, int layers, struct lk_err *e);
extern const char lk_synthetic_names[];

#endif
