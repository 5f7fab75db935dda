/* A rule on the answer as a lk_grammar. The answer is walked token by token through these phases:
 *
 *     THINK --budget spent--> CLOSE --list ends--+
 *       |                                        v
 *       +--</think>--> GAP --list ends--> ANSWER (a schema, or a tool call that must come) or FREE
 *
 * THINK and FREE: no constraint. CLOSE and GAP force a fixed list of tokens: the closing message with </think>, or the blank
 * line that the template puts after it. ANSWER is src/text's grammar. Every accept pushes the state it left, so that
 * rewind, a draft that was refused, only pops. Runs on the engine thread. */
#include "runtime/constraint.h"

#include "base/mem.h"
#include "text/json_schema.h"

#include <pthread.h>
#include <string.h>

enum phase { FREE, THINK, CLOSE, GAP, ANSWER };

struct state {
    enum phase phase;
    int at;     /* THINK: tokens so far; CLOSE, GAP: tokens of the list */
    int answer; /* tokens the answer's grammar has accepted */
};

enum {
    KEPT = 16,
    KEY_MAX = 64 << 10,        /* a schema longer than this is compiled anew each time */
    GRAMMAR_MAX = 24 << 20,    /* bytes; a larger one is not kept */
};

struct lk_rule_pool {
    pthread_mutex_t lock;
    int closed;
    uint64_t uses;
    struct kept {
        struct lk_buf key;
        struct lk_gram *g;
        uint64_t used;
    } kept[KEPT];
};

struct constraint {
    struct lk_rule_pool *pool; /* takes answer back; NULL: nobody does */
    struct lk_buf key;
    struct state now, *past;
    size_t n_past, cap_past;
    int budget;
    int32_t think_end;
    struct lk_ids close, gap;
    struct lk_gram *answer;
    const struct lk_tokenizer *tok;
};

static int only(uint32_t *bits, int vocab, int32_t id)
{
    memset(bits, 0, ((size_t)vocab + 31) / 32 * sizeof *bits);
    if (id >= 0 && id < vocab) bits[id / 32] |= 1u << (id % 32);
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
    case ANSWER: return lk_gram_mask(c->answer, bits, vocab);
    case FREE: break;
    }
    return 0;
}

static int step_think(const struct constraint *c, struct state *s, int32_t id)
{
    int forced = c->budget >= 0 && s->at >= c->budget;
    if (forced && id != c->close.v[0]) return -1;
    s->at++;
    if (!forced && id != c->think_end) return 0;
    s->phase = forced ? CLOSE : c->answer ? GAP : FREE;
    s->at = forced;
    return 0;
}

static int step_list(const struct constraint *c, struct state *s, const struct lk_ids *list, int32_t id)
{
    if (id != list->v[s->at++]) return -1;
    if ((size_t)s->at == list->n) s->phase = c->answer ? ANSWER : FREE;
    return 0;
}

static int step(const struct constraint *c, struct state *s, int32_t id)
{
    switch (s->phase) {
    case THINK: return step_think(c, s, id);
    case CLOSE: return step_list(c, s, &c->close, id);
    case GAP: return step_list(c, s, &c->gap, id);
    case ANSWER:
        if (lk_gram_accept(c->answer, id)) return -1;
        s->answer++;
        return 0;
    case FREE: break;
    }
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
    int answer = c->now.answer;
    if (n <= 0) return;
    if ((size_t)n > c->n_past) n = (int)c->n_past;
    c->n_past -= (size_t)n;
    if (n) c->now = c->past[c->n_past];
    if (answer > c->now.answer) lk_gram_rewind(c->answer, answer - c->now.answer);
}

/* ---- the pool ---- */

struct lk_rule_pool *lk_rule_pool_new(void)
{
    struct lk_rule_pool *p = lk_calloc(1, sizeof *p);
    if (p) pthread_mutex_init(&p->lock, NULL);
    return p;
}

static void kept_drop(struct kept *k)
{
    if (k->g) lk_gram_free(k->g);
    lk_buf_free(&k->key);
    *k = (struct kept){0};
}

void lk_rule_pool_close(struct lk_rule_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->closed = 1;
    for (int i = 0; i < KEPT; i++) kept_drop(&p->kept[i]);
    pthread_mutex_unlock(&p->lock);
}

void lk_rule_pool_free(struct lk_rule_pool *p)
{
    if (!p) return;
    lk_rule_pool_close(p);
    pthread_mutex_destroy(&p->lock);
    lk_free(p);
}

