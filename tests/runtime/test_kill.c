/* Many faults, no hang: a toy model on 2 or 4 CPU ranks (4: one KV head is replicated), led by a forked child; a fault of a random kind at a random step of a random rank.
 * Whatever the child gives out before the end is a prefix of what one device says; child and ranks end in time, each by itself (the
 * stopped ones are continued after everyone's patience). 24 faults here, LK_LONG=1: 500; LK_SEED chooses others. */
#include "runtime/engine_help.h"

#include "base/log.h"
#include "model/toy.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { ASKS = 4, NEW = 12, HANG_S = 60 };
#define PATIENCE_S 0.6

struct shared {
    int n[ASKS], done, failed_open;
    int32_t ids[ASKS][NEW];
    char error[800];
};

static int32_t prompt[ASKS][100];
static const int prompt_n[ASKS] = {5, 70, 33, 90};
static struct shared truth;

static struct lk_opts_engine options(const char *dir, int n, const char *fault)
{
    struct lk_opts_engine o = opts_small(dir);
    o.ctx = 512;
    o.chunk = 32;
    o.dev.n = n;
    o.dev.threads = 1;
    o.dev.program = LK_BINARY;
    o.dev.fault = fault;
    o.dev.patience_s = PATIENCE_S;
    return o;
}

/* The child: all asks in turn, drafts for every second one; what came out goes to shared memory. */
static void answer(const struct lk_opts_engine *o, struct shared *s)
{
    struct lk_engine *e;
    struct lk_err err = {0};
    if (lk_engine_open(&e, o, &err)) {
        s->failed_open = 1;
        snprintf(s->error, sizeof s->error, "%s", err.text);
        return;
    }
    for (int i = 0; i < ASKS; i++) {
        struct lk_request r = {.ids = prompt[i], .n_ids = (size_t)prompt_n[i], .max_tokens = NEW, .draft = i & 1 ? 3 : 0};
        lk_sampling_init(&r.sampling);
        r.sampling.temp = 0;
        struct result res = run_one(e, &r);
        for (int k = 0; k < res.n && k < NEW; k++) s->ids[i][k] = res.ids[k];
        s->n[i] = res.n;
        int cut = res.n < (o->dev.n > 1 ? truth.n[i] : 0);
        if (cut) snprintf(s->error, sizeof s->error, "%s", res.text);
        lk_free(res.ids);
        if (cut) break;
    }
    lk_engine_close(e);
    s->done = 1;
}

static void children_kill(pid_t parent, int sig)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, parent);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f))
        for (char *p = line, *end; *p; p = end) {
            long pid = strtol(p, &end, 10);
            if (end == p) break;
            kill((pid_t)pid, sig);
        }
    if (f) fclose(f);
}

static void wake(pid_t child)
{
    kill(child, SIGCONT);
    children_kill(child, SIGCONT);
}

/* Ends when the child and, by adoption, every rank it left behind has ended. 0, or -1 for a hang. */
static int wait_all(pid_t child, int stopped)
{
    double t0 = lk_clock();
    for (;;) {
        pid_t p = waitpid(-1, NULL, WNOHANG);
        if (p < 0 && errno == ECHILD) return 0;
        if (p > 0) continue;
        double t = lk_clock() - t0;
        if (stopped && t > 3 * PATIENCE_S) {
            wake(child);
            kill(0, SIGCONT); /* ranks whose leader is gone are ours by now, in our group */
        }
        if (t > HANG_S) return -1;
        nanosleep(&(struct timespec){0, 3000000}, NULL);
    }
}

static void hang_end(pid_t child)
{
    children_kill(getpid(), SIGKILL);
    kill(child, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) continue;
}

static const char *const kinds[] = {"kill", "stop", "token", "position", "skip", "zero", "flip", "stale", "late"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void one_fault(const char *dir, struct shared *s, int i, uint64_t seed)
{
    int kind = i % KINDS, n = toy_rand(seed, (uint64_t)i * 4) % 6 ? 2 : 4, rank = (int)(toy_rand(seed, (uint64_t)i * 4 + 1) % (uint64_t)n);
    int step = 1 + (int)(toy_rand(seed, (uint64_t)i * 4 + 2) % 150);
    char fault[64];
    snprintf(fault, sizeof fault, "%s:%d@%d", kinds[kind], step, rank);
    struct lk_opts_engine o = options(dir, n, fault);
    memset(s, 0, sizeof *s);
    pid_t child = fork();
    if (!child) {
        answer(&o, s);
        _exit(0);
    }
    if (wait_all(child, !strcmp(kinds[kind], "stop"))) {
        hang_end(child);
        fail_msg("fault %d: %s of %d ranks: a hang", i, fault, n);
    }
    for (int a = 0; a < ASKS; a++)
        for (int k = 0; k < s->n[a]; k++)
            if (k >= truth.n[a] || s->ids[a][k] != truth.ids[a][k]) fail_msg("fault %d: %s of %d ranks: a wrong token was given out", i, fault, n);
}

static void no_fault_hangs_or_lies(void **state)
{
    const char *dir = toy_write(&toys[0]), *seed_text = getenv("LK_SEED");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : 1;
    int count = getenv("LK_LONG") ? 500 : 24, noticed = 0;
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    for (int a = 0; a < ASKS; a++)
        for (int k = 0; k < prompt_n[a]; k++) prompt[a][k] = (int32_t)(toy_rand(99, (uint64_t)(a * 1000 + k)) % TOY_VOCAB);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct lk_opts_engine o = options(dir, 1, NULL);
    pid_t child = fork(); /* threads of an engine must not be there when we fork */
    if (!child) {
        answer(&o, s);
        _exit(0);
    }
    assert_int_equal(wait_all(child, 0), 0);
    truth = *s;
    assert_true(truth.done && truth.n[0] > 0 && truth.n[3] > 0);
    double t0 = lk_clock();
    for (int i = 0; i < count; i++) {
        one_fault(dir, s, i, seed);
        noticed += s->failed_open || s->error[0] || !s->done;
    }
    print_message("%d faults in %.0f s: %d ended the work, the others came too late, did no harm or hit nothing; no hang, no wrong token\n", count,
                  lk_clock() - t0, noticed);
    assert_true(noticed > count / 4);
    munmap(s, sizeof *s);
    toy_remove(dir);
}

int main(void)
{
    lk_log_quiet(2);
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_fault_hangs_or_lies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
