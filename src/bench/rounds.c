/* Rounds: see rounds.h. Owns the rig (device, model, one sequence's state) and the schedule of a round; judging is cell.h's. */
#include "bench/rounds.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sort.h"
#include "bench/words.h"
#include "dev/prof.h"
#include "model/forecast.h"
#include "model/model.h"
#include "model/state.h"
#include "runtime/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM 4           /* graphs are captured, pages touched, clocks up */
#define ROW_MAX 16
#define CHUNK_CPU 512
#define CHUNK_CUDA 4096
#define PROFILED 3       /* rounds under the profile */
#define SEEDS 8          /* random pages; the others are copies of them */
#define CPU_WARM 64      /* rows before a timed prefill on a CPU: they touch every weight, and a chunk of a 4B takes half a minute; a GPU captures its chunk */
#define PREFILL_ENOUGH 5.0 /* seconds: a prefill that took longer is not run twice more */

struct rig {
    const struct lk_opts *o;
    struct lk_artifact *a;
    struct lk_dev *d;
    struct lk_model *m;
    struct lk_state *s;
    struct lk_ranks *ranks;
    struct lk_forecast forecast;
    int n_ranks, chunk, n_pages, draft, is_cuda;
    int32_t *pages, *ids;
    struct lk_lane lane;
    uint64_t rng;
};

/* The clock, or what this process used of the processor: with one thread the same on a quiet machine, and of use on a busy one. */
static double now(const struct rig *r)
{
    struct timespec t;
    if (!r->o->bench.cpu_time) return lk_clock();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t rnd(struct rig *r)
{
    r->rng ^= r->rng << 13, r->rng ^= r->rng >> 7, r->rng ^= r->rng << 17;
    return (uint32_t)(r->rng >> 32);
}

/* ---- the state of a context that nobody computed ---- */

static void scales_fill(struct rig *r, unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        uint16_t h = lk_f32_to_f16(0.005f + (float)(rnd(r) & 255) * 2e-5f);
        memcpy(p + i, &h, 2);
    }
}

static void half_fill(struct rig *r, unsigned char *p, enum lk_kv_kind kv, int n_kv)
{
    size_t elems = (size_t)n_kv * LK_PAGE * LK_HEAD;
    if (kv == LK_KV_I8) {
        for (size_t i = 0; i < elems; i++) p[i] = (unsigned char)rnd(r);
        scales_fill(r, p + elems, elems / LK_KV_GROUP * 2);
        return;
    }
    for (size_t i = 0; i < elems; i++) {
        float v = ((float)rnd(r) * 0x1p-32f - 0.5f) * 2;
        uint16_t b = lk_f32_to_bf16(v);
        if (kv == LK_KV_BF16)
            memcpy(p + 2 * i, &b, 2);
        else
            memcpy(p + 4 * i, &v, 4);
    }
}

/* Bytes of a page are those of all ranks and layers, one after the other: K half, V half, again and again. */
static int pages_fill(struct rig *r, enum lk_kv_kind kv, int n_kv, struct lk_err *e)
{
    size_t page = lk_state_page_bytes(r->s), half = lk_kv_half_bytes(kv, n_kv);
    unsigned char *b = lk_malloc(page ? page : 1);
    if (!b) return lk_fail(e, LK_ENOMEM, "no memory for a page of %zu KB", page >> 10);
    for (int i = 0; i < r->n_pages; i++) {
        if (i >= SEEDS) {
            lk_state_page_copy(r->s, r->pages[i], r->pages[i % SEEDS]);
            continue;
        }
        for (size_t at = 0; at + half <= page; at += half) half_fill(r, b + at, kv, n_kv);
        lk_state_page_put(r->s, r->pages[i], b);
    }
    lk_free(b);
    return r->d->sync(r->d, e);
}

static int slot_fill(struct rig *r, struct lk_err *e)
{
    size_t n = lk_state_slot_bytes(r->s) / 4;
    float *v = lk_malloc(n * 4 + 4);
    if (!v) return lk_fail(e, LK_ENOMEM, "no memory for a state of %zu MB", n >> 18);
    for (size_t i = 0; i < n; i++) v[i] = ((float)rnd(r) * 0x1p-32f - 0.5f) * 0.05f;
    lk_state_slot_put(r->s, r->lane.slot, v);
    int rc = r->d->sync(r->d, e);
    lk_free(v);
    return rc;
}

