/* What drafting is worth: tokens a second with --draft auto against --draft 0, at the shape of the 0.8B (random weights, BF16, written to
 * /tmp for the run: 1.6 GB), with a FORCED acceptance rate: each draft counts as accepted by a coin of that rate, whatever the target
 * says, because random weights accept nothing. Time is real, text is not.
 *
 *     bench_draft [--accept 0.8] [--tokens 64] [--threads N] [--vocab 248320] [--deepest 5] [--clock wall|cpu]
 *
 * --clock cpu counts the processor time of one thread instead, for a machine that others use too; draft auto still learns from the wall. */
#include "base/log.h"
#include "base/mem.h"
#include "model/toy.h"
#include "runtime/host.h"

#include <time.h>

static const struct toy small08 = {"0.8b", 1024, 3584, 248320, "gggfgggfgggfgggfgggfgggf", 8, 2, 16, 16, 1,
                                   TOY_BF16, TOY_BF16, TOY_BF16, TOY_BF16};

static clockid_t clock_id = CLOCK_MONOTONIC;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double run(struct lk_host *h, int draft, int tokens, double accept, struct lk_timings *t)
{
    int32_t ids[64];
    struct lk_err e = {0};
    struct lk_seq *q;
    for (int i = 0; i < 64; i++) ids[i] = 100 + i * 31;
    struct lk_request r = {.ids = ids, .n_ids = 64, .max_tokens = tokens, .draft = draft};
    lk_sampling_init(&r.sampling);
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

int main(int argc, char **argv)
{
    double accept = 0.8;
    int tokens = 64, threads = 0, deepest = 5;
    struct toy shape = small08;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--accept")) accept = atof(argv[i + 1]);
        if (!strcmp(argv[i], "--tokens")) tokens = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--deepest")) deepest = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--vocab")) shape.vocab = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--clock") && !strcmp(argv[i + 1], "cpu")) {
            clock_id = CLOCK_THREAD_CPUTIME_ID;
            threads = 1;
        }
    }
    lk_log_quiet(1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *dir = toy_write(&shape);
    struct lk_opts_engine o = {.model = dir, .dev = {.n = 1, .threads = threads}, .kv = LK_OPT_KV_I8, .ctx = 1024, .parallel = 1,
                               .draft = -1};
    struct lk_host h = {0};
    struct lk_err e = {0};
    if (lk_host_open(&h, &o, &e)) {
        fprintf(stderr, "bench_draft: %s\n", e.text);
        toy_remove(dir);
        return 1;
    }
    struct lk_timings t;
    run(&h, 0, 4, 0, &t); /* pages in the weights */
    double plain = run(&h, 0, tokens, 0, &t);
    printf("0.8B shape, random BF16 weights, vocabulary %d, acceptance FORCED to %.2f a draft\n", shape.vocab, accept);
    printf("draft 0     %7.2f tokens a second\n", plain);
    for (int d = 1; d <= deepest; d++) {
        double v = run(&h, d, tokens, accept, &t);
        printf("draft %d     %7.2f tokens a second, %.2f times draft 0 (%d of %d accepted)\n", d, v, v / plain, t.draft_n_accepted,
               t.draft_n);
    }
    double v = run(&h, -1, tokens * 2, accept, &t); /* the policy needs some rounds to learn the costs */
    printf("draft auto  %7.2f tokens a second, %.2f times draft 0 (%d of %d accepted)\n", v, v / plain, t.draft_n_accepted,
           t.draft_n);
    lk_host_close(&h);
    toy_remove(dir);
    return 0;
}
