/* The 27B on one card without its files: random weights at the true shape in the nvfp4 mix (56 MLPs NVFP4, 8 FP8, mixers FP8 a channel, head and
 * draft layer 8-bit) are written to a folder (21 GB, RAM disk advised), loaded, and timed at model level: decode at T = 1, a draft-3 round
 * with forced acceptance, prefill, launches, time by kernel. The KV cache of a context is not computed but taken as it lies (zeros): its
 * bytes are read all the same.
 *   bench_27b [--dir /dev/shm/synthetic-27b] [--device 0] [--ctx 8192,131072,262144] [--prefill 8192,32768] [--csv FILE] [--layers 64]
 * CSV: kind, context, ms, bytes, GB/s, tokens a second. Draw: gnuplot -e "csv='FILE'" bench/plot-27b.gp */
#include "artifact/artifact.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/model.h"
#include "model/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#ifdef LK_CUDA
#include "cuda/cuda_dev.h"

#define BLOCK ((size_t)32 << 20)
#define ROUNDS 24
#define CHUNK 4096
#define MAX_CTX (262144 + 4096)

enum fill { ANY, FP8, NVSCALE, BF16, F32 };

struct writer {
    FILE *f;
    struct lk_buf head;
    size_t at;
    int pass; /* 0: header, 1: data */
    unsigned char *block[5];
    int failed;
};

static int layers = 64; /* --layers: fewer for a quick try */
static uint64_t rng = 88172645463325252u;
static uint32_t rnd(void)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
}

static int blocks_make(struct writer *w)
{
    for (int k = 0; k < 5; k++) {
        unsigned char *b = w->block[k] = lk_malloc(BLOCK);
        if (!b) return -1;
        for (size_t i = 0; i < BLOCK; i += 4) {
            uint32_t v = rnd();
            float s = 2e-4f;
            for (int j = 0; j < 4; j++) b[i + (size_t)j] = (unsigned char)(v >> 8 * j);
            for (int j = 0; j < 4 && k == FP8; j++) b[i + (size_t)j] ^= (b[i + (size_t)j] & 0x7f) == 0x7f; /* no NaN */
            for (int j = 0; j < 4 && k == NVSCALE; j++) b[i + (size_t)j] = (unsigned char)(0x28 + b[i + (size_t)j] % 24);
            if (k == BF16) v = (v & 0x807f807fu) | 0x3c003c00u, memcpy(b + i, &v, 4); /* +-0.008 to 0.016 */
            if (k == F32) memcpy(b + i, &s, 4);
        }
    }
    return 0;
}

static void tensor(struct writer *w, enum fill fill, const char *dtype, int64_t n, int64_t k, const char *fmt, const char *base)
{
    size_t each = !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "BF16") ? 2 : 1, bytes = (size_t)(n ? n : 1) * (size_t)(k ? k : 1) * each;
    if (!w->pass) {
        lk_buf_fmt(&w->head, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", w->head.len ? "," : "{", base, fmt, dtype);
        if (n) lk_buf_fmt(&w->head, "%lld", (long long)n); /* n 0: a scalar */
        if (k) lk_buf_fmt(&w->head, strstr(fmt, "conv1d") ? ",1,%lld" : ",%lld", (long long)k);
        lk_buf_fmt(&w->head, "],\"data_offsets\":[%zu,%zu]}", w->at, w->at + bytes);
        w->at += bytes;
        return;
    }
    for (size_t at = 0; at < bytes && !w->failed; at += BLOCK)
        w->failed |= fwrite(w->block[fill], 1, bytes - at < BLOCK ? bytes - at : BLOCK, w->f) == 0;
}

static void linear(struct writer *w, enum lk_fmt f, int64_t n, int64_t k, const char *base)
{
    if (f == LK_FMT_BF16) {
        tensor(w, BF16, "BF16", n, k, ".weight", base);
    } else if (f == LK_FMT_NVFP4) {
        tensor(w, ANY, "U8", n, k / 2, ".weight", base);
        tensor(w, NVSCALE, "F8_E4M3", n, k / 16, ".weight_scale", base);
        tensor(w, F32, "F32", 0, 0, ".weight_scale_2", base);
    } else {
        tensor(w, f == LK_FMT_FP8 ? FP8 : ANY, f == LK_FMT_FP8 ? "F8_E4M3" : "I8", n, k, ".weight", base);
        tensor(w, F32, "F32", n, 1, ".weight_scale", base);
    }
}

static void sub(struct writer *w, enum lk_fmt f, int64_t n, int64_t k, const char *base, const char *what)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", base, what);
    linear(w, f, n, k, name);
}

