/* Stored prefixes over restarts: a new engine finds the files of its own model and takes none on trust. Over the model of hashes, which sees
 * any state that is not its sequence's. */
#include "base/file.h"
#include "base/log.h"
#include "runtime/core.h"
#include "runtime/fake_oracle.h"
#include "runtime/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

#define PAGES 64
#define LENGTH 400
static char dir[] = "/tmp/laoka-disk-XXXXXX";

struct bench {
    struct lk_core c;
    struct lk_model *m;
    struct lk_state *s;
};

static void bench_open(struct bench *b, int64_t disk, int kv)
{
    struct lk_err e = {0};
    struct lk_state_opts so = {.n_pages = PAGES, .n_slots = 12, .kv = (enum lk_kv_kind)kv};
    struct lk_core_opts o = {.ctx = 1024, .parallel = 1, .chunk = 96, .draft = 3, .n_pages = PAGES, .n_slots = 12, .vocab_used = FV_USED,
                             .turn_id = 44, .newline_id = 43,
                             .prefix = {.n_pages = PAGES, .max_entries = 24, .ram = 1 << 20, .disk = disk, .dir = dir}};
    fake_model_open(&b->m);
    lk_state_open(&b->s, &fake_dev, &fake_shape, &so, &e);
    assert_int_equal(lk_core_init(&b->c, b->m, b->s, NULL, &o, &e), 0);
}

static void bench_close(struct bench *b)
{
    lk_core_fini(&b->c);
    assert_int_equal(lk_state_pages_free(b->s), PAGES);
    lk_state_close(b->s);
    lk_model_close(b->m);
    assert_int_equal(fake_corrupt, 0);
}

/* Runs prompt `which` and checks its text; returns tokens that came out of the store. */
static int ask(struct bench *b, int which)
{
    int32_t ids[LENGTH], want[32];
    struct lk_seq *q;
    struct lk_err e = {0};
    prompt_make(ids, LENGTH, 500 + (uint64_t)which);
    struct lk_request r = {.ids = ids, .n_ids = LENGTH, .max_tokens = 8, .sampling = kinds[0], .draft = -2};
    assert_int_equal(lk_seq_new(&q, &r, FV_USED, 1024, &e), 0);
    assert_int_equal(lk_core_admit(&b->c, q, &e), 0);
    while (q->phase != LK_SEQ_DONE) assert_int_equal(lk_core_turn(&b->c, &e), 1);
    assert_int_equal(plain(&r, 1024, want), 8);
    assert_memory_equal(q->ids + LENGTH, want, 32);
    int cached = q->t.cached_n;
    lk_core_release(&b->c, q);
    lk_seq_free(q);
    return cached;
}

static void write_all(struct bench *b)
{
    while (lk_prefix_idle(b->c.prefix)) { }
}

/* Prompts [0, n) asked, written, engine closed. */
static void store_make(int n, int64_t disk)
{
    struct bench b;
    folder_empty(dir);
    bench_open(&b, disk, 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(ask(&b, i), 0);
        write_all(&b);
    }
    bench_close(&b);
}

static int64_t folder_bytes(int *files)
{
    static char paths[64][512];
    int64_t sum = 0;
    *files = folder_list(dir, paths, 64);
    for (int i = 0; i < *files; i++) {
        struct stat st;
        if (!lstat(paths[i], &st)) sum += st.st_size;
    }
    return sum;
}

static void restart_finds_its_files(void **state)
{
    struct bench b;
    struct lk_prefix_stats st;
    int files;
    store_make(3, 1 << 20);
    bench_open(&b, 1 << 20, 0);
    lk_prefix_stats(b.c.prefix, &st);
    assert_int_equal(st.disk, folder_bytes(&files));
    assert_int_equal(st.entries, files);
    assert_true(files >= 3);
    for (int i = 0; i < 3; i++) assert_int_equal(ask(&b, i), LENGTH - 1);
    assert_int_equal(ask(&b, 3), 0);
    bench_close(&b);
    bench_open(&b, 1 << 20, 0); /* and once more: what was read is still there */
    assert_int_equal(ask(&b, 1), LENGTH - 1);
    bench_close(&b);
}

static void other_models_files_stay_and_are_not_used(void **state)
{
    struct bench b;
    struct lk_prefix_stats st;
    int files, after;
    store_make(2, 1 << 20);
    folder_bytes(&files);
    bench_open(&b, 1 << 20, LK_KV_BF16); /* another signature */
    lk_prefix_stats(b.c.prefix, &st);
    assert_int_equal(st.entries, 0);
    assert_int_equal(ask(&b, 0), 0);
    bench_close(&b);
    folder_bytes(&after);
    assert_int_equal(after, files);
    static char paths[64][512], mine[512]; /* the same file under a name of the other model: the header tells */
    int n = folder_list(dir, paths, 64);
    assert_true(n > 0);
    snprintf(mine, sizeof mine, "%s/prefix-%016llx-%016llx.state", dir, 0x1234ull + LK_KV_BF16, 7ull);
    assert_int_equal(rename(paths[0], mine), 0);
    bench_open(&b, 1 << 20, LK_KV_BF16);
    lk_prefix_stats(b.c.prefix, &st);
    assert_int_equal(st.entries, 0);
    bench_close(&b);
    assert_int_equal(lk_file_exists(mine), 1);
}

