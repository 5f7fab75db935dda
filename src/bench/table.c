/* Results: see table.h. */
#include "bench/table.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

/* The numbers of a cell: name in JSON and CSV, and where. */
static const struct {
    const char *name;
    size_t at;
} numbers[] = {
    {"prompt_n", offsetof(struct lk_cell, prompt_n)},       {"cached_n", offsetof(struct lk_cell, cached_n)},
    {"predicted_n", offsetof(struct lk_cell, predicted_n)}, {"ttft_s", offsetof(struct lk_cell, ttft_s)},
    {"prefill_tps", offsetof(struct lk_cell, prefill_tps)}, {"tps", offsetof(struct lk_cell, tps)},
    {"accept", offsetof(struct lk_cell, accept)},           {"ms_round", offsetof(struct lk_cell, ms_round)},
    {"tokens_round", offsetof(struct lk_cell, tokens_round)},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double number_at(const struct lk_cell *c, int i)
{
    return *(const double *)((const char *)c + numbers[i].at);
}

void lk_table_free(struct lk_table *t)
{
    json_decref(t->head);
    lk_free(t->cells);
    *t = (struct lk_table){0};
}

struct lk_cell *lk_table_find(const struct lk_table *t, const char *size, const char *kind, const char *run)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->cells[i].size, size) && !strcmp(t->cells[i].kind, kind) && !strcmp(t->cells[i].run, run)) return &t->cells[i];
    return NULL;
}

int lk_table_add(struct lk_table *t, const struct lk_cell *c)
{
    struct lk_cell *old = lk_table_find(t, c->size, c->kind, c->run);
    if (old) {
        *old = *c;
        return 0;
    }
    if (t->n == t->cap) {
        struct lk_cell *p = lk_reallocarray(t->cells, (size_t)t->cap * 2 + 16, sizeof *p);
        if (!p) return LK_ENOMEM;
        t->cells = p;
        t->cap = t->cap * 2 + 16;
    }
    t->cells[t->n++] = *c;
    return 0;
}

static json_t *cell_json(const struct lk_cell *c)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:s}", "size", c->size, "kind", c->kind, "run", c->run, "tokens", c->tokens, "mark",
                          lk_cell_mark_name(c->mark), "note", c->note, "finish", c->finish);
    for (int i = 0; i < NUMBERS; i++) {
        double v = number_at(c, i);
        json_object_set_new(o, numbers[i].name, v < 0 ? json_null() : json_real(v));
    }
    return o;
}

static void text_get(const json_t *o, const char *key, char *out, size_t cap)
{
    const char *s = json_string_value(json_object_get(o, key));
    snprintf(out, cap, "%s", s ? s : "");
}

static void cell_read(struct lk_cell *c, const json_t *o)
{
    char mark[16];
    memset(c, 0, sizeof *c);
    text_get(o, "size", c->size, sizeof c->size);
    text_get(o, "kind", c->kind, sizeof c->kind);
    text_get(o, "run", c->run, sizeof c->run);
    text_get(o, "note", c->note, sizeof c->note);
    text_get(o, "finish", c->finish, sizeof c->finish);
    text_get(o, "mark", mark, sizeof mark);
    c->tokens = (int)json_integer_value(json_object_get(o, "tokens"));
    c->mark = LK_CELL_FAILED;
    for (int m = LK_CELL_OK; m <= LK_CELL_IMPOSSIBLE; m++)
        if (!strcmp(mark, lk_cell_mark_name((enum lk_cell_mark)m))) c->mark = (enum lk_cell_mark)m;
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *v = json_object_get(o, numbers[i].name);
        *(double *)((char *)c + numbers[i].at) = json_is_number(v) ? json_number_value(v) : -1;
    }
}

int lk_table_load(struct lk_table *t, const char *path, struct lk_err *e)
{
    struct lk_buf p = {0}, b = {0};
    json_error_t je;
    *t = (struct lk_table){0};
    if (lk_file_exists(path) == 2)
        lk_path_join(&p, path, "results.json");
    else
        lk_buf_str(&p, path);
    int rc = lk_file_read(&b, p.data, (size_t)256 << 20, e);
    json_t *root = rc ? NULL : json_loadb(b.data ? b.data : "", b.len, 0, &je);
    const json_t *cells = json_object_get(root, "cells");
    if (!rc && !json_is_array(cells)) rc = lk_fail(e, LK_EINPUT, "%s: not a results file of laoka bench", p.data);
    for (size_t i = 0; !rc && i < json_array_size(cells); i++) {
        struct lk_cell c;
        cell_read(&c, json_array_get(cells, i));
        if (lk_table_add(t, &c)) rc = lk_fail(e, LK_ENOMEM, "%s: no memory", p.data);
    }
    if (!rc) t->head = json_incref(json_object_get(root, "head"));
    json_decref(root);
    lk_buf_free(&p);
    lk_buf_free(&b);
    return rc;
}

