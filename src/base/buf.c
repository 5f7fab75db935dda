/* Growable bytes: see buf.h. */
#include "base/buf.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

int lk_buf_reserve(struct lk_buf *b, size_t more)
{
    if (b->failed) return LK_ENOMEM;
    if (more < b->cap - b->len) return 0; /* one byte stays for the NUL */
    size_t want;
    if (lk_add_size(b->len, more, &want) || lk_add_size(want, 1, &want)) goto fail;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < want) cap = cap > SIZE_MAX / 2 ? want : cap * 2;
    char *p = lk_realloc(b->data, cap);
    if (!p) goto fail;
    b->data = p;
    b->cap = cap;
    b->data[b->len] = 0;
    return 0;
fail:
    b->failed = 1;
    return LK_ENOMEM;
}

int lk_buf_add(struct lk_buf *b, const void *p, size_t n)
{
    if (lk_buf_reserve(b, n)) return LK_ENOMEM;
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
    return 0;
}

int lk_buf_str(struct lk_buf *b, const char *s)
{
    return lk_buf_add(b, s, strlen(s));
}

int lk_buf_chr(struct lk_buf *b, char c)
{
    return lk_buf_add(b, &c, 1);
}

int lk_buf_fmt(struct lk_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || lk_buf_reserve(b, (size_t)n)) {
        b->failed = 1;
        return LK_ENOMEM;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

void lk_buf_reset(struct lk_buf *b)
{
    b->len = 0;
    b->failed = 0;
    if (b->data) b->data[0] = 0;
}

void lk_buf_free(struct lk_buf *b)
{
    lk_free(b->data);
    memset(b, 0, sizeof *b);
}
