/* A group: the n ranks that act as one device, and the shared memory between them.
 *
 * The segment is an anonymous memory file (memfd) that the creator hands to the ranks it starts: it has no name, so a crash leaves
 * nothing behind and a second instance on the machine cannot be disturbed; a nonce tells a stranger's file from ours. Its
 * pages are ordinary shared memory, so a GPU driver can register them as pinned host memory.
 *
 * Waiting: a rank spins briefly, then sleeps on a futex in slices of 20 ms; between slices it looks at three things: has a rank
 * stopped the group, is a peer's process gone (pidfd), has the wait lasted longer than the group's patience. Each of the three ends the wait
 * with LK_EDEVICE. A group that was stopped never works again: its ranks exit with 70 and a supervisor starts anew.
 *
 * Memory order: every word others wait for is written with release after the data it announces and read with acquire
 * before that data is read. */
#ifndef LK_TP_GROUP_H
#define LK_TP_GROUP_H

#include "base/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define LK_MAX_RANKS 8

struct lk_group;

struct lk_group_opts {
    int n;               /* ranks, 1..LK_MAX_RANKS */
    size_t plan_bytes;   /* the plan area: lk_plan_bytes (plan.h) */
    size_t reduce_bytes; /* collectives in host memory: lk_comm_shm_bytes (comm.h) */
    size_t bridge_bytes;   /* what a device bridge shares: lk_bridge_shared_bytes (dev/bridge.h); 0 without */
    double patience_s;   /* longest silence of a peer while something is awaited */
};

/* Creates the segment and joins it as rank 0. */
int lk_group_create(struct lk_group **out, const struct lk_group_opts *o, struct lk_err *e);
/* Joins as `rank` through an inherited descriptor (it is closed). Refuses a segment of another size, version or nonce. */
int lk_group_join(struct lk_group **out, int fd, uint64_t nonce, int rank, struct lk_err *e);
/* Leaves. A rank that leaves while others wait is a stopped group for them. */
void lk_group_leave(struct lk_group *g);

int lk_group_n(const struct lk_group *g);
int lk_group_rank(const struct lk_group *g);
int lk_group_fd(const struct lk_group *g); /* to hand to a child (close-on-exec) */
uint64_t lk_group_nonce(const struct lk_group *g);
/* Waits until all n ranks have joined; times out after `seconds`. */
int lk_group_ready(struct lk_group *g, double seconds, struct lk_err *e);

/* Stops the group: the first reason wins and is what every rank's error says. Safe from a signal-free error path of any rank. */
void lk_group_stop(struct lk_group *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int lk_group_stopped(const struct lk_group *g);
/* For a rank that has waited for nobody for idle_s seconds: are all peers there, and were they seen waiting within the group's patience?
 * LK_EDEVICE stops the group. Every wait that sleeps leaves a sign of life, fifty a second. */
int lk_group_alive(struct lk_group *g, double idle_s, struct lk_err *e);
double lk_group_patience(const struct lk_group *g);
/* A new pidfd of rank r's process, the caller's to close; -1 when it is gone. */
int lk_group_pidfd(struct lk_group *g, int r);
int lk_group_left(struct lk_group *g, int r); /* it has left in order */
/* LK_EDEVICE with the reason of the stop. */
int lk_group_error(const struct lk_group *g, struct lk_err *e);

/* One word that peers wait for; counts steps modulo 2^32. On a cache line of its own. */
struct lk_word {
    _Alignas(128) atomic_uint v;
    atomic_uint sleepers;
};
void lk_word_set(struct lk_word *w, uint32_t v); /* release; wakes sleepers */
uint32_t lk_word_get(struct lk_word *w);         /* acquire */
/* Waits until (int32_t)(*w - v) >= 0. patient: no time limit (an idle follower waits for work). `what` names the wait in the
 * error: "rank 1 waited 180 s for rank 0: step 17 (decode)". */
int lk_word_wait(struct lk_group *g, struct lk_word *w, uint32_t v, int patient, int peer, const char *what, struct lk_err *e);

/* Where the parts of the segment begin (plan.c, reduce_shm.c, runtime/ranks.c). */
void *lk_group_plan_area(struct lk_group *g, size_t *bytes);
void *lk_group_reduce_area(struct lk_group *g, size_t *bytes);
void *lk_group_bridge_area(struct lk_group *g, size_t *bytes); /* page-aligned */

#endif
