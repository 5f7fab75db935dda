/* The front process: one event loop that holds the listening socket, the engine link and all generations.
 *
 * Life: listen at once (so that /health can say "loading"), start the engine, serve, drain on SIGTERM or SIGINT (no new
 * connections, no new work, what runs is finished), end. A second signal ends at once. */
#include "serve/front.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/replay.h"

#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

#define TICK_S 0.1
#define DRAIN_S 120
#define SILENCE_S 5.0 /* 20 beats missed; they come from a thread of their own, so neither loading nor a long step delays them */
#define KEEP_RESPONSES 1024
#define KEEP_CALLS 8192
#define KEEP_BYTES (256u << 20)

struct loop { /* what lk_serve_run owns beside the front */
    struct lk_front f;
    struct event *tick, *term, *intr;
    double drain_until;
    struct lk_err err;
};

static void on_event(void *arg, const struct lk_event *ev)
{
    lk_gens_event(((struct loop *)arg)->f.gens, ev);
}

static void on_lost(void *arg, const char *reason)
{
    struct loop *l = arg;
    const char *text;
    int code = lk_link_fatal(l->f.link, &text);
    lk_gens_lost(l->f.gens, reason);
    if (!code) return;
    lk_fail(&l->err, code, "%s", text);
    event_base_loopbreak(l->f.base);
}

static void on_changed(void *arg, enum lk_link_state s)
{
    struct loop *l = arg;
    if (s != LK_LINK_READY) return;
    const char *what = lk_link_ready(l->f.link)->describe;
    lk_log_info("ready: %s", what ? what : "engine");
}

static void on_request(void *arg, struct lk_hx *x)
{
    lk_front_handle(&((struct loop *)arg)->f, x);
}

static void on_http_done(void *arg, const char *route, int status)
{
    lk_front_count(&((struct loop *)arg)->f, route, status);
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct loop *l = arg;
    if (l->f.draining) {
        event_base_loopbreak(l->f.base);
        return;
    }
    lk_log_info("stopping: %d requests are being finished; a second signal stops at once", lk_http_open(l->f.http));
    l->f.draining = 1;
    l->drain_until = lk_clock() + DRAIN_S;
    lk_http_stop(l->f.http);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct loop *l = arg;
    lk_gens_tick(l->f.gens);
    if (l->f.draining && (!lk_http_open(l->f.http) || lk_clock() > l->drain_until)) event_base_loopexit(l->f.base, NULL);
}

static void free_json(void *item)
{
    json_decref(item);
}

/* Sockets are what runs out first under load. */
static void raise_files(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r)) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static int open_all(struct loop *l, const struct lk_serve *s, struct lk_err *e)
{
    struct lk_front *f = &l->f;
    struct timeval tick = {0, (int)(TICK_S * 1e6)};
    int rc;
    f->calls = lk_lru_new(KEEP_CALLS, KEEP_BYTES, lk_free);
    f->turns = lk_replay_new();
    f->responses = lk_lru_new(KEEP_RESPONSES, KEEP_BYTES, free_json);
    if (!(f->base = event_base_new()) || !f->calls || !f->turns || !f->responses) return lk_fail(e, LK_ENOMEM, "no memory for the server");
    const struct lk_link_opts lo = {f->base, s->worker_argv, SILENCE_S, s->o->watchdog_s, on_event, on_lost, on_changed, l};
    const struct lk_http_opts ho = {f->base, s->o->host, s->o->port, (size_t)s->o->max_body_mb << 20, s->o->keepalive_s, s->o->cors,
                                    on_request, on_http_done, l};
    if ((rc = lk_http_new(&f->http, &ho, e))) return rc;
    if ((rc = lk_link_new(&f->link, &lo, e))) return rc;
    const struct lk_gens_opts go = {f->link, s->tok, s->stop_ids, s->n_stop_ids, s->parallel + s->o->queue, f->calls, f->turns};
    f->gens = lk_gens_new(&go);
    l->tick = event_new(f->base, -1, EV_PERSIST, on_tick, l);
    l->term = evsignal_new(f->base, SIGTERM, on_signal, l);
    l->intr = evsignal_new(f->base, SIGINT, on_signal, l);
    if (!f->gens || !l->tick || !l->term || !l->intr || event_add(l->tick, &tick) || event_add(l->term, NULL) ||
        event_add(l->intr, NULL))
        return lk_fail(e, LK_ENOMEM, "no memory for the server");
    return 0;
}

static void close_all(struct loop *l)
{
    struct lk_front *f = &l->f;
    lk_http_free(f->http); /* frees exchanges and with them generations */
    if (f->gens) lk_gens_free(f->gens);
    lk_link_free(f->link);
    struct event *ev[] = {l->tick, l->term, l->intr};
    for (size_t i = 0; i < 3; i++)
        if (ev[i]) event_free(ev[i]);
    lk_lru_free(f->calls);
    lk_lru_free(f->turns);
    lk_lru_free(f->responses);
    if (f->base) event_base_free(f->base);
}

int lk_serve_run(const struct lk_serve *s, struct lk_err *e)
{
    struct loop *l = lk_calloc(1, sizeof *l);
    uint64_t r = 0;
    if (!l) return lk_fail(e, LK_ENOMEM, "no memory for the server");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file past a limit is a failed write, here and in the engine, which inherits this */
    raise_files();
    if (getrandom(&r, sizeof r, 0) != sizeof r) r = (uint64_t)time(NULL);
    snprintf(l->f.instance, sizeof l->f.instance, "%016" PRIx64, r);
    l->f.s = s;
    l->f.started = lk_clock();
    int rc = open_all(l, s, e);
    if (!rc) {
        lk_log_info("listening on http://%s:%d", s->o->host, lk_http_port(l->f.http));
        event_base_dispatch(l->f.base);
        if (l->err.code) {
            *e = l->err;
            rc = l->err.code;
        }
    }
    close_all(l);
    lk_free(l);
    return rc;
}
