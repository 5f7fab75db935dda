/* One generation: one engine request, its tokens decoded, its text parsed into reasoning, content and tool calls, stop
 * strings cut, tokens counted. Protocols listen to its events; what they say on the wire is theirs. */
#ifndef LK_SERVE_GEN_H
#define LK_SERVE_GEN_H

#include "base/buf.h"
#include "runtime/engine.h"
#include "runtime/wire.h"
#include "serve/fault.h"
#include "serve/link.h"
#include "serve/params.h"
#include "serve/lru.h"
#include "text/tokenizer.h"

#include <jansson.h>

struct lk_gen;
struct lk_gens; /* all generations of the server */

enum lk_gen_kind {
    LK_GEN_REASONING, /* text */
    LK_GEN_CONTENT,   /* text */
    LK_GEN_CALL,      /* a call begins: text = name */
    LK_GEN_ARGS,      /* text = next piece of its arguments */
    LK_GEN_CALL_END,
    LK_GEN_LOGPROBS,  /* new entries stand in logprobs from index `from` */
    LK_GEN_DONE,
    LK_GEN_FAILED,    /* fault */
};

struct lk_gen_event {
    enum lk_gen_kind kind;
    const char *text;
    size_t len;
    int call;         /* index */
    size_t from;
    const struct lk_fault *fault;
};
typedef void (*lk_gen_fn)(void *arg, struct lk_gen *g, const struct lk_gen_event *ev);

struct lk_gen_opts {
    const struct lk_ids *ids;
    const struct lk_params *p;
    int index;             /* choice */
    int draw;              /* which of its prompt's choices: the seed is p's plus this */
    int chat;              /* 1: reasoning, content and calls are told apart; 0: all is content */
    int thinking_open;
    const json_t *tools;   /* typing of arguments; NULL: none */
    int parse_tools;
    struct lk_wire_rule rule;
    double deadline_s;     /* 0: none */
    const char *kind;      /* for /slots */
    lk_gen_fn fn;
    void *arg;
};

enum lk_gen_finish { LK_GEN_STOP, LK_GEN_LENGTH, LK_GEN_TOOLS };

/* After DONE; counts also while running. */
struct lk_gen_totals {
    enum lk_gen_finish finish;
    const char *stop_sequence;   /* the one that was met, or NULL */
    int prompt, cached, completion, reasoning;
    struct lk_timings t;
    const struct lk_buf *think, *content;
    const json_t *calls;         /* [{id, name, arguments (text), at: bytes of content before it}] */
    const json_t *logprobs;      /* [{token, logprob, bytes, top_logprobs}] or NULL */
};

struct lk_gens_opts {
    struct lk_link *link;
    const struct lk_tokenizer *tok;
    const int32_t *stop_ids;
    int n_stop_ids;
    int limit;               /* running + waiting */
    struct lk_lru *calls, *turns; /* sampled calls and turns (replay.h) are remembered here */
};

struct lk_gens_stats {
    uint64_t started, finished, failed, cancelled, refused;
    uint64_t prompt, cached, completion, reasoning, drafted, accepted;
    double ttft_sum, decode_sum; /* seconds */
    uint64_t ttft_n, decode_n;   /* decode_n: tokens after the first */
    uint64_t ttft_bucket[12];    /* cumulative, bounds in lk_gen_ttft_bounds */
};
extern const double lk_gen_ttft_bounds[11];

struct lk_gens *lk_gens_new(const struct lk_gens_opts *o);
void lk_gens_free(struct lk_gens *s);
void lk_gens_event(struct lk_gens *s, const struct lk_event *ev); /* from the link */
void lk_gens_lost(struct lk_gens *s, const char *reason);         /* the engine died: all of them fail */
void lk_gens_tick(struct lk_gens *s);                             /* deadlines */
int lk_gens_count(const struct lk_gens *s);
int lk_gens_room(const struct lk_gens *s, int n, struct lk_fault *f); /* 0, or 429 */
json_t *lk_gens_list(const struct lk_gens *s);
const struct lk_gens_stats *lk_gens_totals(const struct lk_gens *s);

/* Starts one. fn is called later, never from inside. NULL with f filled: refused. */
struct lk_gen *lk_gen_start(struct lk_gens *s, const struct lk_gen_opts *o, struct lk_fault *f);
int lk_gen_index(const struct lk_gen *g);
void lk_gen_read(const struct lk_gen *g, struct lk_gen_totals *t);
/* Ends it (cancelling the engine's work when it still runs). fn is not called any more. */
void lk_gen_free(struct lk_gen *g);

#endif
