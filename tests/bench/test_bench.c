/* bench: judgements and statistics on made-up timing logs with known answers; results survive the disk; prompts keep their size and share
 * no prefix. */
#include "base/file.h"
#include "base/mem.h"
#include "bench/blocks.h"
#include "bench/cell.h"
#include "bench/table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int near(double a, double b)
{
    return fabs(a - b) <= 1e-9 + fabs(b) * 1e-6;
}

/* 1,000 prompt tokens of which 200 were stored, 2 s of prefill; 100 tokens in 1 s: 40 rounds of 3 drafts, 60 accepted. */
static struct lk_call call_good(void)
{
    return (struct lk_call){.end = LK_CALL_OK, .status = 200, .ttft = 2.0, .last = 3.0, .total = 3.05, .chunks = 40, .finish = "length", .prompt_n = 1000,
                            .cached_n = 200, .prompt_ms = 2000, .predicted_n = 100, .predicted_ms = 1000, .per_second = 100, .draft_n = 120,
                            .draft_accepted = 60};
}

static void numbers_are_those_of_the_log(void **state)
{
    struct lk_call k = call_good();
    struct lk_cell c = {0};
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_OK);
    assert_true(near(c.tps, 100) && near(c.prefill_tps, 400) && near(c.accept, 0.5));
    assert_true(near(c.ms_round, 25) && near(c.tokens_round, 2.5) && near(c.ttft_s, 2));
    /* without the server's own times the clock counts: the first token is not part of the interval */
    k.prompt_ms = k.predicted_ms = k.draft_n = k.draft_accepted = -1;
    k.predicted_n = 101;
    lk_cell_judge(&c, &k, NULL);
    assert_true(near(c.tps, 100) && near(c.prefill_tps, 400) && c.accept < 0 && near(c.tokens_round, 1));
}

static void lies_are_marked(void **state)
{
    struct lk_call k = call_good();
    struct lk_cell c = {0};
    k.predicted_ms = 500; /* claims half the time that passed here */
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_LIES);
    assert_non_null(strstr(c.note, "0.500 s"));
    k = call_good();
    k.prompt_ms = 9000; /* more than the whole request took */
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_LIES);
    k = call_good();
    k.predicted_ms = 650; /* the front of a busy server had to wait for a core */
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_OK);
    k.predicted_ms = 550; /* nobody waits that long */
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_LIES);
    k = call_good();
    k.predicted_ms = 100; /* a short answer that was held up once or twice: 0.1 s of work in 1 s, 39 waits of which two are long */
    k.waits[0] = 0.5;
    k.waits[1] = 0.4;
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_OK);
    k.last += 0.5; /* a hold-up has its limit too: what comes in one lump cannot be told from a lie */
    k.waits[0] = 1;
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_LIES);
    k = call_good();
    k.predicted_ms = 960; /* rounding and scheduling are no lies */
    lk_cell_judge(&c, &k, NULL);
    assert_int_equal(c.mark, LK_CELL_OK);
}

static double bytes_of(const void *f, double ctx, int draft)
{
    return 20e9 + 40e3 * ctx + 1e9 * draft; /* 23.04 GB at 1,000 tokens with 3 drafts */
}

static void physics_refuses_what_cannot_be(void **state)
{
    struct lk_call k = call_good();
    struct lk_cell c = {0};
    struct lk_physics p = {900, bytes_of, NULL}; /* 25.6 ms a round; 25 was reported: within the 3 % of the bandwidth's own error */
    lk_cell_judge(&c, &k, &p);
    assert_int_equal(c.mark, LK_CELL_OK);
    p.gbs = 800; /* 28.8 ms */
    lk_cell_judge(&c, &k, &p);
    assert_int_equal(c.mark, LK_CELL_IMPOSSIBLE);
    assert_non_null(strstr(c.note, "23.040 GB"));
    assert_non_null(strstr(c.note, "28.800 ms"));
    p.gbs = 0;
    lk_cell_judge(&c, &k, &p);
    assert_int_equal(c.mark, LK_CELL_OK);
}

static void failures_keep_their_reason(void **state)
{
    static const enum lk_call_end ends[] = {LK_CALL_HTTP, LK_CALL_CLOSED, LK_CALL_STALLED, LK_CALL_REFUSED, LK_CALL_BUSY};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct lk_call k = call_good();
        struct lk_cell c = {0};
        k.end = ends[i];
        strcpy(k.why, "because");
        lk_cell_judge(&c, &k, NULL);
        assert_int_equal(c.mark, LK_CELL_FAILED);
        assert_non_null(strstr(c.note, lk_call_end_name(ends[i])));
        assert_non_null(strstr(c.note, "because"));
        assert_true(c.tps < 0);
    }
}

