/* Makers of syntax nodes: see syntax.h. A maker that finds no room marks the syntax failed and
 * returns node 0; the builder checks once. */
#include "text/syntax.h"

#include "base/mem.h"
#include "text/utf8.h"

#include <string.h>

void lk__syn_free(struct lk_syntax *s)
{
    lk_free(s->nodes);
    lk_free(s->sets);
    lk_free(s->rules);
    lk_free(s->limits);
    for (int32_t i = 0; i < s->n_runs; i++) lk_free(s->runs[i].next);
    lk_free(s->runs);
    *s = (struct lk_syntax){0};
}

/* Room for one more; 0 or the failure. */
static int grow(struct lk_syntax *s, void *list, int32_t n, int32_t *cap, size_t size)
{
    void **p = list;
    if (s->failed) return s->failed;
    if (n >= LK_SYNTAX_MAX) return s->failed = LK_EREQUEST;
    if (n < *cap) return 0;
    int32_t want = *cap ? *cap * 2 : 64;
    void *grown = lk_reallocarray(*p, (size_t)want, size);
    if (!grown) return s->failed = LK_ENOMEM;
    *p = grown;
    *cap = want;
    return 0;
}

static int32_t node(struct lk_syntax *s, enum lk_node_kind kind, int32_t next, int32_t a, int32_t b)
{
    if (grow(s, &s->nodes, s->n_nodes, &s->cap_nodes, sizeof *s->nodes)) return 0;
    s->nodes[s->n_nodes] = (struct lk_node){(int32_t)kind, next, a, b};
    return s->n_nodes++;
}

int32_t lk__syn_end(struct lk_syntax *s)
{
    return node(s, LK_NODE_END, -1, 0, 0);
}

int32_t lk__syn_ret(struct lk_syntax *s)
{
    return node(s, LK_NODE_RET, -1, 0, 0);
}

int32_t lk__syn_set(struct lk_syntax *s, const uint32_t set[8], int32_t next)
{
    int32_t k = s->n_sets - 1;
    for (; k >= 0 && k > s->n_sets - 32; k--) /* neighbours often repeat: digits, hex, a newline */
        if (!memcmp(s->sets[k], set, sizeof s->sets[k])) return node(s, LK_NODE_BYTES, next, k, 0);
    if (grow(s, &s->sets, s->n_sets, &s->cap_sets, sizeof *s->sets)) return 0;
    memcpy(s->sets[s->n_sets], set, sizeof *s->sets);
    return node(s, LK_NODE_BYTES, next, s->n_sets++, 0);
}

int32_t lk__syn_range(struct lk_syntax *s, int lo, int hi, int32_t next)
{
    uint32_t set[8] = {0};
    for (int b = lo; b <= hi; b++) lk__bit_set(set, b);
    return lk__syn_set(s, set, next);
}

int32_t lk__syn_chars(struct lk_syntax *s, const char *any_of, int32_t next)
{
    uint32_t set[8] = {0};
    for (; *any_of; any_of++) lk__bit_set(set, (unsigned char)*any_of);
    return lk__syn_set(s, set, next);
}

int32_t lk__syn_text(struct lk_syntax *s, const char *p, size_t n, int32_t next)
{
    while (n-- > 0) next = lk__syn_range(s, (unsigned char)p[n], (unsigned char)p[n], next);
    return next;
}

int32_t lk__syn_split(struct lk_syntax *s, int32_t a, int32_t b)
{
    return node(s, LK_NODE_SPLIT, a, b, 0);
}

void lk__syn_aim(struct lk_syntax *s, int32_t split, int32_t a, int32_t b)
{
    if (s->failed) return;
    s->nodes[split].next = a;
    s->nodes[split].a = b;
}

int32_t lk__syn_rule(struct lk_syntax *s)
{
    if (grow(s, &s->rules, s->n_rules, &s->cap_rules, sizeof *s->rules)) return 0;
    s->rules[s->n_rules] = -1;
    return s->n_rules++;
}

void lk__syn_rule_is(struct lk_syntax *s, int32_t rule, int32_t first)
{
    if (!s->failed) s->rules[rule] = first;
}

