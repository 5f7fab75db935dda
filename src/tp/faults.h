/* Faults for tests: what a rank does wrong, when told to on the command line (--fault). In the program itself, so that the kill matrix runs
 * against the very processes a user runs.
 *
 *     KIND:STEP[@RANK][,FILE]  at plan STEP (1: the ranks open): token, position, skip (that plan's record), kill, stop (the process, before
 *                              its record); zero, flip, stale, late (the first all-reduce from that plan on)
 *     WAY:KIND[@RANK][,FILE]   zero, flip, stale, late at every step of a transport from the start: the election must refuse it
 * Without @RANK it is the last rank's. With FILE it happens only if FILE is not there, and makes it: once in several starts. */
#ifndef LK_TP_FAULTS_H
#define LK_TP_FAULTS_H

#include "tp/comm.h"
#include "tp/plan.h"

enum lk_fault_when { LK_FAULT_AT_START, LK_FAULT_AFTER_ELECTION };

/* Plants what text says for this rank and this time; NULL text: nothing. LK_EUSAGE when it says nothing that is known. */
int lk_fault_plant(const char *text, enum lk_fault_when when, struct lk_comm *c, struct lk_plan *p, struct lk_err *e);

#endif
