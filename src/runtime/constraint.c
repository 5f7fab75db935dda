/* A rule on the answer as a lk_grammar. The answer is walked token by token through these phases:
 *
 *     THINK --budget spent--> CLOSE --list ends--+
 *       |                                        v
 *       +--</think>--> GAP --list ends--> BEGIN --name--> PARAM <--> VALUE     (a tool call that must come)
 *                                         or INNER (a schema), or FREE         PARAM --</tool_call>--> END
 *
 * THINK, FREE: no constraint. CLOSE and GAP force a fixed list of tokens: the closing message with </think>, or the blank
 * line the template puts after it. BEGIN and PARAM allow any tokenization of one of a few strings, an added token first
 * where one fits (<tool_call> must be the one token the model was trained on); a parameter comes once, and the call closes
 * only when the required ones are there. VALUE is free text up to its closing tag. END allows the end of the answer only: a
 * call that had to come is all that was asked for. Every accept pushes the state it left,
 * so that rewind, a draft that was refused, only pops. Runs on the engine thread. */
#include "runtime/constraint.h"

#include "base/mem.h"

#include <string.h>

#define CALL_OPEN "<tool_call>\n<function="
#define CALL_SHUT "</function>\n</tool_call>"
#define VALUE_END "\n</parameter>\n"

enum phase { FREE, THINK, CLOSE, GAP, BEGIN, PARAM, VALUE, END, INNER };

struct state {
    enum phase phase;
    int at;        /* THINK: tokens so far; CLOSE, GAP: tokens of the list; BEGIN, PARAM: bytes; VALUE: bytes of VALUE_END */
    int alt;       /* BEGIN, PARAM: a string that agrees with what was said */
    int tool;      /* which one is called */
    uint64_t used; /* its parameters so far */
    int inner;     /* tokens the inner grammar has accepted */
};

struct tool {
    struct lk_buf *params; /* "<parameter=K>\n", and CALL_SHUT last */
    int n_params;          /* without CALL_SHUT */
    uint64_t required;
    int any;               /* its parameters are not known: free after the name */
};

struct constraint {
    struct state now, *past;
    size_t n_past, cap_past;
    int budget;
    int32_t think_end;
    struct lk_ids close, gap;
    struct lk_buf *begin; /* a string a tool: CALL_OPEN "name>\n" */
    struct tool *tools;
    int n_tools;
    struct lk_grammar inner;
    const struct lk_tokenizer *tok;
    struct lk_ids stop;
};

/* ---- strings ---- */

static int n_strings(const struct constraint *c, const struct state *s)
{
    return s->phase == BEGIN ? c->n_tools : c->tools[s->tool].n_params + 1;
}

/* String i of the phase, or NULL when it may not come now. */
static const struct lk_buf *string_at(const struct constraint *c, const struct state *s, int i)
{
    const struct tool *t = &c->tools[s->tool];
    if (s->phase == BEGIN) return &c->begin[i];
    if (i == t->n_params) return (s->used & t->required) == t->required ? &t->params[i] : NULL;
    return s->used >> i & 1 ? NULL : &t->params[i];
}

/* Does text go on one of the phase's strings? *alt says which. */
static int fits(const struct constraint *c, const struct state *s, const char *text, size_t len, int *alt)
{
    const char *said = s->at ? string_at(c, s, s->alt)->data : "";
    size_t at = (size_t)s->at;
    for (int i = 0; i < n_strings(c, s); i++) {
        const struct lk_buf *b = string_at(c, s, i);
        if (!b || b->len < at + len || memcmp(b->data + at, text, len) || memcmp(b->data, said, at)) continue;
        *alt = i;
        return 1;
    }
    return 0;
}

static const char *plain_token(const struct constraint *c, int32_t id, size_t *len)
{
    const char *t = lk_tokenizer_bytes(c->tok, id, len);
    return t && *len && lk_tokenizer_is_special(c->tok, id) != 1 ? t : NULL;
}

static void set_bit(uint32_t *bits, int32_t id)
{
    bits[id / 32] |= 1u << (id % 32);
}

static void clear(uint32_t *bits, int vocab)
{
    memset(bits, 0, ((size_t)vocab + 31) / 32 * sizeof *bits);
}

