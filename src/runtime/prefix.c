/* Prefix store, entries: see prefix.h. A flat list: some hundred entries, compared from the first token on, where almost all differ. */
#include "runtime/prefix_int.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

int lk_prefix_open(struct lk_prefix **out, struct lk_state *s, const struct lk_prefix_opts *o, struct lk_err *e)
{
    struct lk_prefix *p = lk_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) goto nomem;
    if (o->dir && lk_file_exists(o->dir) != 2) {
        lk_free(p);
        return lk_fail(e, LK_EINPUT, "%s: the folder for stored prefixes (--prefix-dir) is not there", o->dir);
    }
    p->s = s;
    p->o = *o;
    if (p->o.max_entries <= 0) p->o.max_entries = 512;
    p->free_block = -1;
    p->entries = lk_calloc((size_t)p->o.max_entries, sizeof *p->entries);
    p->page_block = lk_calloc((size_t)o->n_pages + 1, sizeof *p->page_block);
    if (!p->entries || !p->page_block) goto nomem;
    if (o->dir && !(p->dir = lk_strdup(o->dir))) goto nomem;
    for (int i = 0; i < o->n_pages; i++) p->page_block[i] = -1;
    prefix_disk_open(p);
    *out = p;
    return 0;
nomem:
    lk_prefix_close(p);
    return lk_fail(e, LK_ENOMEM, "out of memory for the prefix store (%d pages)", o->n_pages);
}

void lk_prefix_close(struct lk_prefix *p)
{
    if (!p) return;
    for (int i = 0; p->entries && i < p->o.max_entries; i++) {
        struct entry *a = &p->entries[i];
        if (!a->used) continue;
        lk_free(a->path); /* the file stays */
        a->path = NULL;
        prefix_entry_drop(p, i);
    }
    lk_free(p->entries);
    lk_free(p->blocks);
    lk_free(p->page_block);
    lk_free(p->dir);
    lk_free(p);
}

/* Blocks. */

int prefix_block_new(struct lk_prefix *p)
{
    int b = p->free_block;
    if (b >= 0) {
        p->free_block = p->blocks[b].dev;
    } else {
        if (p->n_blocks == p->cap_blocks) {
            int cap = p->cap_blocks ? p->cap_blocks * 2 : 64;
            struct block *q = lk_reallocarray(p->blocks, (size_t)cap, sizeof *q);
            if (!q) return -1;
            p->blocks = q;
            p->cap_blocks = cap;
        }
        b = p->n_blocks++;
    }
    p->blocks[b] = (struct block){.refs = 1, .dev = -1};
    return b;
}

int prefix_block_of_page(struct lk_prefix *p, int32_t page)
{
    int b = p->page_block[page];
    if (b >= 0) {
        p->blocks[b].refs++;
        return b;
    }
    if ((b = prefix_block_new(p)) < 0) return -1;
    lk_state_page_ref(p->s, page);
    p->blocks[b].dev = page;
    p->page_block[page] = b;
    return b;
}

void prefix_block_unref(struct lk_prefix *p, int b)
{
    struct block *k = &p->blocks[b];
    if (--k->refs > 0) return;
    if (k->dev >= 0) {
        p->page_block[k->dev] = -1;
        lk_state_page_unref(p->s, k->dev);
    }
    if (k->host) {
        lk_free(k->host);
        p->ram -= (int64_t)lk_state_page_bytes(p->s);
    }
    *k = (struct block){.refs = 0, .dev = p->free_block};
    p->free_block = b;
}

/* Entries. */

static int begins(const struct entry *a, const int32_t *ids, int n)
{
    return a->n <= n && !memcmp(a->ids, ids, (size_t)a->n * sizeof *ids);
}

static int longest(const struct lk_prefix *p, const int32_t *ids, int max, int not)
{
    int best = -1;
    for (int i = 0; i < p->o.max_entries; i++) {
        const struct entry *a = &p->entries[i];
        if (a->used && i != not && (best < 0 || a->n > p->entries[best].n) && begins(a, ids, max)) best = i;
    }
    return best;
}

void prefix_parent_set(struct lk_prefix *p, int i)
{
    struct entry *a = &p->entries[i];
    a->parent = longest(p, a->ids, a->n - 1, i);
    for (int j = 0; j < p->o.max_entries; j++) { /* longer entries may find their nearest in the new one */
        struct entry *c = &p->entries[j];
        if (c->used && j != i && c->n > a->n && (c->parent < 0 || p->entries[c->parent].n < a->n) &&
            begins(a, c->ids, c->n))
            c->parent = i;
    }
}

/* A place for a new entry; the least useful unnamed one leaves when the list is full. */
static int entry_place(struct lk_prefix *p)
{
    int worst = -1;
    for (int i = 0; i < p->o.max_entries; i++) {
        struct entry *a = &p->entries[i];
        if (!a->used) return i;
        if (!a->name && !a->busy && (worst < 0 || prefix_worth(p, a) < prefix_worth(p, &p->entries[worst]))) worst = i;
    }
    if (worst >= 0) prefix_entry_drop(p, worst);
    return worst;
}

