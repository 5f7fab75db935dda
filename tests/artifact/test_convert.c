/* laoka convert over the bundled model and over a GGUF file: each recipe re-opens with the formats it promises and values near the source's;
 * copies are exact; refusals, full disks and signals leave nothing behind; --verify names the tensor of a flipped byte; memory does not grow
 * with the model. */
#include "artifact/convert.h"
#include "artifact/st_make.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#define DEMO LK_SOURCE_DIR "/models/demo"
#define GGUF LK_SOURCE_DIR "/tests/vectors/artifact/all.gguf"

static void convert(const char *in, const char *out, const char *recipe, int64_t shard_bytes)
{
    struct lk_convert_opts o = {.recipe = recipe, .verify = 1, .shard_bytes = shard_bytes, .pool = lk_pool_new(2)};
    struct lk_err e = {0};
    if (lk_convert(in, out, &o, &e)) fail_msg("%s: %s", recipe, e.text);
    lk_pool_free(o.pool);
}

/* Largest error of `b` against `a` over some rows, as a share of the row's largest value. */
static double distance(const struct lk_weight *a, const struct lk_weight *b)
{
    float *x = malloc((size_t)a->k * 4), *y = malloc((size_t)a->k * 4);
    double worst = 0;
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->k, b->k);
    for (int64_t r = 0; r < a->n; r += a->n / 7 + 1) {
        float top = 0;
        lk_weight_row(a, r, 0, a->k, x);
        lk_weight_row(b, r, 0, b->k, y);
        for (int64_t k = 0; k < a->k; k++) top = fmaxf(top, fabsf(x[k]));
        for (int64_t k = 0; k < a->k; k++) worst = fmax(worst, top > 0 ? (double)(fabsf(x[k] - y[k]) / top) : fabs((double)y[k]));
    }
    free(x);
    free(y);
    return worst;
}

static void recipes_give_what_they_promise(void **state)
{
    static const struct {
        const char *recipe;
        enum lk_fmt mlp, attn, head;
        double limit; /* half a step of the coarsest code at the top of its range */
    } v[] = {
        {"bf16", LK_FMT_BF16, LK_FMT_BF16, LK_FMT_BF16, 1.0 / 256},      {"fp8", LK_FMT_FP8, LK_FMT_FP8, LK_FMT_FP8, 1.0 / 16},
        {"w8", LK_FMT_I8, LK_FMT_I8, LK_FMT_I8, 1.0 / 200},              {"nvfp4", LK_FMT_NVFP4, LK_FMT_FP8, LK_FMT_FP8, 0.2},
        {"nvfp4-all", LK_FMT_NVFP4, LK_FMT_NVFP4, LK_FMT_FP8, 0.2},      {"q4", LK_FMT_Q4, LK_FMT_Q4, LK_FMT_FP8, 0.24}, /* clips at 7 / 9.125 */
    };
    struct lk_artifact *src, *a;
    struct lk_err e = {0};
    char dir[64], out[96];
    assert_int_equal(lk_artifact_open(&src, DEMO, &e), 0);
    dir_new(dir);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        snprintf(out, sizeof out, "%s/%s", dir, v[i].recipe);
        convert(DEMO, out, v[i].recipe, i % 2 ? 3 << 20 : 0);
        if (lk_artifact_open(&a, out, &e)) fail_msg("%s", e.text);
        assert_int_equal(lk_artifact_count(a), lk_artifact_count(src));
        assert_int_equal(lk_artifact_find(a, "layers.2.mlp.up_proj")->w.fmt, v[i].mlp);
        assert_int_equal(lk_artifact_find(a, "layers.3.self_attn.o_proj")->w.fmt, v[i].attn);
        assert_int_equal(lk_artifact_find(a, "lm_head")->w.fmt, v[i].head);
        assert_int_equal(lk_artifact_find(a, "layers.0.linear_attn.in_proj_a")->w.fmt, LK_FMT_BF16);
        for (size_t t = 0; t < lk_artifact_count(src); t++) {
            const struct lk_tensor *s = lk_artifact_at(src, t), *d = lk_artifact_find(a, s->name);
            assert_non_null(d);
            double err = distance(&s->w, &d->w);
            if (err > v[i].limit) fail_msg("%s: %s: error %g of its row's top, limit %g", v[i].recipe, s->name, err, v[i].limit);
            if (s->w.fmt == d->w.fmt && (s->w.fmt != LK_FMT_NVFP4 || d->bytes == s->bytes)) assert_true(err == 0); /* copied */
        }
        size_t n, m;
        const char *x = lk_artifact_text(src, "tokenizer.json", &n), *y = lk_artifact_text(a, "tokenizer.json", &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        lk_artifact_close(a);
    }
    lk_artifact_close(src);
    dir_remove(dir);
}

