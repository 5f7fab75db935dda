/* The streaming client: see client.h. libevent's HTTP client with a chunk callback; lines of server-sent events are cut here. */
#include "bench/client.h"

#include "base/log.h"
#include "base/mem.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run;
struct flight {
    struct run *run;
    struct lk_call *call;
    struct evhttp_connection *conn;
    struct event *timer; /* start, then silence */
    double t0;
    int over, saw_end;
};

struct run {
    struct event_base *base;
    const char *host, *path, *key;
    char authority[300];
    int port, left, done, n;
    double stall_s;
    void (*progress)(void *arg, int done);
    void *arg;
    struct flight *flights;
};

const char *lk_call_end_name(enum lk_call_end e)
{
    static const char *const names[] = {"ok", "http error", "closed early", "stalled", "not reachable", "busy", "dropped"};
    return names[e];
}

void lk_call_free(struct lk_call *c)
{
    lk_free(c->body);
    c->body = NULL;
}

static void timer_set(struct event *t, double s)
{
    struct timeval tv = {(time_t)s, (suseconds_t)((s - (double)(time_t)s) * 1e6)};
    event_add(t, &tv);
}

static void flight_end(struct flight *f, enum lk_call_end end, const char *why)
{
    if (f->over) return;
    f->over = 1;
    f->call->end = end;
    f->call->total = lk_clock() - f->t0;
    snprintf(f->call->why, sizeof f->call->why, "%s", why);
    event_del(f->timer);
    struct run *r = f->run;
    r->done++;
    if (r->progress) r->progress(r->arg, r->done);
    if (--r->left == 0) event_base_loopbreak(r->base);
}

