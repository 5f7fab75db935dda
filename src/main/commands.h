/* The subcommands. Each is one file of src/main: it gets parsed options and returns 0 or a negative lk_code with e filled;
 * main.c prints the error and turns the code into the exit status. */
#ifndef LK_MAIN_COMMANDS_H
#define LK_MAIN_COMMANDS_H

#include "args/args.h"

int cmd_run(struct lk_opts *o, struct lk_err *e);
int cmd_score(struct lk_opts *o, struct lk_err *e);
int cmd_tokenize(struct lk_opts *o, struct lk_err *e);
int cmd_inspect(struct lk_opts *o, struct lk_err *e);
int cmd_convert(struct lk_opts *o, struct lk_err *e);
int cmd_serve(struct lk_opts *o, struct lk_err *e);
int cmd_worker(struct lk_opts *o, struct lk_err *e); /* hidden: serve's engine process */
int cmd_follower(struct lk_opts *o, struct lk_err *e); /* hidden: a rank */
int cmd_bench(struct lk_opts *o, struct lk_err *e);
int cmd_probe(struct lk_opts *o, struct lk_err *e);

/* Path of the bundled model: $LAOKA_DATA/demo, else models/demo beside the build folder of the program, else
 * ../share/laoka/models/demo from it. Fills buf; NULL and an error when it is nowhere. */
const char *lk_bundled_model(struct lk_buf *buf, struct lk_err *e);
/* o->engine.model, or the bundled one (kept for the life of the program). */
const char *lk_model_path(struct lk_opts *o, struct lk_err *e);

#endif
