/* Allocation n fails, for every n over opening an artifact, device, model and state and scoring a prompt: a clear error each time,
 * nothing lost (the sanitizer run proves it), and no allocation at all inside a step. */
#include "model/rig.h"
#include "model/toy.h"

static const struct toy small = {"small", 128, 128, TOY_VOCAB, "gf", 2, 1, 2, 4, 0, TOY_FP8_CHANNEL, TOY_NVFP4_CT, TOY_INT8, TOY_BF16};
static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};

static int score_once(struct rig *r, struct lk_err *e)
{
    const struct lk_score_sink sink = {0};
    double nll;
    return lk_score_run(r->c, ids, 8, &sink, &nll, e);
}

static void every_failed_allocation_is_an_error(void **state)
{
    char dir[64];
    int64_t n = 1;
    snprintf(dir, sizeof dir, "%s", toy_write(&small));
    for (;; n++) {
        struct rig r;
        struct lk_err e = {0};
        lk_mem_fail_at(n);
        int rc = rig_try(&r, dir, &(struct rig_opts){.tokens = 64, .chunk = 16, .record = 4}, &e);
        if (!rc) rc = score_once(&r, &e);
        int64_t counted = lk_mem_count();
        lk_mem_fail_at(0);
        rig_close(&r);
        if (!rc && counted < n) break;
        if (!rc) fail_msg("allocation %lld of %lld failed unseen", (long long)n, (long long)counted);
        if (!e.text[0]) fail_msg("allocation %lld failed with code %d and no reason", (long long)n, rc);
    }
    printf("%lld allocations failed one by one\n", (long long)(n - 1));
    toy_remove(dir);
}

static void a_step_allocates_nothing(void **state)
{
    struct rig r;
    struct line l;
    struct lk_err e = {0};
    int32_t best[8], top[8 * 4], keep = 2, rows[1] = {0}, hidden[4] = {0, 1, 2, 3};
    float vals[8 * 4], lse[8], one[1] = {1};
    const char *dir = toy_write(&small);
    rig_open(&r, dir, &(struct rig_opts){.tokens = 64, .chunk = 16, .record = 8, .slots = 2});
    toy_remove(dir);
    line_open(&l, &r);
    line_reach(&l, 64);
    lk_mem_fail_at(0); /* counts from here */
    line_step(&l, ids, 8, LK_STEP_LOGITS);
    line_step(&l, ids, 4, LK_STEP_ARGMAX | LK_STEP_RECORD);
    int rc = lk_model_argmax(r.m, best, &e);
    if (!rc) rc = lk_model_fold(r.m, r.s, &keep, 1, &e);
    if (!rc) rc = lk_model_edit(r.m, 1, rows, ids, one, one, &e);
    if (!rc) rc = lk_model_topk(r.m, 4, top, vals, lse, &e);
    const struct lk_lane lane = {.rows = 4, .pos0 = 8, .slot = l.slot};
    const struct lk_mtp_step st = {.flags = LK_STEP_ARGMAX, .n_rows = 4, .n_lanes = 1, .n_pages = l.n_pages, .n_logits = 1,
                                   .ids = ids, .hidden_rows = hidden, .lanes = &lane, .pages = l.pages, .logit_rows = rows};
    if (!rc) rc = lk_model_mtp(r.m, r.s, &st, &e);
    if (!rc) rc = lk_model_argmax(r.m, best, &e);
    lk_state_slot_copy(r.s, 1 - l.slot, l.slot);
    assert_int_equal(lk_mem_count(), 0);
    assert_int_equal(rc, 0);
    line_close(&l);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_allocation_is_an_error), cmocka_unit_test(a_step_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
