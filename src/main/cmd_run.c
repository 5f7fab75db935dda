/* laoka run: a prompt in, an answer out; without a prompt on a terminal a chat. The answer goes to stdout and nothing else
 * does; reasoning, progress and statistics go to stderr. */
#include "main/chat_term.h"
#include "main/commands.h"
#include "main/talk.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_INPUT ((size_t)64 << 20)

static void on_sigint(int sig)
{
    if (lk_talk_stop) { /* the second time the user means it */
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    lk_talk_stop = 1;
}

static void sigint_catch(void)
{
    struct sigaction a = {.sa_handler = on_sigint};
    sigaction(SIGINT, &a, NULL); /* no SA_RESTART: waiting for a line must end */
}

/* ---- printing ---- */

struct printer {
    int quiet, thinking, tty, last_newline;
};

static void thinking_end(struct printer *p)
{
    if (p->thinking) fputs(p->tty ? "\033[0m\n\n" : "\n\n", stderr);
    p->thinking = 0;
}

static void print_reply(void *arg, const struct lk_reply_event *ev)
{
    struct printer *p = arg;
    if (ev->kind == LK_REPLY_REASONING) {
        if (p->quiet) return;
        if (!p->thinking && p->tty) fputs("\033[2m", stderr);
        p->thinking = 1;
        fwrite(ev->text, 1, ev->len, stderr);
        return;
    }
    thinking_end(p);
    if (ev->kind == LK_REPLY_CALL_BEGIN) printf("%s%.*s ", p->last_newline ? "" : "\n", (int)ev->len, ev->text);
    if (ev->kind == LK_REPLY_CONTENT || ev->kind == LK_REPLY_CALL_ARGS) fwrite(ev->text, 1, ev->len, stdout);
    if (ev->kind == LK_REPLY_CALL_END) putchar('\n');
    if (ev->len) p->last_newline = ev->text[ev->len - 1] == '\n';
    if (ev->kind == LK_REPLY_CALL_END) p->last_newline = 1;
    fflush(stdout);
}

static void print_stats(const struct lk_talk *k)
{
    const struct lk_timings *t = &k->t;
    double rate = t->predicted_ms > 0 ? (t->predicted_n - 1) * 1e3 / t->predicted_ms : 0;
    lk_log_info("prompt %d tokens (%d stored) in %.0f ms; answer %d tokens in %.0f ms, %.1f a second; drafts %d of %d "
                "accepted; %s", t->prompt_n, t->cached_n, t->prompt_ms, t->predicted_n, t->predicted_ms, rate,
                t->draft_n_accepted, t->draft_n, lk_finish_name(k->finish, json_array_size(k->calls) > 0));
}

static json_t *timings_json(const struct lk_timings *t)
{
    double rate = t->predicted_ms > 0 ? (t->predicted_n - 1) * 1e3 / t->predicted_ms : 0;
    return json_pack("{s:i, s:f, s:i, s:i, s:f, s:f, s:i, s:i}", "prompt_n", t->prompt_n, "prompt_ms", t->prompt_ms,
                     "cached_n", t->cached_n, "predicted_n", t->predicted_n, "predicted_ms", t->predicted_ms,
                     "predicted_per_second", rate, "draft_n", t->draft_n, "draft_n_accepted", t->draft_n_accepted);
}

static int print_json(const struct lk_talk *k, struct lk_err *e)
{
    json_t *ids = json_array(), *calls = json_array(), *c;
    size_t i;
    for (i = 0; i < k->out.n; i++) json_array_append_new(ids, json_integer(k->out.v[i]));
    json_array_foreach(k->calls, i, c)
    {
        json_array_append_new(calls, json_pack("{s:O, s:O}", "name", json_object_get(c, "name"), "arguments",
                                               json_object_get(c, "arguments")));
    }
    json_t *o = json_pack("{s:s%, s:s%, s:o, s:o, s:s, s:o}", "text", k->content.data ? k->content.data : "",
                          k->content.len, "reasoning", k->reasoning.data ? k->reasoning.data : "", k->reasoning.len,
                          "tool_calls", calls, "ids", ids, "finish_reason",
                          lk_finish_name(k->finish, json_array_size(calls) > 0), "timings", timings_json(&k->t));
    if (!o || json_dumpf(o, stdout, JSON_REAL_PRECISION(8))) {
        json_decref(o);
        return lk_fail(e, LK_ENOMEM, "cannot write the answer as JSON");
    }
    putchar('\n');
    json_decref(o);
    return 0;
}

/* ---- input ---- */

static int read_json(struct lk_talk *k, const char *path, struct lk_err *e)
{
    struct lk_buf b = {0};
    json_error_t je;
    int rc = lk_file_read(&b, path, MAX_INPUT, e);
    json_t *j = rc ? NULL : json_loadb(b.data ? b.data : "", b.len, JSON_REJECT_DUPLICATES, &je);
    if (!rc && !j) rc = lk_fail(e, LK_EINPUT, "%s: line %d: %s", path, je.line, je.text);
    if (!rc && (rc = lk_talk_read(k, j, e))) lk_err_prefix(e, "%s", path);
    json_decref(j);
    lk_buf_free(&b);
    return rc;
}

static int read_stdin(struct lk_buf *b, struct lk_err *e)
{
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0 && b->len < MAX_INPUT) lk_buf_add(b, piece, n);
    while (b->len && b->data[b->len - 1] == '\n') b->data[--b->len] = 0;
    if (b->failed) return lk_fail(e, LK_ENOMEM, "out of memory for the prompt");
    return b->len ? 0 : lk_fail(e, LK_EUSAGE, "no prompt: give -p TEXT, --messages FILE or --raw TEXT, or start on a terminal");
}

