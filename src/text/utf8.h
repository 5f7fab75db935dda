/* UTF-8 and the few Unicode facts that text needs: reading characters, replacing what is broken,
 * NFC, white space as Python's str.strip and as `\s` see it. Properties come from utf8proc; no
 * tables of our own but the 29 white-space code points, which Unicode has not changed since 6.3. */
#ifndef LK_TEXT_UTF8_H
#define LK_TEXT_UTF8_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

#define LK_UTF8_FFFD "\xef\xbf\xbd"

/* Reads one character at p, n >= 1. Returns its length 1..4; or 0 where the bytes are no character,
 * with *bad set to the length of the maximal subpart (1..3), and *cut to 1 when it would be valid
 * with more bytes behind it. */
int lk__utf8_next(const char *p, size_t n, uint32_t *cp, int *bad, int *cut);
int lk__utf8_put(char out[4], uint32_t cp); /* bytes written; cp must be a scalar value */
int lk__utf8_valid(const char *p, size_t n);
/* Appends p with each maximal invalid subpart as U+FFFD. */
int lk__utf8_repair(const char *p, size_t n, struct lk_buf *out);
/* Appends the NFC of valid UTF-8; O(n log n) also for long runs of combining marks. 0 or LK_ENOMEM.
 */
int lk__utf8_nfc(const char *p, size_t n, struct lk_buf *out);
int lk__utf8_is_nfc_fast(const char *p, size_t n); /* 1: certainly NFC already (all below U+0300) */

int lk__py_isspace(uint32_t cp);
/* Python's str.strip(): narrows [*begin, *end) of valid UTF-8. */
void lk__py_strip(const char *p, size_t *begin, size_t *end);

#endif
