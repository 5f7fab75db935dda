/* Tokenizer against ids of the `tokenizers` library (tests/reference/tokenizer.py), whole and
 * streamed decodes, and what a broken tokenizer.json is told. */
#include "text_files.h"

#include "text/utf8.h"

static uint64_t fnv(const struct lk_ids *ids)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < ids->n; i++)
        for (int k = 0; k < 32; k += 8)
            h = (h ^ (((uint32_t)ids->v[i] >> k) & 0xff)) * 0x100000001b3u;
    return h;
}

static void case_text(const json_t *c, struct lk_buf *b)
{
    const json_t *t = json_object_get(c, "t"), *x = json_object_get(c, "x"),
                 *r = json_object_get(c, "r"), *run;
    size_t i;
    lk_buf_reset(b);
    if (t) lk_buf_add(b, json_string_value(t), json_string_length(t));
    for (i = 0; x && i < json_string_length(x); i += 2) {
        unsigned v = 0;
        sscanf(json_string_value(x) + i, "%2x", &v);
        lk_buf_chr(b, (char)v);
    }
    json_array_foreach(r, i, run)
    {
        const json_t *s = json_array_get(run, 0);
        for (json_int_t k = json_integer_value(json_array_get(run, 1)); k > 0; k--)
            lk_buf_add(b, json_string_value(s), json_string_length(s));
    }
}

static void ids_check(const json_t *want, const struct lk_ids *got, int is_hash, size_t n,
                      const char *which)
{
    if (is_hash) {
        char h[20];
        snprintf(h, sizeof h, "%016llx", (unsigned long long)fnv(got));
        if ((size_t)json_integer_value(json_array_get(want, 0)) != got->n ||
            strcmp(h, json_string_value(json_array_get(want, 1))))
            fail_msg("case %zu (%s): %zu ids, hash %s", n, which, got->n, h);
        return;
    }
    for (size_t i = 0; i < got->n || i < json_array_size(want); i++)
        if (i >= got->n || i >= json_array_size(want) ||
            json_integer_value(json_array_get(want, i)) != got->v[i])
            fail_msg("case %zu (%s): differs at token %zu of %zu", n, which, i,
                     json_array_size(want));
}

/* One regex, one encoding of merges: every case with added tokens on and off. */
static void cases_run(const struct lk_tokenizer *t, const json_t *cases, int old)
{
    struct lk_buf text = {0};
    struct lk_err e = {0};
    const json_t *c;
    size_t n;
    json_array_foreach(cases, n, c)
    {
        case_text(c, &text);
        for (int none = 0; none < 2; none++) {
            const char *key = old ? none ? "qn" : "qa" : none ? "n" : "a";
            const json_t *want = json_object_get(c, key);
            struct lk_ids ids = {0};
            if (!want) want = json_object_get(c, "a");
            if (lk_tokenizer_encode(t, text.data ? text.data : "", text.len,
                                    none ? LK_SPECIALS_NONE : LK_SPECIALS_ALL, &ids, &e))
                fail_msg("case %zu: %s", n, e.text);
            ids_check(want, &ids, json_object_get(c, "r") != NULL, n, key);
            lk_ids_free(&ids);
        }
    }
    lk_buf_free(&text);
}

static json_t *demo_json(void)
{
    struct lk_buf b = {0};
    demo_tokenizer_json(&b);
    json_t *j = json_loadb(b.data, b.len, 0, NULL);
    lk_buf_free(&b);
    assert_non_null(j);
    return j;
}

static struct lk_tokenizer *tokenizer_of(const json_t *j)
{
    char *s = json_dumps(j, JSON_COMPACT);
    struct lk_tokenizer *t = tokenizer_from(s, strlen(s));
    free(s);
    return t;
}

static void merges_to_strings(json_t *j)
{
    json_t *merges = json_object_get(json_object_get(j, "model"), "merges"), *m;
    size_t i;
    json_array_foreach(merges, i, m)
        json_array_set_new(merges, i,
                           json_sprintf("%s %s", json_string_value(json_array_get(m, 0)),
                                        json_string_value(json_array_get(m, 1))));
}

static void regex_set(json_t *j, const json_t *regex)
{
    json_t *split =
        json_array_get(json_object_get(json_object_get(j, "pre_tokenizer"), "pretokenizers"), 0);
    json_object_set(json_object_get(split, "pattern"), "Regex", (json_t *)regex);
}

static void ids_equal_the_library(void **state)
{
    json_t *v = vector_load("tokenizer.json"), *j = demo_json();
    const json_t *cases = json_object_get(v, "cases");
    assert_true(json_array_size(cases) >= 500);
    for (int old = 0; old < 2; old++) {
        if (old) regex_set(j, json_object_get(v, "old_regex"));
        if (old) merges_to_strings(j);
        struct lk_tokenizer *t = tokenizer_of(j);
        cases_run(t, cases, old);
        lk_tokenizer_close(t);
    }
    json_decref(j);
    json_decref(v);
}

static void decode_equals_the_library(void **state)
{
    json_t *v = vector_load("tokenizer.json"), *c;
    struct lk_tokenizer *t = demo_tokenizer();
    size_t n;
    json_array_foreach(json_object_get(v, "decodes"), n, c)
    {
        const json_t *ids = json_object_get(c, "ids");
        for (int skip = 0; skip < 2; skip++) {
            const json_t *want = json_object_get(c, skip ? "s" : "d");
            struct lk_decoder d = {0};
            struct lk_buf out = {0}, piece = {0};
            for (size_t i = 0; i < json_array_size(ids); i++) {
                lk_buf_reset(&piece);
                lk_decoder_push(&d, t, (int32_t)json_integer_value(json_array_get(ids, i)), skip,
                                &piece);
                assert_true(d.n_held <= 3);
                assert_true(lk__utf8_valid(piece.data ? piece.data : "",
                                           piece.len)); /* never half a character */
                lk_buf_add(&out, piece.data, piece.len);
            }
            lk_decoder_flush(&d, &out);
            if (out.len != json_string_length(want) ||
                memcmp(out.data ? out.data : "", json_string_value(want), out.len))
                fail_msg("decode %zu skip %d: %s", n, skip, out.data);
            lk_buf_free(&out);
            lk_buf_free(&piece);
        }
    }
    lk_tokenizer_close(t);
    json_decref(v);
}

