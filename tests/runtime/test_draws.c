/* Sampling on the bundled model, with and without drafts, at three settings.
 *   - With the same seed the text is the same, bit for bit, whatever is drafted: a draft is accepted when it is the target's own draw.
 *   - With different seeds every token has the target's distribution. Each answer is scored again without sampling; where the sampled token
 *     stands among the target's processed probabilities (most likely first, a uniform place inside its own share) must be uniform over
 *     (0, 1), so that any favour for likely or for drafted tokens shows: chi-square over 100 cells at p > 0.001, which is 3.09
 *     deviations after Wilson and Hilferty.
 * 400 tokens a setting here, 20,000 with LK_LONG=1 (tools/soak). */
#include "base/log.h"
#include "model/rig.h"
#include "runtime/engine_help.h"
#include "runtime/host.h"
#include "text/tokenizer.h"

#define OUT 100 /* tokens an answer */
#define CELLS 100
static const struct lk_sampling settings[] = {
    {.temp = 1, .top_p = 1, .repetition = 1},
    {.temp = 0.7f, .top_p = 0.8f, .top_k = 20, .repetition = 1},
    {.temp = 1.3f, .top_p = 0.95f, .top_k = 50, .min_p = 0.02f, .repetition = 1},
};
enum { SETTINGS = sizeof settings / sizeof *settings };
static struct lk_host host;
static struct rig rig;
static struct lk_ids prompt;
static int vocab;

struct answers {
    int n;
    int32_t (*ids)[OUT]; /* by seed */
    int drafted, accepted;
};

/* Answers seeds [from, from + n), as many at once as there are lanes. */
static void sample(struct answers *a, const struct lk_sampling *s, int draft, uint64_t from, int n)
{
    struct lk_core *c = &host.core;
    struct lk_err e = {0};
    int next = 0, done = 0;
    *a = (struct answers){.n = n, .ids = lk_calloc((size_t)n, sizeof *a->ids)};
    while (done < n) {
        for (int l = 0; l < c->o.parallel && next < n; l++) {
            if (c->lane[l]) continue;
            struct lk_request r = {.ids = prompt.v, .n_ids = prompt.n, .max_tokens = OUT, .draft = draft, .sampling = *s};
            struct lk_seq *q;
            r.sampling.seed = from + (uint64_t)next;
            if (lk_seq_new(&q, &r, vocab, c->o.ctx, &e) || lk_core_admit(c, q, &e)) fail_msg("%s", e.text);
            q->id = (uint64_t)next++;
        }
        if (lk_core_turn(c, &e) != 1) fail_msg("%s", e.text);
        for (int l = 0; l < c->o.parallel; l++) {
            struct lk_seq *q = c->lane[l];
            if (!q || q->phase != LK_SEQ_DONE) continue;
            assert_int_equal(lk_seq_out(q), OUT);
            memcpy(a->ids[q->id], q->ids + prompt.n, sizeof *a->ids);
            a->drafted += q->t.draft_n;
            a->accepted += q->t.draft_n_accepted;
            lk_core_release(c, q);
            lk_seq_free(q);
            done++;
        }
    }
}

struct places {
    double count[CELLS];
    int n, outside; /* outside: a token at the edge of a filter that scoring in one chunk puts beyond it */
};

static void place(struct places *h, const float *p, int32_t id, double inside)
{
    double u = inside * p[id];
    if (p[id] <= 0) {
        h->outside++;
        return;
    }
    for (int i = 0; i < vocab; i++)
        if (p[i] > p[id] || (p[i] == p[id] && i < id)) u += p[i];
    int cell = (int)(u * CELLS);
    h->count[cell < CELLS ? cell : CELLS - 1]++;
    h->n++;
}

static double deviations(const struct answers *a, const struct lk_sampling *s, uint64_t from)
{
    struct places h = {0};
    float *p = lk_calloc((size_t)vocab, 4);
    struct lk_cand *scratch = lk_calloc((size_t)vocab, sizeof *scratch);
    for (int i = 0; i < a->n; i++) {
        int32_t ids[OUT + 16];
        struct kept k;
        memcpy(ids, prompt.v, prompt.n * 4);
        memcpy(ids + prompt.n, a->ids[i], sizeof *a->ids);
        kept_run(&k, &rig, ids, (int)prompt.n + OUT, 0, 0);
        for (int j = 0; j < OUT; j++) {
            const float *row = k.logits + (prompt.n + (size_t)j - 1) * (size_t)rig.vocab;
            lk_sample_probs(s, row, vocab, p, scratch);
            place(&h, p, a->ids[i][j], lk_sample_uniform(from + (uint64_t)i, (uint64_t)j + 1000000, -7));
        }
        kept_free(&k);
    }
    lk_free(p);
    lk_free(scratch);
    double chi = 0, want = (double)h.n / CELLS;
    int df = CELLS - 1;
    for (int i = 0; i < CELLS; i++) chi += (h.count[i] - want) * (h.count[i] - want) / want;
    assert_true(h.outside * 200 <= h.n);
    return (cbrt(chi / df) - (1 - 2.0 / (9 * df))) / sqrt(2.0 / (9 * df));
}

static void distribution(void **state)
{
    int n = getenv("LK_LONG") ? 20000 / OUT : 4, same = n < 24 ? n : 24;
    for (int k = 0; k < SETTINGS; k++) {
        struct answers with, without, again;
        sample(&with, &settings[k], 1, 1000000, n);
        sample(&without, &settings[k], 0, 5000000, n);
        double z = deviations(&with, &settings[k], 1000000), z0 = deviations(&without, &settings[k], 5000000);
        print_message("temp %.1f, top-p %.2f, top-k %d: %d tokens each: chi-square %.2f deviations off with drafts (%d of %d accepted), "
                      "%.2f without\n", (double)settings[k].temp, (double)settings[k].top_p, settings[k].top_k, n * OUT, z,
                      with.accepted, with.drafted, z0);
        fflush(stdout);
        if (z > 3.09 || z0 > 3.09) fail_msg("setting %d: the distribution is not the target's", k);
        assert_true(with.accepted > n * OUT / 10);
        sample(&again, &settings[k], 0, 1000000, same); /* the first seeds once more, without drafts */
        assert_memory_equal(again.ids, with.ids, (size_t)same * sizeof *with.ids);
        lk_free(with.ids);
        lk_free(without.ids);
        lk_free(again.ids);
    }
    print_message("and %d texts a setting the same with and without drafts\n", same);
}

int main(void)
{
    struct lk_opts_engine o = opts_small(BUNDLED); /* F32 KV, as in scoring */
    struct lk_err e = {0};
    lk_log_quiet(1);
    o.ctx = 128;
    o.parallel = 8; /* lanes x (1 + 1 draft) fill a round's 16 rows */
    host.core.spare_slot = -1;
    if (lk_host_open(&host, &o, &e) || rig_try(&rig, BUNDLED, &(struct rig_opts){.tokens = 128, .chunk = 128}, &e) ||
        lk_tokenizer_encode(host.tok, "The lighthouse", 14, LK_SPECIALS_NONE, &prompt, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    vocab = host.core.o.vocab_used;
    const struct CMUnitTest tests[] = {cmocka_unit_test(distribution)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    lk_ids_free(&prompt);
    rig_close(&rig);
    lk_host_close(&host);
    return rc;
}
