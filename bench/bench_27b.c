/* The 27B on one card without its files: random weights at the true shape in the nvfp4 mix (56 MLPs NVFP4, 8 FP8, mixers FP8 a channel, head and
 * draft layer 8-bit) are written to a folder (21 GB, RAM disk advised), loaded, and timed at model level: decode at T = 1, a draft-3 round
 * with forced acceptance, prefill, launches, time by kernel. The KV cache of a context is not computed but taken as it lies (zeros): its
 * bytes are read all the same. A folder that holds a model is taken as it is.
 *   bench_27b [--dir /dev/shm/synthetic-27b] [--device 0] [--ctx 8192,131072,262144] [--prefill 8192,32768] [--csv FILE] [--layers 64]
 * CSV: kind, context, ms, bytes, GB/s, tokens a second. Draw: gnuplot -e "csv='FILE'" bench/plot-27b.gp */
#include "artifact/artifact.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"
#include "bench/synthetic.h"
#include "model/model.h"
#include "model/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LK_CUDA
#include "cuda/cuda_dev.h"

#define ROUNDS 24
#define CHUNK 4096
#define MAX_CTX (262144 + 4096)

static int layers = 64; /* --layers: fewer for a quick try */
static uint64_t rng = 88172645463325252u;
static uint32_t rnd(void)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
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
    lk_sort_doubles(ms, ROUNDS);
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
    for (int i = 0; i < n && i < 20; i++)
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
    char config[4096];
    snprintf(config, sizeof config, "%s/config.json", dir);
    if (!lk_file_exists(config) && lk_synthetic_write("27b", dir, layers, &e)) {
        fprintf(stderr, "bench_27b: %s\n", e.text);
        return 1;
    }
    printf("written, or found, in %.1f s\n", lk_clock() - t);
    t = lk_clock();
    r.csv = csv ? fopen(csv, "w") : NULL;
    if (r.csv) fprintf(r.csv, "kind,context,ms,bytes,gbs,tokens_s\n");
    int rc = rig_open(&r, dir, index, &e);
    if (!rc) printf("loaded in %.1f s; %.3f GB a step, %.3f GB a draft pass\n", lk_clock() - t, (double)lk_model_step_bytes(r.m) / 1e9, (double)lk_model_mtp_bytes(r.m) / 1e9);
    if (!rc) rc = each(&r, ctx, 0, &e);
    if (!rc) rc = by_kernel(&r, 8192, 0, 0, &e);
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
