/* One table: the same prompt cold, warm, drafted, batched, on other threads, cut in other chunks, restored from disk. Every row must be the
 * same greedy ids: bit for bit where only drafting, batching or threads differ; where prefill is cut elsewhere a flip may stand
 * only where the two best logits lie within 1e-3, and fewer than 1 % of rows may have one. INT8 and BF16 KV have a table each.
 *
 * Small here. LK_LONG=1 (tools/soak) takes every residue mod 64 around 64, 128, 1,024 and 4,096. There all prompts of one length class begin
 * with the same tokens up to a turn header some 48 before the class's middle, longest first, so that this beginning is all that is ever found
 * of an earlier one. Base rows are cold (of the class of 4,096 every eighth; LK_LONG=2: all). Drafts, company and restored sessions go on from
 * stored state; the engines with one thread and with chunks of 64 compute the beginning once, their own way, and each prompt's
 * rest from there. A fixed draft length stands at each residue in one of the four classes (LK_LONG=2: in all), auto always.
 * Arguments: a test's name; cuda:N runs the table on a GPU, sm_70 there the Volta image; part=I/N takes a piece of the lengths (many cores).
 */
#include "runtime/engine_help.h"

#include "base/log.h"
#include "text/tokenizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* The distance of the two best logits below which a flip is a tie. A GPU's activations are f16, and other kernels take a wide step than a narrow
 * one: its logits lie within 2e-2 of the reference, and no nearer to each other. */
static float near_tie = 1e-3f;
static int32_t *text;
static size_t n_text;
static int32_t head[3];
enum kind { COLD, WARM, BATCHED, THREADS, CHUNKS, RESTORED, KINDS };
static const char *const kind_name[KINDS] = {"cold, draft", "warm, draft", "batched with", "threads", "chunks of", "restored after"};
static int rows[KINDS], flips[KINDS], cold_bases;

/* Real text: the project's own sources, as tokens. */
static void text_read(struct lk_engine *e)
{
    static const char *const files[] = {"/src/dev/ops.h", "/src/model/model.h", "/src/runtime/engine.h", "/src/tp/group.c",
                                        "/src/model/step.c"};
    struct lk_ids ids = {0};
    struct lk_err err = {0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct lk_buf b = {0}, path = {0};
        lk_buf_fmt(&path, "%s%s", LK_SOURCE_DIR, files[i]);
        if (lk_file_read(&b, path.data, 1 << 20, &err)) fail_msg("%s", err.text);
        assert_int_equal(lk_tokenizer_encode(lk_engine_tokenizer(e), b.data, b.len, LK_SPECIALS_NONE, &ids, &err), 0);
        lk_buf_free(&b);
        lk_buf_free(&path);
    }
    text = ids.v;
    n_text = ids.n;
    memset(&ids, 0, sizeof ids);
    assert_int_equal(lk_tokenizer_encode(lk_engine_tokenizer(e), "<|im_start|>user\n", 17, LK_SPECIALS_ALL, &ids, &err), 0);
    assert_int_equal(ids.n, 3);
    memcpy(head, ids.v, sizeof head);
    lk_ids_free(&ids);
}

static int32_t prompt[4200];

/* The first n tokens of a class's text, which has a turn header ("<|im_start|>user\n") at `header`. */
static struct lk_request request(int from, int header, int n, int out, int draft)
{
    memcpy(prompt, text + from, (size_t)n * sizeof *prompt);
    for (int i = 0; i < 3 && header > 0 && header + 3 < n; i++) prompt[header + i] = head[i];
    struct lk_request r = {.ids = prompt, .n_ids = (size_t)n, .max_tokens = out, .draft = draft};
    lk_sampling_init(&r.sampling);
    return r;
}

/* The base row, with the distance of the two best logits at each token. */
struct base {
    int32_t ids[64];
    float gap[64];
    int n;
};

