/* Where the time of a step goes: each op (CPU) or kernel (CUDA) timed alone and summed by name. A profile costs time itself (clocks or events between
 * kernels, no graphs), so its shares are true and its total is not. One device at a time. */
#ifndef LK_DEV_PROF_H
#define LK_DEV_PROF_H

#include "dev/dev.h"

struct lk_prof_row {
    const char *name; /* of the op or kernel; lives as long as the program */
    uint64_t calls;
    double ms, bytes; /* bytes 0: not known */
};
int lk_profile_on(struct lk_dev *d, struct lk_err *e);
int lk_profile_read(struct lk_dev *d, struct lk_prof_row *rows, int cap); /* rows filled; starts again */
void lk_profile_off(struct lk_dev *d);

/* The kind of work that an op or kernel name stands for: an index into lk_prof_families. */
#define LK_PROF_FAMILIES 5
extern const char *const lk_prof_families[LK_PROF_FAMILIES];
int lk_prof_family(const char *name);

/* src/cuda/profile.c; dev/dev.c in a build without CUDA */
int lk_cuda_profile_on(struct lk_dev *d, struct lk_err *e);
int lk_cuda_profile_read(struct lk_dev *d, struct lk_prof_row *rows, int cap);
void lk_cuda_profile_off(struct lk_dev *d);

#endif
