/* Every number of a config that makes no sense is refused with its name, what was expected and what was found. */
#include "model/shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct lk_config good(void)
{
    struct lk_config c = {.arch = "qwen3_5", .hidden = 5120, .inter = 17408, .layers = 64, .vocab = 248320, .n_q = 24,
                          .n_kv = 4, .head_dim = 256, .rope_dim = 64, .hk = 16, .hv = 48, .gdn_k_dim = 128,
                          .gdn_v_dim = 128, .conv_k = 4, .max_ctx = 262144, .rope_theta = 1e7, .eps = 1e-6,
                          .section = {11, 11, 10}, .mtp_layers = 1, .norm_plus_one = 1};
    for (int i = 3; i < 64; i += 4) c.full[i] = 1;
    return c;
}

static void the_27b_is_read(void **state)
{
    struct lk_config c = good();
    struct lk_shape s;
    struct lk_err e = {0};
    assert_int_equal(lk_shape_read(&s, &c, &e), 0);
    assert_int_equal(s.conv_ch, 10240);
    assert_int_equal(s.n_full, 16);
    assert_int_equal(s.n_gdn, 48);
    assert_int_equal(s.full[63], 1);
}

static void refused(const struct lk_config *c, const char *name, const char *expected, const char *found)
{
    struct lk_shape s;
    struct lk_err e = {0};
    assert_int_equal(lk_shape_read(&s, c, &e), LK_EINPUT);
    if (!strstr(e.text, name) || !strstr(e.text, expected) || !strstr(e.text, found))
        fail_msg("expected %s, %s and %s in: %s", name, expected, found, e.text);
}

static void wrong_numbers_are_named(void **state)
{
    struct lk_config c;
#define WRONG(field, value, name, expected, found) \
    c = good(), c.field = value, refused(&c, name, expected, found)
    WRONG(hidden, 0, "hidden_size", "1 to 65536", "found 0");
    WRONG(hidden, INT64_C(1) << 40, "hidden_size", "1 to 65536", "found 1099511627776");
    WRONG(inter, -1, "intermediate_size", "1 to", "found -1");
    WRONG(layers, 513, "num_hidden_layers", "1 to 512", "found 513");
    WRONG(vocab, 1 << 25, "vocab_size", "1 to", "found 33554432");
    WRONG(n_q, 0, "num_attention_heads", "1 to", "found 0");
    WRONG(n_kv, 5, "num_attention_heads", "multiple of num_key_value_heads 5", "found 24");
    WRONG(head_dim, 128, "head_dim", "expected 256", "found 128");
    WRONG(rope_dim, 258, "rotary", "2 to 256", "found 258");
    WRONG(rope_dim, 63, "rotary", "even", "found 63");
    WRONG(hv, 47, "linear_num_value_heads", "multiple of linear_num_key_heads 16", "found 47");
    WRONG(gdn_k_dim, 64, "linear_key_head_dim", "expected 128", "found 64");
    WRONG(gdn_v_dim, 256, "linear_value_head_dim", "expected 128", "found 256");
    WRONG(conv_k, 3, "linear_conv_kernel_dim", "expected 4", "found 3");
    WRONG(max_ctx, 0, "max_position_embeddings", "1 to", "found 0");
    WRONG(mtp_layers, 2, "mtp_num_hidden_layers", "0 to 1", "found 2");
    WRONG(section[0], 12, "mrope_section", "sum of 32", "found 33");
    WRONG(section[2], -5, "mrope_section", "0 to 256", "found -5");
    WRONG(eps, 0, "rms_norm_eps", "above 0", "found 0");
    WRONG(rope_theta, 0.5, "rope_theta", "1 to", "found 0.5");
    c = good();
    strcpy(c.arch, "llama");
    refused(&c, "architecture", "qwen3_5", "found 'llama'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_27b_is_read), cmocka_unit_test(wrong_numbers_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
