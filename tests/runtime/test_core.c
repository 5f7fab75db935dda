/* The core over a model of hashes (fake_model.h): whatever is drafted, batched, cached, moved between tiers or cancelled, each request's
 * tokens are those of a plain loop that knows nothing of all that. Random cases, seed printed; LK_CASES sets how many. */
#include "runtime/core.h"

#include "base/log.h"
#include "runtime/fake_model.h"
#include "runtime/fake_oracle.h"
#include "runtime/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t rng_state, case_seed;
static uint32_t rnd(uint32_t n)
{
    rng_state += 0x9e3779b97f4a7c15u;
    return (uint32_t)((fake_mix(rng_state) >> 33) % n);
}

struct bench {
    struct lk_core c;
    struct lk_model *m;
    struct lk_state *s;
};

static void bench_open(struct bench *b, int pages, int slots, int parallel, int draft, int64_t ram, const char *dir)
{
    struct lk_err e = {0};
    struct lk_state_opts so = {.n_pages = pages, .n_slots = slots};
    struct lk_core_opts o = {.ctx = 1024, .parallel = parallel, .chunk = 96, .draft = draft, .n_pages = pages,
                             .n_slots = slots, .vocab_used = FV_USED, .turn_id = 44, .newline_id = 43,
                             .prefix = {.n_pages = pages, .max_entries = 24, .ram = ram, .disk = dir ? 1 << 20 : 0, .dir = dir}};
    fake_model_open(&b->m);
    lk_state_open(&b->s, &fake_dev, &fake_shape, &so, &e);
    assert_int_equal(lk_core_init(&b->c, b->m, b->s, NULL, &o, &e), 0);
    b->c.policy.no_clock = 1; /* the same cases each run */
    fake_corrupt = fake_mtp_holes = 0;
}

static void bench_close(struct bench *b, int pages, int slots)
{
    lk_core_fini(&b->c);
    assert_int_equal(lk_state_pages_free(b->s), pages); /* every reference came back */
    for (int i = 0; i < slots; i++) assert_int_equal(b->s->used[i], 0);
    lk_state_close(b->s);
    lk_model_close(b->m);
    assert_int_equal(fake_corrupt, 0);
}

/* One request to its end, alone. */
static struct lk_seq *run_alone(struct bench *b, const struct lk_request *r)
{
    struct lk_seq *q;
    struct lk_err e = {0};
    assert_int_equal(lk_seq_new(&q, r, FV_USED, b->c.o.ctx, &e), 0);
    assert_int_equal(lk_core_admit(&b->c, q, &e), 0);
    for (int i = 0; q->phase != LK_SEQ_DONE; i++) {
        assert_int_equal(lk_core_turn(&b->c, &e), 1);
        assert_true(i < 5000);
    }
    lk_core_release(&b->c, q);
    return q;
}

static void check_tokens(const struct lk_seq *q, const struct lk_request *r, int ctx)
{
    int32_t want[2048];
    int n = plain(r, ctx, want);
    if (lk_seq_out(q) != n || memcmp(q->ids + q->n_prompt, want, (size_t)n * 4)) {
        int i = 0;
        while (i < n && i < lk_seq_out(q) && q->ids[q->n_prompt + i] == want[i]) i++;
        fail_msg("LK_SEED=%llu: prompt %zu, draft %d, cached %d: token %d of %d differs (%d tokens came, finish %d: %s); temp %g rep %g "
                 "pres %g freq %g bias %d", (unsigned long long)case_seed, r->n_ids, q->draft, q->t.cached_n, i, n, lk_seq_out(q), q->finish, q->err.text,
                 (double)r->sampling.temp, (double)r->sampling.repetition, (double)r->sampling.presence,
                 (double)r->sampling.frequency, r->sampling.n_bias);
    }
}

