/* Sequences: see seq.h. Everything a request brings is copied and checked here, once. */
#include "runtime/seq.h"

#include "base/log.h"
#include "base/mem.h"
#include "runtime/sampler.h"

#include <string.h>

#define STOPS_MAX 64
#define STOP_BYTES_MAX 4096

static int seq_nomem(struct lk_err *e, const char *what)
{
    return lk_fail(e, LK_ENOMEM, "out of memory for %s of a request", what);
}

static void *copy_bytes(const void *p, size_t n, size_t size)
{
    void *q = lk_calloc(n ? n : 1, size);
    if (q && n) memcpy(q, p, n * size);
    return q;
}

static int seq_check(const struct lk_request *r, int vocab, int ctx, struct lk_err *e)
{
    if (!r->ids || r->n_ids < 1) return lk_fail(e, LK_EREQUEST, "the prompt is empty: at least one token is needed");
    if (r->n_ids >= (size_t)ctx)
        return lk_fail(e, LK_EREQUEST,
                       "the prompt has %zu tokens and the context holds %d: shorten it or start with a larger --ctx",
                       r->n_ids, ctx);
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= vocab)
            return lk_fail(e, LK_EREQUEST, "prompt token %zu is %d: the vocabulary has %d", i, (int)r->ids[i], vocab);
    if (r->logprobs < 0 || r->logprobs > 20)
        return lk_fail(e, LK_EREQUEST, "logprobs: expected 0 to 20, found %d", r->logprobs);
    if (r->draft < -2 || r->draft > LK_DRAFT_MAX)
        return lk_fail(e, LK_EREQUEST, "draft: expected -1 (auto) to %d, found %d", LK_DRAFT_MAX, r->draft);
    if (r->n_stops < 0 || r->n_stops > STOPS_MAX || r->n_stop_ids < 0 || r->n_stop_ids > STOPS_MAX)
        return lk_fail(e, LK_EREQUEST, "stop: at most %d strings and ids", STOPS_MAX);
    for (int i = 0; i < r->n_stops; i++) {
        size_t n = r->stops[i] ? strlen(r->stops[i]) : 0;
        if (n < 1 || n > STOP_BYTES_MAX)
            return lk_fail(e, LK_EREQUEST, "stop string %d: expected 1 to %d bytes, found %zu", i, STOP_BYTES_MAX, n);
    }
    return lk_sampling_check(&r->sampling, vocab, e);
}

static int stop_copy(struct lk_stop_match *m, const struct lk_request *r, struct lk_err *e)
{
    if (!r->n_stops) return 0;
    m->stops = lk_calloc((size_t)r->n_stops, sizeof *m->stops);
    m->lens = lk_calloc((size_t)r->n_stops, sizeof *m->lens);
    if (!m->stops || !m->lens) return seq_nomem(e, "stop strings");
    for (; m->n < r->n_stops; m->n++) {
        m->lens[m->n] = strlen(r->stops[m->n]);
        if (m->lens[m->n] > m->longest) m->longest = m->lens[m->n];
        if (!(m->stops[m->n] = lk_strdup(r->stops[m->n]))) return seq_nomem(e, "stop strings");
    }
    m->cap = m->longest * 2 + 256;
    return (m->tail = lk_malloc(m->cap)) ? 0 : seq_nomem(e, "stop strings");
}

static int seq_copy(struct lk_seq *q, const struct lk_request *r, int ctx, struct lk_err *e)
{
    q->n_prompt = q->n_ids = (int)r->n_ids;
    q->max_out = ctx - q->n_prompt;
    if (r->max_tokens > 0 && r->max_tokens < q->max_out) q->max_out = r->max_tokens;
    q->cap_ids = q->n_prompt + 64;
    if (!(q->ids = lk_calloc((size_t)q->cap_ids, sizeof *q->ids))) return seq_nomem(e, "the prompt");
    memcpy(q->ids, r->ids, r->n_ids * sizeof *q->ids);
    q->sampling = r->sampling;
    q->sampling.bias = NULL;
    if (!(q->sampling.bias = copy_bytes(r->sampling.bias, (size_t)r->sampling.n_bias, sizeof *r->sampling.bias)))
        return seq_nomem(e, "logit bias");
    q->n_stop_ids = r->n_stop_ids;
    if (!(q->stop_ids = copy_bytes(r->stop_ids, (size_t)r->n_stop_ids, sizeof *r->stop_ids)))
        return seq_nomem(e, "stop ids");
    if (stop_copy(&q->stop, r, e)) return LK_ENOMEM;
    if (r->session && !(q->session = lk_strdup(r->session))) return seq_nomem(e, "the session's name");
    q->cap_pages = ctx / 64 + 2;
    if (!(q->pages = lk_calloc((size_t)q->cap_pages, sizeof *q->pages))) return seq_nomem(e, "the page table");
    return 0;
}

