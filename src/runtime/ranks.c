/* Ranks: see ranks.h. The first plan carries the options of model and state, so that a follower opens exactly what the leader opens. */
#include "runtime/ranks.h"

#include "args/args.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "dev/bridge.h"
#include "model/team.h"
#include "tp/elect.h"
#include "tp/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { KIND_OPEN = 100, KIND_SWEEP = 101 };
#define SWEEP_MOST  ((size_t)20480 * 256) /* floats of the longest sum of a sweep */
#define START_S      60   /* a follower process joins within this */
#define STOP_S       5    /* and ends within this when told to */
#define REDUCE_MOST  (4 << 20) /* floats of one all-reduce message in host memory; longer ones are cut */

struct open_plan {
    struct lk_model_opts mo;
    struct lk_state_opts so;
    int hidden;
};

struct sweep_plan {
    int hidden;
    double budget_s;
};

struct lk_ranks {
    struct lk_group *g;
    struct lk_plan *plan;
    struct lk_comm *comm;
    struct lk_team *team;
    struct lk_elect el;
    FILE *log;
    int swept; /* there was no model: nobody has to be told to end */
    pid_t pid[LK_MAX_RANKS];
    int n;
};

void lk_rank_devices_choose(struct lk_opts_device *o)
{
    if (!o->automatic) return;
    o->automatic = 0;
    o->n = 1;
    o->at[0].index = 0;
    o->at[0].is_cuda = lk_cuda_count() > 0;
    if (o->at[0].is_cuda) return;
#ifdef LK_CUDA
    lk_log_info("no GPU that can be used here: running on the CPU");
#else
    if (!access("/proc/driver/nvidia/version", F_OK))
        lk_log_info("this machine has an NVIDIA driver, this program no GPU code: running on the CPU; `make CUDA=1` builds it with");
#endif
}

int lk_rank_device(struct lk_dev **out, const struct lk_opts_device *o, int rank, struct lk_err *e)
{
    if (o->at[rank].is_cuda) return lk_cuda_open(out, o->at[rank].index, o->image, e);
    int threads = o->threads;
    if (!threads && o->n > 1) threads = lk_cores() / o->n > 0 ? lk_cores() / o->n : 1;
    return lk_cpu_open(out, threads, o->isa, e);
}

/* ---- leader ---- */

static int spawn_one(struct lk_ranks *r, const struct lk_opts_engine *o, int rank, struct lk_err *e)
{
    struct lk_buf devices = {0};
    char rank_text[16], fd_text[16], nonce[32], threads[16];
    int fd = fcntl(lk_group_fd(r->g), F_DUPFD, 3); /* without close-on-exec: the child inherits this one */
    if (fd < 0) return lk_fail(e, LK_ESYS, "rank %d: cannot pass the group: %s", rank, strerror(errno));
    lk_opts_devices_put(&o->dev, &devices);
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(fd_text, sizeof fd_text, "%d", fd);
    snprintf(nonce, sizeof nonce, "%llx", (unsigned long long)lk_group_nonce(r->g));
    snprintf(threads, sizeof threads, "%d", o->dev.threads);
    const char *argv[32] = {"laoka", "follower", "-m", o->model, "--devices", devices.data, "--threads", threads,
                            "--rank", rank_text, "--group-fd", fd_text, "--group-nonce", nonce};
    int n = 14;
    if (o->dev.isa) argv[n++] = "--isa", argv[n++] = o->dev.isa;
    if (o->dev.image) argv[n++] = "--image", argv[n++] = o->dev.image;
    if (o->dev.transport) argv[n++] = "--transport", argv[n++] = o->dev.transport;
    if (o->dev.fault) argv[n++] = "--fault", argv[n++] = o->dev.fault;
    if (o->dev.rank_log) argv[n++] = "--rank-log", argv[n++] = o->dev.rank_log;
    int bad = devices.failed ? ENOMEM : posix_spawn(&r->pid[rank], o->dev.program ? o->dev.program : "/proc/self/exe", NULL, NULL, (char *const *)argv, environ);
    close(fd);
    lk_buf_free(&devices);
    if (bad) r->pid[rank] = 0;
    return bad ? lk_fail(e, LK_ESYS, "rank %d: cannot start: %s", rank, strerror(bad)) : 0;
}

