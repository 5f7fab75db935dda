/* Errors: see err.h. Text from files may hold control bytes; they are shown as '?', so that a
 * message is always one line and cannot drive a terminal. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void text_clean(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

int lk_fail(struct lk_err *e, int code, const char *fmt, ...)
{
    if (!e || e->code) return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    text_clean(e->text);
    return code;
}

int lk_err_prefix(struct lk_err *e, const char *fmt, ...)
{
    if (!e) return LK_EINPUT;
    char old[sizeof e->text], pre[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(pre, sizeof pre, fmt, ap);
    va_end(ap);
    text_clean(pre);
    memcpy(old, e->text, sizeof old);
    int n = snprintf(e->text, sizeof e->text, "%s: ", pre);
    size_t room = sizeof e->text - 1 - (size_t)n; /* n <= 257: pre is 255 at most */
    size_t len = strnlen(old, room);               /* what no longer fits is cut: the front of a message says where */
    memcpy(e->text + n, old, len);
    e->text[(size_t)n + len] = 0;
    return e->code;
}

void lk_err_clear(struct lk_err *e)
{
    if (!e) return;
    e->code = 0;
    e->text[0] = 0;
}

int lk_err_exit(int code)
{
    switch (code) {
    case LK_OK: return 0;
    case LK_EUSAGE: return 2;
    case LK_EDEVICE: return 70;
    default: return 1;
    }
}
