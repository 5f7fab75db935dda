/* The reply parser and stop strings: what each text means, and that no cutting of it changes that.
 */
#include "text_files.h"

#include "text/reply.h"

/* All events as one text: kind letter changes and call boundaries become visible, pieces of one
 * kind join. */
struct trace {
    struct lk_buf b;
    int last, call;
};

static void trace_event(void *arg, const struct lk_reply_event *ev)
{
    struct trace *t = arg;
    static const char *const open[] = {"\nR:", "\nC:", "\nB:", "\nA:", "\nE"};
    if (ev->kind == LK_REPLY_CALL_BEGIN || ev->kind == LK_REPLY_CALL_END ||
        (int)ev->kind != t->last)
        lk_buf_str(&t->b, open[ev->kind]);
    if (ev->kind == LK_REPLY_CALL_BEGIN) {
        assert_int_equal(ev->call, t->call);
        t->call++;
    } else if (ev->kind > LK_REPLY_CALL_BEGIN) {
        assert_int_equal(ev->call, t->call - 1);
    }
    t->last = (int)ev->kind;
    lk_buf_add(&t->b, ev->text, ev->len);
}

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{"
    "\"type\":\"boolean\"},"
    "\"a\":{\"type\":\"array\"},\"o\":{\"type\":\"object\"},\"u\":{\"type\":[\"string\",\"null\"]},"
    "\"v\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},\"e\":{\"enum\":[\"x\",\"1\"]"
    "},\"r\":{\"$ref\":\"#/$defs/d\"},"
    "\"l\":{\"$ref\":\"#/$defs/"
    "l\"},\"any\":{}},\"$defs\":{\"d\":{\"type\":\"string\"},\"l\":{\"$ref\":\"#/$defs/l\"}}}}},"
    "{\"name\":\"g\",\"input_schema\":{\"properties\":{\"x\":{\"type\":\"string\"}}}}]";

struct reply_case {
    const char *text;
    int thinking;
    const char *want; /* trace */
};

#define CALL(body) "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"
#define P(k, v)    "<parameter=" k ">\n" v "\n</parameter>\n"

static const struct reply_case cases[] = {
    {"", 0, ""},
    {"", 1, ""},
    {"Hello", 0, "\nC:Hello"},
    {"plan\n</think>\n\nHello\n", 1, "\nR:plan\nC:Hello\n"},
    {"<think>\nplan\n</think>\n\nHello", 0, "\nR:plan\nC:Hello"},
    {"<think>\nplan</think>Hello", 1, "\nR:plan\nC:Hello"},
    {"\n\n</think>\n\n", 1, ""},
    {"cut in the middle of </thi", 1, "\nR:cut in the middle of </thi"},
    {"a </think > b <b>\n\n</think>c", 1, "\nR:a </think > b <b>\nC:c"},
    {" <b>x</b> </think> <thin", 0, "\nC: <b>x</b> </think> <thin"},
    {CALL(""), 0, "\nB:f\nA:{}\nE"},
    {CALL(P("s", "Paris")), 0, "\nB:f\nA:{\"s\": \"Paris\"}\nE"},
    {"Sure.\n\n" CALL(P("i", "5")) "\n", 0, "\nC:Sure.\nB:f\nA:{\"i\": 5}\nE"},
    {"x</think>\n\n" CALL(P("s", "5") P("i", "5")) "\n" CALL(P("n", "1e3")), 1,
     "\nR:x\nB:f\nA:{\"s\": \"5\", \"i\": 5}\nE\nB:f\nA:{\"n\": 1000.0}\nE"},
    {CALL(P("s", "\"q\"") P("s", "true") P("b", "true")), 0,
     "\nB:f\nA:{\"s\": \"\\\"q\\\"\", \"s\": \"true\", \"b\": true}\nE"},
    {CALL(P("b", "False") P("u", "None") P("u", "none") P("u", "null")), 0,
     "\nB:f\nA:{\"b\": false, \"u\": null, \"u\": \"none\", \"u\": null}\nE"},
    {CALL(P("a", "[1, \"x\", {\"k\": null}]") P("o", "{\"a\":{}}")), 0,
     "\nB:f\nA:{\"a\": [1, \"x\", {\"k\": null}], \"o\": {\"a\": {}}}\nE"},
    {CALL(P("v", "7") P("v", "seven") P("e", "1") P("r", "1") P("l", "1") P("any", "1.50")
              P("new", "text")),
     0,
     "\nB:f\nA:{\"v\": 7, \"v\": \"seven\", \"e\": \"1\", \"r\": \"1\", \"l\": 1, \"any\": 1.5, "
     "\"new\": \"text\"}\nE"},
    {CALL(P("i", "five") P("i", "5.0") P("i", "123456789012345678901") P("a", "[1,")), 0,
     "\nB:f\nA:{\"i\": \"five\", \"i\": 5, \"i\": 123456789012345678901, \"a\": \"[1,\"}\nE"},
    {CALL(P("s", "") P("s", "\n") P("s", "a\n\nb\n") P("a", "")), 0,
     "\nB:f\nA:{\"s\": \"\", \"s\": \"\\n\", \"s\": \"a\\n\\nb\\n\", \"a\": \"\"}\nE"},
    {CALL("<parameter=s>x</parameter><parameter=i>5</parameter>"), 0,
     "\nB:f\nA:{\"s\": \"x\", \"i\": 5}\nE"},
    {CALL(P("s", "if (a < b) {\n\t\"</b>\";\n}\n<parameter=zz>\n</parameter> x\n</function> y")), 0,
     "\nB:f\nA:{\"s\": \"if (a < b) {\\n\\t\\\"</b>\\\";\\n}\\n<parameter=zz>\\n</parameter> "
     "x\\n</function> y\"}\nE"},
    /* broken calls */
    {"<tool_call>\n<function=f>\n" P("s", "x"), 0, "\nB:f\nA:{\"s\": \"x\"}\nE"},
    {"<tool_call>\n<function=f>\n<parameter=s>\nhalf", 0, "\nB:f\nA:{\"s\": \"half\"}\nE"},
    {"<tool_call>\n<function=f>\n<parameter=i>\n12", 0, "\nB:f\nA:{\"i\": 12}\nE"},
    {"<tool_call>\n<function=f>\n<parameter=s>\nhalf\n</param", 0, "\nB:f\nA:{\"s\": \"half\"}\nE"},
    {"<tool_call>\n<function=f>\n<parame", 0, "\nB:f\nA:{}\nE"},
    {"<tool_call>\n<function=f>\n" P("s", "x") "</tool_call>\nrest", 0,
     "\nB:f\nA:{\"s\": \"x\"}\nE\nC:\nrest"},
    {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>", 0,
     "\nB:f\nA:{\"s\": \"x\"}\nE"},
    {"<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=i>\n3\n</parameter>\n</function>\n</"
     "tool_call>",
     0, "\nB:f\nA:{\"s\": \"x\", \"i\": 3}\nE"},
    {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</tool_call>", 0, "\nB:f\nA:{\"s\": \"x\"}\nE"},
    {"<tool_call>\n<function=f>\n</function>\n<function=g>\n<parameter=x>\n1\n</parameter>\n</"
     "function>\n</tool_call>",
     0, "\nB:f\nA:{}\nE\nB:g\nA:{\"x\": \"1\"}\nE"},
    {"go\n<function=g>\n<parameter=x>\n1\n</parameter>\n</function>", 0,
     "\nC:go\nB:g\nA:{\"x\": \"1\"}\nE"},
    {"<tool_call>\n<function=f>\njunk " P("i", "1") "more</function></tool_call> tail", 0,
     "\nB:f\nA:{\"i\": 1}\nE\nC: tail"},
    /* no calls */
    {"use <tool_call> like this", 0, "\nC:use <tool_call> like this"},
    {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", 0,
     "\nC:<tool_call>\n{\"name\": \"f\"}\n</tool_call>"},
    {"<tool_call>\n<function=", 0, "\nC:<tool_call>\n<function="},
    {"<function=nosuch>\n</function>", 0, "\nC:<function=nosuch>\n</function>"},
    {"a <function=\n> <tool_cal <tool_call>\n<function=\n", 0,
     "\nC:a <function=\n> <tool_cal <tool_call>\n<function=\n"},
    {"caf\xc3\xa9 \xf0\x9f\x98\x80" CALL(P("s", "\xe4\xbd\xa0\xe5\xa5\xbd \x01\"\\")), 0,
     "\nC:caf\xc3\xa9 \xf0\x9f\x98\x80\nB:f\nA:{\"s\": \"\xe4\xbd\xa0\xe5\xa5\xbd "
     "\\u0001\\\"\\\\\"}\nE"},
    {"                                                                              " CALL(""), 0,
     "\nC:              \nB:f\nA:{}\nE"}, /* 78 spaces: at most 64 belong to a call */
};

/* Pushes text in pieces that end at the given places. */
static void parse_cut(const struct reply_case *c, const json_t *tools, size_t cut1, size_t cut2,
                      struct lk_buf *out)
{
    struct trace t = {.last = -1};
    size_t n = strlen(c->text), at = 0;
    struct lk_reply *r = lk_reply_new(c->thinking, tools, 1, trace_event, &t);
    assert_non_null(r);
    for (int k = 0; k < 3; k++) {
        size_t to = k == 0 ? cut1 : k == 1 ? cut2 : n;
        assert_int_equal(lk_reply_push(r, c->text + at, to - at), 0);
        at = to;
    }
    assert_int_equal(lk_reply_finish(r), 0);
    lk_buf_reset(out);
    if (t.b.len) lk_buf_add(out, t.b.data, t.b.len);
    /* totals say the same as the events */
    lk_buf_str(out, "|");
    lk_buf_add(out, lk_reply_reasoning(r)->data, lk_reply_reasoning(r)->len);
    lk_buf_str(out, "|");
    lk_buf_add(out, lk_reply_content(r)->data, lk_reply_content(r)->len);
    lk_buf_str(out, "|");
    char *calls = json_dumps(lk_reply_calls(r), JSON_COMPACT);
    assert_non_null(calls);
    lk_buf_str(out, calls);
    free(calls);
    assert_int_equal(json_array_size(lk_reply_calls(r)), t.call);
    lk_buf_free(&t.b);
    lk_reply_free(r);
}

static void meaning_does_not_depend_on_cuts(void **state)
{
    json_t *tools = json_loads(tools_json, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct reply_case *c = &cases[i];
        struct lk_buf whole = {0}, cut = {0};
        size_t n = strlen(c->text);
        parse_cut(c, tools, n, n, &whole);
        size_t k = strlen(c->want);
        if (whole.len < k || memcmp(whole.data, c->want, k) || whole.data[k] != '|')
            fail_msg("case %zu: %s\n--- wanted %s", i, whole.data, c->want);
        for (size_t a = 0; a <= n; a++) {
            for (size_t b = a; b <= n; b += a % 7 ? 5 : 1) {
                parse_cut(c, tools, a, b, &cut);
                if (strcmp(cut.data, whole.data))
                    fail_msg("case %zu cut at %zu, %zu: %s\n--- whole %s", i, a, b, cut.data,
                             whole.data);
            }
        }
        lk_buf_free(&whole);
        lk_buf_free(&cut);
    }
    json_decref(tools);
}

static void byte_by_byte_is_the_same(void **state)
{
    json_t *tools = json_loads(tools_json, 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trace t = {.last = -1};
        struct lk_reply *r = lk_reply_new(cases[i].thinking, tools, 1, trace_event, &t);
        for (const char *p = cases[i].text; *p; p++) assert_int_equal(lk_reply_push(r, p, 1), 0);
        lk_reply_finish(r);
        assert_string_equal(t.b.data ? t.b.data : "", cases[i].want);
        lk_buf_free(&t.b);
        lk_reply_free(r);
    }
    json_decref(tools);
}

static void tools_off_leaves_calls_in_content(void **state)
{
    struct lk_reply *r = lk_reply_new(0, NULL, 0, NULL, NULL);
    lk_reply_push(r, CALL(P("s", "x")) "\n", strlen(CALL(P("s", "x"))) + 1);
    lk_reply_finish(r);
    assert_string_equal(lk_reply_content(r)->data, CALL(P("s", "x")) "\n");
    assert_int_equal(json_array_size(lk_reply_calls(r)), 0);
    lk_reply_free(r);
    r = lk_reply_new(0, NULL, 1, NULL, NULL); /* no schema: JSON where it is JSON */
    const char *text = CALL(P("s", "x") P("k", "[1]"));
    lk_reply_push(r, text, strlen(text));
    lk_reply_finish(r);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(lk_reply_calls(r), 0), "text")),
        "{\"s\": \"x\", \"k\": [1]}");
    lk_reply_free(r);
}

