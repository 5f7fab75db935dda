/* Regular expressions as syntax nodes: see pattern.h. Parsed to a tree in an arena, then turned
 * into nodes from the end to the front; a counted repetition is copied, and the node limit of the
 * syntax bounds what that can cost. */
#include "text/pattern.h"

#include "base/mem.h"
#include "text/repeat.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { RANGES = 96, DEPTH = 60, REPEAT = 2000, LAST = 0x10ffff };

struct chars {
    uint32_t r[RANGES][2];
    int n;
};
enum kind { SET, CAT, ALT, REP, EMPTY };
struct re {
    enum kind kind;
    struct re *a, *b;
    int least, most; /* REP; most -1: no end */
    struct chars set;
};
struct parse {
    struct lk_arena arena;
    const char *p, *end;
    int depth;
    struct lk_err *e;
};

static void *bad(struct parse *p, const char *why)
{
    lk_fail(p->e, LK_EREQUEST, "pattern: %s", why);
    return NULL;
}

static struct re *make(struct parse *p, enum kind kind, struct re *a, struct re *b)
{
    struct re *r = lk_arena_alloc(&p->arena, kind == SET ? sizeof *r : offsetof(struct re, set));
    if (!r) {
        lk_fail(p->e, LK_ENOMEM, "no memory for a pattern");
        return NULL;
    }
    r->kind = kind;
    r->a = a;
    r->b = b;
    return r;
}

/* ---- sets of characters ---- */

static int add(struct chars *c, uint32_t lo, uint32_t hi)
{
    if (c->n == RANGES) return -1;
    c->r[c->n][0] = lo;
    c->r[c->n++][1] = hi;
    return 0;
}

static int range_cmp(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return x[0] < y[0] ? -1 : x[0] > y[0];
}

static void tidy(struct chars *c)
{
    int n = 0;
    qsort(c->r, (size_t)c->n, sizeof c->r[0], range_cmp);
    for (int i = 0; i < c->n; i++) {
        if (n && c->r[i][0] <= c->r[n - 1][1] + 1) {
            if (c->r[i][1] > c->r[n - 1][1]) c->r[n - 1][1] = c->r[i][1];
            continue;
        }
        c->r[n][0] = c->r[i][0];
        c->r[n++][1] = c->r[i][1];
    }
    c->n = n;
}

static int negate(struct chars *c)
{
    struct chars out = {.n = 0};
    uint32_t from = 0;
    int rc = 0;
    tidy(c);
    for (int i = 0; i < c->n; i++) {
        if (c->r[i][0] > from) rc |= add(&out, from, c->r[i][0] - 1);
        from = c->r[i][1] + 1;
    }
    if (from <= LAST) rc |= add(&out, from, LAST);
    *c = out;
    return rc;
}

