/* What the front process and the engine process say to each other, over one stream socket.
 *
 * A message is u32 payload bytes, u32 kind, payload; numbers are little-endian, strings and arrays carry their count in
 * front. Both ends check every count against the bytes that are there, so that a broken peer costs an error and never
 * memory. A grammar cannot cross a process as function pointers: its text crosses, and constraint.c builds it over there.
 * Owns the encoding only; who sends what when is worker.c's and serve/link.c's. */
#ifndef LK_RUNTIME_WIRE_H
#define LK_RUNTIME_WIRE_H

#include "base/buf.h"
#include "base/mem.h"
#include "runtime/engine.h"

#define LK_WIRE_HEAD 8
#define LK_WIRE_MAX (256u << 20) /* a whole million-token prompt is 4 MB; past this the peer is broken */

enum lk_wire_kind {
    LK_WIRE_SUBMIT = 1, /* front -> engine: struct lk_wire_submit */
    LK_WIRE_CANCEL,     /* u64 id */
    LK_WIRE_READY,      /* engine -> front: struct lk_wire_ready */
    LK_WIRE_FAILED,     /* i32 code, text: the engine could not be opened */
    LK_WIRE_BEAT,       /* struct lk_wire_beat: alive, four times a second, also while loading */
    LK_WIRE_EVENT,      /* struct lk_event */
};

/* What the answer must look like; built into a lk_grammar by constraint.c. Zeroed: nothing. */
struct lk_wire_rule {
    int thinking_open;       /* the prompt ends inside <think> */
    int budget;              /* thinking tokens before the close is forced; < 0: none */
    const char *budget_text; /* said before </think> when the budget ends; NULL: nothing */
    const char *schema;      /* JSON schema the answer must match; "": any object; NULL: none */
    const char *tools;       /* tools (JSON array), one of which the answer must call; NULL: none */
    const char *tool;        /* its name; NULL: any of them */
};

struct lk_wire_submit {
    uint64_t id; /* the front's */
    struct lk_request r; /* r.grammar is not sent */
    struct lk_wire_rule rule;
};

struct lk_wire_ready {
    int ctx, vocab;
    const char *describe;
};

struct lk_wire_beat {
    int loading;       /* 1: the model is still being opened */
    uint64_t progress; /* grows while the engine gets anything done */
    struct lk_engine_stats s;
};

/* Appending a message. Each returns 0 or LK_ENOMEM (the buffer's own rule: check once). */
int lk_wire_put_submit(struct lk_buf *b, const struct lk_wire_submit *s);
int lk_wire_put_cancel(struct lk_buf *b, uint64_t id);
int lk_wire_put_ready(struct lk_buf *b, const struct lk_wire_ready *r);
int lk_wire_put_failed(struct lk_buf *b, int code, const char *text);
int lk_wire_put_beat(struct lk_buf *b, const struct lk_wire_beat *s);
int lk_wire_put_event(struct lk_buf *b, const struct lk_event *ev);

/* The head of a message: 0, or LK_EINPUT when length or kind cannot be. */
int lk_wire_head(const void *head, uint32_t *bytes, enum lk_wire_kind *kind);
/* Reading a payload. Strings and arrays are copied to the arena. LK_EINPUT: malformed; LK_ENOMEM. */
int lk_wire_get_submit(struct lk_arena *a, const void *p, size_t n, struct lk_wire_submit *s);
int lk_wire_get_id(const void *p, size_t n, uint64_t *id);
int lk_wire_get_ready(struct lk_arena *a, const void *p, size_t n, struct lk_wire_ready *r);
int lk_wire_get_failed(struct lk_arena *a, const void *p, size_t n, int *code, const char **text);
int lk_wire_get_beat(const void *p, size_t n, struct lk_wire_beat *s);
int lk_wire_get_event(struct lk_arena *a, const void *p, size_t n, struct lk_event *ev);

#endif
