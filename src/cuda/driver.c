/* Opens libcuda.so.1 and fills the table of driver.h. Owns the one library handle of the process (never closed: a driver
 * does not survive it). Refuses a driver that lacks a function of the table, naming the function. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cu_driver table;
static struct lk_err why; /* why there is no table */

static void open_driver(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!lib) {
        lk_fail(&why, LK_EINPUT, "no CUDA driver on this machine (libcuda.so.1: not found); use --devices cpu");
        return;
    }
    static const struct {
        const char *sym;
        size_t at;
    } names[] = {
#define X(sym, name, args) {sym, offsetof(struct cu_driver, name)},
        CU_DRIVER_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *f = dlsym(lib, names[i].sym);
        if (!f) {
            lk_fail(&why, LK_EINPUT, "the CUDA driver has no %s: it is older than 11.4; update it", names[i].sym);
            return;
        }
        *(void **)((char *)&table + names[i].at) = f;
    }
    *(void **)&table.launch_ex = dlsym(lib, "cuLaunchKernelEx");
    CUresult r = table.init(0);
    if (r != CU_OK) lk_fail(&why, LK_EINPUT, "the CUDA driver does not start: %s", cu_error_text(&table, r));
}

const struct cu_driver *cu_driver(struct lk_err *e)
{
    pthread_once(&once, open_driver);
    if (why.code) {
        lk_fail(e, why.code, "%s", why.text);
        return NULL;
    }
    return &table;
}

const char *cu_error_text(const struct cu_driver *drv, CUresult r)
{
    static _Thread_local char text[256];
    const char *name = NULL, *say = NULL;
    if (drv->error_name) drv->error_name(r, &name);
    if (drv->error_string) drv->error_string(r, &say);
    snprintf(text, sizeof text, "%s (%s)", name ? name : "unknown CUDA error", say ? say : "no text");
    return text;
}
