/* Incremental parser of what the model says: reasoning, content and tool calls, from decoded text
 * pushed in pieces. Events joined, and the totals, do not depend on where the text was cut.
 *
 * Grammar: [<think>] reasoning </think> content, and inside content
 *   <tool_call>\n<function=NAME>\n<parameter=K>\nV\n</parameter>...</function>\n</tool_call>
 * Newlines around reasoning, behind </think> and in front of a call belong to the template and are
 * dropped. Text that may still become a tag is held back.
 *
 * Values are typed by the tool's schema (reply_value.h). A value ends at the first </parameter>
 * that is followed by what may follow one, so code that contains the tag survives. Broken calls are
 * kept as far as they can be: a missing </parameter>,
 * </function> or </tool_call> is put in, a missing <tool_call> is forgiven for a tool that exists,
 * a call that the end of the text cuts is closed. What never reaches <function=NAME> is no call and
 * stays content. */
#ifndef LK_TEXT_REPLY_H
#define LK_TEXT_REPLY_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

enum lk_reply_kind {
    LK_REPLY_REASONING,
    LK_REPLY_CONTENT,
    LK_REPLY_CALL_BEGIN,
    LK_REPLY_CALL_ARGS,
    LK_REPLY_CALL_END
};
struct lk_reply_event {
    enum lk_reply_kind kind;
    int call;         /* index of the tool call, from 0 */
    const char *text; /* reasoning/content piece; CALL_BEGIN: name; CALL_ARGS: next piece of the
                         arguments' JSON text */
    size_t len;       /* valid during the callback only */
};
typedef void (*lk_reply_fn)(void *arg, const struct lk_reply_event *ev);

struct lk_reply;
/* thinking_open: the prompt ended inside <think>. tools: OpenAI tools array or NULL (calls are then
 * parsed untyped); parse_tools 0 leaves tool-call text in content. The parser keeps its own
 * reference to tools. */
struct lk_reply *lk_reply_new(int thinking_open, const json_t *tools, int parse_tools,
                              lk_reply_fn fn, void *arg);
int lk_reply_push(struct lk_reply *r, const char *text, size_t len);
int lk_reply_finish(struct lk_reply *r); /* flushes what is held; closes an open call */
/* After finish: totals. calls: array of {name, arguments (object), text (the arguments' JSON as
 * streamed)}; borrowed. */
const struct lk_buf *lk_reply_reasoning(const struct lk_reply *r);
const struct lk_buf *lk_reply_content(const struct lk_reply *r);
const json_t *lk_reply_calls(const struct lk_reply *r);
int lk_reply_in_reasoning(const struct lk_reply *r);
void lk_reply_free(struct lk_reply *r);

/* Stop strings over streamed text: text that may be the beginning of a stop string is held back. */
struct lk_stops;
struct lk_stops *lk_stops_new(const char *const *stops, size_t n);
/* Appends what is safe to out. Returns 1 when a stop string was met (out ends before it; *which its
 * index), else 0. */
int lk_stops_push(struct lk_stops *s, const char *text, size_t len, struct lk_buf *out, int *which);
int lk_stops_flush(struct lk_stops *s, struct lk_buf *out);
void lk_stops_free(struct lk_stops *s);

#endif
