/* One step's work list, shared by host and device code: plain integers only.
 *
 * A step moves n_rows token rows. Rows of one sequence are consecutive and form a lane. Row r of a lane with pos0 = p
 * is the token at position p + (r - row0) of that sequence. Everything that changes from step to step lies in the
 * arrays (fixed addresses), so that a captured graph can be replayed; everything else (n_rows, n_lanes, max_ctx) is
 * part of the launch shape. */
#ifndef LK_DEV_BATCH_H
#define LK_DEV_BATCH_H

#include <stdint.h>

#define LK_PAGE 64 /* tokens a KV page */

struct lk_lane {
    int32_t row0, rows; /* its rows in the step; rows may be 0 (an idle lane in a replayed graph) */
    int32_t pos0;       /* position of its first row = tokens already in KV and state */
    int32_t page0;      /* its page table starts at pages[page0]; entry p holds tokens 64p..64p+63 */
    int32_t slot;       /* its GDN state slot */
    int32_t keep;       /* gdn_fold only: how many of its recorded rows to fold into the state */
    int32_t pad[2];
};

struct lk_batch {
    int32_t n_rows, n_lanes;
    int32_t max_ctx;             /* >= pos0 + rows of every lane: sizes grids, never changes results */
    const int32_t *ids;          /* device [n_rows] token ids */
    const int32_t *rope;         /* device [3][n_rows] t, h, w rope positions (text: all equal) */
    const struct lk_lane *lanes; /* device [n_lanes] */
    const int32_t *pages;        /* device: physical page numbers */
};

#endif
