/* Every endpoint, from the body of a request to the last byte of its reply: routing, reading, rendering, the parser of what
 * the model says, both forms of every reply. The network and the engine are the ones below: a body and the tokens of an
 * answer come from the input, and so does how the answer ends. What comes out must be JSON, or a stream of whole events in
 * valid UTF-8, and every exchange ends exactly once.
 *
 * Input: byte 0 the endpoint, byte 1 how many tokens a round and how it ends, then tokens up to a 0xff, then the body. */
#include "base/file.h"
#include "base/mem.h"
#include "serve/front.h"
#include "serve/replay.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* ---- the network ---- */

struct lk_hx {
    enum evhttp_cmd_type method;
    const char *path, *body;
    size_t n_body;
    int streaming, anthropic, ended;
    struct lk_buf out;
    void (*gone)(void *arg);
    void *gone_arg;
};

enum evhttp_cmd_type lk_hx_method(const struct lk_hx *x) { return x->method; }
const char *lk_hx_path(const struct lk_hx *x) { return x->path; }
const char *lk_hx_in(const struct lk_hx *x, const char *header) { return NULL; }
void lk_hx_route(struct lk_hx *x, const char *route) {}
void lk_hx_anthropic(struct lk_hx *x) { x->anthropic = 1; }
void lk_hx_header(struct lk_hx *x, const char *name, const char *value) {}
uint64_t lk_http_cut(const struct lk_http *h) { return 0; }

const char *lk_hx_body(struct lk_hx *x, size_t *n)
{
    *n = x->n_body;
    return x->body;
}

void lk_hx_on_gone(struct lk_hx *x, void (*fn)(void *arg), void *arg)
{
    x->gone = fn;
    x->gone_arg = arg;
}

static void must(int ok)
{
    if (!ok) abort();
}

static void must_be_json(const char *p, size_t n)
{
    json_t *j = json_loadb(p, n, JSON_ALLOW_NUL, NULL);
    must(j != NULL);
    json_decref(j);
}

void lk_hx_reply(struct lk_hx *x, int status, const char *type, const void *body, size_t n)
{
    must(!x->ended && !x->streaming);
    if (type && !strcmp(type, "application/json")) must_be_json(body, n);
    x->ended = status;
}

void lk_hx_json(struct lk_hx *x, int status, json_t *body)
{
    must(body != NULL);
    char *text = json_dumps(body, JSON_COMPACT);
    must(text != NULL);
    json_decref(body);
    lk_hx_reply(x, status, "application/json", text, strlen(text));
    free(text);
}

void lk_hx_stream(struct lk_hx *x)
{
    must(!x->ended && !x->streaming);
    x->streaming = 1;
}

int lk_hx_send(struct lk_hx *x, const char *name, const char *data, size_t n)
{
    must(x->streaming && !x->ended && n > 0 && !memchr(data, '\n', n));
    if (strncmp(data, "[DONE]", n)) must_be_json(data, n);
    return 0;
}

int lk_hx_send_json(struct lk_hx *x, const char *name, json_t *data)
{
    must(data != NULL);
    char *text = json_dumps(data, JSON_COMPACT);
    must(text != NULL);
    json_decref(data);
    lk_hx_send(x, name, text, strlen(text));
    free(text);
    return 0;
}

void lk_hx_end(struct lk_hx *x)
{
    must(x->streaming && !x->ended);
    x->ended = 200;
}

void lk_hx_error(struct lk_hx *x, const struct lk_fault *f)
{
    must(f->status >= 400 && *f->text);
    must(f->status != 500);
    if (x->streaming) {
        lk_hx_send_json(x, NULL, lk_fault_json(f, x->anthropic));
        lk_hx_end(x);
    } else {
        lk_hx_json(x, f->status, lk_fault_json(f, x->anthropic));
    }
}

/* ---- the engine ---- */

struct lk_link {
    struct lk_wire_ready ready;
    struct lk_engine_stats stats;
    uint64_t ids[64];
    int n_ids, top;
};

enum lk_link_state lk_link_state(const struct lk_link *l) { return LK_LINK_READY; }
const char *lk_link_reason(const struct lk_link *l) { return ""; }
const struct lk_wire_ready *lk_link_ready(const struct lk_link *l) { return &l->ready; }
const struct lk_engine_stats *lk_link_stats(const struct lk_link *l) { return &l->stats; }
int lk_link_restarts(const struct lk_link *l) { return 0; }
int lk_link_pid(const struct lk_link *l) { return 1; }

int lk_link_submit(struct lk_link *l, const struct lk_wire_submit *s, struct lk_err *e)
{
    struct lk_buf b = {0};
    must(s->r.n_ids > 0 && s->r.max_tokens >= 0 && l->n_ids < 64);
    must(!lk_wire_put_submit(&b, s)); /* and back, as the other process reads it */
    struct lk_arena a = {0};
    struct lk_wire_submit back;
    must(!lk_wire_get_submit(&a, b.data + LK_WIRE_HEAD, b.len - LK_WIRE_HEAD, &back));
    lk_arena_free(&a);
    lk_buf_free(&b);
    l->ids[l->n_ids++] = s->id;
    l->top = s->r.logprobs;
    return 0;
}

