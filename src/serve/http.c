/* evhttp and what it lacks. evhttp stops reading a connection once a request is complete, and so does not see a client leave
 * until something is written. Here reading stays on without a read callback (what evhttp itself does while it writes): bytes
 * of a next request wait in the input buffer, at most 64 KB of them, and an end of file reaches evhttp's own error path,
 * which closes the connection and calls our close callback. While a request is worked on the read time-out is off (a
 * client that waits sends nothing); the write time-out stays and cuts a reader that takes no byte for 20 s.
 *
 * A half-closed connection counts as left: no client of these APIs half-closes. Owns exchanges and SSE framing; knows no
 * protocol above that. */
#include "serve/http.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#define IDLE_S 75          /* a connection without a request */
#define WRITE_S 20         /* a reader that takes nothing */
#define MAX_HEADERS 65536
#define MAX_AHEAD 65536    /* bytes of a next request kept while one is worked on */
#define FAR_BEHIND (256u << 10)
#define MAX_BEHIND (4u << 20) /* unread output before a reader is cut off: hours of text at reading speed */

struct lk_http {
    struct lk_http_opts o;
    struct evhttp *ev;
    struct evhttp_bound_socket *bound;
    struct event *timer;
    struct lk_hx *open; /* list */
    int n_open, port;
    uint64_t n_cut, n_ids;
};

struct lk_hx {
    struct lk_http *h;
    struct evhttp_request *req;
    struct lk_hx *next, **prev;
    char *path, id[24];
    const char *route;
    int streaming, anthropic, cut, status;
    double sent_at;
    void (*gone)(void *arg);
    void *gone_arg;
};

static const char *phrase(int status)
{
    static const struct { int status; const char *text; } t[] = {
        {200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {404, "Not Found"},
        {405, "Method Not Allowed"}, {413, "Content Too Large"}, {417, "Expectation Failed"},
        {429, "Too Many Requests"}, {500, "Internal Server Error"}, {501, "Not Implemented"}, {503, "Service Unavailable"},
        {504, "Gateway Timeout"}, {529, "Overloaded"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i].status == status) return t[i].text;
    return "Unknown";
}

static void hx_free(struct lk_hx *x)
{
    if (x->h->o.done) x->h->o.done(x->h->o.arg, x->route, x->status);
    *x->prev = x->next;
    if (x->next) x->next->prev = x->prev;
    x->h->n_open--;
    free(x->path); /* evhttp_uridecode's own malloc */
    lk_free(x);
}

/* The connection is going down under an open exchange. */
static void on_close(struct evhttp_connection *c, void *arg)
{
    struct lk_hx *x = arg;
    struct evhttp_request *orphan = evhttp_request_get_connection(x->req) ? NULL : x->req;
    struct bufferevent *bev = evhttp_connection_get_bufferevent(c);
    if (x->streaming && !x->cut && bev && evbuffer_get_length(bufferevent_get_output(bev)) > FAR_BEHIND) x->h->n_cut++; /* by time */
    x->status = 499;
    if (x->gone) x->gone(x->gone_arg);
    hx_free(x);
    if (orphan) evhttp_request_free(orphan); /* evhttp let go of it; otherwise the connection frees it */
}

static void on_complete(struct evhttp_request *req, void *arg)
{
    struct evhttp_connection *c = evhttp_request_get_connection(req);
    struct bufferevent *bev = c ? evhttp_connection_get_bufferevent(c) : NULL;
    struct timeval idle = {IDLE_S, 0}, write = {WRITE_S, 0};
    if (!bev) return;
    bufferevent_set_timeouts(bev, &idle, &write);
    bufferevent_setwatermark(bev, EV_READ, 0, 0);
}

/* See the top of the file. */
static void watch(struct lk_hx *x, struct evhttp_connection *c)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(c);
    struct timeval write = {WRITE_S, 0};
    bufferevent_data_cb on_read, on_write;
    bufferevent_event_cb on_event;
    void *arg;
    int one = 1;
    bufferevent_getcb(bev, &on_read, &on_write, &on_event, &arg);
    bufferevent_setcb(bev, NULL, on_write, on_event, arg);
    bufferevent_set_timeouts(bev, NULL, &write);
    bufferevent_setwatermark(bev, EV_READ, 0, MAX_AHEAD);
    setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    evhttp_connection_set_closecb(c, on_close, x);
    evhttp_request_set_on_complete_cb(x->req, on_complete, NULL);
    bufferevent_enable(bev, EV_READ);
}

