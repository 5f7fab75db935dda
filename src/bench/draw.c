/* Drawings: see draw.h. */
#include "bench/draw.h"

#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

int lk_draw_write(const char *dir, const char *name, const struct lk_buf *b, struct lk_err *e)
{
    struct lk_buf path = {0};
    lk_path_join(&path, dir, name);
    int rc = b->failed || path.failed ? lk_fail(e, LK_ENOMEM, "%s: no memory", name) : lk_file_write(path.data, b->data, b->len, e);
    lk_buf_free(&path);
    return rc;
}

/* Runs inside dir, so that no path needs quoting. */
void lk_draw_run(const char *dir)
{
    posix_spawn_file_actions_t fa;
    pid_t pid;
    int st = -1;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addchdir_np(&fa, dir);
    posix_spawn_file_actions_addopen(&fa, 2, "/dev/null", O_WRONLY, 0);
    if (!posix_spawnp(&pid, "gnuplot", &fa, NULL, (char *const[]){"gnuplot", "plot.gp", NULL}, environ)) waitpid(pid, &st, 0);
    posix_spawn_file_actions_destroy(&fa);
    if (st) lk_log_info("no drawings: gnuplot did not run on %s/plot.gp (Debian package gnuplot-nox)", dir);
}

void lk_draw_begin(struct lk_buf *b, const char *file, const char *x, const char *y)
{
    lk_buf_fmt(b, "reset\nset terminal pngcairo size 760,440\nset output '%s'\nset datafile separator ','\nset key outside right top\nset grid\n"
                  "set xlabel '%s'\nset ylabel '%s'\nset yrange [0:*]\n", file, x, y);
}

static int value_any(const struct lk_table *t, size_t at)
{
    for (int i = 0; i < t->n; i++)
        if (t->cells[i].mark == LK_CELL_OK && *(const double *)((const char *)&t->cells[i] + at) > 0) return 1;
    return 0;
}

/* First cell of its kind and run. */
static int leads(const struct lk_table *t, int i)
{
    for (int j = 0; j < i; j++)
        if (!strcmp(t->cells[j].kind, t->cells[i].kind) && !strcmp(t->cells[j].run, t->cells[i].run)) return 0;
    return 1;
}

/* A line a kind and run: columns x and y of the CSV. Lines without a point are left out, gnuplot refuses them. */
static void lines_put(const struct lk_table *t, const char *x, const char *y, size_t at, const char *how, struct lk_buf *b)
{
    int lines = 0;
    for (int i = 0; i < t->n; i++) {
        const struct lk_cell *c = &t->cells[i];
        int any = 0;
        for (int j = 0; j < t->n; j++)
            any |= !strcmp(t->cells[j].kind, c->kind) && !strcmp(t->cells[j].run, c->run) && t->cells[j].mark == LK_CELL_OK && *(const double *)((const char *)&t->cells[j] + at) > 0;
        if (!leads(t, i) || !any) continue;
        lk_buf_fmt(b, "%s'results.csv' using (strcol(2) eq '%s' && strcol(3) eq '%s' && strcol(5) eq 'ok' ? column('%s') : 1/0):'%s' with %s title '%s, %s'",
                   lines++ ? ", " : "", c->kind, c->run, x, y, how, c->kind, c->run);
    }
    lk_buf_chr(b, '\n');
}

static void lines_draw(const struct lk_table *t, const char *file, const char *title, const char *y, size_t at, struct lk_buf *b)
{
    if (!value_any(t, at)) return;
    lk_draw_begin(b, file, "context, tokens", title);
    lk_buf_str(b, "set key autotitle columnhead\nplot ");
    lines_put(t, "prompt_n", y, at, "linespoints", b);
}

/* Bytes a round against its time; the line is what the bandwidth allows, nothing can lie below it. */
static void roofline_draw(const struct lk_table *t, struct lk_buf *b)
{
    double gbs = json_number_value(json_object_get(t->head, "physics_gbs"));
    if (gbs <= 0 || !value_any(t, offsetof(struct lk_cell, gb_round))) return;
    lk_draw_begin(b, "roofline.png", "GB that a round must move", "ms a round");
    lk_buf_fmt(b, "set xrange [0:*]\nset xtics rotate by -30\nset key autotitle columnhead\nplot x / %.1f * 1000 with lines linewidth 2 linecolor 'black' title '%.0f GB/s: the bound', ", gbs, gbs);
    lines_put(t, "gb_round", "ms_round", offsetof(struct lk_cell, gb_round), "points pointtype 7", b);
}

