/* tokenizer.json -> struct lk_tokenizer. Refuses what it cannot reproduce (another model type,
 * normalizer or pre-tokenizer, dropout, tokens that strip their surroundings) with one line that
 * names the field, and any id, merge or byte that does not fit together. Nothing is allocated by a
 * number from the file that was not compared with the file's size. */
#include "text/tokenizer_int.h"

#include "text/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_ADDED = 65536, MAX_TOKEN_BYTES = 1 << 20, MAX_PATTERN = 4096 };

/* GPT-2's regex, which a ByteLevel pre-tokenizer with use_regex stands for. */
static const char gpt2_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Loading only: JSON token text -> id, and the character-to-byte map. */
struct load {
    struct lk_tokenizer *t;
    int32_t *slots; /* vocabulary by its text in the file */
    size_t mask;
    const char **text;
    size_t *text_len;
    int16_t byte_of[0x180]; /* code point -> byte, -1 */
};

static void byte_map_make(int16_t byte_of[0x180])
{
    int next = 0;
    for (int i = 0; i < 0x180; i++) byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        int own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        byte_of[own ? b : 0x100 + next++] = (int16_t)b;
    }
}

/* A token's text -> its bytes; a text with a character outside the map stands for itself (as in the
 * reference library). */
static int token_bytes(struct load *l, const char *s, size_t n, struct lk_tok *out)
{
    char *b = lk_arena_alloc(&l->t->arena, n + 1);
    size_t used = 0;
    if (!b) return LK_ENOMEM;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int bad, cut, k = lk__utf8_next(s + i, n - i, &cp, &bad, &cut);
        if (!k || cp >= 0x180 || l->byte_of[cp] < 0) {
            memcpy(b, s, n);
            used = n;
            break;
        }
        b[used++] = (char)l->byte_of[cp];
        i += (size_t)k;
    }
    out->bytes = b;
    out->len = (uint32_t)used;
    return 0;
}

static size_t text_slot(const struct load *l, const char *s, size_t n)
{
    size_t i = (size_t)XXH3_64bits(s, n) & l->mask;
    while (l->slots[i] >= 0) {
        int32_t id = l->slots[i];
        if (l->text_len[id] == n && !memcmp(l->text[id], s, n)) break;
        i = (i + 1) & l->mask;
    }
    return i;
}

static int32_t text_find(const struct load *l, const char *s, size_t n)
{
    return l->slots[text_slot(l, s, n)];
}

/* Highest id in vocab and added tokens, checked against how many there are: ids may leave gaps, not
 * deserts. */
static int ids_limit(const json_t *vocab, const json_t *added, int64_t *n_ids, struct lk_err *e)
{
    int64_t top = -1,
            most = 2 * (int64_t)(json_object_size(vocab) + json_array_size(added)) + 65536;
    const char *k;
    json_t *v;
    size_t i;
    json_object_foreach((json_t *)vocab, k, v)
    {
        int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= most)
            return lk_fail(e, LK_EINPUT,
                           "model.vocab: token \"%.40s\": id must be an integer 0 to %lld", k,
                           (long long)most - 1);
        if (id > top) top = id;
    }
    json_array_foreach(added, i, v)
    {
        const json_t *x = json_object_get(v, "id");
        int64_t id = json_is_integer(x) ? json_integer_value(x) : -1;
        if (id < 0 || id >= most)
            return lk_fail(e, LK_EINPUT, "added_tokens[%zu]: id must be an integer 0 to %lld", i,
                           (long long)most - 1);
        if (id > top) top = id;
    }
    *n_ids = top + 1;
    return 0;
}

static int load_vocab(struct load *l, const json_t *vocab, int64_t n_ids, struct lk_err *e)
{
    struct lk_tokenizer *t = l->t;
    const char *k;
    json_t *v;
    size_t cap = 16;
    while (cap < json_object_size(vocab) * 2) cap *= 2;
    t->tok = lk_calloc((size_t)n_ids, sizeof *t->tok);
    l->text = lk_calloc((size_t)n_ids, sizeof *l->text);
    l->text_len = lk_calloc((size_t)n_ids, sizeof *l->text_len);
    l->slots = lk_reallocarray(NULL, cap, sizeof *l->slots);
    if (!t->tok || !l->text || !l->text_len || !l->slots)
        return lk_fail(e, LK_ENOMEM, "out of memory");
    memset(l->slots, 0xff, cap * sizeof *l->slots);
    l->mask = cap - 1;
    t->n_tok = (int32_t)n_ids;
    json_object_foreach((json_t *)vocab, k, v)
    {
        int32_t id = (int32_t)json_integer_value(v);
        size_t klen = strlen(k); /* the parser refuses NUL */
        if (t->tok[id].kind)
            return lk_fail(e, LK_EINPUT,
                           "model.vocab: id %d belongs to both \"%.40s\" and \"%.40s\"", id,
                           l->text[id], k);
        if (!klen || klen > MAX_TOKEN_BYTES)
            return lk_fail(e, LK_EINPUT, "model.vocab: id %d has a token of %zu bytes", id, klen);
        t->tok[id].kind = LK_TOK_VOCAB;
        l->text[id] = k;
        l->text_len[id] = klen;
        if (token_bytes(l, k, klen, &t->tok[id])) return lk_fail(e, LK_ENOMEM, "out of memory");
        l->slots[text_slot(l, k, klen)] = id;
    }
    return 0;
}

