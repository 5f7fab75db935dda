/* The kernels for AVX2 with FMA and F16C (any x86-64 server since 2013): eight lanes. */
#if defined(__x86_64__)
#include "cpu/k_table.h"

#include <cpuid.h>

static int usable(void)
{
    unsigned a, b, c, d; /* F16C is bit 29 of leaf 1: clang's builtin does not know the name */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

const struct cpu_kern cpu_kern_avx2 = KERN_TABLE("avx2", usable);
#endif
