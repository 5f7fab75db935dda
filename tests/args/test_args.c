/* args: every flag of the table parses, refuses what is out of range, and shows up in help. */
#include "args/args.h"
#include "args/flags.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int parse(struct lk_opts *o, enum lk_cmd cmd, struct lk_err *e, int n, char **words)
{
    char *argv[16] = {"cmd"};
    for (int i = 0; i < n; i++) argv[i + 1] = words[i];
    lk_opts_init(o);
    lk_err_clear(e);
    return lk_opts_parse(o, cmd, n + 1, argv, e);
}
#define PARSE(cmd, ...) parse(&o, cmd, &e, sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]){__VA_ARGS__})

static void flags_set_fields(void **state)
{
    struct lk_opts o;
    struct lk_err e = {0};
    assert_int_equal(PARSE(LK_CMD_RUN, "-m", "x", "--temp=0.5", "--ctx", "8K", "--draft", "auto", "--kv", "bf16",
                           "--stop", "a", "--stop", "b", "--think", "off"), 0);
    assert_string_equal(o.engine.model, "x");
    assert_true(o.sampling.temp == 0.5);
    assert_true(isnan(o.sampling.top_p));
    assert_int_equal(o.engine.ctx, 8192);
    assert_int_equal(o.engine.draft, -1);
    assert_int_equal(o.engine.kv, LK_OPT_KV_BF16);
    assert_int_equal(o.run.n_stop, 2);
    assert_string_equal(o.run.stop[1], "b");
    assert_int_equal(o.run.think, LK_OPT_THINK_OFF);
}

static void bad_values_are_usage_errors(void **state)
{
    struct lk_opts o;
    struct lk_err e = {0};
    assert_int_equal(PARSE(LK_CMD_RUN, "--temp", "hot"), LK_EUSAGE);
    assert_non_null(strstr(e.text, "--temp"));
    assert_int_equal(PARSE(LK_CMD_RUN, "--temp", "1e999"), LK_EUSAGE);
    assert_int_equal(PARSE(LK_CMD_RUN, "--draft", "8"), LK_EUSAGE);
    assert_int_equal(PARSE(LK_CMD_RUN, "--draft", "-1"), LK_EUSAGE);
    assert_int_equal(PARSE(LK_CMD_RUN, "--kv", "int4"), LK_EUSAGE);
    assert_non_null(strstr(e.text, "int8|bf16|f32"));
    assert_int_equal(PARSE(LK_CMD_RUN, "--ctx"), LK_EUSAGE);
    assert_int_equal(PARSE(LK_CMD_RUN, "--port", "80"), LK_EUSAGE); /* serve's flag */
    assert_int_equal(PARSE(LK_CMD_RUN, "--json=1"), LK_EUSAGE);
}

static void devices_are_read(void **state)
{
    struct lk_opts_device d = {0};
    struct lk_err e = {0};
    assert_int_equal(lk_opts_devices(&d, "cuda:0,3", &e), 0);
    assert_int_equal(d.n, 2);
    assert_int_equal(d.at[1].index, 3);
    assert_int_equal(lk_opts_devices(&d, "cpu,cpu", &e), 0);
    assert_int_equal(d.n, 2);
    assert_int_equal(d.automatic, 0);
    assert_int_equal(lk_opts_devices(&d, "auto", &e), 0); /* also what nothing said means */
    assert_int_equal(d.n, 1);
    assert_int_equal(d.automatic, 1);
    struct lk_buf b = {0};
    lk_opts_devices_put(&d, &b);
    assert_string_equal(b.data, "auto");
    lk_buf_free(&b);
    struct lk_opts o;
    lk_opts_init(&o);
    assert_int_equal(o.engine.dev.automatic, 1);
    assert_int_equal(o.engine.dev.n, 1);
    static const char *const bad[] = {"", "gpu", "cuda:", "cuda:x", "cpu,cuda:0", "cuda:0,cpu", "cpu,", "0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lk_err_clear(&e);
        assert_int_equal(lk_opts_devices(&d, bad[i], &e), LK_EUSAGE);
    }
}

static void help_lists_every_flag(void **state)
{
    struct lk_buf b = {0};
    for (int bit = 1; bit < LK_CMD_ALL; bit <<= 1) {
        lk_buf_reset(&b);
        lk_opts_help(bit, &b);
        for (size_t i = 0; i < lk_flags_count; i++)
            if (lk_flags[i].cmds & bit) assert_non_null(strstr(b.data, lk_flags[i].name));
    }
    lk_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_set_fields),
        cmocka_unit_test(bad_values_are_usage_errors),
        cmocka_unit_test(devices_are_read),
        cmocka_unit_test(help_lists_every_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
