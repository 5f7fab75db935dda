/* The device end of an all-reduce between ranks: what tp needs of a backend whose sums are made on the device, in stream order, so that
 * they can be captured in a graph. Several transports with one meaning; tp proves each, times each and chooses (tp/elect.h).
 *
 * Protocol and memory ordering: docs/tp.md. A wait on the device ends after the bridge's patience, when the host raises the stop word, or
 * when another wait of this rank has ended so: the sum is then not added, every later call returns at once, and settle reports it. */
#ifndef LK_DEV_BRIDGE_H
#define LK_DEV_BRIDGE_H

#include "base/err.h"
#include "dev/dev.h"

#define LK_BRIDGE_RANKS 8
#define LK_BRIDGE_CARD  256 /* bytes that tell a peer how to reach this rank */

enum lk_bridge_kind {
    LK_BRIDGE_MAILBOX, /* pinned host memory all ranks share: a flag a block, parity buffers */
    LK_BRIDGE_PUSH,    /* the same, written into the peer's device memory */
    LK_BRIDGE_LL,      /* 8-byte words {data, step} written into the peer's device memory: no flag, no fence */
    LK_BRIDGE_NCCL,    /* libnccl opened at run time: gather, then a sum in rank order */
    LK_BRIDGE_KINDS
};

enum lk_bridge_fault { LK_BRIDGE_FINE, LK_BRIDGE_ZERO, LK_BRIDGE_FLIP, LK_BRIDGE_SKIP, LK_BRIDGE_LATE };

struct lk_bridge {
    struct lk_dev *dev;
    int rank, n;
    int shared_card; /* after meet: two ranks live on one card */
    int usable[LK_BRIDGE_KINDS];
    char why[LK_BRIDGE_KINDS][200]; /* why not, when this rank cannot use it */

    /* This rank's card; collective meet with the cards of all ranks, in rank order. meet opens peers' memory and fills usable and why; it
     * fails only when the device does. nccl_open is collective too and is called only when every rank's usable[LK_BRIDGE_NCCL] is 1. */
    void (*card)(struct lk_bridge *l, void *out);
    int (*meet)(struct lk_bridge *l, const void *cards, struct lk_err *e);
    int (*nccl_open)(struct lk_bridge *l, struct lk_err *e);
    /* y += p0 + p1 + ... in rank order; asynchronous, in the device's stream order. count: a multiple of 4. */
    void (*reduce_add)(struct lk_bridge *l, enum lk_bridge_kind k, float *y, const float *partial, size_t count);
    /* Waits for the device. digest: of every sum since the last settle and of x [count] (may be NULL): equal on all ranks, or something was
     * not. LK_EDEVICE when a wait ended in vain: text names peer and step. */
    int (*settle)(struct lk_bridge *l, const float *x, size_t count, uint64_t *digest, struct lk_err *e);
    /* After a failed trial, on all ranks and with nothing in flight: as new. patience_s: of the waits from now on. */
    void (*reset)(struct lk_bridge *l, double patience_s);
    /* Tests: damage at the step-th step from now of block 0 of a transport; step 0: at every one. Nothing may be in flight. */
    void (*fault)(struct lk_bridge *l, enum lk_bridge_kind k, enum lk_bridge_fault f, uint32_t step);
    void (*stop)(struct lk_bridge *l); /* any thread: running waits end */
    /* First leave (peers' memory is unmapped), then, when all ranks have left or are gone, close (own memory is freed). */
    void (*leave)(struct lk_bridge *l);
    void (*close)(struct lk_bridge *l);
};

static inline const char *lk_bridge_name(enum lk_bridge_kind k)
{
    static const char *const names[] = {"mailbox", "push", "ll", "nccl"};
    return names[k];
}
/* Bytes of page-aligned memory shared by all ranks that lk_cuda_bridge_open needs. */
static inline size_t lk_bridge_shared_bytes(int n)
{
    return (size_t)n * (8192 + ((size_t)4 << 20)); /* COMM_FLAG_SECTION of cuda/comm_shared.h */
}
/* src/cuda/cuda_comm.c. shared: zeroed at creation, the same memory in every rank. most: floats of the longest call. */
int lk_cuda_bridge_open(struct lk_bridge **out, struct lk_dev *d, int rank, int n, void *shared, size_t most, struct lk_err *e);

#endif
