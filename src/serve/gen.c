/* Tokens in, meaning out. Stop strings are looked for in the answer's content only, never in the thinking: a client that
 * stops at "\n\n" wants its answer cut, not its model silenced. They are matched here and not in the engine, because only
 * the reply parser knows where content begins; a match cancels the engine's request, which ends within one step.
 *
 * A generation is in the table from start until DONE, FAILED or free; events of an id that is not there are late tokens of
 * a cancelled one and are dropped. */
#include "serve/gen.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/replay.h"
#include "serve/turns.h"
#include "text/reply.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BUCKETS 1024

const double lk_gen_ttft_bounds[11] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60};

struct lk_gen {
    struct lk_gens *all;
    struct lk_gen *chain;
    uint64_t id;
    struct lk_gen_opts o;
    int listed; /* in the table: the engine may still speak of it */
    int running, prompt_done, done;
    double start, first, deadline;
    struct lk_decoder dec;
    struct lk_reply *reply;
    struct lk_stops *stops;
    struct lk_buf piece, pending, think, content, args, name;
    enum lk_gen_kind pending_kind;
    int cut; /* a stop string was met: which + 1 */
    int prompt, completion, reasoning, logprobs;
    enum lk_gen_finish finish;
    const char *stop_sequence;
    struct lk_timings t;
    struct lk_ids turn; /* tokens of the whole turn, the prompt's part of it first; chat only */
    size_t turn_from;   /* where the answer begins in it */
    json_t *calls, *lp;
};

struct lk_gens {
    struct lk_gens_opts o;
    struct lk_gen *bucket[BUCKETS];
    int n;
    uint64_t next_id;
    struct lk_gens_stats st;
};

struct lk_gens *lk_gens_new(const struct lk_gens_opts *o)
{
    struct lk_gens *s = lk_calloc(1, sizeof *s);
    if (s) s->o = *o;
    return s;
}

int lk_gens_count(const struct lk_gens *s) { return s->n; }
const struct lk_gens_stats *lk_gens_totals(const struct lk_gens *s) { return &s->st; }
int lk_gen_index(const struct lk_gen *g) { return g->o.index; }

static struct lk_gen **slot(struct lk_gens *s, uint64_t id)
{
    struct lk_gen **p = &s->bucket[id % BUCKETS];
    while (*p && (*p)->id != id) p = &(*p)->chain;
    return p;
}

static void unlist(struct lk_gen *g)
{
    if (!g->listed) return;
    *slot(g->all, g->id) = g->chain;
    g->all->n--;
    g->listed = 0;
}

void lk_gens_free(struct lk_gens *s)
{
    lk_free(s); /* exchanges free their generations before */
}

int lk_gens_room(const struct lk_gens *s, int n, struct lk_fault *f)
{
    if (s->n + n <= s->o.limit) return 0;
    lk_fault_set(f, 429, "server_overloaded", NULL, "%d requests are running or waiting, the most this server takes; try again",
                 s->n);
    f->retry_after = 1 + s->n / 16;
    ((struct lk_gens *)s)->st.refused++;
    return -1;
}

/* ---- text ---- */

static void emit(struct lk_gen *g, enum lk_gen_kind kind, const char *text, size_t len, int call)
{
    struct lk_gen_event ev = {.kind = kind, .text = text, .len = len, .call = call};
    g->o.fn(g->o.arg, g, &ev);
}

/* Pieces of one round go out as one event. */
static void flush(struct lk_gen *g)
{
    if (!g->pending.len) return;
    emit(g, g->pending_kind, g->pending.data, g->pending.len, 0);
    lk_buf_reset(&g->pending);
}

static void pend(struct lk_gen *g, enum lk_gen_kind kind, const char *text, size_t len)
{
    if (!len) return;
    if (g->pending.len && g->pending_kind != kind) flush(g);
    g->pending_kind = kind;
    lk_buf_add(&g->pending, text, len);
    lk_buf_add(kind == LK_GEN_REASONING ? &g->think : &g->content, text, len);
}

