/* n ranks compute what one does: logits and MTP logits within 1e-3 of n = 1, the same best ids and candidates, and each rank holds
 * 1/n of the weights. Ranks are processes over shared memory, as in service. */
#include "model/rig.h"
#include "model/toy.h"

#include "dev/ops.h"
#include "tp/group.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKENS 24
#define TOP    8
#define BUNDLED LK_SOURCE_DIR "/models/demo"

/* What rank 0 shows the test. */
struct shown {
    int ok;
    size_t bytes[LK_MAX_RANKS]; /* read in a step */
    int32_t best[TOKENS], top_ids[TOP];
    float top_vals[TOP], lse;
    float logits[]; /* [TOKENS][vocab], then [TOKENS-1][vocab] */
};

static size_t shown_bytes(int vocab)
{
    return sizeof(struct shown) + 2 * TOKENS * (size_t)vocab * sizeof(float);
}

static void rank_score(struct rig *r, struct shown *s, const int32_t *ids)
{
    struct kept k;
    struct line l;
    struct lk_err e = {0};
    kept_run(&k, r, ids, TOKENS, 0, 1);
    line_open(&l, r);
    line_step(&l, ids, TOKENS, LK_STEP_ARGMAX);
    int32_t best[TOKENS], last = TOKENS - 1, top[TOP];
    float vals[TOP], lse;
    if (lk_model_argmax(r->m, best, &e) || lk_model_head(r->m, 1, &last, 0, &e)) fail_msg("%s", e.text);
    /* an edit reaches the shard that holds the id: the best is pushed down, another up */
    int32_t rows[2] = {0, 0}, edit[2] = {best[last], ids[0]};
    float rep[2] = {1, 1}, add[2] = {-100, 3};
    if (lk_model_edit(r->m, 2, rows, edit, rep, add, &e) || lk_model_topk(r->m, TOP, top, vals, &lse, &e)) fail_msg("%s", e.text);
    line_close(&l);
    memcpy(s->best, best, sizeof best);
    memcpy(s->top_ids, top, sizeof top);
    memcpy(s->top_vals, vals, sizeof vals);
    s->lse = lse;
    size_t n = (size_t)TOKENS * (size_t)r->vocab;
    memcpy(s->logits, k.logits, n * 4);
    memcpy(s->logits + n, k.mtp, (n - (size_t)r->vocab) * 4);
    kept_free(&k);
}

static int rank_main(struct lk_group *g, const char *path, const int32_t *ids, struct shown *s)
{
    struct lk_err e = {0};
    struct rig r;
    struct lk_comm *c;
    if (lk_comm_shm_open(&c, g, &e) || lk_group_ready(g, 20, &e)) return 1;
    if (rig_try(&r, path, &(struct rig_opts){.tokens = 64, .chunk = 32, .comm = c}, &e)) {
        fprintf(stderr, "rank %d: %s\n", c->rank, e.text);
        return 1;
    }
    s->bytes[c->rank] = lk_model_step_bytes(r.m);
    struct shown *mine = c->rank == 0 ? s : calloc(1, shown_bytes(r.vocab));
    rank_score(&r, mine, ids);
    if (c->rank == 0) s->ok = 1;
    else free(mine);
    rig_close(&r);
    c->close(c);
    return 0;
}

static void ranks_run(int n, const char *path, const int32_t *ids, struct shown *s)
{
    struct lk_group_opts o = {.n = n, .plan_bytes = 4096, .reduce_bytes = lk_comm_shm_bytes(n, 32 * 256), .patience_s = 60};
    pid_t pid[LK_MAX_RANKS];
    fflush(NULL);
    pid[0] = fork();
    if (!pid[0]) {
        struct lk_group *g, *mine;
        struct lk_err e = {0};
        if (lk_group_create(&g, &o, &e)) _exit(2);
        for (int r = 1; r < n; r++)
            if (!(pid[r] = fork())) {
                if (lk_group_join(&mine, dup(lk_group_fd(g)), lk_group_nonce(g), r, &e)) _exit(2);
                int rc = rank_main(mine, path, ids, s);
                lk_group_leave(mine);
                _exit(rc);
            }
        int rc = rank_main(g, path, ids, s), status;
        for (int r = 1; r < n; r++)
            if (waitpid(pid[r], &status, 0) != pid[r] || status) rc = 3;
        lk_group_leave(g);
        _exit(rc);
    }
    int status;
    assert_int_equal(waitpid(pid[0], &status, 0), pid[0]);
    assert_int_equal(status, 0);
    assert_int_equal(s->ok, 1);
}

static void compare(const char *name, const char *path, int n, int replicated)
{
    struct rig r;
    int32_t ids[TOKENS];
    rig_open(&r, path, &(struct rig_opts){.tokens = 64, .chunk = 32});
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + 11) % (r.vocab - 64);
    int vocab = r.vocab;
    size_t bytes = shown_bytes(vocab), whole = lk_model_step_bytes(r.m), sum = 0;
    struct shown *one = calloc(1, bytes);
    struct shown *many = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(one && many != MAP_FAILED);
    rank_score(&r, one, ids);
    rig_close(&r);
    ranks_run(n, path, ids, many);
    size_t count = (size_t)(2 * TOKENS - 1) * (size_t)vocab;
    double gap = rig_gap(one->logits, many->logits, count);
    for (int i = 0; i < n; i++) sum += many->bytes[i];
    printf("%-14s n = %d: logits within %.1e, weights %.3f of one\n", name, n, gap, (double)sum / (double)whole);
    assert_true(gap <= 1e-3);
    assert_memory_equal(one->best, many->best, sizeof one->best);
    assert_memory_equal(one->top_ids, many->top_ids, sizeof one->top_ids);
    assert_true(rig_gap(one->top_vals, many->top_vals, TOP) <= 1e-3 && fabsf(one->lse - many->lse) <= 1e-3f);
    assert_true(sum >= whole && (double)sum <= (double)whole * (replicated ? 1.06 : 1.002));
    munmap(many, bytes);
    free(one);
}

static void toys_agree(void **state)
{
    for (int i = 0; i < TOYS; i++) {
        const char *dir = toy_write(toys + i);
        char path[64];
        snprintf(path, sizeof path, "%s", dir);
        int big = toys[i].n_kv == 4;
        if (!big) compare(toys[i].name, path, 2, 0);
        compare(toys[i].name, path, 4, !big); /* two KV heads on four ranks: replicated */
        toy_remove(path);
    }
}

static void bundled_model_agrees(void **state)
{
    if (lk_file_exists(BUNDLED) != 2) skip();
    compare("bundled", BUNDLED, 2, 0);
}

static void master_agrees(void **state)
{
    if (lk_file_exists(MASTER) != 2) {
        printf("skipped: no BF16 master at %s\n", MASTER);
        skip();
    }
    compare("master", MASTER, 2, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(toys_agree), cmocka_unit_test(bundled_model_agrees), cmocka_unit_test(master_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
