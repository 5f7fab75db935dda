/* One conversation: see talk.h. */
#include "main/talk.h"

#include "artifact/artifact.h"
#include "base/log.h"
#include "base/mem.h"
#include "runtime/sampler.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

volatile sig_atomic_t lk_talk_stop;

static int nomem(struct lk_err *e)
{
    return lk_fail(e, LK_ENOMEM, "out of memory for the conversation");
}

/* generation_config.json, then what flags say. */
static void sampling_make(struct lk_sampling *s, const struct lk_gen_defaults *g, const struct lk_opts_sampling *o)
{
    lk_sampling_init(s);
    if (g && g->have && g->do_sample) {
        s->temp = isnan(g->temperature) ? 1 : (float)g->temperature;
        if (g->top_k > 0) s->top_k = g->top_k;
        if (g->top_p > 0) s->top_p = (float)g->top_p;
        if (g->min_p > 0) s->min_p = (float)g->min_p;
        if (!isnan(g->presence_penalty)) s->presence = (float)g->presence_penalty;
        if (g->repetition_penalty > 0) s->repetition = (float)g->repetition_penalty;
    }
    if (!isnan(o->temp)) s->temp = (float)o->temp;
    if (!isnan(o->top_p)) s->top_p = (float)o->top_p;
    if (!isnan(o->min_p)) s->min_p = (float)o->min_p;
    if (!isnan(o->presence)) s->presence = (float)o->presence;
    if (!isnan(o->frequency)) s->frequency = (float)o->frequency;
    if (!isnan(o->repetition)) s->repetition = (float)o->repetition;
    if (o->top_k >= 0) s->top_k = o->top_k;
    s->seed = (uint64_t)o->seed;
    if (o->seed < 0 && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed) s->seed = (uint64_t)(lk_clock() * 1e9);
}

int lk_talk_open(struct lk_talk *k, struct lk_engine *e, const struct lk_opts_sampling *s, struct lk_err *err)
{
    size_t len = 0;
    const struct lk_artifact *a = lk_engine_artifact(e);
    const char *t = lk_artifact_text(a, "chat_template.jinja", &len);
    *k = (struct lk_talk){.engine = e};
    if (!lk_engine_tokenizer(e))
        return lk_fail(err, LK_EINPUT, "%s has no tokenizer: text needs a tokenizer.json beside the weights",
                       lk_artifact_path(a));
    if (t) k->dialect = lk_dialect_find(t, len);
    lk_chat_opts_init(&k->chat);
    k->chat.add_generation_prompt = 1;
    sampling_make(&k->sampling, lk_artifact_gen(a), s);
    return (k->messages = json_array()) ? 0 : nomem(err);
}

void lk_talk_close(struct lk_talk *k)
{
    json_decref(k->messages);
    json_decref(k->tools);
    json_decref(k->calls);
    lk_ids_free(&k->ids);
    lk_ids_free(&k->out);
    lk_buf_free(&k->text);
    lk_buf_free(&k->reasoning);
    lk_buf_free(&k->content);
    *k = (struct lk_talk){0};
}

int lk_talk_read(struct lk_talk *k, const json_t *j, struct lk_err *err)
{
    const json_t *m = json_is_object(j) ? json_object_get(j, "messages") : j;
    const json_t *tools = json_is_object(j) ? json_object_get(j, "tools") : NULL;
    const json_t *kwargs = json_is_object(j) ? json_object_get(j, "chat_template_kwargs") : NULL;
    if (!json_is_array(m))
        return lk_fail(err, LK_EINPUT, "messages: expected an array, or an object with \"messages\"");
    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return lk_fail(err, LK_EINPUT, "tools: expected an array");
    json_decref(k->messages);
    json_decref(k->tools);
    k->messages = json_deep_copy(m);
    k->tools = json_is_array(tools) ? json_deep_copy(tools) : NULL;
    if (!k->messages) return nomem(err);
    int rc = lk_chat_arguments(k->messages, err);
    return rc || !kwargs ? rc : lk_chat_opts_read(&k->chat, kwargs, err);
}

int lk_talk_add(struct lk_talk *k, const char *role, const char *content, struct lk_err *err)
{
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", content);
    if (!m) return lk_fail(err, LK_EREQUEST, "a message must be valid UTF-8");
    return json_array_append_new(k->messages, m) ? nomem(err) : 0;
}

