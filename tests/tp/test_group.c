/* tp: ranks as forked processes over one group. All-reduce and gather give the same bits on every rank; every injected fault stops all
 * ranks within the group's patience and the reason names it; nothing hangs. */
#include "base/log.h"
#include "base/mem.h"
#include "tp/comm.h"
#include "tp/plan.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define FLOATS 1000
#define STEPS  40

enum fault { F_NONE, F_ZERO, F_LATE, F_FLIP, F_SKIP_REDUCE, F_TOKEN, F_POSITION, F_SKIP, F_KILL, F_STOP, F_COUNT };

struct job {
    int n, bad_rank;
    enum fault fault;
    uint32_t at;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    return x ^ x >> 29;
}

/* what rank r contributes at step s */
static void partial_fill(float *p, int r, uint32_t s)
{
    for (int i = 0; i < FLOATS * 3 / 2; i++) p[i] = (float)(int32_t)mix((uint64_t)s << 32 | (uint64_t)(r * 7919 + i)) * 1e-9f;
}

/* One step's work: a reduce larger than a parity, a gather, a record. 0 or negative; wrong sums abort. */
static int rank_step(struct lk_comm *c, struct lk_plan *p, uint32_t s, struct lk_err *e)
{
    static float part[FLOATS * 3 / 2], y[FLOATS * 3 / 2], want[FLOATS * 3 / 2];
    memset(y, 0, sizeof y);
    partial_fill(part, c->rank, s);
    int rc = c->reduce_add(c, NULL, y, part, FLOATS * 3 / 2, e);
    if (rc) return rc;
    partial_fill(want, 0, s);
    for (int r = 1; r < c->n; r++) {
        partial_fill(part, r, s);
        for (int i = 0; i < FLOATS * 3 / 2; i++) want[i] += part[i];
    }
    if (memcmp(y, want, sizeof y)) {
        fprintf(stderr, "rank %d: wrong sum was accepted at step %u\n", c->rank, s);
        _exit(99);
    }
    uint64_t mine = (uint64_t)c->rank * 1000 + s, all[LK_MAX_RANKS];
    if ((rc = c->gather(c, &mine, sizeof mine, all, e))) return rc;
    for (int r = 0; r < c->n; r++)
        if (all[r] != (uint64_t)r * 1000 + s) _exit(98);
    struct lk_record rec = {.count = 1, .hash_in = s, .hash_out = mix(s)};
    return lk_plan_done(p, &rec, e);
}

static void fault_set(const struct job *j, struct lk_comm *c, struct lk_plan *p)
{
    static const enum lk_comm_fault comm[] = {[F_ZERO] = LK_FAULT_ZERO, [F_LATE] = LK_FAULT_LATE,
                                              [F_FLIP] = LK_FAULT_FLIP, [F_SKIP_REDUCE] = LK_FAULT_SKIP};
    static const enum lk_plan_fault plan[] = {[F_TOKEN] = LK_PLAN_FAULT_TOKEN, [F_POSITION] = LK_PLAN_FAULT_POSITION,
                                              [F_SKIP] = LK_PLAN_FAULT_SKIP};
    if (j->fault >= F_ZERO && j->fault <= F_SKIP_REDUCE) c->fault(c, 0, comm[j->fault], j->at * 3 - 2);
    if (j->fault >= F_TOKEN && j->fault <= F_SKIP) lk_plan_fault(p, plan[j->fault], j->at);
}

static int rank_run(struct lk_group *g, const struct job *j)
{
    struct lk_err e = {0};
    struct lk_comm *c;
    struct lk_plan *p;
    int rank = lk_group_rank(g), rc = 0;
    if (lk_comm_shm_open(&c, g, &e) || lk_plan_open(&p, g, &e) || lk_group_ready(g, 10, &e)) return 97;
    if (rank == j->bad_rank) fault_set(j, c, p);
    for (uint32_t s = 1; !rc && s <= STEPS; s++) {
        size_t cap, bytes;
        uint32_t kind;
        const void *data;
        if (rank == j->bad_rank && s == j->at && j->fault == F_KILL) raise(SIGKILL);
        if (rank == j->bad_rank && s == j->at && j->fault == F_STOP) raise(SIGSTOP);
        if (rank == 0) {
            memcpy(lk_plan_payload(p, &cap), &s, sizeof s);
            rc = lk_plan_publish(p, 7, sizeof s, &e);
        } else {
            rc = lk_plan_next(p, &kind, &data, &bytes, &e);
            if (!rc && (kind != 7 || bytes != sizeof s || memcmp(data, &s, sizeof s))) return 96;
        }
        if (!rc) rc = rank_step(c, p, s, &e);
    }
    if (rc && !strstr(e.text, "tensor parallel stopped: ")) return 95;
    c->close(c);
    lk_plan_close(p);
    return rc ? 70 : 0;
}

