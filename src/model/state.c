/* Sequence state: the arrays of state.h, who holds which page, and the copies. One array a layer, because an op takes
 * one layer; a page or slot is therefore n_layers pieces. Owns memory and counts; whose page it is, the runtime knows.
 *
 *   page:  free -> (alloc) 1 -> ref/unref ... -> 0 = free again
 *   slot:  free -> (alloc, zeroed) used -> free */
#include "model/inside.h"

#include "base/mem.h"

#include <string.h>

#ifdef LK_DEBUG
enum { POISON = 1 };
#else
enum { POISON = 0 };
#endif

static int no_memory(struct lk_err *e, const char *what, size_t bytes)
{
    return lk_fail(e, LK_ENOMEM,
                   "no device memory for %s (%zu MB a layer); use a smaller --ctx, fewer parallel "
                   "sessions or --kv int8",
                   what, bytes >> 20);
}

static void *take(struct lk_state *s, size_t each, int count, const char *what, struct lk_err *e)
{
    size_t bytes;
    void *p = NULL;
    if (!lk_mul_size(each, (size_t)count, &bytes)) p = s->dev->alloc(s->dev, bytes, what);
    if (!p) no_memory(e, what, bytes);
    return p;
}

static int open_kv(struct lk_state *s, struct lk_err *e)
{
    s->n_kv_layers = s->shape.n_full + (s->shape.mtp && !s->o.no_mtp);
    s->kv_page = lk_kv_page_bytes(s->o.kv, s->local.n_kv);
    s->kv = lk_calloc((size_t)s->n_kv_layers + 1, sizeof *s->kv);
    s->refs = lk_calloc((size_t)s->o.n_pages, sizeof *s->refs);
    s->page_free = lk_calloc((size_t)s->o.n_pages, sizeof *s->page_free);
    if (!s->kv || !s->refs || !s->page_free) return lk_fail(e, LK_ENOMEM, "no memory for the page table");
    for (int i = 0; i < s->n_kv_layers; i++) {
        s->kv[i] = take(s, s->kv_page, s->o.n_pages, "KV pages", e);
        if (!s->kv[i]) return LK_ENOMEM;
        if (POISON) s->dev->fill(s->dev, s->kv[i], 0xff, s->kv_page * (size_t)s->o.n_pages);
    }
    s->n_page_free = s->o.n_pages;
    for (int i = 0; i < s->o.n_pages; i++) s->page_free[i] = s->o.n_pages - 1 - i; /* page 0 first */
    return 0;
}

static int open_gdn(struct lk_state *s, struct lk_err *e)
{
    size_t n = (size_t)s->shape.n_gdn + 1, dim = (size_t)s->local.gdn_dim;
    s->gdn_slot = (size_t)s->local.hv * dim * dim * sizeof(float);
    s->conv_slot = (size_t)3 * (size_t)lk_conv_channels(&s->local) * sizeof(float);
    s->gdn = lk_calloc(n, sizeof *s->gdn);
    s->conv = lk_calloc(n, sizeof *s->conv);
    s->record = lk_calloc(n, sizeof *s->record);
    s->slot_used = lk_calloc((size_t)s->o.n_slots, 1);
    if (!s->gdn || !s->conv || !s->record || !s->slot_used)
        return lk_fail(e, LK_ENOMEM, "no memory for the slot table");
    size_t rec = lk_gdn_record_bytes(s->local.hk, s->local.hv);
    for (int i = 0; i < s->shape.n_gdn; i++) {
        s->gdn[i] = take(s, s->gdn_slot, s->o.n_slots, "GDN state", e);
        s->conv[i] = take(s, s->conv_slot, s->o.n_slots, "convolution state", e);
        if (s->o.max_record_rows) s->record[i] = take(s, rec, s->o.max_record_rows, "GDN record", e);
        if (!s->gdn[i] || !s->conv[i] || (s->o.max_record_rows && !s->record[i])) return LK_ENOMEM;
        if (POISON) {
            s->dev->fill(s->dev, s->gdn[i], 0xff, s->gdn_slot * (size_t)s->o.n_slots);
            s->dev->fill(s->dev, s->conv[i], 0xff, s->conv_slot * (size_t)s->o.n_slots);
        }
    }
    return 0;
}

