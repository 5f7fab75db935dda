/* Sizes: see sizes.h. */
#include "runtime/sizes.h"

#include "model/forecast.h"

#include <unistd.h>

#define CHUNK_CPU 512
#define CHUNK_CUDA 1024
#define WORKSPACE_CUDA (1.5 * (1 << 30)) /* step buffers, graphs, cuBLAS */
#define SNAPS_MAX 16               /* state snapshots on the device besides the lanes' own */
#define DISK_DEFAULT (8ll << 30)

static int round_up(int v, int to)
{
    return (v + to - 1) / to * to;
}

/* Bytes of memory for KV pages and state slots on one rank. On a CPU weights stay in the page cache and memory is shared with everything
 * else: a third of what is free, and pages are touched only when used. On a GPU nine tenths of what weights and workspace leave. */
static size_t memory_for_state(const struct lk_artifact *a, const struct lk_dev_info *info, int n)
{
    struct lk_forecast f;
    lk_forecast_make(&f, a, LK_KV_I8);
    double weights = f.replicated + (f.weights - f.replicated) / n, left = (double)info->mem_free - weights - WORKSPACE_CUDA;
    if (!info->is_cuda) return info->mem_free / 3;
    return left > 0 ? (size_t)(left * 0.9) : 0;
}

static void begin(struct lk_sizes *z, const struct lk_artifact *a, const struct lk_dev *d, const struct lk_dev_info *info,
                  const struct lk_shape *s, const struct lk_opts_engine *o, int vocab)
{
    enum lk_kv_kind kv = o->kv == LK_OPT_KV_BF16 ? LK_KV_BF16 : o->kv == LK_OPT_KV_F32 ? LK_KV_F32 : LK_KV_I8;
    *z = (struct lk_sizes){.mtp = s->mtp && o->draft != 0 && lk_artifact_find(a, "mtp.fc") != NULL};
    z->vocab_used = vocab > 0 && vocab < s->vocab ? vocab : s->vocab;
    z->parallel = o->parallel < 1 ? 1 : o->parallel > LK_LANES ? LK_LANES : o->parallel;
    z->ctx = o->ctx > 0 && o->ctx < s->max_ctx ? o->ctx : s->max_ctx;
    z->chunk = o->chunk > 0 ? o->chunk : info->is_cuda ? CHUNK_CUDA : CHUNK_CPU;
    int most = round_up(z->ctx, LK_PAGE);
    if (z->chunk > most) z->chunk = most;
    if (z->chunk < LK_PAGE) z->chunk = LK_PAGE;
    z->state = (struct lk_state_opts){.kv = kv, .n_ranks = o->dev.n < 1 ? 1 : o->dev.n, .no_mtp = !z->mtp,
                                      .max_record_rows = d->small_rows, .model_id = lk_artifact_identity(a)};
    lk_state_sizes(s, &z->state, &z->page_bytes, &z->slot_bytes);
    long long ram = (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    z->ram = o->prefix_ram >= 0 ? o->prefix_ram : ram / 8;
    z->disk = !o->prefix_dir ? 0 : o->prefix_disk >= 0 ? o->prefix_disk : DISK_DEFAULT;
}

static size_t pages_of(const struct lk_sizes *z)
{
    return (size_t)(z->ctx + LK_PAGE - 1) / LK_PAGE;
}

/* Pages that all sessions may want: half a context more for stored prefixes. */
static size_t pages_wanted(const struct lk_sizes *z)
{
    return pages_of(z) * (size_t)z->parallel + pages_of(z) / 2 + 16;
}

int lk_sizes_make(struct lk_sizes *z, const struct lk_artifact *a, struct lk_dev *d, const struct lk_shape *s,
                  const struct lk_opts_engine *o, int vocab, struct lk_err *e)
{
    struct lk_dev_info info;
    d->info(d, &info);
    begin(z, a, d, &info, s, o, vocab);
    size_t budget = memory_for_state(a, &info, z->state.n_ranks);
    size_t snaps = z->slot_bytes ? budget / 8 / z->slot_bytes : SNAPS_MAX;
    if (snaps > SNAPS_MAX) snaps = SNAPS_MAX;
    z->state.n_slots = z->parallel + 1 + (int)snaps;
    size_t held = (size_t)z->state.n_slots * z->slot_bytes;
    size_t fit = budget > held ? (budget - held) / z->page_bytes : 0, one = pages_of(z), want = pages_wanted(z);
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

void lk_sizes_free(struct lk_sizes *z, const struct lk_artifact *a, struct lk_dev *d, const struct lk_shape *s,
                   const struct lk_opts_engine *o, int vocab)
{
    struct lk_dev_info info;
    d->info(d, &info);
    begin(z, a, d, &info, s, o, vocab);
    z->state.n_slots = z->parallel + 1 + SNAPS_MAX;
    z->state.n_pages = (int)pages_wanted(z);
}

struct lk_model_opts lk_sizes_model(const struct lk_sizes *z, const struct lk_opts_engine *o)
{
    return (struct lk_model_opts){.max_rows = z->chunk,
                                  .max_lanes = z->parallel,
                                  .max_pages = (z->ctx / LK_PAGE + 2) * z->parallel,
                                  .max_logit_rows = LK_ROUND_MAX,
                                  .vocab_used = z->vocab_used,
                                  .max_edits = LK_EDITS,
                                  .no_mtp = !z->mtp,
                                  .draft_window = o->draft_window};
}

struct lk_core_opts lk_sizes_core(const struct lk_sizes *z, const struct lk_opts_engine *o)
{
    return (struct lk_core_opts){.ctx = z->ctx, .parallel = z->parallel, .chunk = z->chunk, .draft = o->draft,
                                 .draft_window = o->draft_window, .n_pages = z->state.n_pages, .n_slots = z->state.n_slots,
                                 .vocab_used = z->vocab_used, .turn_id = -1, .newline_id = -1,
                                 .prefix = {.n_pages = z->state.n_pages, .ram = z->ram, .disk = z->disk, .dir = o->prefix_dir}};
}
