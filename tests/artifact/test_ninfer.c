/* .ninfer files of every profile and both containers, written by nf_make.h from the bundled model: exact values, the greedy text of the same values
 * in float32, one clear line for each broken header field. `test_ninfer --write DIR` leaves the files and the float32 folders there, for
 * tests/reference/ninfer.py; `--write DIR MODEL` one file of each profile of another model, for bench/load_time.py. The page's sizes are of 27B; a small file of the same profile has the sizes of its own tensors. */
#include "artifact/nf_make.h"
#include "artifact/st_make.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define DEMO LK_SOURCE_DIR "/models/demo"

static const struct variant {
    const char *name;
    int version, profile, v36, parts;
} variants[] = {{"v2-groupwise", 2, NFM_GROUPWISE, 0, 1}, {"v2-groupwise-36", 2, NFM_GROUPWISE, 1, 1}, {"v2-nvfp4", 2, NFM_NVFP4_38, 0, 1},
                {"v2-nvfp4-36", 2, NFM_NVFP4_36, 1, 1},   {"v3-groupwise", 3, NFM_GROUPWISE, 0, 2},    {"v3-nvfp4", 3, NFM_NVFP4_38, 0, 1}};
enum { VARIANTS = sizeof variants / sizeof *variants };

static struct lk_artifact *src;
static struct lk_pool *pool;
static char dir[64];

static void variant_write(const struct variant *v, struct nfm *m, const char *to, char *path)
{
    struct lk_buf json = {0};
    char part[160];
    nfm_build(m, src, v->version, (enum nfm_profile)v->profile, v->v36);
    size_t cut = v->parts > 1 ? m->payload.len / 2 + 77 : m->payload.len; /* inside an object, at no round number */
    sprintf(path, "%s/%s.ninfer", to, v->name);
    snprintf(part, sizeof part, "%s.ninfer.part-0001", v->name);
    nfm_json(m, v->v36, cut, v->parts > 1 ? part : NULL, m->payload.len - cut, &json);
    nfm_write(path, v->version, json.data, m->payload.data, cut);
    snprintf(part, sizeof part, "%s/%s.ninfer.part-0001", to, v->name);
    if (v->parts > 1) nfm_part_write(part, 1, m->payload.data + cut, m->payload.len - cut);
    lk_buf_free(&json);
}

/* The same values as a float32 Hugging Face folder. */
static void float_folder(const struct nfm *m, const char *to)
{
    struct lk_buf head = {0}, data = {0};
    uint64_t len;
    char file[160];
    lk_buf_chr(&head, '{');
    for (int i = 0; i < m->n_t; i++) {
        const struct nfm_tensor *t = &m->t[i];
        if (!strcmp(t->name, "draft_head")) continue;
        const struct lk_tensor *s = lk_artifact_find(src, t->name);
        size_t at = data.len;
        lk_buf_add(&data, t->v, (size_t)(t->n * t->k) * 4);
        int bare = !!strstr(t->name, "A_log") || !!strstr(t->name, "dt_bias"), conv = !!strstr(t->name, "conv1d");
        int top = !strncmp(t->name, "mtp.", 4) || !strcmp(t->name, "lm_head");
        lk_buf_fmt(&head, "%s\"%s%s%s\":{\"dtype\":\"F32\",\"shape\":", head.len > 1 ? "," : "", top ? "" : "model.", t->name, bare ? "" : ".weight");
        if (conv) lk_buf_fmt(&head, "[%d,1,4]", (int)(t->n * t->k / 4));
        else if (s->n_dims == 1) lk_buf_fmt(&head, "[%d]", (int)(t->n * t->k));
        else lk_buf_fmt(&head, "[%d,%d]", (int)t->n, (int)t->k);
        lk_buf_fmt(&head, ",\"data_offsets\":[%zu,%zu]}", at, data.len);
    }
    lk_buf_chr(&head, '}');
    while ((head.len + 8) % 64) lk_buf_chr(&head, ' ');
    len = head.len;
    snprintf(file, sizeof file, "mkdir -p %s && cp " DEMO "/*.json " DEMO "/*.jinja %s", to, to);
    assert_int_equal(system(file), 0);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    FILE *f = fopen(file, "wb");
    assert_true(f && fwrite(&len, 8, 1, f) == 1 && fwrite(head.data, head.len, 1, f) == 1 && fwrite(data.data, data.len, 1, f) == 1);
    fclose(f);
    size_t n;
    const char *config = lk_artifact_text(src, "config.json", &n), *q = strstr(config, "\"quantization_config\"");
    assert_non_null(q); /* renamed: without it every weight is taken as it is stored */
    snprintf(file, sizeof file, "%s/config.json", to);
    f = fopen(file, "wb");
    fprintf(f, "%.*s\"quantized_from\"%.*s", (int)(q - config), config, (int)(n - (size_t)(q - config) - 21), q + 21);
    fclose(f);
    lk_buf_free(&head);
    lk_buf_free(&data);
}