static void add_cors(struct lk_hx *x)
{
    const char *allow = x->h->o.cors, *origin = lk_hx_in(x, "Origin");
    if (!allow || !origin || (strcmp(allow, "*") && strcmp(allow, origin))) return;
    lk_hx_header(x, "Access-Control-Allow-Origin", allow);
    lk_hx_header(x, "Vary", "Origin");
    lk_hx_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    const char *want = lk_hx_in(x, "Access-Control-Request-Headers");
    lk_hx_header(x, "Access-Control-Allow-Headers", want ? want : "Authorization, Content-Type, X-Api-Key");
    lk_hx_header(x, "Access-Control-Max-Age", "86400");
}

static void on_request(struct evhttp_request *req, void *arg)
{
    struct lk_http *h = arg;
    struct evhttp_connection *c = evhttp_request_get_connection(req);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    struct lk_hx *x = lk_calloc(1, sizeof *x);
    if (!x) {
        evhttp_send_error(req, HTTP_SERVUNAVAIL, NULL);
        return;
    }
    x->h = h;
    x->req = req;
    x->route = "other";
    x->sent_at = lk_clock();
    size_t n = 0;
    x->path = evhttp_uridecode(path && *path ? path : "/", 0, &n);
    for (size_t i = 0; x->path && i < n; i++)
        if (!x->path[i]) x->path[i] = '?'; /* %00 ends no path */
    x->next = h->open;
    x->prev = &h->open;
    if (h->open) h->open->prev = &x->next;
    h->open = x;
    h->n_open++;
    watch(x, c);
    add_cors(x);
    snprintf(x->id, sizeof x->id, "req_%016llx", (unsigned long long)++h->n_ids);
    lk_hx_header(x, "X-Request-Id", x->id);
    h->o.handler(h->o.arg, x);
}

static void cut(evutil_socket_t fd, short what, void *arg)
{
    struct lk_http *h = arg;
    for (struct lk_hx *x = h->open, *next; x; x = next) {
        next = x->next;
        struct evhttp_connection *c = evhttp_request_get_connection(x->req);
        if (x->cut && c) evhttp_connection_free(c);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct lk_http *h = arg;
    double now = lk_clock();
    for (struct lk_hx *x = h->open; x; x = x->next) {
        if (!x->streaming || now - x->sent_at < h->o.keepalive_s) continue;
        struct evbuffer *b = evbuffer_new();
        if (!b) return;
        evbuffer_add_printf(b, x->anthropic ? "event: ping\ndata: {\"type\":\"ping\"}\n\n" : ": keep-alive\n\n");
        evhttp_send_reply_chunk(x->req, b);
        evbuffer_free(b);
        x->sent_at = now;
    }
}

/* ---- what the library refuses by itself ---- */

static const struct { int status; const char *code, *text; } refusals[] = {
    {413, "request_too_large", "the body is larger than this server takes; see --max-body"},
    {417, "invalid_request", "Expect: only 100-continue is understood"},
    {501, "method_not_allowed", "the method is none that this server knows"},
    {400, "invalid_request", "this is no HTTP/1.1 request, or its head is larger than 64 KB"}, /* last: stands for all others */
};

/* A body past the limit, a broken head or an unknown method never reaches on_request: the library writes a page of HTML.
 * This sees it in the connection's output before it is sent, known by its last line and by being no exchange's, and puts
 * our error there instead, in a shape that OpenAI's and Anthropic's clients both read. */
static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    static const char last[] = "</BODY></HTML>\n";
    struct lk_http *h = arg;
    size_t n = evbuffer_get_length(out), tail = sizeof last - 1;
    char end[sizeof last], head[16] = "";
    struct evbuffer_ptr at;
    if (info->n_added < tail || n > 4096 || n < tail || evbuffer_ptr_set(out, &at, n - tail, EVBUFFER_PTR_SET)) return;
    if (evbuffer_copyout_from(out, &at, end, tail) != (ev_ssize_t)tail || memcmp(end, last, tail)) return;
    for (const struct lk_hx *x = h->open; x; x = x->next) {
        struct evhttp_connection *c = evhttp_request_get_connection(x->req);
        if (c && bufferevent_get_output(evhttp_connection_get_bufferevent(c)) == out) return; /* ours */
    }
    evbuffer_copyout(out, head, sizeof head - 1);
    int status = strncmp(head, "HTTP/1.", 7) ? 0 : atoi(head + 9);
    size_t k = 0;
    while (k + 1 < sizeof refusals / sizeof *refusals && refusals[k].status != status) k++;
    char body[512];
    int len = snprintf(body, sizeof body, "{\"type\":\"error\",\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}",
                       refusals[k].text, status == 413 ? "request_too_large" : "invalid_request_error", refusals[k].code);
    evbuffer_drain(out, n);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
                        refusals[k].status, phrase(refusals[k].status), len, body);
    if (h->o.done) h->o.done(h->o.arg, "other", refusals[k].status);
}

