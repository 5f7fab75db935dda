/* HTTP/1.1 and server-sent events over libevent's evhttp: one loop, one thread.
 *
 * An exchange (lk_hx) is one request and its reply. The handler is called with the whole request; it then either finishes
 * the reply (lk_hx_reply, lk_hx_json, lk_hx_error, or lk_hx_stream ... lk_hx_end) or, when the client leaves first, its
 * on_gone is called. After either the exchange is gone: do not touch it. */
#ifndef LK_SERVE_HTTP_H
#define LK_SERVE_HTTP_H

#include "base/err.h"
#include "serve/fault.h"

#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct lk_http;
struct lk_hx;

struct lk_http_opts {
    struct event_base *base;
    const char *host;
    int port;              /* 0: any free one */
    size_t max_body;
    double keepalive_s;    /* a silent stream gets a comment so often, in Anthropic's shape a ping */
    const char *cors;      /* allowed origin, "*", or NULL */
    void (*handler)(void *arg, struct lk_hx *x);
    void (*done)(void *arg, const char *route, int status); /* one call a finished exchange; 499: the client left */
    void *arg;
};

int lk_http_new(struct lk_http **out, const struct lk_http_opts *o, struct lk_err *e);
void lk_http_free(struct lk_http *h);
int lk_http_port(const struct lk_http *h);
void lk_http_stop(struct lk_http *h); /* no new connections; open exchanges go on */
int lk_http_open(const struct lk_http *h); /* exchanges not finished */
uint64_t lk_http_cut(const struct lk_http *h); /* slow readers cut off so far */

/* The request. */
enum evhttp_cmd_type lk_hx_method(const struct lk_hx *x);
const char *lk_hx_path(const struct lk_hx *x);  /* decoded, without query */
const char *lk_hx_in(const struct lk_hx *x, const char *header); /* NULL: absent */
const char *lk_hx_body(struct lk_hx *x, size_t *n);
void lk_hx_route(struct lk_hx *x, const char *route); /* static string; for done */
void lk_hx_anthropic(struct lk_hx *x); /* errors in that shape */

/* The reply. */
void lk_hx_header(struct lk_hx *x, const char *name, const char *value);
void lk_hx_reply(struct lk_hx *x, int status, const char *type, const void *body, size_t n);
void lk_hx_json(struct lk_hx *x, int status, json_t *body); /* takes the reference */
void lk_hx_error(struct lk_hx *x, const struct lk_fault *f);
void lk_hx_on_gone(struct lk_hx *x, void (*fn)(void *arg), void *arg);
void lk_hx_stream(struct lk_hx *x); /* 200 text/event-stream */
/* One event; name may be NULL. -1: the reader is too slow and is being cut off; on_gone follows later. */
int lk_hx_send(struct lk_hx *x, const char *name, const char *data, size_t n);
int lk_hx_send_json(struct lk_hx *x, const char *name, json_t *data); /* takes the reference */
void lk_hx_end(struct lk_hx *x);

#endif
