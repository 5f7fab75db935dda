/* Any bytes as config.json and generation_config.json. */
#include "artifact/hf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lk_config c = {0};
    struct lk_gen_defaults g = {0};
    struct hf_quant q = {0};
    struct lk_err e = {0};
    lk__hf_config(&c, &q, (const char *)data, size, "fuzz", &e);
    lk_err_clear(&e);
    lk__hf_generation(&c, &g, (const char *)data, size, "fuzz", &e);
    return 0;
}