int prefix_entry_new(struct lk_prefix *p, const int32_t *ids, int n)
{
    int i = entry_place(p), n_blocks = (n + LK_PAGE - 1) / LK_PAGE;
    if (i < 0) return -1;
    struct entry a = {.used = 1, .n = n, .slot = -1, .parent = -1, .last = ++p->clock};
    a.ids = lk_calloc((size_t)n, sizeof *a.ids);
    a.blocks = lk_calloc((size_t)n_blocks, sizeof *a.blocks);
    if (!a.ids || !a.blocks) {
        lk_free(a.ids);
        lk_free(a.blocks);
        return -1;
    }
    memcpy(a.ids, ids, (size_t)n * sizeof *ids);
    p->ram += (int64_t)n * 4;
    p->entries[i] = a;
    p->count++;
    return i;
}

void prefix_entry_strip(struct lk_prefix *p, int i)
{
    struct entry *a = &p->entries[i];
    for (int j = 0; j < a->n_blocks; j++) prefix_block_unref(p, a->blocks[j]);
    a->n_blocks = 0;
    if (a->slot >= 0) lk_state_slot_free(p->s, a->slot);
    a->slot = -1;
    if (a->host_slot) p->ram -= (int64_t)lk_state_slot_bytes(p->s);
    lk_free(a->host_slot);
    a->host_slot = NULL;
}

void prefix_entry_drop(struct lk_prefix *p, int i)
{
    struct entry *a = &p->entries[i];
    prefix_entry_strip(p, i);
    for (int j = 0; j < p->o.max_entries; j++)
        if (p->entries[j].used && p->entries[j].parent == i) p->entries[j].parent = a->parent;
    if (a->path) {
        unlink(a->path);
        p->disk -= a->path_bytes;
    }
    p->ram -= (int64_t)a->n * 4;
    p->count--;
    lk_free(a->path);
    lk_free(a->name);
    lk_free(a->blocks);
    lk_free(a->ids);
    *a = (struct entry){.parent = -1};
}

int prefix_entry_rename(struct lk_prefix *p, int i, const char *name)
{
    char *copy = lk_strdup(name);
    if (!copy) return LK_ENOMEM;
    int old = lk_prefix_named(p, name);
    if (old >= 0) {
        lk_free(p->entries[old].name);
        p->entries[old].name = NULL;
    }
    lk_free(p->entries[i].name);
    p->entries[i].name = copy;
    return 0;
}

double prefix_worth(const struct lk_prefix *p, const struct entry *a)
{
    int shorter = a->parent >= 0 ? p->entries[a->parent].n : 0;
    return (double)(a->n - shorter) * (1 + a->hits) / (double)(p->clock - a->last + 1);
}

int lk_prefix_find(struct lk_prefix *p, const int32_t *ids, int max)
{
    return longest(p, ids, max, -1);
}

int lk_prefix_len(const struct lk_prefix *p, int entry)
{
    return p->entries[entry].n;
}

int lk_prefix_named(const struct lk_prefix *p, const char *name)
{
    for (int i = 0; i < p->o.max_entries; i++)
        if (p->entries[i].used && p->entries[i].name && !strcmp(p->entries[i].name, name)) return i;
    return -1;
}

void lk_prefix_clear(struct lk_prefix *p)
{
    for (int i = 0; i < p->o.max_entries; i++)
        if (p->entries[i].used && !p->entries[i].name && !p->entries[i].busy) prefix_entry_drop(p, i);
}

int lk_prefix_keep(struct lk_prefix *p, const int32_t *ids, int n, const int32_t *pages, int32_t slot, const char *name)
{
    int i = longest(p, ids, n, -1);
    if (i >= 0 && p->entries[i].n == n) { /* known already */
        p->entries[i].last = ++p->clock;
        return name ? prefix_entry_rename(p, i, name) : 0;
    }
    int32_t copy;
    int rc = lk_prefix_slot(p, &copy);
    if (rc) return rc;
    if ((i = prefix_entry_new(p, ids, n)) < 0) {
        lk_state_slot_free(p->s, copy);
        return LK_ENOMEM;
    }
    struct entry *a = &p->entries[i];
    a->slot = copy;
    int want = (n + LK_PAGE - 1) / LK_PAGE;
    for (; a->n_blocks < want; a->n_blocks++)
        if ((a->blocks[a->n_blocks] = prefix_block_of_page(p, pages[a->n_blocks])) < 0) break;
    if (a->n_blocks < want || (name && prefix_entry_rename(p, i, name))) {
        prefix_entry_drop(p, i);
        return LK_ENOMEM;
    }
    lk_state_slot_copy(p->s, copy, slot);
    prefix_parent_set(p, i);
    return 0;
}

void lk_prefix_stats(const struct lk_prefix *p, struct lk_prefix_stats *s)
{
    *s = (struct lk_prefix_stats){.entries = p->count, .ram = p->ram, .disk = p->disk};
}
