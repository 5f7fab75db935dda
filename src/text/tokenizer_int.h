/* The inside of a tokenizer, shared by its loader and its encoder. Immutable after open. */
#ifndef LK_TEXT_TOKENIZER_INT_H
#define LK_TEXT_TOKENIZER_INT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/mem.h"
#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/trie.h"

#include <pcre2.h>
#include <pthread.h>

enum lk_tok_kind { LK_TOK_NONE = 0, LK_TOK_VOCAB, LK_TOK_ADDED, LK_TOK_SPECIAL };

struct lk_tok {
    const char *bytes;
    uint32_t len;
    uint32_t kind;
};

/* Added tokens of one kind, sorted by first byte, then longest first, so that the first match is
 * the longest. */
struct lk_added_set {
    int32_t *ids;
    size_t n;
    size_t first[257]; /* ids[first[c]..first[c+1]) start with byte c */
};

struct lk_tokenizer {
    struct lk_tok *tok;
    int32_t n_tok; /* highest id + 1 */
    struct lk_arena arena;
    struct lk_bpe bpe;
    int32_t byte_id[256];
    struct lk_added_set raw, normal; /* cut before and after NFC */
    int32_t *by_bytes; /* ignore_merges: hash of vocab ids by bytes, -1 empty; NULL when not used */
    size_t by_bytes_mask;
    int nfc;
    pcre2_code *re;
    pthread_mutex_t trie_lock;
    struct lk_trie *trie; /* made on first use, under the lock */
};

/* The tokenizer's tree and span tables, made on first use by whoever asks; NULL: no memory.
 * Thread-safe. */
const struct lk_trie *lk__tokenizer_trie(const struct lk_tokenizer *t);
const struct lk_span_profile *lk__tokenizer_profile(const struct lk_tokenizer *t, enum lk_span span,
                                                    int state);

/* Vocabulary, merges and pre-tokenizer from the parsed file. */
int lk__tokenizer_load(struct lk_tokenizer *t, const char *json, size_t len, struct lk_err *e);
/* The file's regex in the Oniguruma dialect -> compiled. */
int lk__regex_compile(pcre2_code **out, const char *pattern, size_t len, struct lk_err *e);
int32_t lk__tokenizer_by_bytes(const struct lk_tokenizer *t, const char *p,
                               size_t n); /* -1: none */
/* Leftmost, longest added token of the set at or after from; 0 when there is none. */
int lk__added_next(const struct lk_tokenizer *t, const struct lk_added_set *s, const char *p,
                   size_t n, size_t from, size_t *begin, int32_t *id);

#endif