static void add_content(struct lk_gen *g, const char *text, size_t len)
{
    struct lk_buf safe = {0};
    int which;
    if (g->cut) return;
    if (!g->stops) {
        pend(g, LK_GEN_CONTENT, text, len);
        return;
    }
    if (lk_stops_push(g->stops, text, len, &safe, &which)) {
        g->cut = which + 1;
        g->stop_sequence = g->o.p->stops[which];
    }
    pend(g, LK_GEN_CONTENT, safe.data, safe.len);
    lk_buf_free(&safe);
}

static void flush_stops(struct lk_gen *g)
{
    struct lk_buf rest = {0};
    if (!g->stops || g->cut) return;
    lk_stops_flush(g->stops, &rest);
    pend(g, LK_GEN_CONTENT, rest.data, rest.len);
    lk_buf_free(&rest);
}

static void new_call_id(char out[32])
{
    unsigned char r[12];
    if (getrandom(r, sizeof r, 0) != sizeof r) memset(r, 0, sizeof r);
    strcpy(out, "call_");
    for (size_t i = 0; i < sizeof r; i++) sprintf(out + 5 + 2 * i, "%02x", r[i]);
}

static void call_begin(struct lk_gen *g, const char *name, size_t len)
{
    char id[32];
    flush_stops(g);
    flush(g);
    lk_buf_reset(&g->args);
    lk_buf_reset(&g->name);
    lk_buf_add(&g->name, name, len);
    new_call_id(id);
    json_array_append_new(g->calls, json_pack("{s:s, s:s%, s:s, s:I}", "id", id, "name", name, len, "arguments", "", "at",
                                              (json_int_t)g->content.len));
    emit(g, LK_GEN_CALL, g->name.data ? g->name.data : "", len, (int)json_array_size(g->calls) - 1);
}

static void call_end(struct lk_gen *g)
{
    json_t *call = json_array_get(g->calls, json_array_size(g->calls) - 1);
    json_object_set_new(call, "arguments", json_string(g->args.data ? g->args.data : "{}"));
    emit(g, LK_GEN_CALL_END, NULL, 0, (int)json_array_size(g->calls) - 1);
}

/* ---- what the next turn must repeat ---- */

/* The bytes of tokens [from, to) of the turn; NULL: no memory. lk_free. */
static char *bytes_of(const struct lk_gen *g, size_t from, size_t to)
{
    struct lk_buf b = {0};
    for (size_t i = from; i < to; i++) {
        size_t n;
        const char *p = lk_tokenizer_bytes(g->all->o.tok, g->turn.v[i], &n);
        if (p) lk_buf_add(&b, p, n);
    }
    char *out = b.failed ? NULL : lk_strndup(b.data ? b.data : "", b.len);
    lk_buf_free(&b);
    return out;
}

static const char *past_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* White space between the content and the first call; NULL: something else stands there. Behind </think> two line breaks
 * are the template's own. */
static const char *first_gap(const struct lk_gen *g, const char *lead)
{
    const char *c = g->content.data ? g->content.data : "";
    size_t n = g->content.len;
    if (g->o.thinking_open && !strncmp(lead, "\n\n", 2)) lead += 2;
    while (n && strchr(" \t\r\n", c[n - 1])) n--;
    return strncmp(lead, c, n) ? NULL : lead + n;
}

