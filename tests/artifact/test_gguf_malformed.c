/* Broken GGUF files: each gives LK_EINPUT and one line with file, key or tensor, expected and found; no crash, no big allocation. */
#include "artifact/artifact.h"
#include "artifact/st_make.h"
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { T_U8 = 0, T_U32 = 4, T_I32 = 5, T_F32 = 6, T_STR = 8, T_ARR = 9, T_U64 = 10 };

struct maker {
    struct lk_buf kv, ti, out;
    uint64_t n_kv, n_t;
    size_t data; /* bytes of tensor data */
    uint32_t version;
};

static void u32(struct lk_buf *b, uint32_t v)
{
    lk_buf_add(b, &v, 4);
}

static void u64(struct lk_buf *b, uint64_t v)
{
    lk_buf_add(b, &v, 8);
}

static void str(struct lk_buf *b, const char *s)
{
    u64(b, strlen(s));
    lk_buf_str(b, s);
}

static struct lk_buf *key(struct maker *m, const char *k, uint32_t type)
{
    str(&m->kv, k);
    u32(&m->kv, type);
    m->n_kv++;
    return &m->kv;
}

static void key_u32(struct maker *m, const char *k, uint32_t v)
{
    u32(key(m, k, T_U32), v);
}

static void tensor(struct maker *m, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    str(&m->ti, name);
    u32(&m->ti, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) u64(&m->ti, dims[i]);
    u32(&m->ti, type);
    u64(&m->ti, offset);
    m->n_t++;
}

/* A file that opens: config keys, three tokens, an embedding of [4, 32] F32. */
static void whole(struct maker *m, int with_tokens)
{
    *m = (struct maker){.version = 3, .data = 512};
    str(key(m, "general.architecture", T_STR), "qwen35");
    key_u32(m, "qwen35.block_count", 4);
    key_u32(m, "qwen35.embedding_length", 32);
    key_u32(m, "qwen35.feed_forward_length", 32);
    key_u32(m, "qwen35.attention.head_count", 2);
    key_u32(m, "qwen35.attention.head_count_kv", 1);
    key_u32(m, "qwen35.ssm.group_count", 1);
    key_u32(m, "qwen35.ssm.time_step_rank", 2);
    if (with_tokens) {
        struct lk_buf *b = key(m, "tokenizer.ggml.tokens", T_ARR);
        u32(b, T_STR);
        u64(b, 3);
        for (int i = 0; i < 3; i++) str(b, "t");
    }
}

static const uint64_t embed_dims[] = {32, 4};

static void embed(struct maker *m)
{
    tensor(m, "token_embd.weight", 2, embed_dims, 0, 0);
}

static void put(struct maker *m, const char *dir, size_t cut)
{
    struct lk_buf *o = &m->out;
    lk_buf_reset(o);
    lk_buf_str(o, "GGUF");
    u32(o, m->version);
    u64(o, m->n_t);
    u64(o, m->n_kv);
    lk_buf_add(o, m->kv.data, m->kv.len);
    if (m->ti.len) lk_buf_add(o, m->ti.data, m->ti.len);
    while (o->len % 32) lk_buf_chr(o, 0);
    for (size_t i = 0; i < m->data; i++) lk_buf_chr(o, 0);
    file_put(dir, "m.gguf", o->data, o->len - cut);
}

static void maker_free(struct maker *m)
{
    lk_buf_free(&m->kv);
    lk_buf_free(&m->ti);
    lk_buf_free(&m->out);
}

static void check(struct maker *m, size_t cut, const char *want1, const char *want2)
{
    char dir[64], path[96];
    struct lk_artifact *a = NULL;
    struct lk_err e = {0};
    dir_new(dir);
    put(m, dir, cut);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    int rc = lk_artifact_open(&a, path, &e);
    dir_remove(dir);
    if (!want1) {
        if (rc) fail_msg("%s", e.text);
        lk_artifact_close(a);
    } else {
        if (rc != LK_EINPUT) fail_msg("code %d, expected '%s'; text %s", rc, want1, e.text);
        if (!strstr(e.text, want1) || !strstr(e.text, want2)) fail_msg("expected '%s' and '%s' in: %s", want1, want2, e.text);
        assert_null(strchr(e.text, '\n'));
        assert_non_null(strstr(e.text, "m.gguf"));
    }
    maker_free(m);
}

static void a_whole_one_opens(void **state)
{
    struct maker m;
    whole(&m, 0);
    embed(&m);
    check(&m, 0, NULL, NULL);
}

static void headers(void **state)
{
    struct maker m;
    const uint32_t versions[] = {0, 1, 4, 0x03000000};
    for (int i = 0; i < 4; i++) {
        whole(&m, 0);
        m.version = versions[i];
        check(&m, 0, "version", "2 or 3");
    }
    whole(&m, 0);
    m.n_kv = UINT64_MAX;
    check(&m, 0, "key count", "18446744073709551615");
    whole(&m, 0);
    m.n_t = UINT64_MAX / 2;
    check(&m, 0, "tensor count", "expected at most");
    whole(&m, 0);
    embed(&m);
    check(&m, 100, "token_embd.weight", "short file");
    whole(&m, 0);
    m.data = 0;
    check(&m, m.kv.len - 3, "expected", "found");
}

