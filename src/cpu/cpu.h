/* The CPU backend's own view of a device and of a loaded linear. Only files of src/cpu include
 * this.
 *
 * A device is a pool of threads, one set of work buffers reserved at check and mat_load, and a
 * table of ops that the chosen instruction set fills. Ops run at once; a failure is kept in `err`
 * until the next sync or download. */
#ifndef LK_CPU_CPU_H
#define LK_CPU_CPU_H

#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "dev/dev.h"
#include "dev/ops.h"

#include <stddef.h>
#include <stdint.h>

#define CPU_SMALL_ROWS 16 /* up to here a linear reads each weight once and is batch-invariant */

struct cpu_buf { /* work memory: grown outside steps only, content never kept */
    void *p;
    size_t bytes;
};

struct cpu_kern; /* kern.h: one instruction set's kernels */

struct cpu_dev {
    struct lk_dev base; /* first: a lk_dev * is a cpu_dev * */
    struct lk_ops ops;
    struct lk_pool *pool;
    int threads;
    const char *isa;
    const struct cpu_kern *kern; /* NULL for "ref" */
    struct lk_err err;           /* first failure since open; sticky */
    struct lk_dev_need need;     /* zero before check */
    int64_t max_k;               /* longest row of any mat loaded so far */
    struct cpu_buf row;          /* threads x row scratch (see cpu_reserve_rows) */
    struct cpu_buf work;         /* one op's whole-step scratch */
    struct cpu_buf worker;       /* threads x kernel scratch of worker_bytes */
    size_t worker_bytes;
};

/* One weight of a mat, as the kernels read it: the caller's bytes, or `owned` after a repack. */
struct cpu_part {
    struct lk_weight w;
    const float *table; /* NVFP4: f32 of each scale code, four times each; inside `owned` */
    int kern;           /* index of the instruction set's decoder for this format */
    void *owned;
    const struct cpu_part *turn; /* LK_FMT_ROWS: its two weights; NULL elsewhere */
};

struct lk_mat {
    struct lk_mat_head head; /* first: lk_mat_head() reads it */
    struct cpu_part *parts;  /* head.n_parts, and behind them two for the turns of each */
};

/* Rows that kernels take at once from one weight: a run of LK_FMT_ROWS holds whole ones. */
#define CPU_ROWS 16

/* The weight that holds row *row of p, and the row in it. */
static inline const struct cpu_part *cpu_turn(const struct cpu_part *p, int64_t *row)
{
    if (!p->turn) return p;
    const struct lk_rows *r = p->w.data;
    int64_t period = r->run[0] + r->run[1], i = *row / period, o = *row % period;
    int second = o >= r->run[0];
    *row = i * r->run[second] + (second ? o - r->run[0] : o);
    return p->turn + second;
}

static inline struct cpu_dev *cpu_of(struct lk_dev *d)
{
    return (struct cpu_dev *)d;
}

/* Makes b at least `bytes` long (64-byte aligned). 0 or LK_ENOMEM; the old buffer stays valid on
 * failure. */
int cpu_buf_grow(struct cpu_buf *b, size_t bytes, const char *what, struct lk_err *e);
/* One op's scratch of `bytes` inside `work`; NULL (and a sticky error naming the op) when check
 * reserved less. */
void *cpu_work(struct cpu_dev *c, size_t bytes, const char *op);
/* Worker w's row scratch: max_k floats. */
float *cpu_row(struct cpu_dev *c, int worker);

/* The oracle's ops (ref.c, ref_attn.c, ref_gdn.c) and what they need in `work` for a model. */
void cpu_ref_ops(struct lk_ops *o);
size_t cpu_ref_work(const struct lk_dev_need *n, int threads);
void cpu_ref_attn(struct lk_dev *d, const struct lk_attn_args *a);
void cpu_ref_gdn(struct lk_dev *d, const struct lk_gdn_args *a);
void cpu_ref_gdn_fold(struct lk_dev *d, const struct lk_gdn_fold_args *a);
/* The tail of every linear: the norm it was asked for. */
void cpu_next_norm(struct lk_dev *d, const struct lk_linear_args *a);

#endif
