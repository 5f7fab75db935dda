/* Private to src/dev: decodes of one row piece that live in other files than the table that calls them. */
#ifndef LK_DEV_FORMAT_ROW_H
#define LK_DEV_FORMAT_ROW_H

#include "dev/format.h"

void lk__row_ct(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);
void lk__row_gptq(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);
void lk__row_awq(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);
void lk__row_gguf(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);

void lk__row_ninfer(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);
void lk__row_nvfp4_tiled(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);
void lk__row_rows(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);

#endif
