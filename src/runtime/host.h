/* The host: everything an engine stands on, opened in order from the options (artifact, tokenizer, device, model, state, core) and
 * closed in reverse. How large: sizes.h. No threads. */
#ifndef LK_RUNTIME_HOST_H
#define LK_RUNTIME_HOST_H

#include "args/options.h"
#include "runtime/core.h"
#include "runtime/ranks.h"

struct lk_host {
    struct lk_artifact *artifact;
    struct lk_tokenizer *tok; /* NULL when the file has none */
    struct lk_dev *dev;
    struct lk_model *model;
    struct lk_state *state;
    struct lk_ranks *ranks; /* the other devices' processes */
    struct lk_core core;
    char about[512]; /* one line: model, device, context, KV, slots */
};
/* Zero-initialise first. On failure everything is closed again. */
int lk_host_open(struct lk_host *h, const struct lk_opts_engine *o, struct lk_err *e);
void lk_host_close(struct lk_host *h);
/* While there has been no work for idle_s: LK_EDEVICE when another rank is gone or silent. */
int lk_host_alive(const struct lk_host *h, double idle_s, struct lk_err *e);

#endif
