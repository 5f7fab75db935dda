/* Scoring: see score.h. Owns the host rows and the page table of its one sequence; takes pages and a slot from the state
 * for the time of a run. */
#include "model/score.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

struct lk_score {
    struct lk_model *m;
    struct lk_state *s;
    int max_tokens, chunk, logit_rows, vocab, hidden;
    int32_t *pages, *rows; /* rows: two lists of a chunk */
    int n_pages; /* held now */
    int32_t slot;
    float *row;  /* [vocab] */
    float *tap;  /* [chunk][hidden] */
    /* the run */
    const struct lk_score_sink *sink;
    const int32_t *ids;
    int n, at; /* tokens, first row of the step */
    double nll;
    struct lk_err tap_err;
};

int lk_score_open(struct lk_score **out, struct lk_model *m, struct lk_state *s, int max_tokens, int chunk,
                  int max_logit_rows, struct lk_err *e)
{
    if (max_tokens < 1 || chunk < 1 || max_logit_rows < 1)
        return lk_fail(e, LK_EINPUT, "score: expected at least one token, one row a step, one logit row");
    struct lk_score *c = lk_calloc(1, sizeof *c);
    if (!c) return lk_fail(e, LK_ENOMEM, "no memory for scoring");
    const struct lk_shape *p = lk_model_shape(m);
    c->m = m, c->s = s, c->max_tokens = max_tokens, c->chunk = chunk, c->logit_rows = max_logit_rows;
    c->vocab = p->vocab, c->hidden = p->hidden, c->slot = -1;
    c->pages = lk_calloc(((size_t)max_tokens + LK_PAGE - 1) / LK_PAGE, sizeof *c->pages);
    c->rows = lk_calloc(2 * (size_t)chunk, sizeof *c->rows);
    c->row = lk_calloc((size_t)c->vocab, sizeof *c->row);
    c->tap = lk_calloc((size_t)chunk * (size_t)c->hidden, sizeof *c->tap);
    if (!c->pages || !c->rows || !c->row || !c->tap) {
        lk_score_close(c);
        return lk_fail(e, LK_ENOMEM, "no memory for the rows of a score");
    }
    *out = c;
    return 0;
}

void lk_score_close(struct lk_score *c)
{
    if (!c) return;
    lk_free(c->pages);
    lk_free(c->rows);
    lk_free(c->row);
    lk_free(c->tap);
    lk_free(c);
}

/* -log softmax(x)[id], in double: a row has up to 250,000 terms */
static double row_nll(const float *x, int n, int32_t id)
{
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        if ((double)x[i] > top) top = (double)x[i];
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum) - (double)x[id];
}

static void tap_rows(void *arg, int layer, const float *x, int rows)
{
    struct lk_score *c = arg;
    struct lk_dev *d = lk_model_dev(c->m);
    size_t h = (size_t)c->hidden;
    int rc = d->download(d, c->tap, x, (size_t)rows * h * sizeof *x, &c->tap_err);
    for (int r = 0; r < rows && !rc; r++)
        rc = c->sink->hidden(c->sink->arg, layer, c->at + r, c->tap + (size_t)r * h, &c->tap_err);
    if (rc && !c->tap_err.code) lk_fail(&c->tap_err, rc, "score: a hidden row was refused");
}

/* The rows that a call left: to the sink, and into the sum. */
static int give_rows(struct lk_score *c, int first, int n, int mtp, struct lk_err *e)
{
    for (int i = 0; i < n; i++) {
        int row = first + i, rc = lk_model_logits(c->m, i, c->row, e);
        if (!rc && mtp) rc = c->sink->mtp(c->sink->arg, row, c->row, e);
        if (!rc && !mtp && row + 1 < c->n) c->nll += row_nll(c->row, c->vocab, c->ids[row + 1]);
        if (!rc && !mtp && c->sink->logits) rc = c->sink->logits(c->sink->arg, row, c->row, e);
        if (rc) return rc;
    }
    return 0;
}