/* Every kind of damage: the prompt is computed, the text is right. */
static void damage_is_never_trusted(void **state)
{
    static char paths[64][512];
    struct lk_err e = {0};
    for (int at = 0; at < 120; at++) {
        struct bench b;
        store_make(1, 1 << 20);
        int n = folder_list(dir, paths, 64);
        for (int i = 0; i < n; i++) {
            struct lk_buf f = {0};
            assert_int_equal(lk_file_read(&f, paths[i], 1 << 24, &e), 0);
            size_t len = f.len;
            if (at < 90) f.data[at < 80 ? (size_t)at : (size_t)(at - 80) * 7919 % f.len] ^= 4;
            else if (at < 119) len = (size_t)(at - 90) * f.len / 29;
            else lk_buf_add(&f, "more", 4), len = f.len;
            assert_int_equal(lk_file_write(paths[i], f.data, len, &e), 0);
            lk_buf_free(&f);
        }
        bench_open(&b, 1 << 20, 0);
        assert_int_equal(ask(&b, 0), 0);
        assert_int_equal(ask(&b, 0), LENGTH - 1); /* the new state took the damaged one's place */
        write_all(&b);
        bench_close(&b);
        bench_open(&b, 1 << 20, 0); /* and the folder healed */
        assert_int_equal(ask(&b, 0), LENGTH - 1);
        bench_close(&b);
    }
}

/* One whole file of ours put in another's place between opening and reading. */
static void swapped_files_are_seen(void **state)
{
    static char paths[64][512];
    struct bench b;
    struct lk_err e = {0};
    store_make(2, 1 << 20);
    bench_open(&b, 1 << 20, 0);
    int n = folder_list(dir, paths, 64);
    struct lk_buf first = {0};
    assert_int_equal(lk_file_read(&first, paths[0], 1 << 24, &e), 0);
    for (int i = 0; i < n; i++) assert_int_equal(lk_file_write(paths[i], first.data, first.len, &e), 0);
    lk_buf_free(&first);
    int cached = ask(&b, 0) + ask(&b, 1); /* the texts are checked inside */
    assert_true(cached <= LENGTH - 1);
    bench_close(&b);
}

static void strange_things_in_the_folder(void **state)
{
    struct bench b;
    struct lk_prefix_stats st;
    struct lk_err e = {0};
    char path[512];
    folder_empty(dir);
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/prefix-%016x-%016x.state", dir, 0x1234, i);
        if (i == 0) assert_int_equal(mkfifo(path, 0600), 0); /* reading it would hang */
        if (i == 1) assert_int_equal(mkdir(path, 0700), 0);
        if (i == 2) assert_int_equal(symlink("/dev/zero", path), 0);
        if (i == 3) assert_int_equal(lk_file_write(path, "", 0, &e), 0);
        if (i == 4) assert_int_equal(lk_file_write(path, "LKSTATE1 and no more", 20, &e), 0);
    }
    snprintf(path, sizeof path, "%s/notes.txt", dir);
    assert_int_equal(lk_file_write(path, "mine", 4, &e), 0);
    bench_open(&b, 1 << 20, 0);
    lk_prefix_stats(b.c.prefix, &st);
    assert_int_equal(st.entries, 0);
    assert_int_equal(ask(&b, 0), 0);
    bench_close(&b);
    assert_int_equal(lk_file_exists(path), 1);
}

/* The budget holds while running and at the next start; a smaller one keeps what was used last. */
static void budget_and_order_are_kept(void **state)
{
    static char paths[64][512];
    struct bench b;
    struct lk_prefix_stats st;
    int files;
    store_make(1, 1 << 20);
    int64_t one = folder_bytes(&files);
    one /= files;
    store_make(6, 4 * one + one / 2);
    assert_true(folder_bytes(&files) <= 4 * one + one / 2);
    assert_true(files >= 3);
    store_make(3, 1 << 20);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    int n = folder_list(dir, paths, 64);
    for (int i = 0; i < n; i++) utimensat(-100, paths[i], old, 0);
    bench_open(&b, 1 << 20, 0);
    assert_int_equal(ask(&b, 1), LENGTH - 1); /* used: its file is the newest now */
    bench_close(&b);
    bench_open(&b, one + one / 2, 0);
    lk_prefix_stats(b.c.prefix, &st);
    assert_int_equal(st.entries, 1);
    assert_true(folder_bytes(&files) <= one + one / 2);
    assert_int_equal(files, 1);
    assert_int_equal(ask(&b, 1), LENGTH - 1);
    bench_close(&b);
}

/* A full budget settles: writing ends by itself. */
static void a_full_budget_does_not_turn_in_circles(void **state)
{
    struct bench b;
    int files, wrote = 0;
    store_make(1, 1 << 20);
    int64_t one = folder_bytes(&files);
    one /= files;
    folder_empty(dir);
    bench_open(&b, one + one / 2, 0);
    for (int i = 0; i < 4; i++) ask(&b, i);
    while (lk_prefix_idle(b.c.prefix)) assert_true(++wrote < 50);
    assert_true(wrote >= 1);
    bench_close(&b);
}

int main(void)
{
    lk_log_quiet(1);
    assert_non_null(mkdtemp(dir));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart_finds_its_files), cmocka_unit_test(other_models_files_stay_and_are_not_used),
        cmocka_unit_test(damage_is_never_trusted), cmocka_unit_test(swapped_files_are_seen),
        cmocka_unit_test(strange_things_in_the_folder), cmocka_unit_test(budget_and_order_are_kept),
        cmocka_unit_test(a_full_budget_does_not_turn_in_circles),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove(dir);
    return rc;
}
