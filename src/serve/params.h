/* Sampling and limits as the APIs name them, read and checked once for all of them. */
#ifndef LK_SERVE_PARAMS_H
#define LK_SERVE_PARAMS_H

#include "args/options.h"
#include "runtime/sampling.h"
#include "serve/fault.h"
#include "text/chat.h"

#define LK_MAX_N 16
#define LK_MAX_REQUEST_STOPS 16
#define LK_MAX_BIAS 1024

struct lk_params {
    struct lk_sampling s;      /* bias points to bias[] */
    struct lk_bias *bias;
    int max_tokens;            /* 0: not given */
    int n, logprobs;           /* logprobs: 0 none, else top count + 1 (1: chosen only) */
    int stream, include_usage;
    int echo;
    int budget;                /* thinking tokens; -1: none */
    const char *budget_text;
    const char *stops[LK_MAX_REQUEST_STOPS]; /* point into the body */
    int n_stops;
    int seed_given;
};

/* Defaults of the model and the command line; zeroes become neutral values. */
void lk_params_init(struct lk_params *p, const struct lk_opts_sampling *defaults);
void lk_params_free(struct lk_params *p);

/* Fields all APIs share: temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, seed,
 * stop (or stop_sequences), logit_bias, stream. vocab bounds logit_bias ids. */
int lk_params_read(struct lk_params *p, const json_t *body, int32_t vocab, struct lk_fault *f);
int lk_params_stops(struct lk_params *p, const json_t *body, const char *name, struct lk_fault *f);

/* Thinking: chat_template_kwargs, reasoning_effort (top level or an object's `effort`), enable_thinking. */
int lk_params_think(struct lk_chat_opts *o, const json_t *body, const char *effort, const char *effort_name,
                    struct lk_fault *f);
/* thinking_budget / thinking_budget_tokens / thinking_budget_message */
int lk_params_budget(struct lk_params *p, const json_t *body, struct lk_fault *f);

#endif