static void gguf_becomes_huggingface(void **state)
{
    char dir[64], out[96];
    struct lk_artifact *src, *a;
    struct lk_err e = {0};
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    convert(GGUF, out, "bf16", 0);
    assert_int_equal(lk_artifact_open(&src, GGUF, &e), 0);
    if (lk_artifact_open(&a, out, &e)) fail_msg("%s", e.text);
    assert_int_equal(lk_artifact_config(a)->layers, 21);
    assert_int_equal(lk_artifact_config(a)->norm_plus_one, 1);
    assert_string_equal(lk_artifact_find(a, "layers.0.mlp.up_proj")->stored, "model.layers.0.mlp.up_proj.weight");
    for (size_t i = 0; i < lk_artifact_count(src); i++) {
        const struct lk_tensor *s = lk_artifact_at(src, i);
        assert_true(distance(&s->w, &lk_artifact_find(a, s->name)->w) <= 1.0 / 256);
    }
    lk_artifact_close(a);
    lk_artifact_close(src);
    dir_remove(dir);
}

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static void refusals_leave_nothing(void **state)
{
    char dir[64], out[96];
    struct lk_convert_opts o = {.recipe = "fp8"};
    struct lk_err e = {0};
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    o.recipe = "fp9";
    assert_int_equal(lk_convert(DEMO, out, &o, &e), LK_EUSAGE);
    assert_non_null(strstr(e.text, "nvfp4-all"));
    lk_err_clear(&e);
    o.recipe = NULL; /* no Hugging Face layout for GGUF blocks */
    assert_int_equal(lk_convert(GGUF, out, &o, &e), LK_EINPUT);
    assert_non_null(strstr(e.text, "--recipe"));
    lk_err_clear(&e);
    assert_int_equal(lk_convert("/tmp/laoka-none", out, &o, &e), LK_EINPUT);
    lk_err_clear(&e);
    o.recipe = "fp8";
    snprintf(out, sizeof out, "%s/no/x", dir);
    assert_int_equal(lk_convert(DEMO, out, &o, &e), LK_ESYS);
    assert_int_equal(entries(dir), 0);
    snprintf(out, sizeof out, "%s/x", dir);
    assert_int_equal(mkdir(out, 0755), 0);
    lk_err_clear(&e);
    assert_int_equal(lk_convert(DEMO, out, &o, &e), LK_EINPUT);
    assert_non_null(strstr(e.text, "exists already"));
    assert_int_equal(entries(out), 0);
    o.force = 1;
    lk_err_clear(&e);
    assert_int_equal(lk_convert(DEMO, out, &o, &e), 0);
    assert_true(entries(out) >= 4);
    assert_int_equal(entries(dir), 1);
    dir_remove(dir);
}

/* A disk that is full at some byte: the limit on a file's size gives the same error from the same call. */
static void write_errors_leave_nothing(void **state)
{
    char dir[64], out[96];
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, low;
    getrlimit(RLIMIT_FSIZE, &old);
    for (rlim_t limit = 1000; limit <= 3000000; limit = limit * 12 + 7) {
        struct lk_convert_opts o = {.recipe = "fp8", .verify = 1};
        struct lk_err e = {0};
        low = (struct rlimit){limit, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &low);
        int rc = lk_convert(DEMO, out, &o, &e);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(rc, LK_ESYS);
        assert_non_null(strstr(e.text, "cannot write"));
        assert_int_equal(entries(dir), 0);
    }
    dir_remove(dir);
}

static void a_signal_leaves_nothing(void **state)
{
    char dir[64], out[96];
    volatile sig_atomic_t stop = SIGINT;
    struct lk_convert_opts o = {.recipe = "fp8", .stop = &stop};
    struct lk_err e = {0};
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    assert_int_equal(lk_convert(DEMO, out, &o, &e), LK_EINPUT);
    assert_non_null(strstr(e.text, "interrupted"));
    assert_int_equal(entries(dir), 0);
    dir_remove(dir);
}

static int verify(const char *in, const char *out, const char *recipe, struct lk_err *e)
{
    struct lk_convert_opts o = {.recipe = recipe, .verify = 1};
    *e = (struct lk_err){0};
    return lk_convert(in, out, &o, e);
}

