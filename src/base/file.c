/* Files: see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int file_open_read(const char *path, struct stat *st, struct lk_err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return lk_fail(e, LK_EINPUT, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, st) || !S_ISREG(st->st_mode)) {
        close(fd);
        return lk_fail(e, LK_EINPUT, "%s: not a regular file", path);
    }
    return fd;
}

int lk_map_open(struct lk_map *m, const char *path, struct lk_err *e)
{
    *m = (struct lk_map){0};
    struct stat st;
    int fd = file_open_read(path, &st, e);
    if (fd < 0) return fd;
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            close(fd);
            return lk_fail(e, LK_ESYS, "%s: cannot map %lld bytes: %s", path,
                           (long long)st.st_size, strerror(errno));
        }
        m->data = p;
        m->size = (size_t)st.st_size;
    }
    close(fd);
    return 0;
}

void lk_map_close(struct lk_map *m)
{
    if (m->data) munmap((void *)m->data, m->size);
    *m = (struct lk_map){0};
}

void lk_map_forget(const struct lk_map *m, const void *at, size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)((const unsigned char *)at - m->data) / page * page;
    size_t end = (size_t)((const unsigned char *)at - m->data) + n;
    if (m->data && n && end <= m->size) madvise((void *)(m->data + from), end - from, MADV_DONTNEED);
}

int lk_file_read(struct lk_buf *b, const char *path, size_t max, struct lk_err *e)
{
    struct stat st;
    int fd = file_open_read(path, &st, e), rc = 0;
    if (fd < 0) return fd;
    if ((uintmax_t)st.st_size > max)
        rc = lk_fail(e, LK_EINPUT, "%s: %lld bytes, at most %zu are read", path,
                     (long long)st.st_size, max);
    else if (lk_buf_reserve(b, (size_t)st.st_size))
        rc = lk_fail(e, LK_ENOMEM, "%s: no memory for %lld bytes", path, (long long)st.st_size);
    for (off_t left = st.st_size; !rc && left > 0;) {
        ssize_t n = read(fd, b->data + b->len, (size_t)left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            rc = lk_fail(e, LK_EINPUT, "%s: cannot read: %s", path, n ? strerror(errno) : "file shrank");
            break;
        }
        b->len += (size_t)n;
        b->data[b->len] = 0;
        left -= n;
    }
    close(fd);
    return rc;
}

int lk_fd_put(int fd, const void *data, size_t n, uint64_t pos)
{
    const char *p = data;
    while (n) {
        ssize_t w = pwrite(fd, p, n, (off_t)pos);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return -1;
        p += w, pos += (uint64_t)w, n -= (size_t)w;
    }
    return 0;
}

int lk_file_write(const char *path, const void *data, size_t n, struct lk_err *e)
{
    struct lk_buf tmp = {0};
    lk_buf_fmt(&tmp, "%s.tmp-%ld", path, (long)getpid());
    if (tmp.failed) return lk_fail(e, LK_ENOMEM, "%s: no memory", path);
    int fd = open(tmp.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644), rc = 0;
    if (fd < 0) {
        rc = lk_fail(e, LK_ESYS, "%s: cannot create: %s", tmp.data, strerror(errno));
    } else {
        int bad = lk_fd_put(fd, data, n, 0) || fsync(fd);
        bad = close(fd) || bad;
        if (bad || rename(tmp.data, path)) {
            rc = lk_fail(e, LK_ESYS, "%s: cannot write: %s", path, strerror(errno));
            unlink(tmp.data);
        }
    }
    lk_buf_free(&tmp);
    return rc;
}

int lk_file_exists(const char *path)
{
    struct stat st;
    if (stat(path, &st)) return 0;
    return S_ISREG(st.st_mode) ? 1 : S_ISDIR(st.st_mode) ? 2 : 0;
}

int lk_path_join(struct lk_buf *b, const char *dir, const char *name)
{
    lk_buf_reset(b);
    size_t n = strlen(dir);
    return lk_buf_fmt(b, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}
