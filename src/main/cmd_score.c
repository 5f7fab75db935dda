/* laoka score: token ids in, likelihood out, and on request every number on the way. Each row of ids is scored alone from
 * an empty state. K and V are kept in f32 unless told otherwise, so that what is compared is the model, not the cache. */
#include "main/commands.h"

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "main/out_f32.h"
#include "model/score.h"
#include "runtime/ranks.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define CHUNK 512
#define MAX_IDS_FILE ((size_t)1 << 30)
#define LOGIT_BYTES ((size_t)64 << 20) /* device memory for rows of logits at once */

struct rows {
    int n;
    int32_t **ids;
    int *len;
    size_t tokens; /* of all rows */
    int longest;
};

struct job {
    struct rows rows;
    struct lk_artifact *a;
    struct lk_dev *d;
    struct lk_model *m;
    struct lk_state *s;
    struct lk_ranks *ranks;
    struct lk_score *c;
    struct lk_out logits, hidden, mtp;
    size_t row0, mtp0; /* rows before the one being scored */
    struct lk_progress bar;
};

/* ---- the ids file ---- */

static int read_row(struct rows *r, const json_t *j, const char *path, struct lk_err *e)
{
    size_t n = json_array_size(j);
    int at = r->n;
    if (!json_is_array(j) || n < 1 || n > 1 << 28)
        return lk_fail(e, LK_EINPUT, "%s: row %d: expected an array of at least one token id", path, at);
    int32_t *ids = r->ids[at] = lk_reallocarray(NULL, n, sizeof *ids);
    if (!ids) return lk_fail(e, LK_ENOMEM, "no memory for %zu ids", n);
    r->n++;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(j, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return lk_fail(e, LK_EINPUT, "%s: row %d, token %zu: expected a token id, found something else", path,
                           at, i);
        ids[i] = (int32_t)id;
    }
    r->len[at] = (int)n;
    r->tokens += n;
    if ((int)n > r->longest) r->longest = (int)n;
    return 0;
}

static int read_rows(struct rows *r, const json_t *root, const char *path, struct lk_err *e)
{
    int nested = json_is_array(json_array_get(root, 0)), rc = 0;
    size_t n = nested ? json_array_size(root) : 1;
    if (!json_array_size(root) || n > 1 << 24)
        return lk_fail(e, LK_EINPUT, "%s: expected an array of token ids or an array of such rows", path);
    r->ids = lk_calloc(n, sizeof *r->ids);
    r->len = lk_calloc(n, sizeof *r->len);
    if (!r->ids || !r->len) return lk_fail(e, LK_ENOMEM, "no memory for %zu rows", n);
    for (size_t i = 0; i < n && !rc; i++) rc = read_row(r, nested ? json_array_get(root, i) : root, path, e);
    return rc;
}

static int read_ids(struct rows *r, const char *path, struct lk_err *e)
{
    struct lk_buf b = {0};
    json_error_t je;
    if (!path) return lk_fail(e, LK_EUSAGE, "score needs --ids FILE.json: an array of token ids, or of rows");
    int rc = lk_file_read(&b, path, MAX_IDS_FILE, e);
    if (rc) return rc;
    json_t *root = json_loadb(b.data ? b.data : "", b.len, 0, &je);
    lk_buf_free(&b);
    if (!root) return lk_fail(e, LK_EINPUT, "%s: line %d: not JSON: %s", path, je.line, je.text);
    rc = read_rows(r, root, path, e);
    json_decref(root);
    return rc;
}

/* ---- where the numbers go ---- */

static int sink_logits(void *arg, int row, const float *x, struct lk_err *e)
{
    struct job *j = arg;
    lk_progress_set(&j->bar, j->row0 + (size_t)row + 1);
    return lk_out_row(&j->logits, j->row0 + (size_t)row, x, e);
}

static int sink_hidden(void *arg, int layer, int row, const float *x, struct lk_err *e)
{
    struct job *j = arg;
    return lk_out_row(&j->hidden, (size_t)layer * j->rows.tokens + j->row0 + (size_t)row, x, e);
}

static int sink_mtp(void *arg, int row, const float *x, struct lk_err *e)
{
    struct job *j = arg;
    return lk_out_row(&j->mtp, j->mtp0 + (size_t)row, x, e);
}

static int open_outs(struct job *j, const struct lk_opts_score *o, struct lk_err *e)
{
    const struct lk_shape *s = lk_model_shape(j->m);
    size_t vocab = (size_t)s->vocab, t = j->rows.tokens;
    if (o->mtp && !s->mtp)
        return lk_fail(e, LK_EINPUT, "%s: --mtp: this model has no MTP layer", lk_artifact_path(j->a));
    int rc = lk_out_open(&j->logits, o->logits, t, vocab, e);
    if (!rc) rc = lk_out_open(&j->hidden, o->hidden, t * ((size_t)s->layers + 1), (size_t)s->hidden, e);
    if (!rc) rc = lk_out_open(&j->mtp, o->mtp, t - (size_t)j->rows.n, vocab, e);
    return rc;
}

