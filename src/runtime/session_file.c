/* State files: one prefix entry as bytes, for sessions (`run --session`) and for the disk tier.
 *
 *     header 80 bytes | note | ids i32 [n] | slot | pages          all little-endian
 *
 * The header carries the state's signature (model shape, KV kind, rank, backend layout), every size, and an XXH3 hash of all that follows
 * plus of the header itself. A file is believed only when its length, its sizes and its hash agree. Written under a temporary
 * name and renamed, so that a crash leaves the old file. */
#include "runtime/prefix_int.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_MAGIC "LKSTATE1"
#define NOTE_MAX (64u << 20)

struct file_head {
    char magic[8];
    uint64_t signature, n_ids, n_pages, page_bytes, slot_bytes, n_note, total, reserved, hash;
};
_Static_assert(sizeof(struct file_head) == 80, "state file header");

struct writer {
    FILE *f;
    XXH3_state_t *x;
    int failed;
};

static void put(struct writer *w, const void *p, size_t n)
{
    if (w->failed || !n) return;
    XXH3_64bits_update(w->x, p, n);
    if (fwrite(p, 1, n, w->f) != n) w->failed = 1;
}

static uint64_t head_seed(const struct file_head *h)
{
    return XXH3_64bits(h, offsetof(struct file_head, hash));
}

static int slot_bytes_of(struct lk_prefix *p, const struct entry *a, void *buf, struct lk_err *e)
{
    if (a->slot >= 0) return lk_state_slot_get(p->s, a->slot, buf, e);
    memcpy(buf, a->host_slot, lk_state_slot_bytes(p->s));
    return 0;
}

static int write_state(struct lk_prefix *p, const struct entry *a, struct writer *w, struct lk_err *e)
{
    size_t page = lk_state_page_bytes(p->s), slot = lk_state_slot_bytes(p->s);
    void *buf = lk_malloc(page > slot ? page : slot);
    if (!buf) return lk_fail(e, LK_ENOMEM, "out of memory for saving a session");
    put(w, a->ids, (size_t)a->n * 4);
    int rc = slot_bytes_of(p, a, buf, e);
    if (!rc) put(w, buf, slot);
    for (int j = 0; !rc && j < a->n_blocks; j++) {
        const struct block *b = &p->blocks[a->blocks[j]];
        if (b->dev >= 0) rc = lk_state_page_get(p->s, b->dev, buf, e);
        put(w, b->dev >= 0 ? buf : b->host, rc ? 0 : page);
    }
    lk_free(buf);
    return rc;
}

int64_t lk_prefix_file_bytes(const struct lk_prefix *p, int entry)
{
    const struct entry *a = &p->entries[entry];
    size_t pages = (size_t)(a->n + LK_PAGE - 1) / LK_PAGE;
    return (int64_t)(sizeof(struct file_head) + (size_t)a->n * 4 + lk_state_slot_bytes(p->s) + pages * lk_state_page_bytes(p->s));
}

static int write_file(struct lk_prefix *p, const struct entry *a, struct writer *w, const char *note, size_t n_note,
                      struct lk_err *e)
{
    struct file_head h = {.magic = FILE_MAGIC,
                          .signature = lk_state_signature(p->s),
                          .n_ids = (uint64_t)a->n,
                          .n_pages = (uint64_t)a->n_blocks,
                          .page_bytes = lk_state_page_bytes(p->s),
                          .slot_bytes = lk_state_slot_bytes(p->s),
                          .n_note = n_note};
    h.total = sizeof h + n_note + h.n_ids * 4 + h.slot_bytes + h.n_pages * h.page_bytes;
    if (fwrite(&h, 1, sizeof h, w->f) != sizeof h) w->failed = 1;
    XXH3_64bits_reset_withSeed(w->x, head_seed(&h));
    put(w, note, n_note);
    int rc = write_state(p, a, w, e);
    if (rc) return rc;
    h.hash = XXH3_64bits_digest(w->x);
    if (fseek(w->f, 0, SEEK_SET) || fwrite(&h, 1, sizeof h, w->f) != sizeof h || fflush(w->f) || fsync(fileno(w->f)))
        w->failed = 1;
    return 0;
}

