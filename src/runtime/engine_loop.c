/* The engine thread: takes what was submitted, admits it to lanes, runs turns, and puts results into mailboxes. It holds the lock only to
 * exchange lists and copy tokens, never during a turn. */
#include "runtime/engine_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

void engine_ready(struct lk_engine *e, struct req *r)
{
    if (r->ready) return;
    r->ready = 1;
    r->next_ready = NULL;
    *e->ready_end = r;
    e->ready_end = &r->next_ready;
    uint64_t one = 1;
    ssize_t ignored = write(e->fd, &one, sizeof one); /* a full counter is readable anyway */
    (void)ignored;
    pthread_cond_broadcast(&e->news);
}

static int mail_grow(struct req *r, int more)
{
    if (r->n + more <= r->cap) return 0;
    int cap = r->n + more + r->cap;
    int32_t *t = lk_reallocarray(r->tokens, (size_t)cap, sizeof *t);
    if (!t) return LK_ENOMEM;
    r->tokens = t;
    if (r->seq->n_logprobs) {
        struct lk_logprob *p = lk_reallocarray(r->logprobs, (size_t)cap, sizeof *p);
        if (!p) return LK_ENOMEM;
        r->logprobs = p;
    }
    r->cap = cap;
    return 0;
}

/* Copies what a sequence has new into its mailbox. Lock held. */
static void mail_put(struct lk_engine *e, struct req *r)
{
    struct lk_seq *q = r->seq;
    int out = lk_seq_out(q), more = out - r->n, news = 0;
    if (more > 0 && mail_grow(r, more)) {
        struct lk_err err = {0};
        lk_fail(&err, LK_ENOMEM, "out of memory for the answer");
        lk_seq_fail(q, &err); /* seen by the next look at lanes; a finished one keeps its finish */
        more = 0;
    }
    if (more > 0) {
        memcpy(r->tokens + r->n, q->ids + q->n_prompt + r->n, (size_t)more * sizeof *r->tokens);
        if (q->n_logprobs) memcpy(r->logprobs + r->n, q->logprobs + r->n, (size_t)more * sizeof *r->logprobs);
        r->n = out;
        news = 1;
    }
    int done = q->phase == LK_SEQ_WAIT ? 0 : q->n_done < q->n_prompt ? q->n_done : q->n_prompt;
    if (done > r->prompt_done) {
        r->prompt_done = done;
        news = 1;
    }
    r->t = q->t;
    if (news) engine_ready(e, r);
}

static void mail_done(struct lk_engine *e, struct req *r)
{
    struct lk_seq *q = r->seq;
    pthread_mutex_lock(&e->lock);
    mail_put(e, r);
    r->t = q->t;
    r->finish = q->finish;
    r->stop_index = q->stop_index;
    r->code = q->finish == LK_FIN_ERROR ? q->err.code : 0;
    memcpy(r->text, q->err.text, sizeof r->text);
    r->done = 1;
    r->seq = NULL;
    engine_ready(e, r);
    pthread_mutex_unlock(&e->lock);
    lk_seq_free(q);
}

static void inbox_take(struct lk_engine *e)
{
    struct req *r = e->inbox;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    while (r) {
        struct req *next = r->next_waiting, **at = &e->waiting;
        while (*at && (*at)->seq->priority >= r->seq->priority) at = &(*at)->next_waiting;
        r->next_waiting = *at;
        *at = r;
        r = next;
    }
}

/* Cancelled or late: LK_FIN_*; else LK_FIN_NONE. */
static enum lk_finish overdue(const struct lk_seq *q, double now)
{
    if (atomic_load_explicit(&q->cancel, memory_order_relaxed)) return LK_FIN_CANCEL;
    return q->t_deadline > 0 && now >= q->t_deadline ? LK_FIN_DEADLINE : LK_FIN_NONE;
}

static void waiting_drop(struct lk_engine *e, struct req **at)
{
    struct req *r = *at;
    *at = r->next_waiting;
    pthread_mutex_lock(&e->lock);
    e->n_waiting--;
    pthread_mutex_unlock(&e->lock);
    mail_done(e, r);
}

