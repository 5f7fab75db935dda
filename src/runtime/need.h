/* What a run on CPUs needs in memory, before it is started: the bytes that stay resident in one process. Every number comes from the function that sizes the
 * allocation itself; only the process (program, libraries, directory, tokenizer) is measured, in the process that asks.
 *
 * Memory that is taken but not touched (pages of a context that nobody has filled) is not resident, hence two sums. */
#ifndef LK_RUNTIME_NEED_H
#define LK_RUNTIME_NEED_H

#include "artifact/artifact.h"
#include "args/options.h"

struct lk_need {
    double process;   /* as given */
    double copied;    /* weights laid out anew, small tensors */
    double mapped;    /* weights read where the file lies: the system's page cache, shared between processes */
    double buffers;   /* a step's buffers and work memory, the engine's lists, memory shared between ranks */
    double kv;        /* pages of one full context */
    double snapshots; /* recurrent states: the sequence's own, a spare, what the prefix store keeps of one conversation */
    double loaded;    /* before the first request: process + copied */
    double peak;      /* all of it: one conversation has filled the context */
    double session;   /* each further conversation of that length */
};
struct lk_need_of {
    int ctx, rank, n; /* rank 0 leads: it alone has the tokenizer, the engine's lists and the stored prefixes */
    int vocab;        /* of the tokenizer, 0: none */
    double process;   /* lk_mem_resident of a process that has opened `a` and, on rank 0, the tokenizer, and nothing else */
};
/* The rest as o says, all devices CPUs. */
int lk_need_make(struct lk_need *x, const struct lk_artifact *a, const struct lk_opts_engine *o, const struct lk_need_of *of, struct lk_err *e);

#endif
