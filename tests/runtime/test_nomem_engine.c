/* Allocation failure at the n-th call, for every n, over the whole way of a program that answers once: artifact, tokenizer, device, model, state
 * and core opened, a conversation rendered and encoded, one request, save, close, open, restore, and the answer gone on with. A
 * toy model with a tokenizer of bytes and the bundled chat template (LK_LONG=1: the bundled model). Each time: an error that says what,
 * nothing lost (make asan), nothing hangs, and the next request gives the right answer. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/toy.h"
#include "runtime/folder.h"
#include "runtime/host.h"
#include "text/byte_vocab.h"
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define OUT 6
static const struct toy small = {"small", 128, 128, 288, "gf", 2, 1, 2, 4, 1, TOY_BF16, TOY_BF16, TOY_BF16, TOY_BF16};
static const char *model, *session = "/tmp/laoka-nomem.session";
static int32_t right[2 * OUT];

/* The 256 bytes and the tokens a conversation is framed with. */
static void tokenizer_write(const char *dir)
{
    static const char *const added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"};
    struct lk_buf b = {0}, p = {0};
    byte_vocab(&b);
    lk_buf_str(&b, ",\"added_tokens\":[");
    for (int i = 0; i < 5; i++)
        lk_buf_fmt(&b, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                   "\"special\":true}", i ? "," : "", 256 + i, added[i]);
    lk_buf_str(&b, "]}");
    lk_path_join(&p, dir, "tokenizer.json");
    assert_int_equal(lk_file_write(p.data, b.data, b.len, NULL), 0);
    lk_buf_reset(&b);
    assert_int_equal(lk_file_read(&b, LK_SOURCE_DIR "/models/demo/chat_template.jinja", 1 << 20, NULL), 0);
    lk_path_join(&p, dir, "chat_template.jinja");
    assert_int_equal(lk_file_write(p.data, b.data, b.len, NULL), 0);
    lk_buf_free(&b);
    lk_buf_free(&p);
}

static int open_host(struct lk_host *h, struct lk_err *e)
{
    const struct lk_opts_engine o = {.model = model, .dev = {.n = 1, .threads = 1}, .kv = LK_OPT_KV_I8, .ctx = 512, .parallel = 2,
                                     .draft = 2, .chunk = 64, .prefix_ram = 8 << 20};
    memset(h, 0, sizeof *h);
    return lk_host_open(h, &o, e);
}

static int prompt_make(struct lk_host *h, struct lk_ids *ids, struct lk_err *e)
{
    size_t n;
    const char *template = lk_artifact_text(h->artifact, "chat_template.jinja", &n);
    enum lk_dialect d = lk_dialect_find(template, n);
    assert_true(d != LK_DIALECT_NONE);
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "And a ship?");
    struct lk_chat_opts o;
    struct lk_prompt p = {0};
    lk_chat_opts_init(&o);
    o.add_generation_prompt = 1;
    int rc = lk_chat_render(d, messages, NULL, &o, &p, e);
    if (!rc) rc = lk_prompt_encode(&p, h->tok, ids, e);
    lk_prompt_free(&p);
    json_decref(messages);
    return rc;
}

/* Answers ids[0..n); out receives `want` tokens. */
static int answer(struct lk_host *h, const int32_t *ids, size_t n, int want, int32_t *out, struct lk_err *e)
{
    static const char *const stops[] = {"nothing says this"};
    struct lk_request r = {.ids = ids, .n_ids = n, .max_tokens = want, .draft = -2, .session = "s", .stops = stops, .n_stops = 1,
                           .logprobs = 2};
    struct lk_seq *q;
    lk_sampling_init(&r.sampling);
    int rc = lk_seq_new(&q, &r, h->core.o.vocab_used, h->core.o.ctx, e);
    if (rc) return rc;
    rc = lk_core_admit(&h->core, q, e);
    for (int i = 0; !rc && q->phase != LK_SEQ_DONE; i++) {
        int did = lk_core_turn(&h->core, e);
        if (did < 0) rc = did;
        else assert_true(did == 1 && i < 400);
    }
    if (!rc && q->finish == LK_FIN_ERROR) rc = lk_fail(e, q->err.code, "%s", q->err.text);
    if (!rc) memcpy(out, q->ids + n, (size_t)lk_seq_out(q) * 4);
    if (!rc && lk_seq_out(q) != want) rc = lk_fail(e, LK_EINPUT, "%d tokens came", lk_seq_out(q));
    lk_core_end(&h->core, q);
    lk_core_release(&h->core, q);
    lk_seq_free(q);
    return rc;
}

