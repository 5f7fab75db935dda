/* CUDA C for a CPU, as far as the kernels of src/cuda go: types, intrinsics, and the PTX instructions of sm_70 as functions.
 * Included in front of a kernel file by `translate`. Threads of a block are fibers (simt.c); an instruction that talks to other
 * lanes gives its operands away, waits until all living lanes of the warp have come to it, and reads theirs. Slow and
 * exact: f16 is rounded as the card rounds it, products of m8n8k4 are summed in f32 in the order of k. */
#ifndef SIMT_H
#define SIMT_H

#include "simt_types.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

extern "C" {
extern struct simt_lane *simt_me;
extern struct simt_dim simt_block, simt_grid, simt_block_dim;
void simt_warp_wait(void);  /* until all living lanes of the warp wait here */
void simt_block_wait(void); /* until all living threads of the block wait here */
uint8_t *simt_dynamic_shared(void);
void simt_register(const struct simt_kernel *k, int n);
}

#define threadIdx (simt_me->thread)
#define blockIdx simt_block
#define gridDim simt_grid
#define blockDim simt_block_dim
#define __align__(n) __attribute__((aligned(n)))

/* vectors */
#define SIMT_VEC(T, name, al)                                                                     \
    struct name##2 { T x, y; } __attribute__((aligned(2 * al)));                                  \
    struct name##4 { T x, y, z, w; } __attribute__((aligned(4 * al)));                            \
    static inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                      \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
SIMT_VEC(float, float, 4)
SIMT_VEC(unsigned, uint, 4)
SIMT_VEC(int, int, 4)

