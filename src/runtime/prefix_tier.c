/* Prefix store, where entries live: device memory, then host memory, then disk (prefix_disk.c). Moves happen only when room is asked for. */
#include "runtime/prefix_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum part { PART_SLOT, PART_PAGES, PART_HOST, PART_MEMORY };

/* Pages of an entry that would come free if it left the device. */
static int pages_gained(const struct lk_prefix *p, const struct entry *a)
{
    int n = 0;
    for (int j = 0; j < a->n_blocks; j++) {
        const struct block *b = &p->blocks[a->blocks[j]];
        n += b->dev >= 0 && lk_state_page_refs(p->s, b->dev) == 1;
    }
    return n;
}

static int holds(const struct lk_prefix *p, const struct entry *a, enum part part)
{
    if (part == PART_SLOT) return a->slot >= 0;
    if (part == PART_PAGES) return pages_gained(p, a) > 0;
    if (a->host_slot) return 1;
    for (int j = 0; j < a->n_blocks; j++)
        if (p->blocks[a->blocks[j]].host) return 1;
    return part == PART_MEMORY && (a->n_blocks > 0 || a->slot >= 0);
}

/* The least useful entry that holds the part and is worth less than `below`; -1. */
static int least(const struct lk_prefix *p, enum part part, double below, int droppable)
{
    int worst = -1;
    for (int i = 0; i < p->o.max_entries; i++) {
        const struct entry *a = &p->entries[i];
        if (!a->used || a->busy || (droppable && a->name) || !holds(p, a, part)) continue;
        double w = prefix_worth(p, a);
        if (w < below) {
            below = w;
            worst = i;
        }
    }
    return worst;
}

/* The entry leaves memory: to its disk copy if it has one, else for good. */
static void entry_leave(struct lk_prefix *p, int i)
{
    if (p->entries[i].path)
        prefix_entry_strip(p, i);
    else
        prefix_entry_drop(p, i);
}

int prefix_ram_make(struct lk_prefix *p, int64_t bytes, double worth)
{
    if (bytes > p->o.ram) return LK_EBUSY;
    while (p->ram + bytes > p->o.ram) {
        int i = least(p, PART_HOST, worth, 1);
        if (i < 0) return LK_EBUSY;
        entry_leave(p, i);
    }
    return 0;
}

static int slot_to_host(struct lk_prefix *p, int i)
{
    struct entry *a = &p->entries[i];
    size_t bytes = lk_state_slot_bytes(p->s);
    a->busy++;
    int rc = prefix_ram_make(p, (int64_t)bytes, a->name ? INFINITY : prefix_worth(p, a));
    a->busy--;
    void *host = rc ? NULL : lk_malloc(bytes);
    if (!host) return LK_EBUSY;
    if (lk_state_slot_get(p->s, a->slot, host, NULL)) {
        lk_free(host);
        return LK_EBUSY;
    }
    a->host_slot = host;
    p->ram += (int64_t)bytes;
    lk_state_slot_free(p->s, a->slot);
    a->slot = -1;
    return 0;
}

int lk_prefix_slot(struct lk_prefix *p, int32_t *slot)
{
    while (lk_state_slot_alloc(p->s, slot)) {
        int i = least(p, PART_SLOT, INFINITY, 0);
        if (i < 0) return LK_EBUSY;
        if (!slot_to_host(p, i)) continue;
        if ((i = least(p, PART_SLOT, INFINITY, 1)) < 0) return LK_EBUSY;
        entry_leave(p, i);
    }
    return 0;
}

static int block_to_host(struct lk_prefix *p, struct block *b, double worth)
{
    size_t bytes = lk_state_page_bytes(p->s);
    void *host = prefix_ram_make(p, (int64_t)bytes, worth) ? NULL : lk_malloc(bytes);
    if (!host) return LK_EBUSY;
    if (lk_state_page_get(p->s, b->dev, host, NULL)) {
        lk_free(host);
        return LK_EBUSY;
    }
    b->host = host;
    p->ram += (int64_t)bytes;
    p->page_block[b->dev] = -1;
    lk_state_page_unref(p->s, b->dev);
    b->dev = -1;
    return 0;
}

/* Moves the pages of an entry that nobody runs on to host memory, those it has alone first in mind: a page shared with a
 * more useful entry stays unless nothing else came free. Returns pages gained. */
