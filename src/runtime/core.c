/* The core: see core.h. Lanes, pages and the order of work; what happens inside a step is prefill.c and round.c. */
#include "runtime/core.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

#define HEADER_MAX 8 /* tokens of a turn's header at most: its role is a word or two */
#define ANSWER_SOFT 2048 /* answer tokens promised at admission when a request asks for more: later pages come as they are free */

static int core_nomem(struct lk_err *e, const char *what)
{
    return lk_fail(e, LK_ENOMEM, "out of memory for the engine's %s", what);
}

/* The core's own lists: what is opened, and what lk_core_bytes counts. */
struct list {
    void *at; /* of a field that holds a pointer */
    size_t n, each;
};
enum { MAX_LISTS = 16 + 3 * LK_LANES };

static int lists(struct lk_core *c, struct list l[MAX_LISTS])
{
    size_t rows = (size_t)(c->o.chunk > c->rows_max ? c->o.chunk : c->rows_max), vocab = (size_t)c->vocab;
    size_t pages = (size_t)(c->o.ctx / LK_PAGE + 2) * (size_t)c->o.parallel, cand = (size_t)c->rows_max * LK_TOPK_MAX;
    const struct list shared[] = {
        {&c->ids, rows, 4},           {&c->hidden_rows, rows, 4},    {&c->logit_rows, (size_t)c->rows_max, 4},
        {&c->pages, pages, 4},        {&c->edit_rows, LK_EDITS, 4},  {&c->edit_ids, LK_EDITS, 4},
        {&c->edit_rep, LK_EDITS, 4},  {&c->edit_add, LK_EDITS, 4},   {&c->got_ids, cand, 4},
        {&c->got_vals, cand, 4},      {&c->got_lse, (size_t)c->rows_max, 4}, {&c->row, vocab, 4},
        {&c->cands, vocab, sizeof *c->cands}, {&c->mask, vocab / 32 + 1, 4},
    };
    int n = sizeof shared / sizeof *shared;
    memcpy(l, shared, sizeof shared);
    for (int i = 0; i < c->o.parallel; i++) {
        struct lk_counts *k = &c->counts[i];
        l[n++] = (struct list){&k->gen, vocab, sizeof *k->gen};
        l[n++] = (struct list){&k->seen, vocab, sizeof *k->seen};
        l[n++] = (struct list){&k->list, vocab, sizeof *k->list};
    }
    return n;
}

static int lists_open(struct lk_core *c, struct lk_err *e)
{
    struct list l[MAX_LISTS];
    for (int n = lists(c, l); n > 0; n--) {
        void *p = lk_calloc(l[n - 1].n, l[n - 1].each);
        if (!p) return core_nomem(e, "step buffers");
        memcpy(l[n - 1].at, &p, sizeof p); /* fields of several pointer types */
    }
    for (int i = 0; i < c->o.parallel; i++)
        if (lk_lookup_init(&c->lookup[i], c->o.ctx)) return core_nomem(e, "look-up index");
    return 0;
}

static int rows_most(const struct lk_dev *d)
{
    return d->small_rows < LK_ROUND_MAX ? d->small_rows : LK_ROUND_MAX;
}

size_t lk_core_bytes(const struct lk_core_opts *o, int vocab, const struct lk_dev *d)
{
    struct lk_core c = {.o = *o, .vocab = vocab, .rows_max = rows_most(d)};
    struct list l[MAX_LISTS];
    size_t bytes = (size_t)o->parallel * lk_lookup_bytes(o->ctx);
    for (int n = lists(&c, l); n > 0; n--) bytes += l[n - 1].n * l[n - 1].each;
    return bytes;
}

int lk_core_init(struct lk_core *c, struct lk_model *m, struct lk_state *s, const struct lk_tokenizer *tok,
                 const struct lk_core_opts *o, struct lk_err *e)
{
    const struct lk_shape *shape = lk_model_shape(m);
    *c = (struct lk_core){.o = *o, .model = m, .state = s, .tok = tok, .spare_slot = -1, .force_accept = -1};
    c->dev = lk_model_dev(m);
    c->vocab = shape->vocab;
    if (c->o.vocab_used <= 0 || c->o.vocab_used > c->vocab) c->o.vocab_used = c->vocab;
    c->mtp = shape->mtp && o->draft != 0;
    c->rows_max = rows_most(c->dev);
    lk_policy_init(&c->policy, (double)lk_model_mtp_bytes(m) / (double)lk_model_step_bytes(m));
    int rc = lists_open(c, e);
    if (!rc) rc = lk_prefix_open(&c->prefix, s, &o->prefix, e);
    if (!rc && lk_state_slot_alloc(s, &c->spare_slot)) rc = lk_fail(e, LK_EINPUT, "the state has too few slots");
    if (rc) lk_core_fini(c);
    return rc;
}

