/* Messages of the APIs -> messages of the template: every role, order and shape that clients send, made into what the
 * template can render, or a 400 that names the field. The rules are in docs/serve.md. */
#ifndef LK_SERVE_TURNS_H
#define LK_SERVE_TURNS_H

#include "serve/fault.h"
#include "serve/lru.h"

/* OpenAI chat messages. NULL when f was filled. calls: remembered tool calls (may be NULL). */
json_t *lk_turns_openai(const json_t *messages, struct lk_lru *calls, struct lk_fault *f);
/* Anthropic system + messages; *prefill: text the answer must go on from (new reference to a string) or NULL. */
json_t *lk_turns_anthropic(const json_t *body, struct lk_lru *calls, json_t **prefill, struct lk_fault *f);
/* Responses items (instructions, then input, a string or items). */
json_t *lk_turns_responses(const char *instructions, const json_t *items, struct lk_lru *calls, struct lk_fault *f);

/* Tools of the three APIs -> OpenAI function tools; NULL with f empty: none. */
json_t *lk_tools_openai(const json_t *tools, struct lk_fault *f);
json_t *lk_tools_anthropic(const json_t *tools, struct lk_fault *f);
json_t *lk_tools_responses(const json_t *tools, struct lk_fault *f);

/* A tool call as it was sampled, kept by id so that its replay renders the same bytes. */
struct lk_call_memory {
    const char *name, *args; /* what the client was given */
    const char *raw;         /* <tool_call> ... </tool_call> */
    const char *gap;         /* white space in front of it, behind the content or the call before; NULL: the template's */
    const char *tail;        /* white space behind it, of an answer's last call; NULL: none */
    const char *think;       /* of an answer's first call: the thinking that led to it; NULL: none */
};
int lk_call_remember(struct lk_lru *calls, const char *id, const struct lk_call_memory *m); /* copies */

/* Puts the whole content of a message (string, null, parts of text) into one new string; where names the field. */
json_t *lk_turns_text(const json_t *content, const char *where, struct lk_fault *f);

#endif
