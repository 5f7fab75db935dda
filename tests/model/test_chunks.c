/* Cutting a prompt changes nothing: split at every point of 200 tokens and at chunk sizes 1, 63, 64, 65, 512, the logits of
 * the last rows agree to 1e-4 and the greedy ids after them are the same. On the master where it is, else on a toy. */
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
        line_step(&l, ids + l.at, last, LK_STEP_LOGITS);
    }
    if (lk_model_logits(r.m, last - 1, logits, &e)) fail_msg("%s", e.text);
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
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) worst = fmax(worst, compare(0, chunks[i]));
    printf("5 chunk sizes: logits within %.1e\n", worst);
}

static int open_all(void **state)
{
    int master = lk_file_exists(MASTER) == 2;
    const char *dir = master ? MASTER : toy_write(toys);
    if (!master) printf("no BF16 master at %s: the same on a random model\n", MASTER);
    rig_open(&r, dir, &(struct rig_opts){.tokens = 256, .chunk = 512, .threads = lk_cores()});
    if (!master) toy_remove(dir);
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + 11) % (r.vocab - 64);
    want = rig_floats((size_t)r.vocab);
    run(0, TOKENS, want, want_ids);
    return 0;
}

static int close_all(void **state)
{
    free(want);
    rig_close(&r);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_chunk_size_agrees), cmocka_unit_test(every_split_agrees)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
