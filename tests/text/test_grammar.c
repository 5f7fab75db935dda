/* Structured output. Stored texts (tests/reference/grammar.py: found valid or not by Python's
 * jsonschema) are taken or refused; random walks through the mask always arrive at JSON; the mask
 * and accept agree; what cannot be enforced is refused by name.
 *
 *     test_grammar walk SCHEMAS.json SEED N    prints N walks of each schema as JSON lines, for the
 * script above */
#include "text_files.h"

#include "text/json_schema.h"
#include "text/pyjson.h"
#include "text/reply.h"
#include "text/utf8.h"

static uint64_t rng_next(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15u;
    uint64_t z = *s;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static const int32_t stops[] = {8130, 8128};

static struct lk_gram *gram_of(const struct lk_tokenizer *t, const json_t *schema, struct lk_err *e)
{
    struct lk_syntax s;
    if (lk_schema_syntax(&s, schema, e)) return NULL;
    return lk_gram_new(&s, t, stops, 2, e);
}

static int allowed(const uint32_t *bits, int32_t id)
{
    return bits[id >> 5] >> (id & 31) & 1;
}

static int32_t token_of(const struct lk_tokenizer *t, const uint32_t *bits, const char *text,
                        size_t len)
{
    for (int32_t id = 0; id < lk_tokenizer_vocab(t); id++) {
        size_t n;
        const char *p = lk_tokenizer_bytes(t, id, &n);
        if (allowed(bits, id) && p && n == len && !memcmp(p, text, n)) return id;
    }
    return -1;
}

/* The next byte of the tag that closes a raw value, after as much of it as the text ends with. */
static char raw_close(const struct lk_buf *text)
{
    static const char tag[] = "\n</parameter>\n";
    for (size_t k = sizeof tag - 2; k > 0; k--)
        if (text->len >= k && !memcmp(text->data + text->len - k, tag, k)) return tag[k];
    return tag[0];
}

/* A token of the mask: any, or when the walk is long one that ends things. -1: none. */
static int32_t pick(const struct lk_tokenizer *t, const uint32_t *bits, int vocab, int n_walked,
                    const struct lk_buf *text, uint64_t *seed)
{
    static const char *const closers[] = {"\"", "}", "]", "</", "\n", ">", ":", "1", ".",
                                          "e",  "-", "T", "Z",  "@",  "n", "d", "b", "c"};
    char raw = text ? raw_close(text) : 0;
    int32_t from = (int32_t)(rng_next(seed) % (uint64_t)vocab), id = -1;
    if (allowed(bits, stops[0]) && (n_walked > 40 || rng_next(seed) % 3 == 0)) return stops[0];
    if (n_walked > 40 && raw && (id = token_of(t, bits, &raw, 1)) >= 0) return id;
    size_t n = sizeof closers / sizeof *closers,
           first = rng_next(seed) % 2 ? 0 : rng_next(seed) % n;
    for (size_t k = 0; n_walked > 40 && k < n; k++) {
        const char *c = closers[(first + k) % n];
        if ((id = token_of(t, bits, c, strlen(c))) >= 0) return id;
    }
    for (int32_t i = 0; i < vocab; i++) {
        id = (from + i) % vocab;
        if (allowed(bits, id) && id != stops[0] && id != stops[1]) return id;
    }
    return allowed(bits, stops[0]) ? stops[0] : -1;
}

/* One random text of the grammar; 0 when it ended properly. */
static int walk(const struct lk_tokenizer *t, struct lk_gram *g, uint64_t seed, int raw,
                struct lk_buf *out, struct lk_ids *ids)
{
    int vocab = lk_tokenizer_vocab(t);
    uint32_t bits[512];
    lk_buf_reset(out);
    for (int n = 0; n < 600; n++) {
        size_t len;
        assert_int_equal(lk_gram_mask(g, bits, vocab), 1);
        int32_t id = pick(t, bits, vocab, n, raw ? out : NULL, &seed);
        if (id < 0 || lk_gram_accept(g, id)) return -1;
        if (ids) lk_ids_add(ids, id);
        if (id == stops[0]) return 0;
        const char *p = lk_tokenizer_bytes(t, id, &len);
        lk_buf_add(out, p, len);
    }
    return -2;
}

/* Is text (as the tokenizer cuts it) allowed, and may it end? */
static int takes(const struct lk_tokenizer *t, const json_t *schema, const char *text, size_t len)
{
    struct lk_err e = {0};
    struct lk_ids ids = {0};
    struct lk_gram *g = gram_of(t, schema, &e);
    if (!g) fail_msg("%s", e.text);
    assert_int_equal(lk_tokenizer_encode(t, text, len, LK_SPECIALS_NONE, &ids, &e), 0);
    int ok = 1;
    for (size_t i = 0; i < ids.n && ok; i++) ok = !lk_gram_accept(g, ids.v[i]);
    ok = ok && lk_gram_done(g) && !lk_gram_accept(g, stops[1]);
    lk_ids_free(&ids);
    lk_gram_free(g);
    return ok;
}

static void stored_texts_are_judged_alike(void **state)
{
    json_t *v = vector_load("grammar.json"), *c, *x;
    struct lk_tokenizer *t = demo_tokenizer();
    size_t i, k, n = 0;
    json_array_foreach(v, i, c)
    {
        json_array_foreach(json_object_get(c, "valid"), k, x)
        {
            n++;
            if (!takes(t, json_object_get(c, "schema"), json_string_value(x),
                       json_string_length(x)))
                fail_msg("schema %zu refuses %s", i, json_string_value(x));
        }
        json_array_foreach(json_object_get(c, "invalid"), k, x)
        {
            n++;
            if (takes(t, json_object_get(c, "schema"), json_string_value(x), json_string_length(x)))
                fail_msg("schema %zu takes %s", i, json_string_value(x));
        }
    }
    assert_true(n > 500);
    lk_tokenizer_close(t);
    json_decref(v);
}

/* Every walk ends, is JSON and no key stands twice; taken back and walked again it is the same. */
static void walks_arrive_at_json(void **state)
{
    json_t *v = vector_load("grammar.json"), *c;
    struct lk_tokenizer *t = demo_tokenizer();
    struct lk_buf text = {0}, again = {0};
    size_t i;
    json_array_foreach(v, i, c)
    {
        if (i % 4) continue;
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct lk_err e = {0};
            struct lk_ids ids = {0};
            json_error_t je;
            struct lk_gram *g = gram_of(t, json_object_get(c, "schema"), &e);
            if (!g) fail_msg("schema %zu: %s", i, e.text);
            int rc = walk(t, g, seed * 77 + i, 0, &text, &ids);
            if (rc)
                fail_msg("schema %zu, seed %d: walk ended with %d: %s", i, (int)seed, rc,
                         text.data);
            json_t *j = json_loadb(text.data, text.len,
                                   JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &je);
            if (!j && !strstr(je.text, "NUL"))
                fail_msg("schema %zu: %s: %s", i, je.text, text.data);
            json_decref(j);
            if (ids.n < 200) {
                lk_gram_rewind(g, (int)ids.n);
                assert_int_equal(walk(t, g, seed * 77 + i, 0, &again, NULL), 0);
                assert_string_equal(again.data, text.data);
            }
            lk_ids_free(&ids);
            lk_gram_free(g);
        }
    }
    lk_buf_free(&text);
    lk_buf_free(&again);
    lk_tokenizer_close(t);
    json_decref(v);
}