/* Call k was tokens [from, to) of the turn, behind token `after`; the last call also has what follows it. */
static void remember_call(struct lk_gen *g, size_t k, size_t after, size_t from, size_t to)
{
    const json_t *call = json_array_get(g->calls, k);
    int last = k + 1 == json_array_size(g->calls);
    char *lead = bytes_of(g, after, from), *raw = bytes_of(g, from, to), *tail = bytes_of(g, to, last ? g->turn.n : to);
    const char *gap = lead && !k ? first_gap(g, lead) : lead;
    const struct lk_call_memory m = {
        .name = json_string_value(json_object_get(call, "name")),
        .args = json_string_value(json_object_get(call, "arguments")),
        .raw = raw,
        .gap = gap && !*past_space(gap) ? gap : NULL,
        .tail = tail && *tail && !*past_space(tail) ? tail : NULL,
        .think = !k && g->think.len ? g->think.data : NULL,
    };
    if (raw && lead && tail) lk_call_remember(g->all->o.calls, json_string_value(json_object_get(call, "id")), &m);
    lk_free(lead);
    lk_free(raw);
    lk_free(tail);
}

/* The answer has ended by itself. Calls are found by their control tokens, so that a tag within a value is none; a call
 * without both is rendered anew when it is replayed. */
static void remember_turn(struct lk_gen *g)
{
    const struct lk_tokenizer *t = g->all->o.tok;
    int32_t open = lk_tokenizer_find(t, "<tool_call>"), close = lk_tokenizer_find(t, "</tool_call>"),
            think = lk_tokenizer_find(t, "</think>");
    size_t i = g->turn_from, n = json_array_size(g->calls), from = 0, after;
    if (!g->turn.n) return;
    while (g->o.thinking_open && i < g->turn.n && g->turn.v[i++] != think) continue;
    for (int keep = 0; keep < 2 && n && g->all->o.calls; keep++) { /* count them, then keep them */
        size_t k = 0;
        after = i;
        for (size_t j = i; j < g->turn.n; j++) {
            if (g->turn.v[j] == open && !from) from = j;
            if (g->turn.v[j] != close || !from) continue;
            if (keep) remember_call(g, k, after, from, j + 1);
            after = j + 1;
            from = 0;
            k++;
        }
        if (k != n) break;
    }
    if (g->all->o.turns) lk_replay_learn(g->all->o.turns, t, &g->turn);
}

static void on_reply(void *arg, const struct lk_reply_event *ev)
{
    struct lk_gen *g = arg;
    if (g->cut) return;
    switch (ev->kind) {
    case LK_REPLY_REASONING: pend(g, LK_GEN_REASONING, ev->text, ev->len); break;
    case LK_REPLY_CONTENT: add_content(g, ev->text, ev->len); break;
    case LK_REPLY_CALL_BEGIN: call_begin(g, ev->text, ev->len); break;
    case LK_REPLY_CALL_ARGS:
        lk_buf_add(&g->args, ev->text, ev->len);
        emit(g, LK_GEN_ARGS, ev->text, ev->len, (int)json_array_size(g->calls) - 1);
        break;
    case LK_REPLY_CALL_END: call_end(g); break;
    }
}

/* ---- logprobs ---- */

static json_t *token_json(const struct lk_gen *g, int32_t id, float lp)
{
    struct lk_buf text = {0};
    size_t n;
    const char *bytes = lk_tokenizer_bytes(g->all->o.tok, id, &n);
    json_t *list = json_array();
    lk_tokenizer_decode(g->all->o.tok, &id, 1, 0, &text);
    for (size_t i = 0; bytes && i < n; i++) json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    json_t *o = json_pack("{s:s%, s:f, s:o}", "token", text.data ? text.data : "", text.len, "logprob",
                          lp > -9999.0f ? (double)lp : -9999.0, "bytes", list);
    lk_buf_free(&text);
    return o;
}

static void add_logprob(struct lk_gen *g, int32_t id, const struct lk_logprob *lp)
{
    json_t *o = token_json(g, id, lp->lp), *top = json_array();
    for (int i = 0; i < lp->n_top && i < g->o.p->logprobs - 1; i++)
        json_array_append_new(top, token_json(g, lp->top_ids[i], lp->top_lp[i]));
    json_object_set_new(o, "top_logprobs", top);
    json_array_append_new(g->lp, o);
}

/* ---- events ---- */

