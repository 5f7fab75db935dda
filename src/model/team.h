/* A team: the same model on n ranks, led by rank 0. After lk_team_open the leader's calls of model.h and state.h happen on all ranks:
 * each is published as a plan (tp/plan.h), carried out everywhere and agreed on before it returns, so a caller on rank 0 sees one
 * model and one state. A follower hands its thread to lk_team_follow.
 *
 * State bytes (lk_state_page_get and friends) are those of all ranks, one after the other: a snapshot is whole and may be kept by the leader alone.
 * Which page or slot belongs to whom only the leader knows; followers keep no counts. */
#ifndef LK_MODEL_TEAM_H
#define LK_MODEL_TEAM_H

#include "model/model.h"
#include "model/state.h"
#include "tp/comm.h"
#include "tp/plan.h"

struct lk_team;

/* Payload a plan needs for a model opened so. */
size_t lk_team_plan_bytes(const struct lk_model_opts *o);
/* Every rank, after model and state are open; m's comm must be the group's. The team owns nothing but its scratch. */
int lk_team_open(struct lk_team **out, struct lk_model *m, struct lk_state *s, struct lk_plan *p, struct lk_comm *c, struct lk_err *e);
void lk_team_close(struct lk_team *t); /* NULL is fine; before model and state */
/* Leader: tells the followers to end. */
int lk_team_end(struct lk_team *t, struct lk_err *e);
/* Follower: carries out plans until the leader ends the team (0) or the group stops (LK_EDEVICE). */
int lk_team_follow(struct lk_team *t, struct lk_err *e);

#endif