/* Every draft length, every kind of sampling, prompt lengths around page and chunk edges. */
static void drafts_change_nothing(void **state)
{
    static const int lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 95, 96, 97, 127, 128, 129, 300};
    for (int draft = -1; draft <= LK_DRAFT_MAX; draft++) {
        struct bench b;
        bench_open(&b, 64, 6, 2, draft, 0, NULL);
        uint64_t accepted = 0;
        for (size_t k = 0; k < N_KINDS; k++)
            for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
                int32_t ids[512];
                prompt_make(ids, lengths[l], 17 + l * 7 + k);
                struct lk_request r = {.ids = ids, .n_ids = (size_t)lengths[l], .max_tokens = 40, .sampling = kinds[k], .draft = -2};
                r.sampling.seed = l;
                struct lk_seq *q = run_alone(&b, &r);
                check_tokens(q, &r, b.c.o.ctx);
                accepted += (uint64_t)q->t.draft_n_accepted;
                lk_seq_free(q);
            }
        if (draft) assert_true(accepted > 100);
        else assert_int_equal(accepted, 0);
        assert_int_equal(fake_mtp_holes, 0);
        bench_close(&b, 64, 6);
    }
}

static void context_ends_cleanly(void **state)
{
    for (int draft = -1; draft <= LK_DRAFT_MAX; draft += 4)
        for (int n = 1000; n < 1024; n++) {
            struct bench b;
            bench_open(&b, 20, 6, 1, draft, 0, NULL);
            int32_t ids[1024];
            prompt_make(ids, n, 3);
            struct lk_request r = {.ids = ids, .n_ids = (size_t)n, .sampling = kinds[0], .draft = -2};
            struct lk_seq *q = run_alone(&b, &r);
            check_tokens(q, &r, 1024);
            assert_int_equal(q->finish, LK_FIN_LENGTH);
            assert_int_equal(q->n_ids, 1024);
            lk_seq_free(q);
            bench_close(&b, 20, 6);
        }
}

/* Second turn, regenerated answer, edited end: only new tokens are computed. */
static void prefixes_are_reused(void **state)
{
    static const int lengths[] = {70, 300, 63, 64, 65, 128, 700};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        struct bench b;
        bench_open(&b, 64, 12, 2, 3, 1 << 20, NULL);
        int32_t ids[1024];
        int n = lengths[l];
        prompt_make(ids, n, 50 + l);
        struct lk_request r = {.ids = ids, .n_ids = (size_t)n, .max_tokens = 20, .sampling = kinds[0], .draft = -2};
        struct lk_seq *q = run_alone(&b, &r);
        check_tokens(q, &r, 1024);
        assert_int_equal(q->t.cached_n, 0);
        struct lk_seq *again = run_alone(&b, &r); /* regenerate */
        check_tokens(again, &r, 1024);
        assert_int_equal(again->t.cached_n, n - 1);
        lk_seq_free(again);
        memcpy(ids + n, q->ids + n, 20 * 4); /* next turn */
        prompt_make(ids + n + 20, 30, 99);
        r.n_ids = (size_t)n + 50;
        struct lk_seq *next = run_alone(&b, &r);
        check_tokens(next, &r, 1024);
        assert_int_equal(next->t.cached_n, n + 19); /* all but the last answer token, which was never fed */
        lk_seq_free(next);
        lk_seq_free(q);
        assert_int_equal(fake_mtp_holes, 0);
        bench_close(&b, 64, 12);
    }
}

/* Turns as a template writes them: 44 role 43 text. A history without its thinking, an edited last message and the same question again reuse
 * everything up to the header in front of the first change. */
