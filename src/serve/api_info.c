/* Endpoints that generate nothing: models, tokenize, detokenize, health, metrics, slots, version. */
#include "serve/front.h"

#include "base/log.h"

#include <inttypes.h>
#include <string.h>

static json_t *model_json(const struct lk_front *f)
{
    int ctx = lk_link_ready(f->link)->ctx;
    return json_pack("{s:s, s:s, s:i, s:s, s:i}", "id", f->s->name, "object", "model", "created", 1735689600, "owned_by", "laoka",
                     "max_model_len", ctx);
}

void lk_api_models(struct lk_front *f, struct lk_hx *x, const char *id)
{
    struct lk_fault fault = {0};
    if (!id) {
        lk_hx_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(f)));
    } else if (!strcmp(id, f->s->name)) {
        lk_hx_json(x, 200, model_json(f));
    } else {
        lk_fault_set(&fault, 404, "model_not_found", "model", "model: \"%.100s\" is not here; this server runs \"%s\"", id, f->s->name);
        lk_hx_error(x, &fault);
    }
}

static json_t *body_of(struct lk_hx *x, struct lk_fault *fault)
{
    size_t n;
    const char *body = lk_hx_body(x, &n);
    return lk_body_parse(body, n, fault);
}

/* Text of the request: content/prompt, or messages rendered. */
static int tokenize_ids(struct lk_front *f, const json_t *o, struct lk_ask *a, struct lk_fault *fault)
{
    struct lk_chat_opts chat;
    struct lk_err e = {0};
    const char *names[] = {"content", "prompt", "text"}, *text = NULL, *effort = NULL;
    int special = 1;
    lk_chat_opts_init(&chat);
    for (int i = 0; i < 3 && !text; i++)
        if (lk_get_str(o, names[i], &text, fault) < 0) return -1;
    if (lk_get_bool(o, "parse_special", &special, fault) < 0) return -1;
    if (text) {
        if (lk_tokenizer_encode(f->s->tok, text, strlen(text), special ? LK_SPECIALS_ALL : LK_SPECIALS_NONE, &a->ids, &e))
            return lk_fault_err(fault, &e);
        return 0;
    }
    if (!json_object_get(o, "messages")) return lk_fault_field(fault, "content", "is missing (or messages)");
    if (lk_get_str(o, "reasoning_effort", &effort, fault) < 0 || lk_params_think(&chat, o, effort, "reasoning_effort", fault)) return -1;
    json_t *tools = lk_tools_openai(json_object_get(o, "tools"), fault), *messages = NULL;
    if (!fault->status) messages = lk_turns_openai(json_object_get(o, "messages"), f->calls, fault);
    if (messages) lk_front_render(f, messages, tools, &chat, NULL, a, fault);
    json_decref(messages);
    json_decref(tools);
    return fault->status ? -1 : 0;
}

static json_t *piece_json(struct lk_front *f, int32_t id)
{
    struct lk_buf b = {0};
    lk_tokenizer_decode(f->s->tok, &id, 1, 0, &b);
    json_t *o = json_pack("{s:i, s:s%}", "id", id, "piece", b.data ? b.data : "", b.len);
    lk_buf_free(&b);
    return o;
}

void lk_api_tokenize(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_ask a = {0};
    int pieces = 0;
    json_t *o = body_of(x, &fault), *list = NULL;
    if (!o || lk_get_bool(o, "with_pieces", &pieces, &fault) < 0 || tokenize_ids(f, o, &a, &fault)) {
        lk_hx_error(x, &fault);
    } else {
        list = json_array();
        for (size_t i = 0; i < a.ids.n; i++)
            json_array_append_new(list, pieces ? piece_json(f, a.ids.v[i]) : json_integer(a.ids.v[i]));
        lk_hx_json(x, 200, json_pack("{s:o, s:I, s:i}", "tokens", list, "count", (json_int_t)a.ids.n, "max_model_len",
                                     lk_link_ready(f->link)->ctx));
    }
    lk_ask_free(&a);
    json_decref(o);
}

void lk_api_detokenize(struct lk_front *f, struct lk_hx *x)
{
    struct lk_fault fault = {0};
    struct lk_ids ids = {0};
    struct lk_buf text = {0};
    json_t *o = body_of(x, &fault);
    const json_t *list = NULL, *v;
    size_t i;
    if (o && lk_get_arr(o, "tokens", &list, &fault) == 0) lk_fault_field(&fault, "tokens", "is missing");
    for (i = 0; list && i < json_array_size(list) && !fault.status; i++) {
        v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= lk_tokenizer_vocab(f->s->tok))
            lk_fault_field(&fault, "tokens", "must be integers from 0 to %d", (int)lk_tokenizer_vocab(f->s->tok) - 1);
        else if (lk_ids_add(&ids, (int32_t)json_integer_value(v)))
            lk_fault_set(&fault, 503, "out_of_memory", NULL, "no memory");
    }
    if (fault.status) {
        lk_hx_error(x, &fault);
    } else {
        lk_tokenizer_decode(f->s->tok, ids.v, ids.n, 0, &text);
        lk_hx_json(x, 200, json_pack("{s:s%, s:s%}", "content", text.data ? text.data : "", text.len, "prompt",
                                     text.data ? text.data : "", text.len));
    }
    lk_buf_free(&text);
    lk_ids_free(&ids);
    json_decref(o);
}