static void layer(struct writer *w, const char *base, int full, enum lk_fmt mixer, enum lk_fmt mlp)
{
    tensor(w, BF16, "BF16", 5120, 0, "input_layernorm.weight", base);
    tensor(w, BF16, "BF16", 5120, 0, "post_attention_layernorm.weight", base);
    if (full) {
        sub(w, mixer, 12288, 5120, base, "self_attn.q_proj");
        sub(w, mixer, 1024, 5120, base, "self_attn.k_proj");
        sub(w, mixer, 1024, 5120, base, "self_attn.v_proj");
        sub(w, mixer, 5120, 6144, base, "self_attn.o_proj");
        tensor(w, BF16, "BF16", 256, 0, "self_attn.q_norm.weight", base);
        tensor(w, BF16, "BF16", 256, 0, "self_attn.k_norm.weight", base);
    } else {
        sub(w, mixer, 10240, 5120, base, "linear_attn.in_proj_qkv");
        sub(w, mixer, 6144, 5120, base, "linear_attn.in_proj_z");
        sub(w, LK_FMT_BF16, 48, 5120, base, "linear_attn.in_proj_b");
        sub(w, LK_FMT_BF16, 48, 5120, base, "linear_attn.in_proj_a");
        sub(w, mixer, 5120, 6144, base, "linear_attn.out_proj");
        tensor(w, BF16, "BF16", 10240, 4, "linear_attn.conv1d.weight", base);
        tensor(w, BF16, "BF16", 48, 0, "linear_attn.A_log", base);
        tensor(w, BF16, "BF16", 48, 0, "linear_attn.dt_bias", base);
        tensor(w, BF16, "BF16", 128, 0, "linear_attn.norm.weight", base);
    }
    sub(w, mlp, 17408, 5120, base, "mlp.gate_proj");
    sub(w, mlp, 17408, 5120, base, "mlp.up_proj");
    sub(w, mlp, 5120, 17408, base, "mlp.down_proj");
}

static void all_tensors(struct writer *w)
{
    char base[64];
    tensor(w, BF16, "BF16", 248320, 5120, "", "model.embed_tokens.weight");
    tensor(w, BF16, "BF16", 5120, 0, "", "model.norm.weight");
    linear(w, LK_FMT_I8, 248320, 5120, "lm_head");
    for (int i = 0; i < layers; i++) {
        snprintf(base, sizeof base, "model.layers.%d.", i);
        layer(w, base, i % 4 == 3, LK_FMT_FP8, i < 4 || i >= layers - 4 ? LK_FMT_FP8 : LK_FMT_NVFP4);
    }
    linear(w, LK_FMT_BF16, 5120, 10240, "mtp.fc");
    tensor(w, BF16, "BF16", 5120, 0, "", "mtp.pre_fc_norm_embedding.weight");
    tensor(w, BF16, "BF16", 5120, 0, "", "mtp.pre_fc_norm_hidden.weight");
    tensor(w, BF16, "BF16", 5120, 0, "", "mtp.norm.weight");
    layer(w, "mtp.layers.0.", 1, LK_FMT_I8, LK_FMT_I8);
}

