/* laoka tokenize: what the model is given. A text's token ids, or a conversation rendered by the
 * model's own template, and its ids. A text is taken as a finished prompt (added tokens become
 * their ids); in a conversation only the template's own tokens do. Messages are rendered as they
 * stand, with the template's own faults. */
#include "main/commands.h"

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/chat.h"
#include "text/pyjson.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

#define MAX_INPUT ((size_t)1 << 30)

static int render(struct lk_prompt *p, const struct lk_artifact *a, const char *path,
                  struct lk_err *e)
{
    struct lk_buf b = {0};
    struct lk_chat_opts o;
    size_t n = 0;
    const char *template_text = lk_artifact_text(a, "chat_template.jinja", &n);
    int rc = lk_file_read(&b, path, MAX_INPUT, e);
    json_t *j = rc ? NULL : lk_json_parse(b.data ? b.data : "", b.len, e);
    lk_buf_free(&b);
    if (!j) return rc ? rc : lk_err_prefix(e, "%s", path);
    const json_t *kw = json_object_get(j, "chat_template_kwargs"),
                 *tools = json_object_get(j, "tools");
    if (!tools) tools = json_object_get(kw, "tools");
    if (!template_text)
        rc = lk_fail(e, LK_EINPUT, "%s: the model has no chat template", lk_artifact_path(a));
    lk_chat_opts_init(&o);
    if (!rc) rc = lk_chat_opts_read(&o, kw, e);
    if (!rc)
        rc =
            lk_chat_render(lk_dialect_find(template_text, n),
                           json_is_object(j) ? json_object_get(j, "messages") : j, tools, &o, p, e);
    json_decref(j);
    return rc;
}

static int print_json(const char *text, size_t n, const struct lk_ids *ids, struct lk_err *e)
{
    struct lk_buf out = {0};
    lk_buf_str(&out, "{\"text\": ");
    lk_json_dump_string(n ? text : "", n, &out);
    lk_buf_str(&out, ", \"ids\": [");
    for (size_t i = 0; i < ids->n; i++) lk_buf_fmt(&out, i ? ", %d" : "%d", ids->v[i]);
    lk_buf_str(&out, "]}\n");
    if (out.failed)
        lk_fail(e, LK_ENOMEM, "out of memory for the answer");
    else
        fwrite(out.data, 1, out.len, stdout);
    lk_buf_free(&out);
    return e->code;
}

static int tokenizer_of(struct lk_tokenizer **t, const struct lk_artifact *a, struct lk_err *e)
{
    size_t n = 0;
    const char *json = lk_artifact_text(a, "tokenizer.json", &n);
    if (!json)
        return lk_fail(e, LK_EINPUT, "%s: the model has no tokenizer.json", lk_artifact_path(a));
    return lk_tokenizer_open(t, json, n, e) ? lk_err_prefix(e, "%s", lk_artifact_path(a)) : 0;
}

/* The text given, with broken UTF-8 repaired as the tokenizer will. */
static int read_text(struct lk_buf *out, const struct lk_opts_tokenize *o, struct lk_err *e)
{
    struct lk_buf b = {0};
    int rc = o->file ? lk_file_read(&b, o->file, MAX_INPUT, e) : lk_buf_str(&b, o->text);
    if (!rc) rc = lk__utf8_repair(b.data ? b.data : "", b.len, out);
    lk_buf_free(&b);
    return rc && !e->code ? lk_fail(e, LK_ENOMEM, "out of memory for the text") : rc;
}

static int answer(const struct lk_opts *o, const struct lk_artifact *a, struct lk_prompt *p,
                  struct lk_ids *ids, struct lk_err *e)
{
    struct lk_tokenizer *t = NULL;
    int rc = o->tokenize.messages ? render(p, a, o->tokenize.messages, e)
                                  : read_text(&p->text, &o->tokenize, e);
    if (rc) return rc;
    if (o->tokenize.render && !o->json) {
        fwrite(p->text.data, 1, p->text.len, stdout);
        return 0;
    }
    if ((rc = tokenizer_of(&t, a, e))) return rc;
    rc = o->tokenize.messages
             ? lk_prompt_encode(p, t, ids, e)
             : lk_tokenizer_encode(t, p->text.data, p->text.len, LK_SPECIALS_ALL, ids, e);
    lk_tokenizer_close(t);
    if (rc) return rc;
    if (o->json) return print_json(p->text.data, p->text.len, ids, e);
    for (size_t i = 0; i < ids->n; i++) printf(i ? " %d" : "%d", ids->v[i]);
    putchar('\n');
    return 0;
}

int cmd_tokenize(struct lk_opts *o, struct lk_err *e)
{
    const struct lk_opts_tokenize *k = &o->tokenize;
    struct lk_artifact *a = NULL;
    struct lk_prompt p = {0};
    struct lk_ids ids = {0};
    if ((k->text != NULL) + (k->file != NULL) + (k->messages != NULL) != 1)
        return lk_fail(e, LK_EUSAGE, "give one of --text TEXT, --file FILE and --messages FILE");
    if (k->render && !k->messages) return lk_fail(e, LK_EUSAGE, "--render needs --messages FILE");
    const char *path = lk_model_path(o, e);
    if (!path) return e->code;
    int rc = lk_artifact_open(&a, path, e);
    if (!rc) rc = answer(o, a, &p, &ids, e);
    lk_prompt_free(&p);
    lk_ids_free(&ids);
    lk_artifact_close(a);
    return rc;
}