/* At random places of random walks: exactly the tokens of the mask are accepted. */
static void mask_and_accept_agree(void **state)
{
    json_t *v = vector_load("grammar.json"), *c;
    struct lk_tokenizer *t = demo_tokenizer();
    int vocab = lk_tokenizer_vocab(t);
    uint32_t bits[512];
    size_t i;
    json_array_foreach(v, i, c)
    {
        struct lk_err e = {0};
        uint64_t seed = i;
        struct lk_gram *g = gram_of(t, json_object_get(c, "schema"), &e);
        if (i % 5 || !g) {
            lk_gram_free(g);
            continue;
        }
        for (int n = 0; n < 12; n++) {
            lk_gram_mask(g, bits, vocab);
            for (int32_t id = n % 3; id < vocab; id += 3) {
                int ok = !lk_gram_accept(g, id);
                if (ok) lk_gram_rewind(g, 1);
                if (ok != allowed(bits, id))
                    fail_msg("schema %zu, step %d, token %d: accept %d, mask %d", i, n, id, ok,
                             !ok);
            }
            int32_t id = pick(t, bits, vocab, n, NULL, &seed);
            assert_true(id >= 0);
            assert_int_equal(lk_gram_accept(g, id), 0);
            if (id == stops[0]) break;
        }
        lk_gram_free(g);
    }
    lk_tokenizer_close(t);
    json_decref(v);
}

/* The same, every token at every step, for patterns whose masks are put together from tables: runs of all kinds, led by
 * another class, counted, nested, between escapes and in the middle of letters. */