static void turns_are_reused(void **state)
{
    struct bench b;
    bench_open(&b, 64, 12, 2, 3, 1 << 20, NULL);
    int32_t ids[1024];
    int n = 0, user, header;
    prompt_make(ids, 400, 71); /* earlier history */
    for (n = 0; n < 400; n++) ids[n] %= 40;
    ids[n++] = 44, ids[n++] = 7, ids[n++] = 43;
    user = n;
    for (int i = 0; i < 50; i++) ids[n++] = (i * i) % 40;
    ids[n++] = 44, ids[n++] = 9, ids[n++] = 8, ids[n++] = 43;
    header = n;
    ids[n++] = 41, ids[n++] = 43; /* thinking opens */
    struct lk_request r = {.ids = ids, .n_ids = (size_t)n, .max_tokens = 20, .sampling = kinds[0], .draft = -2};
    struct lk_seq *q = run_alone(&b, &r), *t;
    check_tokens(q, &r, 1024);
    t = run_alone(&b, &r); /* again */
    check_tokens(t, &r, 1024);
    assert_int_equal(t->t.cached_n, n - 1);
    lk_seq_free(t);
    int32_t next[1024]; /* thinking dropped: the answer follows the header at once */
    memcpy(next, ids, sizeof ids);
    int m = header;
    for (int i = 0; i < 30; i++) next[m++] = 30 - i;
    struct lk_request r2 = r;
    r2.ids = next;
    r2.n_ids = (size_t)m;
    t = run_alone(&b, &r2);
    check_tokens(t, &r2, 1024);
    assert_int_equal(t->t.cached_n, header);
    lk_seq_free(t);
    memcpy(next, ids, sizeof ids); /* last message edited */
    next[user + 20] = 39;
    r2.n_ids = (size_t)n;
    t = run_alone(&b, &r2);
    check_tokens(t, &r2, 1024);
    assert_int_equal(t->t.cached_n, user);
    lk_seq_free(t);
    lk_seq_free(q);
    bench_close(&b, 64, 12);
}

/* The short end of a prompt goes with the round of those who already answer: a turn of one step, and nobody's text or stored prefix is
 * another. */
static void prompts_end_inside_a_round(void **state)
{
    for (int draft = 0; draft <= 3; draft += 3)
        for (int end = 1; end <= 12; end += 11) { /* rows behind the last header */
            struct bench b;
            struct lk_err e = {0};
            struct lk_seq *q[2];
            int32_t ids[2][64];
            bench_open(&b, 64, 12, 2, draft, 1 << 20, NULL);
            struct lk_request r[2];
            for (int i = 0; i < 2; i++) {
                prompt_make(ids[i], 40, 5 + (uint64_t)i);
                for (int t = 0; t < 40; t++) ids[i][t] %= 40;
                if (end > 1) ids[i][40 - end - 3] = 44, ids[i][40 - end - 1] = 43;
                r[i] = (struct lk_request){.ids = ids[i], .n_ids = 40, .max_tokens = 60, .sampling = kinds[i], .draft = -2};
                assert_int_equal(lk_seq_new(&q[i], &r[i], FV_USED, b.c.o.ctx, &e), 0);
            }
            assert_int_equal(lk_core_admit(&b.c, q[0], &e), 0);
            while (q[0]->phase != LK_SEQ_DECODE) assert_int_equal(lk_core_turn(&b.c, &e), 1);
            assert_int_equal(lk_core_admit(&b.c, q[1], &e), 0);
            assert_int_equal(lk_core_turn(&b.c, &e), 1);
            assert_int_equal(q[1]->n_prompt - q[1]->n_done, end);
            int steps = fake_steps, out = lk_seq_out(q[0]);
            assert_int_equal(lk_core_turn(&b.c, &e), 1);
            assert_int_equal(fake_steps, steps + 1);
            assert_true(lk_seq_out(q[0]) > out);
            assert_int_equal(lk_seq_out(q[1]), 1);
            while (q[0]->phase != LK_SEQ_DONE || q[1]->phase != LK_SEQ_DONE) assert_int_equal(lk_core_turn(&b.c, &e), 1);
            for (int i = 0; i < 2; i++) {
                check_tokens(q[i], &r[i], b.c.o.ctx);
                lk_core_release(&b.c, q[i]);
                lk_seq_free(q[i]);
            }
            struct lk_seq *again = run_alone(&b, &r[1]); /* the state before its last token was kept */
            check_tokens(again, &r[1], b.c.o.ctx);
            assert_int_equal(again->t.cached_n, 39);
            lk_seq_free(again);
            assert_int_equal(fake_mtp_holes, 0);
            bench_close(&b, 64, 12);
        }
}