static struct lk_gram *pool_take(struct lk_rule_pool *p, const struct lk_buf *key)
{
    struct lk_gram *g = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < KEPT && !g; i++) {
        struct kept *k = &p->kept[i];
        if (!k->g || k->key.len != key->len || memcmp(k->key.data, key->data, key->len)) continue;
        g = k->g;
        k->g = NULL;
        kept_drop(k);
    }
    pthread_mutex_unlock(&p->lock);
    return g;
}

/* Takes g over, and the key's memory. */
static void pool_put(struct lk_rule_pool *p, struct lk_buf *key, struct lk_gram *g)
{
    int at = 0;
    if (!p || !key->len || lk_gram_bytes(g) > GRAMMAR_MAX) {
        lk_gram_free(g);
        return;
    }
    lk_gram_restart(g);
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < KEPT; i++)
        if (p->kept[i].used < p->kept[at].used) at = i; /* 0 where nothing is kept */
    kept_drop(&p->kept[at]);
    p->kept[at] = (struct kept){*key, g, ++p->uses};
    *key = (struct lk_buf){0};
    if (p->closed) kept_drop(&p->kept[at]);
    pthread_mutex_unlock(&p->lock);
}

static void rule_free(void *self)
{
    struct constraint *c = self;
    if (!c) return;
    if (c->answer) pool_put(c->pool, &c->key, c->answer);
    lk_buf_free(&c->key);
    lk_free(c->past);
    lk_ids_free(&c->close);
    lk_ids_free(&c->gap);
    lk_free(c);
}

/* ---- building ---- */

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

/* The rule and the stop tokens as bytes: equal keys, equal grammars. Empty: too long, or no memory. */
static void make_key(struct lk_buf *b, const struct lk_wire_rule *r, const int32_t *stop_ids, int n_stop_ids)
{
    const char *text = r->tools ? r->tools : r->schema, *tool = r->tools && r->tool ? r->tool : "";
    size_t n = strlen(text), m = strlen(tool);
    if (n + m > KEY_MAX) return;
    lk_buf_add(b, r->tools ? "T" : "S", 1);
    lk_buf_add(b, text, n + 1);
    lk_buf_add(b, tool, m + 1);
    if (n_stop_ids) lk_buf_add(b, (const char *)stop_ids, (size_t)n_stop_ids * sizeof *stop_ids);
    if (b->failed) lk_buf_free(b);
}

static int build_answer(struct constraint *c, const struct lk_wire_rule *r, const int32_t *stop_ids, int n_stop_ids,
                        struct lk_err *e)
{
    const char *text = r->tools ? r->tools : r->schema;
    struct lk_syntax syntax = {0};
    if (!text) return 0;
    if (c->pool) make_key(&c->key, r, stop_ids, n_stop_ids);
    if (c->key.len && (c->answer = pool_take(c->pool, &c->key))) return 0;
    json_t *v = *text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    int rc = *text && !v  ? lk_fail(e, LK_EREQUEST, "the schema of the answer is not JSON")
             : r->tools ? lk_tools_syntax(&syntax, v, r->tool, 0, c->tok, e)
                        : lk_schema_syntax(&syntax, v, e);
    json_decref(v);
    if (rc) return rc;
    c->answer = lk_gram_new(&syntax, c->tok, stop_ids, n_stop_ids, e);
    return c->answer ? 0 : lk_fail(e, LK_ENOMEM, "no memory for a grammar");
}

int lk_constraint_build(struct lk_grammar *out, const struct lk_wire_rule *r, const struct lk_tokenizer *tok,
                        const int32_t *stop_ids, int n_stop_ids, struct lk_rule_pool *pool, struct lk_err *e)
{
    int rc, budget = r->thinking_open && r->budget >= 0;
    memset(out, 0, sizeof *out);
    if (!r->schema && !r->tools && !budget) return 0;
    if (!tok) return lk_fail(e, LK_EREQUEST, "this model has no tokenizer: answers cannot be constrained");
    struct constraint *c = lk_calloc(1, sizeof *c);
    if (!c) return lk_fail(e, LK_ENOMEM, "no memory for a grammar");
    c->tok = tok;
    c->pool = pool;
    c->budget = budget ? r->budget : -1;
    c->think_end = lk_tokenizer_find(tok, "</think>");
    if ((rc = build_lists(c, r, e)) || (rc = build_answer(c, r, stop_ids, n_stop_ids, e))) {
        rule_free(c);
        return e && e->code ? e->code : lk_fail(e, rc, "no memory for a grammar");
    }
    c->now.phase = r->thinking_open ? THINK : c->answer ? ANSWER : FREE;
    *out = (struct lk_grammar){c, rule_mask, rule_accept, rule_rewind, rule_free};
    return 0;
}