template <class T> static inline T simt_cast(const void *p)
{
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* arithmetic */
static inline float simt_f32(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t simt_f16(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
static inline uint16_t simt_f16(double f) /* one rounding: to odd in f32 first */
{
    float g = (float)f;
    if ((double)g != f && isfinite(f)) {
        uint32_t u = simt_cast<uint32_t>(&g);
        if (fabs((double)g) > fabs(f)) u--;
        u |= 1;
        g = simt_cast<float>(&u);
    }
    return simt_f16(g);
}
static inline float __uint_as_float(uint32_t u) { return simt_cast<float>(&u); }
static inline float __int_as_float(int u) { return simt_cast<float>(&u); }
static inline uint32_t __float_as_uint(float f) { return simt_cast<uint32_t>(&f); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
#define __expf(x) expf(x) /* libc declares one of its own */
static inline size_t __cvta_generic_to_shared(const void *p) { return 0; } /* no kernel of sm_70 uses it */
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class T> static inline T __ldg(const T *p) { return *p; }
static inline void __threadfence(void) {} /* blocks run one after the other */
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t sel)
{
    uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned s = sel >> (4 * i), byte = (unsigned)(v >> (8 * (s & 7))) & 255;
        r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return r;
}
static inline int atomicAdd(int *p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

/* warps and blocks */
static inline void __syncthreads(void) { simt_block_wait(); }
static inline void __syncwarp(void) { simt_warp_wait(); }
static inline unsigned simt_lane_id(void)
{
    return (simt_me->thread.x + simt_me->thread.y * simt_block_dim.x) & 31;
}
template <class T> static inline T simt_from(T v, unsigned src)
{
    static_assert(sizeof(T) <= 8, "shuffle");
    struct simt_slot *s = simt_me->warp->slot[simt_me->turn++ & 1];
    memcpy(s[simt_lane_id()].u, &v, sizeof v);
    simt_warp_wait();
    return simt_cast<T>(s[src & 31].u);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int x) { return simt_from(v, simt_lane_id() ^ (unsigned)x); }
template <class T> static inline T __shfl_sync(unsigned, T v, int src) { return simt_from(v, (unsigned)src); }
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned n)
{
    unsigned l = simt_lane_id();
    return simt_from(v, l < n ? l : l - n);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, unsigned n)
{
    unsigned l = simt_lane_id();
    return simt_from(v, l + n > 31 ? l : l + n);
}
static inline int __any_sync(unsigned, int p)
{
    struct simt_slot *s = simt_me->warp->slot[simt_me->turn++ & 1];
    s[simt_lane_id()].u[0] = p != 0;
    simt_warp_wait();
    uint32_t any = 0;
    for (int i = 0; i < 32; i++) any |= s[i].u[0];
    return any != 0;
}

/* PTX */
#define SIMT_H2(name, expr)                                                              \
    static inline void simt_##name(uint32_t &d, uint32_t a, uint32_t b)                  \
    {                                                                                    \
        uint32_t r = 0;                                                                  \
        for (int i = 0; i < 32; i += 16) {                                               \
            double x = simt_f32((uint16_t)(a >> i)), y = simt_f32((uint16_t)(b >> i));   \
            r |= (uint32_t)simt_f16(expr) << i;                                          \
        }                                                                                \
        d = r;                                                                           \
    }
SIMT_H2(sub_f16x2, x - y)
SIMT_H2(add_rn_f16x2, x + y)
SIMT_H2(mul_rn_f16x2, x *y)
static inline void simt_fma_rn_f16x2(uint32_t &d, uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) {
        double x = simt_f32((uint16_t)(a >> i)), y = simt_f32((uint16_t)(b >> i)), z = simt_f32((uint16_t)(c >> i));
        r |= (uint32_t)simt_f16(x * y + z) << i;
    }
    d = r;
}
static inline void simt_broadcast_lo(uint32_t &d, uint32_t a) { d = (a & 0xffffu) * 0x10001u; }
static inline void simt_broadcast_hi(uint32_t &d, uint32_t a) { d = (a >> 16) * 0x10001u; }
static inline void simt_cvt_rn_f16_f32(uint16_t &d, float a) { d = simt_f16(a); }
static inline void simt_cvt_f32_f16(float &d, uint16_t a) { d = simt_f32(a); }
static inline void simt_ex2_approx_ftz_f32(float &d, float a) { d = exp2f(a); }
static inline void simt_load16(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *p)
{
    uint4 v = *(const uint4 *)p;
    a = v.x, b = v.y, c = v.z, d = v.w;
}
static inline void simt_prefetch_global_L2(const void *p) {}
#define simt_ld_global_nc_L1_no_allocate_v4_u32 simt_load16
#define simt_ld_global_nc_v4_u32 simt_load16

/* m8n8k4: fragment maps of the PTX manual. A row (column) major: lane holds row (column of 4 rows); B column (row) major likewise. */
template <bool A_COL, bool B_ROW> static inline void simt_mma884(float *d[8], uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1)
{
    struct simt_slot *s = simt_me->warp->slot[simt_me->turn++ & 1];
    unsigned L = simt_lane_id(), q = 4 * (L >> 2 & 3);
    const uint32_t in[4] = {a0, a1, b0, b1};
    for (int i = 0; i < 8; i++) s[L].m[i] = simt_f32((uint16_t)(in[i >> 1] >> (16 * (i & 1))));
    simt_warp_wait();
    for (unsigned i = 0; i < 8; i++) {
        unsigned m = (L & 1) + (i & 2) + (L >= 16 ? 4 : 0), n = (i & 4) + (L & 2) + (i & 1);
        float sum = *d[i];
        for (unsigned k = 0; k < 4; k++) {
            float a = A_COL ? s[q + k + (m & 4) * 4].m[m & 3] : s[q + (m & 3) + (m & 4) * 4].m[k];
            float b = B_ROW ? s[q + k + (n & 4) * 4].m[4 + (n & 3)] : s[q + (n & 3) + (n & 4) * 4].m[4 + k];
            sum += a * b;
        }
        *d[i] = sum;
    }
}
#define SIMT_MMA884(la, lb, ac, br)                                                                                            \
    static inline void simt_mma_sync_aligned_m8n8k4_##la##_##lb##_f32_f16_f16_f32(float &a, float &b, float &c, float &d,         \
        float &e, float &f, float &g, float &h, uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1)                            \
    {                                                                                                                          \
        float *v[8] = {&a, &b, &c, &d, &e, &f, &g, &h};                                                                        \
        simt_mma884<ac, br>(v, a0, a1, b0, b1);                                                                                \
    }
SIMT_MMA884(row, col, false, false)
SIMT_MMA884(row, row, false, true)
SIMT_MMA884(col, row, true, true)
SIMT_MMA884(col, col, true, false)

/* the table of kernels */
template <size_t... I> struct simt_seq {};
template <size_t N, size_t... I> struct simt_make : simt_make<N - 1, N - 1, I...> {};
template <size_t... I> struct simt_make<0, I...> {
    typedef simt_seq<I...> type;
};
template <class F, F f> struct simt_thunk;
template <class... A, void (*f)(A...)> struct simt_thunk<void (*)(A...), f> {
    static constexpr size_t sizes[sizeof...(A) + 1] = {sizeof(A)...};
    template <size_t... I> static void go(void **p, simt_seq<I...>) { f(*(A *)p[I]...); }
    static void call(void **p) { go(p, typename simt_make<sizeof...(A)>::type()); }
    static constexpr int n = sizeof...(A);
};
#define SIMT_KERNEL(f) {#f, simt_thunk<decltype(&f), &f>::call, simt_thunk<decltype(&f), &f>::sizes, simt_thunk<decltype(&f), &f>::n}
#define SIMT_REGISTER(t) \
    __attribute__((constructor)) static void simt_enter(void) { simt_register(t, sizeof t / sizeof *t); }

struct simt_header_ends_here;
#endif
