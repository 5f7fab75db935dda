/* Log and progress: see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_is_quiet;

void lk_log_quiet(int on)
{
    atomic_store(&log_is_quiet, on);
}

static void log_line(const char *prefix, const char *fmt, va_list ap)
{
    char line[2048];
    vsnprintf(line, sizeof line, fmt, ap);
    fprintf(stderr, "laoka: %s%s\n", prefix, line);
}

void lk_log_info(const char *fmt, ...)
{
    if (atomic_load(&log_is_quiet)) return;
    va_list ap;
    va_start(ap, fmt);
    log_line("", fmt, ap);
    va_end(ap);
}

void lk_log_warn(const char *fmt, ...)
{
    if (atomic_load(&log_is_quiet) > 1) return;
    va_list ap;
    va_start(ap, fmt);
    log_line("warning: ", fmt, ap);
    va_end(ap);
}

void lk_log_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line("error: ", fmt, ap);
    va_end(ap);
}

double lk_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void lk_progress_begin(struct lk_progress *p, const char *what, const char *unit, uint64_t total)
{
    *p = (struct lk_progress){.what = what, .unit = unit, .total = total, .t0 = lk_clock()};
    p->t_drawn = p->t0 + 0.9; /* nothing shorter than a second draws */
    p->shown = atomic_load(&log_is_quiet) || !isatty(2) ? -1 : 0;
}

static void progress_draw(struct lk_progress *p, double now)
{
    double secs = now - p->t0, rate = (double)p->done / secs;
    double left = rate > 0 ? (double)(p->total - p->done) / rate : 0;
    double div = p->unit[0] == 'B' && !p->unit[1] ? 1e6 : 1;
    const char *unit = div > 1 ? "MB" : p->unit;
    int pct = p->total ? (int)(100.0 * (double)p->done / (double)p->total) : 0;
    char bar[31];
    for (int i = 0; i < 30; i++) bar[i] = i * 100 < pct * 30 ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, "\r%s [%s] %3d%% %.0f/%.0f %s, %.0f %s/s, %.0f s left \033[K", p->what, bar, pct,
            (double)p->done / div, (double)p->total / div, unit, rate / div, unit, left);
    p->shown = 1;
}

void lk_progress_set(struct lk_progress *p, uint64_t done)
{
    p->done = done > p->total ? p->total : done;
    if (p->shown < 0) return;
    double now = lk_clock();
    if (now - p->t_drawn < 0.1) return;
    p->t_drawn = now;
    progress_draw(p, now);
}

void lk_progress_end(struct lk_progress *p)
{
    if (p->shown > 0) fprintf(stderr, "\r\033[K");
    p->shown = -1;
}
