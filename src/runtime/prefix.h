/* The prefix store: everything that was computed once and may be asked for again.
 *
 * An entry is the whole state after a prefix of n tokens: the tokens, KV pages (blocks, shared by reference with other entries and with
 * running sequences) and one snapshot of the recurrent state. Recurrent state cannot be cut back, so an entry is of use exactly to prompts
 * that begin with all of its tokens; entries stand at turn boundaries, before the last token of a prompt, every few thousand tokens
 * and at the end of each answer (runtime/core.c decides where).
 *
 * An entry lives in device memory first, moves to host memory when the device is short, and to disk when host memory is.
 * The least useful goes first: tokens saved beyond the next shorter entry, times uses, over age. A named entry (a session) is never dropped.
 *
 * Pages that a block shares with a running sequence are only written beyond the tokens the entry speaks of. A sequence that
 * resumes inside a page gets a copy of that page. All calls on the engine thread; none inside a step. */
#ifndef LK_RUNTIME_PREFIX_H
#define LK_RUNTIME_PREFIX_H

#include "base/buf.h"
#include "base/err.h"
#include "model/state.h"

struct lk_prefix;
struct lk_prefix_opts {
    int n_pages;        /* of the state */
    int max_entries;    /* 0: 512 */
    int64_t ram, disk;  /* bytes in host memory and on disk; 0: none */
    const char *dir;    /* disk tier's folder; NULL: none */
};
int lk_prefix_open(struct lk_prefix **out, struct lk_state *s, const struct lk_prefix_opts *o, struct lk_err *e);
void lk_prefix_close(struct lk_prefix *p); /* gives all pages and slots back; files on disk stay for the next start */

/* The longest entry whose tokens begin ids and that is no longer than max: its number, or -1. */
int lk_prefix_find(struct lk_prefix *p, const int32_t *ids, int max);
int lk_prefix_len(const struct lk_prefix *p, int entry);
/* Hands an entry's state to a sequence: pages (one reference each) and the contents of its slot. On failure nothing is held. */
int lk_prefix_load(struct lk_prefix *p, int entry, int32_t *pages, int *n_pages, int32_t slot, struct lk_err *e);
/* Keeps the state after ids[0..n): references pages, copies slot. name: NULL, or a session that this state replaces.
 * 0, or LK_ENOMEM / LK_EBUSY: then the store is as before. */
int lk_prefix_keep(struct lk_prefix *p, const int32_t *ids, int n, const int32_t *pages, int32_t slot, const char *name);
int lk_prefix_named(const struct lk_prefix *p, const char *name); /* entry or -1 */
void lk_prefix_clear(struct lk_prefix *p); /* drops all but named entries */

/* A page or a slot; makes room by moving or dropping the least useful entries. LK_EBUSY when nothing can go. */
int lk_prefix_page(struct lk_prefix *p, int32_t *page);
int lk_prefix_slot(struct lk_prefix *p, int32_t *slot);
/* Pages that lk_prefix_page could hand out: free ones and those only entries hold. */
int lk_prefix_pages_left(const struct lk_prefix *p);
/* Pages of an entry that running sequences hold too: sharing them takes nothing from the pool. */
int lk_prefix_shared(const struct lk_prefix *p, int entry);
/* Between requests: writes one entry to the disk tier. 1: did something. */
int lk_prefix_idle(struct lk_prefix *p);

/* Files of one entry (session_file.c). note: the caller's own bytes (the conversation's messages), may be NULL. */
int lk_prefix_save(struct lk_prefix *p, int entry, const char *path, const char *note, size_t n_note, struct lk_err *e);
int64_t lk_prefix_file_bytes(const struct lk_prefix *p, int entry); /* without a note */
/* Adds the file's entry under `name` (NULL: none). A file that is short, damaged, foreign or of another model is refused
 * before anything changes. ids (lk_free) and note receive copies; either may be NULL. */
int lk_prefix_restore(struct lk_prefix *p, const char *path, const char *name, int32_t **ids, size_t *n_ids,
                      struct lk_buf *note, struct lk_err *e);

struct lk_prefix_stats {
    int entries;
    int64_t ram, disk;
};
void lk_prefix_stats(const struct lk_prefix *p, struct lk_prefix_stats *s);

#endif
