/* The command line: one table of flags (flags.c) drives parsing, help and --print-config for every subcommand, so that a flag
 * shown in help is a flag that works. */
#ifndef LK_ARGS_ARGS_H
#define LK_ARGS_ARGS_H

#include "args/options.h"
#include "base/buf.h"
#include "base/err.h"

/* One bit a subcommand: which flags it takes. */
enum lk_cmd {
    LK_CMD_RUN = 1,
    LK_CMD_SCORE = 2,
    LK_CMD_TOKENIZE = 4,
    LK_CMD_INSPECT = 8,
    LK_CMD_CONVERT = 16,
    LK_CMD_SERVE = 32,
    LK_CMD_BENCH = 64,
    LK_CMD_PROBE = 128,
    LK_CMD_WORKER = 256, /* hidden: the engine process that serve starts */
    LK_CMD_FOLLOWER = 512, /* hidden: a rank that its leader starts */
    LK_CMD_ALL = 1023,
};

/* All defaults. */
void lk_opts_init(struct lk_opts *o);
/* argv[0] is the subcommand. LK_EUSAGE names the flag and what it takes. Returns 1 when --help was asked for. */
int lk_opts_parse(struct lk_opts *o, enum lk_cmd cmd, int argc, char **argv, struct lk_err *e);
/* Flags of a subcommand, one a line with default and help. */
void lk_opts_help(enum lk_cmd cmd, struct lk_buf *out);
/* Every flag of cmd with the value in force: "--ctx 8192". */
void lk_opts_print(const struct lk_opts *o, enum lk_cmd cmd, struct lk_buf *out);
/* "cpu,cpu" or "cuda:0,1" */
int lk_opts_devices(struct lk_opts_device *d, const char *text, struct lk_err *e);
/* and back: the word that --devices takes */
void lk_opts_devices_put(const struct lk_opts_device *d, struct lk_buf *out);

#endif
