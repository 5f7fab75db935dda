/* Bodies of every endpoint: the first byte picks the endpoint, the rest is its body. Everything a body goes through before a
 * token is computed: JSON, parameters, messages, tools, schemas, thinking options, and the rendered prompt. */
#include "serve/front.h"

#include <string.h>

static void chat(const json_t *o, struct lk_fault *f)
{
    struct lk_chat_opts chat;
    struct lk_prompt p = {0};
    struct lk_err e = {0};
    lk_chat_opts_init(&chat);
    json_t *tools = lk_tools_openai(json_object_get(o, "tools"), f);
    json_t *messages = f->status ? NULL : lk_turns_openai(json_object_get(o, "messages"), NULL, f);
    const char *effort = NULL;
    if (lk_get_str(o, "reasoning_effort", &effort, f) >= 0 && !lk_params_think(&chat, o, effort, "reasoning_effort", f) && messages &&
        !lk_chat_render(LK_QWEN3_8, messages, tools, &chat, &p, &e))
        lk_prompt_free(&p);
    json_decref(messages);
    json_decref(tools);
}

static void messages(const json_t *o, struct lk_fault *f)
{
    json_t *prefill = NULL, *tools = lk_tools_anthropic(json_object_get(o, "tools"), f);
    if (!f->status) json_decref(lk_turns_anthropic(o, NULL, &prefill, f));
    json_decref(prefill);
    json_decref(tools);
}

static void responses(const json_t *o, struct lk_fault *f)
{
    const char *instructions = NULL;
    json_t *tools = lk_tools_responses(json_object_get(o, "tools"), f);
    const json_t *in = json_object_get(o, "input");
    if (!f->status && lk_get_str(o, "instructions", &instructions, f) >= 0 && json_is_array(in))
        json_decref(lk_turns_responses(instructions, in, NULL, f));
    json_decref(tools);
}

static void schema(const json_t *o, struct lk_fault *f)
{
    struct lk_wire_rule r = {0};
    struct lk_arena a = {0};
    lk_rule_schema(&r, &a, json_object_get(o, "schema"), "schema", f);
    lk_arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct lk_opts_sampling neutral = {1, 1, 0, 0, 0, 1, 0, 1};
    void (*const endpoints[])(const json_t *, struct lk_fault *) = {chat, messages, responses, schema};
    struct lk_fault f = {0};
    struct lk_params p;
    if (!n) return 0;
    json_t *o = lk_body_parse((const char *)data + 1, n - 1, &f);
    if (!o) return 0;
    lk_params_init(&p, &neutral);
    if (!lk_params_read(&p, o, 8192, &f) && !lk_params_stops(&p, o, "stop", &f) && !lk_params_budget(&p, o, &f))
        endpoints[data[0] % 4](o, &f);
    if (f.status) { /* every fault must be a JSON text */
        json_t *j = lk_fault_json(&f, data[0] & 1);
        if (!j) __builtin_trap();
        json_decref(j);
    }
    lk_params_free(&p);
    json_decref(o);
    return 0;
}
