/* What drafting is worth: tokens a second with --draft auto against --draft 0, at the shape of the 0.8B (random weights, BF16, written to
 * /tmp for the run: 1.6 GB), with a FORCED acceptance rate: each draft counts as accepted by a coin of that rate, whatever the target
 * says, because random weights accept nothing. Time is real, text is not. Rounds of all lengths alternate; medians.
 *
 *     bench_draft [--accept 0.905,0.833,0.884] [--tokens 64] [--rounds 3] [--threads N] [--vocab 248320] [--deepest 0] [--clock wall|cpu]
 *
 * The rates are what the demo model accepts of its first draft on word meanings, Python and Chinese (tests/runtime/test_accept.c).
 *
 * --clock cpu counts the processor time of one thread instead, for a machine that others use too; draft auto still learns from the wall. */
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"
#include "model/toy.h"
#include "runtime/host.h"

#include <time.h>

static const struct toy small08 = {"0.8b", 1024, 3584, 248320, "gggfgggfgggfgggfgggfgggf", 8, 2, 16, 16, 1,
                                   TOY_BF16, TOY_BF16, TOY_BF16, TOY_BF16};

#define ROUNDS_MAX 15

static clockid_t clock_id = CLOCK_MONOTONIC;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double run(struct lk_host *h, int draft, int tokens, double accept, int coin, struct lk_timings *t)
{
    int32_t ids[64];
    struct lk_err e = {0};
    struct lk_seq *q;
    for (int i = 0; i < 64; i++) ids[i] = 100 + i * 31;
    struct lk_request r = {.ids = ids, .n_ids = 64, .max_tokens = tokens, .draft = draft};
    lk_sampling_init(&r.sampling);
    r.sampling.seed = (uint64_t)coin; /* greedy: it only throws the coins */
    h->core.force_accept = accept;
    lk_prefix_clear(h->core.prefix);
    if (lk_seq_new(&q, &r, h->core.o.vocab_used, h->core.o.ctx, &e) || lk_core_admit(&h->core, q, &e)) goto bad;
    double first = 0;
    while (q->phase != LK_SEQ_DONE) {
        if (lk_core_turn(&h->core, &e) < 0) goto bad;
        if (first <= 0 && lk_seq_out(q) > 0) first = seconds();
    }
    double spent = seconds() - first;
    *t = q->t;
    lk_core_release(&h->core, q);
    lk_seq_free(q);
    return (t->predicted_n - 1) / spent;
bad:
    fprintf(stderr, "bench_draft: %s\n", e.text);
    exit(1);
}

struct options {
    double accept[8];
    int n_accept, tokens, threads, deepest, rounds;
    struct toy shape;
};

static void options_read(struct options *o, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        char *at = argv[i + 1];
        if (!strcmp(argv[i], "--accept"))
            for (o->n_accept = 0; o->n_accept < 8 && *at; at += *at == ',') o->accept[o->n_accept++] = strtod(at, &at);
        if (!strcmp(argv[i], "--tokens")) o->tokens = atoi(at);
        if (!strcmp(argv[i], "--rounds")) o->rounds = atoi(at);
        if (!strcmp(argv[i], "--threads")) o->threads = atoi(at);
        if (!strcmp(argv[i], "--deepest")) o->deepest = atoi(at);
        if (!strcmp(argv[i], "--vocab")) o->shape.vocab = atoi(at);
        if (!strcmp(argv[i], "--clock") && !strcmp(at, "cpu")) {
            clock_id = CLOCK_THREAD_CPUTIME_ID;
            o->threads = 1;
        }
    }
    if (o->rounds < 1 || o->rounds > ROUNDS_MAX) o->rounds = 3;
    if (o->deepest > LK_DRAFT_MAX) o->deepest = LK_DRAFT_MAX;
}

static double median(double *v, int n)
{
    lk_sort_doubles(v, (size_t)n);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* One rate: column 0 is draft 0, 1 to deepest fixed lengths, the last draft auto. */
static void measure(struct lk_host *h, const struct options *o, double accept)
{
    static double speed[LK_DRAFT_MAX + 2][ROUNDS_MAX], share[LK_DRAFT_MAX + 2][ROUNDS_MAX];
    struct lk_timings t[LK_DRAFT_MAX + 2];
    int last = o->deepest + 1;
    for (int r = 0; r < o->rounds; r++)
        for (int d = 0; d <= last; d++) {
            speed[d][r] = run(h, d < last ? d : -1, o->tokens, accept, r, &t[d]);
            share[d][r] = speed[d][r] / speed[0][r];
        }
    for (int d = 0; d <= last; d++) {
        char name[16];
        snprintf(name, sizeof name, d < last ? "%d" : "auto", d);
        printf("forced %.3f, draft %-4s %7.2f tokens a second, %.2f times draft 0", accept, name, median(speed[d], o->rounds),
               median(share[d], o->rounds));
        if (d) printf(" (%d of %d accepted, %.2f drafts a round)", t[d].draft_n_accepted, t[d].draft_n, (double)t[d].draft_n / t[d].rounds);
        printf("\n");
    }
    const struct lk_policy *p = &h->core.policy;
    double one = lk_policy_step_cost(p, 1);
    printf("  believed: a step of one row %.1f ms; of 2, 3, 4 rows %.2f, %.2f, %.2f of it; a draft pass %.2f of it (by bytes %.2f)\n", one * 1e3,
           lk_policy_step_cost(p, 2) / one, lk_policy_step_cost(p, 3) / one, lk_policy_step_cost(p, 4) / one,
           lk_policy_pass_cost(p) / one, p->pass_share);
}

int main(int argc, char **argv)
{
    struct options o = {.accept = {0.905, 0.833, 0.884}, .n_accept = 3, .tokens = 64, .rounds = 3, .shape = small08};
    options_read(&o, argc, argv);
    lk_log_quiet(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *dir = toy_write(&o.shape);
    struct lk_opts_engine eo = {.model = dir, .dev = {.n = 1, .threads = o.threads}, .kv = LK_OPT_KV_I8, .ctx = 1024, .parallel = 1,
                                .draft = -1};
    struct lk_host h = {0};
    struct lk_err e = {0};
    if (lk_host_open(&h, &eo, &e)) {
        fprintf(stderr, "bench_draft: %s\n", e.text);
        toy_remove(dir);
        return 1;
    }
    struct lk_timings t;
    run(&h, 0, 4, 0, 0, &t); /* pages in the weights */
    printf("0.8B shape, random BF16 weights, vocabulary %d; acceptance of each draft, at any depth, is FORCED to a rate\n", o.shape.vocab);
    for (int i = 0; i < o.n_accept; i++) measure(&h, &o, o.accept[i]);
    lk_host_close(&h);
    toy_remove(dir);
    return 0;
}
