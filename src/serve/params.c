/* Reading of sampling parameters. Ranges are the published ones of the APIs, or what the sampler can take where the APIs
 * say nothing; a value outside is the client's mistake and is said so, never clamped in silence. */
#include "serve/params.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MAX_TOKENS 16777216
#define CLOSE_TEXT "\n\nI have thought long enough; I will answer now."

static double given(double v, double neutral)
{
    return isnan(v) ? neutral : v;
}

void lk_params_init(struct lk_params *p, const struct lk_opts_sampling *d)
{
    memset(p, 0, sizeof *p);
    p->s.temp = (float)given(d->temp, 1);
    p->s.top_p = (float)given(d->top_p, 1);
    p->s.min_p = (float)given(d->min_p, 0);
    p->s.top_k = d->top_k >= 0 ? d->top_k : 0;
    p->s.presence = (float)given(d->presence, 0);
    p->s.frequency = (float)given(d->frequency, 0);
    p->s.repetition = (float)given(d->repetition, 1);
    p->n = 1;
    p->budget = -1;
    p->budget_text = CLOSE_TEXT;
    if (d->seed >= 0)
        p->s.seed = (uint64_t)d->seed;
    else if (getrandom(&p->s.seed, sizeof p->s.seed, 0) != sizeof p->s.seed)
        p->s.seed = 1;
}

void lk_params_free(struct lk_params *p)
{
    lk_free(p->bias);
    p->bias = NULL;
}

static int read_floats(struct lk_params *p, const json_t *body, struct lk_fault *f)
{
    const struct { const char *name; double min, max; float *out; } t[] = {
        {"temperature", 0, 100, &p->s.temp}, /* the APIs stop at 2; local users go further */
        {"top_p", 0, 1, &p->s.top_p},
        {"min_p", 0, 1, &p->s.min_p},
        {"presence_penalty", -2, 2, &p->s.presence},
        {"frequency_penalty", -2, 2, &p->s.frequency},
        {"repetition_penalty", 0.01, 100, &p->s.repetition},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double v;
        int rc = lk_get_num(body, t[i].name, t[i].min, t[i].max, &v, f);
        if (rc < 0) return -1;
        if (rc) *t[i].out = (float)v;
    }
    return 0;
}

static int read_bias(struct lk_params *p, const json_t *body, int32_t vocab, struct lk_fault *f)
{
    const json_t *o = NULL, *v;
    const char *key;
    int rc = lk_get_obj(body, "logit_bias", &o, f);
    if (rc <= 0) return rc;
    if (json_object_size(o) > LK_MAX_BIAS) return lk_fault_field(f, "logit_bias", "at most %d tokens", LK_MAX_BIAS);
    if (!json_object_size(o)) return 0;
    if (!(p->bias = lk_calloc(json_object_size(o), sizeof *p->bias)))
        return lk_fault_set(f, 503, "out_of_memory", NULL, "no memory");
    json_object_foreach((json_t *)o, key, v)
    {
        char *end;
        long id = strtol(key, &end, 10);
        double add = json_number_value(v);
        if (!*key || *end || id < 0 || id >= vocab)
            return lk_fault_field(f, "logit_bias", "keys are token ids below %d", (int)vocab);
        if (!json_is_number(v) || !(add >= -100 && add <= 100))
            return lk_fault_field(f, "logit_bias", "values must be numbers between -100 and 100");
        p->bias[p->s.n_bias++] = (struct lk_bias){(int32_t)id, (float)add};
    }
    p->s.bias = p->bias;
    return 0;
}

static int add_stop(struct lk_params *p, const json_t *v, const char *name, struct lk_fault *f)
{
    if (!json_is_string(v)) return lk_fault_field(f, name, "must be a string or an array of strings");
    if (!json_string_length(v)) return lk_fault_field(f, name, "a stop string must not be empty");
    if (json_string_length(v) > 1024) return lk_fault_field(f, name, "a stop string has at most 1024 bytes");
    if (p->n_stops == LK_MAX_REQUEST_STOPS)
        return lk_fault_field(f, name, "at most %d stop strings", LK_MAX_REQUEST_STOPS);
    p->stops[p->n_stops++] = json_string_value(v);
    return 0;
}

