/* What a mask costs with a vocabulary of 248k tokens: the demo's tokens and pairs of them, which
 * are about as long as the large model's. Prints mean, median, 99 % and worst of the masks of texts
 * under ordinary and under hard schemas, in processor time (other work on the machine does not
 * count). Warm-up builds the vocabulary's tree and the tables of a schema's character classes; then
 * a new grammar, which knows no state yet, and the same grammar again, as the next request of its
 * schema gets it.
 * usage: bench_grammar [tokenizer.json] [part of a name] */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"
#include "text/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 248044 };

static struct lk_tokenizer *vocabulary(const char *path)
{
    struct lk_buf b = {0}, key = {0};
    struct lk_err e = {0};
    struct lk_tokenizer *t = NULL;
    if (lk_file_read(&b, path, 64 << 20, &e)) return NULL;
    json_t *root = json_loadb(b.data, b.len, 0, NULL), *model = json_object_get(root, "model"),
           *v = json_object_get(model, "vocab"), *x;
    const char **words = malloc(sizeof *words * (json_object_size(v) + 1)), *k;
    size_t n = 0;
    uint64_t s = 1;
    json_object_foreach(v, k, x) words[n++] = k;
    while (json_object_size(v) < TOKENS) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        lk_buf_reset(&key);
        lk_buf_str(&key, words[(s >> 33) % n]);
        lk_buf_str(&key, words[(s >> 17) % n]);
        if (!json_object_get(v, key.data))
            json_object_set_new(v, key.data,
                                json_integer((json_int_t)json_object_size(v) + 100000));
    }
    json_array_clear(json_object_get(model, "merges"));
    char *text = json_dumps(root, JSON_COMPACT);
    if (lk_tokenizer_open(&t, text, strlen(text), &e)) fprintf(stderr, "%s\n", e.text);
    free(text);
    free(words);
    json_decref(root);
    lk_buf_free(&b);
    lk_buf_free(&key);
    return t;
}

struct lk_case {
    const char *name, *schema, *text;
};

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double worst_new, worst_again;

/* One text; the masks' milliseconds go to ms[]. */
static int masks(const struct lk_tokenizer *t, struct lk_gram *g, const struct lk_case *c,
                 double ms[2000])
{
    static uint32_t bits[(TOKENS + 200000) / 32];
    struct lk_ids ids = {0};
    struct lk_err e = {0};
    int n = 0;
    lk_tokenizer_encode(t, c->text, strlen(c->text), LK_SPECIALS_NONE, &ids, &e);
    for (size_t i = 0; i < ids.n && n < 2000; i++) {
        double t0 = cpu_ms();
        lk_gram_mask(g, bits, lk_tokenizer_vocab(t));
        ms[n++] = cpu_ms() - t0;
        if (lk_gram_accept(g, ids.v[i])) {
            printf("%s: refused at token %zu\n", c->name, i);
            break;
        }
    }
    lk_ids_free(&ids);
    return n;
}

static void say(const char *what, double *ms, int n, double *worst)
{
    double sum = 0;
    lk_sort_doubles(ms, (size_t)n);
    for (int i = 0; i < n; i++) sum += ms[i];
    printf(" | %s mean %6.3f, median %6.3f, worst %6.3f", what, sum / n, ms[n / 2], ms[n - 1]);
    if (ms[n - 1] > *worst) *worst = ms[n - 1];
}

static void pass(const struct lk_tokenizer *t, const struct lk_case *c, int show)
{
    double ms[2000], t0 = cpu_ms();
    struct lk_syntax s;
    struct lk_err e = {0};
    json_t *j = c->schema ? json_loads(c->schema, 0, NULL) : NULL;
    struct lk_gram *g = lk_schema_syntax(&s, j, &e) ? NULL : lk_gram_new(&s, t, NULL, 0, &e);
    double made = cpu_ms() - t0;
    if (!g) {
        printf("%s: %s\n", c->name, e.text);
        return;
    }
    int n = masks(t, g, c, ms);
    if (show) {
        printf("%-36s %4d masks, made in %.2f ms", c->name, n, made);
        say("new:", ms, n, &worst_new);
        lk_gram_restart(g);
        say("seen before:", ms, masks(t, g, c, ms), &worst_again);
        printf("\n");
    }
    lk_gram_free(g);
    json_decref(j);
}