/* ---- opening ---- */

static enum lk_kv_kind kv_of(const struct lk_opts *o)
{
    return o->engine.kv == LK_OPT_KV_AUTO ? LK_KV_I8 : (enum lk_kv_kind)o->engine.kv;
}

static int model_open(struct rig *r, int longest, struct lk_err *e)
{
    struct lk_shape shape;
    struct lk_dev_info info;
    int rc = lk_shape_read(&shape, lk_artifact_config(r->a), e);
    if (rc) return rc;
    r->d->info(r->d, &info);
    r->is_cuda = info.is_cuda;
    r->chunk = r->o->engine.chunk > 0 ? r->o->engine.chunk : info.is_cuda ? CHUNK_CUDA : CHUNK_CPU;
    if (r->chunk < ROW_MAX) r->chunk = ROW_MAX;
    int mtp = shape.mtp && r->o->engine.draft != 0 && lk_artifact_find(r->a, "mtp.fc") != NULL;
    r->draft = !mtp ? 0 : r->o->engine.draft < 0 ? 3 : r->o->engine.draft;
    r->n_pages = (longest + (WARM + PROFILED + r->o->bench.rounds) * (r->draft + 1) + ROW_MAX) / LK_PAGE + 1;
    struct lk_model_opts mo = {.max_rows = r->chunk, .max_lanes = 1, .max_pages = r->n_pages, .max_logit_rows = ROW_MAX, .no_mtp = !mtp,
                               .draft_window = r->o->engine.draft_window};
    struct lk_state_opts so = {.kv = kv_of(r->o), .n_pages = r->n_pages, .n_slots = 1, .max_record_rows = ROW_MAX, .no_mtp = !mtp,
                               .n_ranks = r->n_ranks};
    rc = lk_ranks_start(&r->ranks, &r->o->engine, r->d, &mo, &so, shape.hidden, e);
    if (!rc) rc = lk_model_open(&r->m, r->a, r->d, &mo, e);
    if (!rc) rc = lk_state_open(&r->s, r->d, lk_model_shape(r->m), &so, e);
    return rc ? rc : lk_ranks_ready(r->ranks, r->m, r->s, e);
}

static int rig_open(struct rig *r, int longest, struct lk_err *e)
{
    r->rng = 88172645463325252u;
    r->n_ranks = r->o->engine.dev.n < 1 ? 1 : r->o->engine.dev.n;
    r->lane.slot = -1;
    int rc = lk_artifact_open(&r->a, r->o->engine.model, e);
    if (!rc) lk_forecast_make(&r->forecast, r->a, kv_of(r->o));
    if (!rc) rc = lk_rank_device(&r->d, &r->o->engine.dev, 0, e);
    if (!rc) rc = model_open(r, longest, e);
    if (rc) return rc;
    r->forecast.step = (double)lk_model_step_bytes(r->m) * (r->n_ranks > 1 ? r->n_ranks : 1);
    if (r->draft) r->forecast.mtp = (double)lk_model_mtp_bytes(r->m) * (r->n_ranks > 1 ? r->n_ranks : 1);
    r->pages = lk_calloc((size_t)r->n_pages, sizeof *r->pages);
    r->ids = lk_calloc((size_t)r->chunk, sizeof *r->ids);
    if (!r->pages || !r->ids) return lk_fail(e, LK_ENOMEM, "no memory for %d pages", r->n_pages);
    for (int i = 0; i < r->n_pages && !rc; i++) rc = lk_state_page_alloc(r->s, &r->pages[i]);
    if (!rc) rc = lk_state_slot_alloc(r->s, &r->lane.slot);
    const struct lk_shape *sh = lk_model_shape(r->m);
    for (int i = 0; i < r->chunk; i++) r->ids[i] = (int32_t)(rnd(r) % (uint32_t)sh->vocab);
    int n_kv = sh->n_kv / r->n_ranks > 0 ? sh->n_kv / r->n_ranks : 1;
    return rc ? rc : pages_fill(r, kv_of(r->o), n_kv, e);
}

