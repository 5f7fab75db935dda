/* Rank files: what lk_split writes is read back as the cut tensors; the description inside is not trusted: each of its bytes changed gives a
 * model or one clear error, never a crash. */
#include "artifact/artifact.h"
#include "artifact/st_make.h"
#include "base/file.h"
#include "base/log.h"
#include "model/split.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define DEMO LK_SOURCE_DIR "/models/demo"

static char dir[64], out[96];

static void open_rank(struct lk_artifact **a, int rank)
{
    struct lk_err e = {0};
    if (lk_artifact_open_rank(a, out, rank, 2, &e)) fail_msg("%s", e.text);
}

static void ranks_hold_their_parts(void **state)
{
    struct lk_artifact *src, *r[2];
    struct lk_err e = {0};
    assert_int_equal(lk_artifact_open(&src, DEMO, &e), 0);
    open_rank(&r[0], 0);
    open_rank(&r[1], 1);
    for (int i = 0; i < 2; i++) {
        const struct lk_tensor *d = lk_artifact_find(r[i], "layers.0.mlp.down_proj"), *g = lk_artifact_find(r[i], "layers.0.mlp.gate_proj");
        const struct lk_tensor *s = lk_artifact_find(src, "layers.0.mlp.down_proj"), *w = lk_artifact_find(r[i], "embed_tokens");
        float x[2048], y[2048];
        assert_int_equal(d->w.n, s->w.n);
        assert_int_equal(d->w.k * 2, s->w.k);
        assert_true(d->w.k <= 2048 && d->is_part && g->is_part && !w->is_part);
        assert_int_equal(w->w.n, lk_artifact_config(src)->vocab);
        for (int64_t n = 0; n < d->w.n; n++) {
            lk_weight_row(&d->w, n, 0, d->w.k, x);
            lk_weight_row(&s->w, n, i * d->w.k, d->w.k, y);
            assert_memory_equal(x, y, (size_t)d->w.k * sizeof *x);
        }
    }
    lk_artifact_close(r[0]);
    lk_artifact_close(r[1]);
    assert_int_equal(lk_artifact_open_rank(&r[0], out, 0, 3, &e), LK_EINPUT);
    assert_non_null(strstr(e.text, "made for 2 devices"));
    lk_artifact_close(src);
}

static void a_changed_description_is_survived(void **state)
{
    char file[160];
    struct lk_map m;
    struct lk_err e = {0};
    snprintf(file, sizeof file, "%s/rank-1-of-2.safetensors", out);
    assert_int_equal(lk_map_open(&m, file, &e), 0);
    size_t info = 0;
    for (size_t i = 0; i + 9 < m.size; i += 64)
        if (!memcmp(m.data + i, "{\"rank\":1", 9)) info = i;
    assert_true(info > 0);
    size_t end = m.size;
    lk_map_close(&m);
    int fd = open(file, O_RDWR), refused = 0, tried = 0;
    for (size_t at = info; at < end; at += 1 + (end - info) / 1500) {
        unsigned char old, new;
        assert_int_equal(pread(fd, &old, 1, (off_t)at), 1);
        for (int k = 0; k < 2; k++) {
            struct lk_artifact *a = NULL;
            new = k ? (unsigned char)(old == '9' ? '1' : '9') : (unsigned char)(old ^ 1);
            assert_int_equal(pwrite(fd, &new, 1, (off_t)at), 1);
            e = (struct lk_err){0};
            int rc = lk_artifact_open_rank(&a, out, 0, 2, &e);
            if (rc && (rc != LK_EINPUT || !strstr(e.text, out) || strchr(e.text, '\n'))) fail_msg("byte %zu: code %d: %s", at - info, rc, e.text);
            refused += rc != 0;
            tried++;
            lk_artifact_close(a);
        }
        assert_int_equal(pwrite(fd, &old, 1, (off_t)at), 1);
    }
    assert_true(refused > tried / 4);
    close(fd);
}

static int set_up(void **state)
{
    struct lk_convert_opts o = {.verify = 1};
    struct lk_err e = {0};
    lk_log_quiet(1);
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    return lk_split(DEMO, out, 2, &o, &e);
}

static int tear_down(void **state)
{
    dir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_hold_their_parts), cmocka_unit_test(a_changed_description_is_survived)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
