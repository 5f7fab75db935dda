/* A conversation with an engine in this process: messages in, one answer a turn out, streamed to the caller as it is understood
 * (reasoning, content, tool calls). Keeps the exact ids of what was said, so that the next turn continues from them where the
 * template still agrees, instead of tokenizing its own answer again. */
#ifndef LK_MAIN_TALK_H
#define LK_MAIN_TALK_H

#include "args/options.h"
#include "runtime/engine.h"
#include "text/chat.h"
#include "text/reply.h"

#include <jansson.h>
#include <signal.h>

/* Set by the caller's SIGINT handler: the answer that runs is cancelled, nothing else. */
extern volatile sig_atomic_t lk_talk_stop;

struct lk_talk {
    struct lk_engine *engine;
    enum lk_dialect dialect;
    struct lk_sampling sampling;
    const char *const *stops;
    int n_stops, max_tokens;
    const char *session; /* engine's name of the state, or NULL */
    struct lk_chat_opts chat;
    json_t *messages, *tools; /* owned; tools may be NULL */
    struct lk_ids ids;        /* prompt and answer of the last turn */
    struct lk_buf text;       /* their text */
    lk_reply_fn on_reply;     /* may be NULL */
    void *arg;
    int progress;             /* draw a bar while a long prompt is read */

    /* the last answer */
    struct lk_ids out;
    struct lk_buf reasoning, content;
    json_t *calls;
    enum lk_finish finish;
    struct lk_timings t;
};
/* Options into a talk: sampling from flags over generation_config.json, dialect from the template. messages is an empty array. */
int lk_talk_open(struct lk_talk *k, struct lk_engine *e, const struct lk_opts_sampling *s, struct lk_err *err);
void lk_talk_close(struct lk_talk *k);
/* An array of messages, or an object {messages, tools, chat_template_kwargs}. */
int lk_talk_read(struct lk_talk *k, const json_t *j, struct lk_err *err);
int lk_talk_add(struct lk_talk *k, const char *role, const char *content, struct lk_err *err);
/* Answers the messages; the answer is appended to them. */
int lk_talk_turn(struct lk_talk *k, struct lk_err *err);
/* Continues a finished prompt, control tokens included; content gets the plain text. */
int lk_talk_raw(struct lk_talk *k, const char *prompt, struct lk_err *err);
/* The conversation as text for lk_engine_save and back; free with lk_free. */
char *lk_talk_note(const struct lk_talk *k);
int lk_talk_from_note(struct lk_talk *k, const char *note, struct lk_err *err);
const char *lk_finish_name(enum lk_finish f, int calls); /* stop, length, tool_calls, cancelled, deadline, error */

#endif