void lk_core_fini(struct lk_core *c)
{
    if (c->spare_slot >= 0 && c->state) lk_state_slot_free(c->state, c->spare_slot);
    lk_prefix_close(c->prefix);
    for (int l = 0; l < LK_LANES; l++) {
        lk_free(c->counts[l].gen);
        lk_free(c->counts[l].seen);
        lk_free(c->counts[l].list);
        lk_lookup_free(&c->lookup[l]);
    }
    void *all[] = {c->ids,     c->hidden_rows, c->logit_rows, c->pages, c->edit_rows, c->edit_ids, c->edit_rep, c->edit_add,
                   c->got_ids, c->got_vals,    c->got_lse,    c->row,   c->cands,     c->mask};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) lk_free(all[i]);
    *c = (struct lk_core){.spare_slot = -1};
}

/* Where the prompt's state is snapshotted: behind the header of the last two turns ("<|im_start|>role\n": history may change from
 * there, its thinking dropped or its last message edited) and before the last token (the same prompt again). */
static void cuts_find(const struct lk_core *c, struct lk_seq *q)
{
    int heads[2] = {0, 0}, n = 0;
    for (int i = q->n_prompt - 1; i >= 0 && n < 2 && c->o.turn_id >= 0; i--) {
        if (q->ids[i] != c->o.turn_id) continue;
        int j = i + 1;
        while (j < q->n_prompt - 1 && j < i + HEADER_MAX && q->ids[j] != c->o.newline_id) j++;
        if (j < q->n_prompt - 1 && q->ids[j] == c->o.newline_id) heads[n++] = j + 1;
    }
    q->n_cuts = 0;
    while (n > 0) q->cuts[q->n_cuts++] = heads[--n];
    int last = q->n_prompt - 1;
    /* a short tail behind the last header runs as one recorded step, which yields the state before its last token as well */
    if (q->n_cuts && q->n_prompt - q->cuts[q->n_cuts - 1] <= c->rows_max) return;
    if (last > 0) q->cuts[q->n_cuts++] = last;
}

static int pages_for(int tokens)
{
    return (tokens + LK_PAGE - 1) / LK_PAGE;
}

/* Pages the whole request may use: an answer that asks for more than ANSWER_SOFT is promised that much. */
static int pages_wanted(const struct lk_core *c, const struct lk_seq *q)
{
    int out = q->max_out < ANSWER_SOFT ? q->max_out : ANSWER_SOFT;
    int tokens = q->n_prompt + out + LK_DRAFT_MAX + 1;
    return pages_for(tokens < c->o.ctx ? tokens : c->o.ctx);
}

static int pages_room(struct lk_core *c, struct lk_seq *q, int entry, int *wanted, struct lk_err *e)
{
    int left = lk_prefix_pages_left(c->prefix), most = c->o.n_pages * LK_PAGE - q->n_prompt;
    if (most < 1)
        return lk_fail(e, LK_EREQUEST, "the prompt has %d tokens and all KV pages together hold %d: shorten it or give "
                       "the engine more memory", q->n_prompt, c->o.n_pages * LK_PAGE);
    if (q->max_out > most) q->max_out = most;
    *wanted = pages_wanted(c, q);
    if (*wanted > c->o.n_pages) *wanted = c->o.n_pages;
    for (int l = 0; l < LK_LANES; l++)
        if (c->lane[l]) left -= c->lane[l]->reserved;
    if (entry >= 0) left += lk_prefix_shared(c->prefix, entry);
    if (*wanted > left)
        return lk_fail(e, LK_EBUSY, "%d KV pages are needed and %d are free: try again when other requests end", *wanted,
                       left < 0 ? 0 : left);
    return 0;
}

static void counts_reset(struct lk_core *c, struct lk_seq *q)
{
    struct lk_counts *k = &c->counts[q->lane];
    for (int i = 0; i < k->n; i++) k->gen[k->list[i]] = k->seen[k->list[i]] = 0;
    k->n = 0;
    for (int i = 0; q->sampling.repetition != 1 && i < q->n_prompt; i++) {
        int32_t id = q->ids[i];
        if (!k->seen[id]) k->list[k->n++] = id;
        k->seen[id] = LK_SEEN_LISTED | LK_SEEN_PROMPT;
    }
}

static void seq_start(struct lk_core *c, struct lk_seq *q, int lane)
{
    q->lane = lane;
    c->lane[lane] = q;
    q->phase = LK_SEQ_PREFILL;
    q->t_admit = lk_clock();
    q->t.queue_ms = (q->t_admit - q->t_submit) * 1e3;
    if (q->draft == -2) q->draft = c->o.draft;
    counts_reset(c, q);
    cuts_find(c, q);
    lk_lookup_reset(&c->lookup[lane]);
    if (q->draft < 0) lk_lookup_add(&c->lookup[lane], q->ids, q->n_prompt);
    c->requests++;
    c->tokens_prompt += (uint64_t)q->n_prompt;
    c->tokens_cached += (uint64_t)q->n_done;
}

