/* Watching the engine process. It beats four times a second (runtime/worker.c), so three faults can be told apart: the
 * socket closes (it died), beats stop (it is stopped, or the machine is), beats go on but nothing gets done while work is
 * running (a hung device). Each costs the requests in flight, then the process is killed with its group and started again.
 *
 * States: LOADING -> READY -> DOWN -> (back-off 0.5, 1, 2 ... 30 s) -> LOADING. A minute of READY resets the back-off.
 * A first load that fails is the user's fault (a bad file): it is reported as fatal and not tried again. */
#include "serve/link.h"

#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_S 0.1
#define BACKOFF_MIN_S 0.5
#define BACKOFF_MAX_S 30.0
#define SETTLED_S 60.0

struct lk_link {
    struct lk_link_opts o;
    enum lk_link_state state;
    char reason[256];
    pid_t pid;
    struct bufferevent *bev;
    struct event *timer;
    struct lk_arena ready_arena;
    struct lk_wire_ready ready;
    struct lk_wire_beat beat;
    double beat_at, progress_at, ready_at, start_at, backoff; /* start_at: DOWN: when to start again */
    int ever_ready, restarts, fatal_code;
    char fatal_text[768];
};

static void set_state(struct lk_link *l, enum lk_link_state s)
{
    l->state = s;
    if (l->o.changed) l->o.changed(l->o.arg, s);
}

/* SIGKILL, since a stopped process hears nothing else; the group, since ranks are its children. */
static void reap(struct lk_link *l)
{
    int status = 0;
    if (l->bev) bufferevent_free(l->bev);
    l->bev = NULL;
    if (l->pid <= 0) return;
    kill(-l->pid, SIGKILL);
    kill(l->pid, SIGKILL);
    while (waitpid(l->pid, &status, 0) < 0 && errno == EINTR) continue;
    l->pid = 0;
}

static void down(struct lk_link *l, const char *reason)
{
    if (l->state == LK_LINK_DOWN) return;
    double now = lk_clock();
    if (l->state == LK_LINK_READY && now - l->ready_at > SETTLED_S) l->backoff = 0;
    l->backoff = l->backoff == 0 ? BACKOFF_MIN_S : l->backoff * 2 > BACKOFF_MAX_S ? BACKOFF_MAX_S : l->backoff * 2;
    l->start_at = now + l->backoff;
    snprintf(l->reason, sizeof l->reason, "%s", reason);
    reap(l);
    memset(&l->beat, 0, sizeof l->beat);
    lk_log_error("the engine process is down: %s; it is started again in %.1f s", reason, l->backoff);
    set_state(l, LK_LINK_DOWN);
    if (l->o.lost) l->o.lost(l->o.arg, reason);
}

static void on_failed(struct lk_link *l, const char *p, size_t n)
{
    struct lk_arena a = {0};
    const char *text;
    int code;
    if (!lk_wire_get_failed(&a, p, n, &code, &text) && text) {
        snprintf(l->reason, sizeof l->reason, "%s", text);
        if (!l->ever_ready) {
            l->fatal_code = code < 0 ? code : LK_EINPUT;
            snprintf(l->fatal_text, sizeof l->fatal_text, "%s", text);
        }
    }
    lk_arena_free(&a);
}

static void on_ready(struct lk_link *l, const char *p, size_t n)
{
    struct lk_wire_ready r;
    struct lk_arena a = {0};
    if (lk_wire_get_ready(&a, p, n, &r)) {
        lk_arena_free(&a);
        return;
    }
    lk_arena_free(&l->ready_arena);
    l->ready_arena = a;
    l->ready = r;
    l->ever_ready = 1;
    l->ready_at = l->progress_at = lk_clock();
    set_state(l, LK_LINK_READY);
}

static void on_beat(struct lk_link *l, const char *p, size_t n)
{
    struct lk_wire_beat b;
    if (lk_wire_get_beat(p, n, &b)) return;
    double now = lk_clock();
    if (b.progress != l->beat.progress || !b.s.running) l->progress_at = now;
    l->beat = b;
}

static void on_message(struct lk_link *l, enum lk_wire_kind kind, const char *p, size_t n)
{
    struct lk_event ev;
    struct lk_arena a = {0};
    l->beat_at = lk_clock();
    switch (kind) {
    case LK_WIRE_READY: on_ready(l, p, n); break;
    case LK_WIRE_FAILED: on_failed(l, p, n); break;
    case LK_WIRE_BEAT: on_beat(l, p, n); break;
    case LK_WIRE_EVENT:
        l->progress_at = l->beat_at;
        if (!lk_wire_get_event(&a, p, n, &ev)) l->o.event(l->o.arg, &ev);
        break;
    default: break;
    }
    lk_arena_free(&a);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct lk_link *l = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    while (l->bev == bev && evbuffer_get_length(in) >= LK_WIRE_HEAD) {
        unsigned char head[LK_WIRE_HEAD];
        enum lk_wire_kind kind;
        uint32_t bytes;
        evbuffer_copyout(in, head, sizeof head);
        if (lk_wire_head(head, &bytes, &kind)) {
            down(l, "it sent bytes that are no message");
            return;
        }
        if (evbuffer_get_length(in) < LK_WIRE_HEAD + (size_t)bytes) return;
        const char *p = (const char *)evbuffer_pullup(in, (ev_ssize_t)(LK_WIRE_HEAD + (size_t)bytes));
        if (!p) return;
        /* the payload is read in place: handlers may write to the link but never read from it */
        on_message(l, kind, p + LK_WIRE_HEAD, bytes);
        if (l->bev == bev) evbuffer_drain(in, LK_WIRE_HEAD + (size_t)bytes);
    }
}

