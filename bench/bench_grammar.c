/* What a mask costs with a vocabulary of 248k tokens: the demo's tokens and pairs of them, which
 * are about as long as the large model's. Prints the mean, the median and the worst mask of texts
 * under some schemas; the first pass also builds the vocabulary's tree and tables (warm-up), later
 * passes are new requests. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void pass(const struct lk_tokenizer *t, const char *schema, const char *text,
                 const char *what)
{
    static uint32_t bits[(TOKENS + 200000) / 32];
    double ms[2000], sum = 0;
    struct lk_syntax s;
    struct lk_err e = {0};
    int n = 0;
    json_t *j = schema ? json_loads(schema, 0, NULL) : NULL;
    struct lk_gram *g = lk_schema_syntax(&s, j, &e) ? NULL : lk_gram_new(&s, t, NULL, 0, &e);
    if (!g) {
        printf("%s\n", e.text);
        return;
    }
    struct lk_ids ids = {0};
    lk_tokenizer_encode(t, text, strlen(text), LK_SPECIALS_NONE, &ids, &e);
    for (size_t i = 0; i < ids.n && n < 2000; i++) {
        double t0 = lk_clock();
        lk_gram_mask(g, bits, lk_tokenizer_vocab(t));
        ms[n] = (lk_clock() - t0) * 1e3;
        sum += ms[n++];
        if (lk_gram_accept(g, ids.v[i])) {
            printf("%s: refused at token %zu\n", what, i);
            break;
        }
    }
    qsort(ms, (size_t)n, sizeof *ms, cmp);
    printf("%-28s %4d masks: mean %.3f ms, median %.3f, 99%% %.3f, worst %.3f\n", what, n, sum / n,
           ms[n / 2], ms[n * 99 / 100], ms[n - 1]);
    lk_ids_free(&ids);
    lk_gram_free(g);
    json_decref(j);
}

int main(int argc, char **argv)
{
    static const char free_text[] = "{\"title\": \"A long walk\", \"tags\": [\"x\", \"two "
                                    "words\"], \"n\": -12.5, \"o\": {\"deep\": null, \"text\": "
                                    "\"Some sentence with \\\"quotes\\\" and more words in it.\"}}";
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":80},"
        "\"kind\":{\"enum\":[\"a\",\"b\"]},\"n\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":"
        "500},"
        "\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"text\":{"
        "\"type\":\"string\"},\"done\":{\"type\":\"boolean\"}},\"required\":[\"text\",\"done\"]}}},"
        "\"required\":[\"title\",\"kind\",\"n\",\"steps\"]}";
    static const char text[] = "{\"title\": \"A long walk in the hills\", \"kind\": \"a\", \"n\": "
                               "42, \"steps\": [{\"text\": \"put on shoes and go out of the "
                               "house\", \"done\": true}, {\"text\": \"walk\", \"done\": false}]}";
    static const char pattern[] = "{\"type\":\"object\",\"properties\":{\"p\":{\"type\":\"string\","
                                  "\"pattern\":\"^.*ab[a-z ]{3,40}$\"}},\"required\":[\"p\"]}";
    struct lk_tokenizer *t = vocabulary(argc > 1 ? argv[1] : "models/demo/tokenizer.json");
    if (!t) return 1;
    printf("%d ids\n", lk_tokenizer_vocab(t));
    for (int i = 0; i < 3; i++) {
        printf(i ? "request %d\n" : "warm-up\n", i);
        pass(t, NULL, free_text, "json_object");
        pass(t, schema, text, "json_schema");
        pass(t, pattern, "{\"p\": \"something with ab and then lower case\"}",
             "json_schema, wide pattern");
    }
    lk_tokenizer_close(t);
    return 0;
}
