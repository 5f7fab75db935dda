/* Broken safetensors files, indexes and configs: each gives LK_EINPUT and one line that names file, tensor, expected and found; nothing
 * crashes, and memory stays small whatever a length field says. */
#include "artifact/artifact.h"
#include "artifact/st_make.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>

#include <cmocka.h>

#define T(name, dtype, shape, b, e) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" b "," e "]}"
#define GOOD T("model.embed_tokens.weight", "BF16", "[64,32]", "0", "4096")

static void refuse(const char *path, const char *const *want)
{
    struct lk_artifact *a;
    struct lk_err e = {0};
    int rc = lk_artifact_open(&a, path, &e);
    if (rc != LK_EINPUT) fail_msg("%s: code %d, text %s", path, rc, e.text);
    assert_null(a);
    assert_null(strchr(e.text, '\n'));
    for (; *want; want++)
        if (!strstr(e.text, *want)) fail_msg("expected '%s' in: %s", *want, e.text);
}

static const struct header_case {
    const char *what;
    int64_t length; /* -1: honest */
    const char *header;
    size_t data;
    const char *want[6];
} cases[] = {
    {"length 0", 0, "", 0, {"model.safetensors", "header length", "found 0"}},
    {"huge length", INT64_MAX, "{}", 0, {"header length", "9223372036854775807"}},
    {"length past the end", 100, "{}", 10, {"header length", "at most 12", "found 100"}},
    {"not JSON", -1, "{\"a\":", 0, {"model.safetensors", "expected JSON"}},
    {"an array", -1, "[1,2]", 0, {"expected a JSON object", "an array"}},
    {"entry is no object", -1, "{\"x\":3}", 0, {"tensor x", "expected an object", "an integer"}},
    {"no dtype", -1, "{\"x\":{\"shape\":[1],\"data_offsets\":[0,2]}}", 2, {"tensor x", "dtype", "found nothing"}},
    {"unknown dtype", -1, "{" T("x", "Q9", "[1]", "0", "2") "}", 2, {"tensor x", "dtype", "found Q9"}},
    {"no shape", -1, "{\"x\":{\"dtype\":\"BF16\",\"data_offsets\":[0,2]}}", 2, {"tensor x", "shape", "nothing"}},
    {"negative size", -1, "{" T("x", "BF16", "[-1]", "0", "2") "}", 2, {"tensor x", "shape", "negative"}},
    {"fraction of a size", -1, "{" T("x", "BF16", "[1.5]", "0", "2") "}", 2, {"tensor x", "shape", "real"}},
    {"nine sizes", -1, "{" T("x", "BF16", "[1,1,1,1,1,1,1,1,1]", "0", "2") "}", 2, {"tensor x", "at most 8"}},
    {"product wraps", -1, "{" T("x", "BF16", "[4294967296,4294967296,4]", "0", "2") "}", 2, {"tensor x", "64 bits"}},
    {"bytes wrap", -1, "{" T("x", "F64", "[2305843009213693952]", "0", "2") "}", 2, {"tensor x", "expected", "found 2"}},
    {"offsets reversed", -1, "{" T("x", "BF16", "[1]", "2", "0") "}", 2, {"tensor x", "begin <= end", "[2, 0]"}},
    {"offsets negative", -1, "{" T("x", "BF16", "[1]", "-2", "0") "}", 2, {"tensor x", "begin <= end", "[-2, 0]"}},
    {"offset is a real", -1, "{" T("x", "BF16", "[1]", "0", "2.0") "}", 2, {"tensor x", "data_offsets", "two integers"}},
    {"three offsets", -1, "{" T("x", "BF16", "[1]", "0,1", "2") "}", 2, {"tensor x", "two integers"}},
    {"outside the file", -1, "{" T("x", "BF16", "[4]", "0", "8") "}", 6, {"tensor x", "within the 6 data bytes", "found 8"}},
    {"overlap", -1, "{" T("x", "BF16", "[4]", "0", "8") "," T("y", "BF16", "[4]", "4", "12") "}", 12,
     {"tensor y", "begin at byte 8", "found 4", "overlaps tensor x"}},
    {"hole", -1, "{" T("x", "BF16", "[4]", "0", "8") "," T("y", "BF16", "[1]", "10", "12") "}", 12, {"tensor y", "hole"}},
    {"trailing bytes", -1, "{" T("x", "BF16", "[4]", "0", "8") "}", 9, {"expected 8 data bytes", "found 9"}},
    {"shape against bytes", -1, "{" T("x", "BF16", "[5]", "0", "8") "}", 8, {"tensor x", "expected 10 bytes", "BF16 [5]", "found 8"}},
    {"dtype against bytes", -1, "{" T("x", "F32", "[4]", "0", "8") "}", 8, {"tensor x", "expected 16 bytes", "F32 [4]", "found 8"}},
    {"duplicate key", -1, "{" T("x", "BF16", "[1]", "0", "2") "," T("x", "BF16", "[1]", "0", "2") "}", 2, {"duplicate"}},
    {"two prefixes", -1,
     "{" GOOD "," T("model.language_model.embed_tokens.weight", "BF16", "[64,32]", "4096", "8192") "}", 8192,
     {"model.language_model.embed_tokens.weight", "embed_tokens", "found also model.embed_tokens.weight"}},
    {"FP8 without scale", -1, "{" T("model.layers.0.mlp.up_proj.weight", "F8_E4M3", "[32,32]", "0", "1024") "}", 1024,
     {"up_proj.weight", "weight_scale", "F8_E4M3 [32, 32]"}},
    {"FP8 with a scale of another shape", -1,
     "{" T("model.layers.0.mlp.up_proj.weight", "F8_E4M3", "[32,32]", "0", "1024") ","
     T("model.layers.0.mlp.up_proj.weight_scale", "F32", "[31,1]", "1024", "1148") "}", 1148,
     {"up_proj.weight_scale", "[32, 1]", "found F32 [31, 1]"}},
    {"NVFP4 without its global scale", -1,
     "{" T("model.layers.0.mlp.up_proj.weight_packed", "U8", "[32,16]", "0", "512") ","
     T("model.layers.0.mlp.up_proj.weight_scale", "F8_E4M3", "[32,2]", "512", "576") "}", 576,
     {"up_proj.weight_packed", "weight_global_scale"}},
    {"NVFP4 with global scale 0", -1,
     "{" T("model.layers.0.mlp.up_proj.weight_packed", "U8", "[32,16]", "0", "512") ","
     T("model.layers.0.mlp.up_proj.weight_scale", "F8_E4M3", "[32,2]", "512", "576") ","
     T("model.layers.0.mlp.up_proj.weight_global_scale", "F32", "[1]", "576", "580") "}", 580,
     {"weight_global_scale", "above 0", "found 0"}},
    {"INT32 weight", -1, "{" T("model.layers.0.mlp.up_proj.weight", "I32", "[2,2]", "0", "16") "}", 16,
     {"up_proj.weight", "expected BF16", "found I32 [2, 2]"}},
    {"scales alone", -1, "{" T("model.layers.0.mlp.up_proj.weight_scale", "F32", "[2]", "0", "8") "}", 8,
     {"up_proj.weight_scale", "a weight beside it"}},
};