static void reasoning_is_known_while_it_lasts(void **state)
{
    struct lk_reply *r = lk_reply_new(1, NULL, 1, NULL, NULL);
    assert_true(lk_reply_in_reasoning(r));
    lk_reply_push(r, "a\n</thin", 8);
    assert_true(lk_reply_in_reasoning(r));
    lk_reply_push(r, "k>", 2);
    assert_false(lk_reply_in_reasoning(r));
    lk_reply_free(r);
}

static void stops_check(const char *const *stops, size_t n_stops, const char *text,
                        const char *want, int hit)
{
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n + 1; cut++) { /* n + 1: byte by byte */
        struct lk_stops *s = lk_stops_new(stops, n_stops);
        struct lk_buf out = {0};
        int which = -1, met = 0;
        if (cut > n) {
            for (size_t i = 0; i < n && !met; i++)
                met = lk_stops_push(s, text + i, 1, &out, &which);
        } else {
            met = lk_stops_push(s, text, cut, &out, &which);
            if (!met) met = lk_stops_push(s, text + cut, n - cut, &out, &which);
        }
        if (!met) lk_stops_flush(s, &out);
        assert_int_equal(met, hit >= 0);
        assert_int_equal(which, hit);
        assert_string_equal(out.data ? out.data : "", want);
        lk_buf_free(&out);
        lk_stops_free(s);
    }
}

