/* The engine process of `laoka serve`: an engine on one side, a socket to the front on the other, no HTTP. */
#ifndef LK_RUNTIME_WORKER_H
#define LK_RUNTIME_WORKER_H

#include "args/options.h"
#include "base/err.h"

/* Serves the front on fd until it closes the socket. Returns 0, or the error that ends the process. */
int lk_worker_run(int fd, const struct lk_opts_engine *o, struct lk_err *e);

#endif
