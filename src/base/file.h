/* Files: mapped whole for reading, or written whole under a temporary name and renamed, so that a half
 * file never stands under the final name. */
#ifndef LK_BASE_FILE_H
#define LK_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct lk_map {
    const unsigned char *data; /* NULL for an empty file */
    size_t size;
};
/* Read-only private map; the file is closed again. Errors name the path. */
int lk_map_open(struct lk_map *m, const char *path, struct lk_err *e);
void lk_map_close(struct lk_map *m);
/* The system brings this much of a mapped file with a byte that is read (Linux: fault_around_bytes). */
#define LK_FILE_AROUND ((size_t)65536)
/* Lets the pages of [at, at + n) of the mapping go: they count no longer as this process's memory and come back when touched. */
void lk_map_forget(const struct lk_map *m, const void *at, size_t n);

/* Reads a regular file of at most max bytes into b (appends). */
int lk_file_read(struct lk_buf *b, const char *path, size_t max, struct lk_err *e);
/* Writes bytes under path.tmp-PID, syncs, renames over path. On failure nothing is left behind. */
int lk_file_write(const char *path, const void *data, size_t n, struct lk_err *e);
/* All n bytes at `pos` of an open file: 0, or -1 with errno. */
int lk_fd_put(int fd, const void *data, size_t n, uint64_t pos);
int lk_file_exists(const char *path); /* 1 a regular file, 2 a folder, 0 neither */
/* "dir/name" into b (reset first). */
int lk_path_join(struct lk_buf *b, const char *dir, const char *name);

#endif
