/* Inside of the engine, shared by engine.c (the callers' side) and engine_loop.c (the engine thread).
 *
 * Who touches what: `host` and sequences belong to the engine thread. Everything in `struct req` under "mailbox" and all lists of the
 * engine are guarded by the lock; the engine thread copies new tokens from sequences into mailboxes after each turn. */
#ifndef LK_RUNTIME_ENGINE_INT_H
#define LK_RUNTIME_ENGINE_INT_H

#include "runtime/engine.h"
#include "runtime/host.h"

#include <pthread.h>

#define LK_QUEUE_MAX 256 /* requests waiting for a lane */

struct req {
    uint64_t id;
    struct lk_seq *seq; /* the engine thread's */
    struct req *next;   /* in the engine's list of all */
    struct req *next_waiting; /* engine thread's own list */
    /* mailbox */
    int32_t *tokens;
    struct lk_logprob *logprobs;
    int n, cap, taken;
    int started, start_told, prompt_done, prompt_told, done;
    struct lk_timings t;
    enum lk_finish finish;
    int stop_index, code;
    char text[sizeof(((struct lk_err *)0)->text)];
    struct req *next_ready;
    int ready; /* in the ready list */
};

enum job_kind { JOB_SAVE, JOB_LOAD, JOB_FORGET };
struct job { /* lives on its caller's stack */
    enum job_kind kind;
    const char *session, *path, *note;
    int32_t **ids;
    size_t *n_ids;
    char **note_out;
    struct lk_err *err;
    int rc, done;
    struct job *next;
};

struct lk_engine {
    struct lk_host host;
    pthread_t thread;
    int running;          /* thread was started */
    pthread_mutex_t lock;
    pthread_cond_t work;  /* the engine thread waits here */
    pthread_cond_t news;  /* readers of events and callers of jobs wait here */
    int fd;               /* eventfd: counts > 0 while events wait */
    int stop, dead;
    struct lk_err death;
    uint64_t next_id;
    struct req *all;      /* every request whose DONE was not told */
    struct req *inbox, **inbox_end; /* submitted, not yet seen by the thread (next_waiting) */
    struct req *ready, **ready_end; /* mailboxes with news, oldest first */
    struct job *jobs;
    int n_waiting;
    struct lk_engine_stats stats;
    /* the reader's */
    int32_t *ev_tokens;
    struct lk_logprob *ev_logprobs;
    int ev_cap, ev_lp_cap;
    char ev_text[sizeof(((struct lk_err *)0)->text)];
    /* the engine thread's */
    struct req *waiting;  /* by priority, then arrival */
    struct req *lane[LK_LANES];
};

void *engine_loop(void *arg);
void engine_req_free(struct req *r);
void engine_ready(struct lk_engine *e, struct req *r); /* lock held */

#endif
