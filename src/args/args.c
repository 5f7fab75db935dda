/* Parsing, help and effective-config print over the table of flags.c. */
#include "args/args.h"

#include "args/flags.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void lk_opts_init(struct lk_opts *o)
{
    memset(o, 0, sizeof *o);
    o->engine.dev.n = o->engine.dev.automatic = 1;
    o->engine.kv = LK_OPT_KV_AUTO;
    o->engine.parallel = 4;
    o->engine.draft = -1;
    o->engine.prefix_ram = o->engine.prefix_disk = -1;
    o->sampling = (struct lk_opts_sampling){NAN, NAN, NAN, NAN, NAN, NAN, -1, -1};
    o->serve.host = "127.0.0.1";
    o->serve.port = 8080;
    o->serve.queue = 64;
    o->serve.max_body_mb = 64;
    o->serve.keepalive_s = 15;
    o->serve.watchdog_s = 180;
    o->bench.sizes = "8K,32K,128K,186K,256K";
    o->bench.kinds = "code,zh";
    o->bench.new_tokens = 1024;
    o->bench.users = o->bench.seeds = 1;
    o->bench.mode = "load";
    o->bench.accept = "0.77,0.46";
    o->bench.rounds = 24;
    o->bench.seconds = 0.3;
    o->bench.offset = -1;
}

static const struct lk_flag *flag_find(enum lk_cmd cmd, const char *name, size_t len)
{
    for (size_t i = 0; i < lk_flags_count; i++) {
        const struct lk_flag *f = &lk_flags[i];
        if (!(f->cmds & cmd)) continue;
        if (strlen(f->name) == len && !memcmp(f->name, name, len)) return f;
        if (f->alias && strlen(f->alias) == len && !memcmp(f->alias, name, len)) return f;
    }
    return NULL;
}

static int number_read(const struct lk_flag *f, const char *text, int whole, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || errno || !isfinite(v)) return -1;
    if (whole && end[0] && !end[1]) { /* 8K, 2M, 1G: powers of 1024 */
        int c = toupper((unsigned char)*end);
        double mul = c == 'K' ? 1024.0 : c == 'M' ? 1048576.0 : c == 'G' ? 1073741824.0 : 0;
        if (mul == 0) return -1;
        v *= mul;
        end++;
    }
    if (*end || (whole && v != floor(v)) || v < f->min || v > f->max) return -1;
    *out = v;
    return 0;
}

/* "a=1|b=2": value of word, or -1; with word NULL, writes the words as a|b into out */
static int choice_find(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; p && *p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (!strncmp(p, word, n) && p[n] == '=') return atoi(p + n + 1);
    return -1;
}

static void choice_words(const char *words, struct lk_buf *out)
{
    int skip = 0;
    for (; *words; words++) {
        if (*words == '=') skip = 1;
        if (*words == '|') skip = 0;
        if (!skip) lk_buf_chr(out, *words);
    }
}

static const char *choice_name(const char *words, int value, char *out, size_t cap)
{
    for (const char *p = words; p && *p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        size_t n = strcspn(p, "=");
        if (atoi(p + n + 1) == value && n < cap) {
            memcpy(out, p, n);
            out[n] = 0;
            return out;
        }
    }
    return "default";
}

int lk_opts_devices(struct lk_opts_device *d, const char *text, struct lk_err *e)
{
    int n = 0, cuda = -1;
    if (!strcmp(text, "auto")) {
        d->automatic = d->n = 1;
        d->at[0].is_cuda = d->at[0].index = 0;
        return 0;
    }
    for (const char *p = text;; p++) {
        const char *word = p;
        p += strcspn(p, ",");
        size_t len = (size_t)(p - word);
        if (n == LK_MAX_DEVICES) return lk_fail(e, LK_EUSAGE, "--devices %s: at most %d devices", text, n);
        if (len == 3 && !memcmp(word, "cpu", 3)) {
            cuda = 0;
            d->at[n].is_cuda = 0;
            d->at[n].index = n;
        } else {
            if (len > 5 && !memcmp(word, "cuda:", 5)) {
                cuda = 1;
                word += 5;
                len -= 5;
            }
            if (cuda != 1 || !len || len > 3 || strspn(word, "0123456789") < len)
                return lk_fail(e, LK_EUSAGE, "--devices %s: expected auto, cpu, cpu,cpu, cuda:0 or cuda:0,1", text);
            d->at[n].is_cuda = 1;
            d->at[n].index = atoi(word);
        }
        if (n && d->at[n].is_cuda != d->at[0].is_cuda)
            return lk_fail(e, LK_EUSAGE, "--devices %s: CPU and GPU ranks cannot be mixed", text);
        n++;
        if (!*p) break;
    }
    d->n = n;
    d->automatic = 0;
    return 0;
}

