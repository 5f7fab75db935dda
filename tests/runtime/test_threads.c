/* The engine's threads and events over the model of hashes: many submitters and cancellers, one reader, every answer the plain one.
 * Meant for ThreadSanitizer as much as for itself. Defines the host, so that nothing is opened from disk. */
#include "base/log.h"
#include "runtime/engine_int.h"
#include "runtime/fake_oracle.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

static int host_parallel = 4, host_pages = 200;

int lk_host_open(struct lk_host *h, const struct lk_opts_engine *o, struct lk_err *e)
{
    struct lk_state_opts so = {.n_pages = host_pages, .n_slots = 12};
    struct lk_core_opts co = {.ctx = 1024, .parallel = host_parallel, .chunk = 128, .draft = o->draft, .n_pages = host_pages,
                              .n_slots = 12, .vocab_used = FV_USED, .turn_id = 44, .newline_id = 43,
                              .prefix = {.n_pages = host_pages, .max_entries = 32, .ram = 1 << 20}};
    fake_model_open(&h->model);
    lk_state_open(&h->state, &fake_dev, &fake_shape, &so, e);
    return lk_core_init(&h->core, h->model, h->state, NULL, &co, e);
}

void lk_host_close(struct lk_host *h)
{
    lk_core_fini(&h->core);
    if (h->state && lk_state_pages_free(h->state) != host_pages) abort();
    lk_state_close(h->state);
    lk_model_close(h->model);
}

int lk_host_alive(const struct lk_host *h, double idle_s, struct lk_err *e)
{
    return 0;
}

#define THREADS 4
#define EACH 40
struct job_of {
    uint64_t id;
    int cancel, n, ended, started;
    enum lk_finish finish;
    struct lk_request r;
    int32_t ids[512], out[1024];
};
static struct job_of jobs_all[THREADS][EACH];
static struct lk_engine *engine;
static pthread_mutex_t told = PTHREAD_MUTEX_INITIALIZER;

static void *submitter(void *arg)
{
    struct job_of *mine = arg;
    uint64_t x = (uint64_t)(mine - jobs_all[0]) + 1;
    for (int i = 0; i < EACH; i++) {
        struct job_of *j = &mine[i];
        int n = 1 + (int)(fake_mix(x += 77) % 400);
        prompt_make(j->ids, n, fake_mix(x) % 6); /* few families: prefixes are shared */
        j->r = (struct lk_request){.ids = j->ids, .n_ids = (size_t)n, .max_tokens = 1 + (int)(fake_mix(x + 1) % 50),
                                   .sampling = kinds[fake_mix(x + 2) % N_KINDS], .draft = -2,
                                   .priority = (int)(fake_mix(x + 3) % 3)};
        j->r.sampling.seed = x;
        if (fake_mix(x + 4) % 10 == 0) j->r.deadline = 1e-5;
        struct lk_err e = {0};
        pthread_mutex_lock(&told);
        j->id = lk_engine_submit(engine, &j->r, &e);
        pthread_mutex_unlock(&told);
        if (!j->id) abort();
        if ((j->cancel = fake_mix(x + 5) % 5 == 0)) lk_engine_cancel(engine, j->id);
        struct lk_engine_stats st;
        lk_engine_stats(engine, &st);
    }
    return NULL;
}

static struct job_of *job_find(uint64_t id)
{
    struct job_of *found = NULL;
    pthread_mutex_lock(&told);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < EACH; i++)
            if (jobs_all[t][i].id == id) found = &jobs_all[t][i];
    pthread_mutex_unlock(&told);
    return found;
}

static void many_at_once(void **state)
{
    struct lk_opts_engine o = {.draft = -1};
    struct lk_err e = {0};
    pthread_t th[THREADS];
    memset(jobs_all, 0, sizeof jobs_all);
    assert_int_equal(lk_engine_open(&engine, &o, &e), 0);
    for (int t = 0; t < THREADS; t++) pthread_create(&th[t], NULL, submitter, jobs_all[t]);
    for (int left = THREADS * EACH; left > 0;) {
        struct pollfd p = {.fd = lk_engine_fd(engine), .events = POLLIN};
        struct lk_event ev;
        if (poll(&p, 1, 60000) != 1) fail_msg("%d requests without news", left);
        while (lk_engine_next(engine, &ev, 0) == 1) {
            struct job_of *j = job_find(ev.id);
            assert_non_null(j);
            assert_false(j->ended);
            if (ev.kind == LK_EV_START) assert_int_equal(j->started++, 0);
            if (ev.kind == LK_EV_TOKENS) {
                memcpy(j->out + j->n, ev.tokens, (size_t)ev.n_tokens * 4);
                j->n += ev.n_tokens;
            }
            if (ev.kind == LK_EV_ERROR) fail_msg("error: %s", ev.text);
            if (ev.kind != LK_EV_DONE) continue;
            j->ended = 1;
            j->finish = ev.finish;
            left--;
        }
    }
    for (int t = 0; t < THREADS; t++) pthread_join(th[t], NULL);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < EACH; i++) {
            struct job_of *j = &jobs_all[t][i];
            int32_t want[1100];
            int n = plain(&j->r, 1024, want);
            if (j->finish == LK_FIN_LENGTH) assert_int_equal(j->n, n);
            assert_true(j->n <= n);
            assert_memory_equal(j->out, want, (size_t)j->n * 4);
            if (j->finish == LK_FIN_CANCEL) assert_true(j->cancel);
            if (j->finish == LK_FIN_DEADLINE) assert_true(j->r.deadline > 0);
        }
    struct lk_engine_stats st;
    lk_engine_stats(engine, &st);
    assert_int_equal(st.waiting, 0);
    lk_engine_close(engine);
    assert_int_equal(fake_corrupt, 0);
}

