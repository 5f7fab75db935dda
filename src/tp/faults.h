/* Faults for tests: what a rank does wrong, when told to on the command line (--fault). In the program itself, so that the kill matrix runs
 * against the very processes a user runs.
 *
 *     KIND:STEP[@RANK]   token, position, skip (the record of that plan), kill, stop (the process, when it finishes that plan);
 *                        zero, flip, stale, late (that all-reduce, counted from the election)
 *     WAY:KIND[@RANK]    zero, flip, stale, late at every step of a transport from the start: the election must refuse it
 * Without @RANK it is the last rank's. */
#ifndef LK_TP_FAULTS_H
#define LK_TP_FAULTS_H

#include "tp/comm.h"
#include "tp/plan.h"

enum lk_fault_when { LK_FAULT_AT_START, LK_FAULT_AFTER_ELECTION };

/* Plants what text says for this rank and this time; NULL text: nothing. LK_EUSAGE when it says nothing that is known. */
int lk_fault_plant(const char *text, enum lk_fault_when when, struct lk_comm *c, struct lk_plan *p, struct lk_err *e);

#endif