int lk_seq_new(struct lk_seq **out, const struct lk_request *r, int vocab, int ctx, struct lk_err *e)
{
    *out = NULL;
    int rc = seq_check(r, vocab, ctx, e);
    struct lk_seq *q = rc ? NULL : lk_calloc(1, sizeof *q);
    if (!rc && !q) rc = seq_nomem(e, "the book-keeping");
    if (rc) {
        if (r->grammar.self && r->grammar.free) r->grammar.free(r->grammar.self);
        return rc;
    }
    q->lane = q->slot = -1;
    q->grammar = r->grammar;
    q->n_logprobs = r->logprobs;
    q->draft = r->draft;
    q->priority = r->priority;
    q->t_submit = lk_clock();
    q->t_deadline = r->deadline > 0 ? q->t_submit + r->deadline : 0;
    q->stop_index = -1;
    q->t.prompt_n = (int)r->n_ids;
    for (int i = 0; i < LK_DRAFT_MAX; i++) q->accept[i] = 0.7f; /* a trained MTP layer on mixed text */
    if ((rc = seq_copy(q, r, ctx, e))) {
        lk_seq_free(q);
        return rc;
    }
    *out = q;
    return 0;
}

void lk_seq_free(struct lk_seq *q)
{
    if (!q) return;
    if (q->grammar.self && q->grammar.free) q->grammar.free(q->grammar.self);
    for (int i = 0; i < q->stop.n; i++) lk_free(q->stop.stops[i]);
    lk_free(q->stop.stops);
    lk_free(q->stop.lens);
    lk_free(q->stop.tail);
    lk_free((void *)q->sampling.bias);
    lk_free(q->stop_ids);
    lk_free(q->logprobs);
    lk_free(q->session);
    lk_free(q->pages);
    lk_free(q->ids);
    lk_free(q);
}

int lk_seq_reserve(struct lk_seq *q, int more)
{
    if (q->n_ids + more > q->cap_ids) {
        int cap = q->n_ids + more + q->cap_ids / 2;
        int32_t *p = lk_reallocarray(q->ids, (size_t)cap, sizeof *p);
        if (!p) return LK_ENOMEM;
        q->ids = p;
        q->cap_ids = cap;
    }
    int want = lk_seq_out(q) + more;
    if (q->n_logprobs && want > q->cap_logprobs) {
        int cap = want + q->cap_logprobs / 2 + 16;
        struct lk_logprob *p = lk_reallocarray(q->logprobs, (size_t)cap, sizeof *p);
        if (!p) return LK_ENOMEM;
        q->logprobs = p;
        q->cap_logprobs = cap;
    }
    return 0;
}

/* Index of the stop string that ends with byte c, or -1. */
static int stop_push(struct lk_stop_match *m, char c)
{
    if (m->n_tail == m->cap) {
        memmove(m->tail, m->tail + m->n_tail - (m->longest - 1), m->longest - 1);
        m->n_tail = m->longest - 1;
    }
    m->tail[m->n_tail++] = c;
    for (int i = 0; i < m->n; i++)
        if (m->lens[i] <= m->n_tail && !memcmp(m->tail + m->n_tail - m->lens[i], m->stops[i], m->lens[i])) return i;
    return -1;
}

int lk_seq_commit(struct lk_seq *q, const struct lk_tokenizer *tok, int32_t id, int ctx)
{
    q->ids[q->n_ids++] = id;
    q->t.predicted_n++;
    if (q->t.predicted_n == 1) q->t_first = lk_clock();
    for (int i = 0; i < q->n_stop_ids; i++)
        if (q->stop_ids[i] == id) {
            lk_seq_finish(q, LK_FIN_STOP_ID);
            return 1;
        }
    if (q->stop.n && tok && lk_tokenizer_is_special(tok, id) != 1) {
        size_t len;
        const char *bytes = lk_tokenizer_bytes(tok, id, &len);
        for (size_t i = 0; bytes && i < len; i++) {
            int hit = stop_push(&q->stop, bytes[i]);
            if (hit < 0) continue;
            q->stop_index = hit;
            lk_seq_finish(q, LK_FIN_STOP_STRING);
            return 1;
        }
    }
    if (lk_seq_out(q) >= q->max_out || q->n_ids >= ctx) {
        lk_seq_finish(q, LK_FIN_LENGTH);
        return 1;
    }
    return 0;
}

void lk_seq_finish(struct lk_seq *q, enum lk_finish f)
{
    if (q->finish != LK_FIN_NONE) return;
    q->finish = f;
    q->n_drafts = 0;
}

void lk_seq_fail(struct lk_seq *q, const struct lk_err *e)
{
    if (q->finish != LK_FIN_NONE) return;
    q->err = *e;
    lk_seq_finish(q, LK_FIN_ERROR);
}
