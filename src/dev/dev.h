/* A device: memory, one in-order stream, and a table of ops. Two backends answer to this contract, src/cpu and
 * src/cuda; callers see only this header. All ops of ops.h are asynchronous in the device's stream order (the CPU
 * backend simply runs them); lk_dev_sync waits. Nothing in a step allocates.
 *
 * Threads: a device belongs to one thread at a time.
 * Errors: ops do not return codes. A failure (a launch that fails, a sticky device error) is remembered and reported
 * by the next lk_dev_sync or download as LK_EDEVICE; shapes a kernel cannot take are refused when weights are loaded
 * (mat_load) or the model is opened (check), never in a step. */
#ifndef LK_DEV_DEV_H
#define LK_DEV_DEV_H

#include "base/err.h"
#include "dev/format.h"

#include <stddef.h>
#include <stdint.h>

struct lk_pool;
struct lk_dev;
struct lk_mat; /* a loaded linear: opaque, made by mat_load */
struct lk_ops; /* ops.h */

/* How the parts given to mat_load relate. */
enum lk_mat_kind {
    LK_MAT_STACK = 0,   /* y = [x W0^T | x W1^T | ...], formats may differ a part */
    LK_MAT_GATE_UP = 1, /* two parts of equal shape; used by op gate_up only */
    LK_MAT_EMBED = 2,   /* rows are looked up; may also be used as a head (tied) */
    LK_MAT_ROUGH = 3,   /* a STACK that only drafts read: a device whose `rough` is set keeps a smaller copy of its own and may
                         * round weights and inputs to a few bits; not batch-invariant. Elsewhere a STACK */
};

/* What a kernel must know of the model to say at open whether it can run it. */
struct lk_dev_need {
    int hidden, inter, n_q, n_kv, head_dim, rope_dim, hk, hv, gdn_dim, conv_k, vocab;
    int max_rows, max_lanes;
    int max_ctx; /* positions of a lane; 0: any number */
};

struct lk_dev_info {
    char name[96];      /* "cpu (2 threads, avx2)", "NVIDIA H200, sm_90" */
    int is_cuda, index;
    size_t mem_total, mem_free; /* bytes, now */
    size_t work;        /* host bytes that check and mat_load reserved for the ops */
};

struct lk_dev {
    const struct lk_ops *ops;
    size_t act_bytes; /* bytes of one element of a linear's input: 4 (f32, CPU) or 2 (f16, CUDA) */
    int small_rows;   /* T up to which linears are batch-invariant (at least 16) */
    double rough;     /* bytes a weight that the copy of a LK_MAT_ROUGH takes; 0: no copy is made */

    void (*close)(struct lk_dev *d);
    void (*info)(struct lk_dev *d, struct lk_dev_info *out);
    /* Refuses a model whose sizes no kernel takes, naming the size; reserves all workspace the ops will need. Called once,
     * before the first op. */
    int (*check)(struct lk_dev *d, const struct lk_dev_need *need, struct lk_err *e);

    /* Memory. alloc returns NULL when there is none; zeroed; `what` names it in the memory report. */
    void *(*alloc)(struct lk_dev *d, size_t bytes, const char *what);
    void (*free)(struct lk_dev *d, void *p);
    /* Stream-ordered copies. upload: the source may be reused on return. download: returns when the data is there,
     * 0 or LK_EDEVICE. copy: device to device. */
    void (*upload)(struct lk_dev *d, void *dst, const void *src, size_t bytes);
    int (*download)(struct lk_dev *d, void *dst, const void *src, size_t bytes, struct lk_err *e);
    void (*copy)(struct lk_dev *d, void *dst, const void *src, size_t bytes);
    void (*fill)(struct lk_dev *d, void *dst, int byte, size_t bytes);
    int (*sync)(struct lk_dev *d, struct lk_err *e);

    /* Loads a linear of `n_parts` weights that share their input. The CPU keeps pointers into the sources where it
     * can (they must outlive the mat); CUDA copies and repacks. Refuses formats or sizes it has no kernel for. */
    int (*mat_load)(struct lk_dev *d, enum lk_mat_kind kind, const struct lk_weight *parts, int n_parts,
                    struct lk_mat **out, struct lk_err *e);
    void (*mat_free)(struct lk_dev *d, struct lk_mat *m);
    /* Does mat_load take this weight as it lies, though its format is one behind LK_FMT_KERNELS? NULL: none of them; such a weight goes
     * through lk_repack first. */
    int (*in_place)(const struct lk_dev *d, const struct lk_weight *w);

    /* Graph capture. graph_begin(key) returns 1 when a graph with this key was replayed (the caller skips issuing
     * ops), 0 when ops must be issued (they are being captured if the backend captures; ended by graph_end). The key
     * covers everything that is not read from device arrays. The CPU always returns 0. graph_reset drops all. */
    int (*graph_begin)(struct lk_dev *d, uint64_t key);
    void (*graph_end)(struct lk_dev *d);
    void (*graph_reset)(struct lk_dev *d);
};

/* src/cpu/cpu_dev.c. isa: NULL picks the best, else "ref", "scalar", "avx2", "avx512" (for tests and bench). */
int lk_cpu_open(struct lk_dev **out, int threads, const char *isa, struct lk_err *e);
/* src/cuda/cuda_dev.c; dev/dev.c answers with an error in a build without CUDA.
 * image: NULL picks the best for the card, "sm_70" forces the Volta image (its PTX on newer cards). */
int lk_cuda_open(struct lk_dev **out, int index, const char *image, struct lk_err *e);
int lk_cuda_count(void); /* 0 without driver, card or CUDA build */

/* rows, columns and bytes of a mat: sums over its parts (both backends put this first in struct lk_mat) */
struct lk_mat_head {
    enum lk_mat_kind kind;
    int n_parts;
    int64_t n, k;   /* n: all parts together */
    size_t bytes;   /* read once a use, as stored on the device */
};
static inline const struct lk_mat_head *lk_mat_head(const struct lk_mat *m)
{
    return (const struct lk_mat_head *)m;
}

#endif
