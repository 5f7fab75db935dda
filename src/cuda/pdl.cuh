/* Programmatic dependent launch (sm_90 and up): a kernel launched with CU_PDL may start while the one before it still runs, and must
 * call pdl_wait before it touches anything that earlier kernels write or read. pdl_trigger lets the next one start. Elsewhere
 * both are nothing. */
#ifndef LK_CUDA_PDL_CUH
#define LK_CUDA_PDL_CUH

__device__ static inline void pdl_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ static inline void pdl_trigger(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