static struct bufferevent *new_connection(struct event_base *base, void *arg)
{
    struct bufferevent *bev = bufferevent_socket_new(base, -1, 0);
    if (bev) evbuffer_add_cb(bufferevent_get_output(bev), on_output, arg);
    return bev;
}

/* Out of descriptors: accept less eagerly instead of spinning. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    static const struct timespec pause = {0, 10 * 1000000};
    nanosleep(&pause, NULL);
}

static int find_port(struct evhttp_bound_socket *b)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(evhttp_bound_socket_get_fd(b), (struct sockaddr *)&a, &n)) return 0;
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

int lk_http_new(struct lk_http **out, const struct lk_http_opts *o, struct lk_err *e)
{
    struct timeval tick = {0, 500000}, idle = {IDLE_S, 0};
    struct lk_http *h = lk_calloc(1, sizeof *h);
    if (!h) return lk_fail(e, LK_ENOMEM, "no memory for the server");
    h->o = *o;
    h->ev = evhttp_new(o->base);
    h->timer = event_new(o->base, -1, EV_PERSIST, on_timer, h);
    if (!h->ev || !h->timer || event_add(h->timer, &tick)) {
        lk_http_free(h);
        return lk_fail(e, LK_ENOMEM, "no memory for the server");
    }
    evhttp_set_gencb(h->ev, on_request, h);
    evhttp_set_bevcb(h->ev, new_connection, h);
    evhttp_set_allowed_methods(h->ev, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                          EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
    evhttp_set_max_headers_size(h->ev, MAX_HEADERS);
    evhttp_set_max_body_size(h->ev, (ev_ssize_t)o->max_body);
    evhttp_set_flags(h->ev, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_timeout_tv(h->ev, &idle);
    evhttp_set_default_content_type(h->ev, NULL);
    h->bound = evhttp_bind_socket_with_handle(h->ev, o->host, (ev_uint16_t)o->port);
    if (!h->bound) {
        int no = errno;
        lk_http_free(h);
        return lk_fail(e, LK_EINPUT, "cannot listen on %s:%d: %s; choose another --host or --port", o->host, o->port,
                       no ? strerror(no) : "no such address");
    }
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(h->bound), on_accept_error);
    h->port = find_port(h->bound);
    *out = h;
    return 0;
}

void lk_http_stop(struct lk_http *h)
{
    if (h->bound) evhttp_del_accept_socket(h->ev, h->bound);
    h->bound = NULL;
}

void lk_http_free(struct lk_http *h)
{
    if (!h) return;
    if (h->ev) evhttp_free(h->ev); /* closes connections, and so calls every on_gone */
    if (h->timer) event_free(h->timer);
    lk_free(h);
}

int lk_http_port(const struct lk_http *h) { return h->port; }
int lk_http_open(const struct lk_http *h) { return h->n_open; }
uint64_t lk_http_cut(const struct lk_http *h) { return h->n_cut; }

enum evhttp_cmd_type lk_hx_method(const struct lk_hx *x) { return evhttp_request_get_command(x->req); }
const char *lk_hx_path(const struct lk_hx *x) { return x->path ? x->path : "/"; }
void lk_hx_route(struct lk_hx *x, const char *route) { x->route = route; }

void lk_hx_anthropic(struct lk_hx *x)
{
    if (!x->anthropic) lk_hx_header(x, "Request-Id", x->id);
    x->anthropic = 1;
}


const char *lk_hx_in(const struct lk_hx *x, const char *header)
{
    return evhttp_find_header(evhttp_request_get_input_headers(x->req), header);
}

