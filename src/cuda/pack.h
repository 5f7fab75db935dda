/* Packed weights on the device: the contract between mat_load (which makes them), the pack kernels and the linears.
 *
 * A segment is a run of rows in one device format, cut in tiles of 32 rows and units of 32 columns; a warp reads a tile unit
 * by unit, each lane its own 16-byte pieces, so that every load is one coalesced 512-byte piece and needs no shared memory.
 * A unit is n chunks of 512 B (lane L's 16 B = 4 words at 16 L) followed by its scales:
 *
 *   format  chunks  scale bytes a unit            value of a weight
 *   F16     4       0                             f16 * row
 *   I8      2       0                             code * row
 *   I8G     2       64: f16 a row                 code * scale * row
 *   FP8     2       0                             e4m3 * 2^-8 * (block or row scale)
 *   NVFP4   1       64: 2 a row, one a 16 columns e2m1 * 2^-14 * scale * row
 *   Q4      1       64: f16 a row                 (code - 8) * scale * row
 *   Q4M     1       128: f16 scale and f16 min    (code * scale + min) * row
 *
 * Which (row, column) a lane's word holds depends on the tensor instruction (g = L>>2, t = L&3; q = (L>>2)&3, r = quadpair
 * index (L&3) + (L>=16 ? 4 : 0)):
 *   sm_75 and up (m16n8k16):  word i: row g + 8 i; columns 8t.. of the unit. 4-bit: 8 columns a word; 8-bit: chunk c holds
 *                             columns 8t + 4c..+3; F16: chunk c columns 8t + 2c, +1
 *   sm_70 (m8n8k4):           all words: row 8 q + r. 4-bit: word i columns 8i..+7; 8-bit: chunk c, word i columns 16c + 4i..+3;
 *                             F16: columns 8c + 2i, +1
 * Inside a word the codes stand so that one shift and one mask give a pair of adjacent columns (dequant.cuh).
 *
 * NVFP4 scales are kept as the 8 bits 14..7 of f16(scale * 2^7): exact for every e4m3 value; a negative scale is folded into
 * the codes' signs. Rows beyond n and columns beyond k hold zeros. */
#ifndef LK_CUDA_PACK_H
#define LK_CUDA_PACK_H

#include <stdint.h>

enum cu_fmt { CU_F16 = 0, CU_I8, CU_I8G, CU_FP8, CU_NVFP4, CU_Q4, CU_Q4M, CU_FMT_COUNT };

#define CU_TILE 32 /* rows of a tile */
#define CU_KU 32   /* columns of a unit */
#define CU_WARPS 16 /* warps of a small linear's CTA: each takes its share of the units of one tile */

struct cu_seg {
    const unsigned char *data; /* [tiles][units][unit_bytes] */
    const float *row_scale;    /* [tiles * 32] */
    const float *blk_scale;    /* FP8 in blocks: f32 [tiles][n_blk][2] (rows 0-15, 16-31 of the tile); else NULL */
    const int32_t *tile_col;   /* [tiles][2]: first column of y, valid rows; NULL: 32 tile, 32 */
    int32_t fmt, tiles, units, unit_bytes;
    int32_t k;                 /* columns of x (<= 32 units) */
    int32_t blk_units, n_blk;  /* units a scale block spans */
    int32_t n;                 /* rows in all, padding not counted */
};

/* Units on their way to a warp (sm_80 and up), a slot each: 512 B a chunk and the scales every lane asked for itself. 4-bit formats 6 slots, 8-bit
 * 4, f16 2; two places of sums (2,304 B) must fit there too. */
#define CU_RING_DEPTH(fmt) ((fmt) == CU_F16 ? 2 : (fmt) == CU_NVFP4 || (fmt) == CU_Q4 || (fmt) == CU_Q4M ? 6 : 4)
#define CU_RING_OWN(fmt) ((fmt) == CU_NVFP4 ? 4 : (fmt) == CU_Q4 || (fmt) == CU_I8G ? 8 : (fmt) == CU_Q4M ? 16 : 0)
#define CU_RING_SLOT(fmt) (((fmt) == CU_F16 ? 2048 : (fmt) == CU_NVFP4 || (fmt) == CU_Q4 || (fmt) == CU_Q4M ? 512 : 1024) + 32 * CU_RING_OWN(fmt))
#define CU_RING(fmt) (CU_RING_DEPTH(fmt) * CU_RING_SLOT(fmt))

/* A norm on its way from the linear that makes its rows to the one that reads them, beside its rows h (f16 [T, n]): h holds x * w under a power
 * of two a row, `base`, near the reciprocal rms of the row before; the reader's sums are multiplied by rsqrt(mean sum) where the sums are those of
 * (x^2 + eps) * base^2 over a tile. One a device: it lives until the next norm. */
#define CU_NORM_ROWS 32
#define CU_NORM_TILES 512
struct cu_norm {
    float r[CU_NORM_ROWS];    /* reciprocal rms of the rows last normed: written by op norm and by the reader */
    float base[CU_NORM_ROWS]; /* written with h */
    float sum[CU_NORM_ROWS * CU_NORM_TILES]; /* [T][tiles of the writer] */
};

/* One launch of a small linear over one segment, and perhaps a second (side) of f16 rows that shares x and y. */
struct cu_linear_par {
    struct cu_seg s, side; /* the side's tiles come first; 0: none */
    const void *x; /* f16 [T, ldx] */
    void *y;       /* f32 [T, ldy]; gate_up: f16 [T, ldy] */
    int32_t T, ldx, ldy, add;
    int32_t row0;           /* of a pass over rows row0.. of the call: where its rows lie in norm */
    int32_t norm_tiles;     /* x is unfinished: its writer's tiles; 0: finished */
    int32_t sums_at;        /* shared memory of a launch with norm_tiles, sm_80 and up: the sums of all rows, behind the rings */
    struct cu_norm *norm;
    const float *next_w;    /* not NULL: leave the unfinished norm of y in next_h */
    uint16_t *next_h;
    float next_eps;
};

/* One launch of a pack kernel: rows of one or two row-major sources into tiles [tile0, tile0 + tiles) of a segment. */
struct cu_pack_par {
    const void *raw[2];   /* row-major codes; row 0 here is source row src_row0 */
    const void *scale[2]; /* row-major scales of the same rows (FP8 blocks: the whole table) */
    const void *zero[2];  /* Q4M: mins, f32, as many as scales */
    unsigned char *dst;
    float *row_scale; /* F16, I8G, Q4: read (2^e made by the rowmax kernel); others: not used */
    float *blk_scale;
    int64_t raw_stride, scale_stride; /* elements a row */
    int32_t gate_up;                  /* tile = 16 rows of source 0, 16 of source 1 */
    int32_t src_row0, n[2], k;        /* n: rows of the whole source */
    int32_t tile0, tiles, units;      /* tile 0 of the part is tile `part_tile0` of the segment */
    int32_t part_tile0;
    int32_t unit_bytes, src_type, scale_type, group; /* types: enum lk_dtype */
    int32_t xor_sign;                 /* I8: codes are two's complement */
    int32_t block_n, blk_units, n_blk;
    int32_t zero_kind;
};

#endif
