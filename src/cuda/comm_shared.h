/* What the host and the kernels of an all-reduce share: launch parameters, device state, and where things lie in an inbox.
 *
 * A rank's section of a flag transport (mailbox, push): COMM_CTAS flags, each on a line of its own, then for each block two parities of
 * COMM_SLICE floats. Of the LL transport: for each block two parities of COMM_SLICE words of 8 bytes. An inbox holds a section for each rank. */
#ifndef LK_CUDA_COMM_SHARED_H
#define LK_CUDA_COMM_SHARED_H

#include <stdint.h>
#ifndef __cplusplus
#include <stddef.h>
#endif

#define COMM_RANKS   8
#define COMM_CTAS    64   /* blocks at most: all of them run at once on every card, so waiting for a peer's block cannot deadlock */
#define COMM_THREADS 256
#define COMM_LINE    128  /* bytes from flag to flag */
#define COMM_SLICE   8192 /* floats of a step of a block, at most */
#define COMM_LOOK    1024 /* polls between two looks at stop word and clock */
#define COMM_LATE_NS 60000000ull /* fault "late": 60 ms, what a broken peer path was seen to take for 4 KB */

#define COMM_FLAG_BYTES    ((size_t)COMM_CTAS * COMM_LINE)
#define COMM_FLAG_SECTION  (COMM_FLAG_BYTES + (size_t)COMM_CTAS * 2 * COMM_SLICE * 4)
#define COMM_LL_SECTION    ((size_t)COMM_CTAS * 2 * COMM_SLICE * 8)

enum { COMM_LATE = 1, COMM_STOPPED = 2 };
enum { COMM_FAULT_ZERO = 1, COMM_FAULT_FLIP, COMM_FAULT_SKIP, COMM_FAULT_LATE }; /* enum lk_bridge_fault */

struct comm_cta { /* a block of a transport, device memory */
    uint32_t step, fault, fault_at, pad;
};

struct comm_state { /* a rank, device memory */
    unsigned long long digest;
    uint32_t bad, bad_peer, bad_step, pad;
};

struct comm_args {
    float *y;
    const float *partial;
    size_t count;
    uint32_t slice; /* floats of a step, a multiple of 4 */
    int32_t rank, n, n_dst, early; /* early: let the next kernel start while this one waits */
    struct comm_cta *cta;
    struct comm_state *state;
    const uint32_t *stop; /* pinned host word */
    uint64_t limit_ns;
    char *dst[COMM_RANKS];       /* this rank's section in each destination */
    const char *src[COMM_RANKS]; /* rank r's section where this rank reads it; own: unused */
};

struct comm_scratch { /* shared memory of a block */
    uint32_t step, bad;
};

#endif