const char *lk_hx_body(struct lk_hx *x, size_t *n)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(x->req);
    *n = evbuffer_get_length(in);
    return *n ? (const char *)evbuffer_pullup(in, -1) : "";
}

void lk_hx_header(struct lk_hx *x, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(x->req), name, value);
}

void lk_hx_on_gone(struct lk_hx *x, void (*fn)(void *arg), void *arg)
{
    x->gone = fn;
    x->gone_arg = arg;
}

/* From here on the connection lives on without the exchange. */
static struct evhttp_request *detach(struct lk_hx *x)
{
    struct evhttp_request *req = x->req;
    struct evhttp_connection *c = evhttp_request_get_connection(req);
    if (c) evhttp_connection_set_closecb(c, NULL, NULL);
    hx_free(x);
    return req;
}

void lk_hx_reply(struct lk_hx *x, int status, const char *type, const void *body, size_t n)
{
    struct evbuffer *b = evbuffer_new();
    if (b && n) evbuffer_add(b, body, n);
    if (type) lk_hx_header(x, "Content-Type", type);
    if (evhttp_request_get_command(x->req) == EVHTTP_REQ_HEAD) { /* the length, and nothing of it */
        char length[24];
        snprintf(length, sizeof length, "%zu", n);
        lk_hx_header(x, "Content-Length", length);
        if (b) evbuffer_drain(b, n);
    }
    x->status = status;
    struct evhttp_request *req = detach(x);
    evhttp_send_reply(req, status, phrase(status), b);
    if (b) evbuffer_free(b);
}

void lk_hx_json(struct lk_hx *x, int status, json_t *body)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (text)
        lk_hx_reply(x, status, "application/json", text, strlen(text));
    else
        lk_hx_reply(x, 503, "application/json", "{}", 2);
    free(text);
}

void lk_hx_error(struct lk_hx *x, const struct lk_fault *f)
{
    char after[16];
    if (x->streaming) {
        lk_hx_send_json(x, x->anthropic ? "error" : NULL, lk_fault_json(f, x->anthropic));
        lk_hx_end(x);
        return;
    }
    snprintf(after, sizeof after, "%d", f->retry_after);
    if (f->retry_after) lk_hx_header(x, "Retry-After", after);
    if (f->status == 401) lk_hx_header(x, "WWW-Authenticate", "Bearer");
    lk_hx_json(x, f->status, lk_fault_json(f, x->anthropic));
}

void lk_hx_stream(struct lk_hx *x)
{
    lk_hx_header(x, "Content-Type", "text/event-stream; charset=utf-8");
    lk_hx_header(x, "Cache-Control", "no-cache");
    lk_hx_header(x, "X-Accel-Buffering", "no");
    x->streaming = 1;
    x->status = 200;
    evhttp_send_reply_start(x->req, 200, "OK");
}

int lk_hx_send(struct lk_hx *x, const char *name, const char *data, size_t n)
{
    struct evhttp_connection *c = evhttp_request_get_connection(x->req);
    struct timeval now = {0, 0};
    if (x->cut || !c) return -1;
    struct evbuffer *b = evbuffer_new();
    if (!b) return -1;
    if (name) evbuffer_add_printf(b, "event: %s\n", name);
    evbuffer_add(b, "data: ", 6);
    evbuffer_add(b, data, n);
    evbuffer_add(b, "\n\n", 2);
    evhttp_send_reply_chunk(x->req, b);
    evbuffer_free(b);
    x->sent_at = lk_clock();
    if (evbuffer_get_length(bufferevent_get_output(evhttp_connection_get_bufferevent(c))) < MAX_BEHIND) return 0;
    x->cut = 1;
    x->h->n_cut++;
    event_base_once(x->h->o.base, -1, EV_TIMEOUT, cut, x->h, &now); /* not from inside the caller's own call */
    return -1;
}

int lk_hx_send_json(struct lk_hx *x, const char *name, json_t *data)
{
    char *text = data ? json_dumps(data, JSON_COMPACT) : NULL;
    json_decref(data);
    if (!text) return -1;
    int rc = lk_hx_send(x, name, text, strlen(text));
    free(text);
    return rc;
}

void lk_hx_end(struct lk_hx *x)
{
    struct evhttp_request *req = detach(x);
    evhttp_send_reply_end(req);
}