static int save(struct lk_host *h, struct lk_err *e)
{
    int i = lk_prefix_named(h->core.prefix, "s");
    if (i < 0) return lk_fail(e, LK_ENOMEM, "no memory was left for the session's state");
    return lk_prefix_save(h->core.prefix, i, session, "note", 4, e);
}

/* What is open must still answer rightly. */
static void still_right(struct lk_host *h)
{
    struct lk_ids ids = {0};
    struct lk_err e = {0};
    int32_t out[2 * OUT];
    if (!h->artifact) return;
    assert_int_equal(prompt_make(h, &ids, &e), 0);
    if (answer(h, ids.v, ids.n, OUT, out, &e)) fail_msg("the next request: %s", e.text);
    assert_memory_equal(out, right, sizeof *out * OUT);
    lk_ids_free(&ids);
    assert_int_equal(lk_prefix_pages_left(h->core.prefix), h->core.o.n_pages);
}

/* The whole way; 0, or the code of what failed, and then `still_right` without failures. */
static int whole_way(struct lk_err *e)
{
    struct lk_host h;
    struct lk_ids ids = {0};
    int32_t out[2 * OUT], *all = NULL;
    size_t n_all = 0;
    int rc = open_host(&h, e);
    if (!rc) rc = prompt_make(&h, &ids, e);
    if (!rc) rc = answer(&h, ids.v, ids.n, OUT, out, e);
    if (!rc) assert_memory_equal(out, right, sizeof *out * OUT);
    if (!rc) rc = save(&h, e);
    int64_t count = lk_mem_count();
    if (rc) {
        lk_mem_fail_at(0);
        still_right(&h);
    }
    lk_host_close(&h);
    if (rc) goto out;
    rc = open_host(&h, e);
    if (!rc) rc = lk_prefix_restore(h.core.prefix, session, "s", &all, &n_all, NULL, e);
    if (!rc) assert_int_equal(n_all, ids.n + OUT - 1);
    if (!rc && lk_ids_add(&ids, out[0])) rc = lk_fail(e, LK_ENOMEM, "no memory");
    for (int i = 1; !rc && i < OUT; i++)
        if (lk_ids_add(&ids, out[i])) rc = lk_fail(e, LK_ENOMEM, "no memory");
    if (!rc) rc = answer(&h, ids.v, ids.n, OUT, out + OUT, e);
    if (!rc) assert_memory_equal(out, right, sizeof out);
    count = lk_mem_count();
    if (rc) {
        lk_mem_fail_at(0);
        still_right(&h);
    }
    lk_host_close(&h);
out:
    lk_free(all);
    lk_ids_free(&ids);
    if (!rc) lk_mem_fail_at(0);
    return rc ? rc : (int)count;
}

/* The right answer: alone, without drafts, in one go. */
static void right_make(void)
{
    struct lk_host h;
    struct lk_ids ids = {0};
    struct lk_err e = {0};
    if (open_host(&h, &e)) fail_msg("%s", e.text);
    assert_int_equal(prompt_make(&h, &ids, &e), 0);
    h.core.o.draft = 0;
    if (answer(&h, ids.v, ids.n, 2 * OUT, right, &e)) fail_msg("%s", e.text);
    lk_ids_free(&ids);
    lk_host_close(&h);
}

static void every_allocation_may_fail(void **state)
{
    int total = 0, at = 1;
    right_make();
    for (; !total; at++) {
        struct lk_err e = {0};
        lk_mem_fail_at(at);
        int rc = whole_way(&e);
        lk_mem_fail_at(0);
        if (rc > 0 && rc < at) total = rc; /* the n-th call was never reached */
        else if (rc < 0) {
            if (rc != LK_ENOMEM) fail_msg("allocation %d: code %d: %s", at, rc, e.text);
            if (!e.text[0]) fail_msg("allocation %d failed and nothing says so", at);
        } /* else: a store entry that was not made; the answer was right */
        assert_true(at < 100000);
    }
    print_message("each of %d allocations failed once\n", at - 2);
    unlink(session);
}

int main(void)
{
    char dir[64] = "";
    lk_log_quiet(1);
    if (!getenv("LK_LONG")) {
        snprintf(dir, sizeof dir, "%s", toy_write(&small));
        tokenizer_write(dir);
    }
    model = dir[0] ? dir : LK_SOURCE_DIR "/models/demo";
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (dir[0]) folder_remove(dir);
    return rc;
}
