/* How often the target agrees with the draft layer, on the bundled model: one draft a round, greedy, three kinds of text. A baseline
 * with a band of 5 %, and the floors below which drafting would not pay. A drop means the draft layer sees something else than it
 * was trained on (a stale cache, a shifted position), which no test of the text can see, because the text stays right. */
#include "runtime/engine_help.h"

#include "base/log.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct kind {
    const char *name, *before, *after;
    const char *texts[16];
    double baseline, least;
};
static const struct kind kinds[] = {
    {"word meanings", "<|im_start|>user\nWhat does \"", "\" mean?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
     {"lighthouse", "river", "mountain", "teacher", "window", "garden", "engine", "forest", "music", "winter", "bridge", "doctor",
      "market", "silver"}, 0.905, 0.85},
    {"Python answers", "<|im_start|>user\nWrite a Python function that ",
     ".<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
     {"returns the sum of a list", "reads a file and returns its lines", "reverses a string", "computes the mean of an array",
      "checks whether a path exists", "sorts a dictionary by value"}, 0.833, 0.80},
    {"Chinese", "", "", {"内核文档", "网页浏览器是", "Debian 系统的安装", "春天的诗", "文件系统的用法", "设置打印机"}, 0.884, 0.50},
};

static void measure(struct lk_engine *e, const struct kind *k)
{
    const struct lk_tokenizer *t = lk_engine_tokenizer(e);
    const struct lk_config *c = lk_artifact_config(lk_engine_artifact(e));
    int drafted = 0, accepted = 0;
    for (int i = 0; i < 16 && k->texts[i]; i++) {
        struct lk_buf text = {0};
        struct lk_ids ids = {0};
        struct lk_err err = {0};
        lk_buf_fmt(&text, "%s%s%s", k->before, k->texts[i], k->after);
        assert_int_equal(lk_tokenizer_encode(t, text.data, text.len, LK_SPECIALS_ALL, &ids, &err), 0);
        struct lk_request r = {.ids = ids.v, .n_ids = ids.n, .max_tokens = 96, .draft = 1, .stop_ids = c->eos,
                               .n_stop_ids = c->n_eos};
        lk_sampling_init(&r.sampling);
        struct result res = run_one(e, &r);
        assert_int_equal(res.code, 0);
        drafted += res.t.draft_n;
        accepted += res.t.draft_n_accepted;
        lk_free(res.ids);
        lk_ids_free(&ids);
        lk_buf_free(&text);
    }
    double rate = (double)accepted / drafted;
    print_message("%s: %d of %d accepted: %.3f (baseline %.3f)\n", k->name, accepted, drafted, rate, k->baseline);
    assert_true(drafted > 100);
    if (rate < k->least) fail_msg("%s: %.3f of drafts accepted, at least %.2f are expected", k->name, rate, k->least);
    if (rate < k->baseline * 0.95 || rate > k->baseline * 1.05)
        fail_msg("%s: %.3f of drafts accepted, the baseline is %.3f: find out why before storing a new one", k->name, rate,
                 k->baseline);
}

static void acceptance(void **state)
{
    struct lk_opts_engine o = opts_small(BUNDLED);
    struct lk_engine *e;
    struct lk_err err = {0};
    o.kv = LK_OPT_KV_I8;
    o.dev.threads = 1;
    if (lk_engine_open(&e, &o, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) measure(e, &kinds[i]);
    lk_engine_close(e);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(acceptance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
