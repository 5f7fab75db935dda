/* Results: see table.h. */
#include "bench/table.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    {"gb_round", offsetof(struct lk_cell, gb_round)},       {"gbs", offsetof(struct lk_cell, gbs)},
    {"gflops", offsetof(struct lk_cell, gflops)},
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

/* Columns of the Markdown table; one that no cell fills is left out. */
static const struct {
    const char *title;
    size_t at;
    int digits;
} columns[] = {
    {"prompt", offsetof(struct lk_cell, prompt_n), 0},        {"cached", offsetof(struct lk_cell, cached_n), 0},
    {"answer", offsetof(struct lk_cell, predicted_n), 0},     {"first token s", offsetof(struct lk_cell, ttft_s), 2},
    {"prefill tok/s", offsetof(struct lk_cell, prefill_tps), 0}, {"tok/s", offsetof(struct lk_cell, tps), 1},
    {"accepted", offsetof(struct lk_cell, accept), 3},        {"ms a round", offsetof(struct lk_cell, ms_round), 3},
    {"tokens a round", offsetof(struct lk_cell, tokens_round), 2}, {"GB a round", offsetof(struct lk_cell, gb_round), 3},
    {"GB/s", offsetof(struct lk_cell, gbs), 1},               {"GFLOP/s", offsetof(struct lk_cell, gflops), 1},
};
enum { COLUMNS = sizeof columns / sizeof *columns, TPS = 5 };

static double column_at(const struct lk_cell *c, int i)
{
    return *(const double *)((const char *)c + columns[i].at);
}

static void columns_used(const struct lk_table *t, int used[COLUMNS])
{
    for (int i = 0; i < COLUMNS; i++)
        for (int k = used[i] = 0; k < t->n && !used[i]; k++) used[i] = column_at(&t->cells[k], i) >= 0;
}

static void row_put(const int used[COLUMNS], const struct lk_cell *c, struct lk_buf *b)
{
    lk_buf_fmt(b, "| %s | %s | %s | ", c->size, c->kind, c->run);
    for (int i = 0; i < COLUMNS; i++) {
        if (!used[i]) continue;
        number_put(b, column_at(c, i), columns[i].digits, "–");
        lk_buf_str(b, " | ");
    }
    if (c->mark != LK_CELL_OK) lk_buf_fmt(b, "**%s**: %s", lk_cell_mark_name(c->mark), c->note);
    lk_buf_str(b, " |\n");
}

/* The robust row of a size and kind: mean, least and most over its seed runs. */
static void spread_put(const struct lk_table *t, const int used[COLUMNS], const struct lk_cell *first, struct lk_buf *b)
{
    double v[64];
    int n = 0;
    for (int i = 0; i < t->n && n < 64; i++) {
        const struct lk_cell *c = &t->cells[i];
        if (!strcmp(c->size, first->size) && !strcmp(c->kind, first->kind) && !strncmp(c->run, "seed", 4) && c->mark == LK_CELL_OK && c->tps > 0) v[n++] = c->tps;
    }
    struct lk_spread s;
    lk_spread_make(&s, v, n);
    if (n < 2) return;
    lk_buf_fmt(b, "| %s | %s | %d seeds |", first->size, first->kind, n);
    for (int i = 0; i < COLUMNS; i++) {
        if (i == TPS)
            lk_buf_fmt(b, " **%.1f** (%.1f–%.1f) |", s.mean, s.min, s.max);
        else if (used[i])
            lk_buf_str(b, " |");
    }
    lk_buf_str(b, " |\n");
}

/* The time of a round by family of kernels, as head.families has it. */
static void families_put(const struct lk_table *t, struct lk_buf *b)
{
    json_t *all = json_object_get(t->head, "families"), *one, *v;
    const char *key;
    size_t i;
    json_array_foreach(all, i, one)
    {
        if (!i) {
            lk_buf_str(b, "\nms a round by family, each kernel timed alone (shares are true, sums are not a round's):\n\n| size | kind |");
            json_object_foreach(one, key, v) if (json_is_real(v)) lk_buf_fmt(b, " %s |", key);
            lk_buf_str(b, "\n|---|---|");
            json_object_foreach(one, key, v) if (json_is_real(v)) lk_buf_str(b, "---|");
            lk_buf_chr(b, '\n');
        }
        lk_buf_fmt(b, "| %s | %s |", json_string_value(json_object_get(one, "size")), json_string_value(json_object_get(one, "kind")));
        json_object_foreach(one, key, v) if (json_is_real(v)) lk_buf_fmt(b, strcmp(key, "launches") ? " %.3f |" : " %.0f |", json_real_value(v));
        lk_buf_chr(b, '\n');
    }
}

int lk_table_markdown(const struct lk_table *t, struct lk_buf *b)
{
    const char *key;
    json_t *v;
    int used[COLUMNS];
    columns_used(t, used);
    json_object_foreach(t->head, key, v)
    {
        if (json_is_array(v)) continue; /* families: below */
        char *s = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        lk_buf_fmt(b, "* %s: %s\n", key, json_is_string(v) ? json_string_value(v) : s ? s : "");
        free(s);
    }
    lk_buf_str(b, "\n| size | kind | run |");
    for (int i = 0; i < COLUMNS; i++)
        if (used[i]) lk_buf_fmt(b, " %s |", columns[i].title);
    lk_buf_str(b, " note |\n|---|---|---|");
    for (int i = 0; i < COLUMNS; i++)
        if (used[i]) lk_buf_str(b, "---|");
    lk_buf_str(b, "---|\n");
    for (int i = 0; i < t->n; i++) {
        row_put(used, &t->cells[i], b);
        int last = i + 1 == t->n || strcmp(t->cells[i + 1].size, t->cells[i].size) || strcmp(t->cells[i + 1].kind, t->cells[i].kind);
        if (last) spread_put(t, used, &t->cells[i], b);
    }
    families_put(t, b);
    return b->failed ? LK_ENOMEM : 0;
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
    int rc = lk_draw_write(dir, "results.json", &b, e);
    lk_buf_reset(&b);
    csv_put(t, &b);
    if (!rc) rc = lk_draw_write(dir, "results.csv", &b, e);
    lk_buf_reset(&b);
    lk_table_markdown(t, &b);
    if (!rc) rc = lk_draw_write(dir, "results.md", &b, e);
    lk_buf_free(&b);
    return rc || !draw ? rc : lk_draw(t, dir, e);
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
        const double v[] = {x->tps, y->tps, x->tps > 0 ? y->tps / x->tps : -1, x->ms_round, y->ms_round, ratio > 0 ? ratio : -1};
        static const int digits[] = {1, 1, 3, 2, 2, 3};
        lk_buf_fmt(out, "| %s | %s | %s |", x->size, x->kind, x->run);
        for (int k = 0; k < 6; k++) {
            lk_buf_chr(out, ' ');
            number_put(out, v[k], digits[k], "–");
            lk_buf_str(out, " |");
        }
        lk_buf_fmt(out, " %.1f %% | %s |\n", noise * 100, by <= 0 ? "–" : fabs(by - 1) <= noise ? "no difference" : by > 1 ? "B is faster" : "A is faster");
    }
    return out->failed ? LK_ENOMEM : 0;
}