static void patterns_agree_with_their_masks(void **state)
{
    static const char *const res[] = {
        "foo[0-9]+bar",   "^https?://",        "^[^\\s@]+@[^\\s@]+$", "^(\\w+\\.)+\\w{2,5}$", "^[A-Z][a-z]+( [A-Z][a-z]+)*$",
        "^.{5,9}$",       "^.*ab[a-z ]{3,9}$", "^.*a.{4}$",           "^(?:[^\\\\/]|\\\\.)*$", "^[A-Za-z_][A-Za-z0-9_]*$",
        "^[a-z]{3}[0-9a-f]{2,5}[^x]{0,3}$",    "^([a-z]{2,3}-?)+$",   "^(a|b|\\d)*[a-z]{2}$",  "(a*)*",
        "^[\\u00c0-\\u024f\\u4e00-\\u9fff a-z]{2,}$", "^[\\x00-\\x1f\"\\\\]{0,4}$", "^\\S+\\s.*$", "^(ab|cd)*[ab]?$", "x|y+|^z{2}$"};
    struct lk_tokenizer *t = demo_tokenizer();
    int vocab = lk_tokenizer_vocab(t), masks = 0;
    uint32_t bits[512];
    for (size_t i = 0; i < sizeof res / sizeof *res; i++) {
        struct lk_err e = {0};
        json_t *schema = json_pack("{s:s, s:s}", "type", "string", "pattern", res[i]);
        for (uint64_t seed = 1; seed <= 2; seed++) {
            uint64_t r = seed * 31 + i;
            struct lk_gram *g = gram_of(t, schema, &e);
            if (!g) fail_msg("%s: %s", res[i], e.text);
            for (int n = 0; n < 30; n++) {
                lk_gram_mask(g, bits, vocab);
                masks++;
                for (int32_t id = 0; id < vocab; id++) {
                    int ok = !lk_gram_accept(g, id);
                    if (ok) lk_gram_rewind(g, 1);
                    if (ok != allowed(bits, id)) fail_msg("%s, step %d, token %d: accept %d, mask %d", res[i], n, id, ok, !ok);
                }
                int32_t id = pick(t, bits, vocab, n, NULL, &r);
                if (id < 0 || id == stops[0] || lk_gram_accept(g, id)) break;
            }
            lk_gram_free(g);
        }
        json_decref(schema);
    }
    assert_true(masks > 150);
    lk_tokenizer_close(t);
}

static void refused(const char *schema, const char *says)
{
    struct lk_syntax s;
    struct lk_err e = {0}, pe = {0};
    json_t *j = lk_json_parse(schema, strlen(schema), &pe);
    assert_non_null(j);
    int rc = lk_schema_syntax(&s, j, &e);
    if (rc != LK_EREQUEST || !strstr(e.text, says)) fail_msg("%s: %d %s", schema, rc, e.text);
    json_decref(j);
}

