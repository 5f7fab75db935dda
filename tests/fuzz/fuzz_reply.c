/* The reply parser: any text, cut anywhere, gives the same events; arguments are always JSON. */
#include "text/pyjson.h"
#include "text/reply.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void record(void *arg, const struct lk_reply_event *ev)
{
    struct lk_buf *b = arg;
    static int last;
    if (ev->kind == LK_REPLY_CALL_BEGIN || ev->kind == LK_REPLY_CALL_END || (int)ev->kind != last ||
        !b->len)
        lk_buf_fmt(b, "\x01%d", (int)ev->kind);
    last = (int)ev->kind;
    lk_buf_add(b, ev->text, ev->len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char schema[] =
        "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{"
        "\"type\":"
        "\"integer\"},\"u\":{\"type\":[\"null\",\"array\",\"string\"]}}}}]";
    struct lk_buf a = {0}, b = {0};
    if (!size) return 0;
    json_t *tools = json_loads(schema, 0, NULL);
    struct lk_reply *r = lk_reply_new(data[0] & 1, tools, 1, record, &a);
    lk_reply_push(r, (const char *)data + 1, size - 1);
    lk_reply_finish(r);
    struct lk_reply *s = lk_reply_new(data[0] & 1, tools, 1, record, &b);
    for (size_t i = 1, k; i < size; i += k) {
        k = 1 + (data[0] >> 1) % 7;
        if (k > size - i) k = size - i;
        lk_reply_push(s, (const char *)data + i, k);
    }
    lk_reply_finish(s);
    if (a.len != b.len || (a.len && memcmp(a.data, b.data, a.len))) abort();
    if (json_array_size(lk_reply_calls(r)) != json_array_size(lk_reply_calls(s))) abort();
    lk_reply_free(r);
    lk_reply_free(s);
    lk_buf_free(&a);
    lk_buf_free(&b);
    json_decref(tools);
    return 0;
}