static int lanes_busy(const struct lk_engine *e)
{
    int n = 0;
    for (int l = 0; l < LK_LANES; l++) n += e->lane[l] != NULL;
    return n;
}

/* In order; a request that does not fit holds those behind it, so that a long one is not starved by short ones. */
static void admit(struct lk_engine *e)
{
    double now = lk_clock();
    for (struct req **at = &e->waiting; *at;) {
        enum lk_finish f = overdue((*at)->seq, now);
        if (f == LK_FIN_NONE) {
            at = &(*at)->next_waiting;
            continue;
        }
        lk_seq_finish((*at)->seq, f);
        waiting_drop(e, at);
    }
    while (e->waiting) {
        struct req *r = e->waiting;
        struct lk_err err = {0};
        int rc = lk_core_admit(&e->host.core, r->seq, &err);
        if (rc == LK_EBUSY && lanes_busy(e)) return;
        if (rc) { /* alone and still no room, or never */
            lk_seq_fail(r->seq, &err);
            waiting_drop(e, &e->waiting);
            continue;
        }
        e->waiting = r->next_waiting;
        e->lane[r->seq->lane] = r;
        pthread_mutex_lock(&e->lock);
        e->n_waiting--;
        r->started = 1;
        mail_put(e, r);
        engine_ready(e, r);
        pthread_mutex_unlock(&e->lock);
    }
}

/* Between turns: ends what is cancelled or late, mails what is new, frees lanes that are done. */
static void lanes_settle(struct lk_engine *e)
{
    double now = lk_clock();
    for (int l = 0; l < LK_LANES; l++) {
        struct req *r = e->lane[l];
        if (!r) continue;
        struct lk_seq *q = r->seq;
        enum lk_finish f = overdue(q, now);
        if (q->phase != LK_SEQ_DONE && f != LK_FIN_NONE) lk_seq_finish(q, f);
        if (q->phase != LK_SEQ_DONE && q->finish != LK_FIN_NONE) lk_core_end(&e->host.core, q);
        if (q->phase == LK_SEQ_DONE) {
            e->lane[l] = NULL;
            lk_core_release(&e->host.core, q);
            mail_done(e, r);
            continue;
        }
        pthread_mutex_lock(&e->lock);
        mail_put(e, r);
        pthread_mutex_unlock(&e->lock);
    }
}

static void stats_put(struct lk_engine *e)
{
    const struct lk_core *c = &e->host.core;
    struct lk_prefix_stats p;
    lk_prefix_stats(c->prefix, &p);
    struct lk_engine_stats s = {.running = lanes_busy(e), .slots = c->o.parallel, .pages_total = c->o.n_pages,
                                .pages_free = lk_prefix_pages_left(c->prefix), .requests = c->requests,
                                .tokens_prompt = c->tokens_prompt, .tokens_cached = c->tokens_cached,
                                .tokens_out = c->tokens_out, .drafts = c->drafts, .drafts_accepted = c->drafts_accepted,
                                .rounds = c->rounds, .prefix_bytes_ram = (uint64_t)p.ram,
                                .prefix_bytes_disk = (uint64_t)p.disk, .prefix_entries = p.entries,
                                .step_ms_last = c->step_ms};
    pthread_mutex_lock(&e->lock);
    s.waiting = e->n_waiting;
    s.dead = e->dead;
    e->stats = s;
    pthread_mutex_unlock(&e->lock);
}

