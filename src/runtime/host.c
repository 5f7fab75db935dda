/* Opening in order, sizing once: see host.h. */
#include "runtime/host.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/forecast.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_CPU 512
#define CHUNK_CUDA 1024
#define WORKSPACE_CUDA (1.5 * (1 << 30)) /* step buffers, graphs, cuBLAS */
#define SNAPS_MAX 16               /* state snapshots on the device besides the lanes' own */
#define DISK_DEFAULT (8ll << 30)

/* What memory allows, decided before anything large is opened, because every rank must open the same. */
struct sizes {
    int ctx, parallel, chunk, mtp;
    size_t page_bytes, slot_bytes; /* of one rank */
    int64_t ram, disk;
    struct lk_state_opts state;
};

static int text_open(struct lk_host *h, struct lk_err *e)
{
    size_t len;
    const char *json = lk_artifact_text(h->artifact, "tokenizer.json", &len);
    if (!json) {
        lk_log_warn("%s: no tokenizer.json: token ids only", lk_artifact_path(h->artifact));
        return 0;
    }
    int rc = lk_tokenizer_open(&h->tok, json, len, e);
    return rc ? lk_err_prefix(e, "%s: tokenizer.json", lk_artifact_path(h->artifact)) : 0;
}

static int round_up(int v, int to)
{
    return (v + to - 1) / to * to;
}

/* Bytes of memory for KV pages and state slots on one rank. On a CPU weights stay in the page cache and memory is shared with everything
 * else: a third of what is free, and pages are touched only when used. On a GPU nine tenths of what weights and workspace leave. */
static size_t memory_for_state(const struct lk_host *h, const struct lk_dev_info *info, int n)
{
    struct lk_forecast f;
    lk_forecast_make(&f, h->artifact, LK_KV_I8);
    double weights = f.replicated + (f.weights - f.replicated) / n, left = (double)info->mem_free - weights - WORKSPACE_CUDA;
    if (!info->is_cuda) return info->mem_free / 3;
    return left > 0 ? (size_t)(left * 0.9) : 0;
}

static void sizes_begin(struct sizes *z, const struct lk_host *h, const struct lk_opts_engine *o,
                        const struct lk_shape *shape, const struct lk_dev_info *info)
{
    enum lk_kv_kind kv = o->kv == LK_OPT_KV_BF16 ? LK_KV_BF16 : o->kv == LK_OPT_KV_F32 ? LK_KV_F32 : LK_KV_I8;
    z->mtp = shape->mtp && o->draft != 0 && lk_artifact_find(h->artifact, "mtp.fc") != NULL;
    z->parallel = o->parallel < 1 ? 1 : o->parallel > LK_LANES ? LK_LANES : o->parallel;
    z->ctx = o->ctx > 0 && o->ctx < shape->max_ctx ? o->ctx : shape->max_ctx;
    z->chunk = o->chunk > 0 ? o->chunk : info->is_cuda ? CHUNK_CUDA : CHUNK_CPU;
    int most = round_up(z->ctx, LK_PAGE);
    if (z->chunk > most) z->chunk = most;
    if (z->chunk < LK_PAGE) z->chunk = LK_PAGE;
    z->state = (struct lk_state_opts){.kv = kv, .n_ranks = o->dev.n < 1 ? 1 : o->dev.n, .no_mtp = !z->mtp,
                                      .max_record_rows = h->dev->small_rows, .model_id = lk_artifact_identity(h->artifact)};
    lk_state_sizes(shape, &z->state, &z->page_bytes, &z->slot_bytes);
    long long ram = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    z->ram = o->prefix_ram >= 0 ? o->prefix_ram : ram / 8;
    z->disk = !o->prefix_dir ? 0 : o->prefix_disk >= 0 ? o->prefix_disk : DISK_DEFAULT;
}

static int sizes_make(struct sizes *z, const struct lk_host *h, const struct lk_opts_engine *o,
                      const struct lk_shape *shape, struct lk_err *e)
{
    struct lk_dev_info info;
    h->dev->info(h->dev, &info);
    sizes_begin(z, h, o, shape, &info);
    size_t budget = memory_for_state(h, &info, z->state.n_ranks);
    size_t snaps = z->slot_bytes ? budget / 8 / z->slot_bytes : SNAPS_MAX;
    if (snaps > SNAPS_MAX) snaps = SNAPS_MAX;
    z->state.n_slots = z->parallel + 1 + (int)snaps;
    size_t held = (size_t)z->state.n_slots * z->slot_bytes;
    size_t fit = budget > held ? (budget - held) / z->page_bytes : 0;
    size_t one = (size_t)(z->ctx + LK_PAGE - 1) / LK_PAGE;
    size_t want = one * (size_t)z->parallel + one / 2 + 16; /* half a context more for stored prefixes */
    if (fit < one && o->ctx > 0)
        return lk_fail(e, LK_EINPUT, "--ctx %d needs %zu MB of KV pages and %zu MB fit beside the model: use a smaller --ctx or "
                       "--kv int8", z->ctx, one * z->page_bytes >> 20, fit * z->page_bytes >> 20);
    if (fit < 4)
        return lk_fail(e, LK_EINPUT, "no memory for KV pages beside the model: %zu MB free, a state slot takes %zu MB: lower "
                       "--parallel", info.mem_free >> 20, z->slot_bytes >> 20);
    if (fit < one) z->ctx = (int)fit * LK_PAGE;
    z->state.n_pages = (int)(want < fit ? want : fit);
    return 0;
}