static void small_pools_refuse(void **state)
{
    struct bench b;
    bench_open(&b, 4, 4, 2, 0, 0, NULL); /* 256 tokens in all */
    int32_t ids[600];
    struct lk_err e = {0};
    struct lk_seq *q, *r2;
    prompt_make(ids, 600, 1);
    struct lk_request r = {.ids = ids, .n_ids = 300, .max_tokens = 10, .sampling = kinds[0], .draft = -2};
    assert_int_equal(lk_seq_new(&q, &r, FV_USED, 1024, &e), 0);
    assert_int_equal(lk_core_admit(&b.c, q, &e), LK_EREQUEST);
    assert_non_null(strstr(e.text, "300 tokens"));
    lk_seq_free(q);
    lk_err_clear(&e);
    r.n_ids = 100;
    assert_int_equal(lk_seq_new(&q, &r, FV_USED, 1024, &e), 0);
    assert_int_equal(lk_core_admit(&b.c, q, &e), 0);
    r.n_ids = 130;
    assert_int_equal(lk_seq_new(&r2, &r, FV_USED, 1024, &e), 0);
    assert_int_equal(lk_core_admit(&b.c, r2, &e), LK_EBUSY);
    assert_non_null(strstr(e.text, "KV pages"));
    while (q->phase != LK_SEQ_DONE) lk_core_turn(&b.c, &e);
    lk_core_release(&b.c, q);
    lk_seq_free(q);
    lk_err_clear(&e);
    assert_int_equal(lk_core_admit(&b.c, r2, &e), 0); /* now there is room */
    while (r2->phase != LK_SEQ_DONE) lk_core_turn(&b.c, &e);
    check_tokens(r2, &r, 1024);
    lk_core_release(&b.c, r2);
    lk_seq_free(r2);
    bench_close(&b, 4, 4);
}

static void dead_device_ends_the_turn(void **state)
{
    struct bench b;
    bench_open(&b, 16, 4, 1, 3, 0, NULL);
    int32_t ids[10];
    struct lk_err e = {0};
    struct lk_seq *q;
    prompt_make(ids, 10, 1);
    struct lk_request r = {.ids = ids, .n_ids = 10, .max_tokens = 50, .sampling = kinds[0], .draft = -2};
    assert_int_equal(lk_seq_new(&q, &r, FV_USED, 1024, &e), 0);
    assert_int_equal(lk_core_admit(&b.c, q, &e), 0);
    fake_fail_step = 4;
    int rc = 1;
    while (rc == 1) rc = lk_core_turn(&b.c, &e);
    fake_fail_step = 0;
    assert_int_equal(rc, LK_EDEVICE);
    lk_seq_fail(q, &e);
    lk_core_end(&b.c, q);
    lk_core_release(&b.c, q);
    lk_seq_free(q);
    bench_close(&b, 16, 4);
}

/* A grammar that forbids what is not in its row of a table; counts what it accepted. */
struct toy {
    int accepted, freed;
};
static int toy_mask(void *self, uint32_t *bits, int vocab)
{
    struct toy *t = self;
    memset(bits, 0, (size_t)(vocab + 31) / 32 * 4);
    for (int v = t->accepted % 3; v < vocab; v += 3) bits[v / 32] |= 1u << (v % 32);
    return 1;
}
static int toy_accept(void *self, int32_t id)
{
    struct toy *t = self;
    return id % 3 == t->accepted++ % 3 ? 0 : -1;
}
static void toy_rewind(void *self, int n)
{
    ((struct toy *)self)->accepted -= n;
}
static void toy_free(void *self)
{
    ((struct toy *)self)->freed++;
}

static void grammar_and_logprobs(void **state)
{
    for (int draft = -1; draft < 4; draft++) {
        struct bench b;
        struct toy t = {0};
        bench_open(&b, 32, 6, 1, draft, 0, NULL);
        int32_t ids[40];
        prompt_make(ids, 40, 8);
        struct lk_request r = {.ids = ids, .n_ids = 40, .max_tokens = 60, .sampling = kinds[1], .draft = -2, .logprobs = 5,
                               .grammar = {&t, toy_mask, toy_accept, toy_rewind, toy_free}};
        struct lk_seq *q = run_alone(&b, &r);
        assert_int_equal(q->finish, LK_FIN_LENGTH);
        assert_int_equal(lk_seq_out(q), 60);
        static int32_t first[60];
        for (int i = 0; i < 60; i++) {
            assert_int_equal(q->ids[40 + i] % 3, i % 3);
            if (draft == -1) first[i] = q->ids[40 + i];
            assert_int_equal(first[i], q->ids[40 + i]);
            float row[FV];
            uint64_t h = 0;
            for (int j = 0; j < 40 + i; j++) h = fake_next(h, q->ids[j]);
            fake_logits(h, q->ids[38 + i], q->ids[39 + i], row);
            double lse = lk_sample_lse(row, FV_USED);
            assert_true(fabs(q->logprobs[i].lp - (row[q->ids[40 + i]] - lse)) < 1e-4);
            assert_int_equal(q->logprobs[i].n_top, 5);
            assert_true(q->logprobs[i].top_lp[0] >= q->logprobs[i].top_lp[1]);
        }
        lk_seq_free(q);
        assert_int_equal(t.freed, 1);
        bench_close(&b, 32, 6);
    }
}

