/* The engine process: opens the engine on a thread of its own, so that it can say "loading" while it does, then moves
 * messages both ways. It beats four times a second whatever the engine does: silence means that the whole process is
 * stopped or gone; `progress` in the beat tells a busy engine from a stuck one. Knows nothing of HTTP, JSON or text.
 *
 * States: LOADING -> READY -> end. Requests that come while loading wait in the socket: they are not read. */
#include "runtime/worker.h"

#include "base/log.h"
#include "base/mem.h"
#include "runtime/constraint.h"
#include "runtime/wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BEAT_S 0.25
#define ROUTES 4352 /* the front's largest queue (4,096) and what runs, with room */

struct route { /* an engine's request and the front's name for it */
    uint64_t engine, front;
};

struct worker {
    int fd;
    const struct lk_opts_engine *o;
    struct lk_engine *engine;
    struct lk_rule_pool *pool; /* NULL: grammars are not kept */
    atomic_int loaded; /* 0 loading, 1 the loader has returned */
    int load_rc;
    struct lk_err load_err;
    struct lk_buf in, out;
    struct route routes[ROUTES];
    int n_routes;
    uint64_t events;
    double beat_at;
};

static void *load(void *arg)
{
    struct worker *w = arg;
    w->load_rc = lk_engine_open(&w->engine, w->o, &w->load_err);
    atomic_store(&w->loaded, 1);
    return NULL;
}

