/* Tokenizer: opening, encoding, decoding. See tokenizer.h for the contract and tokenizer_load.c for
 * the file.
 *
 * Order of the work, as in the reference library: repair UTF-8, cut out added tokens, NFC, cut out
 * added tokens that match normalized text, regex, bytes, merges. What the regex leaves between two
 * matches is a piece of its own. */
#include "text/tokenizer_int.h"

#include "text/utf8.h"

#include <string.h>
#include <xxhash.h>

void lk_ids_free(struct lk_ids *ids)
{
    lk_free(ids->v);
    *ids = (struct lk_ids){0};
}

int lk_ids_add(struct lk_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *v = lk_reallocarray(ids->v, cap, sizeof *v);
        if (!v) return LK_ENOMEM;
        ids->v = v;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return 0;
}

int lk_tokenizer_open(struct lk_tokenizer **out, const char *json, size_t len, struct lk_err *e)
{
    struct lk_tokenizer *t = lk_calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return lk_fail(e, LK_ENOMEM, "out of memory");
    pthread_mutex_init(&t->trie_lock, NULL);
    int rc = lk__tokenizer_load(t, json, len, e);
    if (rc) {
        lk_tokenizer_close(t);
        lk_err_prefix(e, "tokenizer.json");
        return rc;
    }
    *out = t;
    return 0;
}

void lk_tokenizer_close(struct lk_tokenizer *t)
{
    if (!t) return;
    lk_free(t->tok);
    lk_free(t->raw.ids);
    lk_free(t->normal.ids);
    lk_free(t->by_bytes);
    lk__bpe_free(&t->bpe);
    lk_arena_free(&t->arena);
    pcre2_code_free(t->re);
    lk__trie_free(t->trie);
    pthread_mutex_destroy(&t->trie_lock);
    lk_free(t);
}

int lk__added_next(const struct lk_tokenizer *t, const struct lk_added_set *s, const char *p,
                   size_t n, size_t from, size_t *begin, int32_t *id)
{
    if (!s->n) return 0;
    for (size_t i = from; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        for (size_t k = s->first[c]; k < s->first[c + 1]; k++) {
            const struct lk_tok *tok = &t->tok[s->ids[k]];
            if (tok->len <= n - i && !memcmp(tok->bytes, p + i, tok->len)) {
                *begin = i;
                *id = s->ids[k];
                return 1;
            }
        }
    }
    return 0;
}

int lk_tokenizer_next_added(const struct lk_tokenizer *t, const char *text, size_t len, size_t from,
                            size_t *begin, size_t *end, int32_t *id)
{
    if (!lk__added_next(t, &t->raw, text, len, from, begin, id)) return 0;
    *end = *begin + t->tok[*id].len;
    return 1;
}

int32_t lk__tokenizer_by_bytes(const struct lk_tokenizer *t, const char *p, size_t n)
{
    size_t i = (size_t)XXH3_64bits(p, n) & t->by_bytes_mask;
    for (; t->by_bytes[i] >= 0; i = (i + 1) & t->by_bytes_mask) {
        const struct lk_tok *tok = &t->tok[t->by_bytes[i]];
        if (tok->len == n && !memcmp(tok->bytes, p, n)) return t->by_bytes[i];
    }
    return -1;
}

/* One encode call. */
struct enc {
    const struct lk_tokenizer *t;
    struct lk_ids *out;
    struct lk_err *e;
    struct lk_bpe_work work;
    struct lk_buf nfc;
    pcre2_match_data *md;
    pcre2_match_context *mc;
};

static int enc_piece(struct enc *c, const char *p, size_t n)
{
    if (!n) return 0;
    if (c->t->by_bytes) {
        int32_t id = lk__tokenizer_by_bytes(c->t, p, n);
        if (id >= 0) return lk_ids_add(c->out, id) ? lk_fail(c->e, LK_ENOMEM, "out of memory") : 0;
    }
    if (lk__bpe_encode(&c->t->bpe, c->t->byte_id, p, n, &c->work, c->out))
        return lk_fail(c->e, LK_ENOMEM, "out of memory");
    return 0;
}

/* The JIT's stack is small and fixed; the rare match that outgrows it is repeated by the
 * interpreter, which uses the heap. */
static int enc_match(struct enc *c, const char *p, size_t n, size_t from)
{
    PCRE2_SPTR s = (PCRE2_SPTR)p;
    int rc = pcre2_match(c->t->re, s, n, from, PCRE2_NO_UTF_CHECK, c->md, c->mc);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(c->t->re, s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->md, c->mc);
    return rc;
}