/* \d \w \s and their opposites. */
static int add_class(struct chars *c, char which)
{
    struct chars k = {.n = 0};
    switch (which | 0x20) {
    case 'd':
        add(&k, '0', '9');
        break;
    case 'w':
        add(&k, '0', '9'), add(&k, 'A', 'Z'), add(&k, '_', '_'), add(&k, 'a', 'z');
        break;
    default:
        add(&k, 9, 13), add(&k, ' ', ' ');
    }
    if (which < 'a') {
        if (which == 'W') add(&k, 0x80, LAST); /* letters of other scripts are \w to some engines */
        if (which == 'S') {
            static const uint32_t spaces[][2] = {
                {0x1c, 0x1f},     {0x80, 0xa0},     {0x1680, 0x1680},
                {0x180e, 0x180e}, {0x2000, 0x200f}, {0x2028, 0x202f},
                {0x205f, 0x206f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
            for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
                add(&k, spaces[i][0], spaces[i][1]);
        }
        negate(&k);
    }
    for (int i = 0; i < k.n; i++)
        if (add(c, k.r[i][0], k.r[i][1])) return -1;
    return 0;
}

/* ---- parsing ---- */

/* Behind a backslash: a class (returns 1, added to c) or one character (0, in *cp); -1 refused. */
static int take_escape(struct parse *p, struct chars *c, uint32_t *cp)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    static const char hexits[] = "0123456789abcdef";
    if (p->p >= p->end) return bad(p, "ends with a backslash"), -1;
    char k = *p->p++;
    if (strchr("dwsDWS", k)) return add_class(c, k) ? (bad(p, "a class is too large"), -1) : 1;
    const char *at = strchr(from, k);
    if (k && at) {
        *cp = (unsigned char)to[at - from];
        return 0;
    }
    if (k == 'x' || k == 'u') {
        uint32_t v = 0;
        for (int i = k == 'x' ? 2 : 4; i > 0; i--, p->p++) {
            const char *d = p->p < p->end && *p->p
                                ? strchr(hexits, *p->p >= 'A' && *p->p <= 'F' ? *p->p + 32 : *p->p)
                                : NULL;
            if (!d) return bad(p, "\\x needs 2 and \\u 4 hexadecimal digits"), -1;
            v = v * 16 + (uint32_t)(d - hexits);
        }
        *cp = v;
        return v >= 0xd800 && v <= 0xdfff ? (bad(p, "surrogates are not supported"), -1) : 0;
    }
    if ((k >= '0' && k <= '9') || (k >= 'a' && k <= 'z') || (k >= 'A' && k <= 'Z') ||
        (unsigned char)k >= 0x80)
        return lk_fail(p->e, LK_EREQUEST, "pattern: \\%c is not supported", k), -1;
    *cp = (unsigned char)k;
    return 0;
}

static uint32_t take_char(struct parse *p)
{
    uint32_t cp = 0xfffd;
    int is_bad, cut, n = lk__utf8_next(p->p, (size_t)(p->end - p->p), &cp, &is_bad, &cut);
    p->p += n ? n : is_bad;
    return cp;
}

/* One item of a class: 1 it was a class itself, 0 a character in *cp. */
static int take_item(struct parse *p, struct chars *c, uint32_t *cp)
{
    if (*p->p == '\\') {
        p->p++;
        if (p->p < p->end && *p->p == 'b') {
            p->p++;
            *cp = '\b';
            return 0;
        }
        return take_escape(p, c, cp);
    }
    *cp = take_char(p);
    return 0;
}

static struct re *parse_class(struct parse *p)
{
    struct re *r = make(p, SET, NULL, NULL);
    int not = p->p < p->end && *p->p == '^';
    if (!r) return NULL;
    p->p += not ;
    while (p->p < p->end && *p->p != ']') {
        uint32_t lo = 0, hi = 0;
        int k = take_item(p, &r->set, &lo);
        if (k < 0) return NULL;
        if (k) continue;
        hi = lo;
        if (p->end - p->p >= 2 && *p->p == '-' && p->p[1] != ']') {
            p->p++;
            if ((k = take_item(p, &r->set, &hi)) < 0) return NULL;
            if (k || hi < lo)
                return bad(p, "a range in a class must go upwards between characters");
        }
        if (add(&r->set, lo, hi)) return bad(p, "a class is too large");
    }
    if (p->p >= p->end) return bad(p, "a class is not closed");
    p->p++;
    if (not &&negate(&r->set)) return bad(p, "a class is too large");
    tidy(&r->set);
    return r;
}

static struct re *parse_alt(struct parse *p);

static struct re *parse_group(struct parse *p)
{
    if (p->end - p->p >= 2 && *p->p == '?') {
        if (p->p[1] != ':') return bad(p, "look-around, named groups and flags are not supported");
        p->p += 2;
    }
    if (++p->depth > DEPTH) return bad(p, "groups are nested too deeply");
    struct re *r = parse_alt(p);
    p->depth--;
    if (!r) return NULL;
    if (p->p >= p->end || *p->p != ')') return bad(p, "a group is not closed");
    p->p++;
    return r;
}

static struct re *parse_atom(struct parse *p)
{
    char c = *p->p;
    uint32_t cp = 0;
    if (c == '(' || c == '[') {
        p->p++;
        return c == '(' ? parse_group(p) : parse_class(p);
    }
    if (strchr("*+?{", c) && c) return bad(p, "a repetition repeats nothing");
    if (c == '^' || c == '$') return bad(p, "^ and $ are supported at the ends only");
    struct re *r = make(p, SET, NULL, NULL);
    if (!r) return NULL;
    if (c == '.') {
        p->p++;
        add(&r->set, '\n', '\n'), add(&r->set, '\r', '\r'), add(&r->set, 0x2028, 0x2029);
        negate(&r->set);
        return r;
    }
    if (c != '\\') {
        cp = take_char(p);
        add(&r->set, cp, cp);
        return r;
    }
    p->p++;
    int k = take_escape(p, &r->set, &cp);
    if (k < 0) return NULL;
    if (!k) add(&r->set, cp, cp);
    tidy(&r->set);
    return r;
}

static int take_number(struct parse *p)
{
    int v = -1;
    for (; p->p < p->end && *p->p >= '0' && *p->p <= '9'; p->p++) {
        v = (v < 0 ? 0 : v) * 10 + (*p->p - '0');
        if (v > REPEAT) v = REPEAT + 1;
    }
    return v;
}

static struct re *parse_repeat(struct parse *p, struct re *a)
{
    while (a && p->p < p->end && strchr("*+?{", *p->p) && *p->p) {
        char c = *p->p++;
        struct re *r = make(p, REP, a, NULL);
        if (!r) return NULL;
        r->least = c == '+';
        r->most = c == '?' ? 1 : -1;
        if (c == '{') {
            r->least = r->most = take_number(p);
            if (p->p < p->end && *p->p == ',') {
                p->p++;
                r->most = take_number(p);
            }
            if (p->p >= p->end || *p->p++ != '}' || r->least < 0 ||
                (r->most >= 0 && r->most < r->least))
                return bad(p, "a repetition must be {n}, {n,} or {n,m}");
            if (r->least > REPEAT || r->most > REPEAT) return bad(p, "a repetition is too large");
        }
        if (p->p < p->end && *p->p == '?') p->p++; /* lazy or not, the same strings match */
        a = r;
    }
    return a;
}

static struct re *parse_cat(struct parse *p)
{
    struct re *all = make(p, EMPTY, NULL, NULL);
    while (all && p->p < p->end && *p->p != '|' && *p->p != ')') {
        if (*p->p == '$' && (p->p + 1 == p->end || p->p[1] == '|') && !p->depth) break;
        struct re *one = parse_repeat(p, parse_atom(p));
        all = !one || all->kind == EMPTY ? one : make(p, CAT, all, one);
    }
    return all;
}

static struct re *anything(struct parse *p)
{
    struct re *r = make(p, SET, NULL, NULL), *many = make(p, REP, r, NULL);
    if (!r || !many) return NULL;
    add(&r->set, 0, LAST);
    many->most = -1;
    return many;
}

/* At the top each alternative carries its own anchors. */
static struct re *parse_branch(struct parse *p)
{
    if (p->depth) return parse_cat(p);
    int begins = p->p < p->end && *p->p == '^';
    p->p += begins;
    struct re *r = parse_cat(p);
    if (!r) return NULL;
    int ends = p->p < p->end && *p->p == '$';
    p->p += ends;
    if (!begins) r = make(p, CAT, anything(p), r);
    if (r && !ends) r = make(p, CAT, r, anything(p));
    return r;
}

/* (a|b|\d): alternatives of one character each are a class. */
static int one_set(struct re *a, const struct re *b)
{
    struct chars both = {.n = 0};
    if (a->kind != SET || b->kind != SET || a->set.n + b->set.n > RANGES) return 0;
    for (int i = 0; i < a->set.n; i++) add(&both, a->set.r[i][0], a->set.r[i][1]);
    for (int i = 0; i < b->set.n; i++) add(&both, b->set.r[i][0], b->set.r[i][1]);
    tidy(&both);
    a->set = both;
    return 1;
}

static struct re *parse_alt(struct parse *p)
{
    struct re *r = parse_branch(p);
    while (r && p->p < p->end && *p->p == '|') {
        p->p++;
        struct re *b = parse_branch(p);
        r = !b ? NULL : one_set(r, b) ? r : make(p, ALT, r, b);
    }
    return r;
}

/* ---- nodes ---- */

static int contains(const struct chars *c, uint32_t cp)
{
    for (int i = 0; i < c->n; i++)
        if (cp >= c->r[i][0] && cp <= c->r[i][1]) return 1;
    return 0;
}

/* Characters that a JSON string must write with a backslash. */
static int32_t escape_nodes(struct lk_syntax *s, const struct chars *c, int32_t next)
{
    static const char chars[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    uint32_t brief[8] = {0}, low[2][8] = {{0}, {0}};
    int some = 0, any_low[2] = {0, 0};
    int32_t at = -1;
    for (int i = 0; i < 7; i++)
        if (contains(c, (unsigned char)chars[i])) lk__bit_set(brief, letters[i]), some = 1;
    for (uint32_t cp = 0; cp < 0x20; cp++) {
        if (!contains(c, cp) || (cp && strchr(chars, (int)cp))) continue;
        lk__bit_set(low[cp >> 4], "0123456789abcdef"[cp & 15]);
        any_low[cp >> 4] = 1;
    }
    for (int k = 0; k < 2; k++)
        if (any_low[k])
            at = lk__syn_either(
                s, at, lk__syn_text(s, k ? "u001" : "u000", 4, lk__syn_set(s, low[k], next)));
    if (some) at = lk__syn_either(s, at, lk__syn_set(s, brief, next));
    return at < 0 ? -1 : lk__syn_text(s, "\\", 1, at);
}

static int32_t set_nodes(struct lk_syntax *s, const struct chars *c, int32_t next)
{
    uint32_t ascii[8] = {0};
    int some = 0;
    int32_t at = escape_nodes(s, c, next);
    for (uint32_t cp = 0x20; cp < 0x80; cp++)
        if (cp != '"' && cp != '\\' && contains(c, cp)) lk__bit_set(ascii, (int32_t)cp), some = 1;
    if (some) at = lk__syn_either(s, at, lk__syn_set(s, ascii, next));
    for (int i = 0; i < c->n; i++) {
        uint32_t lo = c->r[i][0] < 0x80 ? 0x80 : c->r[i][0];
        at = lk__syn_either(s, at, lk__syn_utf8(s, lo, c->r[i][1], next));
    }
    return at; /* -1: an empty class matches nothing */
}

static int32_t re_nodes(struct lk_syntax *s, const struct re *r, int32_t next, int spell);

/* What repeats as one node (repeat.h), behind lead when it is not NULL; -1: it cannot be one, and is
 * spelled out. */
static int32_t run_nodes(struct lk_syntax *s, const struct re *lead, const struct re *r,
                         int32_t next)
{
    struct lk_syntax one = {0};
    int32_t end = lk__syn_end(&one), body = re_nodes(&one, r->a, end, 1),
            first = lead ? set_nodes(&one, &lead->set, end) : -1;
    int32_t run = body >= 0 && !one.failed ? lk__run_make(s, &one, body, first) : -1;
    int more = lead != NULL;
    lk__syn_free(&one);
    if (run < 0) return -1;
    return lk__syn_run(s, run, (uint32_t)(r->least + more),
                       r->most < 0 ? LK_NO_LIMIT : (uint32_t)(r->most + more), next);
}

static int is_run(const struct re *r)
{
    return r->kind == REP && r->most && r->most != 1;
}

static int chars_of(const struct chars *c)
{
    uint32_t n = 0;
    for (int i = 0; i < c->n; i++) n += c->r[i][1] - c->r[i][0] + 1;
    return n > 1000 ? 1000 : (int)n;
}

/* [A-Za-z_][A-Za-z0-9_]*: a wide class in front of a run is its first time. -1: it is not so. */
static int32_t led_nodes(struct lk_syntax *s, const struct re *r, int32_t next)
{
    const struct re *lead = r->a->kind == CAT ? r->a->b : r->a;
    if (!is_run(r->b) || lead->kind != SET || chars_of(&lead->set) < 10) return -1;
    int32_t at = run_nodes(s, lead, r->b, next);
    return at >= 0 && r->a->kind == CAT ? re_nodes(s, r->a->a, at, 0) : at;
}

static int32_t rep_nodes(struct lk_syntax *s, const struct re *r, int32_t next, int spell)
{
    int32_t at = next;
    if (!spell && is_run(r) && (at = run_nodes(s, NULL, r, next)) >= 0) return at;
    at = next;
    if (r->most < 0) {
        int32_t loop = lk__syn_split(s, next, next), body = re_nodes(s, r->a, loop, spell);
        if (body >= 0) lk__syn_aim(s, loop, body, next);
        at = loop;
    }
    for (int k = r->most; k > r->least && !s->failed; k--)
        at = lk__syn_either(s, re_nodes(s, r->a, at, spell), next);
    for (int k = 0; k < r->least && at >= 0 && !s->failed; k++) at = re_nodes(s, r->a, at, spell);
    return at;
}

/* spell: nothing becomes a run. */
static int32_t re_nodes(struct lk_syntax *s, const struct re *r, int32_t next, int spell)
{
    int32_t at;
    if (s->failed || next < 0) return -1;
    switch (r->kind) {
    case EMPTY:
        return next;
    case SET:
        return set_nodes(s, &r->set, next);
    case CAT:
        if (!spell && (at = led_nodes(s, r, next)) >= 0) return at;
        return re_nodes(s, r->a, re_nodes(s, r->b, next, spell), spell);
    case ALT:
        return lk__syn_either(s, re_nodes(s, r->a, next, spell), re_nodes(s, r->b, next, spell));
    case REP:
        break;
    }
    return rep_nodes(s, r, next, spell);
}

int lk__pattern_nodes(struct lk_syntax *s, const char *re, size_t len, int32_t next, int32_t *first,
                      struct lk_err *e)
{
    struct parse p = {.p = re, .end = re + len, .e = e};
    struct re *r = parse_alt(&p);
    if (r && p.p < p.end) r = bad(&p, "an unmatched )");
    *first = r ? re_nodes(s, r, next, 0) : -1;
    lk_arena_free(&p.arena);
    if (!r) return e ? e->code : LK_EREQUEST;
    if (*first < 0 && !s->failed) return lk_fail(e, LK_EREQUEST, "pattern: no string matches it");
    if (*first < 0) *first = 0;
    return 0;
}