static void job_run(struct lk_engine *e, struct job *j)
{
    struct lk_prefix *p = e->host.core.prefix;
    struct lk_buf note = {0};
    if (j->kind == JOB_FORGET) {
        lk_prefix_clear(p);
    } else if (j->kind == JOB_SAVE) {
        int entry = lk_prefix_named(p, j->session);
        j->rc = entry < 0 ? lk_fail(j->err, LK_EREQUEST, "no session \"%s\" to save", j->session)
                          : lk_prefix_save(p, entry, j->path, j->note, j->note ? strlen(j->note) : 0, j->err);
    } else {
        j->rc = lk_prefix_restore(p, j->path, j->session, j->ids, j->n_ids, j->note_out ? &note : NULL, j->err);
        if (!j->rc && j->note_out && !(*j->note_out = note.data)) *j->note_out = lk_strdup("");
        if (j->rc) lk_buf_free(&note);
    }
}

static void jobs_run(struct lk_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->jobs) {
        struct job *j = e->jobs;
        e->jobs = j->next;
        pthread_mutex_unlock(&e->lock);
        job_run(e, j);
        pthread_mutex_lock(&e->lock);
        j->done = 1;
        pthread_cond_broadcast(&e->news);
    }
    pthread_mutex_unlock(&e->lock);
}

/* The device is gone, or the engine closes: everybody gets the reason. */
static void all_fail(struct lk_engine *e, const struct lk_err *why)
{
    for (int l = 0; l < LK_LANES; l++) {
        struct req *r = e->lane[l];
        if (!r) continue;
        e->lane[l] = NULL;
        lk_seq_fail(r->seq, why);
        lk_core_end(&e->host.core, r->seq);
        lk_core_release(&e->host.core, r->seq);
        mail_done(e, r);
    }
    while (e->waiting) {
        lk_seq_fail(e->waiting->seq, why);
        waiting_drop(e, &e->waiting);
    }
}

static void die(struct lk_engine *e, const struct lk_err *why)
{
    lk_log_error("the engine stops: %s", why->text);
    pthread_mutex_lock(&e->lock);
    e->dead = 1;
    e->death = *why;
    inbox_take(e);
    pthread_mutex_unlock(&e->lock);
    all_fail(e, why);
    stats_put(e);
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->news);
    pthread_mutex_unlock(&e->lock);
}

/* With ranks the sleep is cut in half seconds, to see whether they live. */
static void work_wait(struct lk_engine *e)
{
    if (e->dead || !e->host.ranks) {
        pthread_cond_wait(&e->work, &e->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 500000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&e->work, &e->lock, &until);
}

/* Sleeps until there is work. Returns 1 to stop. */
static int sleep_for_work(struct lk_engine *e)
{
    double t0 = lk_clock();
    pthread_mutex_lock(&e->lock);
    while (!e->stop && !e->inbox && !e->jobs) {
        pthread_mutex_unlock(&e->lock);
        struct lk_err err = {0};
        int did = !e->dead && lk_prefix_idle(e->host.core.prefix);
        if (did) stats_put(e);
        if (!did && !e->dead && lk_host_alive(&e->host, lk_clock() - t0, &err)) die(e, &err);
        pthread_mutex_lock(&e->lock);
        if (!did && !e->stop && !e->inbox && !e->jobs) work_wait(e);
    }
    int stop = e->stop;
    inbox_take(e);
    pthread_mutex_unlock(&e->lock);
    return stop;
}

void *engine_loop(void *arg)
{
    struct lk_engine *e = arg;
    struct lk_err err = {0};
    for (;;) {
        pthread_mutex_lock(&e->lock);
        int stop = e->stop;
        inbox_take(e);
        pthread_mutex_unlock(&e->lock);
        jobs_run(e);
        if (!stop && !e->waiting && !lanes_busy(e)) {
            stats_put(e);
            stop = sleep_for_work(e);
            jobs_run(e);
        }
        if (stop) break;
        if (e->dead) {
            all_fail(e, &e->death);
            continue;
        }
        lanes_settle(e);
        admit(e);
        int rc = lk_core_turn(&e->host.core, &err);
        if (rc < 0) {
            die(e, &err);
            continue;
        }
        lanes_settle(e);
        stats_put(e);
    }
    lk_err_clear(&err);
    lk_fail(&err, LK_ECANCEL, "the engine is closing");
    all_fail(e, &err);
    return NULL;
}