static void base_make(struct lk_engine *e, struct base *b, struct lk_request r, int cold)
{
    struct lk_err err = {0};
    r.logprobs = 2;
    r.draft = 0;
    if (cold) lk_engine_forget(e, NULL);
    uint64_t id = lk_engine_submit(e, &r, &err);
    if (!id) fail_msg("%s", err.text);
    b->n = 0;
    for (struct lk_event ev;;) {
        assert_int_equal(lk_engine_next(e, &ev, PATIENCE), 1);
        for (int i = 0; ev.kind == LK_EV_TOKENS && i < ev.n_tokens; i++) {
            b->ids[b->n] = ev.tokens[i];
            b->gap[b->n++] = ev.logprobs[i].top_lp[0] - ev.logprobs[i].top_lp[1];
        }
        if (ev.kind == LK_EV_ERROR) fail_msg("%s", ev.text);
        if (ev.kind != LK_EV_DONE) continue;
        cold_bases += ev.t.cached_n == 0;
        assert_true(!cold || ev.t.cached_n == 0);
        break;
    }
    assert_int_equal(b->n, r.max_tokens);
}

static void same(const struct base *b, const struct result *r, enum kind k, int n, int v)
{
    rows[k]++;
    if (r->code) fail_msg("prompt %d, %s %d: %s", n, kind_name[k], v, r->text);
    for (int i = 0; i < b->n; i++) {
        if (i < r->n && r->ids[i] == b->ids[i]) continue;
        if (k != CHUNKS || b->gap[i] > near_tie)
            fail_msg("prompt of %d tokens, %s %d: token %d is %d, not %d (the two best lie %g apart)", n, kind_name[k], v, i,
                     i < r->n ? r->ids[i] : -1, b->ids[i], (double)b->gap[i]);
        flips[k]++;
        break;
    }
    lk_free(r->ids);
}

struct lengths {
    int n, class, from, header;
};

/* Drafts, warm and (where that is cheap) cold. */
static void draft_rows(struct lk_engine *e, const struct base *b, const struct lengths *at, int out, int all)
{
    for (int d = -1; d <= 7; d++) {
        if (!all && d != -1 && d / 2 != at->class) continue;
        struct lk_request r = request(at->from, at->header, at->n, out, d);
        if (at->class < 2 && (all || d < 0)) {
            lk_engine_forget(e, NULL);
            struct result cold = run_one(e, &r);
            assert_int_equal(cold.t.cached_n, 0);
            same(b, &cold, COLD, at->n, d);
        }
        struct result warm = run_one(e, &r);
        assert_int_equal(warm.t.cached_n, at->n - 1);
        same(b, &warm, WARM, at->n, d);
    }
}

/* Beside three others of other lengths and drafts. */
static void batch_row(struct lk_engine *e, const struct base *b, const struct lengths *at, int out)
{
    struct lk_err err = {0};
    uint64_t ids[4];
    struct result res[4];
    if (at->class < 2) lk_engine_forget(e, NULL);
    for (int i = 0; i < 4; i++) {
        struct lk_request r = i == 1 ? request(at->from, at->header, at->n, out, -1)
                                     : request(at->from + 100 * i, 0, at->n % 64 + 37 * i + 1, out + i, i);
        ids[i] = lk_engine_submit(e, &r, &err);
        if (!ids[i]) fail_msg("%s", err.text);
    }
    run_all(e, ids, res, 4);
    for (int i = 0; i < 4; i++)
        if (i == 1) same(b, &res[i], BATCHED, at->n, 3);
        else lk_free(res[i].ids);
}

/* Half of the answer, saved, restored in another engine, and gone on with. */
static void restored_row(struct lk_engine *e, struct lk_engine *other, const char *path, const struct base *b,
                         const struct lengths *at, int out)
{
    struct lk_err err = {0};
    struct lk_request r = request(at->from, at->header, at->n, out / 2, -1);
    r.session = "table";
    struct result half = run_one(e, &r);
    if (lk_engine_save(e, "table", path, NULL, &err) || lk_engine_load(other, "table", path, NULL, NULL, NULL, &err))
        fail_msg("%s", err.text);
    memcpy(prompt + at->n, half.ids, (size_t)half.n * 4);
    r.n_ids += (size_t)half.n;
    r.max_tokens = out - half.n;
    r.session = NULL;
    struct base tail = {.n = out - half.n};
    memcpy(tail.ids, b->ids + half.n, sizeof *b->ids * (size_t)tail.n);
    memcpy(tail.gap, b->gap + half.n, sizeof *b->gap * (size_t)tail.n);
    struct result restored = run_one(other, &r);
    assert_true(restored.t.cached_n >= at->n - 1);
    same(&tail, &restored, RESTORED, at->n, half.n);
    lk_free(half.ids);
}

