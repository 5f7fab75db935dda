/* Messages from any bytes, all dialects: parse, arguments, render; segments must tile the prompt.
 */
#include "text/chat.h"
#include "text/pyjson.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lk_err e = {0};
    json_t *j = lk_json_parse((const char *)data, size, &e);
    if (!j) return 0;
    const json_t *tools = json_object_get(j, "tools"),
                 *kw = json_object_get(j, "chat_template_kwargs");
    json_t *m = json_is_array(j) ? j : json_object_get(j, "messages");
    for (int k = 0; k < 2; k++) {
        for (enum lk_dialect d = LK_QWEN3_5; d <= LK_QWEN3_8; d++) {
            struct lk_chat_opts o;
            struct lk_prompt p;
            struct lk_err why = {0};
            lk_chat_opts_init(&o);
            if (lk_chat_opts_read(&o, kw, &why) || lk_chat_render(d, m, tools, &o, &p, &why))
                continue;
            size_t at = 0;
            for (size_t i = 0; i < p.n_segs; at = p.segs[i++].end)
                if (p.segs[i].begin != at || p.segs[i].end <= at) abort();
            if (at != p.text.len) abort();
            lk_prompt_free(&p);
        }
        if (lk_chat_arguments(m, &e)) break;
    }
    json_decref(j);
    return 0;
}