int lk_prefix_save(struct lk_prefix *p, int entry, const char *path, const char *note, size_t n_note, struct lk_err *e)
{
    struct lk_buf tmp = {0};
    struct writer w = {0};
    int rc = 0;
    struct entry *a = &p->entries[entry];
    if (!a->n_blocks && a->path && (rc = prefix_entry_fetch(p, entry, e))) return rc;
    if (n_note > NOTE_MAX) return lk_fail(e, LK_EREQUEST, "%s: the conversation is too long to save", path);
    if (lk_buf_fmt(&tmp, "%s.tmp-%d", path, (int)getpid()) || !(w.x = XXH3_createState())) {
        rc = lk_fail(e, LK_ENOMEM, "%s: out of memory for saving a session", path);
        goto out;
    }
    if (!(w.f = fopen(tmp.data, "wb"))) {
        rc = lk_fail(e, LK_ESYS, "%s: cannot write: %s", tmp.data, strerror(errno));
        goto out;
    }
    rc = write_file(p, a, &w, note, n_note, e);
    int bad = fclose(w.f) || w.failed;
    if (!rc && (bad || rename(tmp.data, path)))
        rc = lk_fail(e, LK_ESYS, "%s: cannot write: %s; is the disk full?", path, strerror(errno));
    if (rc) unlink(tmp.data);
out:
    if (w.x) XXH3_freeState(w.x);
    lk_buf_free(&tmp);
    return rc;
}

/* Believes nothing: length, magic, signature, sizes. */
static int head_check(const struct lk_prefix *p, const struct lk_map *m, const char *path, struct file_head *h,
                      struct lk_err *e)
{
    if (m->size < sizeof *h) return lk_fail(e, LK_EINPUT, "%s: %zu bytes, a session file has at least %zu", path,
                                            m->size, sizeof *h);
    memcpy(h, m->data, sizeof *h);
    if (memcmp(h->magic, FILE_MAGIC, 8)) return lk_fail(e, LK_EINPUT, "%s: not a session file of laoka", path);
    if (h->total != m->size)
        return lk_fail(e, LK_EINPUT, "%s: the session file should have %llu bytes and has %zu: it was cut or added to",
                       path, (unsigned long long)h->total, m->size);
    if (h->signature != lk_state_signature(p->s) || h->page_bytes != lk_state_page_bytes(p->s) ||
        h->slot_bytes != lk_state_slot_bytes(p->s))
        return lk_fail(e, LK_EINPUT, "%s: saved by another model, KV type or device: start with the same -m, --kv and "
                                     "--devices", path);
    uint64_t body = h->total - sizeof *h;
    if (h->n_ids < 1 || h->n_ids > INT32_MAX / 4 || h->n_pages != (h->n_ids + LK_PAGE - 1) / LK_PAGE ||
        h->n_pages > (uint64_t)p->o.n_pages || h->n_note > NOTE_MAX ||
        h->n_note + h->n_ids * 4 + h->slot_bytes + h->n_pages * h->page_bytes != body)
        return lk_fail(e, LK_EINPUT, "%s: sizes in the session file's header do not fit together, or it holds more "
                                     "tokens (%llu) than this context", path, (unsigned long long)h->n_ids);
    return 0;
}

/* The header, and the hash of everything behind it. */
static int file_check(const struct lk_prefix *p, const struct lk_map *m, const char *path, struct file_head *h,
                      struct lk_err *e)
{
    int rc = head_check(p, m, path, h, e);
    if (rc) return rc;
    if (XXH3_64bits_withSeed(m->data + sizeof *h, m->size - sizeof *h, head_seed(h)) != h->hash)
        return lk_fail(e, LK_EINPUT, "%s: the session file is damaged (checksum)", path);
    return 0;
}

/* State bytes into host memory of entry i, which has none. */
static int entry_fill(struct lk_prefix *p, int i, const unsigned char *slot, int n_pages)
{
    struct entry *a = &p->entries[i];
    size_t page = lk_state_page_bytes(p->s), bytes = lk_state_slot_bytes(p->s);
    const unsigned char *pages = slot + bytes;
    if (!(a->host_slot = lk_malloc(bytes))) return LK_ENOMEM;
    memcpy(a->host_slot, slot, bytes);
    p->ram += (int64_t)bytes;
    for (int j = 0; j < n_pages; j++) {
        int b = prefix_block_new(p);
        if (b < 0) return LK_ENOMEM;
        a->blocks[a->n_blocks++] = b;
        if (!(p->blocks[b].host = lk_malloc(page))) return LK_ENOMEM;
        memcpy(p->blocks[b].host, pages + (size_t)j * page, page);
        p->ram += (int64_t)page;
    }
    return 0;
}

