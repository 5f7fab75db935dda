/* Allocation failure at the n-th call, for every n: one request, save and restore over the model of hashes. Each time nothing leaks
 * (AddressSanitizer, page and slot counts), nothing hangs, and the next request works. */
#include "base/file.h"
#include "base/log.h"
#include "runtime/core.h"
#include "runtime/fake_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES 40
#define SLOTS 5
static struct lk_model *m;
static struct lk_state *s;

static int core_open(struct lk_core *c, struct lk_err *e)
{
    struct lk_core_opts o = {.ctx = 512, .parallel = 2, .chunk = 64, .draft = -1, .n_pages = PAGES, .n_slots = SLOTS,
                             .vocab_used = FV_USED, .turn_id = 44, .newline_id = 43,
                             .prefix = {.n_pages = PAGES, .max_entries = 4, .ram = 1 << 20}};
    return lk_core_init(c, m, s, NULL, &o, e);
}

static void all_back(void)
{
    assert_int_equal(lk_state_pages_free(s), PAGES);
    for (int i = 0; i < SLOTS; i++) assert_false(s->used[i]);
}

static int32_t prompt[200];

/* 1: the request ended as it should; 0: it failed for want of memory. */
static int one_request(struct lk_core *c, const char *session)
{
    static const char *const stops[] = {"nothing has this"};
    struct lk_bias bias = {3, 1};
    struct lk_request r = {.ids = prompt, .n_ids = 200, .max_tokens = 100, .sampling = kinds[0], .draft = -2, .session = session,
                           .stops = stops, .n_stops = 1, .logprobs = 2};
    r.sampling.bias = &bias;
    r.sampling.n_bias = 1;
    struct lk_err e = {0};
    struct lk_seq *q;
    int rc = lk_seq_new(&q, &r, FV_USED, 512, &e);
    if (rc) {
        assert_int_equal(rc, LK_ENOMEM);
        assert_true(e.text[0] != 0);
        return 0;
    }
    assert_int_equal(lk_core_admit(c, q, &e), 0);
    for (int i = 0; q->phase != LK_SEQ_DONE; i++) {
        assert_true(lk_core_turn(c, &e) == 1);
        assert_true(i < 1000);
    }
    int good = q->finish == LK_FIN_LENGTH;
    if (!good) assert_int_equal(q->err.code, LK_ENOMEM);
    int32_t want[600];
    int n = plain(&r, 512, want);
    assert_true(lk_seq_out(q) <= n && (!good || lk_seq_out(q) == n));
    assert_memory_equal(q->ids + 200, want, (size_t)lk_seq_out(q) * 4);
    lk_core_release(c, q);
    lk_seq_free(q);
    return good;
}

static void open_and_request(void **state)
{
    int opened = 0, answered = 0, failures = 0;
    for (int64_t n = 1; !answered; n++) {
        struct lk_core c;
        struct lk_err e = {0};
        lk_mem_fail_at(n);
        int rc = core_open(&c, &e);
        if (rc) {
            assert_int_equal(rc, LK_ENOMEM);
            assert_int_equal(opened, 0); /* later n fail later */
        } else {
            opened = 1;
            int good = one_request(&c, NULL), spent = lk_mem_count() < n;
            lk_mem_fail_at(0);
            failures += !good;
            assert_true(one_request(&c, NULL));
            answered = spent; /* the n-th call was never reached: done */
        }
        lk_mem_fail_at(0);
        lk_core_fini(&c);
        all_back();
        assert_true(n < 500);
    }
    assert_true(failures > 5);
    assert_int_equal(fake_corrupt, 0);
}