static void known_rows_encode_as_described(void **state)
{
    static const struct { int bits; uint16_t scale; const char *base, *high; } want[] = {
        {4, 0x3A25, "ddddedeeeefeffff0f0000001111112222223333334444445555556666667777", ""},
        {5, 0x35BC, "99aababbccddedeeff0f0011212233435455667677889899aabacbccddedeeff", "ffff070000000000"},
        {6, 0x318C, "2243547687a9baccedff10214354668799baccedfe10213354668799bacbedfe", "ffffffffff0000000000505555555555"}};
    for (int w = 0; w < 3; w++) {
        struct nfm m = {0};
        float x[64];
        char hex[80] = "";
        for (int i = 0; i < 64; i++) x[i] = (float)(i - 20) / 8;
        nfm_ints(&m, x, 1, 64, want[w].bits, 64);
        for (int i = 0; i < 32; i++) sprintf(hex + 2 * i, "%02x", (unsigned char)m.payload.data[i]);
        assert_string_equal(hex, want[w].base);
        for (int i = 0; want[w].high[2 * i]; i++) sprintf(hex + 2 * i, "%02x", (unsigned char)m.payload.data[256 + i]);
        if (*want[w].high) assert_memory_equal(hex, want[w].high, strlen(want[w].high));
        assert_int_equal(lk_get16(m.payload.data + (want[w].bits == 4 ? 256 : 512)), want[w].scale);
        lk_buf_free(&m.payload);
    }
    static const int at[][3] = {{0, 1, 1}, {0, 4, 512}, {1, 0, 16}, {32, 0, 4}, {33, 5, 533}, {127, 319, 40959}, {128, 0, 40960}, {200, 7, 41611}};
    static uint8_t scales[256 * 320], codes[256 * 2560];
    memset(codes, 0x22, sizeof codes); /* every value 1 */
    for (int i = 0; i < 8; i++) {
        struct lk_weight w = {.fmt = LK_FMT_NVFP4_T, .n = 256, .k = 5120, .data = codes, .scale = scales, .global = 1, .global_div = 1, .group = 16};
        float out;
        scales[at[i][2]] = 0x40; /* 2 */
        lk_weight_row(&w, at[i][0], at[i][1] * 16 + 3, 1, &out);
        assert_true(out == 2);
        scales[at[i][2]] = 0;
    }
}

static void values_equal(const struct lk_weight *w, const struct nfm_tensor *t)
{
    float *row = malloc((size_t)w->k * sizeof *row);
    for (int64_t r = 0; r < w->n; r++) {
        lk_weight_row(w, r, 0, w->k, row);
        for (int64_t k = 0; k < w->k; k++)
            if (row[k] != t->v[r * w->k + k]) fail_msg("%s (%s) [%d, %d]: expected %.9g, found %.9g", t->name, lk_fmt_info(w->fmt)->name, (int)r, (int)k, (double)t->v[r * w->k + k], (double)row[k]);
    }
    free(row);
}

