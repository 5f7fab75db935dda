/* laoka convert IN OUT: any readable model becomes a Hugging Face folder in a recipe's formats, or N rank files. Ctrl-C and SIGTERM end it without a half folder. */
#include "artifact/convert.h"
#include "base/pool.h"
#include "main/commands.h"
#include "model/split.h"

#include <signal.h>

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
    stop = sig;
}

int cmd_convert(struct lk_opts *o, struct lk_err *e)
{
    if (o->n_args != 2) return lk_fail(e, LK_EUSAGE, "laoka convert: expected IN and OUT, found %d words", o->n_args);
    struct lk_convert_opts c = {.recipe = o->convert.recipe, .verify = o->convert.verify, .force = o->convert.force, .stop = &stop};
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a write past a size limit is an error like a full disk */
    c.pool = lk_pool_new(o->engine.dev.threads);
    int rc = o->convert.tp ? lk_split(o->args[0], o->args[1], o->convert.tp, &c, e) : lk_convert(o->args[0], o->args[1], &c, e);
    lk_pool_free(c.pool);
    return rc;
}