/* Pre-tokenizer and merges over text without added tokens. */
static int enc_text(struct enc *c, const char *p, size_t n)
{
    size_t done = 0, from = 0;
    if (!c->t->re) return enc_piece(c, p, n);
    pcre2_set_match_limit(
        c->mc,
        (uint32_t)(10000000 + 4 * (uint64_t)n)); /* a white-space run backtracks once over itself */
    while (from < n) {
        int rc = enc_match(c, p, n, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0)
            return lk_fail(
                c->e, LK_EINPUT,
                "tokenizer.json: pre_tokenizer: the regex gave up on this text (PCRE2 error %d)",
                rc);
        size_t b = pcre2_get_ovector_pointer(c->md)[0], end = pcre2_get_ovector_pointer(c->md)[1];
        if (b < from ||
            end <= b) { /* empty: step over one character; it joins the piece between matches */
            int step = 1;
            while (from + (size_t)step < n &&
                   ((unsigned char)p[from + (size_t)step] & 0xc0) == 0x80)
                step++;
            from = (b > from ? b : from) + (size_t)step;
            continue;
        }
        if ((rc = enc_piece(c, p + done, b - done)) || (rc = enc_piece(c, p + b, end - b)))
            return rc;
        done = from = end;
    }
    return enc_piece(c, p + done, n - done);
}

/* Cuts the set's tokens out of p and hands the rest to next. */
static int enc_cut(struct enc *c, const struct lk_added_set *s, const char *p, size_t n,
                   int (*next)(struct enc *c, const char *p, size_t n))
{
    size_t from = 0, b;
    int32_t id;
    while (lk__added_next(c->t, s, p, n, from, &b, &id)) {
        int rc = next(c, p + from, b - from);
        if (rc) return rc;
        if (lk_ids_add(c->out, id)) return lk_fail(c->e, LK_ENOMEM, "out of memory");
        from = b + c->t->tok[id].len;
    }
    return from < n ? next(c, p + from, n - from) : 0;
}

static int enc_nfc(struct enc *c, const char **p, size_t *n)
{
    if (!c->t->nfc || lk__utf8_is_nfc_fast(*p, *n)) return 0;
    lk_buf_reset(&c->nfc);
    if (lk__utf8_nfc(*p, *n, &c->nfc)) return lk_fail(c->e, LK_ENOMEM, "out of memory");
    *p = c->nfc.data;
    *n = c->nfc.len;
    return 0;
}

static int enc_plain(struct enc *c, const char *p, size_t n)
{
    int rc = n ? enc_nfc(c, &p, &n) : 0;
    return rc || !n ? rc : enc_text(c, p, n);
}

static int enc_marked(struct enc *c, const char *p, size_t n)
{
    int rc = n ? enc_nfc(c, &p, &n) : 0;
    return rc || !n ? rc : enc_cut(c, &c->t->normal, p, n, enc_text);
}

int lk_tokenizer_encode(const struct lk_tokenizer *t, const char *text, size_t len,
                        enum lk_specials sp, struct lk_ids *out, struct lk_err *e)
{
    struct enc c = {.t = t, .out = out, .e = e};
    struct lk_buf fixed = {0};
    int rc = 0;
    if (len > (size_t)1 << 30)
        return lk_fail(e, LK_EREQUEST, "text of %zu bytes: at most 1 GiB can be tokenized", len);
    if (!lk__utf8_valid(text, len)) {
        if (lk__utf8_repair(text, len, &fixed)) rc = lk_fail(e, LK_ENOMEM, "out of memory");
        text = fixed.data;
        len = fixed.len;
    }
    if (!rc && t->re) {
        c.md = pcre2_match_data_create(1, NULL);
        c.mc = pcre2_match_context_create(NULL);
        if (!c.md || !c.mc) rc = lk_fail(e, LK_ENOMEM, "out of memory");
    }
    if (!rc && sp == LK_SPECIALS_ALL)
        rc = enc_cut(&c, &t->raw, text, len, enc_marked);
    else if (!rc)
        rc = enc_plain(&c, text, len);
    pcre2_match_data_free(c.md);
    pcre2_match_context_free(c.mc);
    lk__bpe_work_free(&c.work);
    lk_buf_free(&c.nfc);
    lk_buf_free(&fixed);
    return rc;
}

int32_t lk_tokenizer_find(const struct lk_tokenizer *t, const char *token)
{
    size_t n = strlen(token), b;
    int32_t id;
    for (int i = 0; i < 2; i++)
        if (lk__added_next(t, i ? &t->normal : &t->raw, token, n, 0, &b, &id) && b == 0 &&
            t->tok[id].len == n)
            return id;
    return -1;
}

int32_t lk_tokenizer_vocab(const struct lk_tokenizer *t)
{
    return t->n_tok;
}

const char *lk_tokenizer_bytes(const struct lk_tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    if (id < 0 || id >= t->n_tok || !t->tok[id].kind) return NULL;
    *len = t->tok[id].len;
    return t->tok[id].bytes;
}

int lk_tokenizer_is_special(const struct lk_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_tok || t->tok[id].kind < LK_TOK_ADDED) return 0;
    return t->tok[id].kind == LK_TOK_SPECIAL ? 1 : 2;
}

int lk_tokenizer_decode(const struct lk_tokenizer *t, const int32_t *ids, size_t n, int skip,
                        struct lk_buf *out)
{
    struct lk_decoder d = {0};
    for (size_t i = 0; i < n; i++) lk_decoder_push(&d, t, ids[i], skip, out);
    return lk_decoder_flush(&d, out);
}
