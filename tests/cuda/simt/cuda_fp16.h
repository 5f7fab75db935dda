/* What the kernels take from the toolkit's header of this name, for a CPU (simt.h). */
#ifndef SIMT_CUDA_FP16_H
#define SIMT_CUDA_FP16_H
struct __half {
    uint16_t u;
};
struct __half2 {
    __half x, y;
};
static inline float __half2float(__half h) { return simt_f32(h.u); }
static inline __half __ushort_as_half(uint16_t u) { return __half{u}; }
static inline uint16_t __half_as_ushort(__half h) { return h.u; }
static inline __half __float2half_rn(float f) { return __half{simt_f16(f)}; }
static inline __half2 __floats2half2_rn(float a, float b) { return __half2{__half{simt_f16(a)}, __half{simt_f16(b)}}; }
#endif