static void fail(struct lk_gen *g, const struct lk_fault *f)
{
    struct lk_gen_event ev = {.kind = LK_GEN_FAILED, .fault = f};
    unlist(g);
    g->all->st.failed++;
    g->done = 1;
    g->o.fn(g->o.arg, g, &ev);
}

static void count(struct lk_gen *g)
{
    struct lk_gens_stats *st = &g->all->st;
    double now = lk_clock();
    st->finished++;
    st->prompt += (uint64_t)g->prompt;
    st->cached += (uint64_t)g->t.cached_n;
    st->completion += (uint64_t)g->completion;
    st->reasoning += (uint64_t)g->reasoning;
    st->drafted += (uint64_t)g->t.draft_n;
    st->accepted += (uint64_t)g->t.draft_n_accepted;
    if (g->completion < 2) return;
    st->decode_sum += now - g->first;
    st->decode_n += (uint64_t)g->completion - 1;
}

static void finish(struct lk_gen *g, enum lk_gen_finish why)
{
    unlist(g);
    if (!g->cut) {
        lk_buf_reset(&g->piece);
        lk_decoder_flush(&g->dec, &g->piece);
        if (g->reply) {
            lk_reply_push(g->reply, g->piece.data ? g->piece.data : "", g->piece.len);
            lk_reply_finish(g->reply);
        } else {
            add_content(g, g->piece.data ? g->piece.data : "", g->piece.len);
        }
        flush_stops(g);
    }
    flush(g);
    g->finish = g->cut ? LK_GEN_STOP : why;
    if (g->finish == LK_GEN_STOP && json_array_size(g->calls)) g->finish = LK_GEN_TOOLS;
    if (why == LK_GEN_STOP && !g->cut && g->o.chat) remember_turn(g);
    count(g);
    g->done = 1;
    emit(g, LK_GEN_DONE, NULL, 0, 0);
}

static int is_stop(const struct lk_gen *g, int32_t id)
{
    for (int i = 0; i < g->all->o.n_stop_ids; i++)
        if (g->all->o.stop_ids[i] == id) return 1;
    return 0;
}

static void one_token(struct lk_gen *g, int32_t id, const struct lk_logprob *lp)
{
    int thinking = g->reply && lk_reply_in_reasoning(g->reply);
    g->completion++;
    g->reasoning += thinking;
    if (is_stop(g, id)) return;
    if (g->o.chat) lk_ids_add(&g->turn, id);
    lk_buf_reset(&g->piece);
    lk_decoder_push(&g->dec, g->all->o.tok, id, 1, &g->piece);
    if (g->lp && lp && !thinking) add_logprob(g, id, lp);
    if (!g->piece.len) return;
    if (!g->reply) {
        add_content(g, g->piece.data, g->piece.len);
        return;
    }
    lk_reply_push(g->reply, g->piece.data, g->piece.len);
}

static void first_token(struct lk_gen *g)
{
    struct lk_gens_stats *st = &g->all->st;
    g->first = lk_clock();
    st->ttft_sum += g->first - g->start;
    st->ttft_n++;
    for (int i = 0; i < 12; i++)
        if (i == 11 || g->first - g->start <= lk_gen_ttft_bounds[i]) st->ttft_bucket[i]++;
}

static void on_tokens(struct lk_gen *g, const struct lk_event *ev)
{
    size_t from = g->lp ? json_array_size(g->lp) : 0;
    if (g->first == 0 && ev->n_tokens) first_token(g);
    g->running = 1;
    g->t = ev->t;
    for (int i = 0; i < ev->n_tokens && !g->cut; i++) one_token(g, ev->tokens[i], ev->logprobs ? &ev->logprobs[i] : NULL);
    if (g->lp && json_array_size(g->lp) > from) {
        struct lk_gen_event lev = {.kind = LK_GEN_LOGPROBS, .from = from};
        g->o.fn(g->o.arg, g, &lev);
    }
    flush(g);
    if (!g->cut) return;
    lk_link_cancel(g->all->o.link, g->id);
    finish(g, LK_GEN_STOP);
}

