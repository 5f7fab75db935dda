/* Float files: see out_f32.h. The host is little-endian (x86-64, AArch64), as the file is. */
#include "main/out_f32.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int sys_fail(struct lk_out *o, const char *what, struct lk_err *e)
{
    return lk_fail(e, LK_ESYS, "%s: cannot %s: %s", o->path, what, strerror(errno));
}

int lk_out_open(struct lk_out *o, const char *path, size_t rows, size_t row, struct lk_err *e)
{
    size_t bytes, n;
    memset(o, 0, sizeof *o);
    o->fd = -1, o->row = row, o->path = path;
    if (!path) return 0;
    if (lk_mul_size(rows, row, &n) || lk_mul_size(n, 4, &bytes) || bytes > INT64_MAX)
        return lk_fail(e, LK_EINPUT, "%s: %zu rows of %zu floats are too many for a file", path, rows, row);
    o->tmp = lk_malloc(strlen(path) + 32);
    if (!o->tmp) return lk_fail(e, LK_ENOMEM, "no memory for a file name");
    sprintf(o->tmp, "%s.tmp-%d", path, (int)getpid());
    o->fd = open(o->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (o->fd < 0) return sys_fail(o, "create it", e);
    return ftruncate(o->fd, (off_t)bytes) ? sys_fail(o, "make room for it", e) : 0;
}

int lk_out_row(struct lk_out *o, size_t at, const float *x, struct lk_err *e)
{
    size_t n = o->row * 4;
    return o->path && lk_fd_put(o->fd, x, n, at * n) ? sys_fail(o, "write to it", e) : 0;
}

int lk_out_done(struct lk_out *o, struct lk_err *e)
{
    if (!o->path) return 0;
    int rc = close(o->fd);
    o->fd = -1;
    if (rc || rename(o->tmp, o->path)) return sys_fail(o, "finish it", e);
    lk_free(o->tmp);
    o->tmp = NULL;
    return 0;
}

void lk_out_drop(struct lk_out *o)
{
    if (o->fd >= 0) close(o->fd);
    if (o->tmp) unlink(o->tmp);
    lk_free(o->tmp);
    memset(o, 0, sizeof *o);
    o->fd = -1;
}