static int plan_open_send(struct lk_ranks *r, const struct lk_model_opts *mo, const struct lk_state_opts *so, int hidden, struct lk_err *e)
{
    size_t cap;
    struct open_plan p = {.mo = *mo, .so = *so, .hidden = hidden};
    p.mo.comm = NULL;
    memcpy(lk_plan_payload(r->plan, &cap), &p, sizeof p);
    return lk_plan_publish(r->plan, KIND_OPEN, sizeof p, e);
}

/* Every rank: the collectives of these devices, and the election. */
static int comm_open(struct lk_ranks *r, const struct lk_opts_device *o, struct lk_dev *d, size_t hidden, size_t most, struct lk_err *e)
{
    int me = lk_group_rank(r->g), rc;
    struct lk_elect_opts eo = {.hidden = hidden, .most = most, .force = o->transport, .budget_s = o->at[0].is_cuda ? 0.1 : 0.01, .slow_us = o->at[0].is_cuda ? 0 : 50000};
    if (o->at[0].is_cuda) {
        struct lk_bridge *l;
        size_t bytes;
        void *shared = lk_group_bridge_area(r->g, &bytes);
        if (bytes < lk_bridge_shared_bytes(o->n)) return lk_fail(e, LK_EDEVICE, "rank %d: the leader is of another build", me);
        rc = lk_cuda_bridge_open(&l, d, me, o->n, shared, most, e);
        if (!rc) rc = lk_comm_bridge_open(&r->comm, r->g, l, e);
    } else {
        rc = lk_comm_shm_open(&r->comm, r->g, e);
    }
    if (!rc) rc = lk_fault_plant(o->fault, LK_FAULT_AT_START, r->comm, r->plan, e);
    if (!rc) rc = lk_elect(&r->el, r->comm, d, &eo, e);
    if (!rc) rc = lk_fault_plant(o->fault, LK_FAULT_AFTER_ELECTION, r->comm, r->plan, e);
    if (!rc && me == 0) {
        char line[1024];
        lk_elect_line(&r->el, line, sizeof line);
        lk_log_info("%s", line);
    }
    return rc;
}

/* Every rank: plan and, if asked for, the log of its records. */
static int plan_open(struct lk_ranks *r, const struct lk_opts_device *o, struct lk_err *e)
{
    char path[PATH_MAX];
    int rc = lk_plan_open(&r->plan, r->g, e);
    if (rc || !o->rank_log) return rc;
    snprintf(path, sizeof path, "%s/rank-%d.log", o->rank_log, lk_group_rank(r->g));
    r->log = fopen(path, "ae");
    if (!r->log) return lk_fail(e, LK_EINPUT, "--rank-log: %s: %s", path, strerror(errno));
    setvbuf(r->log, NULL, _IOLBF, 0);
    lk_plan_log(r->plan, r->log);
    return 0;
}

/* Floats of one message between ranks. */
static size_t message_floats(size_t floats, int cuda)
{
    return cuda ? REDUCE_MOST / 16 : floats > REDUCE_MOST ? REDUCE_MOST : floats;
}

size_t lk_ranks_bytes(int n, const struct lk_model_opts *mo, int hidden)
{
    if (n <= 1) return 0;
    return lk_comm_shm_bytes(n, message_floats((size_t)mo->max_rows * (size_t)hidden, 0));
}

static int group_make(struct lk_ranks *r, const struct lk_opts_device *o, size_t floats, size_t payload, struct lk_err *e)
{
    int cuda = o->at[0].is_cuda;
    for (int i = 1; i < o->n && cuda; i++)
        for (int j = 0; j < i; j++)
            if (o->at[i].index == o->at[j].index)
                lk_log_warn("cuda:%d is named twice: its ranks take turns on one card, which is right but slow", o->at[i].index);
    floats = message_floats(floats, cuda);
    if (payload < sizeof(struct open_plan)) payload = sizeof(struct open_plan);
    struct lk_group_opts go = {.n = r->n, .plan_bytes = lk_plan_bytes(payload), .reduce_bytes = lk_comm_shm_bytes(r->n, floats),
                               .bridge_bytes = cuda ? lk_bridge_shared_bytes(r->n) : 0, .patience_s = o->patience_s > 0 ? o->patience_s : 180};
    return lk_group_create(&r->g, &go, e);
}