static void tokens_can_be_asked(void **state)
{
    struct lk_tokenizer *t = demo_tokenizer();
    size_t n;
    int32_t im_end = lk_tokenizer_find(t, "<|im_end|>"), think = lk_tokenizer_find(t, "<think>");
    assert_int_equal(im_end, 8130);
    assert_int_equal(lk_tokenizer_find(t, "<|im_end"), -1);
    assert_int_equal(lk_tokenizer_find(t, "hello"), -1);
    assert_int_equal(lk_tokenizer_vocab(t), 8154);
    assert_memory_equal(lk_tokenizer_bytes(t, im_end, &n), "<|im_end|>", 10);
    assert_int_equal(lk_tokenizer_is_special(t, im_end), 1);
    assert_int_equal(lk_tokenizer_is_special(t, think), 2);
    assert_int_equal(lk_tokenizer_is_special(t, 5), 0);
    assert_null(lk_tokenizer_bytes(t, 8154, &n));
    assert_null(lk_tokenizer_bytes(t, -1, &n));
    lk_tokenizer_close(t);
}

/* A small valid file with one part replaced; the message must hold `says`. */
static void refused(json_t *good, const char *path, const char *value, const char *says)
{
    json_t *j = json_deep_copy(good), *at = j, *v = json_loads(value, JSON_DECODE_ANY, NULL);
    char key[64];
    const char *p = path, *dot;
    assert_non_null(v);
    for (; (dot = strchr(p, '.')); p = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - p), p);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    }
    if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(p), v);
    else
        json_object_set_new(at, p, v);
    char *s = json_dumps(j, 0);
    struct lk_tokenizer *t;
    struct lk_err e = {0};
    int rc = lk_tokenizer_open(&t, s, strlen(s), &e);
    if (rc != LK_EINPUT || t || strncmp(e.text, "tokenizer.json: ", 16) || !strstr(e.text, says))
        fail_msg("%s=%s: rc %d, says: %s", path, value, rc, e.text);
    free(s);
    json_decref(j);
}

static void broken_files_get_one_line(void **state)
{
    json_t *g = demo_json();
    refused(g, "model.type", "\"WordPiece\"", "model.type");
    refused(g, "model.vocab", "[]", "model.vocab");
    refused(g, "model.vocab", "{}", "no token for byte");
    refused(g, "model.vocab.x", "4000000000", "id must be an integer");
    refused(g, "model.vocab.x", "-1", "id must be an integer");
    refused(g, "model.vocab.x", "1.5", "id must be an integer");
    refused(g, "model.vocab.zzzz9", "3", "belongs to both");
    refused(g, "model.merges", "{}", "model.merges");
    refused(g, "model.merges.0", "\"ab\"", "model.merges[0]");
    refused(g, "model.merges.0", "[\"a\"]", "model.merges[0]");
    refused(g, "model.merges.0", "[\"a\", 1]", "model.merges[0]");
    refused(g, "model.merges.0", "[\"nosuchtoken\", \"a\"]", "not in model.vocab");
    refused(g, "model.dropout", "0.1", "dropout");
    refused(g, "model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix");
    refused(g, "normalizer", "{\"type\": \"NFKC\"}", "NFKC");
    refused(g, "pre_tokenizer", "null", "pre_tokenizer");
    refused(g, "pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "pre_tokenizer");
    refused(g, "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(a\"", "regex");
    refused(g, "pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "Isolated");
    refused(g, "added_tokens", "{}", "added_tokens");
    refused(g, "added_tokens.0.id", "99999999", "added_tokens[0]");
    refused(g, "added_tokens.1.id", "8128", "taken");
    refused(g, "added_tokens.0.content", "\"\"", "content");
    refused(g, "added_tokens.0.lstrip", "true", "lstrip");
    json_decref(g);
    const char *bad[] = {"", "{", "[]", "{\"model\":{},\"model\":{}}", "nul", "\xff\xfe"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct lk_tokenizer *t;
        struct lk_err e = {0};
        assert_int_equal(lk_tokenizer_open(&t, bad[i], strlen(bad[i]), &e), LK_EINPUT);
        assert_null(strchr(e.text, '\n'));
    }
}

static void no_memory_is_survived(void **state)
{
    struct lk_tokenizer *t = demo_tokenizer();
    const char *text = "caf\xc3\xa9 e\xcc\x81 <|im_end|> 0123456789 "
                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xff";
    for (int k = 1; k < 40; k++) {
        struct lk_ids ids = {0};
        struct lk_err e = {0};
        lk_mem_fail_at(k);
        int rc = lk_tokenizer_encode(t, text, strlen(text), LK_SPECIALS_ALL, &ids, &e);
        int64_t n = lk_mem_count();
        lk_mem_fail_at(0);
        lk_ids_free(&ids);
        assert_int_equal(rc, n >= k ? LK_ENOMEM : 0);
    }
    lk_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_library), cmocka_unit_test(decode_equals_the_library),
        cmocka_unit_test(tokens_can_be_asked),   cmocka_unit_test(broken_files_get_one_line),
        cmocka_unit_test(no_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