/* The socket closed: says how the process ended when that is known by now. */
static void on_gone(struct bufferevent *bev, short what, void *arg)
{
    struct lk_link *l = arg;
    char text[256];
    int status = 0;
    snprintf(text, sizeof text, "%.255s", l->fatal_code ? l->fatal_text : "it closed its socket");
    for (int i = 0; i < 20; i++) { /* up to 20 ms for the exit status to arrive after the close */
        if (waitpid(l->pid, &status, WNOHANG) == l->pid) {
            kill(-l->pid, SIGKILL);
            l->pid = 0;
            if (WIFSIGNALED(status))
                snprintf(text, sizeof text, "killed by signal %d", WTERMSIG(status));
            else if (!l->fatal_code)
                snprintf(text, sizeof text, "exit code %d", WEXITSTATUS(status));
            break;
        }
        usleep(1000);
    }
    down(l, text);
}

static void child(const struct lk_link *l, int fd)
{
    setpgid(0, 0); /* Ctrl-C on the terminal is the front's to hear: it drains */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (fd == 3)
        fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, 3);
    execv("/proc/self/exe", l->o.argv);
    _exit(127);
}

static int start(struct lk_link *l, struct lk_err *e)
{
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
        return lk_fail(e, LK_ESYS, "socketpair: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) child(l, fd[1]);
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        return lk_fail(e, LK_ESYS, "the engine process cannot be started: %s", strerror(errno));
    }
    setpgid(pid, pid);
    l->pid = pid;
    evutil_make_socket_nonblocking(fd[0]);
    l->bev = bufferevent_socket_new(l->o.base, fd[0], BEV_OPT_CLOSE_ON_FREE);
    if (!l->bev) {
        close(fd[0]);
        reap(l);
        return lk_fail(e, LK_ENOMEM, "no memory for the engine's socket");
    }
    bufferevent_setcb(l->bev, on_read, NULL, on_gone, l);
    bufferevent_set_max_single_read(l->bev, 1 << 20);
    bufferevent_enable(l->bev, EV_READ | EV_WRITE);
    l->beat_at = l->progress_at = lk_clock();
    set_state(l, LK_LINK_LOADING);
    return 0;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct lk_link *l = arg;
    double now = lk_clock();
    struct lk_err e = {0};
    char text[128];
    if (l->state == LK_LINK_DOWN) {
        if (now < l->start_at || l->fatal_code) return;
        l->restarts++;
        if (start(l, &e)) {
            lk_log_error("%s", e.text);
            l->start_at = now + BACKOFF_MAX_S;
        }
        return;
    }
    if (now - l->beat_at > l->o.silence_s) {
        snprintf(text, sizeof text, "no sign of life for %.0f s", now - l->beat_at);
        down(l, text);
    } else if (l->state == LK_LINK_READY && now - l->progress_at > l->o.stuck_s) {
        snprintf(text, sizeof text, "no progress for %.0f s with work running", now - l->progress_at);
        down(l, text);
    }
}

int lk_link_new(struct lk_link **out, const struct lk_link_opts *o, struct lk_err *e)
{
    struct timeval tick = {0, (int)(CHECK_S * 1e6)};
    struct lk_link *l = lk_calloc(1, sizeof *l);
    int rc;
    if (!l) return lk_fail(e, LK_ENOMEM, "no memory for the engine link");
    l->o = *o;
    l->timer = event_new(o->base, -1, EV_PERSIST, on_timer, l);
    if (!l->timer || event_add(l->timer, &tick)) {
        lk_link_free(l);
        return lk_fail(e, LK_ENOMEM, "no memory for a timer");
    }
    if ((rc = start(l, e))) {
        lk_link_free(l);
        return rc;
    }
    *out = l;
    return 0;
}

void lk_link_free(struct lk_link *l)
{
    if (!l) return;
    if (l->timer) event_free(l->timer);
    reap(l);
    lk_arena_free(&l->ready_arena);
    lk_free(l);
}

enum lk_link_state lk_link_state(const struct lk_link *l) { return l->state; }
const char *lk_link_reason(const struct lk_link *l) { return l->reason; }
const struct lk_wire_ready *lk_link_ready(const struct lk_link *l) { return &l->ready; }
const struct lk_engine_stats *lk_link_stats(const struct lk_link *l) { return &l->beat.s; }
int lk_link_restarts(const struct lk_link *l) { return l->restarts; }
int lk_link_pid(const struct lk_link *l) { return (int)l->pid; }

int lk_link_fatal(const struct lk_link *l, const char **text)
{
    *text = l->fatal_text;
    return l->fatal_code;
}

static int send_buf(struct lk_link *l, struct lk_buf *b, int rc)
{
    if (!rc && bufferevent_write(l->bev, b->data, b->len)) rc = LK_ENOMEM;
    lk_buf_free(b);
    return rc;
}

int lk_link_submit(struct lk_link *l, const struct lk_wire_submit *s, struct lk_err *e)
{
    struct lk_buf b = {0};
    if (l->state == LK_LINK_LOADING) return lk_fail(e, LK_EBUSY, "the model is still loading; try again soon");
    if (l->state != LK_LINK_READY) return lk_fail(e, LK_EBUSY, "the engine is restarting (%s); try again soon", l->reason);
    int rc = send_buf(l, &b, lk_wire_put_submit(&b, s));
    return rc ? lk_fail(e, rc, "no memory for a request") : 0;
}

void lk_link_cancel(struct lk_link *l, uint64_t id)
{
    struct lk_buf b = {0};
    if (l->state == LK_LINK_READY) send_buf(l, &b, lk_wire_put_cancel(&b, id));
}