static int load_bytes(struct load *l, struct lk_err *e)
{
    for (int c = 0; c < 0x180; c++) {
        char u[4];
        if (l->byte_of[c] < 0) continue;
        int32_t id = text_find(l, u, (size_t)lk__utf8_put(u, (uint32_t)c));
        if (id < 0)
            return lk_fail(
                e, LK_EINPUT,
                "model.vocab: no token for byte 0x%02x; a byte-level vocabulary has all 256",
                (unsigned)l->byte_of[c]);
        l->t->byte_id[l->byte_of[c]] = id;
    }
    return 0;
}

/* A merge is "left right" or ["left", "right"]; both encodings are in circulation. */
static int merge_parts(const json_t *m, const char **a, size_t *na, const char **b, size_t *nb)
{
    if (json_is_array(m) && json_array_size(m) == 2) {
        const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
        *a = json_string_value(x), *b = json_string_value(y);
        *na = json_string_length(x), *nb = json_string_length(y);
        return *a && *b ? 0 : -1;
    }
    *a = json_string_value(m);
    const char *gap = *a ? strchr(*a, ' ') : NULL;
    if (!gap || strchr(gap + 1, ' ')) return -1;
    *b = gap + 1;
    *na = (size_t)(gap - *a);
    *nb = strlen(*b);
    return 0;
}

static int load_merges(struct load *l, const json_t *merges, struct lk_err *e)
{
    size_t i;
    json_t *m;
    struct lk_buf joint = {0};
    int rc = 0;
    if (lk__bpe_init(&l->t->bpe, json_array_size(merges)))
        return lk_fail(e, LK_ENOMEM, "out of memory");
    json_array_foreach(merges, i, m)
    {
        const char *a, *b;
        size_t na, nb;
        if (merge_parts(m, &a, &na, &b, &nb)) {
            rc = lk_fail(e, LK_EINPUT,
                         "model.merges[%zu]: must be \"left right\" or [\"left\", \"right\"]", i);
            break;
        }
        int32_t left = text_find(l, a, na), right = text_find(l, b, nb);
        lk_buf_reset(&joint);
        lk_buf_add(&joint, a, na);
        lk_buf_add(&joint, b, nb);
        if (joint.failed) {
            rc = lk_fail(e, LK_ENOMEM, "out of memory");
            break;
        }
        int32_t id = text_find(l, joint.data ? joint.data : "", joint.len);
        if (left < 0 || right < 0 || id < 0) {
            rc = lk_fail(e, LK_EINPUT, "model.merges[%zu]: \"%.40s\" is not in model.vocab", i,
                         left < 0    ? a
                         : right < 0 ? b
                                     : joint.data);
            break;
        }
        lk__bpe_put(&l->t->bpe, left, right, (int32_t)i, id);
    }
    lk_buf_free(&joint);
    return rc;
}

static int flag(const json_t *o, const char *name)
{
    return json_is_true(json_object_get(o, name));
}

static int load_added_one(struct load *l, size_t i, const json_t *a, struct lk_err *e)
{
    struct lk_tokenizer *t = l->t;
    const json_t *text = json_object_get(a, "content");
    size_t n = json_string_length(text);
    int32_t id = (int32_t)json_integer_value(json_object_get(a, "id"));
    if (!n || n > MAX_TOKEN_BYTES)
        return lk_fail(e, LK_EINPUT, "added_tokens[%zu]: content must be a string of 1 to %d bytes",
                       i, MAX_TOKEN_BYTES);
    if (flag(a, "lstrip") || flag(a, "rstrip") || flag(a, "single_word"))
        return lk_fail(e, LK_EINPUT,
                       "added_tokens[%zu]: lstrip, rstrip and single_word are not supported", i);
    struct lk_tok *tok = &t->tok[id];
    if (tok->kind > LK_TOK_VOCAB ||
        (tok->kind && (l->text_len[id] != n || memcmp(l->text[id], json_string_value(text), n))))
        return lk_fail(e, LK_EINPUT, "added_tokens[%zu]: id %d is taken by another token", i, id);
    tok->bytes = lk_arena_strndup(&t->arena, json_string_value(text), n);
    if (!tok->bytes) return lk_fail(e, LK_ENOMEM, "out of memory");
    tok->len = (uint32_t)n;
    tok->kind = flag(a, "special") ? LK_TOK_SPECIAL : LK_TOK_ADDED;
    struct lk_added_set *s = flag(a, "normalized") && t->nfc ? &t->normal : &t->raw;
    s->ids[s->n++] = id;
    return 0;
}

