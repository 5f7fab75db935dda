/* Chat templates of Qwen3.5, 3.6 and 3.8: messages -> prompt. The dialect is recognised from the
 * content of the file's chat_template; the rendering is native C, byte for byte what jinja2 gives,
 * error texts included.
 *
 * A rendered prompt is a list of segments: control segments (template text; added tokens become
 * ids) and text segments (from messages; encoded with LK_SPECIALS_NONE), so text of a message can
 * never become a control token.
 *
 * Input is jansson values; text/pyjson.h parses them without losing large numbers. lk_chat_render
 * is the template, faults included: tool-call arguments given as a JSON string raise. Callers that
 * take messages from clients (run, serve) call lk_chat_arguments first, which parses them;
 * `tokenize` does not. */
#ifndef LK_TEXT_CHAT_H
#define LK_TEXT_CHAT_H

#include "base/buf.h"
#include "base/err.h"
#include "text/tokenizer.h"

#include <jansson.h>

enum lk_dialect { LK_DIALECT_NONE = 0, LK_QWEN3_5, LK_QWEN3_6, LK_QWEN3_8 };
const char *lk_dialect_name(enum lk_dialect d); /* "qwen3.5", ...; "unknown" */
/* From the template's text; LK_DIALECT_NONE when it is none of the three. */
enum lk_dialect lk_dialect_find(const char *template_text, size_t len);

enum lk_think { LK_THINK_DEFAULT = 0, LK_THINK_OFF, LK_THINK_LOW, LK_THINK_MEDIUM, LK_THINK_XHIGH };

struct lk_chat_opts { /* what chat_template_kwargs says; -1 / 0 = not given */
    int add_generation_prompt, enable_thinking, preserve_thinking,
        add_vision_id; /* -1 undefined, 0 false, 1 true, 2 null */
    int effort_given;
    int system_anywhere; /* 1: a system message after the first is a system turn where it stands;
                            the templates refuse it */
    char reasoning_effort[64]; /* as Python's str() prints it */
};
void lk_chat_opts_init(struct lk_chat_opts *o);
/* Reads chat_template_kwargs; unknown keys are ignored as jinja2 does. */
int lk_chat_opts_read(struct lk_chat_opts *o, const json_t *kwargs, struct lk_err *e);
/* XHIGH and the like turn thinking on; DEFAULT changes nothing. */
void lk_chat_opts_think(struct lk_chat_opts *o, enum lk_think think);

struct lk_prompt {
    struct lk_buf text; /* the whole rendered prompt */
    struct lk_seg {
        size_t begin, end;
        int is_text;
    } * segs;
    size_t n_segs, cap_segs;
    int thinking_open; /* the prompt ends inside <think> */
};
void lk_prompt_free(struct lk_prompt *p);
/* A tool call with a string "raw" renders as those bytes: a replay of what was sampled, which may
 * differ from the template's own spelling and must meet the same prefix. LK_EREQUEST with the
 * template's own text (e.g. "No messages provided.") when it raises. */
int lk_chat_render(enum lk_dialect d, const json_t *messages, const json_t *tools,
                   const struct lk_chat_opts *o, struct lk_prompt *out, struct lk_err *e);
/* Arguments of tool calls that are a JSON string become the object it holds ("" the empty one).
 * LK_EREQUEST names the message. */
int lk_chat_arguments(json_t *messages, struct lk_err *e);
/* Ids as the reference gives them for the whole text, but added tokens are found in control
 * segments only. */
int lk_prompt_encode(const struct lk_prompt *p, const struct lk_tokenizer *t, struct lk_ids *out,
                     struct lk_err *e);

#endif
