/* From a checked request to a prompt and a rule: rendering, fitting into the context, ids, usage. */
#include "serve/front.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/replay.h"
#include "text/json_schema.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void lk_front_id(struct lk_front *f, const char *prefix, char out[64])
{
    snprintf(out, 64, "%s%.12s%012" PRIx64, prefix, f->instance, ++f->next_id);
}

int lk_front_ready(const struct lk_front *f, struct lk_fault *fault)
{
    const char *why = NULL;
    if (f->draining)
        why = "the server is stopping";
    else if (lk_link_state(f->link) == LK_LINK_LOADING)
        why = "the model is loading";
    else if (lk_link_state(f->link) == LK_LINK_DOWN)
        why = "the engine died and is being restarted";
    if (!why) return 0;
    fault->retry_after = 2;
    return lk_fault_set(fault, 503, "service_unavailable", NULL, "%s; try again soon", why);
}

int lk_front_model(const struct lk_front *f, const json_t *body, struct lk_fault *fault)
{
    const char *name = NULL;
    if (lk_get_str(body, "model", &name, fault) < 0) return -1;
    if (!name || !*name || !strcmp(name, f->s->name) || !strcmp(name, "default")) return 0;
    return lk_fault_set(fault, 404, "model_not_found", "model", "model: \"%.100s\" is not here; this server runs \"%s\"", name,
                        f->s->name);
}

void lk_ask_free(struct lk_ask *a)
{
    lk_ids_free(&a->ids);
}

int lk_front_fit(const struct lk_front *f, const struct lk_ids *ids, const char *where, struct lk_fault *fault)
{
    int ctx = lk_link_ready(f->link)->ctx;
    if (!ids->n) return lk_fault_set(fault, 400, "invalid_value", where, "%s: the prompt has no tokens", where);
    if (ctx <= 0 || ids->n < (size_t)ctx) return 0;
    return lk_fault_set(fault, 400, "context_length_exceeded", where,
                        "%s: the prompt has %zu tokens and the context of this server %d; shorten it, or start with a larger --ctx",
                        where, ids->n, ctx);
}

int lk_front_render(const struct lk_front *f, json_t *messages, const json_t *tools, struct lk_chat_opts *o,
                    const json_t *prefill, struct lk_ask *out, struct lk_fault *fault)
{
    struct lk_prompt p = {0};
    struct lk_err e = {0};
    int rc;
    if (f->s->dialect == LK_DIALECT_NONE)
        return lk_fault_set(fault, 400, "chat_not_supported", NULL,
                            "the model has no chat template this program knows; use /v1/completions");
    if (prefill) o->enable_thinking = 0; /* an answer that has begun is past its thinking */
    if ((rc = lk_chat_render(f->s->dialect, messages, tools, o, &p, &e))) goto out;
    out->thinking_open = p.thinking_open;
    if ((rc = lk_prompt_encode(&p, f->s->tok, &out->ids, &e))) goto out;
    if ((rc = lk_replay_apply(f->turns, f->s->tok, &out->ids))) goto nomem;
    if (prefill)
        rc = lk_tokenizer_encode(f->s->tok, json_string_value(prefill), json_string_length(prefill), LK_SPECIALS_NONE, &out->ids, &e);
    goto out;
nomem:
    lk_fail(&e, rc, "no memory for a prompt");
out:
    lk_prompt_free(&p);
    if (rc) return lk_fault_err(fault, &e);
    return 0;
}

static const char *dump(struct lk_arena *a, const json_t *v, struct lk_fault *fault)
{
    char *text = json_dumps(v, JSON_COMPACT), *own = text ? lk_arena_strndup(a, text, strlen(text)) : NULL;
    free(text);
    if (!own) lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for a schema");
    return own;
}

int lk_rule_tools(struct lk_wire_rule *r, struct lk_arena *a, enum lk_choice choice, const char *name, const json_t *tools,
                  struct lk_fault *fault)
{
    size_t n = json_array_size(tools), i = 0;
    if (choice == LK_CHOICE_AUTO || choice == LK_CHOICE_NONE) return 0;
    if (!n) return lk_fault_field(fault, "tool_choice", "needs tools");
    while (name && i < n &&
           strcmp(name, json_string_value(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"))))
        i++;
    if (i == n) return lk_fault_field(fault, "tool_choice", "names the function \"%.64s\", which is not in tools", name);
    r->tool = name;
    return (r->tools = dump(a, tools, fault)) ? 0 : -1;
}

int lk_rule_schema(struct lk_wire_rule *r, struct lk_arena *a, const json_t *schema, const char *where, struct lk_fault *fault)
{
    struct lk_err e = {0};
    if (lk_schema_check(schema, &e)) {
        if (e.code != LK_EREQUEST) return lk_fault_err(fault, &e);
        return lk_fault_set(fault, 400, "unsupported_schema", where, "%s: %s", where, e.text);
    }
    r->schema = schema ? dump(a, schema, fault) : "";
    return r->schema ? 0 : -1;
}

json_t *lk_usage_openai(const struct lk_gen_totals *t, int n, int per)
{
    int completion = 0, reasoning = 0, prompt = 0, cached = 0;
    for (int i = 0; i < n; i += per) {
        prompt += t[i].prompt;
        cached += t[i].cached;
    }
    for (int i = 0; i < n; i++) {
        completion += t[i].completion;
        reasoning += t[i].reasoning;
    }
    return json_pack("{s:i, s:i, s:i, s:{s:i}, s:{s:i}}", "prompt_tokens", prompt, "completion_tokens", completion,
                     "total_tokens", prompt + completion, "prompt_tokens_details", "cached_tokens", cached,
                     "completion_tokens_details", "reasoning_tokens", reasoning);
}

static double rate(int n, double ms)
{
    return ms > 0 ? n / ms * 1000 : 0;
}

json_t *lk_timings_json(const struct lk_gen_totals *g)
{
    const struct lk_timings *t = &g->t;
    int fresh = g->prompt - t->cached_n;
    return json_pack("{s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:i, s:i, s:i}", "prompt_n", g->prompt, "cached_n", t->cached_n,
                     "queue_ms", t->queue_ms, "prompt_ms", t->prompt_ms, "prompt_per_second", rate(fresh, t->prompt_ms), "predicted_n",
                     g->completion, "predicted_ms", t->predicted_ms, "predicted_per_second", rate(g->completion, t->predicted_ms),
                     "draft_n", t->draft_n, "draft_n_accepted", t->draft_n_accepted, "rounds", t->rounds);
}
