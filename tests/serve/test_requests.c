/* Requests without sockets: the store of recent things, the shapes of messages, the rules of fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/mem.h"
#include "serve/lru.h"
#include "serve/params.h"
#include "serve/turns.h"

#include <string.h>

static int freed;

static void count_free(void *p)
{
    freed++;
    lk_free(p);
}

static void store_forgets_the_least_used(void **state)
{
    struct lk_lru *s = lk_lru_new(3, 100, count_free);
    freed = 0;
    assert_int_equal(lk_lru_put(s, "a", lk_strdup("1"), 10), 0);
    assert_int_equal(lk_lru_put(s, "b", lk_strdup("2"), 10), 0);
    assert_int_equal(lk_lru_put(s, "c", lk_strdup("3"), 10), 0);
    assert_string_equal(lk_lru_get(s, "a"), "1"); /* b is now the oldest */
    assert_int_equal(lk_lru_put(s, "d", lk_strdup("4"), 10), 0);
    assert_null(lk_lru_get(s, "b"));
    assert_int_equal(lk_lru_put(s, "a", lk_strdup("5"), 10), 0); /* replaced */
    assert_string_equal(lk_lru_get(s, "a"), "5");
    assert_int_equal(lk_lru_put(s, "e", lk_strdup("6"), 95), 0); /* bytes count too */
    assert_int_equal(lk_lru_count(s), 1);
    assert_true(lk_lru_put(s, "f", lk_strdup("7"), 101) < 0); /* larger than all of it */
    assert_int_equal(lk_lru_drop(s, "e"), 1);
    assert_int_equal(lk_lru_drop(s, "e"), 0);
    lk_lru_free(s);
    assert_int_equal(freed, 7);
}

/* Messages in, messages out, or the field that is at fault. */
static void shape(const char *in, const char *out, const char *field)
{
    struct lk_fault f = {0};
    json_t *messages = json_loads(in, JSON_DECODE_ANY, NULL), *want = out ? json_loads(out, 0, NULL) : NULL;
    json_t *got = lk_turns_openai(messages, NULL, &f);
    if (out && !json_equal(got, want)) fail_msg("%s became %s (%s)", in, got ? json_dumps(got, 0) : "nothing", f.text);
    if (!out) assert_null(got);
    if (!out) assert_string_equal(f.param, field);
    json_decref(messages);
    json_decref(want);
    json_decref(got);
}

static void shapes_of_messages(void **state)
{
    shape("[{'role':'user','content':'x'}]", NULL, "messages"); /* not JSON at all */
    shape("[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]",
          "[{\"role\":\"system\",\"content\":\"a\\n\\nb\"},{\"role\":\"user\",\"content\":\"c\"}]", NULL);
    shape("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]",
          "[{\"role\":\"user\",\"content\":\"ab\"}]", NULL);
    shape("[{\"role\":\"user\",\"content\":null}]", "[{\"role\":\"user\",\"content\":\"\"}]", NULL);
    shape("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"},{\"role\":\"system\",\"content\":\"s\"}]",
          "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"},{\"role\":\"system\",\"content\":\"s\"}]", NULL);
    shape("[]", NULL, "messages");
    shape("[5]", NULL, "messages[0]");
    shape("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"x\",\"content\":\"x\"}]", NULL, "messages[1].role");
    shape("[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]", NULL, "messages[0].content[0]");
    shape("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1\"}}]}]", NULL,
          "messages[0].tool_calls[0].function.arguments");
    shape("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"a b\",\"arguments\":\"{}\"}}]}]", NULL,
          "messages[0].tool_calls[0].function.name");
}

static void remembered_calls_carry_their_bytes(void **state)
{
    static const char raw[] = "<tool_call>\n<function=f>\n<parameter=a>\n 1\n</parameter>\n</function>\n</tool_call>";
    struct lk_lru *calls = lk_lru_new(8, 1 << 20, lk_free);
    struct lk_fault f = {0};
    const char *const args[] = {"{\\\"a\\\": 1}", "{\\\"a\\\":2}"};
    const struct lk_call_memory m = {.name = "f", .args = "{\"a\":1}", .raw = raw, .gap = "\n", .tail = " ", .think = "so"};
    assert_int_equal(lk_call_remember(calls, "call_1", &m), 0);
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text, "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\","
                 "\"function\":{\"name\":\"f\",\"arguments\":\"%s\"}}]}]", args[i]);
        json_t *in = json_loads(text, 0, NULL), *out = lk_turns_openai(in, calls, &f);
        const json_t *call = json_array_get(json_object_get(json_array_get(out, 0), "tool_calls"), 0);
        const char *got = json_string_value(json_object_get(call, "raw"));
        if (i == 0) assert_string_equal(got, raw); /* equal as JSON, spelled otherwise */
        if (i == 0) assert_string_equal(json_string_value(json_object_get(call, "gap")), "\n");
        if (i == 0) assert_string_equal(json_string_value(json_object_get(call, "tail")), " ");
        if (i == 1) assert_null(got);              /* the client changed it */
        const char *think = json_string_value(json_object_get(json_array_get(out, 0), "reasoning_content"));
        if (i == 0) assert_string_equal(think, "so"); /* left out by the client, known here */
        if (i == 1) assert_null(think);
        json_decref(in);
        json_decref(out);
    }
    lk_lru_free(calls);
}