static int config_write(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fprintf(f, "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"hidden_size\":5120,\"intermediate_size\":17408,"
               "\"vocab_size\":248320,\"num_hidden_layers\":%d,\"num_attention_heads\":24,\"num_key_value_heads\":4,\"head_dim\":256,"
               "\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"
               "\"linear_conv_kernel_dim\":4,\"rms_norm_eps\":1e-06,\"max_position_embeddings\":1048576,\"tie_word_embeddings\":false,"
               "\"mtp_num_hidden_layers\":1,\"eos_token_id\":1,\"hidden_act\":\"silu\",\"attn_output_gate\":true,\"rope_parameters\":{"
               "\"rope_type\":\"default\",\"rope_theta\":10000000.0,\"partial_rotary_factor\":0.25,\"mrope_section\":[11,11,10],"
               "\"mrope_interleaved\":true},\"layer_types\":[", layers);
    for (int i = 0; i < layers; i++) fprintf(f, "%s\"%s\"", i ? "," : "", i % 4 == 3 ? "full_attention" : "linear_attention");
    fprintf(f, "]}\n");
    return fclose(f);
}

static int model_write(const char *dir)
{
    struct writer w = {0};
    char path[512];
    mkdir(dir, 0755);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (blocks_make(&w) || config_write(dir) || !(w.f = fopen(path, "wb"))) return -1;
    all_tensors(&w);
    lk_buf_chr(&w.head, '}');
    while (w.head.len % 8) lk_buf_chr(&w.head, ' ');
    uint64_t n = w.head.len;
    w.failed |= fwrite(&n, 8, 1, w.f) != 1 || fwrite(w.head.data, 1, w.head.len, w.f) != w.head.len;
    w.pass = 1;
    all_tensors(&w);
    w.failed |= fclose(w.f) != 0;
    for (int k = 0; k < 5; k++) lk_free(w.block[k]);
    lk_buf_free(&w.head);
    return w.failed ? -1 : 0;
}

struct rig {
    struct lk_artifact *a;
    struct lk_dev *d;
    struct lk_model *m;
    struct lk_state *s;
    int32_t *pages, *ids;
    struct lk_lane lane;
    FILE *csv;
};

static int rig_open(struct rig *r, const char *dir, int index, struct lk_err *e)
{
    struct lk_model_opts mo = {.max_rows = CHUNK, .max_lanes = 1, .max_pages = MAX_CTX / LK_PAGE, .max_logit_rows = 16};
    struct lk_state_opts so = {.kv = LK_KV_I8, .n_pages = MAX_CTX / LK_PAGE, .n_slots = 1, .max_record_rows = 16};
    int rc = lk_artifact_open(&r->a, dir, e);
    if (!rc) rc = lk_cuda_open(&r->d, index, NULL, e);
    if (!rc) rc = lk_model_open(&r->m, r->a, r->d, &mo, e);
    if (!rc) rc = lk_state_open(&r->s, r->d, lk_model_shape(r->m), &so, e);
    r->pages = lk_calloc((size_t)so.n_pages, 4);
    r->ids = lk_calloc(CHUNK, 4);
    if (!rc && (!r->pages || !r->ids)) rc = lk_fail(e, LK_ENOMEM, "no memory");
    for (int i = 0; i < so.n_pages && !rc; i++) rc = lk_state_page_alloc(r->s, &r->pages[i]);
    if (!rc) rc = lk_state_slot_alloc(r->s, &r->lane.slot);
    for (int i = 0; i < CHUNK && !rc; i++) r->ids[i] = (int32_t)(rnd() % 248000);
    return rc;
}

