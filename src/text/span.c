/* The automata of the two spans (trie.h), byte by byte. Only whole UTF-8 passes; a JSON string
 * takes the escapes of RFC 8259, with surrogates in pairs. */
#include "text/span.h"

#include <string.h>

static const char raw_end[] = "\n</parameter>\n";

/* States of whole characters beyond ASCII, shared by both: base + ... */
enum { U_LAST, U_MID, U_E0, U_ED, U_MID4, U_F0, U_F4, U_N };

static void set(struct lk_span_automaton *a, int from, int lo, int hi, int to)
{
    for (int b = lo; b <= hi; b++) a->next[from][b] = (uint8_t)to;
}

/* Lead bytes of state `from` and the continuation states at `base`, which end in state 0. */
static void utf8_from(struct lk_span_automaton *a, int from, int base)
{
    set(a, from, 0xc2, 0xdf, base + U_LAST);
    set(a, from, 0xe1, 0xef, base + U_MID);
    set(a, from, 0xe0, 0xe0, base + U_E0);
    set(a, from, 0xed, 0xed, base + U_ED);
    set(a, from, 0xf1, 0xf3, base + U_MID4);
    set(a, from, 0xf0, 0xf0, base + U_F0);
    set(a, from, 0xf4, 0xf4, base + U_F4);
}

static void utf8_rest(struct lk_span_automaton *a, int base)
{
    set(a, base + U_LAST, 0x80, 0xbf, 0);
    set(a, base + U_MID, 0x80, 0xbf, base + U_LAST);
    set(a, base + U_E0, 0xa0, 0xbf, base + U_LAST);
    set(a, base + U_ED, 0x80, 0x9f, base + U_LAST);
    set(a, base + U_MID4, 0x80, 0xbf, base + U_MID);
    set(a, base + U_F0, 0x90, 0xbf, base + U_MID);
    set(a, base + U_F4, 0x80, 0x8f, base + U_MID);
}

static void hex(struct lk_span_automaton *a, int from, int to)
{
    set(a, from, '0', '9', to);
    set(a, from, 'a', 'f', to);
    set(a, from, 'A', 'F', to);
}

static void string_make(struct lk_span_automaton *a)
{
    enum { CHAR, ESC, U1, U2, U3, U4, D1, H2, H3, LOW1, LOW2, LOW3, LOW4, UTF };
    a->n = UTF + U_N;
    set(a, CHAR, 0x20, 0x7f, CHAR);
    set(a, CHAR, '"', '"', LK_SPAN_EXIT);
    set(a, CHAR, '\\', '\\', ESC);
    utf8_from(a, CHAR, UTF);
    utf8_rest(a, UTF);
    for (const char *p = "\"\\/bfnrt"; *p; p++) set(a, ESC, *p, *p, CHAR);
    set(a, ESC, 'u', 'u', U1);
    hex(a, U1, U2);
    set(a, U1, 'd', 'd', D1);
    set(a, U1, 'D', 'D', D1);
    hex(a, U2, U3);
    hex(a, U3, U4);
    hex(a, U4, CHAR);
    set(a, D1, '0', '7', U3);
    set(a, D1, '8', '9', H2); /* a high surrogate: its low one must follow */
    set(a, D1, 'a', 'b', H2);
    set(a, D1, 'A', 'B', H2);
    hex(a, H2, H3);
    hex(a, H3, LOW1);
    set(a, LOW1, '\\', '\\', LOW2);
    set(a, LOW2, 'u', 'u', LOW3);
    set(a, LOW3, 'd', 'd', LOW4);
    set(a, LOW3, 'D', 'D', LOW4);
    set(a, LOW4, 'c', 'f', U3);
    set(a, LOW4, 'C', 'F', U3);
}

/* State k < n: k bytes of the closing tag are matched. A newline is the only byte of it that can
 * start it anew. */
static void raw_make(struct lk_span_automaton *a)
{
    int n = (int)sizeof raw_end - 1;
    a->n = n + U_N;
    for (int k = 0; k < n; k++) {
        set(a, k, 0, 0x7f, 0);
        set(a, k, '\n', '\n', 1);
        utf8_from(a, k, n);
        a->next[k][(unsigned char)raw_end[k]] = (uint8_t)(k + 1 == n ? LK_SPAN_EXIT : k + 1);
    }
    utf8_rest(a, n);
}

void lk__span_make(struct lk_span_automaton *a, enum lk_span span)
{
    memset(a->next, LK_SPAN_DEAD, sizeof a->next);
    if (span == LK_SPAN_STRING)
        string_make(a);
    else
        raw_make(a);
}
