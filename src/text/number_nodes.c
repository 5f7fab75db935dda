/* Numbers within bounds as syntax nodes: see number_nodes.h. A number is compared digit by digit
 * with the decimal digits of the bounds: as long as it agrees with a bound ("tight") the next digit
 * is limited by the bound's, after that it is free. */
#include "text/number_nodes.h"

#include "text/pyjson.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 18 };
#define WHOLE_MAX 999999999999999999ll

static int32_t digit(struct lk_syntax *s, int lo, int hi, int32_t next)
{
    return next < 0 || lo > hi ? -1 : lk__syn_range(s, '0' + lo, '0' + hi, next);
}

/* Numbers of exactly as many digits as a and b, between them. */
static int32_t same_length(struct lk_syntax *s, const char *a, const char *b, int tight_a,
                           int tight_b, int32_t next)
{
    if (!*a) return next;
    if (!tight_a && !tight_b) return lk__syn_digits(s, (int)strlen(a), (int)strlen(a), next);
    int lo = tight_a ? *a - '0' : 0, hi = tight_b ? *b - '0' : 9;
    if (tight_a && tight_b && lo == hi)
        return digit(s, lo, lo, same_length(s, a + 1, b + 1, 1, 1, next));
    int32_t at = -1;
    if (tight_a)
        at = lk__syn_either(s, at, digit(s, lo, lo, same_length(s, a + 1, b + 1, 1, 0, next)));
    if (tight_b)
        at = lk__syn_either(s, at, digit(s, hi, hi, same_length(s, a + 1, b + 1, 0, 1, next)));
    if (lo + tight_a <= hi - tight_b)
        at = lk__syn_either(
            s, at, digit(s, lo + tight_a, hi - tight_b, same_length(s, a + 1, b + 1, 0, 0, next)));
    return at;
}

/* Whole numbers a..b, 0 <= a. */
static int32_t whole_nodes(struct lk_syntax *s, long long a, long long b, int32_t next)
{
    char lo[24], hi[24];
    int32_t at = -1;
    if (a > b || next < 0) return -1;
    int na = snprintf(lo, sizeof lo, "%lld", a), nb = snprintf(hi, sizeof hi, "%lld", b);
    for (int n = na; n <= nb; n++) {
        char from[24] = "1000000000000000000", to[24] = "9999999999999999999";
        from[n] = to[n] = 0;
        at = lk__syn_either(s, at,
                            same_length(s, n == na ? lo : from, n == nb ? hi : to, 1, 1, next));
    }
    return at;
}

/* ---- fractions ---- */

struct frac {
    struct lk_syntax *s;
    const char *lo, *hi; /* digits without trailing zeros; NULL: no bound */
    int lo_open, hi_open;
    int32_t next;
    int most; /* digits: few more than the bounds have, or a double would round the rest onto a
                 bound */
};

static int32_t frac_free(const struct frac *f, int i)
{
    return i >= f->most ? f->next : lk__syn_digits(f->s, 0, f->most - i, f->next);
}

/* Digits from place i on, where the number agrees with lo (tl) and hi (th) so far. -1: no way. */
static int32_t frac_digits(const struct frac *f, int i, int tl, int th)
{
    int nl = tl ? (int)strlen(f->lo) : 0, nh = th ? (int)strlen(f->hi) : 0;
    int32_t at = -1;
    if (!tl && !th && i) return frac_free(f, i);
    int stop = i && (!tl || (i >= nl && !f->lo_open)) && (!th || i < nh || !f->hi_open);
    if (th && i >= nh && f->hi_open) return -1;
    if (stop) at = f->next;
    if (i >= f->most) return at;
    int lo = tl && i < nl ? f->lo[i] - '0' : 0, hi = !th ? 9 : i < nh ? f->hi[i] - '0' : 0;
    if (lo > hi) return at;
    if (tl && th && lo == hi)
        return lk__syn_either(f->s, at, digit(f->s, lo, lo, frac_digits(f, i + 1, 1, 1)));
    if (tl) at = lk__syn_either(f->s, at, digit(f->s, lo, lo, frac_digits(f, i + 1, 1, 0)));
    if (th) at = lk__syn_either(f->s, at, digit(f->s, hi, hi, frac_digits(f, i + 1, 0, 1)));
    if (lo + tl <= hi - th)
        at = lk__syn_either(f->s, at, digit(f->s, lo + tl, hi - th, frac_free(f, i + 1)));
    return at;
}

/* An optional fraction within bounds. */
static int32_t frac_nodes(struct frac *f)
{
    size_t nl = f->lo ? strlen(f->lo) : 0, nh = f->hi ? strlen(f->hi) : 0;
    f->most = (int)(nl > nh ? nl : nh) + 3;
    if (f->most < 6) f->most = 6;
    if (f->most > DIGITS) f->most = DIGITS;
    int bare = (!f->lo || (!*f->lo && !f->lo_open)) && (!f->hi || *f->hi || !f->hi_open);
    int32_t at = frac_digits(f, 0, f->lo != NULL, f->hi != NULL);
    if (at >= 0) at = lk__syn_text(f->s, ".", 1, at);
    return lk__syn_either(f->s, bare ? f->next : -1, at);
}

/* ---- signed ---- */

struct dec { /* x >= 0 as digits before and behind the point */
    long long whole;
    char frac[32];
};