void lk_opts_devices_put(const struct lk_opts_device *d, struct lk_buf *out)
{
    if (d->automatic) lk_buf_str(out, "auto");
    for (int i = 0; i < d->n && !d->automatic; i++)
        if (d->at[i].is_cuda)
            lk_buf_fmt(out, i ? ",%d" : "cuda:%d", d->at[i].index);
        else
            lk_buf_str(out, i ? ",cpu" : "cpu");
}

static int list_add(void *at, const char *text)
{
    const char **v = at;
    int *n = (int *)(v + LK_MAX_STOPS);
    if (*n == LK_MAX_STOPS) return -1;
    v[(*n)++] = text;
    return 0;
}

static int flag_bad(const struct lk_flag *f, const char *text, struct lk_err *e)
{
    struct lk_buf want = {0};
    if (f->type == LK_FLAG_CHOICE)
        choice_words(f->words, &want);
    else if (f->type == LK_FLAG_DRAFT)
        lk_buf_str(&want, "0 to 7, or auto");
    else if (f->type == LK_FLAG_LIST)
        lk_buf_fmt(&want, "at most %d of them", LK_MAX_STOPS);
    else
        lk_buf_fmt(&want, "%s from %.9g to %.9g", f->type == LK_FLAG_FLOAT ? "a number" : "a whole number",
                   f->min, f->max);
    lk_fail(e, LK_EUSAGE, "%s %s: expected %s", f->name, text, want.data ? want.data : "another value");
    lk_buf_free(&want);
    return LK_EUSAGE;
}

static int flag_set(struct lk_opts *o, const struct lk_flag *f, const char *text, struct lk_err *e)
{
    void *at = (char *)o + f->at;
    double v = 0;
    int c;
    switch (f->type) {
    case LK_FLAG_BOOL: *(int *)at = 1; return 0;
    case LK_FLAG_TEXT: *(const char **)at = text; return 0;
    case LK_FLAG_LIST: return list_add(at, text) ? flag_bad(f, text, e) : 0;
    case LK_FLAG_DEVICES: return lk_opts_devices(at, text, e);
    case LK_FLAG_CHOICE:
        if ((c = choice_find(f->words, text)) < 0) return flag_bad(f, text, e);
        *(int *)at = c;
        return 0;
    case LK_FLAG_DRAFT:
        if (!strcmp(text, "auto")) {
            *(int *)at = -1;
            return 0;
        }
        if (number_read(f, text, 1, &v) || v < 0) return flag_bad(f, text, e);
        *(int *)at = (int)v;
        return 0;
    case LK_FLAG_INT:
    case LK_FLAG_I64:
        if (number_read(f, text, 1, &v)) return flag_bad(f, text, e);
        if (f->type == LK_FLAG_INT)
            *(int *)at = (int)v;
        else
            *(int64_t *)at = (int64_t)v;
        return 0;
    case LK_FLAG_FLOAT:
        if (number_read(f, text, 0, &v)) return flag_bad(f, text, e);
        *(double *)at = v;
        return 0;
    }
    return 0;
}