static int added_cmp(const void *a, const void *b, void *tok)
{
    const struct lk_tok *x = (struct lk_tok *)tok + *(const int32_t *)a,
                        *y = (struct lk_tok *)tok + *(const int32_t *)b;
    int c = (unsigned char)x->bytes[0] - (unsigned char)y->bytes[0];
    if (c) return c;
    return x->len != y->len ? (x->len > y->len ? -1 : 1)
                            : *(const int32_t *)a - *(const int32_t *)b;
}

static void added_sort(struct lk_tokenizer *t, struct lk_added_set *s)
{
    qsort_r(s->ids, s->n, sizeof *s->ids, added_cmp, t->tok);
    size_t k = 0;
    for (int c = 0; c < 257; c++) {
        while (k < s->n && (unsigned char)t->tok[s->ids[k]].bytes[0] < c) k++;
        s->first[c] = k;
    }
}

static int load_added(struct load *l, const json_t *added, struct lk_err *e)
{
    struct lk_tokenizer *t = l->t;
    size_t i, n = json_array_size(added);
    json_t *a;
    if (n > MAX_ADDED)
        return lk_fail(e, LK_EINPUT, "added_tokens: %zu of them, at most %d", n, MAX_ADDED);
    t->raw.ids = lk_calloc(n + 1, sizeof(int32_t));
    t->normal.ids = lk_calloc(n + 1, sizeof(int32_t));
    if (!t->raw.ids || !t->normal.ids) return lk_fail(e, LK_ENOMEM, "out of memory");
    json_array_foreach(added, i, a)
    {
        int rc = load_added_one(l, i, a, e);
        if (rc) return rc;
    }
    added_sort(t, &t->raw);
    added_sort(t, &t->normal);
    return 0;
}

static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s ? s : "";
}

static int load_normalizer(struct lk_tokenizer *t, const json_t *n, struct lk_err *e)
{
    const json_t *list = json_object_get(n, "normalizers");
    if (!n || json_is_null(n)) return 0;
    if (!strcmp(type_of(n), "Sequence") && json_array_size(list) <= 1) {
        if (json_array_size(list) == 0) return 0;
        n = json_array_get(list, 0);
    }
    if (strcmp(type_of(n), "NFC"))
        return lk_fail(e, LK_EINPUT, "normalizer: type \"%.40s\" is not supported, NFC or null is",
                       type_of(n));
    t->nfc = 1;
    return 0;
}