void lk_link_cancel(struct lk_link *l, uint64_t id)
{
    for (int i = 0; i < l->n_ids; i++)
        if (l->ids[i] == id) l->ids[i] = 0;
}

/* Tokens of the answer in rounds, then its end. */
static void answer(struct lk_front *f, struct lk_link *l, uint64_t id, const uint8_t *tokens, size_t n, uint8_t how)
{
    static const enum lk_finish ends[] = {LK_FIN_STOP_ID, LK_FIN_LENGTH, LK_FIN_CANCEL, LK_FIN_DEADLINE};
    struct lk_logprob lp[4] = {{0}};
    int32_t ids[4];
    size_t step = 1 + how % 4;
    for (int i = 0; i < 4; i++) lp[i] = (struct lk_logprob){.lp = -1.5f, .n_top = l->top, .top_ids = {5, 6}, .top_lp = {-1, -2}};
    for (size_t i = 0; i < n; i += step) {
        int k = 0;
        for (; k < (int)step && i + (size_t)k < n; k++) ids[k] = (tokens[i + (size_t)k] * 33 + k) % lk_tokenizer_vocab(f->s->tok);
        struct lk_event ev = {.kind = LK_EV_TOKENS, .id = id, .tokens = ids, .n_tokens = k, .logprobs = l->top ? lp : NULL};
        lk_gens_event(f->gens, &ev);
    }
    struct lk_event end = {.kind = how & 64 ? LK_EV_ERROR : LK_EV_DONE, .id = id, .finish = ends[how >> 4 & 3], .code = LK_EREQUEST, .text = "no"};
    lk_gens_event(f->gens, &end);
}

/* ---- one request ---- */

static struct lk_tokenizer *tokenizer(void)
{
    struct lk_buf b = {0};
    struct lk_err e = {0};
    struct lk_tokenizer *t = NULL;
    must(!lk_file_read(&b, LK_SOURCE_DIR "/models/demo/tokenizer.json", 64 << 20, &e));
    must(!lk_tokenizer_open(&t, b.data, b.len, &e));
    lk_buf_free(&b);
    return t;
}

static void free_json(void *item)
{
    json_decref(item);
}

static void begin(struct lk_front *f, struct lk_link *l, struct lk_serve *s, struct lk_opts_serve *o)
{
    static struct lk_tokenizer *tok;
    static int32_t stop;
    if (!tok) {
        tok = tokenizer();
        stop = lk_tokenizer_find(tok, "<|im_end|>");
    }
    *s = (struct lk_serve){.o = o, .parallel = 4, .name = "demo", .version = "0", .tok = tok, .dialect = LK_QWEN3_8, .stop_ids = &stop,
                           .n_stop_ids = 1, .defaults = {.temp = 1, .top_p = 1, .repetition = 1, .seed = 1}};
    l->ready.ctx = 2048;
    *f = (struct lk_front){.s = s, .link = l, .calls = lk_lru_new(64, 1 << 20, lk_free), .turns = lk_replay_new(),
                           .responses = lk_lru_new(16, 1 << 20, free_json), .instance = "0123456789abcdef"};
    const struct lk_gens_opts go = {l, tok, &stop, 1, 32, f->calls, f->turns};
    f->gens = lk_gens_new(&go);
}

static void end(struct lk_front *f)
{
    lk_gens_free(f->gens);
    lk_lru_free(f->calls);
    lk_lru_free(f->turns);
    lk_lru_free(f->responses);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct { enum evhttp_cmd_type m; const char *path; } routes[] = {
        {EVHTTP_REQ_POST, "/v1/chat/completions"}, {EVHTTP_REQ_POST, "/v1/messages"}, {EVHTTP_REQ_POST, "/v1/responses"},
        {EVHTTP_REQ_POST, "/v1/completions"}, {EVHTTP_REQ_POST, "/v1/messages/count_tokens"},
        {EVHTTP_REQ_POST, "/v1/responses/input_tokens"}, {EVHTTP_REQ_POST, "/tokenize"}, {EVHTTP_REQ_POST, "/detokenize"},
        {EVHTTP_REQ_GET, "/metrics"}, {EVHTTP_REQ_GET, "/slots"}, {EVHTTP_REQ_GET, "/v1/responses/resp_1"},
        {EVHTTP_REQ_DELETE, "/v1/responses/resp_1"},
    };
    struct lk_front f;
    struct lk_link l = {0};
    struct lk_serve s;
    struct lk_opts_serve o = {0};
    if (n < 3) return 0;
    const uint8_t *tokens = data + 2, *body = memchr(tokens, 0xff, n - 2);
    if (!body) return 0;
    struct lk_hx x = {.method = routes[data[0] % 12].m, .path = routes[data[0] % 12].path, .body = (const char *)body + 1,
                      .n_body = n - (size_t)(body + 1 - data)};
    begin(&f, &l, &s, &o);
    lk_front_handle(&f, &x);
    if (!x.ended && data[1] & 128 && x.gone) { /* the client leaves */
        x.gone(x.gone_arg);
        x.ended = 499;
    }
    for (int i = 0; i < l.n_ids && !x.ended; i++)
        if (l.ids[i]) answer(&f, &l, l.ids[i], tokens, (size_t)(body - tokens), data[1]);
    must(x.ended != 0);
    must(lk_gens_count(f.gens) == 0);
    end(&f);
    return 0;
}
