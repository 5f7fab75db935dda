/* The front's end of the engine process: starts it, watches it, ends it when it hangs, brings it back with back-off.
 * Requests are known here only by number. Owns the process, the socket and the wire; knows no HTTP and no text. */
#ifndef LK_SERVE_LINK_H
#define LK_SERVE_LINK_H

#include "base/err.h"
#include "runtime/wire.h"

#include <event2/event.h>

struct lk_link;

enum lk_link_state {
    LK_LINK_LOADING, /* the process runs, the model is being opened */
    LK_LINK_READY,
    LK_LINK_DOWN, /* dead; waiting to be started again */
};

struct lk_link_opts {
    struct event_base *base;
    char *const *argv;    /* the engine's command line; argv[0] is the program */
    double silence_s;     /* no beat for so long: the process is stopped or gone */
    double stuck_s;       /* beats, but work running and no progress for so long */
    void (*event)(void *arg, const struct lk_event *ev);      /* ids are the front's */
    void (*lost)(void *arg, const char *reason);              /* every request in flight is lost */
    void (*changed)(void *arg, enum lk_link_state s);
    void *arg;
};

/* Starts the first process. Its death before READY is reported through fatal (lk_link_fatal), later deaths restart. */
int lk_link_new(struct lk_link **out, const struct lk_link_opts *o, struct lk_err *e);
void lk_link_free(struct lk_link *l); /* ends the process */

enum lk_link_state lk_link_state(const struct lk_link *l);
const char *lk_link_reason(const struct lk_link *l); /* DOWN: why */
/* Code and text of the first load's failure (a bad model file): nothing to restart. 0 while there is none. */
int lk_link_fatal(const struct lk_link *l, const char **text);
const struct lk_wire_ready *lk_link_ready(const struct lk_link *l); /* of the last READY; zeroed before */
const struct lk_engine_stats *lk_link_stats(const struct lk_link *l);
int lk_link_restarts(const struct lk_link *l);
int lk_link_pid(const struct lk_link *l); /* 0: none */

/* LK_EBUSY: the engine is not ready. */
int lk_link_submit(struct lk_link *l, const struct lk_wire_submit *s, struct lk_err *e);
void lk_link_cancel(struct lk_link *l, uint64_t id);

#endif