static void headers_are_refused(void **state)
{
    char dir[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct header_case *c = &cases[i];
        dir_new(dir);
        text_put(dir, "config.json", TINY_CONFIG);
        st_put(dir, "model.safetensors", c->length, c->header, c->data);
        print_message("%s\n", c->what);
        refuse(dir, c->want);
        dir_remove(dir);
    }
}

static void depth_bombs_are_refused(void **state)
{
    char dir[64];
    size_t n = 1u << 20;
    char *bomb = malloc(n + 1);
    memset(bomb, '[', n);
    bomb[n] = 0;
    const char *const want[] = {"expected JSON", "depth", NULL};
    dir_new(dir);
    text_put(dir, "config.json", TINY_CONFIG);
    st_put(dir, "model.safetensors", -1, bomb, 0);
    refuse(dir, want);
    st_put(dir, "model.safetensors", -1, "{" GOOD "}", 4096);
    text_put(dir, "config.json", bomb);
    refuse(dir, want);
    text_put(dir, "config.json", TINY_CONFIG);
    text_put(dir, "model.safetensors.index.json", bomb);
    refuse(dir, want);
    dir_remove(dir);
    free(bomb);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    assert_true(u.ru_maxrss < 500 * 1024); /* KB; sanitizers included */
}

static void shards_are_checked(void **state)
{
    static const struct {
        const char *index;
        const char *want[6];
    } v[] = {
        {"{\"weight_map\":{\"a\":\"x.safetensors\"}}", {"index.json", "tensor a", "x.safetensors", "no such file"}},
        {"{\"weight_map\":{\"a\":\"m.safetensors\"}}", {"tensor a", "m.safetensors", "in no shard", "stale"}},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"m.safetensors\",\"model.norm.weight\":\"m.safetensors\",\"z\":\"n.safetensors\"}}",
         {"tensor model.norm.weight", "expected in m.safetensors", "found in n.safetensors"}},
        {"{\"weight_map\":{\"a\":\"../m.safetensors\"}}", {"tensor a", "same folder", "../m.safetensors"}},
        {"{\"weight_map\":{\"a\":3}}", {"tensor a", "an integer"}},
        {"{\"weight_map\":{}}", {"weight_map", "an empty one"}},
        {"{}", {"weight_map", "nothing"}},
        {"{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"m.safetensors\"}}", {"index.json", "duplicate"}},
    };
    char dir[64];
    dir_new(dir);
    text_put(dir, "config.json", TINY_CONFIG);
    st_put(dir, "m.safetensors", -1, "{" GOOD "}", 4096);
    st_put(dir, "n.safetensors", -1, "{" T("model.norm.weight", "BF16", "[32]", "0", "64") "}", 64);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        text_put(dir, "model.safetensors.index.json", v[i].index);
        refuse(dir, v[i].want);
    }
    text_put(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"model.embed_tokens.weight\":\"m.safetensors\",\"model.norm.weight\":\"n.safetensors\"}}");
    struct lk_artifact *a;
    struct lk_err e = {0};
    assert_int_equal(lk_artifact_open(&a, dir, &e), 0);
    assert_int_equal(lk_artifact_count(a), 2);
    assert_int_equal(lk_artifact_config(a)->tied, 1);
    lk_artifact_close(a);
    st_put(dir, "n.safetensors", -1, "{" T("model.norm.weight", "BF16", "[32]", "0", "64") "}", 63); /* short shard */
    const char *const want[] = {"n.safetensors", "model.norm.weight", "63 data bytes", "found 64", NULL};
    refuse(dir, want);
    dir_remove(dir);
}

