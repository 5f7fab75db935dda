/* A model of hashes behind model.h and state.h, for tests of what stands above them. It answers in microseconds and sees every mistake:
 * a KV page holds token and chained hash of each position, a slot the hash of its whole sequence; a step recomputes the chain over the
 * lane's pages and compares. Logits depend on the last two tokens (so that drafts and look-ups often agree) and, more weakly, on
 * the hash of everything (so that any lost or leaked token changes the text). Freed pages and slots are poisoned.
 * Defines all of both headers' symbols: link it instead of src/model. */
#ifndef LK_TESTS_FAKE_MODEL_H
#define LK_TESTS_FAKE_MODEL_H

#include "base/mem.h"
#include "model/model.h"
#include "model/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FV 48      /* vocabulary */
#define FV_USED 45 /* ids above never come out, though their logits are the highest */
#define FROWS 64

struct fake_page {
    uint64_t hash[LK_PAGE], mtp[LK_PAGE];
    int32_t id[LK_PAGE];
};
struct fake_slot {
    uint64_t hash;
    int64_t n;
};
struct lk_state {
    struct lk_state_opts o;
    struct fake_page *page;
    struct fake_slot *slot;
    int *refs;
    char *used;
};
struct lk_model {
    struct lk_model_opts o;
    float logits[FROWS][FV];
    int n_logits;
    struct lk_lane lanes[8];
    int n_lanes, recorded, n_rows, n_mtp;
    int32_t ids[4096];
    uint64_t hid[4096], mtp_hid[4096];
    int32_t hid_last[4096], mtp_last[4096];
};
static int fake_corrupt;   /* steps that found state that is not their sequence's */
static int fake_mtp_holes; /* draft rows that looked back on positions never filled */
static int fake_fail_step; /* > 0: the n-th step from now reports a dead device */
static int fake_steps, fake_rows;
static struct lk_dev fake_dev = {.small_rows = 16};
static struct lk_shape fake_shape = {.vocab = FV, .mtp = 1, .layers = 1, .hidden = 1, .max_ctx = 1 << 20};

static uint64_t fake_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static uint64_t fake_next(uint64_t h, int32_t id)
{
    return fake_mix(h + (uint64_t)(id + 1) * 0x9e3779b97f4a7c15u);
}
/* Logits after a sequence with hash h that ends in tokens a, b. */
static void fake_logits(uint64_t h, int32_t a, int32_t b, float *out)
{
    uint64_t base = fake_mix((uint64_t)(a + 1) * 1000003u + (uint64_t)b);
    for (int v = 0; v < FV; v++) {
        double x = (double)(fake_mix(base + (uint64_t)v) >> 40) / (1 << 24);
        double y = (double)(fake_mix(h ^ (uint64_t)(v * 77 + 5)) >> 40) / (1 << 24);
        out[v] = (float)(6 * x + 1.2 * y + (v >= FV_USED ? 50 : 0));
    }
}

/* ---- state ---- */
void lk_state_sizes(const struct lk_shape *s, const struct lk_state_opts *o, size_t *page, size_t *slot)
{
    *page = sizeof(struct fake_page);
    *slot = sizeof(struct fake_slot);
}
int lk_state_open(struct lk_state **out, struct lk_dev *d, const struct lk_shape *s, const struct lk_state_opts *o,
                  struct lk_err *e)
{
    struct lk_state *t = calloc(1, sizeof *t);
    t->o = *o;
    t->page = malloc(sizeof *t->page * (size_t)o->n_pages);
    t->slot = malloc(sizeof *t->slot * (size_t)o->n_slots);
    memset(t->page, 0xff, sizeof *t->page * (size_t)o->n_pages);
    memset(t->slot, 0xff, sizeof *t->slot * (size_t)o->n_slots);
    t->refs = calloc((size_t)o->n_pages, sizeof *t->refs);
    t->used = calloc((size_t)o->n_slots, 1);
    *out = t;
    return 0;
}
void lk_state_close(struct lk_state *s)
{
    if (!s) return;
    free(s->page);
    free(s->slot);
    free(s->refs);
    free(s->used);
    free(s);
}
int lk_state_page_alloc(struct lk_state *s, int32_t *page)
{
    for (int i = 0; i < s->o.n_pages; i++)
        if (!s->refs[i]) {
            s->refs[i] = 1;
            *page = i;
            return 0;
        }
    return LK_EBUSY;
}
void lk_state_page_ref(struct lk_state *s, int32_t page)
{
    if (s->refs[page]++ < 1) abort();
}
void lk_state_page_unref(struct lk_state *s, int32_t page)
{
    if (s->refs[page] < 1) abort();
    if (--s->refs[page] == 0) memset(&s->page[page], 0xff, sizeof *s->page);
}
int lk_state_page_refs(const struct lk_state *s, int32_t page)
{
    return s->refs[page];
}
void lk_state_page_copy(struct lk_state *s, int32_t dst, int32_t src)
{
    s->page[dst] = s->page[src];
}
int lk_state_pages_free(const struct lk_state *s)
{
    int n = 0;
    for (int i = 0; i < s->o.n_pages; i++) n += !s->refs[i];
    return n;
}
int lk_state_slot_alloc(struct lk_state *s, int32_t *slot)
{
    for (int i = 0; i < s->o.n_slots; i++)
        if (!s->used[i]) {
            s->used[i] = 1;
            s->slot[i] = (struct fake_slot){0};
            *slot = i;
            return 0;
        }
    return LK_EBUSY;
}
void lk_state_slot_free(struct lk_state *s, int32_t slot)
{
    if (!s->used[slot]) abort();
    s->used[slot] = 0;
    memset(&s->slot[slot], 0xff, sizeof *s->slot);
}
void lk_state_slot_zero(struct lk_state *s, int32_t slot)
{
    s->slot[slot] = (struct fake_slot){0};
}
void lk_state_slot_copy(struct lk_state *s, int32_t dst, int32_t src)
{
    s->slot[dst] = s->slot[src];
}
size_t lk_state_page_bytes(const struct lk_state *s)
{
    return sizeof(struct fake_page);
}
size_t lk_state_slot_bytes(const struct lk_state *s)
{
    return sizeof(struct fake_slot);
}
int lk_state_page_get(struct lk_state *s, int32_t page, void *host, struct lk_err *e)
{
    memcpy(host, &s->page[page], sizeof *s->page);
    return 0;
}
void lk_state_page_put(struct lk_state *s, int32_t page, const void *host)
{
    memcpy(&s->page[page], host, sizeof *s->page);
}
int lk_state_slot_get(struct lk_state *s, int32_t slot, void *host, struct lk_err *e)
{
    memcpy(host, &s->slot[slot], sizeof *s->slot);
    return 0;
}
void lk_state_slot_put(struct lk_state *s, int32_t slot, const void *host)
{
    memcpy(&s->slot[slot], host, sizeof *s->slot);
}
uint64_t lk_state_signature(const struct lk_state *s)
{
    return 0x1234 + (uint64_t)s->o.kv;
}