static void every_value_is_exact(void **state)
{
    static struct nfm m;
    for (int i = 0; i < VARIANTS; i++) {
        char path[160];
        struct lk_artifact *a;
        struct lk_err e = {0};
        size_t n;
        variant_write(&variants[i], &m, dir, path);
        if (lk_artifact_open(&a, path, &e)) fail_msg("%s: %s", variants[i].name, e.text);
        assert_string_equal(lk_artifact_kind(a), "ninfer");
        assert_int_equal(lk_artifact_count(a), m.n_t);
        for (int t = 0; t < m.n_t; t++) {
            const struct lk_tensor *x = lk_artifact_find(a, m.t[t].name);
            struct lk_weight ready, said;
            void *own;
            if (!x) fail_msg("%s: %s is missing", variants[i].name, m.t[t].name);
            assert_int_equal(x->w.n * x->w.k, m.t[t].n * m.t[t].k);
            assert_int_equal(lk_repack(&x->w, &ready, &own, pool, &e), 0);
            assert_true(ready.fmt < LK_FMT_KERNELS && ready.fmt == lk_repack_fmt(&x->w));
            assert_int_equal(!lk_repack_plan(&x->w, &said), !own);
            assert_int_equal(lk_weight_bytes(&said), lk_weight_bytes(&ready));
            values_equal(&x->w, &m.t[t]);
            values_equal(&ready, &m.t[t]);
            lk_free(own);
        }
        const int32_t *map = lk_artifact_draft_map(a, &n);
        assert_int_equal(n, m.n_short);
        assert_memory_equal(map, m.shortlist, n * 4);
        assert_int_equal(lk_artifact_config(a)->n_eos, lk_artifact_config(src)->n_eos);
        assert_non_null(lk_artifact_text(a, "tokenizer.json", &n));
        lk_artifact_close(a);
        nfm_free(&m);
    }
}

/* Ids of a greedy run of the program itself. */
static char *greedy(const char *model, const char *more)
{
    char cmd[512], *out = calloc(1, 1 << 16);
    snprintf(cmd, sizeof cmd, LK_BINARY " run -m %s -p 'What does \"lighthouse\" mean?' --think off --temp 0 --max-tokens 24 --ctx 1024 --json %s", model, more);
    FILE *p = popen(cmd, "r");
    size_t n = p ? fread(out, 1, (1 << 16) - 1, p) : 0;
    out[n] = 0;
    assert_int_equal(pclose(p), 0);
    char *ids = strstr(out, "\"ids\""), *end = ids ? strchr(ids, ']') : NULL;
    assert_non_null(end);
    end[1] = 0;
    memmove(out, ids, strlen(ids) + 1);
    return out;
}

static void the_text_is_that_of_the_values(void **state)
{
    static struct nfm m;
    for (int i = 0; i < VARIANTS; i++) {
        if (i == 1 || i == 5) continue; /* the same kernels as their neighbours */
        char path[160], folder[96];
        variant_write(&variants[i], &m, dir, path);
        snprintf(folder, sizeof folder, "%s/f32", dir);
        float_folder(&m, folder);
        char *want = greedy(folder, ""), *got = greedy(path, ""), *ranks = greedy(path, "--devices cpu,cpu");
        assert_string_equal(got, want);
        assert_string_equal(ranks, want);
        free(want);
        free(got);
        free(ranks);
        nfm_free(&m);
    }
}

/* ---- broken files ---- */

struct broken { const char *from, *to, *message; };

/* Replaces the first `from`; the answer must be one line that names the file and says `message`. */
static void expect_broken(const char *json, size_t payload, int version, const struct broken *b)
{
    char path[96];
    struct lk_artifact *a;
    struct lk_err e = {0};
    const char *at = strstr(json, b->from);
    if (!at) fail_msg("no %s in the directory", b->from);
    char *text = malloc(strlen(json) + strlen(b->to) + 1);
    sprintf(text, "%.*s%s%s", (int)(at - json), json, b->to, at + strlen(b->from));
    snprintf(path, sizeof path, "%s/broken.ninfer", dir);
    nfm_write(path, version, text, NULL, payload); /* a hole: the directory is refused before it is read */
    int rc = lk_artifact_open(&a, path, &e);
    if (rc != LK_EINPUT || strncmp(e.text, dir, strlen(dir)) || strchr(e.text, '\n') || !strstr(e.text, b->message))
        fail_msg("%s -> %s: expected %s, found %d: %s", b->from, b->to, b->message, rc, e.text);
    free(text);
}

