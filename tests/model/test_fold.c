/* Speculation's promise about state: a recorded step leaves KV rows behind but no GDN state; folding any accepted prefix gives the
 * very bits of one-by-one decode, and its logits are those of one-by-one decode too. Slots and pages copy and travel whole. */
#include "model/rig.h"
#include "model/toy.h"

#define PROMPT 70 /* past one page */
#define ROWS   8

static struct rig r;
static int32_t ids[PROMPT + ROWS];

static void *slot_bytes(int32_t slot)
{
    struct lk_err e = {0};
    void *p = malloc(lk_state_slot_bytes(r.s));
    assert_non_null(p);
    assert_int_equal(lk_state_slot_get(r.s, slot, p, &e), 0);
    return p;
}

static float *logits_now(int n)
{
    struct lk_err e = {0};
    float *x = rig_floats((size_t)n * (size_t)r.vocab);
    for (int i = 0; i < n; i++)
        if (lk_model_logits(r.m, i, x + (size_t)i * (size_t)r.vocab, &e)) fail_msg("%s", e.text);
    return x;
}

static void fold(struct line *l, int32_t keep)
{
    struct lk_err e = {0};
    if (lk_model_fold(r.m, r.s, &keep, 1, &e)) fail_msg("%s", e.text);
    l->at += keep;
}

static void line_rewind(struct line *l, const void *slot)
{
    lk_state_slot_put(r.s, l->slot, slot);
    l->at = PROMPT;
}

static void fold_of_any_prefix_equals_decode(void **state)
{
    struct line l;
    size_t bytes = lk_state_slot_bytes(r.s);
    float *single[ROWS];
    void *after[ROWS + 1];
    line_open(&l, &r);
    line_step(&l, ids, PROMPT, 0);
    after[0] = slot_bytes(l.slot);
    for (int i = 0; i < ROWS; i++) {
        line_step(&l, ids + PROMPT + i, 1, LK_STEP_LOGITS);
        single[i] = logits_now(1);
        after[i + 1] = slot_bytes(l.slot);
    }
    for (int keep = 0; keep <= ROWS; keep++) {
        line_rewind(&l, after[0]);
        line_step(&l, ids + PROMPT, ROWS, LK_STEP_LOGITS | LK_STEP_RECORD);
        float *all = logits_now(ROWS);
        for (int i = 0; i < ROWS; i++)
            assert_memory_equal(all + (size_t)i * (size_t)r.vocab, single[i], (size_t)r.vocab * 4);
        void *before = slot_bytes(l.slot);
        assert_memory_equal(before, after[0], bytes); /* not advanced yet */
        fold(&l, keep);
        void *folded = slot_bytes(l.slot);
        assert_memory_equal(folded, after[keep], bytes);
        free(before);
        free(folded);
        free(all);
    }
    for (int i = 0; i < ROWS; i++) free(single[i]), free(after[i]);
    free(after[ROWS]);
    line_close(&l);
}

/* After a fold of part of the rows, decode goes on as if the rest had never been seen: their KV is overwritten. */
static void decode_after_a_rejected_tail_is_clean(void **state)
{
    struct line l;
    int32_t keep = 3, wrong[ROWS];
    line_open(&l, &r);
    line_step(&l, ids, PROMPT, 0);
    void *start = slot_bytes(l.slot);
    for (int i = 0; i <= keep; i++) line_step(&l, ids + PROMPT + i, 1, LK_STEP_LOGITS);
    float *want = logits_now(1);
    line_rewind(&l, start);
    for (int i = 0; i < ROWS; i++) wrong[i] = i < keep ? ids[PROMPT + i] : (ids[PROMPT + i] + 5) % r.vocab;
    line_step(&l, wrong, ROWS, LK_STEP_LOGITS | LK_STEP_RECORD);
    fold(&l, keep);
    line_step(&l, ids + PROMPT + keep, 1, LK_STEP_LOGITS);
    float *got = logits_now(1);
    assert_memory_equal(got, want, (size_t)r.vocab * 4);
    free(start);
    free(want);
    free(got);
    line_close(&l);
}

/* Two lanes in one step give each the bits of being alone. */
static void lanes_do_not_touch_each_other(void **state)
{
    struct line a, b;
    struct lk_err e = {0};
    line_open(&a, &r);
    line_step(&a, ids, 40, 0);
    line_step(&a, ids + 40, 2, LK_STEP_LOGITS);
    float *alone_a = logits_now(2);
    line_close(&a);
    line_open(&b, &r);
    line_step(&b, ids + 7, 65, 0);
    line_step(&b, ids + 3, 3, LK_STEP_LOGITS);
    float *alone_b = logits_now(3);
    line_close(&b);
    line_open(&a, &r);
    line_open(&b, &r);
    line_step(&b, ids + 7, 65, 0);
    line_step(&a, ids, 40, 0);
    line_reach(&a, 42);
    line_reach(&b, 68);
    int32_t pages[8], rows[5] = {0, 1, 2, 3, 4}, step_ids[5];
    memcpy(pages, b.pages, sizeof *pages * (size_t)b.n_pages);
    memcpy(pages + b.n_pages, a.pages, sizeof *pages * (size_t)a.n_pages);
    memcpy(step_ids, ids + 3, 3 * sizeof *ids);
    memcpy(step_ids + 3, ids + 40, 2 * sizeof *ids);
    const struct lk_lane lanes[2] = {{.row0 = 0, .rows = 3, .pos0 = 65, .page0 = 0, .slot = b.slot},
                                     {.row0 = 3, .rows = 2, .pos0 = 40, .page0 = b.n_pages, .slot = a.slot}};
    const struct lk_step st = {.flags = LK_STEP_LOGITS, .n_rows = 5, .n_lanes = 2, .n_pages = a.n_pages + b.n_pages,
                               .n_logits = 5, .ids = step_ids, .lanes = lanes, .pages = pages, .logit_rows = rows};
    if (lk_model_step(r.m, r.s, &st, &e)) fail_msg("%s", e.text);
    float *both = logits_now(5);
    assert_memory_equal(both, alone_b, 3 * (size_t)r.vocab * 4);
    assert_memory_equal(both + 3 * r.vocab, alone_a, 2 * (size_t)r.vocab * 4);
    free(alone_a);
    free(alone_b);
    free(both);
    line_close(&a);
    line_close(&b);
}

