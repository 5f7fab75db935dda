/* Scoring: one sequence from an empty state, every row handed out. For `laoka score` and the tests against the
 * reference; it goes through the same steps as an answer does. */
#ifndef LK_MODEL_SCORE_H
#define LK_MODEL_SCORE_H

#include "model/model.h"
#include "model/state.h"

struct lk_score_sink { /* each may be NULL; a negative return ends the scoring */
    void *arg;
    int (*logits)(void *arg, int row, const float *x, struct lk_err *e);            /* f32 [vocab] */
    int (*hidden)(void *arg, int layer, int row, const float *x, struct lk_err *e); /* f32 [hidden] */
    int (*mtp)(void *arg, int row, const float *x, struct lk_err *e); /* row t: hidden t with token t + 1 */
};

struct lk_score;
/* Room for sequences of up to max_tokens. chunk: rows a step, at most the model's max_rows. */
int lk_score_open(struct lk_score **out, struct lk_model *m, struct lk_state *s, int max_tokens, int chunk,
                  int max_logit_rows, struct lk_err *e);
void lk_score_close(struct lk_score *c);
/* nll: the summed negative log-likelihood of ids[1..n). */
int lk_score_run(struct lk_score *c, const int32_t *ids, int n, const struct lk_score_sink *sink, double *nll,
                 struct lk_err *e);

#endif