static int session_load(struct lk_talk *k, const char *path, struct lk_err *e)
{
    char *note = NULL;
    if (!lk_file_exists(path)) return 0;
    int rc = lk_engine_load(k->engine, k->session, path, NULL, NULL, &note, e);
    if (!rc) rc = lk_talk_from_note(k, note, e);
    lk_free(note);
    return rc;
}

static int session_save(struct lk_talk *k, const char *path, struct lk_err *e)
{
    char *note = lk_talk_note(k);
    int rc = note ? lk_engine_save(k->engine, k->session, path, note, e) : lk_fail(e, LK_ENOMEM, "out of memory for saving");
    lk_free(note);
    return rc;
}

/* One question, one answer. */
static int answer(struct lk_talk *k, const struct lk_opts *o, struct printer *p, struct lk_err *e)
{
    struct lk_buf typed = {0};
    const char *prompt = o->run.prompt;
    int rc = o->run.messages ? read_json(k, o->run.messages, e) : 0;
    if (!rc && !prompt && !o->run.messages && !o->run.raw) {
        rc = read_stdin(&typed, e);
        prompt = typed.data;
    }
    if (!rc && prompt) rc = lk_talk_add(k, "user", prompt, e);
    if (!rc) rc = o->run.raw ? lk_talk_raw(k, o->run.raw, e) : lk_talk_turn(k, e);
    thinking_end(p);
    lk_buf_free(&typed);
    if (rc) return rc;
    if (o->json) return print_json(k, e);
    if (!p->last_newline) putchar('\n');
    fflush(stdout);
    print_stats(k);
    return 0;
}

static int chat(struct lk_talk *k, const struct lk_opts *o, struct printer *p, struct lk_err *e)
{
    struct lk_term *t;
    int rc = lk_term_open(&t, e);
    if (rc) return rc;
    fprintf(stderr, "%s\nA message and Enter asks; Ctrl-C stops an answer, Ctrl-D leaves; /help shows commands.\n",
            lk_engine_describe(k->engine));
    const char *line;
    while ((line = lk_term_line(t, k, p->quiet))) {
        struct lk_err mine = {0};
        if (!*line) continue;
        if ((rc = lk_talk_add(k, "user", line, &mine))) goto failed;
        rc = lk_talk_turn(k, &mine);
        thinking_end(p);
        if (rc) json_array_remove(k->messages, json_array_size(k->messages) - 1); /* the question is withdrawn */
        if (!p->last_newline) putchar('\n');
        p->last_newline = 1;
        fflush(stdout);
        if (!rc) print_stats(k);
        if (!rc && o->run.session) rc = session_save(k, o->run.session, &mine);
    failed:
        if (!rc) continue;
        lk_log_error("%s", mine.text);
        if (rc == LK_EDEVICE) {
            lk_term_close(t);
            return lk_fail(e, rc, "%s", mine.text);
        }
    }
    lk_term_close(t);
    return 0;
}

int cmd_run(struct lk_opts *o, struct lk_err *e)
{
    struct lk_engine *engine = NULL;
    struct lk_talk k = {0};
    int given = o->run.prompt || o->run.messages || o->run.raw;
    int terminal = !given && !o->json && isatty(0) && isatty(1);
    struct printer p = {.quiet = o->quiet || o->json, .tty = isatty(2), .last_newline = 1};
    if ((o->run.prompt != NULL) + (o->run.messages != NULL) + (o->run.raw != NULL) > 1)
        return lk_fail(e, LK_EUSAGE, "-p, --messages and --raw: give one of them");
    if (!lk_model_path(o, e)) return e->code;
    o->engine.parallel = 1;
    int rc = lk_engine_open(&engine, &o->engine, e);
    if (!rc) rc = lk_talk_open(&k, engine, &o->sampling, e);
    if (!rc) {
        k.stops = (const char *const *)o->run.stop;
        k.n_stops = o->run.n_stop;
        k.max_tokens = o->run.max_tokens;
        k.session = o->run.session ? "run" : NULL;
        k.progress = !p.quiet;
        if (!o->json) k.on_reply = print_reply;
        k.arg = &p;
        lk_chat_opts_think(&k.chat, (enum lk_think)o->run.think);
        if (!terminal) lk_log_info("%s", lk_engine_describe(engine));
        if (o->run.session) rc = session_load(&k, o->run.session, e);
    }
    if (!rc) sigint_catch();
    if (!rc) rc = terminal ? chat(&k, o, &p, e) : answer(&k, o, &p, e);
    if (!rc && !terminal && o->run.session) rc = session_save(&k, o->run.session, e);
    lk_talk_close(&k);
    lk_engine_close(engine);
    return rc;
}