/* A sequence saved page by page and slot by slot, loaded elsewhere, goes on with the same bits. */
static void state_travels(void **state)
{
    struct line a, b;
    struct lk_err e = {0};
    line_open(&a, &r);
    line_step(&a, ids, PROMPT, 0);
    line_open(&b, &r);
    line_reach(&b, PROMPT);
    void *page = malloc(lk_state_page_bytes(r.s)), *slot = slot_bytes(a.slot);
    for (int i = 0; i < a.n_pages; i++) {
        assert_int_equal(lk_state_page_get(r.s, a.pages[i], page, &e), 0);
        if (i) lk_state_page_put(r.s, b.pages[i], page);
    }
    lk_state_page_copy(r.s, b.pages[0], a.pages[0]);
    lk_state_slot_put(r.s, b.slot, slot);
    b.at = PROMPT;
    line_step(&a, ids + PROMPT, 1, LK_STEP_LOGITS);
    float *want = logits_now(1);
    line_step(&b, ids + PROMPT, 1, LK_STEP_LOGITS);
    float *got = logits_now(1);
    assert_memory_equal(got, want, (size_t)r.vocab * 4);
    free(want);
    free(got);
    free(page);
    free(slot);
    line_close(&a);
    line_close(&b);
}

static void pages_are_counted(void **state)
{
    int32_t a, b, slot;
    int all = lk_state_pages_free(r.s);
    assert_int_equal(lk_state_page_alloc(r.s, &a), 0);
    lk_state_page_ref(r.s, a);
    lk_state_page_unref(r.s, a);
    assert_int_equal(lk_state_page_refs(r.s, a), 1);
    assert_int_equal(lk_state_pages_free(r.s), all - 1);
    for (int i = 0; i < all - 1; i++) assert_int_equal(lk_state_page_alloc(r.s, &b), 0);
    assert_int_equal(lk_state_page_alloc(r.s, &b), LK_EBUSY);
    lk_state_page_unref(r.s, a);
    assert_int_equal(lk_state_page_alloc(r.s, &b), 0);
    assert_int_equal(b, a);
    for (int i = 0; i < all; i++) lk_state_page_unref(r.s, i);
    assert_int_equal(lk_state_pages_free(r.s), all);
    for (int i = 0; i < 3; i++) assert_int_equal(lk_state_slot_alloc(r.s, &slot), 0);
    assert_int_equal(lk_state_slot_alloc(r.s, &slot), LK_EBUSY);
    for (int i = 0; i < 3; i++) lk_state_slot_free(r.s, i);
}

/* Bad work lists are a request's fault, not a crash. */
static void bad_steps_are_refused(void **state)
{
    struct line l;
    int32_t bad_id = r.vocab, id = 1, page = 9999, row = 0;
    line_open(&l, &r);
    line_reach(&l, 1);
    struct lk_lane lane = {.rows = 1, .slot = l.slot};
    const struct lk_step good = {.flags = LK_STEP_LOGITS, .n_rows = 1, .n_lanes = 1, .n_pages = 1, .n_logits = 1,
                                 .ids = &id, .lanes = &lane, .pages = l.pages, .logit_rows = &row};
    for (int i = 0; i < 8; i++) {
        struct lk_step st = good;
        struct lk_lane ln = lane;
        struct lk_err e = {0};
        int32_t bad_row = 1;
        st.lanes = &ln;
        if (i == 0) st.ids = &bad_id;
        if (i == 1) st.pages = &page;
        if (i == 2) st.logit_rows = &bad_row;
        if (i == 3) ln.pos0 = LK_PAGE; /* no page there */
        if (i == 4) ln.pos0 = 1 << 30;
        if (i == 5) ln.slot = 99;
        if (i == 6) ln.rows = 2;
        if (i == 7) st.n_rows = 1 << 20;
        assert_int_equal(lk_model_step(r.m, r.s, &st, &e), LK_EREQUEST);
        assert_true(e.text[0]);
    }
    line_close(&l);
}

static int open_all(void **state)
{
    for (int i = 0; i < PROMPT + ROWS; i++) ids[i] = toy_id(i);
    const char *dir = toy_write(&toys[6]);
    rig_open(&r, dir, &(struct rig_opts){.tokens = 128, .chunk = 128, .slots = 3, .record = 16, .lanes = 2});
    toy_remove(dir);
    return 0;
}

static int close_all(void **state)
{
    rig_close(&r);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fold_of_any_prefix_equals_decode), cmocka_unit_test(decode_after_a_rejected_tail_is_clean),
        cmocka_unit_test(lanes_do_not_touch_each_other),    cmocka_unit_test(state_travels),
        cmocka_unit_test(pages_are_counted),                cmocka_unit_test(bad_steps_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
