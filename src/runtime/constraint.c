/* A rule on the answer as a lk_grammar. The answer is walked token by token through these phases:
 *
 *     THINK --budget spent--> CLOSE --list ends--+
 *       |                                        v
 *       +--</think>--> GAP --list ends--> BEGIN --string ends--> INNER (schema) or FREE
 *
 * THINK, FREE: no constraint. CLOSE and GAP force a fixed list of tokens: the closing message with </think>, or the blank
 * line the template puts after it. BEGIN allows any tokenization of fixed bytes, an added token first where one fits
 * (<tool_call> must be the one token the model was trained on). Every accept pushes the state it left, so that rewind, a
 * draft that was refused, only pops. Runs on the engine thread; grows its history by doubling, never in mask. */
#include "runtime/constraint.h"

#include "base/mem.h"

#include <string.h>

enum phase { FREE, THINK, CLOSE, GAP, BEGIN, INNER };

struct state {
    enum phase phase;
    int at;  /* THINK: tokens so far; CLOSE, GAP: tokens of the list; BEGIN: bytes */
    int alt; /* BEGIN: an alternative that agrees with what was said */
    int inner; /* tokens the inner grammar has accepted */
};

struct constraint {
    struct state now, *past;
    size_t n_past, cap_past;
    int budget;
    int32_t think_end;
    struct lk_ids close, gap;
    struct lk_buf *alts; /* BEGIN: whole strings */
    int n_alts;
    struct lk_grammar inner;
    const struct lk_tokenizer *tok;
};

static void enter_answer(struct constraint *c, struct state *s)
{
    s->at = s->alt = 0;
    s->phase = c->n_alts ? BEGIN : c->inner.self ? INNER : FREE;
}

static void set_only(uint32_t *bits, int vocab, int32_t id)
{
    memset(bits, 0, ((size_t)vocab + 31) / 32 * sizeof *bits);
    if (id >= 0 && id < vocab) bits[id / 32] |= 1u << (id % 32);
}

/* Length of token id when it continues one of the alternatives from byte `at`, else 0; *alt says which. */
static size_t begin_fits(const struct constraint *c, const struct state *s, int32_t id, int *alt)
{
    size_t len, at = (size_t)s->at;
    const char *said = c->alts[s->alt].data, *t = lk_tokenizer_bytes(c->tok, id, &len);
    if (!t || !len || lk_tokenizer_is_special(c->tok, id) == 1) return 0;
    for (int i = 0; i < c->n_alts; i++) {
        const struct lk_buf *a = &c->alts[i];
        if (a->len < at + len || memcmp(a->data + at, t, len) || memcmp(a->data, said, at)) continue;
        *alt = i;
        return len;
    }
    return 0;
}

static void begin_mask(const struct constraint *c, uint32_t *bits, int vocab)
{
    int n = lk_tokenizer_vocab(c->tok), alt, added = 0;
    memset(bits, 0, ((size_t)vocab + 31) / 32 * sizeof *bits);
    for (int pass = 0; pass < 2 && !added; pass++) { /* added tokens first; plain ones only when none fits */
        for (int32_t id = 0; id < n && id < vocab; id++) {
            if ((lk_tokenizer_is_special(c->tok, id) == 2) != (pass == 0)) continue;
            if (!begin_fits(c, &c->now, id, &alt)) continue;
            bits[id / 32] |= 1u << (id % 32);
            added |= pass == 0;
        }
    }
}

static int rule_mask(void *self, uint32_t *bits, int vocab)
{
    struct constraint *c = self;
    const struct state *s = &c->now;
    switch (s->phase) {
    case THINK:
        if (c->budget < 0 || s->at < c->budget) return 0;
        set_only(bits, vocab, c->close.v[0]);
        return 1;
    case CLOSE: set_only(bits, vocab, c->close.v[s->at]); return 1;
    case GAP: set_only(bits, vocab, c->gap.v[s->at]); return 1;
    case BEGIN: begin_mask(c, bits, vocab); return 1;
    case INNER: return c->inner.mask(c->inner.self, bits, vocab);
    case FREE: break;
    }
    return 0;
}

static int step_think(struct constraint *c, struct state *s, int32_t id)
{
    int forced = c->budget >= 0 && s->at >= c->budget;
    if (forced && id != c->close.v[0]) return -1;
    s->at++;
    if (forced) {
        s->phase = CLOSE;
        s->at = 1;
    } else if (id == c->think_end) {
        s->phase = c->n_alts || c->inner.self ? GAP : FREE;
        s->at = 0;
    }
    return 0;
}

