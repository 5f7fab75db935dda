/* Pack kernels: row-major weights, as files hold them, into the tiles and units of pack.h. Run once at load. */
#include "cuda/dequant.cuh"
#include "cuda/mma.cuh"
#include "cuda/pack.h"

/* enum lk_dtype, the types that occur here */
#define DT_F32 1
#define DT_F16 2
#define DT_BF16 3
#define DT_E4M3 4

__device__ static float typed(const void *p, size_t i, int type)
{
    uint16_t h = 0;
    float v;
    if (type == DT_F32) return ((const float *)p)[i];
    h = ((const uint16_t *)p)[i];
    if (type == DT_BF16) return __uint_as_float((uint32_t)h << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

__device__ static uint16_t half_of(float v)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

/* Source and row of row r of tile `tile` of the part; -1: padding */
__device__ static int source_row(const cu_pack_par &p, int tile, int r, int *src)
{
    *src = p.gate_up ? r >> 4 : 0;
    int row = p.gate_up ? tile * 16 + (r & 15) : tile * CU_TILE + r;
    return row < p.n[*src] ? row - p.src_row0 : -1;
}

/* Grid (tiles * 32): row_scale = the power of two that brings the largest |value| of the row (of its scales, for formats with scales; a min counts
 * a 16th) to [2^e0, 2^(e0+1)), so that f16 holds the rest exactly enough. */
extern "C" __global__ void pack_rowmax(const cu_pack_par p, int of_scale, int e0)
{
    __shared__ float part[8];
    int tile = p.tile0 + blockIdx.x / CU_TILE, r = blockIdx.x % CU_TILE, src;
    int row = source_row(p, tile, r, &src);
    int64_t n = of_scale ? p.scale_stride : p.k;
    float m = 0;
    if (row >= 0) {
        const void *at = of_scale ? p.scale[src] : p.raw[src];
        int64_t stride = of_scale ? p.scale_stride : p.raw_stride;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            float v = fabsf(typed(at, row * stride + i, of_scale ? p.scale_type : p.src_type));
            m = v > m ? v : m;
            if (of_scale && p.zero[src]) m = fmaxf(m, fabsf(((const float *)p.zero[src])[row * stride + i]) * 0.0625f);
        }
    }
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = m;
    __syncthreads(); /* warp maxima written -> read by thread 0 */
    if (threadIdx.x) return;
    for (int w = 1; w < (int)blockDim.x / 32; w++) m = fmaxf(m, part[w]);
    int e = (int)(__float_as_uint(m) >> 23) - 127; /* floor(log2) of a normal number */
    float s = m < 1e-30f || m > 1e30f ? 1.0f : __uint_as_float((uint32_t)(e - e0 + 127) << 23);
    p.row_scale[(p.part_tile0 + tile) * CU_TILE + r] = s;
}

struct src_at {
    const unsigned char *row; /* NULL: padding */
    int src, idx;
};

__device__ static uint32_t word_f16(const cu_pack_par &p, const src_at &a, int col, float inv)
{
    uint32_t w = 0;
    for (int i = 0; i < 2; i++)
        if (col + i < p.k) {
            float v = typed(p.raw[a.src], (int64_t)a.idx * p.raw_stride + col + i, p.src_type);
            w |= (uint32_t)half_of(v * inv) << (16 * i);
        }
    return w;
}

__device__ static uint32_t word_8(const cu_pack_par &p, const src_at &a, int col, int fp8)
{
    uint8_t c[4];
    for (int i = 0; i < 4; i++) {
        int zero = fp8 ? 0 : 128, x = fp8 ? 0 : p.xor_sign;
        c[i] = col + i < p.k && a.row ? (uint8_t)(a.row[col + i] ^ x) : (uint8_t)zero;
    }
    return fp8 ? fp8_word(c) : (uint32_t)c[0] | (uint32_t)c[1] << 8 | (uint32_t)c[2] << 16 | (uint32_t)c[3] << 24;
}

/* flip: 16-column groups with a negative scale, folded into the codes */
__device__ static uint32_t word_4(const cu_pack_par &p, const src_at &a, int col, int fp4, uint8_t pad)
{
    uint8_t c[8];
    for (int i = 0; i < 8; i++) {
        int k = col + i;
        c[i] = pad;
        if (k >= p.k || !a.row) continue;
        c[i] = a.row[k / 2] >> (k & 1 ? 4 : 0) & 15;
        if (fp4) c[i] ^= ((const uint8_t *)p.scale[a.src])[(int64_t)a.idx * p.scale_stride + k / 16] >> 7 << 3;
    }
    return fp4 ? fp4_word(c) : q4_word(c);
}

/* |e4m3| * 2^7 as bits 14..7 of an f16; exact (pack.h) */
__device__ static uint8_t nvfp4_scale(uint8_t s)
{
    int e = s >> 3 & 15, m = s & 7;
    if (e == 15 && m == 7) return 0xfc;           /* NaN */
    if (e) return (uint8_t)((e + 15) << 3 | m);   /* 2^(e-7) * 2^7: f16 exponent field e + 15 */
    if (!m) return 0;
    int up = m >= 4 ? 0 : m >= 2 ? 1 : 2;         /* m * 2^-9 * 2^7 = (m << up) / 4 * 2^-up: normalised */
    return (uint8_t)((15 - up) << 3 | ((m << (up + 1)) & 7));
}

__device__ static src_at source_of(const cu_pack_par &p, int tile, int r)
{
    src_at a;
    a.idx = source_row(p, tile, r, &a.src);
    a.row = 0;
    if (a.idx >= 0) a.row = (const unsigned char *)p.raw[a.src] + (int64_t)a.idx * p.raw_stride;
    return a;
}

/* Scales of row r, group of 16 (half) or the unit's, into the unit's scale bytes. Run by the lanes that own the row. */
__device__ static void put_scales(const cu_pack_par &p, int fmt, unsigned char *sc, const src_at &a, int lane, int i, int unit,
                                  float row_scale)
{
#if LK_VOLTA
    if (i) return;
    int at = lane, nv = lane * 2;
    const int nv_step = 1, halves0 = 0, halves1 = 2;
#else
    int g = lane >> 2, t = lane & 3, at = g * 4 + i, nv = g * 4 + i;
    const int nv_step = 32, halves0 = t >> 1, halves1 = halves0 + 1;
    if (t & 1) return;
    if (fmt != CU_NVFP4 && t) return;
#endif
    if (fmt == CU_NVFP4) {
        for (int h = halves0; h < halves1; h++) {
            int grp = unit * 2 + h;
            uint8_t s = 0;
            if (a.row && grp * 16 < p.k) s = ((const uint8_t *)p.scale[a.src])[(int64_t)a.idx * p.scale_stride + grp];
            sc[nv + h * nv_step] = nvfp4_scale(s);
        }
        return;
    }
    int col = unit * CU_KU;
    float s = a.row && col < p.k ? typed(p.scale[a.src], (int64_t)a.idx * p.scale_stride + col / p.group, p.scale_type) : 0;
    if (fmt != CU_Q4M) {
        ((uint16_t *)sc)[at] = half_of(s / row_scale);
        return;
    }
    float min = a.row && col < p.k ? ((const float *)p.zero[a.src])[(int64_t)a.idx * p.scale_stride + col / p.group] : 0;
#if LK_VOLTA
    const int scale_at = 2 * at, min_at = 2 * at + 1;
#else
    const int scale_at = 8 * g + i, min_at = 8 * g + 4 + i;
#endif
    ((uint16_t *)sc)[scale_at] = half_of(s / row_scale);
    ((uint16_t *)sc)[min_at] = half_of(min / row_scale);
}

/* Grid (units / 8, tiles), block (32, 8): a warp makes a unit. */
extern "C" __global__ void pack_units(const cu_pack_par p, int fmt)
{
    int lane = threadIdx.x, unit = blockIdx.x * 8 + threadIdx.y, tile = p.tile0 + blockIdx.y;
    if (unit >= p.units) return;
    unsigned char *dst = p.dst + ((size_t)(p.part_tile0 + tile) * p.units + unit) * p.unit_bytes;
    int bits = fmt == CU_F16 ? 16 : fmt == CU_NVFP4 || fmt == CU_Q4 || fmt == CU_Q4M ? 4 : 8;
    int grouped = fmt == CU_I8G || fmt == CU_Q4 || fmt == CU_Q4M;
    for (int i = 0; i < 4; i++) {
        int r = lane_row(lane, i);
        src_at a = source_of(p, tile, r);
        float rs = fmt == CU_F16 || grouped ? p.row_scale[(p.part_tile0 + tile) * CU_TILE + r] : 1.0f;
        for (int c = 0; c < bits / 4; c++) {
            int col = unit * CU_KU + lane_col(lane, c, i, bits);
            uint32_t w;
            if (fmt == CU_F16)
                w = a.row ? word_f16(p, a, col, 1.0f / rs) : 0;
            else if (bits == 8)
                w = word_8(p, a, col, fmt == CU_FP8);
            else
                w = word_4(p, a, col, fmt == CU_NVFP4, fmt == CU_Q4 ? 8 : 0);
            ((uint32_t *)dst)[c * 128 + lane * 4 + i] = w;
        }
        if (fmt == CU_NVFP4 || grouped) put_scales(p, fmt, dst + 512 * (bits / 4), a, lane, i, unit, rs);
    }
}
