/* Any bytes as a GGUF file: directory, config-free bind, tokenizer; rows of what was accepted are decoded. */
#include "artifact/gguf.h"
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
    struct lk_artifact a = {.path = "fuzz", .cfg = {.layers = 4}};
    struct gguf_file g;
    struct raw_table t = {0};
    struct lk_err e = {0};
    if (!lk__gguf_read(&g, &t, &a.mem, copy, size, "fuzz", &e)) {
        lk__gguf_tokenizer(&g, &a.made_text, &e);
        lk_err_clear(&e);
        lk__gguf_config(&a.cfg, &g, &e);
        lk_err_clear(&e);
        lk__gguf_bind(&a, &t, &e);
        for (size_t i = 0; i < a.n_tensors; i++) {
            const struct lk_weight *w = &a.tensors[i].w;
            float out[300];
            int64_t n = w->k < 300 ? w->k : 300;
            lk_weight_row(w, w->n - 1, w->k - n, n, out);
        }
    }
    lk__gguf_free(&g);
    lk__raw_free(&t);
    lk_free(a.tensors);
    lk__names_free(&a.names);
    lk_buf_free(&a.made_text);
    lk_arena_free(&a.mem);
    free(copy);
    return 0;
}
