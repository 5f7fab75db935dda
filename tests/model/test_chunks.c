/* Cutting a prompt changes nothing: split at every point of 200 tokens and at chunk sizes 1, 63, 64, 65, 512, the logits of
 * the last rows agree to 1e-4 and the greedy ids after them are the same. Every split on a toy; on the master, where it is, those at edges. */
#include "model/rig.h"
#include "model/toy.h"

#define TOKENS 200
#define GREEDY 8
#define TOLERANCE 1e-4

static struct rig r;
static int32_t ids[TOKENS];
static float *want;
static int32_t want_ids[GREEDY];

/* Reads the prompt in pieces [0, first), then `chunk` at a time; then goes on greedily. */
static void run(int first, int chunk, float *logits, int32_t *greedy)
{
    struct line l;
    struct lk_err e = {0};
    int last = 0;
    line_open(&l, &r);
    while (l.at < TOKENS) {
        int n = l.at == 0 && first ? first : chunk;
        last = TOKENS - l.at < n ? TOKENS - l.at : n;
        line_step(&l, ids + l.at, last, 0);
    }
    int32_t row = last - 1;
    if (lk_model_head(r.m, 1, &row, 0, &e) || lk_model_logits(r.m, 0, logits, &e)) fail_msg("%s", e.text);
    greedy[0] = rig_best(logits, r.vocab);
    for (int i = 1; i < GREEDY; i++) {
        line_step(&l, greedy + i - 1, 1, LK_STEP_ARGMAX);
        if (lk_model_argmax(r.m, greedy + i, &e)) fail_msg("%s", e.text);
    }
    line_close(&l);
}

static double compare(int first, int chunk)
{
    int32_t greedy[GREEDY];
    float *got = rig_floats((size_t)r.vocab);
    run(first, chunk, got, greedy);
    double gap = rig_gap(got, want, (size_t)r.vocab);
    if (gap > TOLERANCE || memcmp(greedy, want_ids, sizeof greedy))
        fail_msg("first piece %d, then %d: logits differ by %.1e, greedy ids %s", first, chunk, gap,
                 memcmp(greedy, want_ids, sizeof greedy) ? "too" : "do not");
    free(got);
    return gap;
}

static void every_split_agrees(void **state)
{
    double worst = 0;
    for (int at = 1; at < TOKENS; at++) worst = fmax(worst, compare(at, TOKENS));
    printf("199 splits: logits within %.1e\n", worst);
}

static void every_chunk_size_agrees(void **state)
{
    const int chunks[] = {1, 63, 64, 65, 512};
    double worst = 0;
    if (!r.m) skip();
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) worst = fmax(worst, compare(0, chunks[i]));
    printf("5 chunk sizes: logits within %.1e\n", worst);
}

/* The master is 16 times the toy: splits around what the ops treat differently. */
static void splits_at_edges_agree(void **state)
{
    const int at[] = {1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 183, 184, 197, 198, 199};
    double worst = 0;
    if (!r.m) skip();
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) worst = fmax(worst, compare(at[i], TOKENS));
    printf("19 splits: logits within %.1e\n", worst);
}

static int open_model(const char *dir)
{
    rig_open(&r, dir, &(struct rig_opts){.tokens = 256, .chunk = 512, .threads = lk_cores()});
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + 11) % (r.vocab - 64);
    want = rig_floats((size_t)r.vocab);
    run(0, TOKENS, want, want_ids);
    return 0;
}

static int open_toy(void **state)
{
    static const struct toy small = {"chunks", 128, 128, TOY_VOCAB, "gf", 2, 1, 2, 4, 1, TOY_BF16, TOY_BF16, TOY_BF16, TOY_BF16};
    const char *dir = toy_write(&small);
    open_model(dir);
    toy_remove(dir);
    return 0;
}

static int open_master(void **state)
{
    if (lk_file_exists(MASTER) == 2) return open_model(MASTER);
    printf("skipped: no BF16 master at %s\n", MASTER);
    return 0;
}

static int close_all(void **state)
{
    free(want);
    want = NULL;
    rig_close(&r);
    return 0;
}

int main(void)
{
    const struct CMUnitTest toy[] = {cmocka_unit_test(every_chunk_size_agrees), cmocka_unit_test(every_split_agrees)};
    const struct CMUnitTest master[] = {cmocka_unit_test(every_chunk_size_agrees), cmocka_unit_test(splits_at_edges_agree)};
    int failed = cmocka_run_group_tests_name("toy", toy, open_toy, close_all);
    return failed + cmocka_run_group_tests_name("master", master, open_master, close_all);
}
