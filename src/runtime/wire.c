/* Encoding of wire.h. One writer and one reader a struct, in the same order; the reader never trusts a count. Both ends are
 * the same binary, so there is no version: a field added here is added on both sides at once. */
#include "runtime/wire.h"

#include <string.h>

/* ---- writing ---- */

static size_t begin(struct lk_buf *b, enum lk_wire_kind kind)
{
    uint32_t head[2] = {0, (uint32_t)kind};
    size_t at = b->len;
    lk_buf_add(b, head, sizeof head);
    return at;
}

static int end(struct lk_buf *b, size_t at)
{
    if (b->failed) return LK_ENOMEM;
    uint32_t bytes = (uint32_t)(b->len - at - LK_WIRE_HEAD);
    memcpy(b->data + at, &bytes, sizeof bytes);
    return 0;
}

static void put_i32(struct lk_buf *b, int v)
{
    int32_t x = v;
    lk_buf_add(b, &x, sizeof x);
}

static void put_u64(struct lk_buf *b, uint64_t v)
{
    lk_buf_add(b, &v, sizeof v);
}

static void put_f32(struct lk_buf *b, float v)
{
    lk_buf_add(b, &v, sizeof v);
}

static void put_f64(struct lk_buf *b, double v)
{
    lk_buf_add(b, &v, sizeof v);
}

static void put_array(struct lk_buf *b, const void *p, size_t n, size_t size)
{
    put_i32(b, (int)n);
    if (n) lk_buf_add(b, p, n * size);
}

/* NULL and "" differ: a count of -1 is NULL */
static void put_str(struct lk_buf *b, const char *s)
{
    if (s)
        put_array(b, s, strlen(s), 1);
    else
        put_i32(b, -1);
}

static void put_strs(struct lk_buf *b, const char *const *s, int n)
{
    put_i32(b, n);
    for (int i = 0; i < n; i++) put_str(b, s[i]);
}

static void put_sampling(struct lk_buf *b, const struct lk_sampling *s)
{
    put_f32(b, s->temp);
    put_f32(b, s->top_p);
    put_f32(b, s->min_p);
    put_i32(b, s->top_k);
    put_f32(b, s->presence);
    put_f32(b, s->frequency);
    put_f32(b, s->repetition);
    put_u64(b, s->seed);
    put_array(b, s->bias, (size_t)s->n_bias, sizeof *s->bias);
}

int lk_wire_put_submit(struct lk_buf *b, const struct lk_wire_submit *s)
{
    const struct lk_request *r = &s->r;
    size_t at = begin(b, LK_WIRE_SUBMIT);
    put_u64(b, s->id);
    put_array(b, r->ids, r->n_ids, sizeof *r->ids);
    put_i32(b, r->max_tokens);
    put_sampling(b, &r->sampling);
    put_array(b, r->stop_ids, (size_t)r->n_stop_ids, sizeof *r->stop_ids);
    put_strs(b, r->stops, r->n_stops);
    put_i32(b, r->logprobs);
    put_i32(b, r->draft);
    put_i32(b, r->priority);
    put_f64(b, r->deadline);
    put_str(b, r->session);
    put_i32(b, s->rule.thinking_open);
    put_i32(b, s->rule.budget);
    put_str(b, s->rule.budget_text);
    put_str(b, s->rule.schema);
    put_str(b, s->rule.tools);
    put_str(b, s->rule.tool);
    return end(b, at);
}

int lk_wire_put_cancel(struct lk_buf *b, uint64_t id)
{
    size_t at = begin(b, LK_WIRE_CANCEL);
    put_u64(b, id);
    return end(b, at);
}

int lk_wire_put_ready(struct lk_buf *b, const struct lk_wire_ready *r)
{
    size_t at = begin(b, LK_WIRE_READY);
    put_i32(b, r->ctx);
    put_i32(b, r->vocab);
    put_str(b, r->describe);
    return end(b, at);
}

int lk_wire_put_failed(struct lk_buf *b, int code, const char *text)
{
    size_t at = begin(b, LK_WIRE_FAILED);
    put_i32(b, code);
    put_str(b, text);
    return end(b, at);
}