/* ---- model ---- */
static int fake_model_open(struct lk_model **out)
{
    *out = calloc(1, sizeof **out);
    return 0;
}
const struct lk_shape *lk_model_shape(const struct lk_model *m)
{
    return &fake_shape;
}
struct lk_dev *lk_model_dev(const struct lk_model *m)
{
    return &fake_dev;
}
void lk_model_close(struct lk_model *m)
{
    free(m);
}
int lk_model_open(struct lk_model **out, const struct lk_artifact *a, struct lk_dev *d, const struct lk_model_opts *o,
                  struct lk_err *e)
{
    return fake_model_open(out);
}
size_t lk_model_step_bytes(const struct lk_model *m)
{
    return 8;
}
size_t lk_model_mtp_bytes(const struct lk_model *m)
{
    return 1;
}

static struct fake_page *fake_page_of(struct lk_state *s, const struct lk_lane *l, const int32_t *pages, int pos)
{
    int32_t p = pages[l->page0 + pos / LK_PAGE];
    if (s->refs[p] < 1) abort();
    return &s->page[p];
}

/* Hash of positions 0..n-1 as the pages tell it; counts a broken chain. */
static uint64_t fake_kv_hash(struct lk_state *s, const struct lk_lane *l, const int32_t *pages, int n, int32_t last[2])
{
    uint64_t h = 0;
    for (int i = 0; i < n; i++) {
        struct fake_page *p = fake_page_of(s, l, pages, i);
        h = fake_next(h, p->id[i % LK_PAGE]);
        if (p->hash[i % LK_PAGE] != h) fake_corrupt++;
        last[0] = last[1];
        last[1] = p->id[i % LK_PAGE];
    }
    return h;
}

int lk_model_step(struct lk_model *m, struct lk_state *s, const struct lk_step *st, struct lk_err *e)
{
    uint64_t row_hash[4096];
    int32_t row_last[4096][2];
    if (fake_fail_step > 0 && --fake_fail_step == 0) return lk_fail(e, LK_EDEVICE, "the device died");
    fake_steps++;
    fake_rows += st->n_rows;
    m->n_lanes = st->n_lanes;
    m->n_rows = st->n_rows;
    m->recorded = !!(st->flags & LK_STEP_RECORD);
    if (m->recorded && st->n_rows > fake_dev.small_rows) abort();
    memcpy(m->ids, st->ids, (size_t)st->n_rows * 4);
    for (int l = 0; l < st->n_lanes; l++) {
        const struct lk_lane *a = &st->lanes[l];
        int32_t last[2] = {-1, -1};
        m->lanes[l] = *a;
        uint64_t h = fake_kv_hash(s, a, st->pages, a->pos0, last);
        struct fake_slot *g = &s->slot[a->slot];
        if (g->n != a->pos0 || g->hash != h) fake_corrupt++;
        for (int i = 0; i < a->rows; i++) {
            int r = a->row0 + i, pos = a->pos0 + i;
            struct fake_page *p = fake_page_of(s, a, st->pages, pos);
            h = fake_next(h, st->ids[r]);
            p->id[pos % LK_PAGE] = st->ids[r];
            p->hash[pos % LK_PAGE] = h;
            last[0] = last[1];
            last[1] = st->ids[r];
            row_hash[r] = m->hid[r] = h;
            row_last[r][0] = last[0];
            row_last[r][1] = m->hid_last[r] = last[1];
        }
        if (!m->recorded) *g = (struct fake_slot){h, a->pos0 + a->rows};
    }
    m->n_logits = st->n_logits;
    for (int i = 0; i < st->n_logits; i++) {
        int r = st->logit_rows[i];
        fake_logits(row_hash[r], row_last[r][0], row_last[r][1], m->logits[i]);
    }
    return 0;
}

