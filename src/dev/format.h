/* Weight formats: the vocabulary shared by artifact (which finds weights), dev backends (which compute
 * with them) and convert (which writes them).
 *
 * A `struct lk_weight` describes one matrix W [n, k] (n outputs, k inputs, y = x W^T) as it lies in memory,
 * usually inside a mapped file. It owns nothing. Every format has one exact scalar decode, lk_weight_row,
 * which is the oracle of the loaders, of `convert --verify` and of every kernel. */
#ifndef LK_DEV_FORMAT_H
#define LK_DEV_FORMAT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct lk_pool;

/* Scalar storage types (of whole tensors and of scales). */
enum lk_dtype {
    LK_DT_NONE = 0,
    LK_DT_F32,
    LK_DT_F16,
    LK_DT_BF16,
    LK_DT_F8E4M3,
    LK_DT_E8M0,
    LK_DT_U8,
    LK_DT_I8,
    LK_DT_I16,
    LK_DT_I32,
    LK_DT_I64,
    LK_DT_F64,
    LK_DT_BOOL,
    LK_DT_F8E5M2,
    LK_DT_COUNT
};
const char *lk_dtype_name(enum lk_dtype t); /* safetensors spelling: "BF16", "F8_E4M3", ... */
size_t lk_dtype_bytes(enum lk_dtype t);     /* 0 for NONE */
float lk_dtype_get(enum lk_dtype t, const void *base, int64_t i); /* element i as f32 */

/* data / scale / zero by format. g = group (columns that share a scale), wrap-up in format.c. */
enum lk_fmt {
    LK_FMT_NONE = 0,
    LK_FMT_F32,
    LK_FMT_F16,
    LK_FMT_BF16, /* data [n,k] row-major, no scale */
    LK_FMT_FP8,  /* data e4m3 [n,k]; scale [ceil(n/block_n), ceil(k/block_k)] of scale_dtype; value = code*scale.
                    Official blocks: 128 x 128. A channel: block_n 1, block_k k. A tensor: block_n n, block_k k. */
    LK_FMT_NVFP4, /* data [n,k/2], low nibble = even column, e2m1; scale e4m3 [n,k/16];
                     value = e2m1 * (f32(scale) / global) when global_div, else e2m1 * (f32(scale) * global) */
    LK_FMT_I8,    /* data int8 [n,k]; scale [n, k/group] (group = k: one a row); value = code*scale. laoka's w8 too */
    LK_FMT_Q4,    /* data [n,k/2], low nibble = even column, code - 8; scale [n,k/group]: laoka's own q4 */
    LK_FMT_CT4,   /* compressed-tensors pack-quantized: i32 [n, ceil(k/8)], low nibble first; scale [n,k/group];
                     zero i32 packed along n: [ceil(n/8), k/group] or NULL; code-8-(zero-8); gidx or NULL */
    LK_FMT_CT8,   /* the same with 8-bit codes, offset 128 */
    LK_FMT_GPTQ4, /* data i32 [k/8, n]; scale [k/g, n]; zero i32 [k/g, n/8] (zero_plus1: v1 stores z-1); gidx i32[k] */
    LK_FMT_GPTQ8, /* the same, 4 codes a word */
    LK_FMT_AWQ4,  /* data i32 [k, n/8], nibble order 0,4,1,5,2,6,3,7; zero i32 [k/g, n/8]; scale [k/g, n] */
    /* GGUF block formats: data = rows of whole blocks, row_bytes each */
    LK_FMT_GG_Q4_0,
    LK_FMT_GG_Q4_1,
    LK_FMT_GG_Q5_0,
    LK_FMT_GG_Q5_1,
    LK_FMT_GG_Q8_0,
    LK_FMT_GG_Q2_K,
    LK_FMT_GG_Q3_K,
    LK_FMT_GG_Q4_K,
    LK_FMT_GG_Q5_K,
    LK_FMT_GG_Q6_K,
    LK_FMT_GG_IQ4_NL,
    LK_FMT_GG_IQ4_XS,
    LK_FMT_GG_IQ3_S,
    LK_FMT_GG_IQ3_XXS,
    LK_FMT_GG_IQ2_S,
    LK_FMT_GG_IQ2_XS,
    LK_FMT_GG_IQ2_XXS,
    LK_FMT_GG_MXFP4,
    LK_FMT_KERNELS, /* every format below this one has kernels on every device */
    /* .ninfer storage layouts. A device says which of them it reads in place (lk_dev's in_place); lk_repack turns the rest into the nearest
     * format above without loss. */
    LK_FMT_N_Q4 = LK_FMT_KERNELS, /* data [n,k/2], low nibble = even column, two's complement; scale f16 [n,k/64] */
    LK_FMT_N_Q5,     /* the same, and zero: bit 4 of the codes [n,k/8], low bit first */
    LK_FMT_N_Q6,     /* the same, and zero: bits 4, 5 of the codes [n,k/4] */
    LK_FMT_NVFP4_T,  /* NVFP4 whose scales lie in tiles of 128 rows x 4 groups; k a multiple of 64 */
    LK_FMT_ROWS,     /* data: a struct lk_rows: rows of two weights in turns */
    LK_FMT_COUNT
};

