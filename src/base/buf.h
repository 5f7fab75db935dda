/* Growable bytes. Always NUL-terminated one past `len`, so that `data` may be used as a C string.
 * Zero-initialised is empty and freeable. A failed append sets `failed` and leaves the content
 * unchanged; later appends do nothing, so a writer may check once at the end. */
#ifndef LK_BASE_BUF_H
#define LK_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct lk_buf {
    char *data; /* NULL while empty */
    size_t len, cap;
    int failed;
};

int lk_buf_reserve(struct lk_buf *b, size_t more); /* 0, or LK_ENOMEM */
int lk_buf_add(struct lk_buf *b, const void *p, size_t n);
int lk_buf_str(struct lk_buf *b, const char *s);
int lk_buf_chr(struct lk_buf *b, char c);
int lk_buf_fmt(struct lk_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void lk_buf_reset(struct lk_buf *b); /* keeps the memory */
void lk_buf_free(struct lk_buf *b);

#endif