int lk_params_stops(struct lk_params *p, const json_t *body, const char *name, struct lk_fault *f)
{
    const json_t *v = json_object_get(body, name), *item;
    size_t i;
    if (!v || json_is_null(v)) return 0;
    if (!json_is_array(v)) return add_stop(p, v, name, f);
    json_array_foreach((json_t *)v, i, item)
        if (add_stop(p, item, name, f)) return -1;
    return 0;
}

int lk_params_read(struct lk_params *p, const json_t *body, int32_t vocab, struct lk_fault *f)
{
    json_int_t v;
    int rc;
    if (read_floats(p, body, f) || read_bias(p, body, vocab, f)) return -1;
    if ((rc = lk_get_int(body, "top_k", -1, 1 << 24, &v, f)) < 0) return -1;
    if (rc) p->s.top_k = v < 0 ? 0 : (int)v;
    if ((rc = lk_get_int(body, "seed", INT64_MIN, INT64_MAX, &v, f)) < 0) return -1;
    if (rc) {
        p->s.seed = (uint64_t)v;
        p->seed_given = 1;
    }
    if (lk_get_bool(body, "stream", &p->stream, f) < 0) return -1;
    return 0;
}

static int read_effort(struct lk_chat_opts *o, const char *effort, const char *name, struct lk_fault *f)
{
    static const struct { const char *api, *ours; } t[] = {
        {"minimal", "low"}, {"low", "low"}, {"medium", "medium"}, {"high", "xhigh"}, {"xhigh", "xhigh"}, {"max", "xhigh"},
    };
    if (!strcmp(effort, "none")) {
        if (o->enable_thinking == 1)
            return lk_fault_set(f, 400, "conflicting_template_option", name, "%s: none contradicts enable_thinking: true", name);
        o->enable_thinking = 0;
        return 0;
    }
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        if (strcmp(effort, t[i].api)) continue;
        if (o->enable_thinking == 0)
            return lk_fault_set(f, 400, "conflicting_template_option", name, "%s: %s contradicts enable_thinking: false", name,
                                effort);
        snprintf(o->reasoning_effort, sizeof o->reasoning_effort, "%s", t[i].ours);
        o->effort_given = 1;
        return 0;
    }
    return lk_fault_field(f, name, "must be none, minimal, low, medium, high, xhigh or max");
}

int lk_params_think(struct lk_chat_opts *o, const json_t *body, const char *effort, const char *effort_name,
                    struct lk_fault *f)
{
    const json_t *kw = NULL;
    struct lk_err e = {0};
    int on;
    if (lk_get_obj(body, "chat_template_kwargs", &kw, f) < 0) return -1;
    if (kw && lk_chat_opts_read(o, kw, &e)) {
        return lk_fault_set(f, 400, "invalid_value", "chat_template_kwargs", "chat_template_kwargs: %s", e.text);
    }
    int rc = lk_get_bool(body, "enable_thinking", &on, f);
    if (rc < 0) return -1;
    if (rc) o->enable_thinking = on;
    if (effort && read_effort(o, effort, effort_name, f)) return -1;
    o->add_generation_prompt = 1; /* the server always asks for an answer */
    o->system_anywhere = 1;
    return 0;
}

int lk_params_budget(struct lk_params *p, const json_t *body, struct lk_fault *f)
{
    json_int_t v;
    int rc = lk_get_int(body, "thinking_budget", -1, MAX_TOKENS, &v, f);
    if (rc == 0) rc = lk_get_int(body, "thinking_budget_tokens", -1, MAX_TOKENS, &v, f);
    if (rc < 0) return -1;
    if (rc) p->budget = (int)v;
    if (lk_get_str(body, "thinking_budget_message", &p->budget_text, f) < 0) return -1;
    if (p->budget_text && strlen(p->budget_text) > 4096)
        return lk_fault_field(f, "thinking_budget_message", "has at most 4096 bytes");
    return 0;
}
