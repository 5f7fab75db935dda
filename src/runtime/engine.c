/* The engine, callers' side: see engine.h. */
#include "runtime/engine_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

void engine_req_free(struct req *r)
{
    lk_seq_free(r->seq);
    lk_free(r->tokens);
    lk_free(r->logprobs);
    lk_free(r);
}

static int sync_init(struct lk_engine *e, struct lk_err *err)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, &a);
    pthread_cond_init(&e->news, &a);
    pthread_condattr_destroy(&a);
    e->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return e->fd >= 0 ? 0 : lk_fail(err, LK_ESYS, "eventfd: %s", strerror(errno));
}

int lk_engine_open(struct lk_engine **out, const struct lk_opts_engine *o, struct lk_err *err)
{
    struct lk_engine *e = lk_calloc(1, sizeof *e);
    *out = NULL;
    if (!e) return lk_fail(err, LK_ENOMEM, "out of memory for the engine");
    e->inbox_end = &e->inbox;
    e->ready_end = &e->ready;
    e->next_id = 1;
    int rc = sync_init(e, err);
    if (!rc) rc = lk_host_open(&e->host, o, err);
    if (!rc) {
        const struct lk_core *c = &e->host.core;
        e->stats = (struct lk_engine_stats){.slots = c->o.parallel, .pages_total = c->o.n_pages, .pages_free = c->o.n_pages};
        int bad = pthread_create(&e->thread, NULL, engine_loop, e);
        if (bad) rc = lk_fail(err, LK_ESYS, "cannot start the engine thread: %s", strerror(bad));
        else e->running = 1;
    }
    if (rc) {
        lk_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void lk_engine_close(struct lk_engine *e)
{
    if (!e) return;
    if (e->running) {
        pthread_mutex_lock(&e->lock);
        e->stop = 1;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    while (e->all) {
        struct req *r = e->all;
        e->all = r->next;
        engine_req_free(r);
    }
    lk_host_close(&e->host);
    if (e->fd >= 0) close(e->fd);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->news);
    lk_free(e->ev_tokens);
    lk_free(e->ev_logprobs);
    lk_free(e);
}

uint64_t lk_engine_submit(struct lk_engine *e, const struct lk_request *r, struct lk_err *err)
{
    struct lk_seq *q;
    if (lk_seq_new(&q, r, e->host.core.o.vocab_used, e->host.core.o.ctx, err)) return 0;
    struct req *n = lk_calloc(1, sizeof *n);
    if (!n) {
        lk_seq_free(q);
        lk_fail(err, LK_ENOMEM, "out of memory for a request");
        return 0;
    }
    n->seq = q;
    pthread_mutex_lock(&e->lock);
    int full = e->n_waiting >= LK_QUEUE_MAX, refuse = e->dead || e->stop || full;
    uint64_t id = refuse ? 0 : e->next_id++;
    if (e->dead) lk_fail(err, LK_EDEVICE, "%s", e->death.text);
    else if (full) lk_fail(err, LK_EBUSY, "%d requests wait already: try again later", LK_QUEUE_MAX);
    else if (e->stop) lk_fail(err, LK_ECANCEL, "the engine is closing");
    if (id) {
        n->id = q->id = id;
        n->next = e->all;
        e->all = n;
        *e->inbox_end = n;
        e->inbox_end = &n->next_waiting;
        e->n_waiting++;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    if (!id) engine_req_free(n);
    return id;
}

void lk_engine_cancel(struct lk_engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (struct req *r = e->all; r; r = r->next)
        if (r->id == id && r->seq) atomic_store_explicit(&r->seq->cancel, 1, memory_order_relaxed);
    pthread_mutex_unlock(&e->lock);
}

/* Room for n tokens in the reader's own arrays. */
static int event_room(struct lk_engine *e, const struct req *r, int n)
{
    if (n > e->ev_cap) {
        int32_t *t = lk_reallocarray(e->ev_tokens, (size_t)n * 2, sizeof *t);
        if (!t) return LK_ENOMEM;
        e->ev_tokens = t;
        e->ev_cap = n * 2;
    }
    if (r->logprobs && n > e->ev_lp_cap) {
        struct lk_logprob *p = lk_reallocarray(e->ev_logprobs, (size_t)n * 2, sizeof *p);
        if (!p) return LK_ENOMEM;
        e->ev_logprobs = p;
        e->ev_lp_cap = n * 2;
    }
    return 0;
}

static void req_forget(struct lk_engine *e, struct req *r)
{
    for (struct req **at = &e->all; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    engine_req_free(r);
}

static void event_tokens(struct lk_engine *e, struct req *r, struct lk_event *ev)
{
    int n = r->n - r->taken;
    if (event_room(e, r, n)) n = n < e->ev_cap ? n : e->ev_cap; /* what fits now; the rest next time */
    if (r->logprobs && n > e->ev_lp_cap) n = e->ev_lp_cap;
    ev->kind = LK_EV_TOKENS;
    ev->n_tokens = n;
    if (n > 0) memcpy(e->ev_tokens, r->tokens + r->taken, (size_t)n * sizeof *r->tokens);
    ev->tokens = e->ev_tokens;
    if (r->logprobs && n > 0) {
        memcpy(e->ev_logprobs, r->logprobs + r->taken, (size_t)n * sizeof *r->logprobs);
        ev->logprobs = e->ev_logprobs;
    }
    r->taken += n;
}

/* The oldest untold thing of a mailbox. Returns 1 when more is left. */
static int event_make(struct lk_engine *e, struct req *r, struct lk_event *ev)
{
    *ev = (struct lk_event){.id = r->id, .t = r->t};
    if (r->started && !r->start_told) {
        ev->kind = LK_EV_START;
        r->start_told = 1;
    } else if (r->prompt_done > r->prompt_told) {
        ev->kind = LK_EV_PROGRESS;
        r->prompt_told = ev->prompt_done = r->prompt_done;
        ev->prompt_total = r->t.prompt_n;
    } else if (r->n > r->taken) {
        event_tokens(e, r, ev);
    } else if (r->done) {
        ev->kind = r->finish == LK_FIN_ERROR ? LK_EV_ERROR : LK_EV_DONE;
        ev->finish = r->finish;
        ev->stop_index = r->stop_index;
        ev->code = r->code;
        memcpy(e->ev_text, r->text, sizeof e->ev_text);
        ev->text = e->ev_text;
        req_forget(e, r);
        return 0;
    }
    return (r->started && !r->start_told) || r->prompt_done > r->prompt_told || r->n > r->taken || r->done;
}

static int event_take(struct lk_engine *e, struct lk_event *ev)
{
    struct req *r = e->ready;
    if (!r) return 0;
    e->ready = r->next_ready;
    if (!e->ready) {
        uint64_t drain;
        ssize_t ignored = read(e->fd, &drain, sizeof drain);
        (void)ignored;
        e->ready_end = &e->ready;
    }
    r->ready = 0;
    if (event_make(e, r, ev)) engine_ready(e, r);
    return 1;
}

int lk_engine_next(struct lk_engine *e, struct lk_event *ev, double timeout_s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_s > 0) {
        if (timeout_s > 1e8) timeout_s = 1e8;
        until.tv_sec += (time_t)timeout_s;
        until.tv_nsec += (long)((timeout_s - (double)(time_t)timeout_s) * 1e9);
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
    }
    pthread_mutex_lock(&e->lock);
    int got = event_take(e, ev), late = 0;
    while (!got && timeout_s != 0 && !late && !(e->dead && !e->all)) {
        if (timeout_s < 0) pthread_cond_wait(&e->news, &e->lock);
        else late = pthread_cond_timedwait(&e->news, &e->lock, &until) == ETIMEDOUT;
        got = event_take(e, ev);
    }
    int rc = got ? 1 : e->dead && !e->all ? LK_EDEVICE : 0;
    pthread_mutex_unlock(&e->lock);
    return rc;
}

int lk_engine_fd(struct lk_engine *e)
{
    return e->fd;
}

void lk_engine_stats(struct lk_engine *e, struct lk_engine_stats *s)
{
    pthread_mutex_lock(&e->lock);
    *s = e->stats;
    s->waiting = e->n_waiting;
    s->dead = e->dead;
    pthread_mutex_unlock(&e->lock);
}

static int job_wait(struct lk_engine *e, struct job *j)
{
    pthread_mutex_lock(&e->lock);
    if (e->stop || e->dead) {
        pthread_mutex_unlock(&e->lock);
        return lk_fail(j->err, LK_EDEVICE, "the engine has stopped");
    }
    struct job **at = &e->jobs;
    while (*at) at = &(*at)->next;
    *at = j;
    pthread_cond_signal(&e->work);
    while (!j->done) pthread_cond_wait(&e->news, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return j->rc;
}

int lk_engine_save(struct lk_engine *e, const char *session, const char *path, const char *note, struct lk_err *err)
{
    struct job j = {.kind = JOB_SAVE, .session = session, .path = path, .note = note, .err = err};
    return job_wait(e, &j);
}

int lk_engine_load(struct lk_engine *e, const char *session, const char *path, int32_t **ids, size_t *n_ids, char **note,
                   struct lk_err *err)
{
    struct job j = {.kind = JOB_LOAD, .session = session, .path = path, .ids = ids, .n_ids = n_ids, .note_out = note,
                    .err = err};
    return job_wait(e, &j);
}

int lk_engine_forget(struct lk_engine *e, struct lk_err *err)
{
    struct job j = {.kind = JOB_FORGET, .err = err};
    return job_wait(e, &j);
}

int lk_engine_ctx(const struct lk_engine *e)
{
    return e->host.core.o.ctx;
}

int lk_engine_vocab(const struct lk_engine *e)
{
    return e->host.core.o.vocab_used;
}

const char *lk_engine_describe(const struct lk_engine *e)
{
    return e->host.about;
}

const struct lk_artifact *lk_engine_artifact(const struct lk_engine *e)
{
    return e->host.artifact;
}

const struct lk_tokenizer *lk_engine_tokenizer(const struct lk_engine *e)
{
    return e->host.tok;
}
