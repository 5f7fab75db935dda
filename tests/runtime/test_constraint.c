/* A rule on the answer: thinking is free until </think> or its budget, the closing message is forced, the answer is held to
 * its schema or call, refused drafts are taken back across all of that; grammars of finished requests serve the next one. */
#include "text/text_files.h"

#include "runtime/constraint.h"

static const int32_t stops[] = {8130, 8128};
static struct lk_tokenizer *tok;
static int vocab;

static int open_all(void **state)
{
    tok = demo_tokenizer();
    vocab = lk_tokenizer_vocab(tok);
    return 0;
}

static int close_all(void **state)
{
    lk_tokenizer_close(tok);
    return 0;
}

static struct lk_grammar build(const struct lk_wire_rule *r, struct lk_rule_pool *pool)
{
    struct lk_grammar g;
    struct lk_err e = {0};
    if (lk_constraint_build(&g, r, tok, stops, 2, pool, &e)) fail_msg("%s", e.text);
    return g;
}

/* The only token allowed, -1: none or several, -2: no constraint. */
static int32_t only(const struct lk_grammar *g)
{
    uint32_t bits[512];
    int32_t id = -1;
    if (!g->mask(g->self, bits, vocab)) return -2;
    for (int32_t i = 0; i < vocab; i++)
        if (bits[i >> 5] >> (i & 31) & 1) {
            if (id >= 0) return -1;
            id = i;
        }
    return id;
}

static struct lk_ids ids_of(const char *text)
{
    struct lk_ids ids = {0};
    struct lk_err e = {0};
    assert_int_equal(lk_tokenizer_encode(tok, text, strlen(text), LK_SPECIALS_ALL, &ids, &e), 0);
    return ids;
}

/* Says the text; the number of its tokens, or -1 where one was refused. */
static int say(const struct lk_grammar *g, const char *text)
{
    struct lk_ids ids = ids_of(text);
    int n = 0;
    while (n < (int)ids.n && !g->accept(g->self, ids.v[n])) n++;
    if (n < (int)ids.n) n = -1;
    lk_ids_free(&ids);
    return n;
}

/* Follows what is forced, as text. */
static void forced(const struct lk_grammar *g, struct lk_buf *out, int *n)
{
    int32_t id;
    lk_buf_reset(out);
    for (*n = 0; (id = only(g)) >= 0; ++*n) {
        assert_int_equal(g->accept(g->self, id), 0);
        lk_tokenizer_decode(tok, &id, 1, 0, out);
    }
}

static void nothing_asked_is_no_grammar(void **state)
{
    const struct lk_wire_rule none = {.budget = -1}, closed = {.budget = 5};
    assert_null(build(&none, NULL).self);
    assert_null(build(&closed, NULL).self); /* no thinking, no budget */
}

static void budget_forces_the_close(void **state)
{
    const struct lk_wire_rule r = {.thinking_open = 1, .budget = 4, .budget_text = " Enough."};
    struct lk_grammar g = build(&r, NULL);
    struct lk_buf text = {0};
    struct lk_ids think = ids_of("one two three four five six");
    int n;
    assert_true(think.n > 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(only(&g), -2);
        assert_int_equal(g.accept(g.self, think.v[i]), 0);
    }
    assert_int_equal(g.accept(g.self, think.v[4]), -1);
    forced(&g, &text, &n);
    assert_string_equal(text.data, " Enough.\n</think>\n\n");
    assert_int_equal(only(&g), -2); /* the answer is free */
    assert_true(say(&g, "anything") > 0);
    /* all of it back, but for two tokens of thinking */
    g.rewind(g.self, n + 1 + 2);
    assert_int_equal(only(&g), -2);
    g.rewind(g.self, 1000);
    for (int i = 0; i < 4; i++) assert_int_equal(g.accept(g.self, think.v[i]), 0);
    forced(&g, &text, &n);
    assert_string_equal(text.data, " Enough.\n</think>\n\n");
    lk_ids_free(&think);
    lk_buf_free(&text);
    g.free(g.self);
}

static void schema_begins_behind_thinking(void **state)
{
    const struct lk_wire_rule r = {.thinking_open = 1, .budget = -1, .schema = "{\"enum\":[\"yes\",\"no\"]}"};
    struct lk_grammar g = build(&r, NULL);
    struct lk_buf text = {0};
    int n;
    assert_int_equal(only(&g), -2);
    assert_true(say(&g, "thinking is free: \"maybe\"") > 0);
    n = say(&g, "</think>");
    assert_int_equal(n, 1);
    forced(&g, &text, &n);
    assert_true(!strncmp(text.data, "\n\n", 2)); /* the template's blank line, then what the schema forces */
    int at = n;
    assert_int_equal(say(&g, "maybe"), -1);
    g.rewind(g.self, at + 1); /* back into the thinking */
    assert_true(say(&g, "maybe") > 0);
    assert_true(say(&g, "</think>\n\n") > 0);
    assert_true(say(&g, "\"no\"") > 0);
    assert_int_equal(g.accept(g.self, stops[0]), 0);
    lk_buf_free(&text);
    g.free(g.self);
}