/* ---- prompt ---- */

/* Encodes the part of a rendered prompt from byte `from` on. */
static int encode_from(const struct lk_prompt *p, size_t from, const struct lk_tokenizer *t, struct lk_ids *out,
                       struct lk_err *err)
{
    struct lk_prompt tail = {0};
    int rc = LK_ENOMEM;
    tail.segs = lk_calloc(p->n_segs + 1, sizeof *tail.segs);
    if (!tail.segs || lk_buf_add(&tail.text, p->text.data + from, p->text.len - from)) {
        nomem(err);
        goto out;
    }
    for (size_t i = 0; i < p->n_segs; i++) {
        struct lk_seg s = p->segs[i];
        if (s.end <= from) continue;
        s.begin = s.begin > from ? s.begin - from : 0;
        s.end -= from;
        tail.segs[tail.n_segs++] = s;
    }
    rc = lk_prompt_encode(&tail, t, out, err);
out:
    lk_prompt_free(&tail);
    return rc;
}

static int ends_with(const struct lk_buf *b, const char *s)
{
    size_t n = strlen(s);
    return b->len >= n && !memcmp(b->data + b->len - n, s, n);
}

/* Where the new prompt begins with all that was said, its ids are those of the conversation plus the new text's. */
static int prompt_ids(struct lk_talk *k, const struct lk_prompt *p, struct lk_ids *out, struct lk_err *err)
{
    static const char turn_end[] = "<|im_end|>";
    const struct lk_tokenizer *t = lk_engine_tokenizer(k->engine);
    size_t n = k->text.len;
    int same = n > 0 && n < p->text.len && !memcmp(p->text.data, k->text.data, n) &&
               (ends_with(&k->text, turn_end) || !strncmp(p->text.data + n, turn_end, sizeof turn_end - 1));
    for (size_t i = 0; same && i < k->ids.n; i++)
        if (lk_ids_add(out, k->ids.v[i])) return nomem(err);
    return encode_from(p, same ? n : 0, t, out, err);
}

/* ---- one answer ---- */

struct stream {
    struct lk_talk *k;
    struct lk_decoder dec;
    struct lk_stops *stops;
    struct lk_reply *reply; /* NULL: raw text goes to content */
    struct lk_buf piece, safe;
    int stopped;
};

static void stream_text(struct stream *s, const char *text, size_t n)
{
    if (!n) return;
    if (s->reply) {
        lk_reply_push(s->reply, text, n);
        return;
    }
    lk_buf_add(&s->k->content, text, n);
    struct lk_reply_event ev = {.kind = LK_REPLY_CONTENT, .text = text, .len = n};
    if (s->k->on_reply) s->k->on_reply(s->k->arg, &ev);
}

/* Decoded bytes through the stop strings. */
static void stream_piece(struct stream *s)
{
    int which;
    lk_buf_reset(&s->safe);
    if (!s->stops) lk_buf_add(&s->safe, s->piece.data, s->piece.len);
    else if (lk_stops_push(s->stops, s->piece.data, s->piece.len, &s->safe, &which) == 1) s->stopped = 1;
    stream_text(s, s->safe.data, s->safe.len);
    lk_buf_reset(&s->piece);
}

static int stream_tokens(struct stream *s, const struct lk_event *ev)
{
    const struct lk_tokenizer *t = lk_engine_tokenizer(s->k->engine);
    for (int i = 0; i < ev->n_tokens; i++) {
        if (lk_ids_add(&s->k->out, ev->tokens[i])) return LK_ENOMEM;
        if (!s->stopped) lk_decoder_push(&s->dec, t, ev->tokens[i], 1, &s->piece);
    }
    if (s->piece.len) stream_piece(s);
    return 0;
}

static void stream_end(struct stream *s)
{
    if (!s->stopped) {
        lk_decoder_flush(&s->dec, &s->piece);
        if (s->piece.len) stream_piece(s);
        lk_buf_reset(&s->safe);
        if (s->stops && !s->stopped && !lk_stops_flush(s->stops, &s->safe)) stream_text(s, s->safe.data, s->safe.len);
    }
    if (s->reply) lk_reply_finish(s->reply);
}

