/* What a GPU and its links really do, measured on the device: the part of `laoka probe` that needs kernels. src/cuda/measure.c answers in a
 * CUDA build; without one dev/dev.c says so. Data is checked on every link: a path that is reported good and delivers zeros is named. */
#ifndef LK_DEV_MEASURE_H
#define LK_DEV_MEASURE_H

#include "base/err.h"

#include <stddef.h>

#define LK_LINK_SIZES 5 /* 4 KB, 64 KB, 1 MB, 16 MB, 256 MB */
static const size_t lk_link_bytes[LK_LINK_SIZES] = {4096, 65536, 1 << 20, 1 << 24, 1 << 28};

struct lk_link_measure {
    double us, gbs; /* one transfer, median */
    int ok;         /* the bytes that arrived were the bytes sent */
};

struct lk_gpu_measure {
    double read_gbs;    /* 1 GB read */
    double copy_gbs;    /* device copy, read + written */
    double fp16_tflops; /* cuBLAS 8192^3 (smaller on small cards), f32 accumulation; 0 without cuBLAS */
    double launch_us;   /* empty kernel in a stream */
    double graph_us;    /* empty kernel as a graph node */
    double chain_us;    /* what a kernel of a chain costs beyond its bytes: it begins when the one before it has ended */
    struct lk_link_measure h2d[LK_LINK_SIZES], d2h[LK_LINK_SIZES], d2d[LK_LINK_SIZES];
    int has_code;       /* this build has an image for the card */
    char image[32];     /* which: "sm_90" */
};

struct lk_peer_measure {
    int claimed, proven; /* driver says peer access works; we saw right data */
    struct lk_link_measure to[LK_LINK_SIZES];
};

/* the read bandwidth alone */
int lk_cuda_measure_read(int index, double *gbs, struct lk_err *e);
int lk_cuda_measure(int index, struct lk_gpu_measure *m, struct lk_err *e);
int lk_cuda_measure_peer(int from, int to, struct lk_peer_measure *m, struct lk_err *e);

#endif
