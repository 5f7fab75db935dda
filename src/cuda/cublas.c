/* Opens libcublas.so.13, .12 or .11, whichever is there, and calls its one mixed-precision product (f16 in, f32 out). Owns the handle and
 * its workspace: given by us, so that a captured product allocates nothing and repeats bit for bit. */
#include "cuda/cublas.h"

#include "base/log.h"
#include "base/mem.h"

#include <dlfcn.h>

enum { BLAS_N = 0, BLAS_T = 1, R_32F = 0, R_16F = 2, COMPUTE_32F = 68, ALGO_DEFAULT = -1 };

struct cu_blas {
    void *lib, *handle, *workspace;
    int (*destroy)(void *);
    int (*set_stream)(void *, CUstream);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int, const void *, void *,
                int, int, int, int);
};

void cu_blas_open(struct cu_dev *d)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    if (d->blas) return;
    struct cu_blas *b = lk_calloc(1, sizeof *b);
    if (!b) return;
    for (int i = 0; i < 3 && !b->lib; i++) b->lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    int (*create)(void **) = NULL;
    int (*set_ws)(void *, void *, size_t) = NULL;
    if (b->lib) {
        *(void **)&create = dlsym(b->lib, "cublasCreate_v2");
        *(void **)&set_ws = dlsym(b->lib, "cublasSetWorkspace_v2");
        *(void **)&b->destroy = dlsym(b->lib, "cublasDestroy_v2");
        *(void **)&b->set_stream = dlsym(b->lib, "cublasSetStream_v2");
        *(void **)&b->gemm = dlsym(b->lib, "cublasGemmEx");
    }
    if (!b->lib || !create || !set_ws || !b->destroy || !b->set_stream || !b->gemm) goto none;
    d->drv->ctx_set(d->ctx);
    if (create(&b->handle)) goto none;
    b->workspace = cu_alloc(d, CU_BLAS_WORKSPACE, "cublas workspace");
    if (!b->workspace || b->set_stream(b->handle, d->stream) || set_ws(b->handle, b->workspace, CU_BLAS_WORKSPACE)) {
        cu_free(d, b->workspace);
        b->destroy(b->handle);
        goto none;
    }
    d->blas = b;
    return;
none:
    lk_log_info("cuda:%d: no cuBLAS here (libcublas.so.11 to .13): prefill runs on the small kernels", d->index);
    if (b->lib) dlclose(b->lib);
    lk_free(b);
}

void cu_blas_close(struct cu_dev *d)
{
    if (!d->blas) return;
    d->blas->destroy(d->blas->handle);
    cu_free(d, d->blas->workspace);
    lk_free(d->blas); /* the library stays open: closing it under a live context has crashed drivers */
    d->blas = NULL;
}

void cu_blas_mul(struct cu_dev *d, const void *w, int n, int k, const void *x, int ldx, int T, float alpha, int add, float *c, int ldc)
{
    struct cu_blas *b = d->blas;
    if (d->failed) return;
    float beta = add ? 1.0f : 0.0f;
    if (d->prof) cu_prof_launch_begin(d, "cublas", 2.0 * n * k + 2.0 * T * k + 4.0 * T * n);
    int r = b->gemm(b->handle, BLAS_T, BLAS_N, n, T, k, &alpha, w, R_16F, k, x, R_16F, ldx, &beta, c, R_32F, ldc, COMPUTE_32F, ALGO_DEFAULT);
    if (r) cu_refuse(d, "cuBLAS refuses a product of %d x %d x %d: status %d", T, n, k, r);
    if (d->prof) cu_prof_launch_end(d);
}