/* {"k": {"type": "string"}, ...} and an object that has them all, or an enum of many strings. */
static void make_large(struct lk_buf *schema, struct lk_buf *text, int kind)
{
    lk_buf_str(schema, kind ? "{\"properties\":{\"e\":{\"enum\":["
                            : "{\"additionalProperties\":{\"type\":\"string\"},\"properties\":{");
    lk_buf_str(text, kind ? "{\"e\": \"the choice number 377\"}" : "{");
    for (int i = 0; i < (kind ? 500 : 200); i++) {
        if (kind) {
            lk_buf_fmt(schema, "%s\"the choice number %d\"", i ? "," : "", i);
            continue;
        }
        lk_buf_fmt(schema, "%s\"field_%d\":{\"type\":\"%s\"}", i ? "," : "", i,
                   i % 3 ? "string" : "integer");
        if (i % 20 == 0)
            lk_buf_fmt(text, "%s\"field_%d\": %s", i ? ", " : "", i,
                       i % 3 ? "\"some words\"" : "12");
    }
    lk_buf_str(schema, kind ? "]}},\"required\":[\"e\"]}" : "}}");
    if (!kind) lk_buf_str(text, ", \"more\": \"of it\"}");
}

#define STRING(p)                                                                                  \
    "{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\"," p "}},\"required\":[\"p\"]" \
                                                                         "}"

