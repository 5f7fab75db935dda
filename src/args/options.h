/* Plain options, one small struct for each later stage; filled by args.c from the one table of flags (flags.c).
 * No meaning here: strings point into argv and live as long as the program. */
#ifndef LK_ARGS_OPTIONS_H
#define LK_ARGS_OPTIONS_H

#include <stdint.h>

#define LK_MAX_DEVICES 8
#define LK_MAX_STOPS 16

enum lk_opt_kv { LK_OPT_KV_AUTO = -1, LK_OPT_KV_I8 = 0, LK_OPT_KV_BF16 = 1, LK_OPT_KV_F32 = 2 };
/* the order of enum lk_think (text/chat.h) */
enum lk_opt_think { LK_OPT_THINK_DEFAULT = 0, LK_OPT_THINK_OFF, LK_OPT_THINK_LOW, LK_OPT_THINK_MEDIUM, LK_OPT_THINK_XHIGH };

/* Which devices, and how: --devices auto | cpu | cpu,cpu | cuda:0 | cuda:0,1 */
struct lk_opts_device {
    int automatic; /* not said: lk_rank_devices_choose decides; until then one CPU */
    int n; /* devices = ranks, at least 1 */
    struct {
        int is_cuda, index;
    } at[LK_MAX_DEVICES];
    int threads; /* CPU threads a rank; 0: cores / ranks */
    const char *isa, *image, *transport; /* NULL: the best there is */
    const char *program;                 /* started for further ranks; NULL: this program. For programs that embed the engine */
    const char *fault;                   /* tests: damage done by a rank (tp/faults.h) */
    const char *rank_log;                /* folder: each rank writes its record of every step; NULL: none */
    double patience_s;                   /* silence of a rank that stops all; 0: default */
};

struct lk_opts_engine {
    const char *model; /* path; NULL: the bundled model */
    struct lk_opts_device dev;
    int kv;                          /* enum lk_opt_kv; AUTO: int8 for run and serve, f32 for score */
    int ctx;                         /* tokens a session may have; 0: as the model and memory allow */
    int parallel;                    /* sessions running in one step, 1..8 */
    int draft;                       /* -1 auto, 0..7 */
    int draft_window;                /* 0: the draft layer looks back on the whole context */
    int chunk;                       /* prefill rows a step; 0: default */
    int64_t prefix_ram, prefix_disk; /* bytes for the prefix store; -1: default */
    const char *prefix_dir;          /* NULL: no disk tier */
};

struct lk_opts_sampling { /* NAN / -1: not given */
    double temp, top_p, min_p, presence, frequency, repetition;
    int top_k;
    int64_t seed; /* -1: random */
};

struct lk_opts_run {
    const char *prompt, *messages, *raw, *session;
    const char *stop[LK_MAX_STOPS];
    int n_stop, max_tokens, think;
};

struct lk_opts_score {
    const char *ids, *logits, *hidden, *mtp;
};

struct lk_opts_tokenize {
    const char *text, *file, *messages;
    int render;
};

struct lk_opts_convert {
    const char *recipe;
    int tp, verify, force;
};

struct lk_opts_serve {
    const char *host, *api_key_file, *cors, *name;
    int port, queue, timeout_s, max_body_mb, keepalive_s, watchdog_s;
};

struct lk_opts_follower {
    int rank, fd;
    const char *nonce;
};

struct lk_opts_bench {
    const char *url, *out, *sizes, *kinds, *api_key, *tokenizer;
    const char *mode, *text_file; /* users: load, burst, drop; kind "file" */
    const char *accept, *prefill, *only; /* rounds: shares, prompt sizes; ops: part of a name */
    int new_tokens, users, seeds, resume, rounds, cpu_time, layers;
    double gbs, stall_s, seconds; /* physics check, silence (0: default); ops: of a case */
    int64_t offset;       /* of block numbers; -1: by the clock */
};

struct lk_opts {
    struct lk_opts_engine engine;
    struct lk_opts_sampling sampling;
    struct lk_opts_run run;
    struct lk_opts_score score;
    struct lk_opts_tokenize tokenize;
    struct lk_opts_convert convert;
    struct lk_opts_serve serve;
    struct lk_opts_bench bench;
    struct lk_opts_follower follower;
    const char *nvml; /* probe: another NVML library */
    int json, quiet, print_config;
    const char *args[8]; /* words that are no flags */
    int n_args;
};

#endif