static void stops_hold_back_and_stop(void **state)
{
    static const char *const one[] = {"STOP"}, *const two[] = {"aab", "ab\n", ""},
                             *const nest[] = {"b", "abc", "ab"};
    stops_check(one, 1, "text STO and STSTOP after", "text STO and ST", 0);
    stops_check(one, 1, "text STO", "text STO", -1);
    stops_check(one, 1, "STOP", "", 0);
    stops_check(two, 3, "aaaab", "aa", 0);
    stops_check(two, 3, "xab\ny", "x", 1);
    stops_check(two, 3, "aacaa", "aacaa", -1);
    stops_check(nest, 3, "xabc", "x", 2); /* ends first, longest: "ab" */
    stops_check(NULL, 0, "free", "free", -1);
    struct lk_stops *s = lk_stops_new(one, 1);
    struct lk_buf out = {0};
    lk_stops_push(s, "x ST", 4, &out, NULL);
    assert_string_equal(out.data, "x "); /* nothing of a possible stop is shown */
    lk_buf_free(&out);
    lk_stops_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meaning_does_not_depend_on_cuts),
        cmocka_unit_test(byte_by_byte_is_the_same),
        cmocka_unit_test(tools_off_leaves_calls_in_content),
        cmocka_unit_test(reasoning_is_known_while_it_lasts),
        cmocka_unit_test(stops_hold_back_and_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
