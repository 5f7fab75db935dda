/* The election of an all-reduce: at start every transport that exists proves itself on patterned data in all directions, is timed inside a
 * captured graph, and the fastest right one wins; one that is wrong, late or absurdly slow is refused and the line says why. A driver that
 * reports peer access where reads give zeros, or where 4 KB take 49 ms, is found here and not by a user.
 *
 * Collective: all ranks call with the same arguments. Rank 0's choice is broadcast. */
#ifndef LK_TP_ELECT_H
#define LK_TP_ELECT_H

#include "tp/comm.h"

#define LK_ELECT_ROWS 3 /* sums of 1, 4 and 16 rows */

struct lk_elect_way {
    const char *name;
    int ok;
    double us[LK_ELECT_ROWS]; /* one sum of that many rows inside a graph, median, the slowest rank's */
    double bulk_us;           /* one sum of `bulk` floats, not captured; 0: not timed */
    char why[200];
};

struct lk_elect {
    int n, n_ways, small, bulk_way;
    size_t hidden, bulk;
    struct lk_elect_way way[LK_COMM_WAYS];
};

struct lk_elect_opts {
    size_t hidden, most; /* floats of a row, and of the longest sum */
    const char *force;   /* NULL: the fastest */
    double budget_s;     /* of each timing; 0: a tenth of a second */
    double slow_us;      /* 4 KB in more: refused as broken; 0: 20 ms, for cards. Threads on a busy machine need more room */
};

/* 0 with the ways set in c; LK_EUSAGE: `force` names no transport; LK_EDEVICE: the forced one, or every one, is refused. */
int lk_elect(struct lk_elect *out, struct lk_comm *c, struct lk_dev *d, const struct lk_elect_opts *o, struct lk_err *e);
/* One line: all figures, the choice, who was refused and why. */
void lk_elect_line(const struct lk_elect *el, char *text, size_t cap);

/* For `bench tp`. us: one sum of `count` floats over a way, median of 5; in a graph when graph is set. All ranks. */
int lk_elect_time(struct lk_comm *c, struct lk_dev *d, int way, size_t count, int graph, double budget_s, double *us, struct lk_err *e);

#endif