/* 20,000 answers of three tokens with and without drafts: the third token, whose rows come out of drafts, against its exact
 * distribution by chi-square at p > 0.001 (3.09 deviations after Wilson and Hilferty). */
static void third_token_probs(const struct lk_sampling *s, const int32_t *p, int n, double *out)
{
    struct lk_cand cands[FV];
    float row[FV], p1[FV], p2[FV], p3[FV];
    uint64_t h = 0;
    for (int i = 0; i < n; i++) h = fake_next(h, p[i]);
    fake_logits(h, p[n - 2], p[n - 1], row);
    lk_sample_probs(s, row, FV_USED, p1, cands);
    for (int a = 0; a < FV_USED; a++) {
        if (p1[a] <= 0) continue;
        uint64_t ha = fake_next(h, a);
        fake_logits(ha, p[n - 1], a, row);
        lk_sample_probs(s, row, FV_USED, p2, cands);
        for (int b = 0; b < FV_USED; b++) {
            if (p2[b] <= 0) continue;
            fake_logits(fake_next(ha, b), a, b, row);
            lk_sample_probs(s, row, FV_USED, p3, cands);
            for (int t = 0; t < FV_USED; t++) out[t] += (double)p1[a] * (double)p2[b] * (double)p3[t];
        }
    }
}

static double chi_square_z(const double *count, const double *prob, double total)
{
    double chi = 0, rest_count = 0, rest_prob = 0;
    int df = -1;
    for (int t = 0; t < FV_USED; t++) {
        double want = prob[t] * total;
        if (want < 5) { /* thin cells together */
            rest_count += count[t];
            rest_prob += want;
            continue;
        }
        chi += (count[t] - want) * (count[t] - want) / want;
        df++;
    }
    if (rest_prob >= 5) {
        chi += (rest_count - rest_prob) * (rest_count - rest_prob) / rest_prob;
        df++;
    }
    return df > 0 ? (cbrt(chi / df) - (1 - 2.0 / (9 * df))) / sqrt(2.0 / (9 * df)) : 0;
}

static void drafts_keep_the_distribution(void **state)
{
    static const int which[] = {1, 2, 5};
    int32_t ids[20];
    prompt_make(ids, 20, 31);
    for (int k = 0; k < 3; k++) {
        struct lk_sampling s = kinds[which[k]];
        s.frequency = 0;
        s.temp *= 2; /* flat enough that many tokens occur */
        double prob[FV] = {0};
        third_token_probs(&s, ids, 20, prob);
        for (int draft = 0; draft <= 3; draft += 3) {
            struct bench b;
            double count[FV] = {0};
            int accepted = 0;
            bench_open(&b, 16, 4, 1, draft, 0, NULL);
            for (int i = 0; i < 20000; i++) {
                struct lk_request r = {.ids = ids, .n_ids = 20, .max_tokens = 4, .sampling = s, .draft = -2};
                r.sampling.seed = (uint64_t)i + 1000000 * (uint64_t)k;
                struct lk_seq *q = run_alone(&b, &r);
                count[q->ids[22]]++;
                accepted += q->t.draft_n_accepted;
                lk_seq_free(q);
            }
            double z = chi_square_z(count, prob, 20000);
            if (z > 3.09) fail_msg("setting %d, draft %d: chi-square is %.2f deviations off", k, draft, z);
            if (draft) assert_true(accepted > 2000);
            bench_close(&b, 16, 4);
        }
    }
}

/* ---- random cases ---- */

