/* Device transports and their election, without a device: forked ranks run the kernels' own text over shared inboxes (bridge_emu.h). Sums have
 * the same bits on every rank and are the rank-order sums; steps may wrap; a transport that is broken on purpose is refused with its reason
 * and another one is chosen; a rank that dies inside a sum ends the others' waits. */
#include "tp/bridge_emu.h"
#include "tp/elect.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HIDDEN 64
#define MOST   (20 * HIDDEN)

struct job {
    int n, bad_rank, way;      /* way: the damaged transport */
    enum lk_comm_fault fault;
    const char *force;
    int kill;                  /* bad_rank dies in the middle of the work */
    int no_peer;               /* bad_rank cannot map peer memory */
    uint32_t step0;            /* where the steps begin */
};

struct seen { /* shared with the test */
    char line[LK_MAX_RANKS][1024];
    char err[LK_MAX_RANKS][800];
    int small[LK_MAX_RANKS];
    uint64_t digest[LK_MAX_RANKS][EMU_WAYS];
};

static float value(int r, int round, size_t i)
{
    return (float)((int)((i * 7919 + (size_t)r * 104729 + (size_t)round * 31) % 20011) - 10000) * 1e-3f;
}

/* Sums of many sizes over one way; 0, a negative code, or 99 for a wrong sum. */
static int work(struct lk_comm *c, struct lk_dev *d, int rounds, struct seen *s, int way, struct lk_err *e)
{
    static float y[MOST], part[MOST];
    uint64_t digest;
    for (int round = 0; round < rounds; round++) {
        size_t n = (size_t)4 * (1 + (size_t)(round * 37 % (MOST / 4)));
        for (size_t i = 0; i < n; i++) y[i] = (float)i, part[i] = value(c->rank, round, i);
        int rc = c->reduce_add(c, d, y, part, n, e);
        if (!rc) rc = c->settle(c, d, NULL, 0, &digest, e);
        if (rc) return rc;
        s->digest[c->rank][way] = s->digest[c->rank][way] * 31 + digest;
        for (size_t i = 0; i < n; i++) {
            float want = value(0, round, i);
            for (int r = 1; r < c->n; r++) want += value(r, round, i);
            want = (float)i + want;
            if (memcmp(&y[i], &want, 4)) return 99;
        }
    }
    return 0;
}

static int rank_run(struct lk_group *g, const struct job *j, const struct emu_memory *m, struct seen *s)
{
    struct lk_err e = {0};
    struct lk_comm *c = NULL;
    struct lk_dev *d;
    struct lk_elect el;
    int me = lk_group_rank(g);
    if (lk_cpu_open(&d, 1, "ref", &e)) return 97;
    struct lk_bridge *l = emu_bridge_open(m, me, j->n);
    struct emu_bridge *own = (struct emu_bridge *)l;
    l->dev = d;
    own->broken_peer = j->no_peer && me == j->bad_rank;
    int rc = lk_comm_bridge_open(&c, g, l, &e);
    struct lk_elect_opts eo = {.hidden = HIDDEN, .most = MOST, .force = j->force, .budget_s = 0.002, .slow_us = 300000};
    if (!rc && j->fault && me == j->bad_rank) c->fault(c, j->way, j->fault, 0);
    if (!rc) rc = lk_elect(&el, c, d, &eo, &e);
    if (!rc) {
        lk_elect_line(&el, s->line[me], sizeof s->line[me]);
        s->small[me] = el.small;
    }
    for (int k = 0; k < EMU_WAYS && !rc && !j->fault && !j->kill && !j->no_peer; k++) {
        char here = 1, all[LK_MAX_RANKS];
        c->use(c, k, k, 0);
        rc = c->gather(c, &here, 1, all, &e);
        emu_start_at(own, k, j->step0);
        if (!rc) rc = c->gather(c, &here, 1, all, &e);
        if (!rc) rc = work(c, d, 24, s, k, &e);
    }
    if (!rc && j->kill) {
        if (me == j->bad_rank) {
            work(c, d, 3, s, 0, &e);
            raise(SIGKILL);
        }
        rc = work(c, d, 1000, s, 0, &e);
    }
    snprintf(s->err[me], sizeof s->err[me], "%s", e.text);
    if (rc == LK_EDEVICE && !lk_group_stopped(g)) lk_group_stop(g, "rank %d: %.300s", me, e.text);
    if (c) c->close(c);
    d->close(d);
    return rc < 0 ? 70 : rc;
}

static int leader(const struct job *j, const struct emu_memory *m, struct seen *s, volatile int *status)
{
    struct lk_group_opts o = {.n = j->n, .plan_bytes = 4096, .reduce_bytes = lk_comm_shm_bytes(j->n, 4096), .patience_s = 20};
    struct lk_group *g, *mine;
    struct lk_err e = {0};
    pid_t pid[LK_MAX_RANKS];
    if (lk_group_create(&g, &o, &e)) return 94;
    for (int r = 1; r < j->n; r++) {
        pid[r] = fork();
        if (pid[r]) continue;
        if (lk_group_join(&mine, dup(lk_group_fd(g)), lk_group_nonce(g), r, &e) || lk_group_ready(mine, 10, &e)) _exit(94);
        int rc = rank_run(mine, j, m, s);
        lk_group_leave(mine);
        _exit(rc);
    }
    if (lk_group_ready(g, 10, &e)) return 93;
    status[0] = rank_run(g, j, m, s);
    for (int r = 1; r < j->n; r++) {
        int st;
        waitpid(pid[r], &st, 0);
        status[r] = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
    }
    lk_group_leave(g);
    return 0;
}