static void string_mask(const struct constraint *c, uint32_t *bits, int vocab)
{
    int n = lk_tokenizer_vocab(c->tok), alt, added = 0;
    size_t len;
    clear(bits, vocab);
    for (int pass = 0; pass < 2 && !added; pass++) { /* added tokens first; plain ones only when none fits */
        for (int32_t id = 0; id < n && id < vocab; id++) {
            if ((lk_tokenizer_is_special(c->tok, id) == 2) != (pass == 0)) continue;
            const char *t = plain_token(c, id, &len);
            if (!t || !fits(c, &c->now, t, len, &alt)) continue;
            set_bit(bits, id);
            added |= pass == 0;
        }
    }
}

/* ---- a parameter's value ---- */

/* Bytes of VALUE_END that the text said so far ends with. VALUE_END has no proper border but its first byte. */
static int value_next(int at, char ch)
{
    if (ch == VALUE_END[at]) return at + 1;
    return ch == VALUE_END[0];
}

/* State after a token inside a value; -1 when it runs over the end with bytes that may not come there. */
static int value_step(const struct constraint *c, struct state *s, const char *t, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        s->at = value_next(s->at, t[i]);
        if (VALUE_END[s->at]) continue;
        s->phase = PARAM;
        s->at = s->alt = 0;
        if (i + 1 == len) return 0;
        if (!fits(c, s, t + i + 1, len - i - 1, &s->alt)) return -1;
        s->at = (int)(len - i - 1);
        return 0;
    }
    return 0;
}

static void value_mask(const struct constraint *c, uint32_t *bits, int vocab)
{
    int n = lk_tokenizer_vocab(c->tok);
    size_t len;
    clear(bits, vocab);
    for (int32_t id = 0; id < n && id < vocab; id++) {
        struct state s = c->now;
        const char *t = plain_token(c, id, &len);
        if (t && !value_step(c, &s, t, len)) set_bit(bits, id);
    }
}

/* ---- the grammar ---- */

static void enter_answer(const struct constraint *c, struct state *s)
{
    s->at = s->alt = 0;
    s->phase = c->n_tools ? BEGIN : c->inner.self ? INNER : FREE;
}

static int only(uint32_t *bits, int vocab, int32_t id)
{
    clear(bits, vocab);
    if (id >= 0 && id < vocab) set_bit(bits, id);
    return 1;
}

static int rule_mask(void *self, uint32_t *bits, int vocab)
{
    struct constraint *c = self;
    const struct state *s = &c->now;
    switch (s->phase) {
    case THINK: return c->budget >= 0 && s->at >= c->budget ? only(bits, vocab, c->close.v[0]) : 0;
    case CLOSE: return only(bits, vocab, c->close.v[s->at]);
    case GAP: return only(bits, vocab, c->gap.v[s->at]);
    case BEGIN:
    case PARAM: string_mask(c, bits, vocab); return 1;
    case VALUE: value_mask(c, bits, vocab); return 1;
    case END:
        clear(bits, vocab);
        for (size_t i = 0; i < c->stop.n; i++)
            if (c->stop.v[i] >= 0 && c->stop.v[i] < vocab) set_bit(bits, c->stop.v[i]);
        return c->stop.n > 0;
    case INNER: return c->inner.mask(c->inner.self, bits, vocab);
    case FREE: break;
    }
    return 0;
}

static int step_think(const struct constraint *c, struct state *s, int32_t id)
{
    int forced = c->budget >= 0 && s->at >= c->budget;
    if (forced && id != c->close.v[0]) return -1;
    s->at++;
    if (forced) {
        s->phase = CLOSE;
        s->at = 1;
    } else if (id == c->think_end) {
        s->phase = c->n_tools || c->inner.self ? GAP : FREE;
        s->at = 0;
    }
    return 0;
}

/* After a string of BEGIN or PARAM is whole. */
static void string_done(const struct constraint *c, struct state *s)
{
    if (s->phase == BEGIN) {
        s->tool = s->alt;
        s->phase = c->tools[s->tool].any ? FREE : PARAM;
    } else if (s->alt == c->tools[s->tool].n_params) {
        s->phase = END;
    } else {
        s->used |= 1ull << s->alt;
        s->phase = VALUE;
    }
    s->at = s->alt = 0;
}

static int step_text(const struct constraint *c, struct state *s, int32_t id)
{
    size_t len;
    const char *t = plain_token(c, id, &len);
    if (!t) return -1;
    if (s->phase == VALUE) return value_step(c, s, t, len);
    if (!fits(c, s, t, len, &s->alt)) return -1;
    s->at += (int)len;
    if ((size_t)s->at == string_at(c, s, s->alt)->len) string_done(c, s);
    return 0;
}

