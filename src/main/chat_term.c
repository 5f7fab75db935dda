/* Line editing: see chat_term.h. The prompt goes to stderr, so that stdout holds answers only. */
#include "main/chat_term.h"

#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <string.h>

#define HISTORY 500

struct lk_term {
    EditLine *el;
    History *h;
    struct lk_buf line;
    int more; /* the line goes on */
};

static char *term_prompt(EditLine *el)
{
    struct lk_term *t;
    static char first[] = "> ", next[] = ". ";
    el_get(el, EL_CLIENTDATA, &t);
    return t->more ? next : first;
}

int lk_term_open(struct lk_term **out, struct lk_err *e)
{
    HistEvent ev;
    struct lk_term *t = lk_calloc(1, sizeof *t);
    *out = t;
    if (t) t->el = el_init("laoka", stdin, stderr, stderr);
    if (t) t->h = history_init();
    if (!t || !t->el || !t->h) {
        lk_term_close(t);
        return lk_fail(e, LK_ENOMEM, "out of memory for line editing");
    }
    history(t->h, &ev, H_SETSIZE, HISTORY);
    history(t->h, &ev, H_SETUNIQUE, 1);
    el_set(t->el, EL_CLIENTDATA, t);
    el_set(t->el, EL_PROMPT, term_prompt);
    el_set(t->el, EL_EDITOR, "emacs");
    el_set(t->el, EL_HIST, history, t->h);
    el_source(t->el, NULL);
    return 0;
}

void lk_term_close(struct lk_term *t)
{
    if (!t) return;
    if (t->h) history_end(t->h);
    if (t->el) el_end(t->el);
    lk_buf_free(&t->line);
    lk_free(t);
}

static void think_set(struct lk_talk *k, const char *how)
{
    static const char *const names[] = {"default", "off", "low", "medium", "xhigh"};
    for (int i = 1; i < 5; i++)
        if (!strcmp(how, names[i])) {
            lk_chat_opts_think(&k->chat, (enum lk_think)i);
            fprintf(stderr, "thinking: %s\n", how);
            return;
        }
    fprintf(stderr, "/think off, low, medium or xhigh\n");
}

/* Takes the last answer back and returns its question, which is taken back too. */
static const char *retry(struct lk_term *t, struct lk_talk *k)
{
    size_t n = json_array_size(k->messages);
    if (n < 2) {
        fprintf(stderr, "nothing to try again\n");
        return "";
    }
    const char *text = json_string_value(json_object_get(json_array_get(k->messages, n - 2), "content"));
    lk_buf_reset(&t->line);
    lk_buf_str(&t->line, text ? text : "");
    json_array_remove(k->messages, n - 1);
    json_array_remove(k->messages, n - 2);
    k->sampling.seed++;
    lk_buf_reset(&k->text); /* what was said is no longer the beginning of what follows */
    return t->line.data ? t->line.data : "";
}

/* A command: NULL to leave, "" to go on, or a message to send. */
static const char *command(struct lk_term *t, struct lk_talk *k, const char *line)
{
    if (!strcmp(line, "/exit") || !strcmp(line, "/quit")) return NULL;
    if (!strcmp(line, "/retry")) return retry(t, k);
    if (!strcmp(line, "/clear")) {
        json_array_clear(k->messages);
        lk_buf_reset(&k->text);
        fprintf(stderr, "the conversation is empty\n");
    } else if (!strncmp(line, "/think", 6)) {
        think_set(k, line[6] ? line + 7 : "");
    } else {
        fprintf(stderr, "/retry  answers the last message again\n/clear  forgets the conversation\n"
                        "/think off|low|medium|xhigh\n/exit   leaves (Ctrl-D too)\n"
                        "a line that ends with \\ goes on in the next\n");
    }
    return "";
}

const char *lk_term_line(struct lk_term *t, struct lk_talk *k, int quiet)
{
    lk_buf_reset(&t->line);
    t->more = 0;
    lk_talk_stop = 0;
    for (;;) {
        int n = 0;
        errno = 0;
        const char *s = el_gets(t->el, &n);
        if (!s && (errno == EINTR || lk_talk_stop)) { /* Ctrl-C: an empty line */
            fputc('\n', stderr);
            el_reset(t->el);
            return "";
        }
        if (!s || n <= 0) {
            if (!quiet) fputc('\n', stderr);
            return NULL;
        }
        while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r')) n--;
        t->more = n > 0 && s[n - 1] == '\\';
        lk_buf_add(&t->line, s, (size_t)(t->more ? n - 1 : n));
        if (!t->more) break;
        lk_buf_chr(&t->line, '\n');
    }
    if (!t->line.len) return "";
    HistEvent ev;
    history(t->h, &ev, H_ENTER, t->line.data);
    return t->line.data[0] == '/' ? command(t, k, t->line.data) : t->line.data;
}
