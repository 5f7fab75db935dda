/* UTF-8 reading, repair and NFC: see utf8.h. */
#include "text/utf8.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Continuation range of the second byte by lead byte (Unicode table 3-7): this is what makes the
 * invalid subpart maximal. */
static int lead_shape(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80, *hi = 0xbf;
    if (c >= 0xc2 && c <= 0xdf) return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0) *lo = 0xa0;
        if (c == 0xed) *hi = 0x9f;
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0) *lo = 0x90;
        if (c == 0xf4) *hi = 0x8f;
        return 4;
    }
    return 0;
}

int lk__utf8_next(const char *p, size_t n, uint32_t *cp, int *bad, int *cut)
{
    const unsigned char *s = (const unsigned char *)p;
    unsigned char lo, hi;
    *bad = 0, *cut = 0;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    int len = lead_shape(s[0], &lo, &hi);
    *bad = 1;
    if (!len) return 0;
    uint32_t v = s[0] & (0xff >> (len + 1));
    for (int i = 1; i < len; i++, lo = 0x80, hi = 0xbf) {
        if ((size_t)i >= n) {
            *cut = 1;
            return 0;
        }
        if (s[i] < lo || s[i] > hi) return 0;
        v = v << 6 | (s[i] & 0x3f);
        *bad = i + 1;
    }
    *bad = 0;
    *cp = v;
    return len;
}

int lk__utf8_put(char out[4], uint32_t cp)
{
    return (int)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

int lk__utf8_valid(const char *p, size_t n)
{
    uint32_t cp;
    int bad, cut;
    for (size_t i = 0; i < n;) {
        int l = lk__utf8_next(p + i, n - i, &cp, &bad, &cut);
        if (!l) return 0;
        i += (size_t)l;
    }
    return 1;
}

int lk__utf8_repair(const char *p, size_t n, struct lk_buf *out)
{
    size_t from = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int bad, cut, l = lk__utf8_next(p + i, n - i, &cp, &bad, &cut);
        if (!l) {
            lk_buf_add(out, p + from, i - from);
            lk_buf_add(out, LK_UTF8_FFFD, 3);
            from = i + (size_t)bad;
            l = bad;
        }
        i += (size_t)l;
    }
    lk_buf_add(out, p + from, n - from);
    return out->failed ? LK_ENOMEM : 0;
}

int lk__utf8_is_nfc_fast(const char *p, size_t n)
{
    /* U+0300, the first character that can change under NFC, starts with byte 0xcc. */
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xcc) return 0;
    return 1;
}

struct mark {
    int32_t cp, ccc;
    uint32_t pos;
};

static int mark_cmp(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    if (x->ccc != y->ccc) return x->ccc < y->ccc ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* Canonical order: each run of marks stably sorted by class. utf8proc sorts by neighbour swaps,
 * which is quadratic in a long run, so the decomposition is done character by character and the
 * sorting here. */
static int marks_sort(int32_t *c, size_t n)
{
    struct mark *m = NULL;
    size_t cap = 0;
    for (size_t i = 0; i < n;) {
        size_t j = i;
        int sorted = 1, prev = 0;
        for (; j < n; j++) {
            int ccc = utf8proc_get_property(c[j])->combining_class;
            if (!ccc) break;
            if (ccc < prev) sorted = 0;
            prev = ccc;
        }
        if (!sorted) {
            if (j - i > cap) {
                struct mark *grown = lk_reallocarray(m, j - i, sizeof *m);
                if (!grown) {
                    lk_free(m);
                    return LK_ENOMEM;
                }
                m = grown, cap = j - i;
            }
            for (size_t k = i; k < j; k++)
                m[k - i] =
                    (struct mark){c[k], utf8proc_get_property(c[k])->combining_class, (uint32_t)k};
            qsort(m, j - i, sizeof *m, mark_cmp);
            for (size_t k = i; k < j; k++) c[k] = m[k - i].cp;
        }
        i = j + 1;
    }
    lk_free(m);
    return 0;
}

static int decompose(const char *p, size_t n, int32_t **out, size_t *n_out)
{
    size_t cap = 0, used = 0;
    int32_t *v = NULL;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0xfffd;
        int bad, cut, l = lk__utf8_next(p + i, n - i, &cp, &bad, &cut);
        i += (size_t)(l ? l : bad);
        if (cap - used < 32) { /* the longest canonical decomposition is 4 */
            size_t want = cap ? cap * 2 : (n < 64 ? 64 : n) + 64;
            int32_t *grown = lk_reallocarray(v, want, sizeof *v);
            if (!grown) {
                lk_free(v);
                return LK_ENOMEM;
            }
            v = grown, cap = want;
        }
        int last = 0;
        utf8proc_ssize_t got = utf8proc_decompose_char((utf8proc_int32_t)cp, v + used, 32,
                                                       UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last);
        if (got < 0 || got > 32)
            v[used] = (int32_t)cp, got = 1; /* an unassigned code point stays as it is */
        used += (size_t)got;
    }
    *out = v;
    *n_out = used;
    return 0;
}

int lk__utf8_nfc(const char *p, size_t n, struct lk_buf *out)
{
    int32_t *v = NULL;
    size_t nv = 0;
    if (lk__utf8_is_nfc_fast(p, n)) return lk_buf_add(out, p, n);
    if (decompose(p, n, &v, &nv) || marks_sort(v, nv)) {
        lk_free(v);
        return LK_ENOMEM;
    }
    utf8proc_ssize_t m =
        utf8proc_normalize_utf32(v, (utf8proc_ssize_t)nv, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < m; i++) {
        char c[4];
        lk_buf_add(out, c, (size_t)lk__utf8_put(c, (uint32_t)v[i]));
    }
    lk_free(v);
    return out->failed || m < 0 ? LK_ENOMEM : 0;
}

int lk__py_isspace(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

void lk__py_strip(const char *p, size_t *begin, size_t *end)
{
    uint32_t cp;
    int bad, cut;
    while (*begin < *end) {
        int l = lk__utf8_next(p + *begin, *end - *begin, &cp, &bad, &cut);
        if (!l || !lk__py_isspace(cp)) break;
        *begin += (size_t)l;
    }
    while (*end > *begin) {
        size_t i = *end - 1;
        while (i > *begin && ((unsigned char)p[i] & 0xc0) == 0x80) i--;
        if (!lk__utf8_next(p + i, *end - i, &cp, &bad, &cut) || !lk__py_isspace(cp)) break;
        *end = i;
    }
}