static int ranks_up(struct lk_ranks *r, const struct lk_opts_engine *o, size_t floats, size_t payload, struct lk_err *e)
{
    r->n = o->dev.n;
    int rc = group_make(r, &o->dev, floats, payload, e);
    if (!rc) rc = plan_open(r, &o->dev, e);
    for (int i = 1; i < r->n && !rc; i++) rc = spawn_one(r, o, i, e);
    return rc ? rc : lk_group_ready(r->g, START_S, e);
}

int lk_ranks_start(struct lk_ranks **out, const struct lk_opts_engine *o, struct lk_dev *d, struct lk_model_opts *mo, struct lk_state_opts *so,
                   int hidden, struct lk_err *e)
{
    *out = NULL;
    so->rank = 0;
    so->n_ranks = o->dev.n;
    if (o->dev.n <= 1) return 0;
    struct lk_ranks *r = lk_calloc(1, sizeof *r);
    if (!r) return lk_fail(e, LK_ENOMEM, "no memory for ranks");
    size_t floats = (size_t)mo->max_rows * (size_t)hidden;
    int rc = ranks_up(r, o, floats, lk_team_plan_bytes(mo), e);
    if (!rc) rc = plan_open_send(r, mo, so, hidden, e);
    if (!rc) rc = comm_open(r, &o->dev, d, (size_t)hidden, floats, e);
    if (rc) {
        lk_ranks_stop(r);
        return rc;
    }
    mo->comm = r->comm;
    *out = r;
    return 0;
}

int lk_ranks_ready(struct lk_ranks *r, struct lk_model *m, struct lk_state *s, struct lk_err *e)
{
    if (!r) return 0;
    /* the signature holds the rank, so it cannot be compared; shape, pages and kv were all taken from one plan */
    struct lk_record rec = {.count = (uint32_t)lk_state_pages_free(s)};
    int rc = lk_plan_done(r->plan, &rec, e);
    return rc ? rc : lk_team_open(&r->team, m, s, r->plan, r->comm, e);
}

int lk_ranks_alive(struct lk_ranks *r, double idle_s, struct lk_err *e)
{
    return r ? lk_group_alive(r->g, idle_s, e) : 0;
}