static double number_of(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* What the server says of itself: "timings" (llama.cpp's and ours), and "usage". */
static void says_read(struct lk_call *c, const json_t *j)
{
    const json_t *t = json_object_get(j, "timings"), *u = json_object_get(j, "usage");
    if (json_is_object(t)) {
        c->prompt_n = number_of(t, "prompt_n", c->prompt_n);
        c->cached_n = number_of(t, "cached_n", number_of(t, "cache_n", c->cached_n));
        c->prompt_ms = number_of(t, "prompt_ms", c->prompt_ms);
        c->predicted_n = number_of(t, "predicted_n", c->predicted_n);
        c->predicted_ms = number_of(t, "predicted_ms", c->predicted_ms);
        c->per_second = number_of(t, "predicted_per_second", c->per_second);
        c->draft_n = number_of(t, "draft_n", c->draft_n);
        c->draft_accepted = number_of(t, "draft_n_accepted", c->draft_accepted);
    }
    if (json_is_object(u)) {
        if (c->prompt_n < 0) c->prompt_n = number_of(u, "prompt_tokens", -1);
        if (c->predicted_n < 0) c->predicted_n = number_of(u, "completion_tokens", -1);
        const json_t *d = json_object_get(u, "prompt_tokens_details");
        if (c->cached_n < 0) c->cached_n = number_of(d, "cached_tokens", -1);
    }
}

static void wait_note(struct lk_call *c, double s)
{
    for (size_t i = 0; i < sizeof c->waits / sizeof *c->waits; i++)
        if (s > c->waits[i]) {
            double less = c->waits[i];
            c->waits[i] = s;
            s = less;
        }
}

static void data_read(struct flight *f, const char *text, size_t len)
{
    struct lk_call *c = f->call;
    if (len == 6 && !memcmp(text, "[DONE]", 6)) {
        f->saw_end = 1;
        return;
    }
    json_t *j = json_loadb(text, len, 0, NULL);
    if (!j) return;
    says_read(c, j);
    const json_t *choice = json_array_get(json_object_get(j, "choices"), 0), *delta = json_object_get(choice, "delta");
    const char *said = json_string_value(json_object_get(delta, "content"));
    const char *thought = json_string_value(json_object_get(delta, "reasoning_content"));
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if ((said && *said) || (thought && *thought) || json_object_get(delta, "tool_calls")) {
        double now = lk_clock() - f->t0;
        if (!c->chunks++)
            c->ttft = now;
        else
            wait_note(c, now - c->last);
        c->last = now;
    }
    if (finish) snprintf(c->finish, sizeof c->finish, "%s", finish);
    json_decref(j);
}

static void flight_leave(struct flight *f, enum lk_call_end end, const char *why)
{
    flight_end(f, end, why);
    evhttp_connection_free(f->conn); /* closes the socket: the server sees us leave */
    f->conn = NULL;
}

static void on_chunk(struct evhttp_request *req, void *arg)
{
    struct flight *f = arg;
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    char *line;
    size_t len;
    if (f->over) return;
    timer_set(f->timer, f->run->stall_s);
    while ((line = evbuffer_readln(in, &len, EVBUFFER_EOL_LF))) {
        while (len && line[len - 1] == '\r') len--;
        if (len > 5 && !memcmp(line, "data:", 5)) {
            size_t at = line[5] == ' ' ? 6 : 5;
            data_read(f, line + at, len - at);
        }
        free(line);
    }
}

static void on_done(struct evhttp_request *req, void *arg)
{
    struct flight *f = arg;
    struct lk_call *c = f->call;
    if (f->over) return;
    c->status = req ? evhttp_request_get_response_code(req) : 0;
    if (!req || !c->status)
        flight_end(f, c->chunks ? LK_CALL_CLOSED : LK_CALL_REFUSED, c->chunks ? "the connection broke in the answer" : "no answer");
    else if (c->status == 429)
        flight_end(f, LK_CALL_BUSY, "429");
    else if (c->status != 200)
        flight_end(f, LK_CALL_HTTP, evhttp_request_get_response_code_line(req) ? evhttp_request_get_response_code_line(req) : "");
    else if (!f->saw_end || !c->finish[0])
        flight_end(f, LK_CALL_CLOSED, !c->finish[0] ? "no finish_reason" : "no [DONE]");
    else
        flight_end(f, LK_CALL_OK, "");
}

static void flight_start(struct flight *f)
{
    struct run *r = f->run;
    char path[512], auth[512];
    f->t0 = lk_clock();
    f->conn = evhttp_connection_base_new(r->base, NULL, r->host, (unsigned short)r->port);
    struct evhttp_request *req = evhttp_request_new(on_done, f);
    if (!f->conn || !req) {
        flight_end(f, LK_CALL_REFUSED, "no memory");
        return;
    }
    evhttp_connection_set_timeout(f->conn, 86400);
    evhttp_request_set_chunked_cb(req, on_chunk);
    struct evkeyvalq *h = evhttp_request_get_output_headers(req);
    evhttp_add_header(h, "Host", r->authority);
    evhttp_add_header(h, "Content-Type", "application/json");
    if (r->key) {
        snprintf(auth, sizeof auth, "Bearer %s", r->key);
        evhttp_add_header(h, "Authorization", auth);
    }
    evbuffer_add_reference(evhttp_request_get_output_buffer(req), f->call->body, strlen(f->call->body), NULL, NULL);
    snprintf(path, sizeof path, "%s/v1/chat/completions", r->path);
    if (evhttp_make_request(f->conn, req, EVHTTP_REQ_POST, path)) flight_end(f, LK_CALL_REFUSED, "cannot connect");
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct flight *f = arg;
    if (!f->t0) {
        flight_start(f);
        /* the first token may take a whole prefill: silence counts from the request, as between chunks */
        if (!f->over) timer_set(f->timer, f->run->stall_s);
        return;
    }
    char why[64];
    snprintf(why, sizeof why, "silent for %.1f s", f->run->stall_s);
    flight_leave(f, LK_CALL_STALLED, why);
}

/* Those who leave in the middle are looked at ten times a second, outside the chunk callback, where a connection may be freed. */
static void on_drop(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    for (int i = 0; i < r->n; i++) {
        struct flight *f = &r->flights[i];
        if (!f->over && f->conn && f->call->drop_after > 0 && f->call->chunks >= f->call->drop_after) flight_leave(f, LK_CALL_DROPPED, "left on purpose");
    }
}

static int run_start(struct run *r, struct lk_call *calls, struct lk_err *e)
{
    r->base = event_base_new();
    r->flights = lk_calloc((size_t)r->n, sizeof *r->flights);
    if (!r->base || !r->flights) return lk_fail(e, LK_ENOMEM, "no memory for %d requests", r->n);
    for (int i = 0; i < r->n; i++) {
        struct flight *f = &r->flights[i];
        struct lk_call *c = &calls[i];
        *f = (struct flight){.run = r, .call = c};
        c->prompt_n = c->cached_n = c->prompt_ms = c->predicted_n = c->predicted_ms = c->per_second = c->draft_n = c->draft_accepted = -1;
        f->timer = event_new(r->base, -1, 0, on_timer, f);
        if (!f->timer) return lk_fail(e, LK_ENOMEM, "no memory for %d requests", r->n);
        timer_set(f->timer, c->start_at);
    }
    return 0;
}

int lk_url_check(const char *url, struct lk_err *e)
{
    struct evhttp_uri *u = evhttp_uri_parse(url);
    const char *scheme = u ? evhttp_uri_get_scheme(u) : NULL, *host = u ? evhttp_uri_get_host(u) : NULL;
    int ok = scheme && !strcmp(scheme, "http") && host && *host;
    if (u) evhttp_uri_free(u);
    return ok ? 0 : lk_fail(e, LK_EUSAGE, "--url %s: expected http://host:port", url);
}

int lk_calls_run(const char *url, const char *key, struct lk_call *calls, int n, double stall_s, void (*progress)(void *arg, int done),
                 void *arg, struct lk_err *e)
{
    if (lk_url_check(url, e)) return LK_EUSAGE;
    struct evhttp_uri *u = evhttp_uri_parse(url);
    if (!u) return lk_fail(e, LK_ENOMEM, "no memory for %d requests", n);
    struct run r = {.host = evhttp_uri_get_host(u), .path = evhttp_uri_get_path(u), .key = key, .n = n, .left = n, .stall_s = stall_s,
                    .port = evhttp_uri_get_port(u) > 0 ? evhttp_uri_get_port(u) : 80, .progress = progress, .arg = arg};
    size_t plen = strlen(r.path);
    char path[256];
    snprintf(path, sizeof path, "%.*s", (int)(plen && r.path[plen - 1] == '/' ? plen - 1 : plen), r.path);
    char *v1 = strstr(path, "/v1");
    if (v1 && !v1[3]) *v1 = 0; /* people write the base url with and without /v1 */
    r.path = path;
    snprintf(r.authority, sizeof r.authority, "%s:%d", r.host, r.port);
    int rc = run_start(&r, calls, e);
    struct event *drop = rc ? NULL : event_new(r.base, -1, EV_PERSIST, on_drop, &r);
    if (drop) event_add(drop, &(struct timeval){0, 100000});
    if (!rc) event_base_dispatch(r.base);
    if (drop) event_free(drop);
    for (int i = 0; r.flights && i < n; i++) {
        if (r.flights[i].conn) evhttp_connection_free(r.flights[i].conn);
        if (r.flights[i].timer) event_free(r.flights[i].timer);
    }
    lk_free(r.flights);
    if (r.base) event_base_free(r.base);
    evhttp_uri_free(u);
    return rc;
}