/* ---- the model ---- */

static int open_model(struct job *j, struct lk_opts *o, struct lk_err *e)
{
    const char *path = lk_model_path(o, e);
    if (!path) return LK_EINPUT;
    int rc = lk_artifact_open(&j->a, path, e);
    if (rc) return rc;
    rc = lk_rank_device(&j->d, &o->engine.dev, 0, e);
    if (rc) return rc;
    int64_t vocab = lk_artifact_config(j->a)->vocab;
    size_t fit = vocab > 0 ? LOGIT_BYTES / 4 / (size_t)vocab : 1;
    int chunk = o->engine.chunk ? o->engine.chunk : CHUNK, rows = chunk < 16 ? 16 : chunk;
    int logits = fit < 1 ? 1 : fit > (size_t)chunk ? chunk : (int)fit;
    if (logits > 1024) logits = 1024;
    int pages = (j->rows.longest + LK_PAGE - 1) / LK_PAGE;
    struct lk_model_opts mo = {.max_rows = rows, .max_lanes = 1, .max_pages = pages,
                                     .max_logit_rows = logits, .no_mtp = !o->score.mtp,
                                     .draft_window = o->engine.draft_window};
    struct lk_state_opts so = {.kv = o->engine.kv == LK_OPT_KV_AUTO ? LK_KV_F32 : (enum lk_kv_kind)o->engine.kv,
                               .n_pages = pages, .n_slots = 1, .no_mtp = !o->score.mtp};
    rc = lk_ranks_start(&j->ranks, &o->engine, j->d, &mo, &so, (int)lk_artifact_config(j->a)->hidden, e);
    if (!rc) rc = lk_model_open(&j->m, j->a, j->d, &mo, e);
    if (!rc) rc = lk_state_open(&j->s, j->d, lk_model_shape(j->m), &so, e);
    if (!rc) rc = lk_ranks_ready(j->ranks, j->m, j->s, e);
    return rc ? rc : lk_score_open(&j->c, j->m, j->s, j->rows.longest, chunk, logits, e);
}

static int score_rows(struct job *j, const struct lk_opts_score *o, double *nll, struct lk_err *e)
{
    const struct lk_score_sink sink = {.arg = j, .logits = sink_logits, .hidden = o->hidden ? sink_hidden : NULL,
                                       .mtp = o->mtp ? sink_mtp : NULL};
    *nll = 0;
    for (int i = 0; i < j->rows.n; i++) {
        double one;
        int rc = lk_score_run(j->c, j->rows.ids[i], j->rows.len[i], &sink, &one, e);
        if (rc) return lk_err_prefix(e, "row %d", i);
        *nll += one;
        j->row0 += (size_t)j->rows.len[i];
        j->mtp0 += (size_t)j->rows.len[i] - 1;
    }
    return 0;
}

static void print(const struct job *j, double nll, int json)
{
    size_t n = j->rows.tokens - (size_t)j->rows.n; /* the first token of a row has nothing before it */
    double ppl = n ? exp(nll / (double)n) : 1;
    if (json)
        printf("{\"tokens\": %zu, \"nll\": %.9g, \"ppl\": %.9g}\n", n, nll, ppl);
    else
        printf("%zu tokens, nll %.6f, perplexity %.4f\n", n, nll, ppl);
}

static void job_close(struct job *j)
{
    lk_score_close(j->c);
    lk_ranks_stop(j->ranks);
    lk_state_close(j->s);
    lk_model_close(j->m);
    if (j->d) j->d->close(j->d);
    lk_artifact_close(j->a);
    lk_out_drop(&j->logits);
    lk_out_drop(&j->hidden);
    lk_out_drop(&j->mtp);
    for (int i = 0; j->rows.ids && i < j->rows.n; i++) lk_free(j->rows.ids[i]);
    lk_free(j->rows.ids);
    lk_free(j->rows.len);
}

int cmd_score(struct lk_opts *o, struct lk_err *e)
{
    struct job j = {.logits.fd = -1, .hidden.fd = -1, .mtp.fd = -1};
    double nll = 0;
    int rc = read_ids(&j.rows, o->score.ids, e);
    if (!rc) rc = open_model(&j, o, e);
    if (!rc) rc = open_outs(&j, &o->score, e);
    if (!rc) {
        lk_progress_begin(&j.bar, "scoring", "tokens", j.rows.tokens);
        rc = score_rows(&j, &o->score, &nll, e);
        lk_progress_end(&j.bar);
    }
    if (!rc) rc = lk_out_done(&j.logits, e);
    if (!rc) rc = lk_out_done(&j.hidden, e);
    if (!rc) rc = lk_out_done(&j.mtp, e);
    if (!rc) print(&j, nll, o->json);
    job_close(&j);
    return rc;
}
