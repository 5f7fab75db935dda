/* tokenizer.json from any bytes; when it opens, some text goes through it and back. */
#include "text/tokenizer.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lk_tokenizer *t;
    struct lk_err e = {0};
    if (lk_tokenizer_open(&t, (const char *)data, size, &e)) return 0;
    struct lk_ids ids = {0};
    struct lk_buf b = {0};
    size_t n = size < 512 ? size : 512;
    lk_tokenizer_encode(t, (const char *)data + (size - n), n, LK_SPECIALS_ALL, &ids, &e);
    lk_tokenizer_encode(t, (const char *)data, n, LK_SPECIALS_NONE, &ids, &e);
    lk_tokenizer_decode(t, ids.v, ids.n, 0, &b);
    lk_buf_free(&b);
    lk_ids_free(&ids);
    lk_tokenizer_close(t);
    return 0;
}