static void close_while_running(void **state)
{
    for (int i = 0; i < 20; i++) {
        struct lk_opts_engine o = {.draft = 2};
        struct lk_err e = {0};
        int32_t ids[300];
        prompt_make(ids, 300, 5);
        struct lk_request r = {.ids = ids, .n_ids = 300, .sampling = kinds[0], .draft = -2};
        assert_int_equal(lk_engine_open(&engine, &o, &e), 0);
        for (int k = 0; k < 8; k++) assert_true(lk_engine_submit(engine, &r, &e) > 0);
        if (i % 2) usleep(300);
        lk_engine_close(engine);
    }
}

static void death_is_told_to_all(void **state)
{
    struct lk_opts_engine o = {.draft = 0};
    struct lk_err e = {0};
    int32_t ids[300];
    prompt_make(ids, 300, 5);
    struct lk_request r = {.ids = ids, .n_ids = 300, .sampling = kinds[0], .draft = -2};
    fake_fail_step = 9;
    assert_int_equal(lk_engine_open(&engine, &o, &e), 0);
    int sent = 0, errors = 0, rc;
    for (int k = 0; k < 8; k++) sent += lk_engine_submit(engine, &r, &e) > 0;
    struct lk_event ev;
    while ((rc = lk_engine_next(engine, &ev, 30)) == 1)
        if (ev.kind == LK_EV_ERROR) {
            assert_int_equal(ev.code, LK_EDEVICE);
            assert_non_null(strstr(ev.text, "died"));
            errors++;
        }
    assert_int_equal(rc, LK_EDEVICE);
    assert_int_equal(errors, sent);
    lk_err_clear(&e);
    assert_int_equal(lk_engine_submit(engine, &r, &e), 0);
    assert_int_equal(e.code, LK_EDEVICE);
    struct lk_engine_stats st;
    lk_engine_stats(engine, &st);
    assert_true(st.dead);
    lk_engine_close(engine);
}

/* A long prompt holds others for one chunk: between two tokens of a running answer never more than one prefill step. */
static void long_prompts_wait_their_turn(void **state)
{
    struct lk_opts_engine o = {.draft = 0};
    struct lk_err e = {0};
    static int32_t big[1000], small[4] = {1, 2, 3, 4};
    prompt_make(big, 1000, 8);
    assert_int_equal(lk_engine_open(&engine, &o, &e), 0);
    struct lk_request r = {.ids = small, .n_ids = 4, .max_tokens = 60, .sampling = kinds[0], .draft = -2};
    uint64_t a = lk_engine_submit(engine, &r, &e);
    r.ids = big;
    r.n_ids = 1000;
    r.max_tokens = 1;
    uint64_t b = lk_engine_submit(engine, &r, &e);
    struct lk_event ev;
    int a_tokens = 0, b_marks = 0, ends = 0;
    while (ends < 2 && lk_engine_next(engine, &ev, 30) == 1) {
        if (ev.id == a && ev.kind == LK_EV_TOKENS) a_tokens += ev.n_tokens;
        if (ev.id == b && ev.kind == LK_EV_PROGRESS) b_marks++;
        if (ev.id == b && ev.kind == LK_EV_DONE) assert_true(a_tokens >= b_marks - 2); /* a moved with every chunk of b */
        ends += ev.kind == LK_EV_DONE;
    }
    assert_int_equal(ends, 2);
    lk_engine_close(engine);
}

static void bad_requests_are_refused(void **state)
{
    struct lk_opts_engine o = {.draft = 0};
    struct lk_err e = {0};
    static int32_t big[1024], bad[1] = {FV_USED};
    assert_int_equal(lk_engine_open(&engine, &o, &e), 0);
    struct lk_request r = {.ids = big, .n_ids = 1024, .sampling = kinds[0], .draft = -2};
    assert_int_equal(lk_engine_submit(engine, &r, &e), 0);
    assert_int_equal(e.code, LK_EREQUEST);
    lk_err_clear(&e);
    r.ids = bad;
    r.n_ids = 1;
    assert_int_equal(lk_engine_submit(engine, &r, &e), 0);
    assert_int_equal(e.code, LK_EREQUEST);
    lk_err_clear(&e);
    assert_int_equal(lk_engine_save(engine, "nobody", "/tmp/never", NULL, &e), LK_EREQUEST);
    lk_engine_close(engine);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_at_once), cmocka_unit_test(close_while_running), cmocka_unit_test(death_is_told_to_all),
        cmocka_unit_test(long_prompts_wait_their_turn), cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