void lk_api_health(struct lk_front *f, struct lk_hx *x)
{
    static const char *const names[] = {"loading", "ok", "restarting"};
    enum lk_link_state s = lk_link_state(f->link);
    const char *status = f->draining ? "stopping" : names[s];
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i}", "status", status, "model", f->s->name, "running", lk_link_stats(f->link)->running, "requests",
                          lk_gens_count(f->gens), "restarts", lk_link_restarts(f->link));
    if (s == LK_LINK_DOWN) json_object_set_new(o, "reason", json_string(lk_link_reason(f->link)));
    if (s == LK_LINK_READY && lk_link_ready(f->link)->describe)
        json_object_set_new(o, "engine", json_string(lk_link_ready(f->link)->describe));
    if (s != LK_LINK_READY || f->draining) lk_hx_header(x, "Retry-After", "2");
    lk_hx_json(x, s == LK_LINK_READY && !f->draining ? 200 : 503, o);
}

void lk_api_version(struct lk_front *f, struct lk_hx *x)
{
    lk_hx_json(x, 200, json_pack("{s:s, s:s}", "version", f->s->version, "model", f->s->name));
}

void lk_api_slots(struct lk_front *f, struct lk_hx *x)
{
    const struct lk_engine_stats *s = lk_link_stats(f->link);
    lk_hx_json(x, 200,
               json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "slots", s->slots, "running", s->running, "waiting", s->waiting,
                         "pages_total", s->pages_total, "pages_free", s->pages_free, "engine_pid", lk_link_pid(f->link), "requests",
                         lk_gens_list(f->gens)));
}

struct metric {
    const char *name, *type, *help;
    double value;
};

static void add_metrics(struct lk_buf *b, const struct metric *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lk_buf_fmt(b, "# HELP laoka_%s %s\n# TYPE laoka_%s %s\nlaoka_%s %.17g\n", m[i].name, m[i].help, m[i].name, m[i].type, m[i].name,
                   m[i].value);
}

static void add_ttft(struct lk_buf *b, const struct lk_gens_stats *g)
{
    lk_buf_str(b, "# HELP laoka_first_token_seconds Time from request to first token.\n"
                  "# TYPE laoka_first_token_seconds histogram\n");
    for (int i = 0; i < 11; i++)
        lk_buf_fmt(b, "laoka_first_token_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", lk_gen_ttft_bounds[i], g->ttft_bucket[i]);
    lk_buf_fmt(b, "laoka_first_token_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n", g->ttft_bucket[11]);
    lk_buf_fmt(b, "laoka_first_token_seconds_sum %.9g\nlaoka_first_token_seconds_count %" PRIu64 "\n", g->ttft_sum, g->ttft_n);
}

static void add_http(struct lk_buf *b, const struct lk_front *f)
{
    lk_buf_str(b, "# HELP laoka_http_requests_total Requests by endpoint and status.\n# TYPE laoka_http_requests_total counter\n");
    for (int i = 0; i < f->n_counts; i++)
        lk_buf_fmt(b, "laoka_http_requests_total{endpoint=\"%s\",status=\"%d\"} %" PRIu64 "\n", f->counts[i].route, f->counts[i].status,
                   f->counts[i].n);
}

void lk_api_metrics(struct lk_front *f, struct lk_hx *x)
{
    const struct lk_gens_stats *g = lk_gens_totals(f->gens);
    const struct lk_engine_stats *s = lk_link_stats(f->link);
    struct lk_buf b = {0};
    const struct metric m[] = {
        {"up", "gauge", "1 while the engine takes work.", lk_link_state(f->link) == LK_LINK_READY},
        {"uptime_seconds", "gauge", "Seconds since the server started.", lk_clock() - f->started},
        {"engine_restarts_total", "counter", "Times the engine process was started again.", lk_link_restarts(f->link)},
        {"requests_running", "gauge", "Requests in the engine's step.", s->running},
        {"requests_open", "gauge", "Requests running or waiting.", lk_gens_count(f->gens)},
        {"slots", "gauge", "Requests a step can take.", s->slots},
        {"kv_pages", "gauge", "KV pages.", s->pages_total},
        {"kv_pages_free", "gauge", "KV pages not in use.", s->pages_free},
        {"prefix_entries", "gauge", "Stored prefixes.", s->prefix_entries},
        {"prefix_bytes_ram", "gauge", "Host bytes of stored prefixes.", (double)s->prefix_bytes_ram},
        {"prefix_bytes_disk", "gauge", "Disk bytes of stored prefixes.", (double)s->prefix_bytes_disk},
        {"answers_started_total", "counter", "Answers begun.", (double)g->started},
        {"answers_finished_total", "counter", "Answers finished.", (double)g->finished},
        {"answers_failed_total", "counter", "Answers ended by an error.", (double)g->failed},
        {"answers_cancelled_total", "counter", "Answers whose client left.", (double)g->cancelled},
        {"requests_refused_total", "counter", "Requests refused with 429.", (double)g->refused},
        {"slow_readers_cut_total", "counter", "Connections cut for reading too slowly.", (double)lk_http_cut(f->http)},
        {"prompt_tokens_total", "counter", "Prompt tokens of finished answers.", (double)g->prompt},
        {"cached_tokens_total", "counter", "Prompt tokens that were reused.", (double)g->cached},
        {"completion_tokens_total", "counter", "Answer tokens.", (double)g->completion},
        {"reasoning_tokens_total", "counter", "Answer tokens spent on thinking.", (double)g->reasoning},
        {"draft_tokens_total", "counter", "Tokens drafted.", (double)g->drafted},
        {"draft_tokens_accepted_total", "counter", "Drafted tokens accepted.", (double)g->accepted},
        {"decode_seconds_total", "counter", "Seconds between first and last tokens.", g->decode_sum},
        {"decode_tokens_total", "counter", "Tokens in those seconds.", (double)g->decode_n},
    };
    add_metrics(&b, m, sizeof m / sizeof *m);
    add_ttft(&b, g);
    add_http(&b, f);
    lk_hx_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
    lk_buf_free(&b);
}