static void save_and_restore(void **state)
{
    char path[] = "/tmp/laoka-state-XXXXXX";
    close(mkstemp(path));
    unlink(path);
    struct lk_core c;
    struct lk_err e = {0};
    assert_int_equal(core_open(&c, &e), 0);
    assert_true(one_request(&c, "s"));
    int entry = lk_prefix_named(c.prefix, "s"), done = 0;
    assert_true(entry >= 0);
    for (int64_t n = 1; !done; n++) {
        lk_err_clear(&e);
        lk_mem_fail_at(n);
        int rc = lk_prefix_save(c.prefix, entry, path, "note", 4, &e);
        done = lk_mem_count() < n;
        lk_mem_fail_at(0);
        if (done) assert_int_equal(rc, 0);
        else assert_true(rc == LK_ENOMEM && access(path, F_OK) != 0);
    }
    lk_core_fini(&c);
    all_back();
    assert_int_equal(core_open(&c, &e), 0);
    done = 0;
    for (int64_t n = 1; !done; n++) {
        int32_t *ids = NULL;
        size_t n_ids = 0;
        struct lk_buf note = {0};
        struct lk_prefix_stats before, after;
        lk_err_clear(&e);
        lk_prefix_stats(c.prefix, &before);
        lk_mem_fail_at(n);
        int rc = lk_prefix_restore(c.prefix, path, "s", &ids, &n_ids, &note, &e);
        done = lk_mem_count() < n;
        lk_mem_fail_at(0);
        lk_prefix_stats(c.prefix, &after);
        if (rc) {
            assert_int_equal(rc, LK_ENOMEM);
            assert_int_equal(after.entries, before.entries);
            assert_int_equal(after.ram, before.ram);
            assert_null(ids);
        } else {
            assert_int_equal(n_ids, 299);
            assert_memory_equal(ids, prompt, 800);
            assert_string_equal(note.data, "note");
        }
        lk_free(ids);
        lk_buf_free(&note);
        assert_true(n < 100);
    }
    assert_true(one_request(&c, NULL));
    lk_core_fini(&c);
    all_back();
    unlink(path);
}

/* Every byte of the header damaged, every length cut, another model's signature: one line, and nothing changes. */
static void bad_files_change_nothing(void **state)
{
    char path[] = "/tmp/laoka-bad-XXXXXX";
    close(mkstemp(path));
    struct lk_core c;
    struct lk_err e = {0};
    assert_int_equal(core_open(&c, &e), 0);
    assert_true(one_request(&c, "s"));
    assert_int_equal(lk_prefix_save(c.prefix, lk_prefix_named(c.prefix, "s"), path, "hi", 2, &e), 0);
    lk_core_fini(&c);
    assert_int_equal(core_open(&c, &e), 0);
    struct lk_buf file = {0}, bad = {0};
    assert_int_equal(lk_file_read(&file, path, 1 << 24, &e), 0);
    for (size_t i = 0; i < 400; i++) {
        size_t cut = i < 200 ? file.len : (i - 200) * file.len / 200, at = i < 100 ? i : (i - 100) * 7919 % file.len;
        lk_buf_reset(&bad);
        lk_buf_add(&bad, file.data, cut);
        if (i < 200) bad.data[at] ^= 0x10;
        assert_int_equal(lk_file_write(path, bad.data, bad.len, &e), 0);
        struct lk_prefix_stats st;
        int rc = lk_prefix_restore(c.prefix, path, "s", NULL, NULL, NULL, &e);
        if (rc != LK_EINPUT) fail_msg("damage %zu went through: %d", i, rc);
        assert_non_null(strstr(e.text, path));
        lk_err_clear(&e);
        lk_prefix_stats(c.prefix, &st);
        assert_int_equal(st.entries, 0);
        assert_int_equal(st.ram, 0);
    }
    assert_int_equal(lk_file_write(path, file.data, file.len, &e), 0);
    s->o.kv = LK_KV_BF16; /* another signature */
    assert_int_equal(lk_prefix_restore(c.prefix, path, "s", NULL, NULL, NULL, &e), LK_EINPUT);
    assert_non_null(strstr(e.text, "another model"));
    s->o.kv = 0;
    lk_err_clear(&e);
    assert_int_equal(lk_prefix_restore(c.prefix, path, "s", NULL, NULL, NULL, &e), 0);
    lk_buf_free(&file);
    lk_buf_free(&bad);
    lk_core_fini(&c);
    all_back();
    unlink(path);
}

int main(void)
{
    struct lk_err e = {0};
    struct lk_state_opts so = {.n_pages = PAGES, .n_slots = SLOTS};
    lk_log_quiet(1);
    prompt_make(prompt, 200, 4);
    fake_model_open(&m);
    lk_state_open(&s, &fake_dev, &fake_shape, &so, &e);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_and_request), cmocka_unit_test(save_and_restore),
        cmocka_unit_test(bad_files_change_nothing),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    lk_state_close(s);
    lk_model_close(m);
    return rc;
}