static void job_run(const struct job *j, int *status, struct seen *out)
{
    struct emu_memory m;
    struct shared {
        struct seen s;
        volatile int status[LK_MAX_RANKS];
    } *sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(sh != MAP_FAILED);
    emu_memory_make(&m, j->n);
    for (int r = 0; r < j->n; r++) sh->status[r] = -1;
    pid_t p = fork();
    if (!p) {
        alarm(100); /* a hang ends the leader, and with it its followers' waits */
        _exit(leader(j, &m, &sh->s, sh->status));
    }
    int st;
    waitpid(p, &st, 0);
    if (WIFSIGNALED(st)) sh->status[0] = 128 + WTERMSIG(st);
    else if (WEXITSTATUS(st)) sh->status[0] = WEXITSTATUS(st);
    for (int r = 0; r < j->n; r++) status[r] = sh->status[r];
    *out = sh->s;
    munmap(sh, sizeof *sh);
    emu_memory_free(&m, j->n);
}

static void expect_all(const struct job *j, const int *status, const struct seen *s, int want)
{
    for (int r = 0; r < j->n; r++) {
        if (status[r] != want) print_message("rank %d of %d ended with %d: %s\n", r, j->n, status[r], s->err[r]);
        assert_int_equal(status[r], want);
    }
}

static void sums_are_right_on_every_way(void **state)
{
    static const uint32_t starts[] = {0, 0xffffffe0u}; /* also across the wrap of the step counter */
    for (int n = 2; n <= 3; n++)
        for (int i = 0; i < 2; i++) {
            struct job j = {.n = n, .bad_rank = -1, .step0 = starts[i]};
            int status[LK_MAX_RANKS];
            struct seen s;
            job_run(&j, status, &s);
            expect_all(&j, status, &s, 0);
            for (int r = 1; r < n; r++) assert_memory_equal(s.digest[0], s.digest[r], sizeof s.digest[0]);
            for (int k = 1; k < EMU_WAYS; k++) assert_true(s.digest[0][0] == s.digest[0][k]); /* the same sums over any transport */
            assert_non_null(strstr(s.line[0], "nccl (no libnccl)"));
            assert_string_equal(s.line[0], s.line[1]);
        }
}

static void broken_ways_are_refused(void **state)
{
    static const enum lk_comm_fault faults[] = {LK_FAULT_ZERO, LK_FAULT_FLIP, LK_FAULT_SKIP, LK_FAULT_LATE};
    for (int way = 0; way < EMU_WAYS; way++)
        for (int f = 0; f < 4; f++) {
            struct job j = {.n = 2, .bad_rank = (way + f) & 1, .way = way, .fault = faults[f]};
            int status[LK_MAX_RANKS];
            struct seen s;
            char want[32];
            job_run(&j, status, &s);
            expect_all(&j, status, &s, 0);
            snprintf(want, sizeof want, "%s (r", lk_bridge_name((enum lk_bridge_kind)way)); /* "(rank 1 read ..", "(right, but .." */
            const char *refused = strstr(s.line[0], "not used: ");
            if (!refused || !strstr(refused, want)) fail_msg("way %d, fault %d: %s", way, f, s.line[0]);
            assert_int_not_equal(s.small[0], way);
            assert_int_equal(s.small[0], s.small[1]);
        }
}

static void a_forced_broken_way_ends_the_start(void **state)
{
    struct job j = {.n = 2, .bad_rank = 1, .way = LK_BRIDGE_PUSH, .fault = LK_FAULT_ZERO, .force = "push"};
    int status[LK_MAX_RANKS];
    struct seen s;
    job_run(&j, status, &s);
    expect_all(&j, status, &s, 70);
    assert_non_null(strstr(s.err[0], "--transport push"));
    assert_non_null(strstr(s.err[0], "wrong"));
    j = (struct job){.n = 2, .bad_rank = -1, .force = "carrier-pigeon"};
    job_run(&j, status, &s);
    expect_all(&j, status, &s, 70);
    assert_non_null(strstr(s.err[0], "expected mailbox, push, ll, nccl"));
}

static void a_rank_without_peer_memory_leaves_the_mailbox(void **state)
{
    struct job j = {.n = 3, .bad_rank = 2, .no_peer = 1};
    int status[LK_MAX_RANKS];
    struct seen s;
    job_run(&j, status, &s);
    expect_all(&j, status, &s, 0);
    for (int r = 0; r < 3; r++) assert_int_equal(s.small[r], LK_BRIDGE_MAILBOX);
    assert_non_null(strstr(s.line[1], "ll (no peer memory)"));
}

static void a_death_inside_a_sum_ends_the_waits(void **state)
{
    for (int bad = 0; bad < 3; bad++) {
        struct job j = {.n = 3, .bad_rank = bad, .kill = 1};
        int status[LK_MAX_RANKS];
        struct seen s;
        job_run(&j, status, &s);
        if (!bad) { /* the leader of the test died: the others ended by themselves, or the test would hang */
            assert_int_equal(status[0], 128 + SIGKILL);
            continue;
        }
        for (int r = 0; r < 3; r++) {
            int want = r == bad ? 128 + SIGKILL : 70;
            if (status[r] != want) print_message("rank %d died: rank %d ended with %d: %s\n", bad, r, status[r], s.err[r]);
            assert_int_equal(status[r], want);
        }
        assert_non_null(strstr(s.err[0], "stopped while it waited"));
    }
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_right_on_every_way),
        cmocka_unit_test(broken_ways_are_refused),
        cmocka_unit_test(a_forced_broken_way_ends_the_start),
        cmocka_unit_test(a_rank_without_peer_memory_leaves_the_mailbox),
        cmocka_unit_test(a_death_inside_a_sum_ends_the_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
