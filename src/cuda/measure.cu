/* Kernels of `laoka probe`: read memory as decode does (independent 16-byte loads, nothing written), and nothing at all. */
#include <stdint.h>

#define READ_THREADS 256
#define READ_LOADS 8

/* Grid: one CTA a tile of READ_THREADS x READ_LOADS vectors. The sum is used only if it is a value that it will not have, so that
 * nothing is written and no load may be dropped. */
extern "C" __global__ void measure_read(const uint4 *p, uint32_t *sink)
{
    const uint4 *q = p + (size_t)blockIdx.x * (READ_THREADS * READ_LOADS) + threadIdx.x;
    uint4 v[READ_LOADS];
#pragma unroll
    for (int i = 0; i < READ_LOADS; i++)
        asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                     : "l"(q + i * READ_THREADS));
    uint32_t x = 0;
#pragma unroll
    for (int i = 0; i < READ_LOADS; i++) x += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    if (x == 0x5bd1e995u && sink[threadIdx.x] == 0x1b873593u) sink[threadIdx.x] = x;
}

extern "C" __global__ void measure_empty(void)
{
}