static void number_put(struct lk_buf *b, double v, int digits, const char *unknown)
{
    if (v < 0)
        lk_buf_str(b, unknown);
    else
        lk_buf_fmt(b, "%.*f", digits, v);
}

static void csv_put(const struct lk_table *t, struct lk_buf *b)
{
    lk_buf_str(b, "size,kind,run,tokens,mark");
    for (int i = 0; i < NUMBERS; i++) lk_buf_fmt(b, ",%s", numbers[i].name);
    lk_buf_chr(b, '\n');
    for (int k = 0; k < t->n; k++) {
        const struct lk_cell *c = &t->cells[k];
        lk_buf_fmt(b, "%s,%s,%s,%d,%s", c->size, c->kind, c->run, c->tokens, lk_cell_mark_name(c->mark));
        for (int i = 0; i < NUMBERS; i++) {
            lk_buf_chr(b, ',');
            number_put(b, number_at(c, i), 4, "");
        }
        lk_buf_chr(b, '\n');
    }
}

static void row_put(const struct lk_cell *c, struct lk_buf *b)
{
    lk_buf_fmt(b, "| %s | %s | %s | ", c->size, c->kind, c->run);
    const struct {
        double v;
        int digits;
    } v[] = {{c->prompt_n, 0}, {c->cached_n, 0}, {c->predicted_n, 0}, {c->ttft_s, 2}, {c->prefill_tps, 0}, {c->tps, 1}, {c->accept, 3}, {c->ms_round, 2}, {c->tokens_round, 2}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        number_put(b, v[i].v, v[i].digits, "–");
        lk_buf_str(b, " | ");
    }
    if (c->mark != LK_CELL_OK) lk_buf_fmt(b, "**%s**: %s", lk_cell_mark_name(c->mark), c->note);
    lk_buf_str(b, " |\n");
}

/* The robust row of a size and kind: mean, least and most over its seed runs. */
static void spread_put(const struct lk_table *t, const struct lk_cell *first, struct lk_buf *b)
{
    double v[64];
    int n = 0;
    for (int i = 0; i < t->n && n < 64; i++) {
        const struct lk_cell *c = &t->cells[i];
        if (!strcmp(c->size, first->size) && !strcmp(c->kind, first->kind) && !strncmp(c->run, "seed", 4) && c->mark == LK_CELL_OK && c->tps > 0) v[n++] = c->tps;
    }
    struct lk_spread s;
    lk_spread_make(&s, v, n);
    if (n > 1) lk_buf_fmt(b, "| %s | %s | %d seeds | | | | | | **%.1f** (%.1f–%.1f) | | | | |\n", first->size, first->kind, n, s.mean, s.min, s.max);
}

int lk_table_markdown(const struct lk_table *t, struct lk_buf *b)
{
    const char *key;
    json_t *v;
    json_object_foreach(t->head, key, v)
    {
        char *s = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        lk_buf_fmt(b, "* %s: %s\n", key, json_is_string(v) ? json_string_value(v) : s ? s : "");
        free(s);
    }
    lk_buf_str(b, "\n| size | kind | run | prompt | cached | answer | first token s | prefill tok/s | tok/s | accepted | ms a round | tokens a round | note |\n"
                  "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < t->n; i++) {
        row_put(&t->cells[i], b);
        int last = i + 1 == t->n || strcmp(t->cells[i + 1].size, t->cells[i].size) || strcmp(t->cells[i + 1].kind, t->cells[i].kind);
        if (last) spread_put(t, &t->cells[i], b);
    }
    return b->failed ? LK_ENOMEM : 0;
}

/* One drawing: a line a kind and run over context, of the column of the CSV that `column` numbers. */
static void plot_put(const struct lk_table *t, const char *file, const char *title, int column, struct lk_buf *b)
{
    lk_buf_fmt(b, "set terminal pngcairo size 900,540\nset output '%s'\nset datafile separator ','\nset key top right\nset grid\n"
                  "set xlabel 'context, tokens'\nset ylabel '%s'\nset yrange [0:*]\nplot ", file, title);
    int lines = 0;
    for (int i = 0; i < t->n; i++) {
        int seen = 0;
        for (int j = 0; j < i; j++) seen |= !strcmp(t->cells[j].kind, t->cells[i].kind) && !strcmp(t->cells[j].run, t->cells[i].run);
        if (seen) continue;
        lk_buf_fmt(b, "%s'results.csv' using (strcol(2) eq '%s' && strcol(3) eq '%s' && strcol(5) eq 'ok' ? $6 : 1/0):%d with linespoints title '%s, %s'",
                   lines++ ? ", " : "", t->cells[i].kind, t->cells[i].run, column, t->cells[i].kind, t->cells[i].run);
    }
    lk_buf_str(b, "\n");
}

