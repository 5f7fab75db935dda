/* A cell: one measured request and the judgement on it. Numbers come from the server's own timings where it gives them, after they
 * were held against this side's clock, and from the clock alone otherwise.
 *
 * Physics: a round reads every weight and the whole KV cache once. If bytes / bandwidth is longer than the round that was
 * reported, the number cannot be true, whatever made it; the cell is refused and the arithmetic is its note. */
#ifndef LK_BENCH_CELL_H
#define LK_BENCH_CELL_H

#include "bench/client.h"

enum lk_cell_mark { LK_CELL_OK, LK_CELL_FAILED, LK_CELL_LIES, LK_CELL_IMPOSSIBLE };

struct lk_cell {
    char size[16], kind[16], run[96]; /* "32K", "code", "cold" | "warm" | "seed3"; of ops: "T1", "linear", the case */
    int tokens;                       /* target prompt size */
    enum lk_cell_mark mark;
    char note[240];
    double prompt_n, cached_n, predicted_n; /* -1 unknown */
    double ttft_s, prefill_tps, tps;        /* tokens a second after the first */
    double accept, ms_round, tokens_round;  /* -1 without drafts */
    double gb_round, gbs;                   /* bytes a round must move, 1e9, and the rate that makes; -1 without a model to count them */
    double gflops;                          /* of an op, 1e9 a second; -1 elsewhere */
    char finish[24];
};

/* What is known of the machine and model, for the physics check; gbs 0: no check. */
struct lk_physics {
    double gbs;                                       /* measured read bandwidth of one device */
    double (*round)(const void *f, double ctx, int draft); /* bytes a round moves on one device */
    const void *f;
};

/* A round of c->ms_round that must move so many bytes: fills gb_round and gbs, and refuses what p's bandwidth does not allow. */
void lk_cell_bytes(struct lk_cell *c, double bytes, int draft, const struct lk_physics *p);
void lk_cell_judge(struct lk_cell *c, const struct lk_call *k, const struct lk_physics *p);
const char *lk_cell_mark_name(enum lk_cell_mark m);

struct lk_spread {
    int n;
    double mean, min, max, median;
};
/* v is sorted in place. */
void lk_spread_make(struct lk_spread *s, double *v, int n);

#endif
