/* What every endpoint of the front shares: the model's text parts, the engine link, the generations, the limits; and how a
 * request for an answer becomes a prompt. Private to src/serve. */
#ifndef LK_SERVE_FRONT_H
#define LK_SERVE_FRONT_H

#include "serve/gen.h"
#include "serve/http.h"
#include "serve/link.h"
#include "serve/serve.h"
#include "serve/lru.h"
#include "serve/turns.h"

struct lk_count { /* finished exchanges of one kind */
    const char *route;
    int status;
    uint64_t n;
};

struct lk_front {
    const struct lk_serve *s;
    struct event_base *base;
    struct lk_http *http;
    struct lk_link *link;
    struct lk_gens *gens;
    struct lk_lru *calls, *turns, *responses; /* what was sampled, by call and by turn (replay.h); stored responses */
    int draining;
    double started;
    char instance[20]; /* random, new with each start: ids are unique over restarts */
    uint64_t next_id;
    struct lk_count counts[256]; /* routes x statuses that occur: some 20 x 8 */
    int n_counts;
};

void lk_front_count(struct lk_front *f, const char *route, int status);
/* Routes one exchange to its endpoint (routes.c). */
void lk_front_handle(struct lk_front *f, struct lk_hx *x);

/* "chatcmpl-" and such, with a number no other answer has. */
void lk_front_id(struct lk_front *f, const char *prefix, char out[64]);
/* 503 while the engine cannot take work (loading, down, draining). */
int lk_front_ready(const struct lk_front *f, struct lk_fault *fault);
/* Checks the body's "model": absent or the server's own name (or "default"), else 404. */
int lk_front_model(const struct lk_front *f, const json_t *body, struct lk_fault *fault);

/* A rendered prompt. */
struct lk_ask {
    struct lk_ids ids;
    int thinking_open;
};
void lk_ask_free(struct lk_ask *a);
/* messages as lk_turns_* made them; prefill: a JSON string or NULL. Refuses a prompt that fills the context. */
int lk_front_render(const struct lk_front *f, json_t *messages, const json_t *tools, struct lk_chat_opts *o,
                    const json_t *prefill, struct lk_ask *out, struct lk_fault *fault);
/* A prompt without room for one token is a 400 context_length_exceeded about the field `where`. */
int lk_front_fit(const struct lk_front *f, const struct lk_ids *ids, const char *where, struct lk_fault *fault);

/* tool_choice and response_format -> the rule of the answer; its strings live in the arena. */
enum lk_choice { LK_CHOICE_AUTO, LK_CHOICE_NONE, LK_CHOICE_REQUIRED, LK_CHOICE_NAMED };
int lk_rule_tools(struct lk_wire_rule *r, struct lk_arena *a, enum lk_choice choice, const char *name, const json_t *tools,
                  struct lk_fault *fault);

/* The schema (NULL: any JSON object) as the answer's rule; an unsupported keyword is a 400 that names it. */
int lk_rule_schema(struct lk_wire_rule *r, struct lk_arena *a, const json_t *schema, const char *where, struct lk_fault *fault);

json_t *lk_usage_openai(const struct lk_gen_totals *t, int n, int per); /* per: choices a prompt */
json_t *lk_timings_json(const struct lk_gen_totals *t);

/* Endpoints. */
void lk_api_chat(struct lk_front *f, struct lk_hx *x);
void lk_api_completions(struct lk_front *f, struct lk_hx *x);
void lk_api_responses(struct lk_front *f, struct lk_hx *x);
void lk_api_responses_get(struct lk_front *f, struct lk_hx *x, const char *id);
void lk_api_responses_delete(struct lk_front *f, struct lk_hx *x, const char *id);
void lk_api_responses_items(struct lk_front *f, struct lk_hx *x, const char *id);
void lk_api_responses_tokens(struct lk_front *f, struct lk_hx *x);
void lk_api_messages(struct lk_front *f, struct lk_hx *x);
void lk_api_count_tokens(struct lk_front *f, struct lk_hx *x);
void lk_api_models(struct lk_front *f, struct lk_hx *x, const char *id); /* NULL: the list */
void lk_api_tokenize(struct lk_front *f, struct lk_hx *x);
void lk_api_detokenize(struct lk_front *f, struct lk_hx *x);
void lk_api_health(struct lk_front *f, struct lk_hx *x);
void lk_api_metrics(struct lk_front *f, struct lk_hx *x);
void lk_api_slots(struct lk_front *f, struct lk_hx *x);
void lk_api_version(struct lk_front *f, struct lk_hx *x);

#endif
