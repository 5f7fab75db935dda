/* Messages for people, on stderr; stdout belongs to the answer. One line an event.
 * Quiet 1 (--json, tests) drops info and progress, 2 (fuzzing) also warnings; errors always show. */
#ifndef LK_BASE_LOG_H
#define LK_BASE_LOG_H

#include <stdint.h>

void lk_log_quiet(int on);
void lk_log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void lk_log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void lk_log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A progress bar with rate and time left; drawn on a terminal only, from the first second on, at most ten times
 * a second. unit: "B" prints bytes as MB/GB, anything else is printed after the numbers. */
struct lk_progress {
    const char *what, *unit;
    uint64_t total, done;
    double t0, t_drawn;
    int shown;
};
void lk_progress_begin(struct lk_progress *p, const char *what, const char *unit, uint64_t total);
void lk_progress_set(struct lk_progress *p, uint64_t done);
void lk_progress_end(struct lk_progress *p); /* wipes the line */

double lk_clock(void); /* seconds, monotonic */

#endif
