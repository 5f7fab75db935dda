/* Where the bundled model is. */
#include "main/commands.h"

#include "base/file.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *lk_bundled_model(struct lk_buf *buf, struct lk_err *e)
{
    static const char *const near[] = {"../models/demo", "../share/laoka/models/demo"};
    char exe[PATH_MAX];
    const char *data = getenv("LAOKA_DATA");
    if (data) {
        lk_path_join(buf, data, "demo");
        if (lk_file_exists(buf->data) == 2) return buf->data;
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        const char *dir = dirname(exe);
        for (size_t i = 0; i < 2; i++) {
            lk_path_join(buf, dir, near[i]);
            if (lk_file_exists(buf->data) == 2) return buf->data;
        }
    }
    lk_fail(e, LK_EINPUT, "the bundled model is not beside the program (../models/demo); name a model with -m");
    return NULL;
}

const char *lk_model_path(struct lk_opts *o, struct lk_err *e)
{
    static struct lk_buf path;
    if (!o->engine.model) o->engine.model = lk_bundled_model(&path, e);
    return o->engine.model;
}
