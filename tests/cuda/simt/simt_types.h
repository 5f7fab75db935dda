/* What the kernels (simt.h, C++) and the libcuda that runs them (simt.c, C) share. */
#ifndef SIMT_TYPES_H
#define SIMT_TYPES_H

#include <stddef.h>
#include <stdint.h>

struct simt_dim {
    unsigned x, y, z;
};

/* One lane's operands of a warp instruction. Two turns, because a lane may reach the next one before all have read. */
struct simt_slot {
    uint32_t u[2];
    float m[8];
};

struct simt_warp {
    struct simt_slot slot[2][32];
};

struct simt_lane {
    struct simt_dim thread;
    struct simt_warp *warp;
    unsigned turn;
};

struct simt_kernel {
    const char *name;
    void (*call)(void **args);
    const size_t *sizes;
    int n_args;
};

#endif
