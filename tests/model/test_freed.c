/* A page or a slot that is used after it was given back shows: debug builds fill it with NaN, so every logit is NaN and no token can be
 * chosen. For INT8, BF16 and F32 pages. A release build has no poison and says so. */
#include "model/rig.h"
#include "model/toy.h"

#ifdef LK_DEBUG
static const struct toy small = {"small", 128, 128, TOY_VOCAB, "gf", 2, 1, 2, 4, 1, TOY_BF16, TOY_BF16, TOY_BF16, TOY_BF16};
static int32_t ids[80];

/* Logits after 70 tokens (two pages, one of them whole) and one more; give: 0 nothing, 1 a page, 2 the slot given back in between. */
static void go(struct rig *r, int give, float *row, int32_t *best)
{
    struct line l;
    struct lk_err e = {0};
    line_open(&l, r);
    line_step(&l, ids, 64, 0);
    line_step(&l, ids + 64, 6, LK_STEP_LOGITS);
    if (give == 1) lk_state_page_unref(r->s, l.pages[0]);
    if (give == 2) lk_state_slot_free(r->s, l.slot);
    line_step(&l, ids + 70, 1, LK_STEP_LOGITS | LK_STEP_ARGMAX);
    assert_int_equal(lk_model_logits(r->m, 0, row, &e), 0);
    assert_int_equal(lk_model_argmax(r->m, best, &e), 0);
    if (give == 1) lk_state_page_unref(r->s, l.pages[--l.n_pages]);
    else line_close(&l);
    if (give == 1) lk_state_slot_free(r->s, l.slot);
}

static void what_was_given_back_is_nan(void **state)
{
    static const enum lk_kv_kind kinds[] = {LK_KV_I8, LK_KV_BF16, LK_KV_F32};
    float right[TOY_VOCAB], row[TOY_VOCAB];
    int32_t best;
    char dir[64];
    for (int i = 0; i < 80; i++) ids[i] = toy_id(i);
    snprintf(dir, sizeof dir, "%s", toy_write(&small));
    for (int k = 0; k < 3; k++) {
        struct rig r;
        rig_open(&r, dir, &(struct rig_opts){.tokens = 192, .chunk = 64, .slots = 2, .kv = kinds[k], .i8 = kinds[k] == LK_KV_I8});
        go(&r, 0, right, &best);
        assert_true(best >= 0 && best < TOY_VOCAB);
        for (int give = 1; give <= 2; give++) {
            go(&r, give, row, &best);
            for (int i = 0; i < TOY_VOCAB; i++) assert_true(row[i] != row[i]);
            assert_true(best < 0 || best >= TOY_VOCAB);
            go(&r, 0, row, &best); /* and nothing of it stays behind */
            assert_memory_equal(row, right, sizeof row);
        }
        rig_close(&r);
    }
    toy_remove(dir);
}
#else
static void what_was_given_back_is_nan(void **state)
{
    printf("skipped: a release build does not poison; make asan runs this\n");
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_given_back_is_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
