/* The leader's plan and every rank's record: how ranks stay in step.
 *
 * Rank 0 decides; the others follow. For each operation on model or state that must happen on all ranks the leader publishes one plan
 * (kind + payload); each rank carries it out and publishes a record of what it computed; each rank compares all records before it goes on.
 * Any difference stops the group with both values in the reason. So a token leaves rank 0 only after all ranks have agreed on its step.
 *
 * Protocol of step s (one plan slot, two parities of records; docs/tp.md has the byte layout and the proof sketch):
 *   leader: writes kind, bytes, checksum, payload; seq = s (release)
 *   follower: waits seq == s (acquire); checks the checksum
 *   each: carries it out; writes record[rank][s & 1]; done[rank] = s (release); for every peer waits done >= s (acquire), compares
 * The slot may be written again for s + 1 because the leader has then seen done >= s of every rank. */
#ifndef LK_TP_PLAN_H
#define LK_TP_PLAN_H

#include "tp/group.h"

#include <stdio.h>

struct lk_plan;

struct lk_record {
    uint32_t seq, kind, count; /* count: rows or items worked on */
    uint32_t pad;
    uint64_t hash_in;  /* tokens and positions as this rank saw them */
    uint64_t hash_out; /* what must be equal on all ranks afterwards (hidden states, chosen ids) */
};

size_t lk_plan_bytes(size_t payload); /* of the area for payloads up to this */
int lk_plan_open(struct lk_plan **out, struct lk_group *g, struct lk_err *e);
void lk_plan_close(struct lk_plan *p);

/* Leader: the payload buffer (cap bytes), to be filled before publish. */
void *lk_plan_payload(struct lk_plan *p, size_t *cap);
int lk_plan_publish(struct lk_plan *p, uint32_t kind, size_t bytes, struct lk_err *e);
/* Follower: the next plan; waits patiently (idle costs no spinning). data lives until lk_plan_done. */
int lk_plan_next(struct lk_plan *p, uint32_t *kind, const void **data, size_t *bytes, struct lk_err *e);
/* All: this rank's record of the current plan (seq and kind are filled in); waits for and compares all others. */
int lk_plan_done(struct lk_plan *p, struct lk_record *mine, struct lk_err *e);

/* One line a step into f from now on: seq, kind, count and both hashes, as this rank has them. f stays the caller's. */
void lk_plan_log(struct lk_plan *p, FILE *f);

/* Faults for tests (tp/faults.h): at step seq, once: a damaged or missing record; or the process kills or stops itself before its record. */
enum lk_plan_fault { LK_PLAN_FAULT_NONE, LK_PLAN_FAULT_TOKEN, LK_PLAN_FAULT_POSITION, LK_PLAN_FAULT_SKIP, LK_PLAN_FAULT_KILL, LK_PLAN_FAULT_STOP };
void lk_plan_fault(struct lk_plan *p, enum lk_plan_fault kind, uint32_t seq);
/* fn(c, kind) when this rank begins step seq. */
struct lk_comm;
void lk_plan_arm(struct lk_plan *p, uint32_t seq, void (*fn)(struct lk_comm *c, int kind), struct lk_comm *c, int kind);

#endif
