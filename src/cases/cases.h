/* Cases of the ops: one table, devices opened by name, and the helpers that a family of cases
 * needs. It drives check (tests/ops), `laoka bench ops` and the list of what is supported
 * (test_ops --list); any backend that answers to dev/dev.h can be the one under test, the
 * oracle is always cpu "ref".
 *
 * Inputs are drawn from a fixed seed a case and rounded to f16, so that a backend whose activations
 * are f16 gets the very same numbers as the oracle. Everything goes through lk_dev alloc, upload
 * and download: nothing here knows a device. */
#ifndef LK_CASES_CASES_H
#define LK_CASES_CASES_H

#include "base/err.h"
#include "dev/dev.h"
#include "dev/ops.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct op_case;

/* What an op answered, in f32 on the host. tol: allowed |dev - ref| <= tol * (|ref| + rms(ref)); 0:
 * bits must agree. */
struct op_out {
    const char *name;
    float *v;
    size_t n;
    double tol;
    int act; /* stored in the device's activation type: f16 adds half a unit in its last place */
};

/* One case set up on one device. Families keep their own fields behind it. */
struct op_run {
    struct lk_dev *d;
    const struct op_case *c;
    void *dev_mem[64], *host_mem[64];
    struct lk_mat *mats[4];
    int n_dev, n_host, n_mats;
    struct op_out out[4];
    int n_out;
    int failed; /* an allocation, a load or a device error: why[] says which, and a warning was logged */
    char why[200];
    void *fam;  /* the family's state (ot_host) */
};

struct op_family {
    const char *op;
    void (*setup)(struct op_run *r); /* inputs to the device */
    void (*issue)(struct op_run *r); /* the op, once; may be repeated by the bench */
    void (*fetch)(struct op_run *r); /* outputs: ot_out_f32 and friends */
    void (*cost)(const struct op_case *c, double *bytes,
                 double *flops); /* weights and state read, 2 a multiply-add */
};

enum { OP_CHECK = 1, OP_BENCH = 2, OP_LONG = 4 }; /* LONG: a check that takes seconds or gigabytes, only when asked for */

struct op_case {
    const struct op_family *f;
    char name[96];
    int use;         /* OP_CHECK | OP_BENCH | OP_LONG */
    double tol;      /* of the main output */
    const char *why; /* the reason for tol */
    int p[12];       /* the family's parameters */
};

struct op_table {
    struct op_case *v;
    int n, cap;
};

/* Adds a case; name is a format. Returns it, or NULL when there is no memory. */
struct op_case *ot_add(struct op_table *t, const struct op_family *f, int use, double tol,
                       const char *why, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
void ot_table_free(struct op_table *t);
/* The whole table (cases.c lists the families). */
int ot_table_all(struct op_table *t);

/* "ref", "scalar", "avx2", "avx512", "cpu" (the best) or "cuda:N". image: see lk_cuda_open.
 * threads: CPU only, 0 all. check is called with the largest sizes of the table. */
int ot_open(struct lk_dev **d, const char *name, const char *image, int threads, struct lk_err *e);

/* ---- for families ---- */
void *ot_host(struct op_run *r, size_t bytes);                 /* zeroed; freed with the run */
void *ot_dev(struct op_run *r, size_t bytes);                  /* device memory, zeroed */
void *ot_up(struct op_run *r, const void *src, size_t bytes);  /* uploaded copy */
void *ot_up_act(struct op_run *r, const float *src, size_t n); /* uploaded as the activation type */
struct lk_mat *ot_mat(struct op_run *r, enum lk_mat_kind k, const struct lk_weight *w, int n);
float *ot_rand(struct op_run *r, size_t n, double scale); /* about normal, rounded to f16 */
void ot_out_f32(struct op_run *r, const char *name, const void *dev, size_t n, double tol);
void ot_out_act(struct op_run *r, const char *name, const void *dev, size_t n, double tol);
void ot_out_i32(struct op_run *r, const char *name, const void *dev, size_t n); /* exact */

/* A random weight of a format with values of about 1/sqrt(k), its bytes owned by the run. group:
 * columns a scale (I8, Q4, CT), or rows/columns of an FP8 block. */
void ot_weight(struct op_run *r, struct lk_weight *w, enum lk_fmt f, int64_t n, int64_t k,
               int64_t group);
uint32_t ot_random(void); /* 32 bits from the run's stream */
void ot_seed(uint64_t seed);
double ot_normal(void);

/* ---- driving ---- */
void ot_run_begin(struct op_run *r, const struct op_case *c, struct lk_dev *d); /* setup */
void ot_run_do(struct op_run *r); /* issue and fetch */
void ot_run_end(struct op_run *r);
/* Largest used share of the tolerance over all outputs; > 1 fails. Prints the first excess. */
double ot_compare(const struct op_run *ref, const struct op_run *dev);
int ot_same_bits(const struct op_run *a, const struct op_run *b);

/* Families, one file each; they add their cases to the table. */
void cases_linear(struct op_table *t);
void cases_vector(struct op_table *t);
void cases_attn(struct op_table *t);
void cases_gdn(struct op_table *t);

/* Batch invariance: rows alone against rows together, on one device. Return the number of
 * differences, printed. */
int invariant_linear(struct lk_dev *d);
int invariant_attn(struct lk_dev *d);
int invariant_gdn(struct lk_dev *d);
/* NaN codes of FP8 answer NaN (the CPU; the number of wrong outputs). */
int nan_linear(struct lk_dev *d);
int odd_x_linear(struct lk_dev *d);

#endif