static int pages_to_host(struct lk_prefix *p, int i, int shared)
{
    int gained = 0;
    struct entry *a = &p->entries[i];
    a->busy++;
    for (int j = a->n_blocks - 1; j >= 0; j--) {
        struct block *b = &p->blocks[a->blocks[j]];
        if (b->dev < 0 || lk_state_page_refs(p->s, b->dev) != 1 || (b->refs > 1 && !shared)) continue;
        if (block_to_host(p, b, a->name ? INFINITY : prefix_worth(p, a))) break;
        gained++;
    }
    a->busy--;
    return gained;
}

int lk_prefix_page(struct lk_prefix *p, int32_t *page)
{
    while (lk_state_page_alloc(p->s, page)) {
        int i = least(p, PART_PAGES, INFINITY, 0);
        if (i < 0) return LK_EBUSY;
        if (pages_to_host(p, i, 0) || pages_to_host(p, i, 1)) continue;
        if ((i = least(p, PART_PAGES, INFINITY, 1)) < 0) return LK_EBUSY;
        entry_leave(p, i);
    }
    return 0;
}

int lk_prefix_pages_left(const struct lk_prefix *p)
{
    int n = lk_state_pages_free(p->s);
    for (int b = 0; b < p->n_blocks; b++)
        n += p->blocks[b].refs > 0 && p->blocks[b].dev >= 0 && lk_state_page_refs(p->s, p->blocks[b].dev) == 1;
    return n;
}

int lk_prefix_shared(const struct lk_prefix *p, int entry)
{
    const struct entry *a = &p->entries[entry];
    int n = 0;
    for (int j = 0; j < a->n_blocks && (j + 1) * LK_PAGE <= a->n; j++) {
        const struct block *b = &p->blocks[a->blocks[j]];
        n += b->dev >= 0 && lk_state_page_refs(p->s, b->dev) > 1;
    }
    return n;
}

/* A block's page on the device, with one more reference for the caller. */
static int block_to_device(struct lk_prefix *p, int b, int32_t *page)
{
    if (p->blocks[b].dev < 0) {
        int32_t fresh;
        int rc = lk_prefix_page(p, &fresh); /* may move other blocks: no pointer is held across */
        if (rc) return rc;
        struct block *k = &p->blocks[b];
        lk_state_page_put(p->s, fresh, k->host);
        lk_free(k->host);
        k->host = NULL;
        p->ram -= (int64_t)lk_state_page_bytes(p->s);
        k->dev = fresh;
        p->page_block[fresh] = b;
    }
    *page = p->blocks[b].dev;
    lk_state_page_ref(p->s, *page);
    return 0;
}

static int block_copy(struct lk_prefix *p, int b, int32_t *page)
{
    int rc = lk_prefix_page(p, page);
    if (rc) return rc;
    if (p->blocks[b].dev >= 0)
        lk_state_page_copy(p->s, *page, p->blocks[b].dev);
    else
        lk_state_page_put(p->s, *page, p->blocks[b].host);
    return 0;
}

int lk_prefix_load(struct lk_prefix *p, int entry, int32_t *pages, int *n_pages, int32_t slot, struct lk_err *e)
{
    struct entry *a = &p->entries[entry];
    struct lk_err bad = {0};
    int rc = 0, n = 0;
    a->busy++;
    if (!a->n_blocks && a->path) rc = prefix_entry_fetch(p, entry, &bad);
    for (; !rc && n < a->n_blocks; n++) {
        int whole = (n + 1) * LK_PAGE <= a->n;
        rc = whole ? block_to_device(p, a->blocks[n], &pages[n]) : block_copy(p, a->blocks[n], &pages[n]);
        if (rc) break;
    }
    a->busy--;
    if (rc) {
        while (n > 0) lk_state_page_unref(p->s, pages[--n]);
        lk_fail(e, rc, "no KV pages for a stored prefix of %d tokens", a->n);
        if (bad.code == LK_EINPUT || bad.code == LK_ESYS) { /* damaged, replaced or gone: it is not asked again */
            lk_log_warn("stored prefix dropped: %s", bad.text);
            prefix_entry_drop(p, entry);
        }
        return rc;
    }
    if (a->path) prefix_disk_touch(a);
    if (a->slot >= 0)
        lk_state_slot_copy(p->s, slot, a->slot);
    else
        lk_state_slot_put(p->s, slot, a->host_slot);
    *n_pages = n;
    a->hits++;
    a->last = ++p->clock;
    return 0;
}
