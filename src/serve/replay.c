/* Sampled turns by their canonical tokens: see replay.h. The key is a hash of the turn as the tokenizer cuts it, the item
 * holds both cuts, and the canonical one is compared in full: another text can never be put in. */
#include "serve/replay.h"

#include "base/buf.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define KEEP_TURNS 4096
#define KEEP_BYTES (64u << 20)

struct turn {
    size_t n, n_sampled;
    int32_t ids[]; /* canonical, then sampled */
};

struct lk_lru *lk_replay_new(void)
{
    return lk_lru_new(KEEP_TURNS, KEEP_BYTES, lk_free);
}

static void make_key(char key[40], const int32_t *ids, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(ids, n * sizeof *ids);
    snprintf(key, 40, "%016" PRIx64 "%016" PRIx64, h.high64, h.low64);
}

static int add_all(struct lk_ids *to, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (lk_ids_add(to, ids[i])) return LK_ENOMEM;
    return 0;
}

int lk_replay_begin(struct lk_ids *turn, const struct lk_tokenizer *t, const struct lk_ids *prompt)
{
    int32_t start = lk_tokenizer_find(t, "<|im_start|>");
    size_t i = prompt->n;
    while (i > 0 && prompt->v[i - 1] != start) i--;
    return i ? add_all(turn, prompt->v + i, prompt->n - i) : 0;
}

/* The turn's text, cut by the tokenizer; control tokens stay. */
static int canonical(const struct lk_tokenizer *t, const struct lk_ids *turn, struct lk_ids *out)
{
    struct lk_buf text = {0};
    int rc = 0;
    for (size_t i = 0; i <= turn->n && !rc; i++) {
        size_t n = 0;
        int special = i < turn->n && lk_tokenizer_is_special(t, turn->v[i]);
        const char *p = i < turn->n && !special ? lk_tokenizer_bytes(t, turn->v[i], &n) : NULL;
        if (p) lk_buf_add(&text, p, n);
        if (p && i < turn->n) continue;
        if (text.len) rc = lk_tokenizer_encode(t, text.data, text.len, LK_SPECIALS_NONE, out, NULL);
        lk_buf_reset(&text);
        if (!rc && i < turn->n) rc = lk_ids_add(out, turn->v[i]);
    }
    if (text.failed) rc = LK_ENOMEM;
    lk_buf_free(&text);
    return rc;
}

void lk_replay_learn(struct lk_lru *s, const struct lk_tokenizer *t, const struct lk_ids *turn)
{
    struct lk_ids plain = {0};
    struct turn *x = NULL;
    char key[40];
    if (!turn->n || canonical(t, turn, &plain)) goto out; /* a cache: it may miss */
    if (plain.n == turn->n && !memcmp(plain.v, turn->v, plain.n * sizeof *plain.v)) goto out;
    size_t bytes = sizeof *x + (plain.n + turn->n) * sizeof *x->ids;
    if (!(x = lk_calloc(1, bytes))) goto out;
    x->n = plain.n;
    x->n_sampled = turn->n;
    memcpy(x->ids, plain.v, plain.n * sizeof *x->ids);
    memcpy(x->ids + plain.n, turn->v, turn->n * sizeof *x->ids);
    make_key(key, plain.v, plain.n);
    lk_lru_put(s, key, x, bytes);
out:
    lk_ids_free(&plain);
}

int lk_replay_apply(struct lk_lru *s, const struct lk_tokenizer *t, struct lk_ids *prompt)
{
    int32_t start = lk_tokenizer_find(t, "<|im_start|>"), end = lk_tokenizer_find(t, "<|im_end|>");
    struct lk_ids out = {0};
    size_t from = 0; /* ids before it are in out */
    int rc = 0;
    if (start < 0 || end < 0 || !lk_lru_count(s)) return 0;
    for (size_t i = 0; i < prompt->n && !rc; i++) {
        if (prompt->v[i] != start) continue;
        size_t a = i + 1, b = a;
        char key[40];
        while (b < prompt->n && prompt->v[b] != end && prompt->v[b] != start) b++;
        if (b == prompt->n || prompt->v[b] != end) continue;
        make_key(key, prompt->v + a, b - a);
        const struct turn *x = lk_lru_get(s, key);
        if (!x || x->n != b - a || memcmp(x->ids, prompt->v + a, x->n * sizeof *x->ids)) continue;
        rc = add_all(&out, prompt->v + from, a - from);
        if (!rc) rc = add_all(&out, x->ids + x->n, x->n_sampled);
        from = b;
    }
    if (from && !rc) rc = add_all(&out, prompt->v + from, prompt->n - from);
    if (from && !rc) {
        lk_ids_free(prompt);
        *prompt = out;
    } else {
        lk_ids_free(&out);
    }
    return rc;
}