static void on_done(struct lk_gen *g, const struct lk_event *ev)
{
    struct lk_fault f = {0};
    g->t = ev->t;
    switch (ev->finish) {
    case LK_FIN_LENGTH: finish(g, LK_GEN_LENGTH); return;
    case LK_FIN_DEADLINE:
        lk_fault_set(&f, 504, "deadline_exceeded", NULL, "the answer was not finished within %.0f s", g->o.deadline_s);
        fail(g, &f);
        return;
    case LK_FIN_CANCEL:
    case LK_FIN_ERROR:
        lk_fault_set(&f, 503, "service_unavailable", NULL, "the engine gave the request up; try again");
        f.retry_after = 1;
        fail(g, &f);
        return;
    default: finish(g, LK_GEN_STOP); return;
    }
}

static void on_error(struct lk_gen *g, const struct lk_event *ev)
{
    struct lk_err e = {.code = ev->code};
    struct lk_fault f = {0};
    snprintf(e.text, sizeof e.text, "%s", ev->text ? ev->text : "the engine failed");
    if (ev->code == LK_EBUSY)
        lk_fault_set(&f, 429, "server_overloaded", NULL, "%s", e.text), f.retry_after = 1;
    else
        lk_fault_err(&f, &e);
    fail(g, &f);
}

void lk_gens_event(struct lk_gens *s, const struct lk_event *ev)
{
    struct lk_gen *g = *slot(s, ev->id);
    if (!g) return;
    switch (ev->kind) {
    case LK_EV_START: g->running = 1; break;
    case LK_EV_PROGRESS:
        g->running = 1;
        g->prompt_done = ev->prompt_done;
        break;
    case LK_EV_TOKENS: on_tokens(g, ev); break;
    case LK_EV_DONE: on_done(g, ev); break;
    case LK_EV_ERROR: on_error(g, ev); break;
    }
}

static struct lk_gen *any(struct lk_gens *s)
{
    for (int i = 0; i < BUCKETS; i++)
        if (s->bucket[i]) return s->bucket[i];
    return NULL;
}

void lk_gens_lost(struct lk_gens *s, const char *reason)
{
    struct lk_gen *g;
    while ((g = any(s))) { /* failing one may free others of its exchange: look again each time */
        struct lk_fault f = {.retry_after = 1};
        lk_fault_set(&f, 503, "engine_died", NULL, "the engine process died (%s) and is being restarted; try again", reason);
        fail(g, &f);
    }
}

void lk_gens_tick(struct lk_gens *s)
{
    double now = lk_clock();
    for (int i = 0; i < BUCKETS; i++) {
        struct lk_gen *g = s->bucket[i];
        while (g && (g->deadline == 0 || now < g->deadline)) g = g->chain;
        if (!g) continue;
        struct lk_fault f = {0};
        lk_fault_set(&f, 504, "deadline_exceeded", NULL, "the answer was not finished within %.0f s", g->o.deadline_s);
        lk_link_cancel(s->o.link, g->id);
        fail(g, &f); /* the rest of the bucket waits for the next tick */
    }
}

/* ---- life ---- */

static int submit(struct lk_gen *g, struct lk_fault *f)
{
    const struct lk_params *p = g->o.p;
    struct lk_err e = {0};
    struct lk_wire_submit w = {.id = g->id, .rule = g->o.rule};
    w.r = (struct lk_request){
        .ids = g->o.ids->v,
        .n_ids = g->o.ids->n,
        .max_tokens = p->max_tokens,
        .sampling = p->s,
        .stop_ids = g->all->o.stop_ids,
        .n_stop_ids = g->all->o.n_stop_ids,
        .logprobs = p->logprobs > 1 ? p->logprobs - 1 : p->logprobs,
        .draft = -2,
        .deadline = g->o.deadline_s,
    };
    w.r.sampling.seed += (uint64_t)g->o.draw;
    w.rule.thinking_open = g->o.thinking_open;
    w.rule.budget = p->budget;
    w.rule.budget_text = p->budget_text;
    return lk_link_submit(g->all->o.link, &w, &e) ? lk_fault_err(f, &e) : 0;
}

