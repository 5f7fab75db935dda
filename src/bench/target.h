/* The server that is measured: somebody's (--url), or our own, started for the time of the benchmark, so that both are measured with the same ruler. */
#ifndef LK_BENCH_TARGET_H
#define LK_BENCH_TARGET_H

#include "args/options.h"
#include "base/err.h"

#include <sys/types.h>

struct lk_target {
    char url[300], model[200], server[200]; /* model: the id to send; server: what /version says, or "" */
    pid_t pid;                              /* our own server, 0 otherwise */
};
/* Waits up to `seconds` for a healthy server. */
int lk_target_open(struct lk_target *t, const struct lk_opts *o, double seconds, struct lk_err *e);
void lk_target_close(struct lk_target *t);

#endif
