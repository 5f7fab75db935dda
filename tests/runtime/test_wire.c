/* The wire: what goes in comes out, and no cut or damaged message is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "runtime/wire.h"

#include <string.h>

static const int32_t ids[] = {1, 2, 3, 70000};
static const char *const stops[] = {"a", "", "\xc3\xa9"};
static const struct lk_bias bias[] = {{5, -100.0f}, {6, 2.5f}};

static void put_submit(struct lk_buf *b)
{
    const struct lk_wire_submit s = {
        .id = 0x123456789abcdefull,
        .r = {.ids = ids, .n_ids = 4, .max_tokens = 7, .stops = stops, .n_stops = 3, .stop_ids = ids, .n_stop_ids = 1, .logprobs = 3,
              .draft = -2, .deadline = 1.5, .sampling = {.temp = 0.5f, .top_k = 20, .seed = 9, .bias = bias, .n_bias = 2}},
        .rule = {.thinking_open = 1, .budget = 12, .budget_text = "so", .schema = "", .tools = "[1]", .tool = NULL},
    };
    assert_int_equal(lk_wire_put_submit(b, &s), 0);
}

static void submit_is_the_same(void **state)
{
    struct lk_buf b = {0};
    struct lk_arena a = {0};
    struct lk_wire_submit s;
    enum lk_wire_kind kind;
    uint32_t bytes;
    put_submit(&b);
    assert_int_equal(lk_wire_head(b.data, &bytes, &kind), 0);
    assert_int_equal(kind, LK_WIRE_SUBMIT);
    assert_int_equal(bytes + LK_WIRE_HEAD, b.len);
    assert_int_equal(lk_wire_get_submit(&a, b.data + LK_WIRE_HEAD, bytes, &s), 0);
    assert_true(s.id == 0x123456789abcdefull && s.r.n_ids == 4 && !memcmp(s.r.ids, ids, sizeof ids));
    assert_true(s.r.n_stops == 3 && !strcmp(s.r.stops[1], "") && !strcmp(s.r.stops[2], "\xc3\xa9"));
    assert_true(s.r.sampling.temp == 0.5f && s.r.sampling.n_bias == 2 && s.r.sampling.bias[0].add == -100.0f);
    assert_true(s.r.sampling.seed == 9 && s.r.deadline == 1.5 && s.r.draft == -2 && s.r.logprobs == 3);
    assert_true(s.rule.budget == 12 && !strcmp(s.rule.budget_text, "so") && !strcmp(s.rule.schema, ""));
    assert_true(!strcmp(s.rule.tools, "[1]") && s.rule.tool == NULL && s.r.session == NULL);
    lk_arena_free(&a);
    lk_buf_free(&b);
}

static void event_is_the_same(void **state)
{
    struct lk_logprob lp[2] = {{.lp = -1, .n_top = 2, .top_ids = {4, 5}}, {.lp = -2}};
    const struct lk_event in = {.kind = LK_EV_TOKENS, .id = 5, .n_tokens = 2, .tokens = ids, .logprobs = lp, .t = {.rounds = 3}, .text = "x"};
    struct lk_buf b = {0};
    struct lk_arena a = {0};
    struct lk_event ev;
    assert_int_equal(lk_wire_put_event(&b, &in), 0);
    assert_int_equal(lk_wire_get_event(&a, b.data + LK_WIRE_HEAD, b.len - LK_WIRE_HEAD, &ev), 0);
    assert_true(ev.kind == LK_EV_TOKENS && ev.id == 5 && ev.n_tokens == 2 && ev.tokens[1] == 2 && ev.t.rounds == 3);
    assert_true(ev.logprobs[0].top_ids[1] == 5 && ev.logprobs[1].lp == -2 && !strcmp(ev.text, "x"));
    lk_arena_free(&a);
    lk_buf_free(&b);
}

static void cut_messages_are_refused(void **state)
{
    struct lk_buf b = {0};
    put_submit(&b);
    for (size_t n = 0; n < b.len - LK_WIRE_HEAD; n++) {
        struct lk_arena a = {0};
        struct lk_wire_submit s;
        assert_int_equal(lk_wire_get_submit(&a, b.data + LK_WIRE_HEAD, n, &s), LK_EINPUT);
        lk_arena_free(&a);
    }
    lk_buf_free(&b);
}

static void counts_are_not_believed(void **state)
{
    struct lk_buf b = {0};
    put_submit(&b);
    for (size_t at = 0; at + 4 <= b.len - LK_WIRE_HEAD; at++) {
        static const int32_t wild[] = {-1, -2, 0x7fffffff, 1 << 20};
        for (size_t k = 0; k < 4; k++) {
            struct lk_arena a = {0};
            struct lk_wire_submit s;
            char keep[4], *p = b.data + LK_WIRE_HEAD + at;
            memcpy(keep, p, 4);
            memcpy(p, &wild[k], 4);
            lk_wire_get_submit(&a, b.data + LK_WIRE_HEAD, b.len - LK_WIRE_HEAD, &s);
            assert_true(a.total < 1 << 20); /* nothing is allocated by a number alone */
            memcpy(p, keep, 4);
            lk_arena_free(&a);
        }
    }
    lk_buf_free(&b);
}

static void heads(void **state)
{
    enum lk_wire_kind kind;
    uint32_t bytes, head[2] = {LK_WIRE_MAX + 1, LK_WIRE_BEAT};
    assert_int_equal(lk_wire_head(head, &bytes, &kind), LK_EINPUT);
    head[0] = 4;
    head[1] = 0;
    assert_int_equal(lk_wire_head(head, &bytes, &kind), LK_EINPUT);
    head[1] = LK_WIRE_EVENT + 1;
    assert_int_equal(lk_wire_head(head, &bytes, &kind), LK_EINPUT);
    head[1] = LK_WIRE_EVENT;
    assert_int_equal(lk_wire_head(head, &bytes, &kind), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(submit_is_the_same), cmocka_unit_test(event_is_the_same),
                                       cmocka_unit_test(cut_messages_are_refused), cmocka_unit_test(counts_are_not_believed),
                                       cmocka_unit_test(heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
