/* `laoka serve`: the front process. Everything here is protocol; numbers are the engine process's (runtime/worker.h).
 *
 * main opens the model's text parts and gives them here; the front starts the engine process with worker_argv, listens,
 * and returns when it was told to stop (SIGTERM, SIGINT: a drain, a second one: at once) or cannot go on. */
#ifndef LK_SERVE_SERVE_H
#define LK_SERVE_SERVE_H

#include "args/options.h"
#include "base/err.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct lk_serve {
    const struct lk_opts_serve *o;
    const char *const *keys;           /* API keys; none: everyone may call */
    int n_keys;
    int parallel;                      /* requests in one step, for limits */
    const char *name;                  /* model id shown to clients */
    const char *version;
    const struct lk_tokenizer *tok;
    enum lk_dialect dialect;           /* NONE: no chat endpoints */
    const int32_t *stop_ids;           /* end of an answer */
    int n_stop_ids;
    struct lk_opts_sampling defaults;  /* of the model and the command line; not given: neutral */
    char *const *worker_argv;
};

int lk_serve_run(const struct lk_serve *s, struct lk_err *e);

#endif