static void dec_of(struct dec *d, double x)
{
    char e[40];
    int p = 0, n = 0;
    memset(d, 0, sizeof *d);
    if (x >= 1e18) {
        d->whole = WHOLE_MAX;
        return;
    }
    do snprintf(e, sizeof e, "%.*e", p, x);
    while (strtod(e, NULL) != x && ++p < 17);
    int point = atoi(strchr(e, 'e') + 1) + 1; /* value = 0.DIGITS * 10^point */
    for (const char *c = e; *c != 'e'; c++) {
        if (*c == '.') continue;
        if (n < point)
            d->whole = d->whole * 10 + (*c - '0');
        else
            while ((int)strlen(d->frac) < n - point && strlen(d->frac) < DIGITS)
                strcat(d->frac, "0");
        if (n >= point && strlen(d->frac) < DIGITS) {
            char one[2] = {*c, 0};
            strcat(d->frac, one);
        }
        n++;
    }
    for (; n < point; n++) d->whole *= 10;
    for (size_t k = strlen(d->frac); k > 0 && d->frac[k - 1] == '0'; k--) d->frac[k - 1] = 0;
}

/* Numbers a..b, 0 <= a; b NULL: no end. */
static int32_t positive(struct lk_syntax *s, const struct dec *a, int a_open, const struct dec *b,
                        int b_open, int32_t next)
{
    char one[24];
    struct frac low = {s, a->frac, NULL, a_open, 0, next, 0},
                high = {s, NULL, b ? b->frac : NULL, 0, b_open, next, 0},
                any = {s, NULL, NULL, 0, 0, next, 0};
    long long top = b ? b->whole : WHOLE_MAX + 1;
    int32_t at = -1;
    if (a->whole > top) return -1;
    if (a->whole == top) low.hi = b->frac, low.hi_open = b_open;
    int32_t f = frac_nodes(&low);
    snprintf(one, sizeof one, "%lld", a->whole);
    if (f >= 0) at = lk__syn_text(s, one, strlen(one), f);
    if (a->whole == top) return at;
    if (a->whole + 1 <= top - 1)
        at = lk__syn_either(s, at, whole_nodes(s, a->whole + 1, top - 1, frac_nodes(&any)));
    if (b && (f = frac_nodes(&high)) >= 0) {
        snprintf(one, sizeof one, "%lld", top);
        at = lk__syn_either(s, at, lk__syn_text(s, one, strlen(one), f));
    }
    return at;
}

static int32_t real_nodes(struct lk_syntax *s, const struct lk_bounds *b, int32_t next)
{
    struct dec lo, hi, zero = {0, ""};
    int32_t at = -1;
    dec_of(&lo, fabs(b->lo));
    dec_of(&hi, fabs(b->hi));
    int hi_ends = b->has_hi && fabs(b->hi) < 1e18, lo_ends = b->has_lo && fabs(b->lo) < 1e18;
    if (!b->has_hi || b->hi >= 0) { /* 0 and up */
        int from_lo = b->has_lo && b->lo >= 0;
        at = positive(s, from_lo ? &lo : &zero, from_lo && b->lo_open, hi_ends ? &hi : NULL,
                      b->hi_open, next);
    }
    if (!b->has_lo || b->lo < 0) { /* below 0: the mirror; -0 is left out */
        int from_hi = b->has_hi && b->hi < 0;
        int32_t m = positive(s, from_hi ? &hi : &zero, from_hi ? b->hi_open : 1,
                             lo_ends ? &lo : NULL, b->lo_open, next);
        if (m >= 0) at = lk__syn_either(s, at, lk__syn_text(s, "-", 1, m));
    }
    return at;
}

static long long whole_bound(double x, int has, int open, int up)
{
    if (!has || fabs(x) >= 1e18)
        return has ? (x > 0 ? WHOLE_MAX : -WHOLE_MAX) : up ? -WHOLE_MAX : WHOLE_MAX;
    double r = up ? ceil(x) : floor(x);
    if (open && r == x) r += up ? 1 : -1;
    return (long long)r;
}

static int32_t integer_nodes(struct lk_syntax *s, const struct lk_bounds *b, int32_t next)
{
    long long lo = whole_bound(b->lo, b->has_lo, b->lo_open, 1),
              hi = whole_bound(b->hi, b->has_hi, b->hi_open, 0);
    int32_t at = hi >= 0 ? whole_nodes(s, lo > 0 ? lo : 0, hi, next) : -1;
    if (lo >= 0) return at;
    int32_t m = whole_nodes(s, hi < 0 ? -hi : 1, -lo, next);
    return m < 0 ? at : lk__syn_either(s, at, lk__syn_text(s, "-", 1, m));
}

/* -?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,2})? */
static int32_t free_number(struct lk_syntax *s, int whole, int32_t next)
{
    int32_t tail = next;
    if (!whole) {
        int32_t e = lk__syn_digits(s, 1, 2, next);
        e = lk__syn_split(s, lk__syn_chars(s, "+-", e), e);
        tail = lk__syn_split(s, lk__syn_chars(s, "eE", e), tail);
        tail = lk__syn_split(s, lk__syn_text(s, ".", 1, lk__syn_digits(s, 1, DIGITS, tail)), tail);
    }
    int32_t n = lk__syn_range(s, '1', '9', lk__syn_digits(s, 0, DIGITS - 1, tail));
    n = lk__syn_split(s, lk__syn_text(s, "0", 1, tail), n);
    return lk__syn_split(s, lk__syn_text(s, "-", 1, n), n);
}

int32_t lk__number_nodes(struct lk_syntax *s, int whole, const struct lk_bounds *b, int32_t next)
{
    if ((b->has_lo && b->lo >= 1e18) || (b->has_hi && b->hi <= -1e18)) return -1;
    if (!b->has_lo && !b->has_hi) return free_number(s, whole, next);
    return whole ? integer_nodes(s, b, next) : real_nodes(s, b, next);
}