#define LIVE 6
struct live {
    struct lk_seq *q;
    struct lk_request r;
    int32_t ids[1024];
    struct lk_bias bias[3];
    int32_t stop;
    int cancel_at;
};

/* A prompt that often continues, repeats or edits an earlier sequence. */
static void case_prompt(struct live *v, int32_t (*old)[1024], int *old_n, int n_old)
{
    int from = n_old && rnd(4) ? (int)rnd((uint32_t)n_old) : -1, n = 0;
    if (from >= 0) {
        n = rnd(3) ? old_n[from] : (int)rnd((uint32_t)old_n[from] + 1);
        memcpy(v->ids, old[from], (size_t)n * 4);
        if (n > 4 && rnd(4) == 0) v->ids[n - 1 - (int)rnd(4)] ^= 1;
        if (v->ids[n > 0 ? n - 1 : 0] >= FV_USED) v->ids[n - 1] = 0;
        for (int i = 0; i < n; i++)
            if (v->ids[i] >= FV_USED) v->ids[i] = 0;
    }
    int more = rnd(3) ? (int)rnd(40) : (int)rnd(300);
    if (n + more > 700) more = 0;
    if (n > 700) n = 700;
    for (int i = 0; i < more; i++) v->ids[n++] = (int32_t)rnd(rnd(2) ? 5 : FV_USED);
    if (rnd(2)) v->ids[n++] = 44, v->ids[n++] = (int32_t)rnd(9), v->ids[n++] = 43;
    for (int i = (int)rnd(20); rnd(2) && i > 0; i--) v->ids[n++] = (int32_t)rnd(9);
    if (!n) v->ids[n++] = 1;
    v->r.ids = v->ids;
    v->r.n_ids = (size_t)n;
}

static void case_request(struct live *v)
{
    v->r.max_tokens = 1 + (int)rnd(60);
    v->r.sampling = kinds[rnd(N_KINDS)];
    v->r.sampling.seed = rnd(1000);
    v->r.sampling.bias = v->bias;
    v->r.sampling.n_bias = (int)rnd(3);
    for (int i = 0; i < v->r.sampling.n_bias; i++)
        v->bias[i] = (struct lk_bias){(int32_t)rnd(FV_USED), (float)rnd(8) - 4};
    v->stop = (int32_t)rnd(FV_USED);
    v->r.stop_ids = &v->stop;
    v->r.n_stop_ids = (int)rnd(2);
    v->r.draft = (int)rnd(LK_DRAFT_MAX + 3) - 2;
    v->r.priority = (int)rnd(2);
    v->cancel_at = rnd(8) ? -1 : (int)rnd(30);
}

static void case_end(struct bench *b, struct live *v, int32_t (*old)[1024], int *old_n, int *n_old)
{
    if (v->q->finish != LK_FIN_CANCEL) {
        if (v->q->finish == LK_FIN_ERROR) fail_msg("LK_SEED=%llu: request failed: %s", (unsigned long long)case_seed, v->q->err.text);
        check_tokens(v->q, &v->r, b->c.o.ctx);
    } else {
        int32_t want[2048];
        plain(&v->r, b->c.o.ctx, want);
        assert_memory_equal(v->q->ids + v->q->n_prompt, want, (size_t)lk_seq_out(v->q) * 4);
    }
    int at = *n_old < 12 ? (*n_old)++ : (int)rnd(12);
    old_n[at] = v->q->n_ids;
    memcpy(old[at], v->q->ids, (size_t)v->q->n_ids * 4);
    lk_core_release(&b->c, v->q);
    lk_seq_free(v->q);
    v->q = NULL;
}