int lk_model_fold(struct lk_model *m, struct lk_state *s, const int32_t *keep, int n_lanes, struct lk_err *e)
{
    if (!m->recorded || n_lanes != m->n_lanes) abort();
    for (int l = 0; l < n_lanes; l++) {
        struct fake_slot *g = &s->slot[m->lanes[l].slot];
        for (int i = 0; i < keep[l]; i++) {
            g->hash = fake_next(g->hash, m->ids[m->lanes[l].row0 + i]);
            g->n++;
        }
    }
    return 0;
}

int lk_model_mtp(struct lk_model *m, struct lk_state *s, const struct lk_mtp_step *st, struct lk_err *e)
{
    uint64_t hid[4096];
    int32_t lasts[4096], ids[4096];
    const uint64_t *from = st->hidden_from ? m->mtp_hid : m->hid;
    const int32_t *from_last = st->hidden_from ? m->mtp_last : m->hid_last;
    for (int l = 0; l < st->n_lanes; l++) {
        const struct lk_lane *a = &st->lanes[l];
        for (int i = 0; i < a->rows; i++) {
            int r = a->row0 + i, pos = a->pos0 + i;
            if (st->hidden_rows[r] >= (st->hidden_from ? m->n_mtp : m->n_rows)) abort();
            struct fake_page *p = fake_page_of(s, a, st->pages, pos);
            p->mtp[pos % LK_PAGE] = 1;
            for (int j = 0; j < pos; j++)
                fake_mtp_holes += fake_page_of(s, a, st->pages, j)->mtp[j % LK_PAGE] != 1;
            hid[r] = fake_next(from[st->hidden_rows[r]], st->ids[r]);
            lasts[r] = from_last[st->hidden_rows[r]];
            ids[r] = st->ids[r];
        }
    }
    m->n_mtp = st->n_rows;
    m->n_logits = st->n_logits;
    for (int i = 0; i < st->n_logits; i++) { /* like the target, but for a part of what it remembers */
        int r = st->logit_rows[i];
        fake_logits(hid[r] & ~(uint64_t)0xff, lasts[r], ids[r], m->logits[i]);
    }
    for (int r = 0; r < st->n_rows; r++) {
        m->mtp_hid[r] = hid[r];
        m->mtp_last[r] = ids[r];
    }
    return 0;
}

int lk_model_argmax(struct lk_model *m, int32_t *ids, struct lk_err *e)
{
    for (int t = 0; t < m->n_logits; t++) {
        ids[t] = 0;
        for (int v = 1; v < FV_USED; v++)
            if (m->logits[t][v] > m->logits[t][ids[t]]) ids[t] = v;
    }
    return 0;
}
int lk_model_logits(struct lk_model *m, int row, float *out, struct lk_err *e)
{
    if (row < 0 || row >= m->n_logits) abort();
    memcpy(out, m->logits[row], sizeof m->logits[row]);
    return 0;
}
int lk_model_topk(struct lk_model *m, int k, int32_t *ids, float *vals, float *lse, struct lk_err *e)
{
    for (int t = 0; t < m->n_logits; t++) {
        char used[FV] = {0};
        for (int j = 0; j < k; j++) {
            int best = -1;
            for (int v = 0; v < FV_USED; v++)
                if (!used[v] && (best < 0 || m->logits[t][v] > m->logits[t][best])) best = v;
            used[best] = 1;
            ids[t * k + j] = best;
            vals[t * k + j] = m->logits[t][best];
        }
        lse[t] = 0;
    }
    return 0;
}
int lk_model_edit(struct lk_model *m, int n, const int32_t *rows, const int32_t *ids, const float *rep, const float *add,
                  struct lk_err *e)
{
    for (int i = 0; i < n; i++) {
        float *v = &m->logits[rows[i]][ids[i]];
        if (rows[i] >= m->n_logits) abort();
        *v = *v > 0 ? *v / rep[i] : *v * rep[i];
        *v += add[i];
    }
    return 0;
}
int lk_model_hidden(struct lk_model *m, int row0, int n, float *out, struct lk_err *e)
{
    return 0;
}
int lk_model_head(struct lk_model *m, int n, const int32_t *rows, int flags, struct lk_err *e)
{
    return 0;
}

#endif