/* Ops: work over bytes against work over time, both logarithmic; the slope is the bandwidth. */
static void intensity_draw(const struct lk_table *t, struct lk_buf *b)
{
    double gbs = json_number_value(json_object_get(t->head, "physics_gbs"));
    int points = 0;
    lk_draw_begin(b, "roofline.png", "FLOP a byte", "GFLOP/s");
    lk_buf_str(b, "set logscale xy\nset yrange [*:*]\nset key autotitle columnhead\nplot ");
    if (gbs > 0) lk_buf_fmt(b, "x * %.1f with lines linewidth 2 linecolor 'black' title '%.0f GB/s', ", gbs, gbs);
    for (int i = 0; i < t->n; i++) {
        int seen = t->cells[i].gflops <= 0 || t->cells[i].mark != LK_CELL_OK;
        for (int j = 0; j < i; j++) seen |= !strcmp(t->cells[j].kind, t->cells[i].kind) && t->cells[j].gflops > 0 && t->cells[j].mark == LK_CELL_OK;
        if (seen) continue;
        lk_buf_fmt(b, "%s'results.csv' using (strcol(2) eq '%s' && column('gflops') > 0 ? column('gflops') / column('gbs') : 1/0):'gflops' with points pointtype 7 title '%s'",
                   points++ ? ", " : "", t->cells[i].kind, t->cells[i].kind);
    }
    lk_buf_str(b, points || gbs > 0 ? "\n" : "1 notitle\n");
}

/* head.families as CSV and as bars, a bar a context and kind. */
static int families_draw(const struct lk_table *t, const char *dir, struct lk_buf *script, struct lk_err *e)
{
    json_t *all = json_object_get(t->head, "families"), *one, *v;
    struct lk_buf csv = {0};
    const char *key;
    size_t i;
    int n = 0;
    if (!json_array_size(all)) return 0;
    json_array_foreach(all, i, one)
    {
        lk_buf_fmt(&csv, i ? "" : "round");
        json_object_foreach(one, key, v) if (!i && json_is_real(v) && strcmp(key, "launches")) lk_buf_fmt(&csv, ",%s", key), n++;
        lk_buf_fmt(&csv, "%s%s %s", i ? "" : "\n", json_string_value(json_object_get(one, "size")), json_string_value(json_object_get(one, "kind")));
        json_object_foreach(one, key, v) if (json_is_real(v) && strcmp(key, "launches")) lk_buf_fmt(&csv, ",%.4f", json_real_value(v));
        lk_buf_chr(&csv, '\n');
    }
    lk_draw_begin(script, "families.png", "", "ms a round, each kernel timed alone");
    lk_buf_fmt(script, "set style data histograms\nset style histogram rowstacked\nset style fill solid 0.8\nset boxwidth 0.7\nset xtics rotate by -30\n"
                       "plot for [i=2:%d] 'families.csv' using i:xtic(1) title columnhead(i)\n", n + 1);
    int rc = lk_draw_write(dir, "families.csv", &csv, e);
    lk_buf_free(&csv);
    return rc;
}

int lk_draw(const struct lk_table *t, const char *dir, struct lk_err *e)
{
    struct lk_buf script = {0};
    if (json_object_get(t->head, "ops")) {
        intensity_draw(t, &script);
        int bad = lk_draw_write(dir, "plot.gp", &script, e);
        if (!bad) lk_draw_run(dir);
        lk_buf_free(&script);
        return bad;
    }
    lines_draw(t, "speed.png", "tokens a second", "tps", offsetof(struct lk_cell, tps), &script);
    lines_draw(t, "round.png", "ms a round", "ms_round", offsetof(struct lk_cell, ms_round), &script);
    lines_draw(t, "first.png", "seconds to the first token", "ttft_s", offsetof(struct lk_cell, ttft_s), &script);
    roofline_draw(t, &script);
    int rc = families_draw(t, dir, &script, e);
    if (!rc) rc = lk_draw_write(dir, "plot.gp", &script, e);
    if (!rc) lk_draw_run(dir);
    lk_buf_free(&script);
    return rc;
}
