/* Collectives between the ranks of a group: one contract, several transports.
 *
 * The sum is always taken in rank order (((p0 + p1) + p2) + ...) in f32, so every rank holds the same bits, whatever the transport and
 * whoever comes first. Calls are matched by order: every rank makes the same calls with the same sizes.
 * A transport never returns data it cannot vouch for: a message that does not check (count, checksum, step) stops the group. */
#ifndef LK_TP_COMM_H
#define LK_TP_COMM_H

#include "base/err.h"
#include "dev/dev.h"
#include "tp/group.h"

struct lk_comm {
    int rank, n;
    const char *name; /* "shm", "mailbox", "push", "ll", "nccl" */
    /* y += p0 + p1 + ... ; y and partial device f32 [count]; y unchanged on error. Returns 0 or LK_EDEVICE. */
    int (*reduce_add)(struct lk_comm *c, struct lk_dev *d, float *y, const float *partial, size_t count, struct lk_err *e);
    /* all [n][bytes] in rank order on every rank; host memory. */
    int (*gather)(struct lk_comm *c, const void *mine, size_t bytes, void *all, struct lk_err *e);
    /* data [bytes] of rank 0 on every rank; host memory. */
    int (*bcast)(struct lk_comm *c, void *data, size_t bytes, struct lk_err *e);
    void (*close)(struct lk_comm *c);
};

/* Faults for tests: at the step-th collective of this rank, do the damage once. */
enum lk_comm_fault { LK_FAULT_NONE, LK_FAULT_ZERO, LK_FAULT_LATE, LK_FAULT_FLIP, LK_FAULT_SKIP };

/* Shared memory between CPU ranks. NULL group: a comm of one (reduce_add adds, gather copies). */
size_t lk_comm_shm_bytes(int n, size_t floats);
int lk_comm_shm_open(struct lk_comm **out, struct lk_group *g, struct lk_err *e);
void lk_comm_shm_fault(struct lk_comm *c, enum lk_comm_fault kind, uint32_t step);

#endif