static void each_field_broken_v2(void **state)
{
    static const struct broken b[] = {
        {"{\"identity\"", "[\"identity\"", ":"},
        {"\"identity\":", "\"identity\":{},\"identity\":", "duplicate"},
        {"\"identity\":", "\"identitY\":", "identity"},
        {"\"objects\":[", "\"flags\":1,\"objects\":[", "flags"},
        {"\"model_id\":\"qwen3.8-27b\"", "\"model_id\":\"qwen3.9-27b\"", "qwen3.9-27b"},
        {"\"model_id\":\"qwen3.8-27b\"", "\"model_id\":8", "identity"},
        {"\"weights_id\":\"groupwise-int\"", "\"weights_id\":\"gguf-blocks\"", "gguf-blocks"},
        {"\"weights_id\":", "\"x\":1,\"weights_id\":", "x"},
        {"\"name\":\"text/final_norm\"", "\"name\":\"\"", "name"},
        {"\"name\":\"text/final_norm\"", "\"name\":7", "name"},
        {"\"name\":\"text/final_norm\"", "\"name\":\"text/token_embedding\"", "found two"},
        {"\"name\":\"text/final_norm\"", "\"name\":\"text/final_norn\"", "text/final_norm"},
        {"\"name\":\"text/layers/2/mlp/down\"", "\"name\":\"text/layers/2/mlp/Down\"", "mlp/down"},
        {"\"name\":\"vision/patch_embedding\"", "\"name\":\"audio/patch_embedding\"", "does not have"},
        {"\"kind\":\"tensor\"", "\"kind\":\"tensors\"", "kind"},
        {"\"kind\":\"tensor\",\"shape\":[8192,256]", "\"shape\":[8192,256]", "kind"},
        {"\"shape\":[8192,256]", "\"shape\":[8192,0]", "shape"},
        {"\"shape\":[8192,256]", "\"shape\":[8192,-256]", "shape"},
        {"\"shape\":[8192,256]", "\"shape\":[8192,256.0]", "shape"},
        {"\"shape\":[8192,256]", "\"shape\":[8192,257]", "bytes"},
        {"\"shape\":[8192,256]", "\"shape\":[8192]", "shape"},
        {"\"shape\":[8192,256]", "\"shape\":[1,1,1,8192,256]", "shape"},
        {"\"shape\":[8192,256]", "\"shape\":[1073741824,1073741824]", "shape"},
        {"\"shape\":[8192,256]", "\"shape\":\"8192\"", "shape"},
        {"\"format\":\"W8G32_F16S\"", "\"format\":\"W9G32_F16S\"", "W9G32_F16S"},
        {"\"format\":\"W8G32_F16S\"", "\"format\":\"GGML_K\"", "GGML_K"},
        {"\"format\":\"W8G32_F16S\"", "\"format\":\"Q4G64_F16S\"", "bytes"},
        {"\"layout\":\"row-split-k128-v1\"", "\"layout\":\"row-split-k256-v1\"", "layout"},
        {"\"layout\":\"row-split-k128-v1\"", "\"layout\":null", "layout"},
        {"\"encoding\":\"raw-bytes-v1\"", "\"encoding\":\"zip\"", "encoding"},
        {"\"offset\":0,", "\"offset\":-1,", "offset"},
        {"\"offset\":0,", "\"offset\":0.0,", "offset"},
        {"\"offset\":0,", "\"offset\":1e3,", "offset"},
        {"\"offset\":0,", "\"offset\":9000000000000000000,", "bytes"},
        {"\"offset\":0,", "\"offset\":700000,", "offset"},
        {"\"offset\":0,", "", "offset"},
        {"\"bytes\":552827", "\"bytes\":0", "bytes"},
        {"\"bytes\":552827", "\"bytes\":-5", "bytes"},
        {"\"bytes\":552827", "\"bytes\":9223372036854775807", "bytes"},
        {"\"bytes\":552827", "\"bytes\":\"552827\"", "bytes"},
        {"\"bytes\":2228224", "\"bytes\":2228225", "bytes"},
    };
    static struct nfm m;
    struct lk_buf json = {0};
    nfm_build(&m, src, 2, NFM_GROUPWISE, 0);
    nfm_json(&m, 0, 0, NULL, 0, &json);
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) expect_broken(json.data, m.payload.len, 2, &b[i]);
    lk_buf_free(&json);
    nfm_free(&m);
}

