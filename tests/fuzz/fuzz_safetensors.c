/* Any bytes as a safetensors file: read, bind, and decode a row of what was accepted. */
#include "artifact/hf.h"
#include "artifact/safetensors.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lk_log_quiet(2);
    unsigned char *copy = malloc(size ? size : 1); /* an exact block: reads past its end are seen */
    if (!copy) return 0;
    memcpy(copy, data, size);
    struct lk_artifact a = {.path = "fuzz"};
    struct raw_table t = {0};
    struct hf_quant q = {.block_n = 128, .block_k = 128};
    struct lk_err e = {0};
    if (!lk__safetensors_read(&t, &a.mem, copy, size, "fuzz", &e) && !lk__hf_bind(&a, &t, &q, &e)) {
        for (size_t i = 0; i < a.n_tensors; i++) {
            const struct lk_weight *w = &a.tensors[i].w;
            float out[64];
            int64_t n = w->k < 64 ? w->k : 64;
            lk_weight_row(w, w->n - 1, w->k - n, n, out);
            lk_weight_row(w, 0, 0, n, out);
        }
    }
    lk__raw_free(&t);
    lk_free(a.tensors);
    lk__names_free(&a.names);
    lk_arena_free(&a.mem);
    free(copy);
    return 0;
}