int prefix_entry_fetch(struct lk_prefix *p, int i, struct lk_err *e)
{
    struct lk_map m = {0};
    struct file_head h;
    struct entry *a = &p->entries[i];
    int rc = lk_map_open(&m, a->path, e);
    if (!rc) rc = file_check(p, &m, a->path, &h, e);
    if (!rc && (h.n_ids != (uint64_t)a->n || memcmp(m.data + sizeof h + h.n_note, a->ids, h.n_ids * 4)))
        rc = lk_fail(e, LK_EINPUT, "%s: not the file that was written", a->path);
    if (!rc && entry_fill(p, i, m.data + sizeof h + h.n_note + h.n_ids * 4, (int)h.n_pages)) {
        prefix_entry_strip(p, i);
        rc = lk_fail(e, LK_ENOMEM, "%s: out of memory for a stored prefix", a->path);
    }
    lk_map_close(&m);
    return rc;
}

/* An entry for a file of the disk tier whose header is right; its bytes are proven when they are fetched. */
int prefix_entry_index(struct lk_prefix *p, const char *path, struct lk_err *e)
{
    struct lk_map m = {0};
    struct file_head h;
    int32_t *ids = NULL;
    int i = -1, rc = lk_map_open(&m, path, e);
    if (!rc) rc = head_check(p, &m, path, &h, e);
    if (rc) goto out;
    if (!(ids = lk_calloc(h.n_ids, 4))) goto nomem; /* the mapping need not be aligned */
    memcpy(ids, m.data + sizeof h + h.n_note, h.n_ids * 4);
    int known = lk_prefix_find(p, ids, (int)h.n_ids);
    if (known >= 0 && p->entries[known].n == (int)h.n_ids) goto out;
    char *copy = lk_strdup(path);
    if (!copy || (i = prefix_entry_new(p, ids, (int)h.n_ids)) < 0) {
        lk_free(copy);
        goto nomem;
    }
    p->entries[i].path = copy;
    p->entries[i].path_bytes = (int64_t)m.size;
    p->disk += (int64_t)m.size;
    prefix_parent_set(p, i);
    goto out;
nomem:
    rc = lk_fail(e, LK_ENOMEM, "%s: out of memory for a stored prefix", path);
out:
    lk_free(ids);
    lk_map_close(&m);
    return rc;
}

static int restore_entry(struct lk_prefix *p, const struct lk_map *m, const struct file_head *h, const char *name)
{
    const unsigned char *ids = m->data + sizeof *h + h->n_note;
    int32_t *copy = lk_calloc(h->n_ids, 4); /* the mapping need not be aligned */
    if (!copy) return LK_ENOMEM;
    memcpy(copy, ids, h->n_ids * 4);
    int known = lk_prefix_find(p, copy, (int)h->n_ids);
    int have = known >= 0 && p->entries[known].n == (int)h->n_ids;
    int i = have ? known : prefix_entry_new(p, copy, (int)h->n_ids);
    lk_free(copy);
    if (i < 0) return LK_ENOMEM;
    if (!have && entry_fill(p, i, ids + h->n_ids * 4, (int)h->n_pages)) {
        prefix_entry_drop(p, i);
        return LK_ENOMEM;
    }
    if (!have) prefix_parent_set(p, i);
    if (name && prefix_entry_rename(p, i, name)) {
        if (!have) prefix_entry_drop(p, i);
        return LK_ENOMEM;
    }
    return 0;
}

int lk_prefix_restore(struct lk_prefix *p, const char *path, const char *name, int32_t **ids, size_t *n_ids,
                      struct lk_buf *note, struct lk_err *e)
{
    struct lk_map m = {0};
    struct file_head h;
    int32_t *copy = NULL;
    int rc = lk_map_open(&m, path, e);
    if (!rc) rc = file_check(p, &m, path, &h, e);
    if (rc) goto out;
    if (note && lk_buf_add(note, m.data + sizeof h, h.n_note)) goto nomem;
    if (ids && !(copy = lk_calloc(h.n_ids, 4))) goto nomem;
    if (restore_entry(p, &m, &h, name)) goto nomem;
    if (ids) {
        memcpy(copy, m.data + sizeof h + h.n_note, h.n_ids * 4);
        *ids = copy;
        *n_ids = h.n_ids;
        copy = NULL;
    }
    goto out;
nomem:
    rc = lk_fail(e, LK_ENOMEM, "%s: out of memory for restoring a session", path);
out:
    lk_free(copy);
    lk_map_close(&m);
    return rc;
}
