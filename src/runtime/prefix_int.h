/* Inside of the prefix store, shared by prefix.c (entries), prefix_tier.c (where they live), prefix_disk.c (the folder) and
 * session_file.c (files). */
#ifndef LK_RUNTIME_PREFIX_INT_H
#define LK_RUNTIME_PREFIX_INT_H

#include "runtime/prefix.h"

/* One KV page as entries hold it: on the device, else in host memory. */
struct block {
    int refs;    /* entries; 0: free */
    int32_t dev; /* -1: not on the device; the store holds one reference */
    void *host;
};

struct entry {
    int used, busy; /* busy: being loaded, must not go */
    int n;
    int32_t *ids;
    int32_t *blocks; /* [n_blocks]; none while only on disk */
    int n_blocks;
    int32_t slot;    /* -1: not on the device */
    void *host_slot;
    char *path;      /* copy on disk, or NULL */
    int64_t path_bytes;
    char *name;
    int parent;      /* the next shorter entry that begins it, -1 */
    int hits;
    uint64_t last;
};

struct lk_prefix {
    struct lk_state *s;
    struct lk_prefix_opts o;
    char *dir;
    struct entry *entries; /* [o.max_entries] */
    struct block *blocks;
    int n_blocks, cap_blocks, free_block; /* free blocks: chain through dev, -1 ends */
    int32_t *page_block; /* device page -> block, -1 */
    uint64_t clock;
    int64_t ram, disk; /* bytes now */
    int count;
};

int prefix_entry_new(struct lk_prefix *p, const int32_t *ids, int n); /* entry without state, or -1 */
void prefix_entry_drop(struct lk_prefix *p, int i);                   /* forgets it everywhere */
void prefix_entry_strip(struct lk_prefix *p, int i);                  /* gives up its memory; disk copy stays */
void prefix_parent_set(struct lk_prefix *p, int i);
int prefix_block_new(struct lk_prefix *p);                            /* refs 1, nowhere; -1: no memory */
int prefix_block_of_page(struct lk_prefix *p, int32_t page);          /* +1 ref; -1: no memory */
void prefix_block_unref(struct lk_prefix *p, int b);
int prefix_entry_rename(struct lk_prefix *p, int i, const char *name);
double prefix_worth(const struct lk_prefix *p, const struct entry *e);
int prefix_ram_make(struct lk_prefix *p, int64_t bytes, double worth); /* 0: there is room now */
int prefix_entry_fetch(struct lk_prefix *p, int i, struct lk_err *e);  /* disk -> memory */
int prefix_entry_index(struct lk_prefix *p, const char *path, struct lk_err *e); /* a file found in the folder; its state stays there */
void prefix_disk_open(struct lk_prefix *p);                            /* finds what an earlier run left */
void prefix_disk_touch(const struct entry *a);                         /* used now: file times are the order of use over restarts */

#endif