static int vocab_used(const struct lk_host *h, const struct lk_shape *shape)
{
    int n = h->tok ? lk_tokenizer_vocab(h->tok) : 0;
    return n > 0 && n < shape->vocab ? n : shape->vocab;
}

/* Followers load while this rank does. */
static int model_open(struct lk_host *h, const struct lk_opts_engine *o, struct sizes *z, const struct lk_shape *shape,
                      struct lk_err *e)
{
    struct lk_model_opts mo = {.max_rows = z->chunk,
                               .max_lanes = z->parallel,
                               .max_pages = (z->ctx / LK_PAGE + 2) * z->parallel,
                               .max_logit_rows = LK_ROUND_MAX,
                               .vocab_used = vocab_used(h, shape),
                               .max_edits = LK_EDITS,
                               .no_mtp = !z->mtp,
                               .draft_window = o->draft_window};
    int rc = lk_ranks_start(&h->ranks, o, h->dev, &mo, &z->state, shape->hidden, e);
    if (!rc) rc = lk_model_open(&h->model, h->artifact, h->dev, &mo, e);
    if (!rc) rc = lk_state_open(&h->state, h->dev, lk_model_shape(h->model), &z->state, e);
    return rc ? rc : lk_ranks_ready(h->ranks, h->model, h->state, e);
}

static void about_make(struct lk_host *h, const struct sizes *z)
{
    static const char *const kinds[] = {"int8", "bf16", "f32"};
    struct lk_dev_info info;
    h->dev->info(h->dev, &info);
    const struct lk_shape *s = lk_model_shape(h->model);
    snprintf(h->about, sizeof h->about,
             "%s on %d x %s: %d layers, context %d, %d at once, KV %s %.1f KB a token, %d pages (%zu MB), %d state slots of "
             "%.1f MB, drafts %s",
             lk_artifact_path(h->artifact), z->state.n_ranks, info.name, s->layers, z->ctx, z->parallel, kinds[z->state.kv],
             (double)z->page_bytes / LK_PAGE / 1024, z->state.n_pages, (size_t)z->state.n_pages * z->page_bytes >> 20, z->state.n_slots,
             (double)z->slot_bytes / (1 << 20), h->core.mtp ? "by the MTP layer" : "by look-up only");
}

static int newline_id(const struct lk_tokenizer *t)
{
    struct lk_ids ids = {0};
    int id = t && !lk_tokenizer_encode(t, "\n", 1, LK_SPECIALS_NONE, &ids, NULL) && ids.n == 1 ? ids.v[0] : -1;
    lk_ids_free(&ids);
    return id;
}

static int core_open(struct lk_host *h, const struct lk_opts_engine *o, const struct sizes *z, struct lk_err *e)
{
    const struct lk_shape *shape = lk_model_shape(h->model);
    int n_pages = z->state.n_pages;
    struct lk_core_opts co = {.ctx = z->ctx, .parallel = z->parallel, .chunk = z->chunk, .draft = o->draft,
                              .draft_window = o->draft_window, .n_pages = n_pages, .n_slots = z->state.n_slots,
                              .vocab_used = vocab_used(h, shape),
                              .turn_id = h->tok ? lk_tokenizer_find(h->tok, "<|im_start|>") : -1,
                              .newline_id = newline_id(h->tok),
                              .prefix = {.n_pages = n_pages, .ram = z->ram, .disk = z->disk, .dir = o->prefix_dir}};
    return lk_core_init(&h->core, h->model, h->state, h->tok, &co, e);
}

int lk_host_open(struct lk_host *h, const struct lk_opts_engine *o, struct lk_err *e)
{
    struct sizes z = {0};
    struct lk_shape shape;
    int rc = lk_artifact_open_rank(&h->artifact, o->model, 0, o->dev.n > 1 ? o->dev.n : 1, e);
    if (!rc) rc = text_open(h, e);
    if (!rc) rc = lk_shape_read(&shape, lk_artifact_config(h->artifact), e);
    if (!rc) rc = lk_rank_device(&h->dev, &o->dev, 0, e);
    if (rc) goto out;
    if ((rc = sizes_make(&z, h, o, &shape, e))) goto out;
    if ((rc = model_open(h, o, &z, &shape, e))) goto out;
    if ((rc = core_open(h, o, &z, e))) goto out;
    if (o->draft > 0 && !h->core.mtp)
        lk_log_warn("%s: no MTP layer in the file: --draft %d drafts nothing", lk_artifact_path(h->artifact), o->draft);
    about_make(h, &z);
out:
    if (rc) lk_host_close(h);
    return rc;
}

void lk_host_close(struct lk_host *h)
{
    lk_core_fini(&h->core);
    lk_ranks_stop(h->ranks);
    lk_state_close(h->state);
    lk_model_close(h->model);
    lk_tokenizer_close(h->tok);
    lk_artifact_close(h->artifact);
    if (h->dev) h->dev->close(h->dev);
    *h = (struct lk_host){.core.spare_slot = -1};
}

int lk_host_alive(const struct lk_host *h, double idle_s, struct lk_err *e)
{
    return lk_ranks_alive(h->ranks, idle_s, e);
}