static int step(struct constraint *c, struct state *s, int32_t id)
{
    int alt = 0;
    size_t len;
    switch (s->phase) {
    case THINK:
        if (step_think(c, s, id)) return -1;
        break;
    case CLOSE:
        if (id != c->close.v[s->at++]) return -1;
        break;
    case GAP:
        if (id != c->gap.v[s->at++]) return -1;
        break;
    case BEGIN:
        if (!(len = begin_fits(c, s, id, &alt))) return -1;
        s->at += (int)len;
        s->alt = alt;
        if ((size_t)s->at == c->alts[alt].len) s->phase = c->inner.self ? INNER : FREE;
        return 0;
    case INNER:
        if (c->inner.accept(c->inner.self, id)) return -1;
        s->inner++;
        return 0;
    case FREE: return 0;
    }
    if ((s->phase == CLOSE && (size_t)s->at == c->close.n) || (s->phase == GAP && (size_t)s->at == c->gap.n))
        enter_answer(c, s);
    return 0;
}

static int rule_accept(void *self, int32_t id)
{
    struct constraint *c = self;
    struct state next = c->now;
    if (c->n_past == c->cap_past) {
        size_t cap = c->cap_past ? c->cap_past * 2 : 256;
        struct state *p = lk_reallocarray(c->past, cap, sizeof *p);
        if (!p) return -1;
        c->past = p;
        c->cap_past = cap;
    }
    if (step(c, &next, id)) return -1;
    c->past[c->n_past++] = c->now;
    c->now = next;
    return 0;
}

static void rule_rewind(void *self, int n)
{
    struct constraint *c = self;
    int inner = c->now.inner;
    if (n <= 0) return;
    if ((size_t)n > c->n_past) n = (int)c->n_past;
    c->n_past -= (size_t)n;
    if (n) c->now = c->past[c->n_past];
    if (inner > c->now.inner) c->inner.rewind(c->inner.self, inner - c->now.inner);
}

static void rule_free(void *self)
{
    struct constraint *c = self;
    if (!c) return;
    if (c->inner.self) c->inner.free(c->inner.self);
    for (int i = 0; i < c->n_alts; i++) lk_buf_free(&c->alts[i]);
    lk_free(c->alts);
    lk_free(c->past);
    lk_ids_free(&c->close);
    lk_ids_free(&c->gap);
    lk_free(c);
}

static int build_alts(struct constraint *c, const struct lk_wire_rule *r)
{
    int n = r->n_choices > 0 ? r->n_choices : 1;
    if (!(c->alts = lk_calloc((size_t)n, sizeof *c->alts))) return LK_ENOMEM;
    c->n_alts = n;
    for (int i = 0; i < n; i++) {
        lk_buf_str(&c->alts[i], r->begin);
        if (r->n_choices > 0) lk_buf_str(&c->alts[i], r->choices[i]);
        if (c->alts[i].failed) return LK_ENOMEM;
    }
    return 0;
}

static int build_lists(struct constraint *c, const struct lk_wire_rule *r, struct lk_err *e)
{
    const char *text = r->budget_text ? r->budget_text : "";
    int rc;
    if ((rc = lk_tokenizer_encode(c->tok, "\n\n", 2, LK_SPECIALS_NONE, &c->gap, e))) return rc;
    if (r->budget < 0) return 0;
    if (c->think_end < 0) return lk_fail(e, LK_EREQUEST, "this model has no </think> token: no thinking budget");
    if ((rc = lk_tokenizer_encode(c->tok, text, strlen(text), LK_SPECIALS_NONE, &c->close, e))) return rc;
    if ((rc = lk_tokenizer_encode(c->tok, "\n", 1, LK_SPECIALS_NONE, &c->close, e))) return rc;
    if ((rc = lk_ids_add(&c->close, c->think_end))) return rc;
    return lk_tokenizer_encode(c->tok, "\n\n", 2, LK_SPECIALS_NONE, &c->close, e);
}

int lk_constraint_build(struct lk_grammar *out, const struct lk_wire_rule *r, const struct lk_tokenizer *tok,
                        const int32_t *stop_ids, int n_stop_ids, struct lk_err *e)
{
    int rc, budget = r->thinking_open && r->budget >= 0;
    memset(out, 0, sizeof *out);
    if (!r->schema && !r->begin && !budget) return 0;
    if (!tok) return lk_fail(e, LK_EREQUEST, "this model has no tokenizer: answers cannot be constrained");
    struct constraint *c = lk_calloc(1, sizeof *c);
    if (!c) return lk_fail(e, LK_ENOMEM, "no memory for a grammar");
    c->tok = tok;
    c->budget = budget ? r->budget : -1;
    c->think_end = lk_tokenizer_find(tok, "</think>");
    struct lk_grammar g = {c, rule_mask, rule_accept, rule_rewind, rule_free};
    if ((rc = build_lists(c, r, e)) || (r->begin && (rc = build_alts(c, r)))) goto out;
    if (r->schema) {
        rc = lk_fail(e, LK_EREQUEST, "structured output is not built in");
        goto out;
    }
    if (r->thinking_open)
        c->now.phase = THINK;
    else
        enter_answer(c, &c->now);
    *out = g;
    return 0;
out:
    rule_free(c);
    return rc < 0 ? lk_fail(e, rc, "no memory for a grammar") : rc;
}
