/* NCCL, opened at run time: one gather between ranks. A build or machine without it says so; nothing is linked. */
#ifndef LK_CUDA_CUDA_NCCL_H
#define LK_CUDA_CUDA_NCCL_H

#include "cuda/driver.h"

#define CU_NCCL_ID 128

struct cu_nccl;

/* 0 and a fresh id in out [CU_NCCL_ID], or -1: no usable libnccl.so.2 here, and why says so. */
int cu_nccl_id(void *out, char *why, size_t why_cap);
/* Collective: every rank with rank 0's id. 0, or -1 and why. */
int cu_nccl_open(struct cu_nccl **out, const void *id, int rank, int n, char *why, size_t why_cap);
/* to [n][count] floats, from [count], asynchronous. 0 or an NCCL code. */
int cu_nccl_gather(struct cu_nccl *c, const float *from, float *to, size_t count, CUstream s);
const char *cu_nccl_text(struct cu_nccl *c, int code);
/* abort: peers may be gone. */
void cu_nccl_close(struct cu_nccl *c, int abort);

#endif