void lk_state_sizes(const struct lk_shape *s, const struct lk_state_opts *o, size_t *page_bytes, size_t *slot_bytes)
{
    struct lk_shard_dims dims = lk_shape_dims(s), local;
    lk_shard_local(&dims, o->rank, o->n_ranks > 1 ? o->n_ranks : 1, &local);
    size_t kv_layers = (size_t)s->n_full + (s->mtp && !o->no_mtp), dim = (size_t)local.gdn_dim;
    *page_bytes = kv_layers * lk_kv_page_bytes(o->kv, local.n_kv);
    *slot_bytes = (size_t)s->n_gdn * 4 * ((size_t)local.hv * dim * dim + 3 * (size_t)lk_conv_channels(&local));
}

size_t lk_state_record_bytes(const struct lk_shape *s, const struct lk_state_opts *o)
{
    struct lk_shard_dims dims = lk_shape_dims(s), local;
    lk_shard_local(&dims, o->rank, o->n_ranks > 1 ? o->n_ranks : 1, &local);
    return (size_t)s->n_gdn * lk_gdn_record_bytes(local.hk, local.hv) * (size_t)o->max_record_rows;
}

int lk_state_open(struct lk_state **out, struct lk_dev *d, const struct lk_shape *s,
                  const struct lk_state_opts *o, struct lk_err *e)
{
    int n = o->n_ranks > 1 ? o->n_ranks : 1;
    if (o->n_pages < 1 || o->n_slots < 1 || o->max_record_rows < 0 || o->rank < 0 || o->rank >= n)
        return lk_fail(e, LK_EINPUT, "state: %d pages, %d slots, rank %d of %d: expected at least one of each",
                       o->n_pages, o->n_slots, o->rank, n);
    struct lk_shard_dims dims = lk_shape_dims(s);
    int rc = lk_shard_check(&dims, n, e);
    if (rc) return rc;
    struct lk_state *st = lk_calloc(1, sizeof *st);
    if (!st) return lk_fail(e, LK_ENOMEM, "no memory for a state");
    st->dev = d, st->shape = *s, st->o = *o;
    st->o.n_ranks = n;
    lk_shard_local(&dims, o->rank, n, &st->local);
    rc = open_kv(st, e);
    if (!rc) rc = open_gdn(st, e);
    if (rc) {
        lk_state_close(st);
        return rc;
    }
    *out = st;
    return 0;
}

void lk_state_close(struct lk_state *s)
{
    if (!s) return;
    struct lk_dev *d = s->dev;
    d->graph_reset(d); /* captured graphs hold these addresses */
    for (int i = 0; s->kv && i < s->n_kv_layers; i++)
        if (s->kv[i]) d->free(d, s->kv[i]);
    for (int i = 0; i < s->shape.n_gdn; i++) {
        if (s->gdn && s->gdn[i]) d->free(d, s->gdn[i]);
        if (s->conv && s->conv[i]) d->free(d, s->conv[i]);
        if (s->record && s->record[i]) d->free(d, s->record[i]);
    }
    lk_free(s->kv);
    lk_free(s->refs);
    lk_free(s->page_free);
    lk_free(s->gdn);
    lk_free(s->conv);
    lk_free(s->record);
    lk_free(s->slot_used);
    lk_free(s);
}

static char *kv_at(struct lk_state *s, int layer, int32_t page)
{
    return (char *)s->kv[layer] + (size_t)page * s->kv_page;
}

static char *gdn_at(struct lk_state *s, int layer, int32_t slot)
{
    return (char *)s->gdn[layer] + (size_t)slot * s->gdn_slot;
}

static char *conv_at(struct lk_state *s, int layer, int32_t slot)
{
    return (char *)s->conv[layer] + (size_t)slot * s->conv_slot;
}

int lk_state_page_alloc(struct lk_state *s, int32_t *page)
{
    if (!s->n_page_free) return LK_EBUSY;
    *page = s->page_free[--s->n_page_free];
    s->refs[*page] = 1;
    return 0;
}

void lk_state_page_ref(struct lk_state *s, int32_t page)
{
    s->refs[page]++;
}

void lk_state_page_unref(struct lk_state *s, int32_t page)
{
    if (--s->refs[page]) return;
    s->page_free[s->n_page_free++] = page;
    for (int i = 0; POISON && i < s->n_kv_layers; i++)
        s->dev->fill(s->dev, kv_at(s, i, page), 0xff, s->kv_page);
}

int lk_state_page_refs(const struct lk_state *s, int32_t page)
{
    return s->refs[page];
}

void lk__state_page_copy(struct lk_state *s, int32_t dst, int32_t src)
{
    for (int i = 0; i < s->n_kv_layers; i++) s->dev->copy(s->dev, kv_at(s, i, dst), kv_at(s, i, src), s->kv_page);
}

int lk_state_pages_free(const struct lk_state *s)
{
    return s->n_page_free;
}

