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

#define LK_COMM_WAYS 4 /* transports at most: as many as a bridge has kinds */

enum lk_comm_fault { LK_FAULT_NONE, LK_FAULT_ZERO, LK_FAULT_FLIP, LK_FAULT_SKIP, LK_FAULT_LATE }; /* in the order of enum lk_bridge_fault */

struct lk_comm {
    int rank, n;
    struct lk_group *g; /* NULL: alone */
    /* Transports of reduce_add, the same list on all ranks. tp/elect.h proves, times and chooses; until then the first one is used. */
    int ways;
    struct lk_comm_way {
        const char *name; /* "shm"; "mailbox", "push", "ll", "nccl" */
        int ok;           /* every rank can use it */
        char why[200];    /* why not */
    } way[LK_COMM_WAYS];

    /* y += p0 + p1 + ... ; y and partial device f32 [count]; y is undefined on error. Returns 0 or LK_EDEVICE. */
    int (*reduce_add)(struct lk_comm *c, struct lk_dev *d, float *y, const float *partial, size_t count, struct lk_err *e);
    /* NULL: reduce_add is done when it returns. Otherwise it only queues: settle waits for the device and says whether all went well. digest:
     * of every sum since the last settle and of x [count] on the device (NULL: none); equal on all ranks or something was not. */
    int (*settle)(struct lk_comm *c, struct lk_dev *d, const float *x, size_t count, uint64_t *digest, struct lk_err *e);
    /* Which way carries sums of up to `small_most` floats, and which the longer ones. */
    void (*use)(struct lk_comm *c, int small, int bulk, size_t small_most);
    /* All ranks, nothing in flight: steps and state as new; patience_s of waits from now on, 0: the group's. NULL: nothing to do. */
    void (*reset)(struct lk_comm *c, double patience_s);
    /* Tests: damage of this rank at the step-th collective from now of a way (a bridge: of its first block); step 0: at every one. */
    void (*fault)(struct lk_comm *c, int way, enum lk_comm_fault kind, uint32_t step);
    /* all [n][bytes] in rank order on every rank; host memory. */
    int (*gather)(struct lk_comm *c, const void *mine, size_t bytes, void *all, struct lk_err *e);
    /* data [bytes] of rank 0 on every rank; host memory. */
    int (*bcast)(struct lk_comm *c, void *data, size_t bytes, struct lk_err *e);
    void (*close)(struct lk_comm *c);
};

/* Shared memory between CPU ranks. NULL group: a comm of one (reduce_add adds, gather copies). */
size_t lk_comm_shm_bytes(int n, size_t floats);
int lk_comm_shm_open(struct lk_comm **out, struct lk_group *g, struct lk_err *e);

struct lk_bridge;
/* Sums on devices over a bridge, host collectives over shared memory. Collective, after all ranks have joined; the comm owns the bridge from the call on, also when it fails.
 * A thread watches the peers' processes and ends the device's waits when one is gone. */
int lk_comm_bridge_open(struct lk_comm **out, struct lk_group *g, struct lk_bridge *l, struct lk_err *e);

#endif