static int load_split(struct lk_tokenizer *t, const json_t *p, struct lk_err *e)
{
    const json_t *re = json_object_get(json_object_get(p, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(p, "behavior"));
    if (!json_is_string(re) || !behavior || strcmp(behavior, "Isolated") || flag(p, "invert"))
        return lk_fail(
            e, LK_EINPUT,
            "pre_tokenizer: Split must have pattern.Regex, behavior Isolated and invert false");
    if (json_string_length(re) > MAX_PATTERN)
        return lk_fail(e, LK_EINPUT, "pre_tokenizer: a regex of %zu bytes, at most %d",
                       json_string_length(re), MAX_PATTERN);
    return lk__regex_compile(&t->re, json_string_value(re), json_string_length(re), e);
}

/* Sequence[Split, ByteLevel] or ByteLevel alone, which is what byte-level BPE files hold. */
static int load_pre(struct lk_tokenizer *t, const json_t *p, struct lk_err *e)
{
    const json_t *list = json_object_get(p, "pretokenizers"), *byte = p;
    if (!strcmp(type_of(p), "Sequence")) {
        size_t n = json_array_size(list);
        byte = json_array_get(list, n - 1);
        if (n < 1 || n > 2)
            return lk_fail(e, LK_EINPUT,
                           "pre_tokenizer: a Sequence of %zu, expected Split, ByteLevel", n);
        if (n == 2) {
            if (strcmp(type_of(json_array_get(list, 0)), "Split"))
                return lk_fail(e, LK_EINPUT,
                               "pre_tokenizer: type \"%.40s\" is not supported, Split is",
                               type_of(json_array_get(list, 0)));
            int rc = load_split(t, json_array_get(list, 0), e);
            if (rc) return rc;
        }
    }
    if (strcmp(type_of(byte), "ByteLevel"))
        return lk_fail(e, LK_EINPUT, "pre_tokenizer: type \"%.40s\" is not supported, ByteLevel is",
                       type_of(byte));
    if (flag(byte, "add_prefix_space"))
        return lk_fail(e, LK_EINPUT, "pre_tokenizer: add_prefix_space is not supported");
    int use = !json_is_false(json_object_get(byte, "use_regex"));
    if (use && t->re)
        return lk_fail(e, LK_EINPUT,
                       "pre_tokenizer: Split and use_regex together are not supported");
    return use ? lk__regex_compile(&t->re, gpt2_regex, sizeof gpt2_regex - 1, e) : 0;
}

static int nonempty(const json_t *o, const char *name)
{
    return json_string_length(json_object_get(o, name)) > 0;
}

static int check_model(const json_t *m, struct lk_err *e)
{
    if (!json_is_object(m)) return lk_fail(e, LK_EINPUT, "model: must be an object");
    if (json_object_get(m, "type") && strcmp(type_of(m), "BPE"))
        return lk_fail(e, LK_EINPUT, "model.type: \"%.40s\" is not supported, BPE is", type_of(m));
    if (!json_is_object(json_object_get(m, "vocab")))
        return lk_fail(e, LK_EINPUT, "model.vocab: must be an object");
    if (!json_is_array(json_object_get(m, "merges")))
        return lk_fail(e, LK_EINPUT, "model.merges: must be an array");
    if (json_number_value(json_object_get(m, "dropout")) != 0.0)
        return lk_fail(e, LK_EINPUT, "model.dropout: must be null or 0");
    if (nonempty(m, "continuing_subword_prefix") || nonempty(m, "end_of_word_suffix"))
        return lk_fail(e, LK_EINPUT,
                       "model: continuing_subword_prefix and end_of_word_suffix are not supported");
    return 0;
}

static int load_by_bytes(struct lk_tokenizer *t, struct lk_err *e)
{
    size_t cap = 16;
    while (cap < (size_t)t->n_tok * 2) cap *= 2;
    t->by_bytes = lk_reallocarray(NULL, cap, sizeof *t->by_bytes);
    if (!t->by_bytes) return lk_fail(e, LK_ENOMEM, "out of memory");
    memset(t->by_bytes, 0xff, cap * sizeof *t->by_bytes);
    t->by_bytes_mask = cap - 1;
    for (int32_t id = 0; id < t->n_tok; id++) {
        if (t->tok[id].kind != LK_TOK_VOCAB) continue;
        size_t i = (size_t)XXH3_64bits(t->tok[id].bytes, t->tok[id].len) & t->by_bytes_mask;
        while (t->by_bytes[i] >= 0) i = (i + 1) & t->by_bytes_mask;
        t->by_bytes[i] = id;
    }
    return 0;
}

static int load_all(struct load *l, const json_t *root, struct lk_err *e)
{
    const json_t *m = json_object_get(root, "model"),
                 *added = json_object_get(root, "added_tokens");
    int64_t n_ids = 0;
    int rc;
    if (added && !json_is_array(added) && !json_is_null(added))
        return lk_fail(e, LK_EINPUT, "added_tokens: must be an array");
    if (!json_is_array(added)) added = NULL;
    if ((rc = check_model(m, e))) return rc;
    if ((rc = ids_limit(json_object_get(m, "vocab"), added, &n_ids, e))) return rc;
    if ((rc = load_vocab(l, json_object_get(m, "vocab"), n_ids, e))) return rc;
    if ((rc = load_bytes(l, e))) return rc;
    if ((rc = load_merges(l, json_object_get(m, "merges"), e))) return rc;
    if ((rc = load_normalizer(l->t, json_object_get(root, "normalizer"), e))) return rc;
    if ((rc = load_pre(l->t, json_object_get(root, "pre_tokenizer"), e))) return rc;
    if (flag(m, "ignore_merges") && (rc = load_by_bytes(l->t, e))) return rc;
    return load_added(l, added, e);
}

int lk__tokenizer_load(struct lk_tokenizer *t, const char *json, size_t len, struct lk_err *e)
{
    json_error_t je;
    struct load l = {.t = t};
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &je);
    if (!root) return lk_fail(e, LK_EINPUT, "line %d: %.200s", je.line, je.text);
    byte_map_make(l.byte_of);
    int rc = json_is_object(root) ? load_all(&l, root, e)
                                  : lk_fail(e, LK_EINPUT, "must be a JSON object");
    lk_free(l.slots);
    lk_free(l.text);
    lk_free(l.text_len);
    json_decref(root);
    return rc;
}
