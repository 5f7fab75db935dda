/* Chat rendering against jinja2 (tests/reference/chat.py and the 27 hand-made cases), and tokens of
 * rendered prompts: equal to the whole text's where nobody tries, never a control token out of a
 * message where somebody does. */
#include "text_files.h"

#include "text/chat.h"
#include "text/pyjson.h"

static const enum lk_dialect dialects[] = {LK_QWEN3_5, LK_QWEN3_6, LK_QWEN3_8};

static json_t *parse(const char *s, size_t n)
{
    struct lk_err e = {0};
    json_t *j = lk_json_parse(s, n, &e);
    if (!j) fail_msg("%s in %.*s", e.text, (int)n, s);
    return j;
}

/* Renders and compares with want: a string, or {"error": text}. */
static void render_check(enum lk_dialect d, const json_t *messages, const json_t *tools,
                         const json_t *kw, const char *want, size_t n, const char *error,
                         const char *name)
{
    struct lk_prompt p;
    struct lk_chat_opts o;
    struct lk_err e = {0};
    lk_chat_opts_init(&o);
    int rc = lk_chat_opts_read(&o, kw, &e);
    if (!rc) rc = lk_chat_render(d, messages, tools, &o, &p, &e);
    if (error) {
        if (rc != LK_EREQUEST || strcmp(e.text, error))
            fail_msg("%s, %s: expected error \"%s\", got %d \"%s\"", name, lk_dialect_name(d),
                     error, rc, e.text);
        return;
    }
    if (rc) fail_msg("%s, %s: %s", name, lk_dialect_name(d), e.text);
    if (p.text.len != n || memcmp(p.text.data, want, n)) {
        size_t i = 0;
        while (i < n && i < p.text.len && want[i] == p.text.data[i]) i++;
        fail_msg("%s, %s: differs at byte %zu:\n%s\n--- wanted\n%s", name, lk_dialect_name(d), i,
                 p.text.data + i, want + i);
    }
    size_t at = 0; /* segments tile the text, kinds alternate */
    for (size_t i = 0; i < p.n_segs; i++) {
        assert_int_equal(p.segs[i].begin, at);
        assert_true(p.segs[i].end > at && (!i || p.segs[i].is_text != p.segs[i - 1].is_text));
        at = p.segs[i].end;
    }
    assert_int_equal(at, p.text.len);
    lk_prompt_free(&p);
}

static void hand_made_cases_render_byte_for_byte(void **state)
{
    json_t *g = vector_load("chat_render_golden.json"), *c;
    static const char *const key[] = {"3.5", "3.6", "3.8"};
    size_t i;
    assert_int_equal(json_array_size(g), 27);
    json_array_foreach(g, i, c)
    {
        json_t *kw = json_object_get(c, "kwargs");
        for (int d = 0; d < 3; d++) {
            const json_t *w = json_object_get(json_object_get(c, "render"), key[d]),
                         *err = json_object_get(w, "error");
            assert_true(json_is_string(w) || json_is_string(err));
            render_check(dialects[d], json_object_get(c, "messages"), json_object_get(kw, "tools"),
                         kw, json_string_value(w), json_string_length(w), json_string_value(err),
                         json_string_value(json_object_get(c, "name")));
        }
    }
    json_decref(g);
}

static void macros_put_back(const json_t *macros, const json_t *s, struct lk_buf *out)
{
    const char *p = json_string_value(s);
    size_t n = json_string_length(s);
    lk_buf_reset(out);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = n - i >= 3 && !memcmp(p + i, "\xee\x80", 2)
                              ? json_array_get(macros, (unsigned char)p[i + 2] - 0x80u)
                              : NULL;
        if (m) {
            lk_buf_str(out, json_string_value(m));
            i += 2;
        } else {
            lk_buf_chr(out, p[i]);
        }
    }
}

static void random_cases_render_byte_for_byte(void **state)
{
    json_t *v = vector_load("chat.json"), *c;
    const json_t *macros = json_object_get(v, "macros");
    size_t i;
    assert_true(json_array_size(json_object_get(v, "cases")) >= 200);
    json_array_foreach(json_object_get(v, "cases"), i, c)
    {
        const json_t *in = json_object_get(c, "in"), *out = NULL;
        json_t *j = parse(json_string_value(in), json_string_length(in));
        for (size_t d = 0; d < 3; d++) {
            const json_t *w = json_array_get(json_object_get(c, "out"), d);
            struct lk_buf want = {0};
            char name[32];
            if (!json_is_null(w)) out = w;
            if (json_is_string(out)) macros_put_back(macros, out, &want);
            snprintf(name, sizeof name, "case %zu", i);
            render_check(dialects[d], json_object_get(j, "messages"), json_object_get(j, "tools"),
                         json_object_get(j, "chat_template_kwargs"), want.data, want.len,
                         json_string_value(json_object_get(out, "error")), name);
            lk_buf_free(&want);
        }
        json_decref(j);
    }
    json_decref(v);
}