static void slot_fill(struct lk_state *s, int32_t slot, int byte)
{
    for (int i = 0; i < s->shape.n_gdn; i++) {
        s->dev->fill(s->dev, gdn_at(s, i, slot), byte, s->gdn_slot);
        s->dev->fill(s->dev, conv_at(s, i, slot), byte, s->conv_slot);
    }
}

int lk__state_slot_alloc(struct lk_state *s, int32_t *slot)
{
    for (int i = 0; i < s->o.n_slots; i++) {
        if (s->slot_used[i]) continue;
        s->slot_used[i] = 1;
        *slot = i;
        slot_fill(s, i, 0);
        return 0;
    }
    return LK_EBUSY;
}

void lk_state_slot_free(struct lk_state *s, int32_t slot)
{
    s->slot_used[slot] = 0;
    if (POISON) slot_fill(s, slot, 0xff);
}

void lk__state_slot_zero(struct lk_state *s, int32_t slot)
{
    slot_fill(s, slot, 0);
}

void lk__state_slot_copy(struct lk_state *s, int32_t dst, int32_t src)
{
    for (int i = 0; i < s->shape.n_gdn; i++) {
        s->dev->copy(s->dev, gdn_at(s, i, dst), gdn_at(s, i, src), s->gdn_slot);
        s->dev->copy(s->dev, conv_at(s, i, dst), conv_at(s, i, src), s->conv_slot);
    }
}

size_t lk__state_page_bytes(const struct lk_state *s)
{
    return s->kv_page * (size_t)s->n_kv_layers;
}

size_t lk__state_slot_bytes(const struct lk_state *s)
{
    return (s->gdn_slot + s->conv_slot) * (size_t)s->shape.n_gdn;
}

int lk__state_page_get(struct lk_state *s, int32_t page, void *host, struct lk_err *e)
{
    char *to = host;
    for (int i = 0; i < s->n_kv_layers; i++, to += s->kv_page) {
        int rc = s->dev->download(s->dev, to, kv_at(s, i, page), s->kv_page, e);
        if (rc) return rc;
    }
    return 0;
}

void lk__state_page_put(struct lk_state *s, int32_t page, const void *host)
{
    const char *from = host;
    for (int i = 0; i < s->n_kv_layers; i++, from += s->kv_page)
        s->dev->upload(s->dev, kv_at(s, i, page), from, s->kv_page);
}

int lk__state_slot_get(struct lk_state *s, int32_t slot, void *host, struct lk_err *e)
{
    char *to = host;
    for (int i = 0; i < s->shape.n_gdn; i++) {
        int rc = s->dev->download(s->dev, to, gdn_at(s, i, slot), s->gdn_slot, e);
        if (!rc) rc = s->dev->download(s->dev, to + s->gdn_slot, conv_at(s, i, slot), s->conv_slot, e);
        if (rc) return rc;
        to += s->gdn_slot + s->conv_slot;
    }
    return 0;
}

void lk__state_slot_put(struct lk_state *s, int32_t slot, const void *host)
{
    const char *from = host;
    for (int i = 0; i < s->shape.n_gdn; i++) {
        s->dev->upload(s->dev, gdn_at(s, i, slot), from, s->gdn_slot);
        s->dev->upload(s->dev, conv_at(s, i, slot), from + s->gdn_slot, s->conv_slot);
        from += s->gdn_slot + s->conv_slot;
    }
}

/* FNV-1a over numbers, one by one: a struct's padding bytes must not decide what fits. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    for (int i = 0; i < 8; i++, v >>= 8) h = (h ^ (v & 0xff)) * 0x100000001b3u;
    return h;
}

uint64_t lk_state_signature(const struct lk_state *s)
{
    const struct lk_shape *p = &s->shape;
    struct lk_dev_info info = {0};
    s->dev->info(s->dev, &info);
    const uint64_t v[] = {
        1, /* layout version of this file */
        (uint64_t)p->hidden, (uint64_t)p->inter, (uint64_t)p->layers, (uint64_t)p->vocab,
        (uint64_t)p->n_q, (uint64_t)p->n_kv, (uint64_t)p->rope_dim, (uint64_t)p->hk, (uint64_t)p->hv,
        (uint64_t)p->gdn_tiled, (uint64_t)p->rope_theta, (uint64_t)s->o.kv, (uint64_t)s->o.rank,
        (uint64_t)s->o.n_ranks, (uint64_t)s->n_kv_layers, (uint64_t)info.is_cuda, LK_PAGE,
        s->o.model_id,
    };
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) h = mix(h, v[i]);
    for (int i = 0; i < p->layers; i++) h = mix(h, p->full[i]);
    return h;
}