static int step(struct rig *r, int pos, int rows, int record, int logits, struct lk_err *e)
{
    static const int32_t at[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t ids[16], last = rows - 1;
    r->lane.rows = rows;
    r->lane.pos0 = pos;
    struct lk_step st = {.flags = LK_STEP_LOGITS | LK_STEP_ARGMAX | (record ? LK_STEP_RECORD : 0), .n_rows = rows, .n_lanes = 1,
                         .n_pages = (pos + rows + LK_PAGE - 1) / LK_PAGE, .n_logits = logits, .ids = r->ids, .lanes = &r->lane,
                         .pages = r->pages, .logit_rows = logits == 1 ? &last : at};
    int rc = lk_model_step(r->m, r->s, &st, e);
    return rc ? rc : lk_model_argmax(r->m, ids, e);
}

static int draft(struct rig *r, int pos, int rows, int from, struct lk_err *e)
{
    static const int32_t at[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t id, last = rows - 1;
    r->lane.rows = rows;
    r->lane.pos0 = pos;
    struct lk_mtp_step st = {.flags = LK_STEP_LOGITS | LK_STEP_ARGMAX, .n_rows = rows, .n_lanes = 1, .n_pages = (pos + rows + LK_PAGE - 1) / LK_PAGE,
                             .n_logits = 1, .hidden_from = from, .ids = r->ids, .hidden_rows = at, .lanes = &r->lane, .pages = r->pages,
                             .logit_rows = &last};
    int rc = lk_model_mtp(r->m, r->s, &st, e);
    return rc ? rc : lk_model_argmax(r->m, &id, e);
}

/* Verify of draft + 1 rows, fold of what is kept, then the draft passes; kept: rows accepted with the sampled one. */
static int round_do(struct rig *r, int pos, int n_draft, int32_t kept, struct lk_err *e)
{
    if (!n_draft) return step(r, pos, 1, 0, 1, e);
    int rc = step(r, pos, n_draft + 1, 1, n_draft + 1, e);
    if (!rc) rc = lk_model_fold(r->m, r->s, &kept, 1, e);
    for (int i = 0; i < n_draft && !rc; i++) rc = draft(r, i ? pos + kept + i - 1 : pos, i ? 1 : kept, i > 0, e);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int decode(struct rig *r, int ctx, int n_draft, double accept, struct lk_err *e)
{
    double ms[ROUNDS], rows = 0;
    int pos = ctx, rc = 0;
    for (int i = -6; i < ROUNDS && !rc; i++) {
        int kept = 1;
        while (kept <= n_draft && rnd() * 0x1p-32 < accept) kept++;
        double t = lk_clock();
        rc = round_do(r, pos, n_draft, kept, e);
        if (i < 0) continue; /* graphs are captured */
        ms[i] = (lk_clock() - t) * 1e3;
        rows += kept;
        pos += kept;
    }
    if (rc) return rc;
    qsort(ms, ROUNDS, sizeof *ms, by_value);
    double kv = 16.0 * 2112 * ctx, state = 0.302e9, bytes = (double)lk_model_step_bytes(r->m) + kv + state;
    if (n_draft) bytes += n_draft * ((double)lk_model_mtp_bytes(r->m) + 2112.0 * ctx) + state / 2;
    double m = ms[ROUNDS / 2];
    printf("decode ctx %6d draft %d accept %.2f: %7.3f ms a round, %6.2f GB, %5.0f GB/s, %6.1f tokens a second\n", ctx, n_draft, accept, m,
           bytes / 1e9, bytes / m / 1e6, rows / ROUNDS / m * 1e3);
    if (r->csv) fprintf(r->csv, "draft%d-%.2f,%d,%.3f,%.0f,%.0f,%.1f\n", n_draft, accept, ctx, m, bytes, bytes / m / 1e6, rows / ROUNDS / m * 1e3);
    return 0;
}

static int prefill(struct rig *r, int n, struct lk_err *e)
{
    int rc = 0;
    lk_state_slot_zero(r->s, r->lane.slot);
    double t = lk_clock();
    for (int pos = 0; pos < n && !rc; pos += CHUNK) rc = step(r, pos, n - pos < CHUNK ? n - pos : CHUNK, 0, 1, e);
    t = lk_clock() - t;
    if (rc) return rc;
    printf("prefill %6d: %.3f s, %.0f tokens a second\n", n, t, n / t);
    if (r->csv) fprintf(r->csv, "prefill,%d,%.3f,,,%.1f\n", n, t * 1e3, n / t);
    return 0;
}

static int by_kernel(struct rig *r, int ctx, int n_draft, int rows, struct lk_err *e)
{
    static struct cu_prof_row row[128];
    if (cu_prof_on(r->d, e)) return LK_ENOMEM;
    int rc = rows ? step(r, ctx, rows, 0, 1, e) : round_do(r, ctx, n_draft, 2, e), n = cu_prof_read(r->d, row, 128), launches = 0;
    double all = 0;
    for (int i = 0; i < n; i++) all += row[i].ms, launches += (int)row[i].calls;
    printf("by kernel, ctx %d, %s %d: %d launches, %.2f ms with events between them\n", ctx, rows ? "prefill rows" : "draft", rows ? rows : n_draft, launches, all);
    for (int i = 0; i < n && i < 16; i++)
        printf("  %-24s %4d x %8.2f us %6.1f %% %6.0f GB/s\n", row[i].name, (int)row[i].calls, row[i].ms * 1e3 / (double)row[i].calls, 100 * row[i].ms / all,
               row[i].bytes / row[i].ms / 1e6);
    cu_prof_off(r->d);
    return rc;
}

static int each(struct rig *r, const char *list, int is_prefill, struct lk_err *e)
{
    int rc = 0;
    for (const char *p = list; p && *p && !rc; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        int n = atoi(p);
        if (n < 1 || n > 262144) return lk_fail(e, LK_EUSAGE, "a context of %d: 1 to 262144", n);
        if (is_prefill) {
            rc = prefill(r, n, e);
            continue;
        }
        rc = decode(r, n, 0, 0, e);
        if (!rc) rc = decode(r, n, 3, 0.77, e);
        if (!rc) rc = decode(r, n, 3, 0.46, e);
    }
    return rc;
}

int main(int argc, char **argv)
{
    const char *dir = "/dev/shm/synthetic-27b", *ctx = "8192,131072,262144", *pre = "8192,32768", *csv = NULL;
    struct rig r = {0};
    struct lk_err e = {0};
    int index = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--dir")) dir = argv[i + 1];
        if (!strcmp(argv[i], "--device")) index = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--ctx")) ctx = argv[i + 1];
        if (!strcmp(argv[i], "--prefill")) pre = argv[i + 1];
        if (!strcmp(argv[i], "--layers")) layers = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--csv")) csv = argv[i + 1];
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    double t = lk_clock();
    if (model_write(dir)) {
        fprintf(stderr, "bench_27b: %s: cannot write 21 GB there\n", dir);
        return 1;
    }
    printf("written in %.1f s\n", lk_clock() - t);
    t = lk_clock();
    r.csv = csv ? fopen(csv, "w") : NULL;
    if (r.csv) fprintf(r.csv, "kind,context,ms,bytes,gbs,tokens_s\n");
    int rc = rig_open(&r, dir, index, &e);
    if (!rc) printf("loaded in %.1f s; %.3f GB a step, %.3f GB a draft pass\n", lk_clock() - t, (double)lk_model_step_bytes(r.m) / 1e9, (double)lk_model_mtp_bytes(r.m) / 1e9);
    if (!rc) rc = each(&r, ctx, 0, &e);
    if (!rc) rc = by_kernel(&r, 8192, 3, 0, &e);
    if (!rc) rc = each(&r, pre, 1, &e);
    if (!rc) rc = by_kernel(&r, 4096, 0, CHUNK, &e);
    if (rc) fprintf(stderr, "bench_27b: %s\n", e.text);
    if (r.csv) fclose(r.csv);
    return rc != 0;
}

#else
int main(void)
{
    fprintf(stderr, "bench_27b: built without GPU code; `make CUDA=1`\n");
    return 0;
}
#endif
