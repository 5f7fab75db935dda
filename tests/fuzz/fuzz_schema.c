/* JSON schemas from any bytes, as answers and as a tool's parameters; what compiles is walked for a
 * few tokens. */
#include "../text/byte_vocab.h"
#include "text/json_schema.h"
#include "text/pyjson.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A vocabulary of the 256 bytes, which is enough to go anywhere. */
static struct lk_tokenizer *bytes_only(void)
{
    struct lk_buf b = {0};
    struct lk_tokenizer *t;
    struct lk_err e = {0};
    byte_vocab(&b);
    lk_buf_str(&b, "}");
    if (lk_tokenizer_open(&t, b.data, b.len, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    lk_buf_free(&b);
    return t;
}

static void wander(struct lk_syntax *s, const struct lk_tokenizer *t, const uint8_t *data,
                   size_t size)
{
    uint32_t bits[8];
    struct lk_err e = {0};
    struct lk_gram *g = lk_gram_new(s, t, NULL, 0, &e);
    for (size_t i = 0, k = 0; g && i < 24 && size; i++) {
        lk_gram_mask(g, bits, 256);
        int32_t id = -1;
        for (int n = 0; n < 256 && id < 0; n++)
            if (bits[(data[k % size] + n) % 256 >> 5] >> ((data[k % size] + n) % 32) & 1)
                id = (data[k % size] + n) % 256;
        if (id < 0) break;
        if (lk_gram_accept(g, id)) abort(); /* the mask promised it */
        if (i % 5 == 4) lk_gram_rewind(g, 2);
        k++;
    }
    lk_gram_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct lk_tokenizer *t;
    struct lk_err e = {0}, te = {0};
    struct lk_syntax s;
    if (!t) t = bytes_only();
    json_t *j = size < 8192 ? lk_json_parse((const char *)data, size, &e) : NULL;
    if (!j) return 0;
    if (!lk_schema_syntax(&s, j, &e)) wander(&s, t, data, size);
    json_t *tools = json_pack("[{s:s, s:O}]", "name", "f", "parameters", j);
    if (tools && !lk_tools_syntax(&s, tools, NULL, 1, t, &te)) wander(&s, t, data, size);
    json_decref(tools);
    json_decref(j);
    return 0;
}