static void follower_wait(struct lk_ranks *r, int rank)
{
    if (r->pid[rank] <= 0) return;
    double end = lk_clock() + STOP_S;
    int status = 0;
    for (;;) {
        pid_t got = waitpid(r->pid[rank], &status, WNOHANG | WUNTRACED);
        int stopped = got > 0 && WIFSTOPPED(status); /* by a signal: it will not hear that it is to end */
        if (got && !stopped) return;
        if (stopped || lk_clock() > end) {
            kill(r->pid[rank], SIGKILL);
            waitpid(r->pid[rank], NULL, 0);
            return;
        }
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
}

void lk_ranks_stop(struct lk_ranks *r)
{
    if (!r) return;
    struct lk_err e = {0};
    if (r->team && !lk_group_stopped(r->g)) lk_team_end(r->team, &e);
    if (!r->team && r->g && !r->swept) lk_group_stop(r->g, "the leader gave up before the ranks were ready");
    lk_team_close(r->team);
    if (r->comm) r->comm->close(r->comm); /* a bridge's close meets the followers' */
    for (int i = 1; i < r->n; i++) follower_wait(r, i);
    lk_plan_close(r->plan);
    lk_group_leave(r->g);
    if (r->log) fclose(r->log);
    lk_free(r);
}

/* ---- the sweep, on every rank ---- */

static int sweep(struct lk_ranks *r, const struct lk_opts_device *o, struct lk_dev *d, const struct sweep_plan *p, struct lk_sweep *out, struct lk_err *e)
{
    struct lk_record rec = {0};
    int rc = comm_open(r, o, d, (size_t)p->hidden, SWEEP_MOST, e);
    if (!rc) rc = lk_sweep_run(out, r->comm, d, &r->el, p->budget_s, e);
    if (!rc) rc = lk_plan_done(r->plan, &rec, e);
    r->swept = !rc;
    return rc;
}

int lk_ranks_sweep(struct lk_sweep *out, const struct lk_opts_engine *o, struct lk_dev *d, int hidden, struct lk_err *e)
{
    struct sweep_plan p = {.hidden = hidden, .budget_s = o->dev.at[0].is_cuda ? 0.1 : 0.05};
    struct lk_ranks *r = lk_calloc(1, sizeof *r);
    size_t cap;
    if (!r) return lk_fail(e, LK_ENOMEM, "no memory for ranks");
    int rc = ranks_up(r, o, SWEEP_MOST, sizeof p, e);
    if (!rc) {
        memcpy(lk_plan_payload(r->plan, &cap), &p, sizeof p);
        rc = lk_plan_publish(r->plan, KIND_SWEEP, sizeof p, e);
    }
    if (!rc) rc = sweep(r, &o->dev, d, &p, out, e);
    if (rc && r->g) lk_group_stop(r->g, "rank 0: %.400s", e->text);
    lk_ranks_stop(r);
    return rc;
}

/* ---- follower ---- */

struct follower {
    struct lk_ranks r;
    struct lk_artifact *a;
    struct lk_dev *d;
    struct lk_model *m;
    struct lk_state *s;
};

static int follower_open(struct follower *f, const struct lk_opts_engine *o, int rank, struct lk_err *e)
{
    uint32_t kind;
    const void *data;
    size_t bytes;
    struct open_plan p;
    int rc = lk_artifact_open_rank(&f->a, o->model, rank, o->dev.n, e);
    if (!rc) rc = lk_rank_device(&f->d, &o->dev, rank, e);
    if (!rc) rc = lk_plan_next(f->r.plan, &kind, &data, &bytes, e);
    if (rc) return rc;
    if (kind == KIND_SWEEP && bytes == sizeof(struct sweep_plan)) {
        struct sweep_plan sp;
        struct lk_sweep ignored;
        memcpy(&sp, data, sizeof sp);
        return sweep(&f->r, &o->dev, f->d, &sp, &ignored, e);
    }
    if (kind != KIND_OPEN || bytes != sizeof p) return lk_fail(e, LK_EDEVICE, "rank %d: the leader is of another build", rank);
    memcpy(&p, data, sizeof p);
    rc = comm_open(&f->r, &o->dev, f->d, (size_t)p.hidden, (size_t)p.mo.max_rows * (size_t)p.hidden, e);
    if (rc) return rc;
    p.mo.comm = f->r.comm;
    p.so.rank = rank;
    rc = lk_model_open(&f->m, f->a, f->d, &p.mo, e);
    if (!rc) rc = lk_state_open(&f->s, f->d, lk_model_shape(f->m), &p.so, e);
    if (rc) return rc;
    struct lk_record rec = {.count = (uint32_t)lk_state_pages_free(f->s)};
    rc = lk_plan_done(f->r.plan, &rec, e);
    return rc ? rc : lk_team_open(&f->r.team, f->m, f->s, f->r.plan, f->r.comm, e);
}

static void follower_close(struct follower *f)
{
    lk_team_close(f->r.team);
    if (f->r.comm) f->r.comm->close(f->r.comm); /* before its device */
    lk_state_close(f->s);
    lk_model_close(f->m);
    if (f->d) f->d->close(f->d);
    lk_artifact_close(f->a);
    lk_plan_close(f->r.plan);
    lk_group_leave(f->r.g);
    if (f->r.log) fclose(f->r.log);
}

int lk_follower_run(const struct lk_opts_engine *o, const struct lk_follower_opts *fo, struct lk_err *e)
{
    struct follower f = {0};
    /* No PR_SET_PDEATHSIG: it fires when the thread that started us ends, not the leader. Every wait watches the leader's pidfd. */
    signal(SIGINT, SIG_IGN);          /* Ctrl-C on a terminal is the leader's business */
    int rc = lk_group_join(&f.r.g, fo->fd, fo->nonce, fo->rank, e);
    if (!rc) rc = plan_open(&f.r, &o->dev, e);
    if (!rc) rc = follower_open(&f, o, fo->rank, e);
    if (!rc && f.r.team) rc = lk_team_follow(f.r.team, e);
    if (rc && f.r.g) lk_group_stop(f.r.g, "rank %d: %.400s", fo->rank, e->text);
    follower_close(&f);
    return rc;
}