int lk_wire_put_beat(struct lk_buf *b, const struct lk_wire_beat *s)
{
    size_t at = begin(b, LK_WIRE_BEAT);
    put_i32(b, s->loading);
    put_u64(b, s->progress);
    lk_buf_add(b, &s->s, sizeof s->s); /* plain numbers, same binary on both sides */
    return end(b, at);
}

int lk_wire_put_event(struct lk_buf *b, const struct lk_event *ev)
{
    size_t at = begin(b, LK_WIRE_EVENT), n = ev->n_tokens > 0 ? (size_t)ev->n_tokens : 0;
    put_i32(b, (int)ev->kind);
    put_u64(b, ev->id);
    put_array(b, ev->tokens, n, sizeof *ev->tokens);
    put_array(b, ev->logprobs, ev->logprobs ? n : 0, sizeof *ev->logprobs);
    put_i32(b, ev->prompt_done);
    put_i32(b, ev->prompt_total);
    put_i32(b, (int)ev->finish);
    put_i32(b, ev->stop_index);
    lk_buf_add(b, &ev->t, sizeof ev->t);
    put_i32(b, ev->code);
    put_str(b, ev->text);
    return end(b, at);
}

/* ---- reading ---- */

struct in {
    const char *p, *end;
    struct lk_arena *a;
    int bad; /* 0, LK_EINPUT or LK_ENOMEM; once bad everything reads as zero */
};

static void get(struct in *in, void *out, size_t n)
{
    if (!in->bad && (size_t)(in->end - in->p) < n) in->bad = LK_EINPUT;
    if (in->bad) {
        memset(out, 0, n);
        return;
    }
    memcpy(out, in->p, n);
    in->p += n;
}

static int get_i32(struct in *in)
{
    int32_t v;
    get(in, &v, sizeof v);
    return v;
}

static uint64_t get_u64(struct in *in)
{
    uint64_t v;
    get(in, &v, sizeof v);
    return v;
}

static float get_f32(struct in *in)
{
    float v;
    get(in, &v, sizeof v);
    return v;
}

static double get_f64(struct in *in)
{
    double v;
    get(in, &v, sizeof v);
    return v;
}

static void *get_array(struct in *in, size_t size, size_t *n)
{
    int count = get_i32(in);
    *n = 0;
    if (!in->bad && (count < 0 || (size_t)count > (size_t)(in->end - in->p) / size)) in->bad = LK_EINPUT;
    if (in->bad || !count) return NULL;
    void *p = lk_arena_alloc(in->a, (size_t)count * size);
    if (!p) {
        in->bad = LK_ENOMEM;
        return NULL;
    }
    get(in, p, (size_t)count * size);
    *n = (size_t)count;
    return p;
}

static const char *get_str(struct in *in)
{
    int count = get_i32(in);
    if (in->bad || count == -1) return NULL;
    if (count < 0 || count > in->end - in->p) {
        in->bad = LK_EINPUT;
        return NULL;
    }
    char *s = lk_arena_strndup(in->a, in->p, (size_t)count);
    if (!s) in->bad = LK_ENOMEM;
    in->p += count;
    return s;
}

static const char *const *get_strs(struct in *in, int *n)
{
    int count = get_i32(in);
    *n = 0;
    if (!in->bad && (count < 0 || count > (in->end - in->p) / 4)) in->bad = LK_EINPUT;
    if (in->bad || !count) return NULL;
    const char **v = lk_arena_alloc(in->a, (size_t)count * sizeof *v);
    if (!v) {
        in->bad = LK_ENOMEM;
        return NULL;
    }
    for (int i = 0; i < count; i++)
        if (!(v[i] = get_str(in)) && !in->bad) in->bad = LK_EINPUT;
    *n = count;
    return v;
}

static int done(struct in *in)
{
    if (!in->bad && in->p != in->end) in->bad = LK_EINPUT;
    return in->bad;
}

static struct in reader(struct lk_arena *a, const void *p, size_t n)
{
    return (struct in){.p = p, .end = (const char *)p + n, .a = a};
}

static void get_sampling(struct in *in, struct lk_sampling *s)
{
    size_t n;
    s->temp = get_f32(in);
    s->top_p = get_f32(in);
    s->min_p = get_f32(in);
    s->top_k = get_i32(in);
    s->presence = get_f32(in);
    s->frequency = get_f32(in);
    s->repetition = get_f32(in);
    s->seed = get_u64(in);
    s->bias = get_array(in, sizeof *s->bias, &n);
    s->n_bias = (int)n;
}

