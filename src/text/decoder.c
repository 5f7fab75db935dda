/* Streaming decoder: bytes of tokens in, whole characters out. Holds back only a tail that can
 * still become a character (at most 3 bytes); bytes that cannot are replaced at once, one U+FFFD a
 * maximal subpart, so that the pieces of a stream joined are the decode of the whole. */
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <string.h>

/* Emits what is decided of p; returns how many bytes at the end are not. */
static size_t decode_some(const char *p, size_t n, struct lk_buf *out)
{
    size_t from = 0, i = 0;
    while (i < n) {
        uint32_t cp;
        int bad, cut, l = lk__utf8_next(p + i, n - i, &cp, &bad, &cut);
        if (!l && cut) break;
        if (!l) {
            lk_buf_add(out, p + from, i - from);
            lk_buf_str(out, LK_UTF8_FFFD);
            l = bad;
            from = i + (size_t)bad;
        }
        i += (size_t)l;
    }
    lk_buf_add(out, p + from, i - from);
    return n - i;
}

int lk_decoder_push(struct lk_decoder *d, const struct lk_tokenizer *t, int32_t id, int skip,
                    struct lk_buf *out)
{
    size_t n;
    const char *p = lk_tokenizer_bytes(t, id, &n);
    if (!p || (skip && lk_tokenizer_is_special(t, id) == 1)) return 0;
    /* A held character is completed or broken by the next 3 bytes at most; the rest needs no copy.
     */
    while (d->n_held && n) {
        d->held[d->n_held++] = (unsigned char)*p++;
        n--;
        size_t left = decode_some((char *)d->held, (size_t)d->n_held, out);
        memmove(d->held, d->held + (size_t)d->n_held - left, left);
        d->n_held = (int)left;
    }
    if (n) {
        size_t left = decode_some(p, n, out);
        memcpy(d->held, p + n - left, left);
        d->n_held = (int)left;
    }
    return out->failed ? LK_ENOMEM : 0;
}

int lk_decoder_flush(struct lk_decoder *d, struct lk_buf *out)
{
    if (d->n_held) lk_buf_str(out, LK_UTF8_FFFD);
    d->n_held = 0;
    return out->failed ? LK_ENOMEM : 0;
}