int lk_opts_parse(struct lk_opts *o, enum lk_cmd cmd, int argc, char **argv, struct lk_err *e)
{
    int only_words = 0;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (only_words || a[0] != '-' || !a[1]) {
            if (o->n_args == 8) return lk_fail(e, LK_EUSAGE, "%s: too many words", a);
            o->args[o->n_args++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            only_words = 1;
            continue;
        }
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) return 1;
        const char *eq = a[1] == '-' ? strchr(a, '=') : NULL;
        const struct lk_flag *f = flag_find(cmd, a, eq ? (size_t)(eq - a) : strlen(a));
        if (!f) return lk_fail(e, LK_EUSAGE, "%s: unknown flag of laoka %s; see laoka %s --help", a, argv[0], argv[0]);
        const char *value = eq ? eq + 1 : NULL;
        if (f->type == LK_FLAG_BOOL && value) return lk_fail(e, LK_EUSAGE, "%s: takes no value", f->name);
        if (f->type != LK_FLAG_BOOL && !value) {
            if (++i == argc) return lk_fail(e, LK_EUSAGE, "%s: expected %s after it", a, f->meta);
            value = argv[i];
        }
        int rc = flag_set(o, f, value, e);
        if (rc) return rc;
    }
    return 0;
}

static void flag_value(const struct lk_opts *o, const struct lk_flag *f, struct lk_buf *out)
{
    const void *at = (const char *)o + f->at;
    const char *text = f->type == LK_FLAG_TEXT ? *(const char *const *)at : NULL;
    char word[32];
    switch (f->type) {
    case LK_FLAG_BOOL: lk_buf_str(out, *(const int *)at ? "on" : "off"); break;
    case LK_FLAG_TEXT: lk_buf_str(out, text ? text : "default"); break;
    case LK_FLAG_LIST: lk_buf_fmt(out, "%d given", *(const int *)((const char *const *)at + LK_MAX_STOPS)); break;
    case LK_FLAG_INT: lk_buf_fmt(out, "%d", *(const int *)at); break;
    case LK_FLAG_I64: lk_buf_fmt(out, "%lld", (long long)*(const int64_t *)at); break;
    case LK_FLAG_FLOAT:
        if (isnan(*(const double *)at))
            lk_buf_str(out, "default");
        else
            lk_buf_fmt(out, "%.9g", *(const double *)at);
        break;
    case LK_FLAG_CHOICE: lk_buf_str(out, choice_name(f->words, *(const int *)at, word, sizeof word)); break;
    case LK_FLAG_DRAFT:
        if (*(const int *)at < 0)
            lk_buf_str(out, "auto");
        else
            lk_buf_fmt(out, "%d", *(const int *)at);
        break;
    case LK_FLAG_DEVICES: lk_opts_devices_put(at, out); break;
    }
}

void lk_opts_print(const struct lk_opts *o, enum lk_cmd cmd, struct lk_buf *out)
{
    for (size_t i = 0; i < lk_flags_count; i++) {
        const struct lk_flag *f = &lk_flags[i];
        if (!(f->cmds & cmd) || f->at == offsetof(struct lk_opts, print_config)) continue;
        lk_buf_fmt(out, "%s ", f->name);
        flag_value(o, f, out);
        lk_buf_chr(out, '\n');
    }
}

void lk_opts_help(enum lk_cmd cmd, struct lk_buf *out)
{
    struct lk_opts o;
    lk_opts_init(&o);
    for (size_t i = 0; i < lk_flags_count; i++) {
        const struct lk_flag *f = &lk_flags[i];
        if (!(f->cmds & cmd)) continue;
        struct lk_buf left = {0}, val = {0};
        lk_buf_fmt(&left, "%s%s%s", f->name, f->alias ? ", " : "", f->alias ? f->alias : "");
        if (f->type == LK_FLAG_CHOICE) {
            lk_buf_chr(&left, ' ');
            choice_words(f->words, &left);
        } else if (f->meta) {
            lk_buf_fmt(&left, " %s", f->meta);
        }
        flag_value(&o, f, &val);
        lk_buf_fmt(out, "  %-28s %s", left.data ? left.data : "", f->help);
        if (f->type != LK_FLAG_BOOL && f->type != LK_FLAG_LIST && strcmp(val.data, "default"))
            lk_buf_fmt(out, " [%s]", val.data);
        lk_buf_chr(out, '\n');
        lk_buf_free(&left);
        lk_buf_free(&val);
    }
}
