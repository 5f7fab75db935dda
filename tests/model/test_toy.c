/* Every weight format at the head counts of the 0.8B and the 27B: logits and MTP logits of random models against those that
 * transformers gives on the de-quantised weights (tests/reference/toy.py, stored in tests/vectors/model/toy.f32). */
#include "model/rig.h"
#include "model/toy.h"

#define STORED LK_SOURCE_DIR "/tests/vectors/model/toy.f32"
/* f32 sums of 256 to 6,144 terms in another order: measured 6e-6 */
#define TOLERANCE 5e-5

static void logits_equal_the_reference(void **state)
{
    size_t rows = 2 * TOY_TOKENS - 1, each = rows * TOY_VOCAB;
    struct lk_map stored;
    struct lk_err e = {0};
    int32_t ids[TOY_TOKENS];
    double worst = 0;
    if (lk_map_open(&stored, STORED, &e)) fail_msg("%s", e.text);
    assert_int_equal(stored.size, TOYS * each * 4);
    for (int i = 0; i < TOY_TOKENS; i++) ids[i] = toy_id(i);
    for (int i = 0; i < TOYS; i++) {
        struct rig r;
        struct kept k;
        const char *dir = toy_write(toys + i);
        const float *want = (const float *)stored.data + (size_t)i * each;
        rig_open(&r, dir, &(struct rig_opts){.tokens = 64});
        toy_remove(dir);
        kept_run(&k, &r, ids, TOY_TOKENS, 0, 1);
        double gap = rig_gap(k.logits, want, TOY_TOKENS * TOY_VOCAB);
        double draft = rig_gap(k.mtp, want + TOY_TOKENS * TOY_VOCAB, (TOY_TOKENS - 1) * TOY_VOCAB);
        if (gap > worst) worst = gap;
        if (draft > worst) worst = draft;
        if (gap > TOLERANCE || draft > TOLERANCE)
            fail_msg("%s: logits differ by %.2e, MTP logits by %.2e, allowed %.0e", toys[i].name, gap, draft, TOLERANCE);
        kept_free(&k);
        rig_close(&r);
    }
    printf("%d models: %.0f %% of the tolerance used\n", TOYS, 100 * worst / TOLERANCE);
    lk_map_close(&stored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_equal_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