int lk_wire_head(const void *head, uint32_t *bytes, enum lk_wire_kind *kind)
{
    uint32_t h[2];
    memcpy(h, head, sizeof h);
    if (h[0] > LK_WIRE_MAX || h[1] < LK_WIRE_SUBMIT || h[1] > LK_WIRE_EVENT) return LK_EINPUT;
    *bytes = h[0];
    *kind = (enum lk_wire_kind)h[1];
    return 0;
}

int lk_wire_get_submit(struct lk_arena *a, const void *p, size_t n, struct lk_wire_submit *s)
{
    struct in in = reader(a, p, n);
    struct lk_request *r = &s->r;
    size_t count;
    memset(s, 0, sizeof *s);
    s->id = get_u64(&in);
    r->ids = get_array(&in, sizeof *r->ids, &r->n_ids);
    r->max_tokens = get_i32(&in);
    get_sampling(&in, &r->sampling);
    r->stop_ids = get_array(&in, sizeof *r->stop_ids, &count);
    r->n_stop_ids = (int)count;
    r->stops = get_strs(&in, &r->n_stops);
    r->logprobs = get_i32(&in);
    r->draft = get_i32(&in);
    r->priority = get_i32(&in);
    r->deadline = get_f64(&in);
    r->session = get_str(&in);
    s->rule.thinking_open = get_i32(&in);
    s->rule.budget = get_i32(&in);
    s->rule.budget_text = get_str(&in);
    s->rule.schema = get_str(&in);
    s->rule.tools = get_str(&in);
    s->rule.tool = get_str(&in);
    return done(&in);
}

int lk_wire_get_id(const void *p, size_t n, uint64_t *id)
{
    struct in in = reader(NULL, p, n);
    *id = get_u64(&in);
    return done(&in);
}

int lk_wire_get_ready(struct lk_arena *a, const void *p, size_t n, struct lk_wire_ready *r)
{
    struct in in = reader(a, p, n);
    r->ctx = get_i32(&in);
    r->vocab = get_i32(&in);
    r->describe = get_str(&in);
    return done(&in);
}

int lk_wire_get_failed(struct lk_arena *a, const void *p, size_t n, int *code, const char **text)
{
    struct in in = reader(a, p, n);
    *code = get_i32(&in);
    *text = get_str(&in);
    return done(&in);
}

int lk_wire_get_beat(const void *p, size_t n, struct lk_wire_beat *s)
{
    struct in in = reader(NULL, p, n);
    s->loading = get_i32(&in);
    s->progress = get_u64(&in);
    get(&in, &s->s, sizeof s->s);
    return done(&in);
}

int lk_wire_get_event(struct lk_arena *a, const void *p, size_t n, struct lk_event *ev)
{
    struct in in = reader(a, p, n);
    size_t n_tokens, n_lp;
    memset(ev, 0, sizeof *ev);
    int kind = get_i32(&in);
    ev->id = get_u64(&in);
    ev->tokens = get_array(&in, sizeof *ev->tokens, &n_tokens);
    ev->logprobs = get_array(&in, sizeof *ev->logprobs, &n_lp);
    ev->n_tokens = (int)n_tokens;
    ev->prompt_done = get_i32(&in);
    ev->prompt_total = get_i32(&in);
    int finish = get_i32(&in);
    ev->stop_index = get_i32(&in);
    get(&in, &ev->t, sizeof ev->t);
    ev->code = get_i32(&in);
    ev->text = get_str(&in);
    if (!in.bad && (kind < LK_EV_START || kind > LK_EV_ERROR || finish < LK_FIN_NONE || finish > LK_FIN_ERROR ||
                    (n_lp && n_lp != n_tokens)))
        in.bad = LK_EINPUT;
    ev->kind = (enum lk_event_kind)kind;
    ev->finish = (enum lk_finish)finish;
    for (size_t i = 0; !in.bad && i < n_lp; i++)
        if (ev->logprobs[i].n_top < 0 || ev->logprobs[i].n_top > 20) in.bad = LK_EINPUT;
    return done(&in);
}