/* One random case: up to LIVE requests at once over one engine; returns requests that ended. */
static int random_case(uint64_t seed, const char *dir)
{
    static struct live live[LIVE];
    static int32_t old[12][1024];
    int old_n[12], n_old = 0, ended = 0, turns = 0;
    rng_state = seed * 7919 + 13;
    case_seed = seed;
    int parallel = 1 + (int)rnd(LIVE), pages = 16 + (int)rnd(100), slots = parallel + 1 + (int)rnd(8);
    struct bench b;
    bench_open(&b, pages, slots, parallel, (int)rnd(3) * 3 - 1, rnd(2) ? 0 : 30000 + (int64_t)rnd(200000), rnd(2) ? dir : NULL);
    memset(live, 0, sizeof live);
    for (int total = 4 + (int)rnd(12); ended < total && turns < 20000; turns++) {
        struct lk_err e = {0};
        int busy = 0;
        for (int i = 0; i < LIVE; i++) {
            struct live *v = &live[i];
            if (!v->q && ended < total && rnd(3) == 0) {
                case_prompt(v, old, old_n, n_old);
                case_request(v);
                assert_int_equal(lk_seq_new(&v->q, &v->r, FV_USED, b.c.o.ctx, &e), 0);
            }
            if (v->q && v->q->phase == LK_SEQ_WAIT) {
                struct lk_err refused = {0};
                int rc = lk_core_admit(&b.c, v->q, &refused);
                if (rc && (rc != LK_EBUSY || !busy)) {
                    int others = 0;
                    for (int j = 0; j < LIVE; j++) others += live[j].q && live[j].q->phase != LK_SEQ_WAIT;
                    if (rc != LK_EBUSY && rc != LK_EREQUEST) fail_msg("%s", refused.text);
                    if (rc == LK_EREQUEST || !others) { /* never fits this pool */
                        if (v->q->n_prompt + 16 <= pages * 64 - 256) fail_msg("LK_SEED=%llu: refused with room: %s", (unsigned long long)case_seed, refused.text);
                        lk_seq_free(v->q);
                        v->q = NULL;
                        ended++;
                    }
                }
            }
            if (v->q && v->q->phase != LK_SEQ_WAIT) busy = 1;
        }
        int rc = lk_core_turn(&b.c, &e);
        if (rc < 0) fail_msg("LK_SEED=%llu: turn: %s", (unsigned long long)case_seed, e.text);
        if (rnd(4) == 0) lk_prefix_idle(b.c.prefix);
        for (int i = 0; i < LIVE; i++) {
            struct live *v = &live[i];
            if (!v->q || v->q->phase == LK_SEQ_WAIT) continue;
            if (v->cancel_at >= 0 && v->cancel_at-- == 0 && v->q->phase != LK_SEQ_DONE) {
                lk_seq_finish(v->q, LK_FIN_CANCEL);
                lk_core_end(&b.c, v->q);
            }
            if (v->q->phase != LK_SEQ_DONE) continue;
            if (v->q->finish == LK_FIN_ERROR && v->q->err.code == LK_EBUSY) { /* a fair answer of a small pool */
                lk_core_release(&b.c, v->q);
                lk_seq_free(v->q);
                v->q = NULL;
            } else {
                case_end(&b, v, old, old_n, &n_old);
            }
            ended++;
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].q) {
            lk_seq_finish(live[i].q, LK_FIN_CANCEL);
            lk_core_end(&b.c, live[i].q);
            lk_core_release(&b.c, live[i].q);
            lk_seq_free(live[i].q);
        }
    bench_close(&b, pages, slots);
    folder_empty(dir); /* files outlive an engine; a seed must mean the same case */
    return ended;
}

static void random_cases(void **state)
{
    const char *s = getenv("LK_CASES"), *from = getenv("LK_SEED");
    int n = s ? atoi(s) : 150, requests = 0;
    uint64_t seed = from ? strtoull(from, NULL, 10) : 1;
    char dir[] = "/tmp/laoka-core-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < n; i++) {
        requests += random_case(seed + (uint64_t)i, dir);
    }
    folder_remove(dir);
    print_message("%d cases from seed %llu, %d requests, %d steps of %d rows\n", n, (unsigned long long)seed, requests,
                  fake_steps, fake_rows);
    assert_true(requests > 3 * n);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_change_nothing), cmocka_unit_test(context_ends_cleanly),
        cmocka_unit_test(prefixes_are_reused),   cmocka_unit_test(turns_are_reused),
        cmocka_unit_test(prompts_end_inside_a_round), cmocka_unit_test(small_pools_refuse),
        cmocka_unit_test(dead_device_ends_the_turn), cmocka_unit_test(grammar_and_logprobs),
        cmocka_unit_test(drafts_keep_the_distribution), cmocka_unit_test(random_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