/* Waits for the end of request id; SIGINT cancels it. */
static int stream_run(struct stream *s, uint64_t id, struct lk_err *err)
{
    struct lk_talk *k = s->k;
    struct lk_progress bar = {0};
    int cancelled = 0, rc, drawn = 0;
    for (;;) {
        struct lk_event ev;
        rc = lk_engine_next(k->engine, &ev, 0.1);
        if (rc < 0) return lk_fail(err, LK_EDEVICE, "the engine has stopped");
        if (lk_talk_stop && !cancelled) {
            lk_engine_cancel(k->engine, id);
            cancelled = 1;
        }
        if (!rc || ev.id != id) continue;
        if (ev.kind == LK_EV_PROGRESS && k->progress) {
            if (!drawn) lk_progress_begin(&bar, "prompt", "tokens", (uint64_t)ev.prompt_total);
            lk_progress_set(&bar, (uint64_t)ev.prompt_done);
            drawn = 1;
        }
        if (drawn && ev.kind != LK_EV_PROGRESS) {
            lk_progress_end(&bar);
            drawn = 0;
        }
        if (ev.kind == LK_EV_TOKENS && stream_tokens(s, &ev)) return nomem(err);
        if (ev.kind != LK_EV_DONE && ev.kind != LK_EV_ERROR) continue;
        k->finish = ev.finish;
        k->t = ev.t;
        return ev.kind == LK_EV_ERROR ? lk_fail(err, ev.code, "%s", ev.text) : 0;
    }
}

static void talk_clear_answer(struct lk_talk *k)
{
    lk_ids_free(&k->out);
    k->out = (struct lk_ids){0};
    lk_buf_reset(&k->reasoning);
    lk_buf_reset(&k->content);
    json_decref(k->calls);
    k->calls = NULL;
    k->finish = LK_FIN_NONE;
    k->t = (struct lk_timings){0};
}

/* Runs prompt ids to their answer through s. */
static int talk_run(struct lk_talk *k, const struct lk_ids *ids, struct stream *s, struct lk_err *err)
{
    const struct lk_config *c = lk_artifact_config(lk_engine_artifact(k->engine));
    struct lk_request r = {.ids = ids->v, .n_ids = ids->n, .max_tokens = k->max_tokens, .sampling = k->sampling,
                           .stop_ids = c->eos, .n_stop_ids = c->n_eos, .stops = k->stops, .n_stops = k->n_stops,
                           .draft = -2, .session = k->session};
    lk_talk_stop = 0;
    talk_clear_answer(k);
    if (k->n_stops && !(s->stops = lk_stops_new(k->stops, (size_t)k->n_stops))) return nomem(err);
    uint64_t id = lk_engine_submit(k->engine, &r, err);
    int rc = id ? stream_run(s, id, err) : err->code;
    if (id) stream_end(s);
    return rc;
}

static void stream_free(struct stream *s)
{
    lk_stops_free(s->stops);
    lk_reply_free(s->reply);
    lk_buf_free(&s->piece);
    lk_buf_free(&s->safe);
}

/* What was said becomes the beginning of the next prompt. */
static int talk_remember(struct lk_talk *k, struct lk_ids *ids, const struct lk_prompt *p, struct lk_err *err)
{
    for (size_t i = 0; i < k->out.n; i++)
        if (lk_ids_add(ids, k->out.v[i])) return nomem(err);
    lk_buf_reset(&k->text);
    if (p) lk_buf_add(&k->text, p->text.data, p->text.len);
    lk_tokenizer_decode(lk_engine_tokenizer(k->engine), k->out.v, k->out.n, 0, &k->text);
    lk_ids_free(&k->ids);
    k->ids = *ids;
    *ids = (struct lk_ids){0};
    return k->text.failed ? nomem(err) : 0;
}

static json_t *calls_message(const json_t *calls)
{
    json_t *all = json_array();
    size_t i;
    json_t *c;
    json_array_foreach((json_t *)calls, i, c)
    {
        json_array_append_new(all, json_pack("{s:s, s:{s:O, s:O}}", "type", "function", "function", "name",
                                             json_object_get(c, "name"), "arguments", json_object_get(c, "arguments")));
    }
    return all;
}