static void rig_close(struct rig *r)
{
    lk_ranks_stop(r->ranks);
    lk_state_close(r->s);
    lk_model_close(r->m);
    lk_artifact_close(r->a);
    if (r->d) r->d->close(r->d);
    lk_free(r->pages);
    lk_free(r->ids);
}

/* ---- one round ---- */

static const int32_t row_at[ROW_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static int step(struct rig *r, int pos, int rows, int record, struct lk_err *e)
{
    int32_t ids[ROW_MAX], last = rows - 1;
    r->lane.rows = rows;
    r->lane.pos0 = pos;
    struct lk_step st = {.flags = LK_STEP_LOGITS | LK_STEP_ARGMAX | (record ? LK_STEP_RECORD : 0), .n_rows = rows, .n_lanes = 1,
                         .n_pages = (pos + rows + LK_PAGE - 1) / LK_PAGE, .n_logits = record ? rows : 1, .ids = r->ids,
                         .lanes = &r->lane, .pages = r->pages, .logit_rows = record ? row_at : &last};
    int rc = lk_model_step(r->m, r->s, &st, e);
    return rc ? rc : lk_model_argmax(r->m, ids, e);
}

static int draft(struct rig *r, int pos, int rows, int from, struct lk_err *e)
{
    int32_t id, last = rows - 1;
    r->lane.rows = rows;
    r->lane.pos0 = pos;
    struct lk_mtp_step st = {.flags = LK_STEP_LOGITS | LK_STEP_ARGMAX, .n_rows = rows, .n_lanes = 1, .n_logits = 1, .hidden_from = from,
                             .n_pages = (pos + rows + LK_PAGE - 1) / LK_PAGE, .ids = r->ids, .hidden_rows = row_at, .lanes = &r->lane,
                             .pages = r->pages, .logit_rows = &last};
    int rc = lk_model_mtp(r->m, r->s, &st, e);
    return rc ? rc : lk_model_argmax(r->m, &id, e);
}

/* Verify of n + 1 rows, fold of the kept ones, then the draft passes: the first over the kept rows, the others over one. */
static int round_do(struct rig *r, int pos, int n, int32_t kept, struct lk_err *e)
{
    if (!n) return step(r, pos, 1, 0, e);
    int rc = step(r, pos, n + 1, 1, e);
    if (!rc) rc = lk_model_fold(r->m, r->s, &kept, 1, e);
    for (int i = 0; i < n && !rc; i++) rc = draft(r, i ? pos + kept + i - 1 : pos, i ? 1 : kept, i > 0, e);
    return rc;
}

/* Rows kept in round i so that the mean over rounds is 1 + n * accept: no chance in it. */
static int kept_at(int i, int n, double accept)
{
    double each = n * accept;
    return 1 + (int)(floor((i + 1) * each + 1e-9) - floor(i * each + 1e-9));
}

/* ---- cells ---- */

static double round_bytes(const struct rig *r, double ctx, int n)
{
    return lk_forecast_round(&r->forecast, ctx, n, r->n_ranks);
}

static int decode(struct rig *r, struct lk_cell *c, int n, double accept, double gbs, struct lk_err *e)
{
    int count = r->o->bench.rounds, pos = c->tokens, rows = 0, rc = slot_fill(r, e);
    double *ms = lk_calloc((size_t)count, sizeof *ms);
    if (!ms) return lk_fail(e, LK_ENOMEM, "no memory for %d rounds", count);
    for (int i = -WARM; i < count && !rc; i++) {
        int kept = n ? kept_at(i < 0 ? 0 : i, n, accept) : 1;
        double t = now(r);
        rc = round_do(r, pos, n, kept, e);
        pos += kept;
        if (i < 0) continue;
        ms[i] = (now(r) - t) * 1e3;
        rows += kept;
    }
    lk_sort_doubles(ms, (size_t)count);
    c->ms_round = ms[count / 2];
    lk_free(ms);
    c->tokens_round = (double)rows / count;
    c->prompt_n = c->tokens;
    c->predicted_n = rows;
    c->tps = c->tokens_round / c->ms_round * 1e3;
    c->accept = n ? accept : -1;
    struct lk_physics p = {gbs, NULL, NULL};
    if (!rc) lk_cell_bytes(c, round_bytes(r, c->tokens, n), n, &p);
    return rc;
}

static int prefill_once(struct rig *r, int n, double *s, struct lk_err *e)
{
    int rc = 0;
    lk_state_slot_zero(r->s, r->lane.slot);
    double t = now(r);
    for (int pos = 0; pos < n && !rc; pos += r->chunk) rc = step(r, pos, n - pos < r->chunk ? n - pos : r->chunk, 0, e);
    *s = now(r) - t;
    return rc;
}

static int prefill(struct rig *r, struct lk_cell *c, struct lk_err *e)
{
    double s[3];
    int warm = r->o->engine.dev.at[0].is_cuda || r->chunk < CPU_WARM ? r->chunk : CPU_WARM;
    int n = 0, rc = prefill_once(r, c->tokens < warm ? c->tokens : warm, s, e);
    do rc = rc ? rc : prefill_once(r, c->tokens, &s[n], e);
    while (!rc && n++ < 2 && s[n - 1] < PREFILL_ENOUGH);
    if (rc) return rc;
    struct lk_spread sp;
    lk_spread_make(&sp, s, n);
    c->prompt_n = c->tokens;
    c->ttft_s = sp.median;
    c->prefill_tps = c->tokens / sp.median;
    return 0;
}

/* Time of a round by family of kernels, of rounds that are profiled and not counted. */
static int split(struct rig *r, struct lk_table *t, const struct lk_cell *c, int n, struct lk_err *e)
{
    struct lk_prof_row row[128];
    double ms[LK_PROF_FAMILIES] = {0};
    double launches = 0;
    int rc = lk_profile_on(r->d, e), k = 0;
    for (int i = 0; i < PROFILED && !rc; i++) rc = round_do(r, c->tokens, n, n ? 2 : 1, e);
    if (!rc) k = lk_profile_read(r->d, row, 128);
    lk_profile_off(r->d);
    for (int i = 0; i < k; i++) {
        ms[lk_prof_family(row[i].name)] += row[i].ms / PROFILED;
        launches += (double)row[i].calls / PROFILED;
    }
    json_t *all = json_object_get(t->head, "families"), *one = json_pack("{s:s, s:s, s:i, s:f}", "size", c->size, "kind", c->kind, "tokens", c->tokens, "launches", launches);
    if (!all) json_object_set_new(t->head, "families", all = json_array());
    for (int f = 0; f < LK_PROF_FAMILIES; f++) json_object_set_new(one, lk_prof_families[f], json_real(ms[f]));
    json_array_append_new(all, one);
    return rc;
}

static void cell_begin(struct lk_cell *c, const char *size, int tokens, const char *kind, const char *run)
{
    *c = (struct lk_cell){.tokens = tokens, .prompt_n = -1, .cached_n = -1, .predicted_n = -1, .ttft_s = -1, .prefill_tps = -1, .tps = -1,
                          .accept = -1, .ms_round = -1, .tokens_round = -1, .gb_round = -1, .gbs = -1, .gflops = -1};
    snprintf(c->size, sizeof c->size, "%s", size);
    snprintf(c->kind, sizeof c->kind, "%s", kind);
    snprintf(c->run, sizeof c->run, "%s", run);
}

static int cell_done(struct lk_table *t, const struct lk_cell *c, const struct lk_opts *o, struct lk_err *e)
{
    if (lk_table_add(t, c)) return lk_fail(e, LK_ENOMEM, "no memory for the table");
    if (c->prefill_tps > 0)
        lk_log_info("%s %s: %.3f s, %.0f tokens a second", c->size, c->kind, c->ttft_s, c->prefill_tps);
    else
        lk_log_info("%s %s %s: %.2f ms a round, %.1f tok/s, %.0f GB/s %s", c->size, c->kind, c->run, c->ms_round, c->tps, c->gbs, c->note);
    return o->bench.out ? lk_table_save(t, o->bench.out, 0, e) : 0;
}

/* All cells of one context. */
static int context_run(struct rig *r, struct lk_table *t, const char *size, int tokens, const struct lk_words *accept, double gbs, struct lk_err *e)
{
    struct lk_cell c;
    char kind[16];
    cell_begin(&c, size, tokens, "plain", "rounds");
    int rc = decode(r, &c, 0, 0, gbs, e);
    if (!rc) rc = cell_done(t, &c, r->o, e);
    if (!rc) rc = split(r, t, &c, 0, e);
    snprintf(kind, sizeof kind, "draft%d", r->draft);
    for (int i = 0; i < accept->n && r->draft && !rc; i++) {
        char run[16], *end;
        double a = strtod(accept->at[i], &end);
        if (*end || a < 0 || a > 1) return lk_fail(e, LK_EUSAGE, "--accept %s: expected shares from 0 to 1 with commas between", accept->at[i]);
        snprintf(run, sizeof run, "a=%.13s", accept->at[i]);
        cell_begin(&c, size, tokens, kind, run);
        rc = decode(r, &c, r->draft, a, gbs, e);
        if (!rc) rc = cell_done(t, &c, r->o, e);
        if (!rc && i == 0) rc = split(r, t, &c, r->draft, e);
    }
    return rc;
}

static void head_put(const struct rig *r, struct lk_table *t, double gbs)
{
    struct lk_dev_info info;
    char line[200];
    r->d->info(r->d, &info);
    snprintf(line, sizeof line, "%d x %s", r->n_ranks, info.name);
    json_object_set_new(t->head, "device", json_string(line));
    json_object_set_new(t->head, "forced", json_string("context: KV pages and state filled with random content, not computed; acceptance of drafts as the run says; ids of a round are read back"));
    snprintf(line, sizeof line, "median of %d after %d warm ones%s", r->o->bench.rounds, WARM, r->o->bench.cpu_time ? ", processor time of one thread" : "");
    json_object_set_new(t->head, "rounds", json_string(line));
    json_object_set_new(t->head, "step_gb", json_real((double)lk_model_step_bytes(r->m) * 1e-9));
    if (r->draft) json_object_set_new(t->head, "draft_pass_gb", json_real((double)lk_model_mtp_bytes(r->m) * 1e-9));
    json_object_set_new(t->head, "physics_gbs", gbs > 0 ? json_real(gbs) : json_string("not checked (a model in the caches has no memory bound; or give --gbs)"));
}

int lk_rounds_run(const struct lk_opts *o, double gbs, struct lk_table *t, struct lk_err *e)
{
    struct lk_words sizes = {0}, prompts = {0}, accept;
    int tokens[LK_WORDS_MAX], lengths[LK_WORDS_MAX], longest = 0;
    int rc = strcmp(o->bench.sizes, "none") ? lk_words_split(&sizes, o->bench.sizes, "--sizes", e) : 0;
    if (!rc && o->bench.prefill) rc = lk_words_split(&prompts, o->bench.prefill, "--prefill", e);
    if (!rc) rc = lk_words_split(&accept, o->bench.accept, "--accept", e);
    for (int i = 0; i < sizes.n && !rc; i++) rc = lk_size_read(sizes.at[i], "--sizes", &tokens[i], e);
    for (int i = 0; i < prompts.n && !rc; i++) rc = lk_size_read(prompts.at[i], "--prefill", &lengths[i], e);
    if (rc) return rc;
    for (int i = 0; i < sizes.n; i++) longest = tokens[i] > longest ? tokens[i] : longest;
    for (int i = 0; i < prompts.n; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    struct rig r = {.o = o};
    rc = rig_open(&r, longest, e);
    if (!rc && r.forecast.step < 256e6 && o->bench.gbs <= 0) gbs = 0;
    if (!rc) head_put(&r, t, gbs);
    for (int i = 0; i < sizes.n && !rc; i++) rc = context_run(&r, t, sizes.at[i], tokens[i], &accept, gbs, e);
    for (int i = 0; i < prompts.n && !rc; i++) {
        struct lk_cell c;
        cell_begin(&c, prompts.at[i], lengths[i], "prefill", "chunks");
        rc = prefill(&r, &c, e);
        if (!rc) rc = cell_done(t, &c, o, e);
    }
    rig_close(&r);
    return rc;
}