/* Added tokens in a text, counted as control or not. */
static size_t added_count(const struct lk_tokenizer *t, const char *p, size_t n)
{
    size_t from = 0, b, k = 0;
    int32_t id;
    for (; lk_tokenizer_next_added(t, p, n, from, &b, &from, &id); k++) {
    }
    return k;
}

static void messages_never_become_control_tokens(void **state)
{
    json_t *v = vector_load("chat.json"), *c;
    struct lk_tokenizer *t = demo_tokenizer();
    size_t i, equal = 0, hostile = 0;
    json_array_foreach(json_object_get(v, "cases"), i, c)
    {
        const json_t *in = json_object_get(c, "in");
        json_t *j = parse(json_string_value(in), json_string_length(in));
        struct lk_prompt p;
        struct lk_chat_opts o;
        struct lk_err e = {0};
        lk_chat_opts_init(&o);
        if (!lk_chat_opts_read(&o, json_object_get(j, "chat_template_kwargs"), &e) &&
            !lk_chat_render(LK_QWEN3_8, json_object_get(j, "messages"), json_object_get(j, "tools"),
                            &o, &p, &e)) {
            struct lk_ids ids = {0}, whole = {0};
            struct lk_buf back = {0}, again = {0};
            size_t control = 0, in_text = 0, got = 0;
            assert_int_equal(lk_prompt_encode(&p, t, &ids, &e), 0);
            assert_int_equal(
                lk_tokenizer_encode(t, p.text.data, p.text.len, LK_SPECIALS_ALL, &whole, &e), 0);
            for (size_t k = 0; k < p.n_segs; k++)
                *(p.segs[k].is_text ? &in_text : &control) +=
                    added_count(t, p.text.data + p.segs[k].begin, p.segs[k].end - p.segs[k].begin);
            for (size_t k = 0; k < ids.n; k++) got += lk_tokenizer_is_special(t, ids.v[k]) != 0;
            assert_int_equal(got, control);
            lk_tokenizer_decode(t, ids.v, ids.n, 0, &back);
            lk_tokenizer_decode(t, whole.v, whole.n, 0, &again);
            if (in_text) {
                hostile++;
            } else {
                assert_int_equal(ids.n, whole.n);
                assert_memory_equal(ids.v, whole.v, ids.n * sizeof *ids.v);
                assert_string_equal(back.data, again.data);
                equal++;
            }
            lk_buf_free(&back);
            lk_buf_free(&again);
            lk_ids_free(&ids);
            lk_ids_free(&whole);
            lk_prompt_free(&p);
        }
        json_decref(j);
    }
    print_message("%zu equal, %zu hostile\n", equal, hostile);
    assert_true(equal > 20 && hostile > 50); /* both kinds were there */
    lk_tokenizer_close(t);
    json_decref(v);
}

static void dialects_are_known_by_content(void **state)
{
    static const char common[] = "<|im_start|> last_query_index <function=example_function_name>";
    char s[256];
    assert_int_equal(lk_dialect_find(common, strlen(common)), LK_QWEN3_5);
    snprintf(s, sizeof s, "%s preserve_thinking", common);
    assert_int_equal(lk_dialect_find(s, strlen(s)), LK_QWEN3_6);
    snprintf(s, sizeof s, "%s preserve_thinking reasoning_effort", common);
    assert_int_equal(lk_dialect_find(s, strlen(s)), LK_QWEN3_8);
    assert_int_equal(lk_dialect_find("{{ messages }} <|im_start|>", 27), LK_DIALECT_NONE);
    assert_int_equal(lk_dialect_find(NULL, 0), LK_DIALECT_NONE);
    for (int i = 0; i < 3; i++) {
        static const int digit[] = {5, 6, 8};
        struct lk_buf b = {0};
        snprintf(s, sizeof s, "%s/data/chat_template_qwen3_%d.jinja", LK_SHARED_DIR, digit[i]);
        if (lk_file_exists(s) != 1) {
            print_message("skipped: %s is not there\n", s);
            continue;
        }
        file_load(s, &b);
        assert_int_equal(lk_dialect_find(b.data, b.len), dialects[i]);
        lk_buf_free(&b);
    }
}