static int step(const struct constraint *c, struct state *s, int32_t id)
{
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
    case PARAM:
    case VALUE: return step_text(c, s, id);
    case INNER:
        if (c->inner.accept(c->inner.self, id)) return -1;
        s->inner++;
        return 0;
    case END:
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
    for (int i = 0; c->tools && i < c->n_tools; i++) {
        for (int k = 0; c->tools[i].params && k <= c->tools[i].n_params; k++) lk_buf_free(&c->tools[i].params[k]);
        lk_free(c->tools[i].params);
        if (c->begin) lk_buf_free(&c->begin[i]);
    }
    lk_free(c->begin);
    lk_free(c->tools);
    lk_free(c->past);
    lk_ids_free(&c->close);
    lk_ids_free(&c->gap);
    lk_ids_free(&c->stop);
    lk_free(c);
}

/* ---- building ---- */

/* One tool from its lines (wire.h). */
static int build_tool(struct lk_buf *begin, struct tool *t, const char *lines)
{
    size_t n = strcspn(lines, "\n"), count = 0;
    lk_buf_fmt(begin, CALL_OPEN "%.*s>\n", (int)n, lines);
    lines += n + (lines[n] == '\n');
    for (const char *p = lines; (p = strchr(p, '\n')); p++) count++;
    t->any = !strcmp(lines, "*\n") || count > 64;
    if (t->any) return begin->failed ? LK_ENOMEM : 0;
    if (!(t->params = lk_calloc(count + 1, sizeof *t->params))) return LK_ENOMEM;
    t->n_params = (int)count;
    for (size_t i = 0; i < count; i++) {
        n = strcspn(lines, "\n");
        int must = *lines == '!';
        t->required |= (uint64_t)must << i;
        lk_buf_fmt(&t->params[i], "<parameter=%.*s>\n", (int)n - must, lines + must);
        if (t->params[i].failed) return LK_ENOMEM;
        lines += n + 1;
    }
    lk_buf_str(&t->params[count], CALL_SHUT);
    return begin->failed || t->params[count].failed ? LK_ENOMEM : 0;
}

static int build_tools(struct constraint *c, const struct lk_wire_rule *r)
{
    if (r->n_tools <= 0) return 0;
    c->n_tools = r->n_tools;
    c->begin = lk_calloc((size_t)r->n_tools, sizeof *c->begin);
    c->tools = lk_calloc((size_t)r->n_tools, sizeof *c->tools);
    if (!c->begin || !c->tools) return LK_ENOMEM;
    for (int i = 0; i < r->n_tools; i++)
        if (build_tool(&c->begin[i], &c->tools[i], r->tools[i])) return LK_ENOMEM;
    return 0;
}

static int build_lists(struct constraint *c, const struct lk_wire_rule *r, struct lk_err *e)
{
    const char *text = r->budget_text ? r->budget_text : "";
    int rc;
    if ((rc = lk_tokenizer_encode(c->tok, "\n\n", 2, LK_SPECIALS_NONE, &c->gap, e))) return rc;
    if (c->budget < 0) return 0;
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
    if (!r->schema && r->n_tools <= 0 && !budget) return 0;
    if (!tok) return lk_fail(e, LK_EREQUEST, "this model has no tokenizer: answers cannot be constrained");
    struct constraint *c = lk_calloc(1, sizeof *c);
    if (!c) return lk_fail(e, LK_ENOMEM, "no memory for a grammar");
    c->tok = tok;
    c->budget = budget ? r->budget : -1;
    c->think_end = lk_tokenizer_find(tok, "</think>");
    for (int i = 0; i < n_stop_ids; i++)
        if ((rc = lk_ids_add(&c->stop, stop_ids[i]))) goto out;
    if ((rc = build_lists(c, r, e)) || (rc = build_tools(c, r))) goto out;
    if (r->schema) {
        rc = lk_fail(e, LK_EREQUEST, "structured output is not built in");
        goto out;
    }
    if (r->thinking_open)
        c->now.phase = THINK;
    else
        enter_answer(c, &c->now);
    *out = (struct lk_grammar){c, rule_mask, rule_accept, rule_rewind, rule_free};
    return 0;
out:
    rule_free(c);
    return lk_fail(e, rc, "no memory for a grammar");
}
