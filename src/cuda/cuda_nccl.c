/* NCCL: see cuda_nccl.h. The library's own ABI: results are ints, 0 good; an id is 128 bytes passed by value; float is type 7. */
#include "cuda/cuda_nccl.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define NCCL_FLOAT 7

struct id {
    char bytes[CU_NCCL_ID];
};
typedef struct nccl_comm *comm_t;

static struct {
    int (*unique_id)(struct id *);
    int (*init)(comm_t *, int, struct id, int);
    int (*all_gather)(const void *, void *, size_t, int, comm_t, CUstream);
    int (*destroy)(comm_t);
    int (*abort)(comm_t);
    const char *(*text)(int);
    int ready;
} lib;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct cu_nccl {
    comm_t comm;
};

static void lib_open(void)
{
    void *h = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!h) return;
    static const struct {
        const char *sym;
        void *at;
    } names[] = {{"ncclGetUniqueId", &lib.unique_id}, {"ncclCommInitRank", &lib.init}, {"ncclAllGather", &lib.all_gather},
                 {"ncclCommDestroy", &lib.destroy}, {"ncclCommAbort", &lib.abort}, {"ncclGetErrorString", &lib.text}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *f = dlsym(h, names[i].sym);
        if (!f) return;
        memcpy(names[i].at, &f, sizeof f);
    }
    lib.ready = 1;
}

int cu_nccl_id(void *out, char *why, size_t cap)
{
    struct id id;
    pthread_once(&once, lib_open);
    if (!lib.ready) {
        snprintf(why, cap, "no libnccl.so.2 on this machine");
        return -1;
    }
    int rc = lib.unique_id(&id);
    if (rc) {
        snprintf(why, cap, "libnccl gives no id: %s", lib.text(rc));
        return -1;
    }
    memcpy(out, &id, sizeof id);
    return 0;
}

int cu_nccl_open(struct cu_nccl **out, const void *id, int rank, int n, char *why, size_t cap)
{
    struct id one;
    struct cu_nccl *c = lk_calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !lib.ready) {
        snprintf(why, cap, c ? "no libnccl.so.2 on this machine" : "no memory");
        lk_free(c);
        return -1;
    }
    memcpy(&one, id, sizeof one);
    int rc = lib.init(&c->comm, n, one, rank);
    if (rc) {
        snprintf(why, cap, "libnccl: %s", lib.text(rc));
        lk_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

int cu_nccl_gather(struct cu_nccl *c, const float *from, float *to, size_t count, CUstream s)
{
    return lib.all_gather(from, to, count, NCCL_FLOAT, c->comm, s);
}

const char *cu_nccl_text(struct cu_nccl *c, int code)
{
    return lib.text(code);
}

void cu_nccl_close(struct cu_nccl *c, int abort)
{
    if (!c) return;
    (abort ? lib.abort : lib.destroy)(c->comm);
    lk_free(c);
}
