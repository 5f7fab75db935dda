/* The engine: a model, its state and its scheduler behind a queue. This is all that server, command line and bench see.
 *
 *     lk_engine_open(&e, &opts, &err);
 *     id = lk_engine_submit(e, &request, &err);           // copies the request
 *     while (lk_engine_next(e, &ev, timeout) == 1) ...    // tokens, then exactly one DONE or ERROR an id
 *     lk_engine_close(e);
 *
 * Threads: one thread inside the engine runs steps. submit, cancel and stats may be called from any thread; next from one
 * thread at a time (a wake-up descriptor lets an event loop wait: lk_engine_fd). Events own their arrays until the next call
 * of next. Nothing here blocks longer than the queue's lock, but save and load, which wait for the engine thread to come between two
 * turns, and close, which waits for the turn that runs (callers of close are the last to use the engine).
 *
 * A slow reader loses nothing: tokens of several rounds come as one event, of several progress marks only the last comes. */
#ifndef LK_RUNTIME_ENGINE_H
#define LK_RUNTIME_ENGINE_H

#include "args/options.h"
#include "base/err.h"
#include "runtime/sampling.h"

#include <stddef.h>
#include <stdint.h>

struct lk_engine;
struct lk_artifact;
struct lk_tokenizer;

/* A grammar hook: called on the engine thread. mask fills bits (1 = allowed) for the next token given accepted tokens so far;
 * accept advances; rewind takes back the last n accepted tokens (a rejected draft). */
struct lk_grammar {
    void *self;
    int (*mask)(void *self, uint32_t *bits, int vocab); /* 0: no constraint now, 1: bits filled */
    int (*accept)(void *self, int32_t id);              /* -1: not allowed */
    void (*rewind)(void *self, int n);
    void (*free)(void *self);
};

struct lk_request {
    const int32_t *ids;      /* prompt, at least one token */
    size_t n_ids;
    int max_tokens;          /* <= 0: to the end of the context */
    struct lk_sampling sampling;
    const int32_t *stop_ids; /* ends the answer; the id itself is reported with the last TOKENS event */
    int n_stop_ids;
    const char *const *stops; /* stop strings, decoded text */
    int n_stops;
    int logprobs;            /* 0: none, else top-n 1..20 with each token */
    int draft;               /* -2: the engine's, -1 auto, 0..7 */
    int priority;            /* higher first */
    double deadline;         /* seconds from submit; 0: none */
    struct lk_grammar grammar; /* self NULL: none; owned by the engine from submit on (freed there, also on error) */
    const char *session;     /* NULL, or a name under which the final state is kept for save */
};

enum lk_event_kind { LK_EV_START, LK_EV_PROGRESS, LK_EV_TOKENS, LK_EV_DONE, LK_EV_ERROR };
enum lk_finish { LK_FIN_NONE, LK_FIN_STOP_ID, LK_FIN_STOP_STRING, LK_FIN_LENGTH, LK_FIN_CANCEL, LK_FIN_DEADLINE, LK_FIN_ERROR };

struct lk_timings {
    int prompt_n, cached_n, predicted_n, draft_n, draft_n_accepted, rounds;
    double queue_ms, prompt_ms, predicted_ms;
};

struct lk_logprob {
    float lp;                /* of the chosen token, the target's own (before temperature) */
    int n_top;
    int32_t top_ids[20];
    float top_lp[20];
};

struct lk_event {
    enum lk_event_kind kind;
    uint64_t id;             /* request */
    int n_tokens;
    const int32_t *tokens;   /* TOKENS: those of one round, or of several when the reader was slow */
    const struct lk_logprob *logprobs; /* [n_tokens] when asked for */
    int prompt_done, prompt_total; /* PROGRESS: prefill */
    enum lk_finish finish;   /* DONE */
    int stop_index;          /* STOP_STRING: which */
    struct lk_timings t;     /* DONE, ERROR; running values in TOKENS */
    int code;                /* ERROR: enum lk_code */
    const char *text;        /* ERROR: for the client */
};

struct lk_engine_stats {
    int running, waiting, slots, pages_total, pages_free;
    uint64_t requests, tokens_prompt, tokens_cached, tokens_out, drafts, drafts_accepted, rounds;
    uint64_t prefix_bytes_ram, prefix_bytes_disk;
    int prefix_entries;
    double step_ms_last;
    int dead;                /* the device died: every later submit fails */
};

int lk_engine_open(struct lk_engine **out, const struct lk_opts_engine *o, struct lk_err *e);
void lk_engine_close(struct lk_engine *e);
/* 0 and an error in e when refused (too long for the context: LK_EREQUEST; queue full: LK_EBUSY). */
uint64_t lk_engine_submit(struct lk_engine *e, const struct lk_request *r, struct lk_err *err);
void lk_engine_cancel(struct lk_engine *e, uint64_t id); /* within one step or chunk; DONE with LK_FIN_CANCEL follows */
/* 1: an event; 0: none within timeout_s (0: do not wait, < 0: for ever); negative: the engine is dead. */
int lk_engine_next(struct lk_engine *e, struct lk_event *ev, double timeout_s);
int lk_engine_fd(struct lk_engine *e); /* readable while events wait */
void lk_engine_stats(struct lk_engine *e, struct lk_engine_stats *s);

/* What the engine was opened with, for messages and the server. */
int lk_engine_ctx(const struct lk_engine *e);
int lk_engine_vocab(const struct lk_engine *e);
/* The opened file and its tokenizer (NULL when it has none): read-only, alive until close. */
const struct lk_artifact *lk_engine_artifact(const struct lk_engine *e);
const struct lk_tokenizer *lk_engine_tokenizer(const struct lk_engine *e);
const char *lk_engine_describe(const struct lk_engine *e); /* one line: model, devices, kv, pages, bytes a token */

/* Whole conversations on disk: the state behind request `session`. A truncated, foreign or other-model file is refused and
 * changes nothing. load puts the state under `session`; ids receives its tokens, note the caller's own text from save (lk_free both; any
 * of the three may be NULL). */
int lk_engine_save(struct lk_engine *e, const char *session, const char *path, const char *note, struct lk_err *err);
int lk_engine_load(struct lk_engine *e, const char *session, const char *path, int32_t **ids, size_t *n_ids, char **note,
                   struct lk_err *err);
/* Forgets all stored prefixes but named sessions (bench; waits like save). */
int lk_engine_forget(struct lk_engine *e, struct lk_err *err);

#endif
