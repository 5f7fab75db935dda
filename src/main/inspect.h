/* What `laoka inspect` found: filled by cmd_inspect.c, printed by inspect_print.c. */
#ifndef LK_MAIN_INSPECT_H
#define LK_MAIN_INSPECT_H

#include "artifact/artifact.h"
#include "model/forecast.h"
#include "model/shape.h"
#include "runtime/need.h"
#include "text/chat.h"

enum { INSPECT_CTX = 3, INSPECT_RANKS = 64 };

struct inspect_column { /* of the memory tables */
    int rank, n, fails; /* fails: this model cannot run on n devices */
    struct lk_need need[INSPECT_CTX];
    double card[INSPECT_CTX]; /* on a GPU: weights, KV and state */
};

struct inspect_part { /* a rank file, or all of the model */
    size_t tensors;
    double bytes;
};

#define INSPECT_FRONT 3.6e6 /* bytes that serve's front has beside such a process: event loop, sockets, the page; measured, 3.4 to 4.1 MB */

struct inspect {
    struct lk_artifact *a;      /* of rank 0 */
    int ranks;                  /* 0: no rank files */
    enum lk_kv_kind kv;
    struct lk_shape shape;
    struct lk_err shape_err;    /* code 0: laoka can run this shape */
    int32_t vocab;              /* tokens of the tokenizer; -1: none, -2: cannot be read */
    struct lk_err tokenizer_err;
    int has_template;
    enum lk_dialect dialect;
    struct { size_t count; double bytes; enum lk_fmt runs_as; int in_place; } fmt[LK_FMT_COUNT]; /* runs_as: after lk_repack; in_place: not on the CPU */
    int ctx[INSPECT_CTX], n_ctx;
    struct inspect_column col[INSPECT_RANKS];
    int n_cols;
    struct inspect_part part[INSPECT_RANKS];
    int n_parts;
    size_t tensors;
    double bytes, step, draft;  /* of all parts: as stored; read by a decode step, by a draft pass */
    double step_most;           /* read by one device in a step */
    double process;             /* resident bytes of a process that has opened directory and tokenizer, as serve's front has */
};

int inspect_json(const struct inspect *x, struct lk_err *e);
void inspect_text(const struct inspect *x);

#endif
