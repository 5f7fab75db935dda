/* A tokenizer.json whose vocabulary is the 256 bytes, spelled as byte-level BPE spells them; without the closing brace, so that a test may
 * add its own tokens. */
#ifndef TESTS_TEXT_BYTE_VOCAB_H
#define TESTS_TEXT_BYTE_VOCAB_H

#include "base/buf.h"

static inline void byte_vocab(struct lk_buf *b)
{
    int next = 0;
    lk_buf_str(b, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        int own = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        lk_buf_fmt(b, "%s\"\\u%04x\":%d", i ? "," : "", own ? i : 256 + next, i);
        next += !own;
    }
    lk_buf_str(b, "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}");
}

#endif
