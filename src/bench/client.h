/* A streaming chat client of any OpenAI-compatible server: one request, timed by this side's clock, with what the server says of itself beside
 * it. Runs many at once on one event loop. http:// only: a benchmark through TLS or a proxy measures them too. */
#ifndef LK_BENCH_CLIENT_H
#define LK_BENCH_CLIENT_H

#include "base/err.h"

#include <stddef.h>

/* How a request ended. */
enum lk_call_end { LK_CALL_OK, LK_CALL_HTTP, LK_CALL_CLOSED, LK_CALL_STALLED, LK_CALL_REFUSED, LK_CALL_BUSY, LK_CALL_DROPPED };

struct lk_call {
    /* in */
    char *body;         /* JSON of /v1/chat/completions with "stream": true; owned, lk_free */
    double start_at;    /* seconds after the run began */
    double drop_after;  /* leave after so many chunks; 0: never */
    /* out: this side's clock, seconds since the request was sent */
    enum lk_call_end end;
    int status;         /* HTTP */
    double ttft, total, last; /* first token, end of stream, last token */
    int chunks;         /* with text in them */
    double waits[4];    /* the longest times between two of them, longest first */
    char finish[24], why[160];
    /* out: what the server says; -1 where it does not */
    double prompt_n, cached_n, prompt_ms, predicted_n, predicted_ms, per_second, draft_n, draft_accepted;
};

/* url: "http://host:port" with an optional path in front of /v1. key may be NULL. stall_s: silence that ends a request.
 * progress is called after each end. Returns LK_EINPUT for a url that cannot be used. */
int lk_calls_run(const char *url, const char *key, struct lk_call *calls, int n, double stall_s, void (*progress)(void *arg, int done),
                 void *arg, struct lk_err *e);
/* LK_EUSAGE when url is not http://host[:port][/path]. */
int lk_url_check(const char *url, struct lk_err *e);
void lk_call_free(struct lk_call *c);
const char *lk_call_end_name(enum lk_call_end e);

#endif
