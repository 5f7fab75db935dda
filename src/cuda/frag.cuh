/* Pieces the attention, delta net and sampling kernels share: exact bit tricks that turn codes into FP16, tensor products
 * of FP16 fragments with FP32 sums (m16n8k16 from sm_80 on, m8n8k4 on sm_70), asynchronous copies, warp sums. No kernel. */
#ifndef LK_CUDA_FRAG_CUH
#define LK_CUDA_FRAG_CUH

#include "cuda/dequant.cuh"

#include <cuda_fp16.h>
#include <stdint.h>

#define LK_FULL 0xffffffffu
#define NO_SCORE __int_as_float((int)0xff800000u) /* minus infinity: a key that is not attended */

/* Four bytes, int8 codes with the sign bit flipped (code + 128), to two half2. */
static __device__ __forceinline__ void lk_i8_h2(uint32_t u, uint32_t *lo, uint32_t *hi)
{
    uint32_t p[2];
    i8_pairs(u, p);
    *lo = p[0];
    *hi = p[1];
}

static __device__ __forceinline__ uint32_t lk_pack_h2(float lo, float hi)
{
    __half2 h = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&h);
}

static __device__ __forceinline__ float lk_bf16_lo(uint32_t w)
{
    return __uint_as_float(w << 16);
}

static __device__ __forceinline__ float lk_bf16_hi(uint32_t w)
{
    return __uint_as_float(w & 0xffff0000u);
}

static __device__ __forceinline__ uint16_t lk_to_bf16(float x)
{
    uint32_t u = __float_as_uint(x);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Two floats to BF16 pairs: hi rounded, lo what is left. */
static __device__ __forceinline__ void lk_split_bf16(float x, float y, uint32_t *hi, uint32_t *lo)
{
    uint32_t a = lk_to_bf16(x), b = lk_to_bf16(y);
    *hi = a | b << 16;
    *lo = lk_to_bf16(x - __uint_as_float(a << 16)) | (uint32_t)lk_to_bf16(y - __uint_as_float(b << 16)) << 16;
}

static __device__ __forceinline__ float lk_ex2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

static __device__ __forceinline__ float lk_half(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

static __device__ __forceinline__ uint16_t lk_to_half(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

static __device__ __forceinline__ float lk_warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i; i >>= 1)
        v += __shfl_xor_sync(LK_FULL, v, i);
    return v;
}

static __device__ __forceinline__ float lk_warp_max(float v)
{
#pragma unroll
    for (int i = 16; i; i >>= 1)
        v = fmaxf(v, __shfl_xor_sync(LK_FULL, v, i));
    return v;
}

static __device__ __forceinline__ uint32_t lk_smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

#if __CUDA_ARCH__ >= 800
/* d[16x8] += a[16x16] b[16x8]. Lane L, g = L/4, c = L%4: a0 row g cols 2c,2c+1; a1 row g+8; a2, a3 the same at
 * cols + 8; b0 rows 2c,2c+1 of column g, b1 rows + 8; d0,d1 row g cols 2c,2c+1; d2,d3 row g+8. */
static __device__ __forceinline__ void lk_mma16816(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                   uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same product of BF16. */
static __device__ __forceinline__ void lk_mma16816_bf16(float *d, const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 matrices of 16-bit values, one row address a lane (lanes 8i.. give matrix i); as they lie, or transposed. */
static __device__ __forceinline__ void lk_ldmatrix(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

static __device__ __forceinline__ void lk_ldmatrix_t(uint32_t r[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* Transposes an 8x8 matrix of halves held one pair a lane. */
static __device__ __forceinline__ uint32_t lk_trans8x8(uint32_t x)
{
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
    return r;
}

static __device__ __forceinline__ void lk_cp16(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(lk_smem(dst)), "l"(src) : "memory");
}

static __device__ __forceinline__ void lk_cp8(void *dst, const void *src)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(lk_smem(dst)), "l"(src) : "memory");
}

/* 16 bytes, or zeros where there is nothing to copy. */
static __device__ __forceinline__ void lk_cp16z(uint32_t dst, const void *src, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(there ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void lk_cp_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> static __device__ __forceinline__ void lk_cp_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

#if __CUDA_ARCH__ < 800
/* One m8n8k4 a quadpair (lanes 4q..4q+3 and 16+4q..), f32 sums. Index in the quadpair r = (L&3) + (L>=16 ? 4 : 0).
 * A row-major: lane holds row r; B column-major: lane holds column r; D: row (L&1)+(i&2)+(L>=16?4:0),
 * column (i&4)+(L&2)+(i&1). A column-major: rows e+(L>=16?4:0) of column L&3; B row-major: columns of row L&3. */
static __device__ __forceinline__ void lk_mma884_row_col(float *d, uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void lk_mma884_col_row(float *d, uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m8n8k4.col.row.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}
#endif

#endif
