/* Output folders: see out_folder.h. */
#include "artifact/out_folder.h"

#include "artifact/convert_plan.h"
#include "artifact/store.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <stdio.h>

int lk_out_name_len(const char *out)
{
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/') n--;
    return (int)n;
}

int lk_out_folder_check(const char *out, int force, struct lk_err *e)
{
    if (!lk_file_exists(out) || force) return 0;
    return lk_fail(e, LK_EINPUT, "%s: exists already; choose another name, --force to replace it, or --verify to compare it with IN", out);
}

int lk_out_folder_begin(struct lk_out_folder *f, const char *out, int force, struct lk_err *e)
{
    *f = (struct lk_out_folder){.out = out};
    int rc = lk_out_folder_check(out, force, e);
    if (rc) return rc;
    if (lk_buf_fmt(&f->tmp, "%.*s.tmp-%ld", lk_out_name_len(out), out, (long)getpid())) return lk_fail(e, LK_ENOMEM, "convert: no memory");
    if (mkdir(f->tmp.data, 0755)) return lk_fail(e, LK_ESYS, "%s: cannot create: %s", f->tmp.data, strerror(errno));
    f->made = 1;
    return 0;
}

void lk_out_folder_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct lk_buf path = {0};
    for (struct dirent *x; d && (x = readdir(d));)
        if (strcmp(x->d_name, ".") && strcmp(x->d_name, "..") && !lk_path_join(&path, dir, x->d_name)) unlink(path.data);
    if (d) closedir(d);
    lk_buf_free(&path);
    rmdir(dir);
}

int lk_out_folder_end(struct lk_out_folder *f, int rc, struct lk_err *e)
{
    struct lk_buf old = {0};
    int exists = lk_file_exists(f->out) == 2;
    if (!rc && lk_buf_fmt(&old, "%.*s.old-%ld", lk_out_name_len(f->out), f->out, (long)getpid())) rc = lk_fail(e, LK_ENOMEM, "convert: no memory");
    if (!rc && ((exists && rename(f->out, old.data)) || rename(f->tmp.data, f->out)))
        rc = lk_fail(e, LK_ESYS, "%s: cannot rename: %s", f->out, strerror(errno));
    if (rc && f->made) lk_out_folder_remove(f->tmp.data);
    if (!rc && exists) lk_out_folder_remove(old.data);
    lk_buf_free(&old);
    lk_buf_free(&f->tmp);
    return rc;
}

int lk_out_side_write(const char *dir, const char *name, const char *data, size_t n, struct lk_err *e)
{
    struct lk_buf path = {0};
    int rc = lk_path_join(&path, dir, name) ? lk_fail(e, LK_ENOMEM, "convert: no memory") : lk_file_write(path.data, data, n, e);
    lk_buf_free(&path);
    return rc;
}

int lk_out_texts_write(const char *dir, const struct lk_artifact *a, struct lk_err *e)
{
    int rc = 0;
    size_t len;
    for (const char *const *name = lk__side_names + 1; *name && !rc; name++) {
        const char *s = lk_artifact_text(a, *name, &len);
        if (s) rc = lk_out_side_write(dir, *name, s, len, e);
    }
    return rc;
}

int lk_out_config_write(const char *dir, const struct lk_artifact *a, struct lk_err *e)
{
    struct plan p = {.a = a}; /* no recipe: nothing of the source's config changes */
    struct lk_buf text = {0};
    int rc = lk__config_text(&p, &text, e);
    if (!rc) rc = lk_out_side_write(dir, "config.json", text.data, text.len, e);
    lk_buf_free(&text);
    return rc;
}