static int lengths_of(struct lengths *out)
{
    static const int small[] = {64, 65, 131}, middle[] = {64, 128, 1024, 4096};
    int n = 0;
    if (!getenv("LK_LONG")) {
        for (int i = 0; i < 3; i++) out[n++] = (struct lengths){small[i], i > 1, i * 61, 0};
        return n;
    }
    for (int c = 0; c < 4; c++)
        for (int r = 31; r >= -32; r--) out[n++] = (struct lengths){middle[c] + r, c, c * 500, middle[c] - 48};
    return n;
}

static int card = -1; /* the GPU to run on; -1: CPU */
static const char *image;
static int part = 0, parts = 1; /* of the lengths: the long table on many cores */

static struct lk_engine *engine_with(const char *model, int kv, int threads, int chunk)
{
    struct lk_opts_engine o = opts_small(model);
    struct lk_engine *e;
    struct lk_err err = {0};
    o.kv = kv;
    o.dev.threads = threads;
    o.chunk = chunk;
    o.ctx = 4608;
    if (card >= 0) {
        o.dev.at[0].is_cuda = 1;
        o.dev.at[0].index = card;
        o.dev.image = image;
    }
    if (lk_engine_open(&e, &o, &err)) fail_msg("%s", err.text);
    return e;
}

static int sum(const int *v)
{
    int n = 0;
    for (int k = 0; k < KINDS; k++) n += v[k];
    return n;
}

static void table(int kv)
{
    const char *model = model_any(), *full = getenv("LK_LONG");
    struct lengths at[256];
    int n = lengths_of(at), out = full ? 6 : 5;
    if (!model) return;
    memset(rows, 0, sizeof rows);
    memset(flips, 0, sizeof flips);
    cold_bases = 0;
    struct lk_engine *e = engine_with(model, kv, 2, 0), *one = engine_with(model, kv, 1, 0), *cut = engine_with(model, kv, 2, 64);
    char path[] = "/tmp/laoka-table-XXXXXX";
    close(mkstemp(path));
    if (!text) text_read(e);
    assert_true(n_text > 1500 + 4200);
    for (int i = n * part / parts; i < n * (part + 1) / parts; i++) {
        struct base b;
        struct lk_request r = request(at[i].from, at[i].header, at[i].n, out, -1);
        int all = full ? full[0] == '2' : i < 1, cold = !full || all || at[i].class < 3 || i % 8 == 0;
        if (full && i % 16 == 0) {
            print_message("%d ... %d rows, %d flips so far\n", at[i].n, sum(rows), sum(flips));
            fflush(stdout);
        }
        base_make(e, &b, r, cold);
        draft_rows(e, &b, &at[i], out, all);
        batch_row(e, &b, &at[i], out);
        r = request(at[i].from, at[i].header, at[i].n, out, -1);
        if (at[i].class < 2) lk_engine_forget(one, NULL);
        struct result threads = run_one(one, &r);
        same(&b, &threads, THREADS, at[i].n, 1);
        if (at[i].class < 2) lk_engine_forget(cut, NULL);
        struct result chunks = run_one(cut, &r);
        same(&b, &chunks, CHUNKS, at[i].n, 64);
        restored_row(e, one, path, &b, &at[i], out);
    }
    unlink(path);
    lk_engine_close(e);
    lk_engine_close(one);
    lk_engine_close(cut);
    for (int k = 0; k < KINDS; k++) print_message("  %-16s%6d rows, %d near-tie flips\n", kind_name[k], rows[k], flips[k]);
    print_message("%d rows against %d base rows (%d cold), %d near-tie flips\n", sum(rows), n * (part + 1) / parts - n * part / parts, cold_bases, sum(flips));
    assert_true(flips[CHUNKS] * 100 <= rows[CHUNKS]);
}

static void table_bf16(void **state)
{
    table(LK_OPT_KV_BF16);
}

static void table_int8(void **state)
{
    table(LK_OPT_KV_I8);
}

int main(int argc, char **argv)
{
    lk_log_quiet(1);
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "cuda:", 5))
            card = atoi(argv[i] + 5), near_tie = 2e-2f;
        else if (!strcmp(argv[i], "sm_70"))
            image = argv[i];
        else if (!strncmp(argv[i], "part=", 5)) {
            if (sscanf(argv[i], "part=%d/%d", &part, &parts) != 2 || part < 0 || part >= parts) return 2;
        } else
            cmocka_set_test_filter(argv[i]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_bf16),
        cmocka_unit_test(table_int8),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    lk_free(text);
    return rc;
}