static void spreads_are_right(void **state)
{
    struct lk_spread s;
    double odd[] = {5, 1, 9}, even[] = {4, 1, 3, 2};
    lk_spread_make(&s, odd, 3);
    assert_true(near(s.mean, 5) && near(s.median, 5) && near(s.min, 1) && near(s.max, 9));
    lk_spread_make(&s, even, 4);
    assert_true(near(s.mean, 2.5) && near(s.median, 2.5));
    lk_spread_make(&s, NULL, 0);
    assert_int_equal(s.n, 0);
}

static void cell_put(struct lk_table *t, const char *run, double tps, double ms, enum lk_cell_mark mark)
{
    struct lk_cell c = {.size = "8K", .kind = "code", .tokens = 8192, .mark = mark, .prompt_n = 8000, .cached_n = -1, .predicted_n = 100, .ttft_s = 1,
                        .prefill_tps = 8000, .tps = tps, .accept = 0.5, .ms_round = ms, .tokens_round = 2.5};
    snprintf(c.run, sizeof c.run, "%s", run);
    assert_int_equal(lk_table_add(t, &c), 0);
}

static void results_survive_the_disk(void **state)
{
    char dir[] = "/tmp/laoka-bench-XXXXXX";
    struct lk_table t = {.head = json_pack("{s:s}", "card", "none")}, u;
    struct lk_err e = {0};
    struct lk_buf md = {0};
    assert_non_null(mkdtemp(dir));
    cell_put(&t, "cold", 100, 25, LK_CELL_OK);
    cell_put(&t, "warm", -1, -1, LK_CELL_FAILED);
    cell_put(&t, "seed1", 90, 27, LK_CELL_OK);
    cell_put(&t, "seed2", 110, 23, LK_CELL_OK);
    assert_int_equal(lk_table_save(&t, dir, 0, &e), 0);
    assert_int_equal(lk_table_load(&u, dir, &e), 0);
    assert_int_equal(u.n, 4);
    assert_memory_equal(&u.cells[0], &t.cells[0], sizeof t.cells[0]);
    assert_int_equal(u.cells[1].mark, LK_CELL_FAILED);
    assert_true(u.cells[1].tps < 0);
    assert_string_equal(json_string_value(json_object_get(u.head, "card")), "none");
    assert_int_equal(lk_table_markdown(&u, &md), 0);
    assert_non_null(strstr(md.data, "**100.0** (90.0–110.0)"));
    assert_non_null(strstr(md.data, "**FAILED**"));
    lk_buf_free(&md);
    lk_table_free(&t);
    lk_table_free(&u);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", dir);
    assert_int_equal(system(cmd), 0);
    assert_int_not_equal(lk_table_load(&u, dir, &e), 0);
}

static void compare_pairs_cells(void **state)
{
    struct lk_table a = {0}, b = {0};
    struct lk_buf out = {0};
    cell_put(&a, "cold", 100, 25, LK_CELL_OK);
    cell_put(&b, "cold", 125, 20, LK_CELL_OK);
    cell_put(&a, "warm", 100, 25, LK_CELL_OK);
    cell_put(&b, "warm", 101, 24.8, LK_CELL_OK);
    cell_put(&a, "seed1", 100, 25, LK_CELL_OK);
    assert_int_equal(lk_table_compare(&a, &b, &out), 0);
    assert_non_null(strstr(out.data, "1.250 | 25.00 | 20.00 | 1.250 | 4.0 % | B is faster"));
    assert_non_null(strstr(out.data, "| 4.0 % | no difference"));
    assert_non_null(strstr(out.data, "only in A"));
    lk_buf_free(&out);
    lk_table_free(&a);
    lk_table_free(&b);
}

static void prompts_share_no_prefix(void **state)
{
    struct lk_err e = {0};
    int n;
    for (int kind = LK_BLOCK_CODE; kind <= LK_BLOCK_FILE; kind++)
        for (int tokens = 200; tokens < 20000; tokens *= 3) {
            struct lk_buf a = {0}, b = {0};
            const char *text = "春眠不觉晓 the quick brown fox\n";
            assert_int_equal(lk_blocks_make(kind, text, tokens, 100007, NULL, &a, &n, &e), 0);
            assert_int_equal(lk_blocks_make(kind, text, tokens, 900007, NULL, &b, &n, &e), 0);
            double got = (double)a.len / (kind == LK_BLOCK_CODE ? 3.2 : 3.0);
            if (tokens > 1000) assert_true(got <= tokens + 1); /* below that one block and the instruction are the least */
            if (kind != LK_BLOCK_FILE && tokens > 1000) assert_true(got > tokens * 0.7);
            size_t same = 0;
            while (same < a.len && a.data[same] == b.data[same]) same++;
            assert_true(same < 20);
            lk_buf_free(&a);
            lk_buf_free(&b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_log), cmocka_unit_test(lies_are_marked),
        cmocka_unit_test(physics_refuses_what_cannot_be), cmocka_unit_test(failures_keep_their_reason),
        cmocka_unit_test(spreads_are_right),              cmocka_unit_test(results_survive_the_disk),
        cmocka_unit_test(compare_pairs_cells),            cmocka_unit_test(prompts_share_no_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