/* Runs gnuplot inside dir, so that no path needs quoting. 0 when it drew. */
static int gnuplot_run(const char *dir)
{
    posix_spawn_file_actions_t fa;
    pid_t pid;
    int st = -1;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addchdir_np(&fa, dir);
    posix_spawn_file_actions_addopen(&fa, 2, "/dev/null", O_WRONLY, 0);
    if (!posix_spawnp(&pid, "gnuplot", &fa, NULL, (char *const[]){"gnuplot", "plot.gp", NULL}, environ)) waitpid(pid, &st, 0);
    posix_spawn_file_actions_destroy(&fa);
    return st;
}

static int part_write(const char *dir, const char *name, const struct lk_buf *b, struct lk_err *e);

static int draw_all(const struct lk_table *t, const char *dir, struct lk_err *e)
{
    struct lk_buf script = {0};
    plot_put(t, "speed.png", "tokens a second", 11, &script);
    plot_put(t, "round.png", "ms a round", 13, &script);
    plot_put(t, "first.png", "seconds to the first token", 9, &script);
    int rc = part_write(dir, "plot.gp", &script, e);
    if (!rc && gnuplot_run(dir)) lk_log_info("no drawings: gnuplot did not run on %s/plot.gp (Debian package gnuplot-nox)", dir);
    lk_buf_free(&script);
    return rc;
}

static int part_write(const char *dir, const char *name, const struct lk_buf *b, struct lk_err *e)
{
    struct lk_buf path = {0};
    lk_path_join(&path, dir, name);
    int rc = b->failed || path.failed ? lk_fail(e, LK_ENOMEM, "%s: no memory", name) : lk_file_write(path.data, b->data, b->len, e);
    lk_buf_free(&path);
    return rc;
}

int lk_table_save(const struct lk_table *t, const char *dir, int draw, struct lk_err *e)
{
    struct lk_buf b = {0};
    json_t *cells = json_array();
    for (int i = 0; i < t->n; i++) json_array_append_new(cells, cell_json(&t->cells[i]));
    json_t *root = json_pack("{s:O, s:o}", "head", t->head, "cells", cells);
    char *s = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!s) return lk_fail(e, LK_ENOMEM, "no memory for the results");
    lk_buf_str(&b, s);
    free(s);
    int rc = part_write(dir, "results.json", &b, e);
    lk_buf_reset(&b);
    csv_put(t, &b);
    if (!rc) rc = part_write(dir, "results.csv", &b, e);
    lk_buf_reset(&b);
    lk_table_markdown(t, &b);
    if (!rc) rc = part_write(dir, "results.md", &b, e);
    lk_buf_free(&b);
    return rc || !draw ? rc : draw_all(t, dir, e);
}

/* Relative half width of what the seeds of a size and kind show in one table; 2 % where there are none. */
static double noise_of(const struct lk_table *t, const struct lk_cell *c)
{
    double v[64];
    int n = 0;
    for (int i = 0; i < t->n && n < 64; i++) {
        const struct lk_cell *x = &t->cells[i];
        if (!strcmp(x->size, c->size) && !strcmp(x->kind, c->kind) && !strncmp(x->run, "seed", 4) && x->mark == LK_CELL_OK && x->ms_round > 0) v[n++] = x->ms_round;
    }
    struct lk_spread s;
    lk_spread_make(&s, v, n);
    return n > 1 && s.mean > 0 ? fmax((s.max - s.min) / 2 / s.mean, 0.02) : 0.02;
}

int lk_table_compare(const struct lk_table *a, const struct lk_table *b, struct lk_buf *out)
{
    lk_buf_str(out, "| size | kind | run | tok/s A | tok/s B | B/A | ms a round A | ms a round B | A/B | noise | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < a->n; i++) {
        const struct lk_cell *x = &a->cells[i], *y = lk_table_find(b, x->size, x->kind, x->run);
        if (!y || x->mark != LK_CELL_OK || y->mark != LK_CELL_OK) {
            lk_buf_fmt(out, "| %s | %s | %s | | | | | | | | %s |\n", x->size, x->kind, x->run, !y ? "only in A" : x->mark != LK_CELL_OK ? "A is marked" : "B is marked");
            continue;
        }
        double noise = noise_of(a, x) + noise_of(b, y), ratio = y->ms_round > 0 && x->ms_round > 0 ? x->ms_round / y->ms_round : 0;
        double by = ratio > 0 ? ratio : x->tps > 0 ? y->tps / x->tps : 0;
        lk_buf_fmt(out, "| %s | %s | %s | %.1f | %.1f | %.3f | %.2f | %.2f | %.3f | %.1f %% | %s |\n", x->size, x->kind, x->run, x->tps, y->tps,
                   x->tps > 0 ? y->tps / x->tps : 0, x->ms_round, y->ms_round, ratio, noise * 100,
                   by <= 0 ? "–" : fabs(by - 1) <= noise ? "no difference" : by > 1 ? "B is faster" : "A is faster");
    }
    return out->failed ? LK_ENOMEM : 0;
}