static void each_field_broken_v3(void **state)
{
    static const struct broken b[] = {
        {"\"components\":", "\"component\":", "components"},
        {"\"uses\":[{", "\"used\":[{", "uses"},
        {"\"uses\":[{", "\"uses\":[7,{", "uses[0]"},
        {"\"activation_policy\":\"AllowA8\"", "\"activation_policy\":\"AllowA2\"", "AllowA2"},
        {"\"parameter\":\"text/output_head\"", "\"parameter\":\"text/output_heads\"", "bound"},
        {"\"config\":{\"architectures\"", "\"configs\":{\"architectures\"", "config"},
        {"\"target\":\"text\"", "\"target\":\"audio\"", "target"},
        {"\"tokenizer\":\"resource/text/tokenizer.json\"", "\"tokenizer\":\"weight/000003\"", "resource"},
        {"\"hidden_size\":256", "\"hidden_size\":128", "shape"},
        {"\"num_hidden_layers\":8", "\"num_hidden_layers\":9", "layer_types"},
        {"\"text\":{\"config\"", "\"texts\":{\"config\"", "target"},
        {"\"id\":\"weight/000003\"", "\"id\":\"weight/000004\"", "found two"},
        {"\"layout\":\"row_split_k128_v1\"", "\"layout\":\"row-split-k128-v1\"", "layout"},
        {"\"format\":\"q8_g32_fp16\"", "\"format\":\"W8G32_F16S\"", "format"},
        {"\"format\":\"q8_g32_fp16\"", "\"divisors\":2,\"format\":\"q8_g32_fp16\"", "divisors"},
        {"\"bindings\":{", "\"bindings\":[{", ":"},
        {"\"text/final_norm\":", "\"text/final_norms\":", "text/final_norm"},
        {"\"text/final_norm\":{\"object\":", "\"text/final_norm\":{\"objects\":", "binding"},
        {"\"text/final_norm\":{\"object\":\"weight/", "\"text/final_norm\":{\"object\":\"heavy/", "tensor"},
        {"\"text/layers/0/mlp/gate\":", "\"text/layers/0/mlp/extra\":{\"object\":\"weight/000003\"},\"text/layers/0/mlp/gate\":", "parameter"},
        {"\"range\":[0,", "\"range\":[1,", "range"},
        {"\"range\":[0,", "\"range\":[-256,", "range"},
        {"\"range\":[0,", "\"range\":[0,256,", "range"},
        {"\"range\":[0,", "\"range\":[999999999,", "range"},
        {"\"path\":null", "\"path\":\"x\"", "path"},
        {"\"payload_bytes\":", "\"payload_bytes\":1", "payload_bytes"},
        {"\"files\":[{", "\"files\":[7,{", "files[0]"},
        {"}],\"metadata\"", "},{\"path\":\"../up\",\"payload_bytes\":9}],\"metadata\"", "path"},
        {"}],\"metadata\"", "},{\"path\":\"not-there\",\"payload_bytes\":9}],\"metadata\"", "not-there"},
    };
    static struct nfm m;
    struct lk_buf json = {0};
    nfm_build(&m, src, 3, NFM_GROUPWISE, 0);
    nfm_json(&m, 0, m.payload.len, NULL, 0, &json);
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) expect_broken(json.data, m.payload.len, 3, &b[i]);
    lk_buf_free(&json);
    nfm_free(&m);
}

/* Framing: magic, lengths, sizes, part files. */
static void framing_broken(void **state)
{
    static struct nfm m;
    char path[160], part[200];
    const struct { long at; int byte; const char *message; int in_part; } b[] = {
        {0, 'X', "magic", 0},      {7, 1, "version 1", 0},  {7, 4, "version 2 or 3", 0}, {7, 2, ":", 0},          {8, 0, "", 0},
        {12, 1, "json_bytes", 0},  {15, 255, "json_bytes", 0}, {16, 'z', "artifact_id", 0}, {0, 'X', "part", 1},  {7, 2, "part", 1},
        {8, 2, "part_index", 1},   {20, 'z', "artifact_id", 1}};
    variant_write(&variants[4], &m, dir, path);
    snprintf(part, sizeof part, "%s.part-0001", path);
    for (size_t i = 0; i < sizeof b / sizeof *b; i++) {
        struct lk_artifact *a = NULL;
        struct lk_err e = {0};
        FILE *f = fopen(b[i].in_part ? part : path, "r+b");
        fseek(f, b[i].at, SEEK_SET);
        int old = fgetc(f);
        fseek(f, b[i].at, SEEK_SET);
        fputc(b[i].byte, f);
        fclose(f);
        int rc = lk_artifact_open(&a, path, &e);
        if (rc != LK_EINPUT || !strstr(e.text, b[i].message) || strchr(e.text, '\n')) fail_msg("byte %ld: expected %s, found %d: %s", b[i].at, b[i].message, rc, e.text);
        f = fopen(b[i].in_part ? part : path, "r+b");
        fseek(f, b[i].at, SEEK_SET);
        fputc(old, f);
        fclose(f);
    }
    const char *const files[] = {part, path};
    for (int i = 0; i < 2; i++) { /* cut short; empty; gone */
        struct lk_artifact *a = NULL;
        struct lk_err e = {0};
        struct stat st;
        stat(files[i], &st);
        for (int cut = 0; cut < 3; cut++) {
            if (cut < 2 ? truncate(files[i], cut ? 0 : st.st_size - 1) : unlink(files[i])) fail();
            e = (struct lk_err){0};
            assert_int_equal(lk_artifact_open(&a, path, &e), LK_EINPUT);
            assert_true(e.text[0] && !strchr(e.text, '\n'));
        }
    }
    nfm_free(&m);
}