/* Everything queued goes out before anything else is read: the front always reads, so this ends. */
static int send_out(struct worker *w, struct lk_err *e)
{
    size_t at = 0;
    if (w->out.failed) return lk_fail(e, LK_ENOMEM, "no memory for a message to the front");
    while (at < w->out.len) {
        ssize_t n = send(w->fd, w->out.data + at, w->out.len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return lk_fail(e, LK_ESYS, "the front is gone: %s", strerror(errno));
        at += (size_t)n;
    }
    lk_buf_reset(&w->out);
    return 0;
}

static void beat(struct worker *w)
{
    struct lk_wire_beat b = {.loading = !w->engine};
    double now = lk_clock();
    if (now < w->beat_at) return;
    w->beat_at = now + BEAT_S;
    if (w->engine) {
        lk_engine_stats(w->engine, &b.s);
        b.progress = w->events + b.s.tokens_out + b.s.tokens_prompt + b.s.rounds;
    }
    lk_wire_put_beat(&w->out, &b);
}

static int route_find(const struct worker *w, uint64_t id, int by_front)
{
    for (int i = 0; i < w->n_routes; i++)
        if ((by_front ? w->routes[i].front : w->routes[i].engine) == id) return i;
    return -1;
}

static void refuse(struct worker *w, uint64_t id, const struct lk_err *e)
{
    struct lk_event ev = {.kind = LK_EV_ERROR, .id = id, .finish = LK_FIN_ERROR, .code = e->code, .text = e->text};
    lk_wire_put_event(&w->out, &ev);
}

static void on_submit(struct worker *w, struct lk_wire_submit *s)
{
    struct lk_err e = {0};
    uint64_t id = 0;
    if (w->n_routes == ROUTES)
        lk_fail(&e, LK_EBUSY, "the engine's queue is full");
    else if (!lk_constraint_build(&s->r.grammar, &s->rule, lk_engine_tokenizer(w->engine), s->r.stop_ids, s->r.n_stop_ids,
                                  w->pool, &e))
        id = lk_engine_submit(w->engine, &s->r, &e);
    if (id)
        w->routes[w->n_routes++] = (struct route){id, s->id};
    else
        refuse(w, s->id, &e);
}

static int on_message(struct worker *w, enum lk_wire_kind kind, const char *p, size_t n, struct lk_err *e)
{
    struct lk_arena a = {0};
    struct lk_wire_submit s;
    uint64_t id;
    int rc = LK_EINPUT, i;
    if (kind == LK_WIRE_SUBMIT) {
        if (!(rc = lk_wire_get_submit(&a, p, n, &s))) on_submit(w, &s);
    } else if (kind == LK_WIRE_CANCEL) {
        if (!(rc = lk_wire_get_id(p, n, &id)) && (i = route_find(w, id, 1)) >= 0)
            lk_engine_cancel(w->engine, w->routes[i].engine);
    }
    lk_arena_free(&a);
    return rc ? lk_fail(e, rc, "a message of kind %d from the front is broken", (int)kind) : 0;
}

/* Reads what is there and handles whole messages. 1: the front closed. */
static int read_front(struct worker *w, struct lk_err *e)
{
    if (lk_buf_reserve(&w->in, 1 << 16)) return lk_fail(e, LK_ENOMEM, "no memory for a message from the front");
    ssize_t n = recv(w->fd, w->in.data + w->in.len, w->in.cap - w->in.len - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) return 1;
    w->in.len += (size_t)n;
    size_t at = 0;
    while (w->in.len - at >= LK_WIRE_HEAD) {
        uint32_t bytes;
        enum lk_wire_kind kind;
        int rc = lk_wire_head(w->in.data + at, &bytes, &kind);
        if (rc) return lk_fail(e, rc, "the front sent no message");
        if (w->in.len - at - LK_WIRE_HEAD < bytes) break;
        if ((rc = on_message(w, kind, w->in.data + at + LK_WIRE_HEAD, bytes, e))) return rc;
        at += LK_WIRE_HEAD + bytes;
    }
    memmove(w->in.data, w->in.data + at, w->in.len - at);
    w->in.len -= at;
    return 0;
}

static int read_engine(struct worker *w, struct lk_err *e)
{
    struct lk_event ev;
    int rc, i;
    while ((rc = lk_engine_next(w->engine, &ev, 0)) == 1) {
        w->events++;
        if ((i = route_find(w, ev.id, 0)) < 0) continue;
        ev.id = w->routes[i].front;
        lk_wire_put_event(&w->out, &ev);
        if (ev.kind == LK_EV_DONE || ev.kind == LK_EV_ERROR) w->routes[i] = w->routes[--w->n_routes];
    }
    return rc < 0 ? lk_fail(e, LK_EDEVICE, "the engine died") : 0;
}

/* 0 ready, 1 the front closed first, negative: failed and said so. */
static int wait_load(struct worker *w, struct lk_err *e)
{
    struct lk_wire_ready r;
    while (!atomic_load(&w->loaded)) {
        struct pollfd p = {w->fd, 0, 0}; /* only a hang-up wakes this */
        beat(w);
        int rc = send_out(w, e);
        if (rc) return rc;
        if (poll(&p, 1, 20) > 0 && (p.revents & (POLLHUP | POLLERR))) return 1;
    }
    if (w->load_rc) {
        *e = w->load_err;
        lk_wire_put_failed(&w->out, w->load_rc, e->text);
        send_out(w, NULL);
        return w->load_rc;
    }
    r = (struct lk_wire_ready){lk_engine_ctx(w->engine), lk_engine_vocab(w->engine), lk_engine_describe(w->engine)};
    lk_wire_put_ready(&w->out, &r);
    return send_out(w, e);
}

static int loop(struct worker *w, struct lk_err *e)
{
    int rc = 0;
    struct pollfd p[2] = {{w->fd, POLLIN, 0}, {lk_engine_fd(w->engine), POLLIN, 0}};
    while (!rc) {
        beat(w);
        if ((rc = send_out(w, e))) break;
        double wait = w->beat_at - lk_clock();
        if (poll(p, 2, wait > 0 ? (int)(wait * 1000) + 1 : 0) < 0 && errno != EINTR)
            return lk_fail(e, LK_ESYS, "poll: %s", strerror(errno));
        /* asked also without an event: an engine that dies while it is idle has none to show */
        if ((rc = read_engine(w, e)) < 0) send_out(w, NULL);
        if (!rc && p[0].revents) rc = read_front(w, e);
    }
    return rc > 0 ? 0 : rc;
}

int lk_worker_run(int fd, const struct lk_opts_engine *o, struct lk_err *e)
{
    struct worker *w = lk_calloc(1, sizeof *w);
    pthread_t loader;
    if (!w) return lk_fail(e, LK_ENOMEM, "no memory for the engine process");
    w->fd = fd;
    w->o = o;
    w->pool = lk_rule_pool_new();
    int rc = pthread_create(&loader, NULL, load, w);
    if (rc) {
        lk_rule_pool_free(w->pool);
        lk_free(w);
        return lk_fail(e, LK_ESYS, "no thread for the engine: %s", strerror(rc));
    }
    rc = wait_load(w, e);
    pthread_join(loader, NULL);
    if (!rc) rc = loop(w, e);
    lk_rule_pool_close(w->pool);
    if (w->engine) lk_engine_close(w->engine);
    lk_rule_pool_free(w->pool);
    lk_buf_free(&w->in);
    lk_buf_free(&w->out);
    lk_free(w);
    return rc > 0 ? 0 : rc;
}