static void a_call_is_forced(void **state)
{
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":"
                                "{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"mul\"}}]";
    const struct lk_wire_rule any = {.budget = -1, .tools = tools}, named = {.budget = -1, .tools = tools, .tool = "add"},
                              other = {.budget = -1, .tools = tools, .tool = "div"};
    struct lk_grammar g = build(&any, NULL);
    struct lk_err e = {0};
    assert_true(say(&g, "<tool_call>\n<function=mul>\n") > 0);
    g.free(g.self);
    g = build(&named, NULL);
    assert_int_equal(say(&g, "The answer"), -1);
    int n = say(&g, "<tool_call>\n<function=add>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>");
    assert_true(n > 0);
    assert_int_equal(g.accept(g.self, stops[0]), 0);
    g.rewind(g.self, n + 1);
    assert_int_equal(say(&g, "<tool_call>\n<function=mul>\n"), -1);
    g.free(g.self);
    assert_int_equal(lk_constraint_build(&g, &other, tok, stops, 2, NULL, &e), LK_EREQUEST);
    assert_non_null(strstr(e.text, "div"));
}

static void what_cannot_be_built_is_said(void **state)
{
    static const char *const bad[] = {"{", "{\"type\":\"strin\"}", "{\"not\":{}}"};
    for (size_t i = 0; i < 3; i++) {
        const struct lk_wire_rule r = {.budget = -1, .schema = bad[i]};
        struct lk_grammar g;
        struct lk_err e = {0};
        assert_int_equal(lk_constraint_build(&g, &r, tok, stops, 2, NULL, &e), LK_EREQUEST);
        assert_true(*e.text);
    }
    const struct lk_wire_rule any = {.budget = -1, .schema = ""};
    struct lk_grammar g;
    struct lk_err e = {0};
    assert_int_equal(lk_constraint_build(&g, &any, NULL, stops, 2, NULL, &e), LK_EREQUEST);
}

/* A pooled grammar begins anew, and never serves another schema, other stop tokens or another tool. */
static void grammars_are_used_again(void **state)
{
    struct lk_rule_pool *pool = lk_rule_pool_new();
    char schema[40][64];
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 40; i++) { /* more than are kept */
            snprintf(schema[i], sizeof schema[i], "{\"enum\":[\"answer %d\"]}", i % (round == 2 ? 3 : 40));
            const struct lk_wire_rule r = {.budget = -1, .schema = schema[i]};
            struct lk_grammar g = build(&r, pool);
            struct lk_buf text = {0};
            char want[64];
            int n;
            snprintf(want, sizeof want, "\"answer %d\"", i % (round == 2 ? 3 : 40));
            if (i % 4 == 0) assert_true(say(&g, "\"ans") > 0); /* left in the middle */
            if (i % 4 != 0) {
                assert_true(say(&g, want) > 0);
                assert_int_equal(say(&g, "x"), -1);
                assert_int_equal(g.accept(g.self, stops[1]), 0);
            }
            forced(&g, &text, &n);
            lk_buf_free(&text);
            g.free(g.self);
        }
    const struct lk_wire_rule r = {.budget = -1, .schema = schema[0]};
    struct lk_grammar a = build(&r, pool), b = build(&r, pool); /* two at once */
    assert_true(say(&a, "\"answer 0\"") > 0);
    assert_true(say(&b, "\"answer 0\"") > 0);
    a.free(a.self);
    lk_rule_pool_close(pool);
    b.free(b.self); /* late: not kept */
    lk_rule_pool_free(pool);
}

static void no_memory_is_survived(void **state)
{
    const struct lk_wire_rule r = {.thinking_open = 1, .budget = 3, .budget_text = "x", .schema = "{\"pattern\":\"^[a-z]+$\"}"};
    struct lk_rule_pool *pool = lk_rule_pool_new();
    uint32_t bits[512];
    for (int64_t k = 1, n = 1; n >= k; k++) {
        struct lk_grammar g = {0};
        struct lk_err e = {0};
        lk_mem_fail_at(k);
        int rc = lk_constraint_build(&g, &r, tok, stops, 2, k % 2 ? pool : NULL, &e);
        if (!rc && g.self) {
            g.mask(g.self, bits, vocab);
            g.accept(g.self, 300);
        }
        n = lk_mem_count();
        lk_mem_fail_at(0);
        if (rc) assert_true(*e.text);
        if (g.self) g.free(g.self);
    }
    lk_rule_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_asked_is_no_grammar),   cmocka_unit_test(budget_forces_the_close),
        cmocka_unit_test(schema_begins_behind_thinking), cmocka_unit_test(a_call_is_forced),
        cmocka_unit_test(what_cannot_be_built_is_said),  cmocka_unit_test(grammars_are_used_again),
        cmocka_unit_test(no_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