static void configs_are_checked(void **state)
{
    static const struct {
        const char *config;
        const char *want[5];
    } v[] = {
        {"{}", {"config.json", "model_type", "found nothing"}},
        {"{\"model_type\":\"llama\"}", {"model_type", "qwen3_5", "found llama"}},
        {"{\"model_type\":\"qwen3_5\"}", {"hidden_size", "expected an integer", "nothing"}},
        {"{\"model_type\":\"qwen3_5\",\"hidden_size\":\"a\"}", {"hidden_size", "a string"}},
        {"{\"model_type\":\"qwen3_5\",\"hidden_size\":0}", {"hidden_size", "found 0"}},
        {"{\"model_type\":\"qwen3_5\",\"hidden_size\":99999999999}", {"hidden_size", "found 99999999999"}},
        {"[]", {"config.json", "an array"}},
        {"{\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":600,\"vocab_size\":64}",
         {"num_hidden_layers", "1 to 512", "found 600"}},
        {"{\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":4,\"vocab_size\":64,"
         "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"linear_num_value_heads\":2,\"layer_types\":[\"full_attention\"]}",
         {"layer_types", "array of 4", "found 1"}},
        {"{\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":1,\"vocab_size\":64,"
         "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"linear_num_value_heads\":2,\"layer_types\":[\"mamba\"]}",
         {"layer_types", "layer 0", "found mamba"}},
        {"{\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":1,\"vocab_size\":64,"
         "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"linear_num_value_heads\":2,\"rope_parameters\":{\"rope_type\":\"yarn\"}}",
         {"rope_type", "expected default", "found yarn"}},
    };
    char dir[64];
    dir_new(dir);
    st_put(dir, "model.safetensors", -1, "{" GOOD "}", 4096);
    const char *const none[] = {"config.json", "found none", NULL};
    refuse(dir, none);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        text_put(dir, "config.json", v[i].config);
        refuse(dir, v[i].want);
    }
    dir_remove(dir);
    const char *const gone[] = {"no such file", NULL};
    refuse("/tmp/laoka-no-such-model", gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_are_refused),
        cmocka_unit_test(depth_bombs_are_refused),
        cmocka_unit_test(shards_are_checked),
        cmocka_unit_test(configs_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