static int heads(struct lk_score *c, int rows, struct lk_err *e)
{
    for (int r = 0; r < rows; r += c->logit_rows) {
        int n = rows - r < c->logit_rows ? rows - r : c->logit_rows;
        for (int i = 0; i < n; i++) c->rows[i] = r + i;
        int rc = lk_model_head(c->m, n, c->rows, 0, e);
        if (!rc) rc = give_rows(c, c->at + r, n, 0, e);
        if (rc) return rc;
    }
    return 0;
}

static int drafts(struct lk_score *c, int rows, struct lk_err *e)
{
    if (c->at + rows == c->n) rows--; /* the last row has no token after it */
    for (int r = 0; r < rows; r += c->logit_rows) {
        int n = rows - r < c->logit_rows ? rows - r : c->logit_rows;
        int32_t *from = c->rows, *want = c->rows + c->chunk;
        for (int i = 0; i < n; i++) from[i] = r + i, want[i] = i;
        const struct lk_lane lane = {.row0 = 0, .rows = n, .pos0 = c->at + r, .slot = c->slot};
        const struct lk_mtp_step st = {.flags = LK_STEP_LOGITS | LK_STEP_FULL, .n_rows = n, .n_lanes = 1,
                                       .n_pages = c->n_pages, .n_logits = n, .ids = c->ids + c->at + r + 1,
                                       .hidden_rows = from, .lanes = &lane, .pages = c->pages,
                                       .logit_rows = want};
        int rc = lk_model_mtp(c->m, c->s, &st, e);
        if (!rc) rc = give_rows(c, c->at + r, n, 1, e);
        if (rc) return rc;
    }
    return 0;
}

static int steps(struct lk_score *c, struct lk_err *e)
{
    for (c->at = 0; c->at < c->n;) {
        int rows = c->n - c->at < c->chunk ? c->n - c->at : c->chunk;
        const struct lk_lane lane = {.row0 = 0, .rows = rows, .pos0 = c->at, .slot = c->slot};
        const struct lk_step st = {.flags = c->sink->hidden ? LK_STEP_HIDDEN : 0, .n_rows = rows, .n_lanes = 1,
                                   .n_pages = c->n_pages, .ids = c->ids + c->at, .lanes = &lane,
                                   .pages = c->pages, .tap = tap_rows, .tap_arg = c};
        int rc = lk_model_step(c->m, c->s, &st, e);
        if (!rc && c->tap_err.code) rc = lk_fail(e, c->tap_err.code, "%s", c->tap_err.text);
        if (!rc) rc = heads(c, rows, e);
        if (!rc && c->sink->mtp) rc = drafts(c, rows, e);
        if (rc) return rc;
        c->at += rows;
    }
    return 0;
}

static int take(struct lk_score *c, int n, struct lk_err *e)
{
    int want = (n + LK_PAGE - 1) / LK_PAGE;
    for (c->n_pages = 0; c->n_pages < want; c->n_pages++)
        if (lk_state_page_alloc(c->s, c->pages + c->n_pages))
            return lk_fail(e, LK_EBUSY, "score: a row of %d tokens needs %d pages, the pool has %d", n, want,
                           c->n_pages);
    if (lk_state_slot_alloc(c->s, &c->slot)) {
        c->slot = -1;
        return lk_fail(e, LK_EBUSY, "score: no free state slot");
    }
    return 0;
}

static void give_back(struct lk_score *c)
{
    while (c->n_pages > 0) lk_state_page_unref(c->s, c->pages[--c->n_pages]);
    if (c->slot >= 0) lk_state_slot_free(c->s, c->slot);
    c->slot = -1;
}

int lk_score_run(struct lk_score *c, const int32_t *ids, int n, const struct lk_score_sink *sink, double *nll,
                 struct lk_err *e)
{
    if (n < 1 || n > c->max_tokens)
        return lk_fail(e, LK_EREQUEST, "score: expected a row of 1 to %d tokens, found %d", c->max_tokens, n);
    c->ids = ids, c->n = n, c->sink = sink, c->nll = 0;
    lk_err_clear(&c->tap_err);
    int rc = take(c, n, e);
    if (!rc) rc = steps(c, e);
    give_back(c);
    *nll = c->nll;
    return rc;
}
