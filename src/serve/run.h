/* One request for an answer, from body to last byte: what the endpoints that generate have in common. */
#ifndef LK_SERVE_RUN_H
#define LK_SERVE_RUN_H

#include "base/mem.h"
#include "serve/front.h"

struct lk_run {
    struct lk_front *f;
    struct lk_hx *x;
    json_t *body, *tools;
    struct lk_params p;
    struct lk_chat_opts chat;
    struct lk_ask ask;
    struct lk_ids prompts[LK_MAX_N]; /* several, instead of ask's one: completions only */
    int n_prompts;                   /* 0: ask's */
    struct lk_arena arena;
    struct lk_wire_rule rule;
    struct lk_gen *gen[LK_MAX_N];
    int n_done, parse_tools;
    char id[64];
    json_int_t created;
    void *own; /* the endpoint's */
    void (*free_own)(void *own);
};

/* Parses the body and reads the shared parameters. NULL with fault filled. */
struct lk_run *lk_run_new(struct lk_front *f, struct lk_hx *x, struct lk_fault *fault);
void lk_run_free(struct lk_run *r); /* ends its generations */
/* Starts p.n generations, the first p.n / n_prompts of them for the first prompt; from here the exchange ends by the last DONE, a FAILED, or the client leaving.
 * fn gets the run as arg. 0, or fault filled. */
int lk_run_start(struct lk_run *r, const char *kind, int chat, lk_gen_fn fn, struct lk_fault *fault);
/* Answers with the fault and frees the run (NULL is fine) and the exchange. */
void lk_run_fail(struct lk_run *r, struct lk_hx *x, const struct lk_fault *fault);
void lk_run_totals(const struct lk_run *r, struct lk_gen_totals *t); /* [p.n] */
/* max_tokens under the API's names; the first given wins */
int lk_run_max_tokens(struct lk_run *r, const char *const *names, int n, struct lk_fault *fault);

#endif