/* Values that the directory cannot show: divisors, token ids. */
static void bad_values_are_refused(void **state)
{
    static struct nfm m;
    for (int which = 0; which < 3; which++) {
        char path[160], want[2][20] = {"divisor", "token"};
        struct lk_buf json = {0};
        struct lk_artifact *a = NULL;
        struct lk_err e = {0};
        nfm_build(&m, src, 2, NFM_NVFP4_38, 0);
        nfm_json(&m, 0, 0, NULL, 0, &json);
        const char *name = which == 0 ? "\"text/layers/0/mlp/gate_up\"" : which == 1 ? "\"text/draft_head_token_ids\"" : "\"text/layers/1/mlp/down_projection/input_scale_divisor\"";
        const char *o = strstr(json.data, name);
        size_t at = strtoul(strstr(o, "\"offset\":") + 9, NULL, 10), n = strtoul(strstr(o, "\"bytes\":") + 8, NULL, 10);
        memset(m.payload.data + at + (which ? 0 : n - 4), which == 1 ? 0x7f : 0xff, 4);
        snprintf(path, sizeof path, "%s/values.ninfer", dir);
        nfm_write(path, 2, json.data, m.payload.data, m.payload.len);
        assert_int_equal(lk_artifact_open(&a, path, &e), LK_EINPUT);
        if (!strstr(e.text, want[which == 1])) fail_msg("%s", e.text);
        lk_buf_free(&json);
        nfm_free(&m);
    }
}

static void no_memory_is_survived(void **state)
{
    static struct nfm m;
    char path[160];
    variant_write(&variants[4], &m, dir, path);
    for (int64_t n = 1, last = 1; n <= last; n++) {
        struct lk_artifact *a = NULL;
        struct lk_err e = {0};
        lk_mem_fail_at(n);
        int rc = lk_artifact_open(&a, path, &e);
        last = lk_mem_count() > last ? lk_mem_count() : last;
        lk_mem_fail_at(0);
        if (rc && rc != LK_ENOMEM) fail_msg("allocation %d: code %d: %s", (int)n, rc, e.text);
        lk_artifact_close(a);
    }
    nfm_free(&m);
}

static int write_all(const char *to, int sizes_only)
{
    static struct nfm m;
    for (int i = 0; i < VARIANTS; i++) {
        char path[300], folder[300];
        if (sizes_only && i != 0 && i != 2) continue;
        variant_write(&variants[i], &m, to, path);
        snprintf(folder, sizeof folder, "%s/%s.f32", to, variants[i].name);
        if (!sizes_only) float_folder(&m, folder);
        nfm_free(&m);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_rows_encode_as_described), cmocka_unit_test(every_value_is_exact), cmocka_unit_test(the_text_is_that_of_the_values),
        cmocka_unit_test(each_field_broken_v2),           cmocka_unit_test(each_field_broken_v3), cmocka_unit_test(framing_broken),
        cmocka_unit_test(bad_values_are_refused),         cmocka_unit_test(no_memory_is_survived),
    };
    struct lk_err e = {0};
    lk_log_quiet(1);
    if (lk_artifact_open(&src, argc == 4 ? argv[3] : DEMO, &e)) return 1;
    if (argc >= 3 && !strcmp(argv[1], "--write")) return write_all(argv[2], argc == 4);
    dir_new(dir);
    pool = lk_pool_new(3);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dir_remove(dir);
    lk_pool_free(pool);
    lk_artifact_close(src);
    return failed;
}