static void verify_names_the_first_difference(void **state)
{
    char dir[64], out[96], file[128], want[128];
    struct lk_artifact *a;
    struct lk_err e = {0};
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    snprintf(file, sizeof file, "%s/model.safetensors", out);
    convert(DEMO, out, "nvfp4", 0);
    assert_int_equal(verify(DEMO, out, "nvfp4", &e), 0);
    assert_int_equal(verify(DEMO, out, "fp8", &e), LK_EINPUT); /* another recipe is another header */
    assert_non_null(strstr(e.text, "header"));
    int fd = open(file, O_RDWR);
    const char *const names[] = {"layers.3.mlp.down_proj", "layers.0.linear_attn.out_proj"}; /* flipped in this order: the earlier one is named */
    for (int i = 0; i < 2; i++) {
        unsigned char b;
        assert_int_equal(lk_artifact_open(&a, out, &e), 0);
        const struct lk_tensor *t = lk_artifact_find(a, names[i]);
        snprintf(want, sizeof want, "tensor %.*s", (int)(strrchr(t->stored, '.') - t->stored), t->stored);
        struct lk_map m;
        assert_int_equal(lk_map_open(&m, file, &e), 0);
        off_t at = 0; /* the artifact's mapping is another: find the bytes by content of the row */
        for (size_t k = 0; k + 64 < m.size && !at; k += 64)
            if (!memcmp(m.data + k, t->w.data, 64)) at = (off_t)k;
        assert_true(at > 0);
        assert_int_equal(pread(fd, &b, 1, at + 5), 1);
        b ^= 16;
        assert_int_equal(pwrite(fd, &b, 1, at + 5), 1);
        lk_map_close(&m);
        lk_artifact_close(a);
        assert_int_equal(verify(DEMO, out, "nvfp4", &e), LK_EINPUT);
        if (!strstr(e.text, want)) fail_msg("expected %s, found %s", want, e.text);
    }
    close(fd);
    dir_remove(dir);
}

/* 384 MB of weights in a sparse file: the most this process ever held, pages of the mapping included, stays far below. */
static void memory_does_not_grow_with_the_model(void **state)
{
    char dir[64], out[96], path[128];
    int status;
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    snprintf(path, sizeof path, "%s/in", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    text_put(path, "config.json", TINY_CONFIG);
    st_put(path, "model.safetensors", -1,
           "{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[98304,1024],\"data_offsets\":[0,201326592]},"
           "\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[98304,1024],\"data_offsets\":[201326592,402653184]}}", 0);
    snprintf(path, sizeof path, "%s/in/model.safetensors", dir);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size + 402653184), 0);
    snprintf(path, sizeof path, "%s/in", dir);
    pid_t pid = fork();
    if (!pid) { /* a fresh count: VmHWM starts with this process */
        struct lk_convert_opts o = {.recipe = "fp8", .verify = 1};
        struct lk_err e = {0};
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        int rc = lk_convert(path, out, &o, &e);
        getrusage(RUSAGE_SELF, &after);
        long grown = after.ru_maxrss - before.ru_maxrss; /* KB */
        if (rc || grown > 96 << 10) fprintf(stderr, "convert: %s; grew by %ld KB\n", rc ? e.text : "done", grown);
        _exit(rc || grown > 96 << 10);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    dir_remove(dir);
}

/* Every allocation of opening and converting fails once; nothing crashes, leaks (ASan) or stays on disk. */
static void no_memory_is_survived(void **state)
{
    static const char *const paths[] = {LK_SOURCE_DIR "/tests/vectors/artifact/formats", GGUF};
    char dir[64], out[96];
    dir_new(dir);
    snprintf(out, sizeof out, "%s/x", dir);
    for (int p = 0; p < 2; p++)
        for (int convert_too = 0; convert_too < 2; convert_too++)
            for (int64_t n = 1, last = 1; n <= last; n++) {
                struct lk_artifact *a = NULL;
                struct lk_convert_opts o = {.recipe = "nvfp4"};
                struct lk_err e = {0};
                lk_mem_fail_at(n);
                int rc = convert_too ? lk_convert(paths[p], out, &o, &e) : lk_artifact_open(&a, paths[p], &e);
                last = lk_mem_count() > last ? lk_mem_count() : last;
                lk_mem_fail_at(0);
                if (rc && rc != LK_ENOMEM && rc != LK_EINPUT) fail_msg("allocation %d: code %d: %s", (int)n, rc, e.text);
                if (rc) assert_int_equal(entries(dir), 0);
                if (!rc && convert_too) dir_remove(out);
                lk_artifact_close(a);
            }
    dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_give_what_they_promise), cmocka_unit_test(gguf_becomes_huggingface),
        cmocka_unit_test(refusals_leave_nothing),         cmocka_unit_test(write_errors_leave_nothing),
        cmocka_unit_test(a_signal_leaves_nothing),        cmocka_unit_test(verify_names_the_first_difference),
        cmocka_unit_test(memory_does_not_grow_with_the_model), cmocka_unit_test(no_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
