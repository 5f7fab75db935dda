/* cuBLAS for wide products, opened at run time whatever its major version; absent, the small linears do the work. */
#ifndef LK_CUDA_CUBLAS_H
#define LK_CUDA_CUBLAS_H

#include "cuda/cuda_dev.h"

#define CU_BLAS_WORKSPACE ((size_t)64 << 20)

void cu_blas_open(struct cu_dev *d); /* d->blas stays NULL where there is none */
void cu_blas_close(struct cu_dev *d);
/* c[t, j] = alpha * sum_k x[t, k] w[j, k] + (add ? c : 0): w f16 [n][k], x f16 [T][ldx], c f32 [T][ldc]; f32 sums. */
void cu_blas_mul(struct cu_dev *d, const void *w, int n, int k, const void *x, int ldx, int T, float alpha, int add, float *c, int ldc);

#endif
