/* Byte-level BPE tokenizer from the bytes of a tokenizer.json.
 *
 * Encoding: added tokens are cut out first (leftmost, longest) when `specials` allows, then NFC,
 * the pre-tokenizer regex of the file, byte-level map and BPE. Input may be any bytes; invalid
 * UTF-8 is treated as the `tokenizers` library does after Python's errors="replace" (U+FFFD per
 * maximal subpart). Time is O(n log n) in the input, also for 200 KB of one character. Thread-safe
 * after open. */
#ifndef LK_TEXT_TOKENIZER_H
#define LK_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

#include <stdint.h>

struct lk_tokenizer;

struct lk_ids {
    int32_t *v; /* owned, lk_free */
    size_t n, cap;
};
void lk_ids_free(struct lk_ids *ids);
int lk_ids_add(struct lk_ids *ids, int32_t id); /* 0 or LK_ENOMEM */

int lk_tokenizer_open(struct lk_tokenizer **out, const char *json, size_t len, struct lk_err *e);
void lk_tokenizer_close(struct lk_tokenizer *t);

enum lk_specials {
    LK_SPECIALS_NONE =
        0, /* text of a message: an added token's text is ordinary text, never the control token */
    LK_SPECIALS_ALL = 1, /* a finished prompt: added tokens become their ids */
};
/* Appends to out. */
int lk_tokenizer_encode(const struct lk_tokenizer *t, const char *text, size_t len,
                        enum lk_specials sp, struct lk_ids *out, struct lk_err *e);
/* The leftmost, longest added token at or after from: 1 and its place, 0 when there is none. For
 * prompts made of several segments, where only some may hold control tokens. */
int lk_tokenizer_next_added(const struct lk_tokenizer *t, const char *text, size_t len, size_t from,
                            size_t *begin, size_t *end, int32_t *id);
int32_t lk_tokenizer_find(const struct lk_tokenizer *t,
                          const char *token); /* id of an added token by content; -1 none */
int32_t lk_tokenizer_vocab(
    const struct lk_tokenizer *t); /* ids 0..vocab-1 exist; sampling masks the rest */
/* Bytes of a token (an added token: its text). NULL and 0 for ids that do not exist. */
const char *lk_tokenizer_bytes(const struct lk_tokenizer *t, int32_t id, size_t *len);
int lk_tokenizer_is_special(const struct lk_tokenizer *t,
                            int32_t id); /* 1: added and special, 2: added, not special */

/* Whole decode: bytes of all ids, invalid UTF-8 replaced by U+FFFD; skip drops special=true tokens.
 */
int lk_tokenizer_decode(const struct lk_tokenizer *t, const int32_t *ids, size_t n, int skip,
                        struct lk_buf *out);

/* Streaming decoder: emits only whole characters; holds back at most 3 bytes of an incomplete one.
 * Zero-initialise. */
struct lk_decoder {
    unsigned char held[4];
    int n_held;
};
int lk_decoder_push(struct lk_decoder *d, const struct lk_tokenizer *t, int32_t id, int skip,
                    struct lk_buf *out);
int lk_decoder_flush(struct lk_decoder *d,
                     struct lk_buf *out); /* an incomplete tail becomes U+FFFD */

#endif
