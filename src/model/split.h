/* `convert --tp N`: one file a rank with exactly what lk_model_open takes from the whole model, by the rules of tp/shard.h. */
#ifndef LK_MODEL_SPLIT_H
#define LK_MODEL_SPLIT_H

#include "artifact/convert.h"

/* in: any readable model; with a recipe it is converted first, to a temporary folder beside OUT. o->verify: proves that the rank files re-join to
 * the source (or, when OUT exists, only does that): every array equals the cut of the source byte for byte, every value of every part equals the
 * source's where it belongs, and no row or column of the source is missing. Names the first tensor that fails. */
int lk_split(const char *in, const char *out, int n, const struct lk_convert_opts *o, struct lk_err *e);

#endif
