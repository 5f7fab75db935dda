/* The BF16 master against transformers: logits at every position, every hidden layer, MTP logits, greedy continuations and
 * held-out likelihood, as stored in golden/ beside the master. Skips with one line where the master is absent. */
#include "model/rig.h"

#include <jansson.h>

#define GOLDEN LK_SHARED_DIR "/golden"

struct golden {
    json_t *json, *head;
    struct lk_map map;
    const unsigned char *data;
};

static struct golden g;
static struct rig r;

static int32_t *ids_of(const json_t *a, int *n)
{
    *n = (int)json_array_size(a);
    int32_t *ids = calloc((size_t)*n, sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
    return ids;
}

static const float *tensor(const char *prompt, const char *what, size_t floats)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", prompt, what);
    const json_t *t = json_object_get(g.head, name);
    if (!t) return NULL;
    const json_t *o = json_object_get(t, "data_offsets");
    size_t a = (size_t)json_integer_value(json_array_get(o, 0)), b = (size_t)json_integer_value(json_array_get(o, 1));
    assert_int_equal(b - a, floats * 4);
    return (const float *)(g.data + a);
}

/* Largest difference over the largest value of the layer. */
static double relative(const float *a, const float *b, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++) top = fmax(top, fabs((double)b[i]));
    return rig_gap(a, b, n) / top;
}

static void check_prompt(const char *name, const json_t *p)
{
    int n, n_greedy;
    int32_t *ids = ids_of(json_object_get(p, "ids"), &n), *greedy = ids_of(json_object_get(p, "greedy"), &n_greedy);
    struct kept k;
    kept_run(&k, &r, ids, n, 1, 1);
    size_t logits = (size_t)n * (size_t)r.vocab, row = (size_t)n * (size_t)r.hidden;
    const float *want = tensor(name, "logits", logits);
    assert_non_null(want);
    double gap = rig_gap(k.logits, want, logits), layer = 0, mtp = 0;
    for (int i = 0; i <= r.layers; i++) {
        char what[32];
        snprintf(what, sizeof what, "hidden.%d", i);
        const float *h = tensor(name, what, row);
        if (h) layer = fmax(layer, relative(k.hidden + (size_t)i * row, h, row));
    }
    const float *m = tensor(name, "mtp_logits", (size_t)(n - 1) * (size_t)r.vocab);
    if (m) mtp = rig_gap(k.mtp, m, (size_t)(n - 1) * (size_t)r.vocab);
    printf("prompt %s: logits %.1e of 2e-3, hidden %.1e of 1e-3, MTP %.1e of 2e-3\n", name, gap, layer, mtp);
    assert_true(gap <= 2e-3 && layer <= 1e-3 && mtp <= 2e-3);

    struct line l;
    int32_t out[256];
    line_open(&l, &r);
    assert_true(n_greedy <= 256);
    int made = line_greedy(&l, ids, n, 64, out, n_greedy, -1);
    assert_int_equal(made, n_greedy);
    assert_memory_equal(out, greedy, (size_t)n_greedy * sizeof *out);
    line_close(&l);
    kept_free(&k);
    free(ids);
    free(greedy);
}

static void prompts_equal_transformers(void **state)
{
    const char *name;
    json_t *p;
    if (!g.json) skip();
    json_object_foreach(json_object_get(g.json, "prompts"), name, p) check_prompt(name, p);
}

/* Rows of 1,024 tokens, the first of a row not scored. */
static void held_out_likelihood_equals_transformers(void **state)
{
    const char *name;
    json_t *p;
    const struct lk_score_sink sink = {0};
    if (!g.json) skip();
    json_object_foreach(json_object_get(g.json, "heldout"), name, p) {
        int n;
        int32_t *ids = ids_of(json_object_get(p, "ids"), &n);
        double sum = 0, want = json_real_value(json_object_get(p, "nll"));
        for (int at = 0; at < n; at += 1024) {
            double nll;
            struct lk_err e = {0};
            if (lk_score_run(r.c, ids + at, n - at < 1024 ? n - at : 1024, &sink, &nll, &e)) fail_msg("%s", e.text);
            sum += nll;
        }
        double gap = fabs(sum - want) / want;
        printf("held-out %s: nll %.4f, reference %.4f, relative %.1e of 1e-4\n", name, sum, want, gap);
        assert_true(gap <= 1e-4);
        free(ids);
    }
}

static int open_all(void **state)
{
    json_error_t je;
    struct lk_err e = {0};
    if (lk_file_exists(MASTER) != 2) {
        printf("skipped: no BF16 master at %s\n", MASTER);
        return 0;
    }
    g.json = json_load_file(GOLDEN "/demo.json", 0, &je);
    if (!g.json || lk_map_open(&g.map, GOLDEN "/demo.safetensors", &e)) return -1;
    uint64_t head;
    memcpy(&head, g.map.data, 8);
    if (head > g.map.size - 8) return -1;
    g.head = json_loadb((const char *)g.map.data + 8, head, 0, &je);
    g.data = g.map.data + 8 + head;
    if (!g.head) return -1;
    rig_open(&r, MASTER, &(struct rig_opts){.tokens = 1024, .chunk = 512, .threads = lk_cores()});
    return 0;
}

static int close_all(void **state)
{
    rig_close(&r);
    json_decref(g.json);
    json_decref(g.head);
    lk_map_close(&g.map);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_equal_transformers),
        cmocka_unit_test(held_out_likelihood_equals_transformers),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