/* Rank 0's process: makes the group, forks the others and works. Pids go to shared memory for the test. */
static int leader_run(const struct job *j, volatile pid_t *pid)
{
    struct lk_group_opts o = {.n = j->n, .plan_bytes = lk_plan_bytes(64),
                              .reduce_bytes = lk_comm_shm_bytes(j->n, FLOATS), .patience_s = 0.6};
    struct lk_group *g, *mine;
    struct lk_err e = {0};
    if (lk_group_create(&g, &o, &e)) return 94;
    for (int r = 1; r < j->n; r++) {
        pid_t p = fork();
        if (p) {
            pid[r] = p;
            continue;
        }
        if (lk_group_join(&mine, dup(lk_group_fd(g)), lk_group_nonce(g), r, &e)) _exit(94);
        int rc = rank_run(mine, j);
        lk_group_leave(mine);
        _exit(rc);
    }
    int rc = rank_run(g, j);
    lk_group_leave(g);
    return rc;
}

/* Starts the ranks; returns the exit statuses (128+signal for killed, -1 for a hang). */
static void job_run(const struct job *j, int *status)
{
    volatile pid_t *pid = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pid != MAP_FAILED);
    pid_t leader = fork();
    if (!leader) _exit(leader_run(j, pid));
    pid[0] = leader;
    for (int r = 0; r < j->n; r++) status[r] = -1;
    double t0 = lk_clock(), end = t0 + 20;
    for (int left = j->n; left > 0 && lk_clock() < end;) {
        int st;
        pid_t p = waitpid(-1, &st, WNOHANG);
        for (int r = 0; p > 0 && r < j->n; r++)
            if (pid[r] == p) {
                status[r] = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
                pid[r] = 0;
                left--;
            }
        if (p <= 0) nanosleep(&(struct timespec){0, 2000000}, NULL);
        /* past everyone's patience: let the sleeper find out */
        if (lk_clock() > t0 + 1.0 && j->fault == F_STOP && pid[j->bad_rank]) kill(pid[j->bad_rank], SIGCONT);
    }
    for (int r = 0; r < j->n; r++)
        if (status[r] == -1 && pid[r]) {
            kill(pid[r], SIGKILL);
            waitpid(pid[r], NULL, 0);
        }
    munmap((void *)pid, 4096);
}

static void ranks_agree(void **state)
{
    for (int n = 1; n <= 4; n++) {
        struct job j = {.n = n, .bad_rank = -1};
        int status[LK_MAX_RANKS];
        job_run(&j, status);
        for (int r = 0; r < n; r++) assert_int_equal(status[r], 0);
    }
}

static void every_fault_stops_all_ranks(void **state)
{
    for (int n = 2; n <= 3; n++)
        for (int f = F_ZERO; f < F_COUNT; f++)
            for (int bad = 0; bad < n; bad++) {
                struct job j = {.n = n, .bad_rank = bad, .fault = f, .at = (uint32_t)(1 + (f * 5 + bad * 11) % (STEPS - 1))};
                int status[LK_MAX_RANKS];
                job_run(&j, status);
                for (int r = 0; r < n; r++) {
                    /* late data is right data; a leader that sleeps between steps leaves the others idle, not wrong */
                    int want = f == F_LATE || (f == F_STOP && bad == 0) ? 0 : f == F_KILL && r == bad ? 128 + SIGKILL : 70;
                    if (status[r] != want) print_message("fault %d at rank %d of %d: rank %d ended with %d\n", f, bad, n, r, status[r]);
                    assert_int_equal(status[r], want);
                }
            }
}

static void strangers_are_refused(void **state)
{
    struct lk_group_opts o = {.n = 2, .plan_bytes = 4096, .reduce_bytes = 4096, .patience_s = 1};
    struct lk_group *g, *h = NULL;
    struct lk_err e = {0};
    assert_int_equal(lk_group_create(&g, &o, &e), 0);
    assert_int_not_equal(lk_group_join(&h, dup(lk_group_fd(g)), lk_group_nonce(g) + 2, 1, &e), 0);
    assert_null(h);
    lk_err_clear(&e);
    assert_int_not_equal(lk_group_join(&h, dup(lk_group_fd(g)), lk_group_nonce(g), 2, &e), 0);
    lk_err_clear(&e);
    assert_int_not_equal(lk_group_join(&h, dup(0), 1, 1, &e), 0);
    lk_err_clear(&e);
    assert_int_equal(lk_group_ready(g, 0.05, &e), LK_EDEVICE); /* rank 1 never came */
    assert_non_null(strstr(e.text, "rank 1 did not start"));
    lk_group_leave(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(every_fault_stops_all_ranks),
        cmocka_unit_test(strangers_are_refused),
    };
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* ranks whose leader was killed are ours to reap */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
