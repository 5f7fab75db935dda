/* Plain options, one struct a later stage; filled by args.c from the one table of flags. No meaning here. */
#ifndef LK_ARGS_OPTIONS_H
#define LK_ARGS_OPTIONS_H

#include <stdint.h>

#define LK_MAX_DEVICES 8
#define LK_MAX_STOPS 16

enum lk_opt_kv { LK_OPT_KV_AUTO = -1, LK_OPT_KV_I8 = 0, LK_OPT_KV_BF16 = 1, LK_OPT_KV_F32 = 2 };

/* Which devices, and how: --devices cpu | cpu,cpu | cuda:0 | cuda:0,1; --threads N; --image sm_70; --transport NAME */
struct lk_opts_device {
    int n;                   /* devices = ranks, at least 1 */
    struct { int is_cuda, index; } at[LK_MAX_DEVICES];
    int threads;             /* CPU threads a rank; 0: cores / ranks */
    char isa[16], image[16], transport[16];
};

struct lk_opts_engine {
    const char *model;       /* path; NULL: the bundled model */
    struct lk_opts_device dev;
    int kv;                  /* enum lk_opt_kv; AUTO: int8 for run and serve, f32 for score */
    int ctx;                 /* tokens a session may have; 0: as the model and memory allow */
    int parallel;            /* sessions running in one step, 1..8 */
    int draft;               /* -1 auto, 0..7 */
    int draft_window, chunk; /* 0: default */
    int64_t prefix_ram, prefix_disk; /* bytes for the prefix store */
    const char *prefix_dir;
};

struct lk_opts_sampling { /* NAN / -1: not given */
    double temp, top_p, min_p, presence, frequency, repetition;
    int top_k;
    int64_t seed;            /* -1: random */
};

#endif