static void dimensions(void **state)
{
    static const struct {
        uint32_t n;
        uint64_t d[9];
        uint32_t type;
        uint64_t offset;
        const char *want;
    } v[] = {
        {0, {0}, 0, 0, "1 to 4, found 0"},
        {5, {1, 1, 1, 1, 1}, 0, 0, "1 to 4, found 5"},
        {9, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0, "1 to 4, found 9"},
        {2, {32, 0}, 0, 0, "1 or more, found 0"},
        {2, {1ull << 33, 1ull << 33}, 0, 0, "64 bits"},
        {4, {1ull << 20, 1ull << 20, 1ull << 20, 1ull << 20}, 0, 0, "64 bits"},
        {2, {UINT64_MAX, 1}, 0, 0, "found 18446744073709551615"},
        {2, {33, 2}, 8, 0, "multiple of 32 (q8_0), found 33"},
        {2, {128, 2}, 12, 0, "multiple of 256 (q4_k), found 128"},
        {2, {32, 2}, 99, 0, "found number 99"},
        {2, {32, 2}, 4, 0, "found number 4"},
        {2, {32, 2}, 0, 7, "multiple of 32"},
        {2, {32, 2}, 0, 1ull << 62, "inside the file"},
        {2, {32, 200}, 0, 0, "expected 25600 bytes"},
        {2, {32, 2}, 0, 0, "overlaps"},
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct maker m;
        whole(&m, 0);
        embed(&m);
        tensor(&m, "blk.0.ffn_up.weight", v[i].n, v[i].d, v[i].type, v[i].offset);
        check(&m, 0, i + 1 == sizeof v / sizeof *v ? "tensor" : "blk.0.ffn_up.weight", v[i].want);
    }
    struct maker m;
    whole(&m, 0);
    embed(&m);
    embed(&m);
    check(&m, 0, "token_embd.weight", "one file");
}

static void keys(void **state)
{
    const uint32_t aligns[] = {0, 3, 1u << 30, 4, 48};
    struct maker m;
    for (int i = 0; i < 5; i++) {
        whole(&m, 0);
        key_u32(&m, "general.alignment", aligns[i]);
        check(&m, 0, "general.alignment", "power of two");
    }
    whole(&m, 0);
    u64(key(&m, "general.alignment", T_U64), 32);
    check(&m, 0, "general.alignment", "expected u32, found u64");
    whole(&m, 0);
    key_u32(&m, "qwen35.block_count", 4);
    check(&m, 0, "qwen35.block_count", "found twice");
    whole(&m, 0);
    u32(key(&m, "x", 13), 0);
    check(&m, 0, "key x", "found 13");
    whole(&m, 0);
    u64(key(&m, "x", T_STR), 1ull << 60);
    check(&m, 0, "x at byte", "string length");
    whole(&m, 0);
    u32(key(&m, "x", T_ARR), T_U8);
    u64(&m.kv, 1ull << 60);
    check(&m, 0, "key x", "array length");
    whole(&m, 0);
    u32(key(&m, "x", T_ARR), T_STR);
    u64(&m.kv, 1ull << 60);
    check(&m, 0, "key x", "array length");
    whole(&m, 0);
    u32(key(&m, "x", T_ARR), T_ARR);
    u64(&m.kv, 1);
    check(&m, 0, "key x", "array element type");
}

static void config(void **state)
{
    struct maker m = {.version = 3};
    check(&m, 0, "general.architecture", "found nothing");
    m = (struct maker){.version = 3};
    str(key(&m, "general.architecture", T_STR), "clip");
    check(&m, 0, "general.architecture", "vision projector");
    m = (struct maker){.version = 3};
    str(key(&m, "general.architecture", T_STR), "qwen35");
    check(&m, 0, "qwen35.block_count", "found nothing");
    whole(&m, 0);
    str(key(&m, "qwen35.context_length", T_STR), "long");
    check(&m, 0, "qwen35.context_length", "found string");
    whole(&m, 0);
    u32(key(&m, "qwen35.rope.freq_base", T_F32), 0x7fc00000);
    check(&m, 0, "qwen35.rope.freq_base", "finite");
    whole(&m, 0);
    check(&m, 0, "token_embd.weight", "found nothing");
}

static void tokenizer(void **state)
{
    struct maker m;
    whole(&m, 1);
    embed(&m);
    check(&m, 0, "tokenizer.ggml.token_type", "found nothing");
    whole(&m, 1);
    embed(&m);
    u32(key(&m, "tokenizer.ggml.token_type", T_ARR), T_F32);
    u64(&m.kv, 3);
    lk_buf_add(&m.kv, "\0\0\0\0\0\0\0\0\0\0\0", 12);
    check(&m, 0, "tokenizer.ggml.token_type", "array of i32, found an array of f32");
    whole(&m, 1);
    embed(&m);
    u32(key(&m, "tokenizer.ggml.token_type", T_ARR), T_I32);
    u64(&m.kv, 2);
    lk_buf_add(&m.kv, "\1\0\0\0\1\0\0", 8);
    u32(key(&m, "tokenizer.ggml.merges", T_ARR), T_STR);
    u64(&m.kv, 0);
    check(&m, 0, "tokenizer.ggml.token_type", "expected 3 elements (as tokens), found 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_one_opens), cmocka_unit_test(headers), cmocka_unit_test(dimensions),
        cmocka_unit_test(keys),              cmocka_unit_test(config),  cmocka_unit_test(tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
