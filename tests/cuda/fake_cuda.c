/* A libcuda.so.1 that has one card, real memory and no arithmetic: copies are copies, launches are counted and do nothing. With it the
 * host side (open, refusals, loading, staging, the graph cache, the sticky error) runs on machines without a GPU, also under the
 * sanitizers. FAKE_CUDA_SM sets the card (default 90), FAKE_CUDA_FAIL the number of the launch that fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr;

#define EXPORT __attribute__((visibility("default")))
#define OK0(name, ...)           \
    EXPORT int name(__VA_ARGS__);  \
    EXPORT int name(__VA_ARGS__)   \
    {                            \
        return 0;                \
    }

static int launches;
EXPORT int fake_cuda_launches(void);
EXPORT int fake_cuda_launches(void)
{
    return launches;
}

static int env_int(const char *name, int def)
{
    const char *v = getenv(name);
    return v ? atoi(v) : def;
}

#define FN(name, args) EXPORT int name args; EXPORT int name args
OK0(cuInit, unsigned f)
OK0(cuDevicePrimaryCtxRelease_v2, int d)
OK0(cuCtxSetCurrent, void *c)
OK0(cuStreamDestroy_v2, void *s)
OK0(cuStreamSynchronize, void *s)
OK0(cuStreamWaitEvent, void *s, void *e, unsigned f)
OK0(cuStreamBeginCapture_v2, void *s, int mode)
OK0(cuGraphExecDestroy, void *g)
OK0(cuGraphDestroy, void *g)
OK0(cuGraphLaunch, void *g, void *s)
OK0(cuEventDestroy_v2, void *e)
OK0(cuEventRecord, void *e, void *s)
OK0(cuEventSynchronize, void *e)
OK0(cuModuleUnload, void *m)
OK0(cuFuncSetAttribute, void *f, int a, int v)
OK0(cuCtxEnablePeerAccess, void *c, unsigned f)
FN(cuDriverGetVersion, (int *v)) { *v = 13000; return 0; }
FN(cuGetErrorName, (int r, const char **s)) { *s = r ? "CUDA_ERROR_FAKE" : "CUDA_SUCCESS"; return 0; }
FN(cuGetErrorString, (int r, const char **s)) { *s = "made up by the test"; return 0; }
FN(cuDeviceGetCount, (int *n)) { *n = 1; return 0; }
FN(cuDeviceGet, (int *d, int i)) { *d = i; return 0; }
FN(cuDeviceGetName, (char *s, int n, int d)) { snprintf(s, (size_t)n, "Fake card"); return 0; }
FN(cuDeviceGetAttribute, (int *v, int a, int d))
{
    int sm = env_int("FAKE_CUDA_SM", 90);
    *v = a == 75 ? sm / 10 : a == 76 ? sm % 10 : a == 16 ? 132 : a == 97 ? 232448 : 1 << 20;
    return 0;
}
FN(cuDevicePrimaryCtxRetain, (void **c, int d)) { *c = (void *)1; return 0; }
FN(cuMemGetInfo_v2, (size_t *f, size_t *t)) { *f = *t = (size_t)1 << 34; return 0; }
FN(cuMemAlloc_v2, (ptr *p, size_t n)) { void *m = n < (size_t)1 << 34 ? calloc(1, n) : NULL; *p = (ptr)m; return m ? 0 : 2; }
FN(cuMemFree_v2, (ptr p)) { free((void *)p); return 0; }
FN(cuMemHostAlloc, (void **p, size_t n, unsigned f)) { *p = malloc(n); return *p ? 0 : 2; }
FN(cuMemFreeHost, (void *p)) { free(p); return 0; }
FN(cuMemHostRegister_v2, (void *p, size_t n, unsigned f)) { return 0; }
FN(cuMemHostUnregister, (void *p)) { return 0; }
FN(cuMemHostGetDevicePointer_v2, (ptr *d, void *p, unsigned f)) { *d = (ptr)p; return 0; }
struct ipc { char bytes[64]; };
FN(cuIpcGetMemHandle, (struct ipc *h, ptr p)) { memset(h, 0, sizeof *h); memcpy(h, &p, sizeof p); return 0; }
FN(cuIpcOpenMemHandle_v2, (ptr *p, struct ipc h, unsigned f)) { return 1; }
FN(cuIpcCloseMemHandle, (ptr p)) { return 0; }
FN(cuMemcpyHtoDAsync_v2, (ptr d, const void *s, size_t n, void *st)) { memcpy((void *)d, s, n); return 0; }
FN(cuMemcpyDtoHAsync_v2, (void *d, ptr s, size_t n, void *st)) { memcpy(d, (void *)s, n); return 0; }
FN(cuMemcpyDtoDAsync_v2, (ptr d, ptr s, size_t n, void *st)) { memmove((void *)d, (void *)s, n); return 0; }
FN(cuMemcpyPeerAsync, (ptr d, void *dc, ptr s, void *sc, size_t n, void *st)) { memmove((void *)d, (void *)s, n); return 0; }
FN(cuDeviceCanAccessPeer, (int *v, int a, int b)) { *v = 1; return 0; }
FN(cuMemsetD8Async, (ptr d, unsigned char v, size_t n, void *st)) { memset((void *)d, v, n); return 0; }
FN(cuStreamCreate, (void **s, unsigned f)) { *s = (void *)2; return 0; }
FN(cuStreamEndCapture, (void *s, void **g)) { *g = (void *)3; return 0; }
FN(cuGraphInstantiateWithFlags, (void **e, void *g, unsigned long long f)) { *e = (void *)4; return 0; }
FN(cuGraphGetNodes, (void *g, void *n, size_t *count)) { *count = 7; return 0; }
FN(cuEventCreate, (void **e, unsigned f)) { *e = (void *)5; return 0; }
FN(cuEventElapsedTime, (float *ms, void *a, void *b)) { *ms = 1; return 0; }
FN(cuModuleLoadData, (void **m, const void *image)) { *m = (void *)6; return 0; }
FN(cuModuleGetFunction, (void **f, void *m, const char *name)) { *f = (void *)7; return strncmp(name, "missing", 7) ? 0 : 500; }
FN(cuFuncGetAttribute, (int *v, int a, void *f)) { *v = 0; return 0; }
FN(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, void *f, int t, size_t s)) { *n = 1; return 0; }
static int launch(void) { return ++launches == env_int("FAKE_CUDA_FAIL", 0) ? 719 : 0; }
FN(cuLaunchKernel, (void *f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y, unsigned z, unsigned sm, void *st, void **args, void **ex)) { return launch(); }
FN(cuLaunchKernelEx, (const void *c, void *f, void **args, void **ex)) { return launch(); }