/* A number that JSON readers cannot hold is a fault of its field, not of the whole body. */
static void numbers_past_all_range_name_their_field(void **state)
{
    static const struct { const char *body, *field, *code; } t[] = {
        {"{\"temperature\": 1e999}", "temperature", "invalid_value"},
        {"{\"a\": [1, {\"b\": \"x,{\\\"\"}], \"seed\": -99999999999999999999}", "seed", "invalid_value"},
        {"{\"stop\": [\"a\", 1e999, 2]}", "stop[1]", "invalid_value"},
        {"{\"tools\": [{\"function\": {\"parameters\": {\"maximum\": 1e400}}}]}", "tools[0].function.parameters.maximum", "invalid_value"},
        {"{\"top_p\": NaN, \"x\": 1}", "top_p", "invalid_value"},
        {"{\"top_p\":-Infinity}", "top_p", "invalid_value"},
        {"{\"messages\": [{\"content\": \"a\\u0000b\"}]}", "messages[0].content", "invalid_value"},
        {"{\"a\": nonsense}", "", "invalid_json"},
        {"1e999", "", "invalid_json"},
        {"{\"a\": 1", "", "invalid_json"},
        {"", "", "invalid_json"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct lk_fault f = {0};
        assert_null(lk_body_parse(t[i].body, strlen(t[i].body), &f));
        if (f.status != 400 || strcmp(f.param, t[i].field) || strcmp(f.code, t[i].code))
            fail_msg("%s: %d %s about \"%s\": %s", t[i].body, f.status, f.code, f.param, f.text);
    }
    struct lk_fault f = {0};
    char deep[400];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    assert_null(lk_body_parse(deep, sizeof deep, &f));
    assert_int_equal(f.status, 400);
}

static void faults_are_valid_utf8(void **state)
{
    struct lk_fault f = {0};
    char text[1200];
    for (size_t i = 0; i + 3 <= sizeof text - 1; i += 3) memcpy(text + i, "\xe6\xb2\xb3", 4);
    for (int cut = 0; cut < 3; cut++) {
        memset(&f, 0, sizeof f);
        lk_fault_set(&f, 400, "x", text + cut, "%.*s\xff", 500 + cut, text);
        json_t *s = json_string(f.text), *p = json_string(f.param);
        assert_non_null(s);
        assert_non_null(p);
        json_decref(s);
        json_decref(p);
    }
}

static void ranges_of_parameters(void **state)
{
    static const struct lk_opts_sampling d = {0.7, 0.9, 0, 0, 0, 1, 20, -1};
    static const struct { const char *body, *field; } bad[] = {
        {"{\"temperature\":-0.1}", "temperature"}, {"{\"temperature\":\"1\"}", "temperature"}, {"{\"top_p\":1.1}", "top_p"},
        {"{\"top_k\":-2}", "top_k"}, {"{\"seed\":1.5}", "seed"}, {"{\"stream\":1}", "stream"}, {"{\"logit_bias\":{\"8192\":1}}", "logit_bias"},
        {"{\"logit_bias\":{\"1\":101}}", "logit_bias"}, {"{\"presence_penalty\":3}", "presence_penalty"},
    };
    struct lk_params p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lk_fault f = {0};
        json_t *o = json_loads(bad[i].body, 0, NULL);
        lk_params_init(&p, &d);
        assert_int_equal(lk_params_read(&p, o, 8192, &f), -1);
        assert_string_equal(f.param, bad[i].field);
        lk_params_free(&p);
        json_decref(o);
    }
    struct lk_fault f = {0};
    json_t *o = json_loads("{\"temperature\":0,\"top_k\":-1,\"seed\":-3,\"logit_bias\":{\"7\":-100},\"min_p\":null}", 0, NULL);
    lk_params_init(&p, &d);
    assert_int_equal(lk_params_read(&p, o, 8192, &f), 0);
    assert_true(p.s.temp == 0 && p.s.top_p == 0.9f && p.s.top_k == 0 && p.s.seed == (uint64_t)-3 && p.s.n_bias == 1 && p.s.bias[0].id == 7);
    lk_params_free(&p);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_forgets_the_least_used), cmocka_unit_test(shapes_of_messages),
        cmocka_unit_test(remembered_calls_carry_their_bytes), cmocka_unit_test(faults_are_valid_utf8),
        cmocka_unit_test(ranges_of_parameters), cmocka_unit_test(numbers_past_all_range_name_their_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