int32_t lk__syn_call(struct lk_syntax *s, int32_t rule, int nests, int32_t next)
{
    return node(s, LK_NODE_CALL, next, rule, nests);
}

int32_t lk__syn_span(struct lk_syntax *s, enum lk_span kind, uint32_t least, uint32_t most,
                     int32_t next)
{
    if (grow(s, &s->limits, s->n_limits, &s->cap_limits, sizeof *s->limits)) return 0;
    s->limits[s->n_limits][0] = least;
    s->limits[s->n_limits][1] = most;
    return node(s, LK_NODE_SPAN, next, s->n_limits++, (int32_t)kind);
}

int32_t lk__syn_token(struct lk_syntax *s, int32_t id, int32_t next)
{
    return node(s, LK_NODE_TOKEN, next, id, 0);
}

int32_t lk__syn_run_of(struct lk_syntax *s, struct lk_run run)
{
    for (int32_t i = 0; i < s->n_runs; i++)
        if (s->runs[i].n == run.n && s->runs[i].first == run.first &&
            !memcmp(s->runs[i].next, run.next, (size_t)run.n * sizeof *run.next)) {
            lk_free(run.next);
            return i;
        }
    if (grow(s, &s->runs, s->n_runs, &s->cap_runs, sizeof *s->runs)) {
        lk_free(run.next);
        return 0;
    }
    s->runs[s->n_runs] = run;
    return s->n_runs++;
}

int32_t lk__syn_run(struct lk_syntax *s, int32_t run, uint32_t least, uint32_t most, int32_t next)
{
    if (grow(s, &s->limits, s->n_limits, &s->cap_limits, sizeof *s->limits)) return 0;
    s->limits[s->n_limits][0] = least;
    s->limits[s->n_limits][1] = most;
    return node(s, LK_NODE_RUN, next, s->n_limits++, run);
}

int lk__syn_check(const struct lk_syntax *s, struct lk_err *e)
{
    if (s->failed == LK_ENOMEM) return lk_fail(e, LK_ENOMEM, "no memory for a grammar");
    if (s->failed)
        return lk_fail(e, s->failed, "the schema is too large: more than %d grammar nodes",
                       LK_SYNTAX_MAX);
    return 0;
}

int32_t lk__syn_digits(struct lk_syntax *s, int least, int most, int32_t next)
{
    int32_t at = next;
    for (int k = most; k > 0; k--) {
        int32_t digit = lk__syn_range(s, '0', '9', at);
        at = k > least ? lk__syn_split(s, digit, next) : digit;
    }
    return at;
}

int32_t lk__syn_either(struct lk_syntax *s, int32_t a, int32_t b)
{
    return a < 0 ? b : b < 0 ? a : lk__syn_split(s, a, b);
}

/* The range is cut until each part is a product of byte ranges. */
int32_t lk__syn_utf8(struct lk_syntax *s, uint32_t lo, uint32_t hi, int32_t next)
{
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff};
    if (lo > hi || s->failed) return -1;
    for (size_t i = 0; i < 5; i++)
        if (lo <= ends[i] && hi > ends[i])
            return lk__syn_either(s, lk__syn_utf8(s, lo, ends[i], next),
                                  lk__syn_utf8(s, ends[i] + 1, hi, next));
    if (lo >= 0xd800 && hi <= 0xdfff) return -1;
    for (int k = 6; k < 24; k += 6) {
        uint32_t m = (1u << k) - 1;
        if (lo < 0x80 || (lo & ~m) == (hi & ~m)) continue;
        if (lo & m)
            return lk__syn_either(s, lk__syn_utf8(s, lo, lo | m, next),
                                  lk__syn_utf8(s, (lo | m) + 1, hi, next));
        if ((hi & m) != m)
            return lk__syn_either(s, lk__syn_utf8(s, lo, (hi & ~m) - 1, next),
                                  lk__syn_utf8(s, hi & ~m, hi, next));
    }
    char a[4], b[4];
    for (int i = (lk__utf8_put(b, hi), lk__utf8_put(a, lo)) - 1; i >= 0; i--)
        next = lk__syn_range(s, (unsigned char)a[i], (unsigned char)b[i], next);
    return next;
}