struct lk_weight {
    enum lk_fmt fmt;
    int64_t n, k;
    const void *data, *scale, *zero;
    const int32_t *gidx;       /* column -> group, or NULL: column / group */
    enum lk_dtype scale_dtype;
    int64_t block_n, block_k;  /* FP8 */
    int64_t group;             /* columns a scale */
    float global;              /* NVFP4; 1 elsewhere */
    uint8_t global_div, zero_plus1;
};

/* Rows of two weights in turns: run[0] rows of part[0], run[1] of part[1], and again. */
struct lk_rows {
    struct lk_weight part[2];
    int64_t run[2];
};

struct lk_fmt_info {
    const char *name;   /* "nvfp4", "fp8", "q4_k", as inspect prints it */
    int block, block_bytes; /* GGUF: elements and bytes a block; 0 elsewhere */
    float bits;         /* payload bits an element, scales included, at the usual group */
};
const struct lk_fmt_info *lk_fmt_info(enum lk_fmt f);

/* Bytes of data, scale and zero together: what reading the whole matrix once moves. */
size_t lk_weight_bytes(const struct lk_weight *w);
size_t lk_weight_data_bytes(const struct lk_weight *w);
size_t lk_weight_scale_bytes(const struct lk_weight *w);
size_t lk_weight_zero_bytes(const struct lk_weight *w); /* of the array behind `zero`, when there is one */
/* By the name that lk_fmt_info gives; LK_FMT_NONE: no such format. */
enum lk_fmt lk_fmt_find(const char *name);
enum lk_dtype lk_dtype_find(const char *name);

/* Decodes columns [k0, k0+count) of row `row` to f32, exactly as the publisher's reference does. Any k0, any count
 * inside the row. Slow and plain: the oracle. */
void lk_weight_row(const struct lk_weight *w, int64_t row, int64_t k0, int64_t count, float *out);

/* Formats whose value is code * scale + min, lo <= code <= hi, scale and min the same for `run` columns (16 or 32, aligned). */
struct lk_affine {
    int run, lo, hi, has_min;
};
/* Returns the run, 0 for every other format and for columns in another order (gidx). */
int lk_weight_affine(const struct lk_weight *w, struct lk_affine *a);
/* Scale and min of the run that holds column k. */
void lk_weight_run(const struct lk_weight *w, int64_t row, int64_t k, float *scale, float *min);

/* The same values in a format that every device reads, for LK_FMT_N_Q4 .. LK_FMT_ROWS; every other weight is returned as it is. Never rounds. *own
 * receives a block to lk_free when the result is no longer used, or NULL; scales and codes that can stay are used in place. */
int lk_repack(const struct lk_weight *w, struct lk_weight *out, void **own, struct lk_pool *pool, struct lk_err *e);
/* What lk_repack will make of it: the format, the whole weight without its bytes (data, scale and zero are still w's), and the size of its block. */
enum lk_fmt lk_repack_fmt(const struct lk_weight *w);
size_t lk_repack_plan(const struct lk_weight *w, struct lk_weight *out);

#endif