static int make_parsers(struct lk_gen *g)
{
    const struct lk_params *p = g->o.p;
    g->calls = json_array();
    if (p->logprobs) g->lp = json_array();
    if (g->o.chat && !(g->reply = lk_reply_new(g->o.thinking_open, g->o.tools, g->o.parse_tools, on_reply, g))) return -1;
    if (p->n_stops && !(g->stops = lk_stops_new(p->stops, (size_t)p->n_stops))) return -1;
    return !g->calls || (p->logprobs && !g->lp) ? -1 : 0;
}

struct lk_gen *lk_gen_start(struct lk_gens *s, const struct lk_gen_opts *o, struct lk_fault *f)
{
    struct lk_gen *g = lk_calloc(1, sizeof *g);
    if (!g) {
        lk_fault_set(f, 503, "out_of_memory", NULL, "no memory for a request");
        return NULL;
    }
    g->all = s;
    g->o = *o;
    g->id = ++s->next_id;
    g->start = lk_clock();
    g->prompt = (int)o->ids->n;
    if (o->chat && s->o.turns) lk_replay_begin(&g->turn, s->o.tok, o->ids); /* without it the turn is not remembered */
    g->turn_from = g->turn.n;
    if (o->deadline_s > 0) g->deadline = g->start + o->deadline_s + 0.5; /* the engine's own comes first */
    if (make_parsers(g)) {
        lk_fault_set(f, 503, "out_of_memory", NULL, "no memory for a request");
    } else if (!submit(g, f)) {
        struct lk_gen **p = slot(s, g->id);
        *p = g;
        g->listed = 1;
        s->n++;
        s->st.started++;
        g->o.ids = NULL; /* the caller's, only for submit */
        return g;
    }
    lk_gen_free(g);
    return NULL;
}

void lk_gen_free(struct lk_gen *g)
{
    if (!g) return;
    if (g->listed) {
        lk_link_cancel(g->all->o.link, g->id);
        g->all->st.cancelled++;
        unlist(g);
    }
    lk_reply_free(g->reply);
    if (g->stops) lk_stops_free(g->stops);
    struct lk_buf *bufs[] = {&g->piece, &g->pending, &g->think, &g->content, &g->args, &g->name};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) lk_buf_free(bufs[i]);
    lk_ids_free(&g->turn);
    json_decref(g->calls);
    json_decref(g->lp);
    lk_free(g);
}

void lk_gen_read(const struct lk_gen *g, struct lk_gen_totals *t)
{
    *t = (struct lk_gen_totals){
        .finish = g->finish,
        .stop_sequence = g->stop_sequence,
        .prompt = g->prompt,
        .cached = g->t.cached_n,
        .completion = g->completion,
        .reasoning = g->reasoning,
        .t = g->t,
        .think = &g->think,
        .content = &g->content,
        .calls = g->calls,
        .logprobs = g->lp,
    };
}

json_t *lk_gens_list(const struct lk_gens *s)
{
    json_t *list = json_array();
    double now = lk_clock();
    for (int i = 0; i < BUCKETS; i++)
        for (const struct lk_gen *g = s->bucket[i]; g; g = g->chain)
            json_array_append_new(
                list, json_pack("{s:I, s:s, s:s, s:f, s:i, s:i, s:i}", "id", (json_int_t)g->id, "kind", g->o.kind, "state",
                                !g->running ? "waiting" : g->first == 0 ? "prefill" : "decode", "age_s", now - g->start,
                                "prompt_tokens", g->prompt, "prompt_done", g->first != 0 ? g->prompt : g->prompt_done,
                                "completion_tokens", g->completion));
    return list;
}