static int talk_append_answer(struct lk_talk *k, struct lk_err *err)
{
    json_t *m = json_pack("{s:s, s:s%}", "role", "assistant", "content", k->content.data ? k->content.data : "",
                          k->content.len);
    if (!m) return nomem(err);
    if (k->reasoning.len)
        json_object_set_new(m, "reasoning_content", json_stringn(k->reasoning.data, k->reasoning.len));
    if (json_array_size(k->calls)) json_object_set_new(m, "tool_calls", calls_message(k->calls));
    return json_array_append_new(k->messages, m) ? nomem(err) : 0;
}

int lk_talk_turn(struct lk_talk *k, struct lk_err *err)
{
    struct lk_prompt p = {0};
    struct lk_ids ids = {0};
    struct stream s = {.k = k};
    int rc = k->dialect ? 0 : lk_fail(err, LK_EINPUT, "%s has no chat template that is known: use --raw with a finished prompt",
                                      lk_artifact_path(lk_engine_artifact(k->engine)));
    if (!rc) rc = lk_chat_render(k->dialect, k->messages, k->tools, &k->chat, &p, err);
    if (!rc) rc = prompt_ids(k, &p, &ids, err);
    if (rc) goto out;
    s.reply = lk_reply_new(p.thinking_open, k->tools, k->tools != NULL, k->on_reply, k->arg);
    rc = s.reply ? talk_run(k, &ids, &s, err) : nomem(err);
    if (!s.reply) goto out;
    const struct lk_buf *think = lk_reply_reasoning(s.reply), *text = lk_reply_content(s.reply);
    lk_buf_add(&k->reasoning, think->data, think->len);
    lk_buf_add(&k->content, text->data, text->len);
    k->calls = json_incref((json_t *)lk_reply_calls(s.reply));
    if (!rc) rc = talk_append_answer(k, err);
    if (!rc) rc = talk_remember(k, &ids, &p, err);
out:
    stream_free(&s);
    lk_ids_free(&ids);
    lk_prompt_free(&p);
    return rc;
}

int lk_talk_raw(struct lk_talk *k, const char *prompt, struct lk_err *err)
{
    struct lk_ids ids = {0};
    struct stream s = {.k = k};
    int rc = lk_tokenizer_encode(lk_engine_tokenizer(k->engine), prompt, strlen(prompt), LK_SPECIALS_ALL, &ids, err);
    if (!rc) rc = talk_run(k, &ids, &s, err);
    stream_free(&s);
    lk_ids_free(&ids);
    return rc;
}

char *lk_talk_note(const struct lk_talk *k)
{
    json_t *ids = json_array(), *o = json_pack("{s:O}", "messages", k->messages);
    for (size_t i = 0; i < k->ids.n; i++) json_array_append_new(ids, json_integer(k->ids.v[i]));
    json_object_set_new(o, "ids", ids);
    json_object_set_new(o, "text", json_stringn(k->text.data ? k->text.data : "", k->text.len));
    if (k->tools) json_object_set(o, "tools", k->tools);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    char *copy = text ? lk_strdup(text) : NULL;
    free(text);
    return copy;
}

int lk_talk_from_note(struct lk_talk *k, const char *note, struct lk_err *err)
{
    json_t *o = json_loads(note, 0, NULL), *ids = json_object_get(o, "ids"), *text = json_object_get(o, "text");
    int rc = json_is_object(o) ? lk_talk_read(k, o, err) : lk_fail(err, LK_EINPUT, "the session file holds no conversation");
    lk_ids_free(&k->ids);
    k->ids = (struct lk_ids){0};
    lk_buf_reset(&k->text);
    for (size_t i = 0; !rc && i < json_array_size(ids); i++)
        if (lk_ids_add(&k->ids, (int32_t)json_integer_value(json_array_get(ids, i)))) rc = nomem(err);
    if (!rc && json_is_string(text)) lk_buf_add(&k->text, json_string_value(text), json_string_length(text));
    json_decref(o);
    return rc;
}

const char *lk_finish_name(enum lk_finish f, int calls)
{
    switch (f) {
    case LK_FIN_STOP_ID:
    case LK_FIN_STOP_STRING: return calls ? "tool_calls" : "stop";
    case LK_FIN_LENGTH: return "length";
    case LK_FIN_CANCEL: return "cancelled";
    case LK_FIN_DEADLINE: return "deadline";
    default: return "error";
    }
}
