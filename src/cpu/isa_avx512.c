/* The kernels for AVX-512 (F, BW, VL, DQ): sixteen lanes, the same text as AVX2. VNNI and BF16
 * products are not used: BF16 would round activations, and vpdpbusd adds four products before the
 * scale of their group is known (k_int.h). */
#if defined(__x86_64__)
#include "cpu/k_table.h"

static int usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const struct cpu_kern cpu_kern_avx512 = KERN_TABLE("avx512", usable);
#endif