static void think_levels_reach_the_prompt(void **state)
{
    static const struct {
        enum lk_think think;
        const char *has, *has_not;
        int open;
    } c[] = {
        {LK_THINK_DEFAULT, "set to xhigh", "</think>", 1},
        {LK_THINK_OFF, "</think>\n\n", "Reasoning effort", 0},
        {LK_THINK_LOW, "set to low", "</think>", 1},
        {LK_THINK_MEDIUM, "<think>\n", "Reasoning effort", 1},
        {LK_THINK_XHIGH, "set to xhigh", "</think>", 1},
    };
    json_t *m = parse("[{\"role\":\"user\",\"content\":\"x\"}]", 31);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct lk_chat_opts o;
        struct lk_prompt p;
        struct lk_err e = {0};
        lk_chat_opts_init(&o);
        o.add_generation_prompt = 1;
        lk_chat_opts_think(&o, c[i].think);
        assert_int_equal(lk_chat_render(LK_QWEN3_8, m, NULL, &o, &p, &e), 0);
        assert_non_null(strstr(p.text.data, c[i].has));
        assert_null(strstr(p.text.data, c[i].has_not));
        assert_int_equal(p.thinking_open, c[i].open);
        lk_prompt_free(&p);
    }
    json_decref(m);
}

static void argument_strings_are_parsed(void **state)
{
    static const char in[] = "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                             "\"tool_calls\":[{\"function\":{\"name\":"
                             "\"f\",\"arguments\":\"{\\\"n\\\": 12345678901234567890, \\\"s\\\": "
                             "\\\"t\\\"}\"}},{\"name\":\"g\","
                             "\"arguments\":\"\"}]}]";
    json_t *m = parse(in, strlen(in));
    struct lk_chat_opts o;
    struct lk_prompt p;
    struct lk_err e = {0};
    lk_chat_opts_init(&o);
    assert_int_equal(lk_chat_arguments(m, &e), 0);
    assert_int_equal(lk_chat_render(LK_QWEN3_6, m, NULL, &o, &p, &e), 0);
    assert_non_null(strstr(
        p.text.data,
        "<function=f>\n<parameter=n>\n12345678901234567890\n</parameter>\n<parameter=s>\nt\n"));
    assert_non_null(strstr(p.text.data, "<function=g>\n</function>"));
    lk_prompt_free(&p);
    json_decref(m);
    static const char bad[] = "[{\"tool_calls\":[{\"name\":\"g\",\"arguments\":\"[1\"}]}]";
    m = parse(bad, strlen(bad));
    assert_int_equal(lk_chat_arguments(m, &e), LK_EREQUEST);
    assert_non_null(strstr(e.text, "messages[0].tool_calls[0].function.arguments"));
    json_decref(m);
}

static void numbers_survive(void **state)
{
    static const char *const same[] = {"18446744073709551616",
                                       "-9223372036854775809",
                                       "0.1",
                                       "1e+20",
                                       "1e-05",
                                       "1e+16",
                                       "1000000000000000.0",
                                       "-0.0",
                                       "5e-324",
                                       "1.7976931348623157e+308",
                                       "0.0001"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct lk_buf b = {0};
        json_t *j = parse(same[i], strlen(same[i]));
        lk_json_dump(j, &b);
        assert_string_equal(b.data, same[i]);
        lk_buf_free(&b);
        json_decref(j);
    }
    static const char *const bad[] = {"01",  "-",           "1.",   "{\"a\":1,}", "[1e]",
                                      "1 2", "\"\\ud800\"", "[\"a", "nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lk_err e = {0};
        assert_null(lk_json_parse(bad[i], strlen(bad[i]), &e));
        assert_int_equal(e.code, LK_EREQUEST);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hand_made_cases_render_byte_for_byte),
        cmocka_unit_test(random_cases_render_byte_for_byte),
        cmocka_unit_test(messages_never_become_control_tokens),
        cmocka_unit_test(dialects_are_known_by_content),
        cmocka_unit_test(think_levels_reach_the_prompt),
        cmocka_unit_test(argument_strings_are_parsed),
        cmocka_unit_test(numbers_survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
