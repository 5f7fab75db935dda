/* `bench rounds`: decode rounds in this process, at a forced context and a forced acceptance of drafts, so that kernels are measured without paying
 * for a prefill. The state is filled with random content instead, and the results say so. A round ends when its ids are on the host. */
#ifndef LK_BENCH_ROUNDS_H
#define LK_BENCH_ROUNDS_H

#include "args/options.h"
#include "bench/table.h"

/* Cells: size = context, kind "plain" or "draftN", run "a=0.77" (accepted of drafted); kind "prefill": a prompt of that size on an empty state. Adds to t->head:
 * what was forced, the bandwidth, and the time by family of kernels. gbs: read bandwidth of a device, 0 unknown. Drafts: --draft, auto is 3; without an MTP layer only plain rounds. */
int lk_rounds_run(const struct lk_opts *o, double gbs, struct lk_table *t, struct lk_err *e);

#endif
