/* All-reduce kernels: y += p0 + p1 + ... in rank order, over flags (mailbox in host memory, push into the peer's) or over words that carry
 * their step. The exchange itself is comm_body.h; here are its loads, stores and fences. Also the sum behind an NCCL gather, and the
 * digest of an array. Contract: dev/bridge.h.
 *
 * Accesses to memory that another device writes are volatile: relaxed at system scope. Volta showed no progress with .cg stores met by .cv
 * loads across cards; volatile is what its NVLink keeps coherent. 16-byte accesses may be torn into two of 8, never finer: an LL pair is
 * valid only when both steps are right. */
#include "cuda/pdl.cuh"

#include <stdint.h>

#define COMM_FN __device__ static inline

struct __align__(16) comm_f4 {
    float x, y, z, w;
};
struct __align__(8) comm_f2 {
    float x, y;
};
struct __align__(16) comm_ll {
    uint32_t d0, f0, d1, f1;
};

COMM_FN uint32_t comm_tid(void) { return threadIdx.x; }
COMM_FN uint32_t comm_threads(void) { return blockDim.x; }
COMM_FN uint32_t comm_cta(void) { return blockIdx.x; }
COMM_FN uint32_t comm_ctas(void) { return gridDim.x; }
COMM_FN void comm_barrier(void) { __syncthreads(); }
COMM_FN void comm_pause(void) {}
COMM_FN uint32_t comm_bits(float v) { return __float_as_uint(v); }
COMM_FN float comm_float(uint32_t v) { return __uint_as_float(v); }

COMM_FN void comm_fence(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

COMM_FN uint64_t comm_now(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

COMM_FN uint32_t comm_ld32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

COMM_FN void comm_st32(uint32_t *p, uint32_t v)
{
    asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

COMM_FN uint32_t comm_cas32(uint32_t *p, uint32_t want, uint32_t v)
{
    return atomicCAS(p, want, v);
}

COMM_FN void comm_st128(struct comm_f4 *p, struct comm_f4 v)
{
    asm volatile("st.volatile.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

COMM_FN struct comm_f4 comm_ld128(const struct comm_f4 *p)
{
    struct comm_f4 v;
    asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

COMM_FN void comm_stll(struct comm_ll *p, struct comm_ll v)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.d0), "r"(v.f0), "r"(v.d1), "r"(v.f1) : "memory");
}

COMM_FN struct comm_ll comm_ldll(const struct comm_ll *p)
{
    struct comm_ll v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.d0), "=r"(v.f0), "=r"(v.d1), "=r"(v.f1) : "l"(p) : "memory");
    return v;
}

/* One addition a warp; additions of whole numbers meet in any order. */
COMM_FN void comm_hash_add(unsigned long long *to, uint64_t h)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) h += __shfl_xor_sync(~0u, (unsigned long long)h, o);
    if (!(threadIdx.x & 31)) atomicAdd(to, (unsigned long long)h);
}

#include "cuda/comm_body.h"

/* Grid (blocks), COMM_THREADS */
extern "C" __global__ void __launch_bounds__(COMM_THREADS) comm_flag(const comm_args a)
{
    __shared__ comm_scratch sh;
    if (a.early) pdl_trigger();
    pdl_wait();
    comm_flag_body(&a, &sh);
}

extern "C" __global__ void __launch_bounds__(COMM_THREADS) comm_ll(const comm_args a)
{
    __shared__ comm_scratch sh;
    if (a.early) pdl_trigger();
    pdl_wait();
    comm_ll_body(&a, &sh);
}

/* y += parts[0] + parts[1] + ...: n parts of `count` floats, `ld` apart. Grid (any) */
extern "C" __global__ void __launch_bounds__(COMM_THREADS)
    comm_sum(float *y, const float *parts, size_t ld, size_t count, int n, comm_state *state)
{
    uint64_t hash = 0;
    pdl_trigger();
    pdl_wait();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        float s = parts[i];
        for (int r = 1; r < n; r++) s += parts[(size_t)r * ld + i];
        y[i] += s;
        hash += comm_mix(s, i);
    }
    comm_hash_add(&state->digest, hash);
}

/* The digest of x joins that of the sums. Grid (any) */
extern "C" __global__ void __launch_bounds__(COMM_THREADS) comm_digest(const float *x, size_t count, comm_state *state)
{
    uint64_t hash = 0;
    pdl_trigger();
    pdl_wait();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) hash += comm_mix(x[i], ~i);
    comm_hash_add(&state->digest, hash);
}