int lk_core_admit(struct lk_core *c, struct lk_seq *q, struct lk_err *e)
{
    int lane = 0, wanted = 0;
    while (lane < c->o.parallel && c->lane[lane]) lane++;
    if (lane == c->o.parallel) return lk_fail(e, LK_EBUSY, "all %d lanes are busy", c->o.parallel);
    int entry = lk_prefix_find(c->prefix, q->ids, q->n_prompt - 1);
    int rc = pages_room(c, q, entry, &wanted, e);
    if (rc) return rc;
    if (lk_prefix_slot(c->prefix, &q->slot)) {
        q->slot = -1;
        return lk_fail(e, LK_EBUSY, "all state slots are busy");
    }
    entry = lk_prefix_find(c->prefix, q->ids, q->n_prompt - 1); /* making room may have taken it */
    struct lk_err ignored = {0};
    if (entry >= 0 && !lk_prefix_load(c->prefix, entry, q->pages, &q->n_pages, q->slot, &ignored))
        q->n_done = q->t.cached_n = lk_prefix_len(c->prefix, entry);
    q->reserved = wanted > q->n_pages ? wanted - q->n_pages : 0;
    seq_start(c, q, lane);
    return 0;
}

int core_pages_ensure(struct lk_core *c, struct lk_seq *q, int tokens, struct lk_err *e)
{
    int want = pages_for(tokens < c->o.ctx ? tokens : c->o.ctx);
    while (q->n_pages < want) {
        if (lk_prefix_page(c->prefix, &q->pages[q->n_pages]))
            return lk_fail(e, LK_EBUSY, "KV pages ran out after %d tokens: other requests hold them; try again or ask for "
                           "less", q->n_ids);
        q->n_pages++;
        if (q->reserved > 0) q->reserved--;
    }
    return 0;
}

/* Gives back what the sequence holds; its state up to n_done stays in the prefix store when that is worth something. */
static void seq_retire(struct lk_core *c, struct lk_seq *q, int keep)
{
    if (keep && q->n_done >= 16) lk_prefix_keep(c->prefix, q->ids, q->n_done, q->pages, q->slot, q->session);
    while (q->n_pages > 0) lk_state_page_unref(c->state, q->pages[--q->n_pages]);
    if (q->slot >= 0) lk_state_slot_free(c->state, q->slot);
    q->slot = -1;
    q->reserved = 0;
    q->phase = LK_SEQ_DONE;
    double now = lk_clock();
    q->t.prompt_ms = ((q->t_first > 0 ? q->t_first : now) - q->t_admit) * 1e3;
    q->t.predicted_ms = q->t_first > 0 ? (now - q->t_first) * 1e3 : 0;
}

void lk_core_end(struct lk_core *c, struct lk_seq *q)
{
    if (q->phase == LK_SEQ_PREFILL || q->phase == LK_SEQ_DECODE) seq_retire(c, q, q->finish != LK_FIN_ERROR);
}

void lk_core_release(struct lk_core *c, struct lk_seq *q)
{
    if (q->lane >= 0) c->lane[q->lane] = NULL;
    q->lane = -1;
}

/* A grammar remembers where it has been: it may allocate, inside a round too. */
static int grammar_accept(const struct lk_grammar *g, int32_t id)
{
    int depth = lk_mem_guard_pause(), rc = g->self ? g->accept(g->self, id) : 0;
    lk_mem_guard_resume(depth);
    return rc;
}

int core_commit(struct lk_core *c, struct lk_seq *q, int32_t id)
{
    if (grammar_accept(&q->grammar, id)) {
        struct lk_err e = {0};
        lk_fail(&e, LK_EREQUEST, "token %d does not fit the grammar", (int)id);
        lk_seq_fail(q, &e);
        return 1;
    }
    core_count(c, q, id, 1);
    int ended = lk_seq_commit(q, c->tok, id, c->o.ctx);
    if (q->draft < 0) lk_lookup_add(&c->lookup[q->lane], q->ids, q->n_ids);
    c->tokens_out++;
    return ended;
}

/* The next lane to get a chunk: highest priority, then in turn. */
static struct lk_seq *prefill_pick(struct lk_core *c)
{
    struct lk_seq *best = NULL;
    for (int i = 0; i < LK_LANES; i++) {
        struct lk_seq *q = c->lane[(c->prefill_next + i) % LK_LANES];
        if (q && q->phase == LK_SEQ_PREFILL && (!best || q->priority > best->priority)) best = q;
    }
    if (best) c->prefill_next = (best->lane + 1) % LK_LANES;
    return best;
}

static void turn_retire(struct lk_core *c)
{
    for (int l = 0; l < LK_LANES; l++)
        if (c->lane[l] && c->lane[l]->finish != LK_FIN_NONE) lk_core_end(c, c->lane[l]);
}

int lk_core_turn(struct lk_core *c, struct lk_err *e)
{
    int did = 0, rc = 0;
    for (int l = 0; l < LK_LANES && !did; l++) did = c->lane[l] && c->lane[l]->phase == LK_SEQ_DECODE;
    double t0 = lk_clock();
    if (did) {
        rc = core_round(c, e);
        c->step_ms = (lk_clock() - t0) * 1e3;
    }
    if (!rc) turn_retire(c);
    struct lk_seq *q = rc ? NULL : prefill_pick(c);
    if (q) {
        did = 1;
        rc = core_prefill(c, q, e);
        if (!rc) turn_retire(c);
    }
    return rc ? rc : did;
}