static void what_cannot_be_enforced_is_named(void **state)
{
    refused("{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}",
            "at /properties/a: keyword \"not\"");
    refused("{\"patternProperties\":{}}", "patternProperties");
    refused("{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems");
    refused("{\"type\":\"array\",\"items\":{\"multipleOf\":3}}",
            "at /items: keyword \"multipleOf\"");
    refused("{\"type\":\"text\"}", "type is not one of JSON's");
    refused("{\"type\":[]}", "type is empty");
    refused("false", "allows nothing");
    refused("7", "must be an object or a boolean");
    refused("{\"enum\":[]}", "enum");
    refused("{\"enum\":[1],\"type\":\"string\"}", "of the type");
    refused("{\"$ref\":\"#/$defs/x\"}", "not in the schema");
    refused("{\"$ref\":\"http://x/y\"}", "not in the schema");
    refused("{\"$ref\":\"#\"}", "refers to itself");
    refused("{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/b\"}]},\"b\":{\"$ref\":\"#/$defs/"
            "a\"}},\"$ref\":\"#/$defs/a\"}",
            "itself");
    refused("{\"allOf\":[{},{}]}", "allOf");
    refused("{\"anyOf\":[{}],\"properties\":{}}", "properties beside anyOf");
    refused("{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "maxLength is below");
    refused("{\"type\":\"string\",\"minLength\":-1}", "minLength must be");
    refused("{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "look-around");
    refused("{\"type\":\"string\",\"pattern\":\"a\\\\1\"}", "\\1 is not supported");
    refused("{\"type\":\"string\",\"pattern\":\"[a\"}", "not closed");
    refused("{\"type\":\"string\",\"pattern\":\"(((((a{999}){999}){999}){999}){999})\"}",
            "too large");
    refused("{\"type\":\"string\",\"format\":\"iri\"}", "format \"iri\"");
    refused("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "within the bounds");
    refused("{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":4}",
            "within the bounds");
    refused("{\"type\":\"array\",\"minItems\":5,\"maxItems\":2}", "below minItems");
    refused("{\"type\":\"array\",\"maxItems\":100000}", "items are not supported");
    refused("{\"required\":[\"a\"],\"additionalProperties\":false}", "required and not allowed");
    struct lk_buf deep = {0};
    for (int i = 0; i < 400; i++) lk_buf_str(&deep, "{\"items\":");
    lk_buf_str(&deep, "{}");
    for (int i = 0; i < 400; i++) lk_buf_str(&deep, "}");
    refused(deep.data, "nested more than");
    lk_buf_free(&deep);
}

/* json_object mode, and nesting that must stop somewhere. */
static void any_object_is_an_object(void **state)
{
    struct lk_tokenizer *t = demo_tokenizer();
    static const char *const good[] = {
        "{}", "{\"a\": [1, {\"b\": null}], \"c\": \"\\ud83d\\ude00 \\\"x\\\"\"}",
        "{\n  \"k\": -1.5e+3,\n  \"z\": true\n}", "{\"\xe4\xbd\xa0\":\"\xf0\x9f\x98\x80\"}"};
    static const char *const bad[] = {"[]",
                                      "1",
                                      "{",
                                      "{\"a\"}",
                                      "{\"a\": 01}",
                                      "{\"a\": 1,}",
                                      "{\"a\": \"\\ud800\"}",
                                      "{\"a\": \"\t\"}",
                                      "{}x",
                                      "",
                                      " {}",
                                      "{\"a\": +1}",
                                      "{\"a\": \"\\x\"}",
                                      "{'a': 1}"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(takes(t, NULL, good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(takes(t, NULL, bad[i], strlen(bad[i])));
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct lk_err e = {0};
        struct lk_buf text = {0};
        struct lk_gram *g = gram_of(t, NULL, &e);
        assert_int_equal(walk(t, g, seed, 0, &text, NULL), 0);
        assert_int_equal(text.data[0], '{');
        lk_buf_free(&text);
        lk_gram_free(g);
    }
    struct lk_err e = {0};
    struct lk_gram *g = gram_of(t, NULL, &e);
    int depth = 0;
    const char *const open[] = {"{", "\"", "\"", ":", "["};
    for (int i = 0; i < 5; i++)
        for (int32_t id = 0; id < 8128; id++) {
            size_t n;
            const char *p = lk_tokenizer_bytes(t, id, &n);
            if (n == 1 && *p == *open[i]) assert_int_equal(lk_gram_accept(g, id), 0);
        }
    int32_t bracket = -1, close = -1;
    for (int32_t id = 0; id < 8128; id++) {
        size_t n;
        const char *p = lk_tokenizer_bytes(t, id, &n);
        if (n == 1 && *p == '[') bracket = id;
        if (n == 1 && *p == ']') close = id;
    }
    while (depth < 5000 && !lk_gram_accept(g, bracket)) depth++;
    assert_true(depth > 50 && depth < 1000); /* nesting ends, and everything can still be closed */
    for (int i = 0; i <= depth; i++) assert_int_equal(lk_gram_accept(g, close), 0);
    lk_gram_free(g);
    lk_tokenizer_close(t);
}

/* Calls that are forced read back as calls of the right types. */
static void forced_calls_parse(void **state)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{"
        "\"q\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":50},"
        "\"kind\":{\"enum\":[\"a\",\"b c\"]},"
        "\"opts\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"boolean\"}},\"required\":["
        "\"x\"],\"patternProperties\":{}},"
        "\"maybe\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"q\",\"n\"]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"noop\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"free\",\"parameters\":{\"type\":"
        "\"object\"}}}]";
    json_t *j = json_loads(tools, 0, NULL);
    struct lk_tokenizer *t = demo_tokenizer();
    size_t seen[3] = {0}, calls = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct lk_syntax s;
        struct lk_err e = {0};
        struct lk_buf text = {0};
        const char *want = seed % 4 == 3 ? "find" : NULL;
        if (lk_tools_syntax(&s, j, want, seed & 1, t, &e)) fail_msg("%s", e.text);
        struct lk_gram *g = lk_gram_new(&s, t, stops, 2, &e);
        int rc = walk(t, g, seed, 1, &text, NULL);
        if (rc) fail_msg("walk %d ended with %d: %s", (int)seed, rc, text.data);
        struct lk_reply *r = lk_reply_new(0, j, 1, NULL, NULL);
        lk_reply_push(r, text.data, text.len);
        lk_reply_finish(r);
        const json_t *list = lk_reply_calls(r), *call;
        size_t i;
        assert_int_equal(lk_reply_content(r)->len, 0);
        assert_true(json_array_size(list) >= 1 && (seed & 1 || json_array_size(list) == 1));
        json_array_foreach(list, i, call)
        {
            const char *name = json_string_value(json_object_get(call, "name"));
            const json_t *a = json_object_get(call, "arguments"), *x;
            calls++;
            if (want) assert_string_equal(name, want);
            seen[name[0] == 'f' ? (name[1] == 'i' ? 0 : 2) : 1]++;
            if (strcmp(name, "find")) continue;
            assert_true(json_is_string(json_object_get(a, "q")));
            assert_in_range(json_integer_value(json_object_get(a, "n")), 1, 50);
            if ((x = json_object_get(a, "opts")))
                assert_true(json_is_boolean(json_object_get(x, "x")));
            if ((x = json_object_get(a, "kind")))
                assert_true(!strcmp(json_string_value(x), "a") ||
                            !strcmp(json_string_value(x), "b c"));
        }
        lk_reply_free(r);
        lk_buf_free(&text);
        lk_gram_free(g);
    }
    assert_true(seen[0] && seen[1] && seen[2] && calls > 40);
    struct lk_syntax s;
    struct lk_err e = {0};
    assert_int_equal(lk_tools_syntax(&s, j, "nosuch", 0, t, &e), LK_EREQUEST);
    lk_tokenizer_close(t);
    json_decref(j);
}

static void no_memory_is_survived(void **state)
{
    json_t *j = json_loads("{\"properties\":{\"a\":{\"pattern\":\"^[a-z\\u00e9]+$\"},\"b\":{"
                           "\"items\":{\"enum\":[1,\"x\"]}}},\"additionalProperties\":true}",
                           0, NULL);
    struct lk_tokenizer *t = demo_tokenizer();
    uint32_t bits[512];
    for (int64_t k = 1, n = 1; n >= k; k++) {
        struct lk_err e = {0};
        lk_mem_fail_at(k);
        struct lk_gram *g = gram_of(t, j, &e);
        if (g) {
            lk_gram_mask(g, bits, 8154);
            for (int32_t id = 0; id < 300; id++)
                if (!lk_gram_accept(g, id)) lk_gram_mask(g, bits, 8154);
        }
        n = lk_mem_count();
        lk_mem_fail_at(0);
        lk_gram_free(g);
    }
    lk_tokenizer_close(t);
    json_decref(j);
}

static int print_walks(const char *path, uint64_t seed, int n)
{
    struct lk_tokenizer *t = demo_tokenizer();
    struct lk_buf b = {0}, text = {0};
    file_load(path, &b);
    struct lk_err pe = {0};
    json_t *list = lk_json_parse(b.data, b.len, &pe), *schema;
    size_t i;
    json_array_foreach(list, i, schema)
    {
        for (int k = 0; k < n; k++) {
            struct lk_err e = {0};
            struct lk_gram *g = gram_of(t, schema, &e);
            struct lk_buf out = {0}, fixed = {0};
            int rc = g ? walk(t, g, seed + (uint64_t)k * 1000 + i, 0, &text, NULL) : 0;
            lk__utf8_repair(text.data ? text.data : "", text.len, &fixed);
            lk_json_dump_string(g ? fixed.data : e.text, g ? fixed.len : strlen(e.text), &out);
            printf("[%zu, \"%s\", %s]\n", i, !g ? "refused" : rc ? "stuck" : "text", out.data);
            lk_buf_free(&out);
            lk_buf_free(&fixed);
            lk_gram_free(g);
        }
    }
    json_decref(list);
    lk_buf_free(&b);
    lk_buf_free(&text);
    lk_tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "walk"))
        return print_walks(argv[2], strtoull(argv[3], NULL, 10), atoi(argv[4]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_texts_are_judged_alike),
        cmocka_unit_test(walks_arrive_at_json),
        cmocka_unit_test(mask_and_accept_agree),
        cmocka_unit_test(patterns_agree_with_their_masks),
        cmocka_unit_test(what_cannot_be_enforced_is_named),
        cmocka_unit_test(any_object_is_an_object),
        cmocka_unit_test(forced_calls_parse),
        cmocka_unit_test(no_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
