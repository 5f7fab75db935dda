/* The part of the CUDA driver API that laoka uses, opened at run time from libcuda.so.1: types, numbers and a table of
 * functions. Nothing here needs a toolkit, so the host side compiles anywhere and runs without a driver (cu_driver then
 * says so). Numbers are the driver's ABI and do not change. */
#ifndef LK_CUDA_DRIVER_H
#define LK_CUDA_DRIVER_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CU_OK = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_PEER_ACCESS_ALREADY = 704,
    CU_ERROR_HOST_REGISTERED = 712,
    CU_HOST_PORTABLE = 1,
    CU_HOST_DEVICEMAP = 2,
    CU_IPC_LAZY_PEER = 1,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_ATTR_SM_COUNT = 16,
    CU_ATTR_CC_MAJOR = 75,
    CU_ATTR_CC_MINOR = 76,
    CU_ATTR_SMEM_OPTIN = 97,
    CU_ATTR_L2_BYTES = 38,
    CU_FUNC_SMEM_BYTES = 1, /* static shared memory, read */
    CU_FUNC_LOCAL_BYTES = 3,
    CU_FUNC_REGS = 4,
    CU_FUNC_MAX_DYN_SMEM = 8,
    CU_FUNC_CARVEOUT = 9,
    CU_LAUNCH_CLUSTER = 4,
    CU_LAUNCH_PDL = 6, /* programmatic stream serialization */
};

/* CUlaunchAttribute: id, padding to 8, a 64-byte value */
struct cu_launch_attr {
    int id;
    int pad;
    union {
        char raw[64];
        int flag;
        struct {
            unsigned x, y, z;
        } cluster;
    } v;
};

struct cu_launch_config {
    unsigned gx, gy, gz, bx, by, bz, smem;
    CUstream stream;
    struct cu_launch_attr *attrs;
    unsigned n_attrs;
};

struct cu_ipc { /* CUipcMemHandle: passed by value */
    char bytes[64];
};

/* name in the library, name here, arguments */
#define CU_DRIVER_TABLE(X)                                                                                        \
    X("cuInit", init, (unsigned))                                                                                 \
    X("cuDriverGetVersion", version, (int *))                                                                     \
    X("cuGetErrorName", error_name, (CUresult, const char **))                                                    \
    X("cuGetErrorString", error_string, (CUresult, const char **))                                                \
    X("cuDeviceGetCount", device_count, (int *))                                                                  \
    X("cuDeviceGet", device_get, (CUdevice *, int))                                                               \
    X("cuDeviceGetName", device_name, (char *, int, CUdevice))                                                    \
    X("cuDeviceGetAttribute", device_attr, (int *, int, CUdevice))                                                \
    X("cuDevicePrimaryCtxRetain", ctx_retain, (CUcontext *, CUdevice))                                            \
    X("cuDevicePrimaryCtxRelease_v2", ctx_release, (CUdevice))                                                    \
    X("cuCtxSetCurrent", ctx_set, (CUcontext))                                                                    \
    X("cuMemGetInfo_v2", mem_info, (size_t *, size_t *))                                                          \
    X("cuMemAlloc_v2", mem_alloc, (CUdeviceptr *, size_t))                                                        \
    X("cuMemFree_v2", mem_free, (CUdeviceptr))                                                                    \
    X("cuMemHostAlloc", host_alloc, (void **, size_t, unsigned))                                                  \
    X("cuMemFreeHost", host_free, (void *))                                                                       \
    X("cuMemHostRegister_v2", host_register, (void *, size_t, unsigned))                                          \
    X("cuMemHostUnregister", host_unregister, (void *))                                                           \
    X("cuMemHostGetDevicePointer_v2", host_pointer, (CUdeviceptr *, void *, unsigned))                            \
    X("cuIpcGetMemHandle", ipc_get, (struct cu_ipc *, CUdeviceptr))                                               \
    X("cuIpcOpenMemHandle_v2", ipc_open, (CUdeviceptr *, struct cu_ipc, unsigned))                                \
    X("cuIpcCloseMemHandle", ipc_close, (CUdeviceptr))                                                            \
    X("cuMemcpyHtoDAsync_v2", copy_h2d, (CUdeviceptr, const void *, size_t, CUstream))                            \
    X("cuMemcpyDtoHAsync_v2", copy_d2h, (void *, CUdeviceptr, size_t, CUstream))                                  \
    X("cuMemcpyDtoDAsync_v2", copy_d2d, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                             \
    X("cuMemcpyPeerAsync", copy_peer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))         \
    X("cuDeviceCanAccessPeer", peer_can, (int *, CUdevice, CUdevice))                                             \
    X("cuCtxEnablePeerAccess", peer_enable, (CUcontext, unsigned))                                                \
    X("cuMemsetD8Async", set_d8, (CUdeviceptr, unsigned char, size_t, CUstream))                                  \
    X("cuStreamCreate", stream_create, (CUstream *, unsigned))                                                    \
    X("cuStreamDestroy_v2", stream_destroy, (CUstream))                                                           \
    X("cuStreamSynchronize", stream_sync, (CUstream))                                                             \
    X("cuStreamWaitEvent", stream_wait, (CUstream, CUevent, unsigned))                                            \
    X("cuStreamBeginCapture_v2", capture_begin, (CUstream, int))                                                  \
    X("cuStreamEndCapture", capture_end, (CUstream, CUgraph *))                                                   \
    X("cuGraphInstantiateWithFlags", graph_instantiate, (CUgraphExec *, CUgraph, unsigned long long))             \
    X("cuGraphGetNodes", graph_nodes, (CUgraph, void *, size_t *))                                                \
    X("cuGraphLaunch", graph_launch, (CUgraphExec, CUstream))                                                     \
    X("cuGraphExecDestroy", graph_exec_destroy, (CUgraphExec))                                                    \
    X("cuGraphDestroy", graph_destroy, (CUgraph))                                                                 \
    X("cuEventCreate", event_create, (CUevent *, unsigned))                                                       \
    X("cuEventDestroy_v2", event_destroy, (CUevent))                                                              \
    X("cuEventRecord", event_record, (CUevent, CUstream))                                                         \
    X("cuEventSynchronize", event_sync, (CUevent))                                                                \
    X("cuEventElapsedTime", event_ms, (float *, CUevent, CUevent))                                                \
    X("cuModuleLoadData", module_load, (CUmodule *, const void *))                                                \
    X("cuModuleUnload", module_unload, (CUmodule))                                                                \
    X("cuModuleGetFunction", module_function, (CUfunction *, CUmodule, const char *))                             \
    X("cuFuncSetAttribute", func_set, (CUfunction, int, int))                                                     \
    X("cuFuncGetAttribute", func_get, (int *, int, CUfunction))                                                   \
    X("cuOccupancyMaxActiveBlocksPerMultiprocessor", occupancy, (int *, CUfunction, int, size_t))                 \
    X("cuLaunchKernel", launch,                                                                                   \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

struct cu_driver {
#define X(sym, name, args) CUresult(*name) args;
    CU_DRIVER_TABLE(X)
#undef X
    /* NULL before driver 11.8 */
    CUresult (*launch_ex)(const struct cu_launch_config *, CUfunction, void **, void **);
};

/* The table, opened and initialised once a process. NULL with e filled when there is no usable driver. */
const struct cu_driver *cu_driver(struct lk_err *e);
/* "CUDA_ERROR_X (text)", valid for ever */
const char *cu_error_text(const struct cu_driver *drv, CUresult r);

#endif