int main(int argc, char **argv)
{
    struct lk_buf large[2][2] = {{{0}}};
    for (int k = 0; k < 2; k++) make_large(&large[k][0], &large[k][1], k);
    const struct lk_case cases[] = {
        {"json_object", NULL,
         "{\"title\": \"A long walk\", \"tags\": [\"x\", \"two words\"], \"n\": -12.5, \"o\": "
         "{\"deep\": null, \"text\": "
         "\"Some sentence with \\\"quotes\\\" and more words in it.\"}}"},
        {"ordinary json_schema",
         "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":80},"
         "\"kind\":{\"enum\":[\"a\",\"b\"]},"
         "\"n\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":500},\"steps\":{\"type\":\"array\","
         "\"items\":{\"type\":\"object\","
         "\"properties\":{\"text\":{\"type\":\"string\"},\"done\":{\"type\":\"boolean\"}},"
         "\"required\":[\"text\",\"done\"]}}},"
         "\"required\":[\"title\",\"kind\",\"n\",\"steps\"]}",
         "{\"title\": \"A long walk in the hills\", \"kind\": \"a\", \"n\": 42, \"steps\": "
         "[{\"text\": \"put on shoes and go out "
         "of the house\", \"done\": true}, {\"text\": \"walk\", \"done\": false}]}"},
        {"200 properties and others", large[0][0].data, large[0][1].data},
        {"enum of 500 strings", large[1][0].data, large[1][1].data},
        {"tree by $ref, anyOf",
         "{\"$ref\":\"#/$defs/"
         "n\",\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
         "\"string\"},"
         "\"left\":{\"$ref\":\"#/$defs/n\"},\"right\":{\"$ref\":\"#/$defs/"
         "n\"}},\"required\":[\"name\",\"left\",\"right\"]},"
         "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"value\":{\"type\":"
         "\"number\"}},\"required\":[\"name\","
         "\"value\"]},{\"type\":\"null\"}]}}}",
         "{\"name\": \"top\", \"left\": {\"name\": \"x\", \"value\": 1.5}, \"right\": {\"name\": "
         "\"y\", \"left\": null, \"right\": "
         "{\"name\": \"z\", \"value\": -3}}}"},
        {"bounded numbers",
         "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":-273.15,\"maximum\":"
         "1000000},\"minItems\":3,\"maxItems\":64}",
         "[-273.1, 0, 17.25, 999999.5, 3, 88]"},
        {"lengths", STRING("\"minLength\":10,\"maxLength\":40"),
         "{\"p\": \"exactly forty characters or nearly so\"}"},
        {"format date-time", STRING("\"format\":\"date-time\""),
         "{\"p\": \"2026-02-28T23:59:59.123Z\"}"},
        {"format uuid", STRING("\"format\":\"uuid\""),
         "{\"p\": \"123e4567-e89b-12d3-a456-426614174000\"}"},
        {"format email", STRING("\"format\":\"email\""),
         "{\"p\": \"some.body+tag@mail.example.org\"}"},
        {"format uri", STRING("\"format\":\"uri\""),
         "{\"p\": \"https://example.org:8080/a/b.html?x=1&y=2#frag\"}"},
        {"pattern: not anchored", STRING("\"pattern\":\"foo[0-9]+bar\""),
         "{\"p\": \"some words foo12bar and more words, \\\"quoted\\\"\"}"},
        {"pattern: ends not anchored", STRING("\"pattern\":\"^https?://\""),
         "{\"p\": \"https://example.org/x y z\"}"},
        {"pattern: classes", STRING("\"pattern\":\"^[^\\\\s@]+@[^\\\\s@]+$\""),
         "{\"p\": \"someone@somewhere.example\"}"},
        {"pattern: identifier", STRING("\"pattern\":\"^[A-Za-z_][A-Za-z0-9_]*$\""),
         "{\"p\": \"some_name_2\"}"},
        {"pattern: group repeated", STRING("\"pattern\":\"^(\\\\w+\\\\.)+\\\\w{2,5}$\""),
         "{\"p\": \"alpha.beta.gamma.delta\"}"},
        {"pattern: words", STRING("\"pattern\":\"^[A-Z][a-z]+( [A-Z][a-z]+)*$\""),
         "{\"p\": \"Some Title Of One Book\"}"},
        {"pattern: escapes by hand", STRING("\"pattern\":\"^(?:[^\\\\\\\\/]|\\\\\\\\.)*$\""),
         "{\"p\": \"some text and \\\\n more text\"}"},
        {"pattern: counted dots", STRING("\"pattern\":\"^.{5,60}$\""),
         "{\"p\": \"some words that are not too many\"}"},
        {"pattern: wide, then narrow", STRING("\"pattern\":\"^.*ab[a-z ]{3,40}$\""),
         "{\"p\": \"something with ab and then lower case\"}"},
        {"pattern: a at the 20th from the end", STRING("\"pattern\":\"^.*a.{20}$\""),
         "{\"p\": \"banana and 12345678901234567\"}"},
        {"pattern: letters of all scripts",
         STRING("\"pattern\":\"^[\\\\u00c0-\\\\u024f\\\\u0400-\\\\u04ff\\\\u4e00-\\\\u9fff "
                "a-zA-Z]+$\""),
         "{\"p\": \"caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd word\"}"},
    };
    struct lk_tokenizer *t = vocabulary(argc > 1 ? argv[1] : "models/demo/tokenizer.json");
    if (!t) return 1;
    printf("%d ids\n", lk_tokenizer_vocab(t));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++)
            if (argc < 3 || strstr(cases[i].name, argv[2])) pass(t, &cases[i], k > 1);
    printf("worst mask of all: %.3f ms under a new grammar, %.3f under one that was seen before\n",
           worst_new, worst_again);
    for (int k = 0; k < 4; k++) lk_buf_free(&large[k / 2][k % 2]);
    lk_tokenizer_close(t);
    return 0;
}
