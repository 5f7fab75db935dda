/* Prefix store, the folder on disk. Files are written only between requests (lk_prefix_idle), because a slot of the 27B model is 150 MB and a
 * file must not stop a step. They outlive the engine: opening reads the headers and tokens of those that carry this model's signature,
 * newest first until the budget is full, and deletes the older ones beyond it. Nothing is believed before its hash was checked, which
 * happens when its state is asked for; a file that fails then is deleted, the prompt is computed. Files of other models, other sizes
 * and other programs are left alone.
 *
 * A name is the signature and a hash of the tokens, so that several engines may share a folder: they write the same bytes or other names. */
#include "runtime/prefix_int.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define NAME_FORMAT "prefix-%016llx-%016llx.state"
#define FOUND_MOST 65536 /* files looked at */

struct found {
    char *path;
    struct timespec time;
    int64_t bytes;
};
struct finds {
    struct found *v;
    size_t n, cap;
};

static int newer_first(const void *a, const void *b)
{
    const struct timespec *x = &((const struct found *)a)->time, *y = &((const struct found *)b)->time;
    if (x->tv_sec != y->tv_sec) return x->tv_sec > y->tv_sec ? -1 : 1;
    return x->tv_nsec > y->tv_nsec ? -1 : x->tv_nsec < y->tv_nsec;
}

static int found_add(struct finds *f, const char *dir, const char *name, const struct stat *st)
{
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 64;
        struct found *v = lk_reallocarray(f->v, cap, sizeof *v);
        if (!v) return LK_ENOMEM;
        f->v = v;
        f->cap = cap;
    }
    struct lk_buf path = {0};
    if (lk_path_join(&path, dir, name)) return LK_ENOMEM;
    f->v[f->n++] = (struct found){path.data, st->st_mtim, (int64_t)st->st_size}; /* lk_buf memory is lk_malloc memory */
    return 0;
}

/* A half file of a writer that died; a living one is done within seconds. */
static int left_over(const char *name, const struct stat *st)
{
    return strstr(name, ".state.tmp-") && st->st_mtim.tv_sec < time(NULL) - 3600;
}

/* Regular files with our model's names; what has another name is not ours to judge. */
static void folder_read(struct lk_prefix *p, struct finds *f)
{
    char mine[64];
    int n = snprintf(mine, sizeof mine, NAME_FORMAT, (unsigned long long)lk_state_signature(p->s), 0ull);
    DIR *d = opendir(p->dir);
    if (!d) return;
    for (struct dirent *t; (t = readdir(d)) && f->n < FOUND_MOST;) {
        struct stat st;
        if (strncmp(t->d_name, mine, 24)) continue;
        if (fstatat(dirfd(d), t->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        if (left_over(t->d_name, &st)) unlinkat(dirfd(d), t->d_name, 0);
        if (strlen(t->d_name) != (size_t)n || strcmp(t->d_name + n - 6, ".state")) continue;
        if (found_add(f, p->dir, t->d_name, &st)) break;
    }
    closedir(d);
}

void prefix_disk_open(struct lk_prefix *p)
{
    struct finds f = {0};
    int kept = 0, bad = 0;
    int64_t room = p->o.disk;
    if (!p->dir || p->o.disk <= 0) return;
    folder_read(p, &f);
    if (f.n) qsort(f.v, f.n, sizeof *f.v, newer_first);
    for (size_t i = 0; i < f.n; i++) { /* the newest that fit stay */
        if (f.v[i].bytes <= room && kept < p->o.max_entries) {
            room -= f.v[i].bytes;
            kept++;
            continue;
        }
        unlink(f.v[i].path);
        f.v[i].bytes = -1;
    }
    for (size_t i = f.n; i-- > 0;) { /* oldest first: the store's own clock then has the order of use */
        struct lk_err e = {0};
        if (f.v[i].bytes < 0 || !prefix_entry_index(p, f.v[i].path, &e)) continue;
        if (!bad++) lk_log_warn("stored prefix ignored: %s", e.text);
    }
    if (bad > 1) lk_log_warn("%s: %d more stored prefixes ignored", p->dir, bad - 1);
    for (size_t i = 0; i < f.n; i++) lk_free(f.v[i].path);
    lk_free(f.v);
}

void prefix_disk_touch(const struct entry *a)
{
    utimensat(AT_FDCWD, a->path, NULL, 0);
}

/* Room on disk: copies that are worth less go. Never those worth more: an entry still in memory whose copy went is the next to be
 * written, and the two would change places for ever. */
static int disk_make(struct lk_prefix *p, int64_t bytes, double worth)
{
    if (bytes > p->o.disk) return LK_EBUSY;
    while (p->disk + bytes > p->o.disk) {
        int worst = -1;
        for (int i = 0; i < p->o.max_entries; i++) {
            struct entry *a = &p->entries[i];
            if (a->used && a->path && !a->busy &&
                (worst < 0 || prefix_worth(p, a) < prefix_worth(p, &p->entries[worst])))
                worst = i;
        }
        if (worst < 0 || prefix_worth(p, &p->entries[worst]) >= worth) return LK_EBUSY;
        struct entry *a = &p->entries[worst];
        if (!a->n_blocks) {
            prefix_entry_drop(p, worst);
            continue;
        }
        unlink(a->path);
        p->disk -= a->path_bytes;
        lk_free(a->path);
        a->path = NULL;
    }
    return 0;
}

int lk_prefix_idle(struct lk_prefix *p)
{
    int best = -1;
    if (!p->dir || p->o.disk <= 0) return 0;
    for (int i = 0; i < p->o.max_entries; i++) {
        struct entry *a = &p->entries[i];
        if (a->used && !a->path && a->n_blocks && a->n >= 256 &&
            (best < 0 || prefix_worth(p, a) > prefix_worth(p, &p->entries[best])))
            best = i;
    }
    if (best < 0) return 0;
    struct entry *a = &p->entries[best];
    int64_t bytes = lk_prefix_file_bytes(p, best);
    a->busy++;
    int rc = disk_make(p, bytes, prefix_worth(p, a));
    a->busy--;
    struct lk_buf path = {0};
    struct lk_err e = {0};
    if (rc || lk_buf_fmt(&path, "%s/" NAME_FORMAT, p->dir, (unsigned long long)lk_state_signature(p->s),
                         (unsigned long long)XXH3_64bits(a->ids, (size_t)a->n * 4)) ||
        lk_prefix_save(p, best, path.data, NULL, 0, &e)) {
        if (e.code) { /* a full or read-only disk: stop trying */
            lk_log_warn("prefix store on disk is off: %s", e.text);
            p->o.disk = 0;
        }
        lk_buf_free(&path);
        return 0;
    }
    a->path = path.data; /* lk_buf memory is lk_malloc memory */
    a->path_bytes = bytes;
    p->disk += bytes;
    return 1;
}
