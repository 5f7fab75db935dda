/* NVML at run time: see nvml.h. The few types needed are declared here after NVIDIA's documented interface (nvml.h, v12). */
#include "probe/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *dev_t_;
struct pci_info { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct mem_info { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct api {
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver)(char *, unsigned);
    int (*count)(unsigned *);
    int (*handle)(unsigned, dev_t_ *);
    int (*name)(dev_t_, char *, unsigned);
    int (*pci)(dev_t_, struct pci_info *);
    int (*capability)(dev_t_, int *, int *);
    int (*cores)(dev_t_, unsigned *);
    int (*clock)(dev_t_, int, unsigned *);
    int (*clock_max)(dev_t_, int, unsigned *);
    int (*bus_width)(dev_t_, unsigned *);
    int (*memory)(dev_t_, struct mem_info *);
    int (*ecc)(dev_t_, int *, int *);
    int (*temperature)(dev_t_, int, unsigned *);
    int (*power_limit)(dev_t_, unsigned *);
    int (*power)(dev_t_, unsigned *);
    int (*throttle)(dev_t_, unsigned long long *);
    int (*gen)(dev_t_, unsigned *);
    int (*gen_max)(dev_t_, unsigned *);
    int (*width)(dev_t_, unsigned *);
    int (*width_max)(dev_t_, unsigned *);
    int (*nvlink)(dev_t_, unsigned, int *);
};

static void api_load(struct api *a, void *lib)
{
    const struct {
        void *slot;
        const char *name;
    } want[] = {
        {&a->init, "nvmlInit_v2"},
        {&a->shutdown, "nvmlShutdown"},
        {&a->driver, "nvmlSystemGetDriverVersion"},
        {&a->count, "nvmlDeviceGetCount_v2"},
        {&a->handle, "nvmlDeviceGetHandleByIndex_v2"},
        {&a->name, "nvmlDeviceGetName"},
        {&a->pci, "nvmlDeviceGetPciInfo_v3"},
        {&a->capability, "nvmlDeviceGetCudaComputeCapability"},
        {&a->cores, "nvmlDeviceGetNumGpuCores"},
        {&a->clock, "nvmlDeviceGetClockInfo"},
        {&a->clock_max, "nvmlDeviceGetMaxClockInfo"},
        {&a->bus_width, "nvmlDeviceGetMemoryBusWidth"},
        {&a->memory, "nvmlDeviceGetMemoryInfo"},
        {&a->ecc, "nvmlDeviceGetEccMode"},
        {&a->temperature, "nvmlDeviceGetTemperature"},
        {&a->power_limit, "nvmlDeviceGetEnforcedPowerLimit"},
        {&a->power, "nvmlDeviceGetPowerUsage"},
        {&a->throttle, "nvmlDeviceGetCurrentClocksThrottleReasons"},
        {&a->gen, "nvmlDeviceGetCurrPcieLinkGeneration"},
        {&a->gen_max, "nvmlDeviceGetMaxPcieLinkGeneration"},
        {&a->width, "nvmlDeviceGetCurrPcieLinkWidth"},
        {&a->width_max, "nvmlDeviceGetMaxPcieLinkWidth"},
        {&a->nvlink, "nvmlDeviceGetNvLinkState"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *f = dlsym(lib, want[i].name);
        memcpy(want[i].slot, &f, sizeof f);
    }
}

static void missing_add(struct lk_gpu_facts *g, const char *what)
{
    size_t n = strlen(g->missing);
    snprintf(g->missing + n, sizeof g->missing - n, "%s%s", n ? ", " : "", what);
}

/* One number through f(dev, &u); -1 and a note when the driver does not give it. */
static int number_get(struct lk_gpu_facts *g, int (*f)(dev_t_, unsigned *), dev_t_ d, const char *what)
{
    unsigned v = 0;
    if (f && !f(d, &v)) return (int)v;
    missing_add(g, what);
    return -1;
}

static int typed_get(struct lk_gpu_facts *g, int (*f)(dev_t_, int, unsigned *), dev_t_ d, int type, const char *what)
{
    unsigned v = 0;
    if (f && !f(d, type, &v)) return (int)v;
    missing_add(g, what);
    return -1;
}

/* FP32 cores a multiprocessor by compute capability, to get units from nvmlDeviceGetNumGpuCores */
static int cores_a_unit(int major, int minor)
{
    return major < 6 ? 128 : major == 6 ? (minor == 0 ? 64 : 128) : major == 7 ? 64 : major == 8 && minor == 0 ? 64 : 128;
}

static void gpu_read(const struct api *a, dev_t_ d, struct lk_gpu_facts *g)
{
    enum { CLOCK_SM = 1, CLOCK_MEM = 2 };
    struct pci_info pci = {0};
    struct mem_info mem = {0};
    if (!a->name || a->name(d, g->name, sizeof g->name)) missing_add(g, "name");
    if (a->pci && !a->pci(d, &pci)) {
        snprintf(g->pci, sizeof g->pci, "%.31s", pci.bus_id);
        g->pci_device = pci.device_id;
    } else {
        missing_add(g, "PCI id");
    }
    if (!a->capability || a->capability(d, &g->sm_major, &g->sm_minor)) missing_add(g, "compute capability");
    int cores = number_get(g, a->cores, d, "cores");
    g->units = cores > 0 ? cores / cores_a_unit(g->sm_major, g->sm_minor) : -1;
    g->core_mhz = typed_get(g, a->clock, d, CLOCK_SM, "core clock");
    g->mem_mhz = typed_get(g, a->clock, d, CLOCK_MEM, "memory clock");
    g->core_mhz_max = typed_get(g, a->clock_max, d, CLOCK_SM, "highest core clock");
    g->mem_mhz_max = typed_get(g, a->clock_max, d, CLOCK_MEM, "highest memory clock");
    g->bus_bits = number_get(g, a->bus_width, d, "memory bus");
    if (a->memory && !a->memory(d, &mem)) {
        g->mem_total = (double)mem.total;
        g->mem_used = (double)mem.used;
    } else {
        missing_add(g, "memory");
    }
    int pending;
    if (!a->ecc || a->ecc(d, &g->ecc, &pending)) g->ecc = -1;
    g->temperature = typed_get(g, a->temperature, d, 0, "temperature");
    int limit = number_get(g, a->power_limit, d, "power limit"), power = number_get(g, a->power, d, "power");
    g->power_limit_w = limit < 0 ? -1 : limit / 1000;
    g->power_w = power < 0 ? -1 : power / 1000;
    unsigned long long bits = 0;
    g->throttle = a->throttle && !a->throttle(d, &bits) ? (long long)bits : -1;
    if (g->throttle < 0) missing_add(g, "throttle reasons");
    g->pcie_gen = number_get(g, a->gen, d, "PCIe generation");
    g->pcie_gen_max = number_get(g, a->gen_max, d, "highest PCIe generation");
    g->pcie_width = number_get(g, a->width, d, "PCIe width");
    g->pcie_width_max = number_get(g, a->width_max, d, "highest PCIe width");
    for (unsigned i = 0; a->nvlink && i < 18; i++) {
        int active = 0;
        if (!a->nvlink(d, i, &active) && active) g->nvlinks++;
    }
}

int lk_nvml_read(struct lk_nvml *out, const char *path, struct lk_err *e)
{
    memset(out, 0, sizeof *out);
    void *lib = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return lk_fail(e, LK_ESYS, "no NVIDIA driver: %s cannot be opened", path ? path : "libnvidia-ml.so.1");
    struct api a = {0};
    api_load(&a, lib);
    int rc = 0;
    unsigned n = 0;
    if (!a.init || !a.count || !a.handle) {
        rc = lk_fail(e, LK_ESYS, "the NVML library lacks its basic functions: driver too old");
    } else if ((rc = a.init())) {
        rc = lk_fail(e, LK_ESYS, "NVML does not start (code %d%s)", rc, rc == 4 ? ": no permission" : rc == 9 ? ": driver not loaded" : "");
    } else {
        if (!a.driver || a.driver(out->driver, sizeof out->driver)) strcpy(out->driver, "unknown");
        if (a.count(&n)) n = 0;
        out->n = n < LK_MAX_GPUS ? (int)n : LK_MAX_GPUS;
        for (int i = 0; i < out->n; i++) {
            dev_t_ d;
            int bad = a.handle((unsigned)i, &d);
            if (bad)
                snprintf(out->gpu[i].missing, sizeof out->gpu[i].missing, "everything: NVML code %d%s", bad, bad == 4 ? " (no permission)" : "");
            else
                gpu_read(&a, d, &out->gpu[i]);
        }
        if (a.shutdown) a.shutdown();
    }
    dlclose(lib);
    return rc;
}

void lk_throttle_words(long long bits, char *out, size_t cap)
{
    static const struct {
        long long bit;
        const char *word;
    } words[] = {
        {0x2, "clocks set by an application"}, {0x4, "power limit"},        {0x8, "hardware slow-down"},
        {0x20, "too hot (software)"},          {0x40, "too hot (hardware)"}, {0x80, "power brake"},
    };
    out[0] = 0;
    for (size_t i = 0; bits > 0 && i < sizeof words / sizeof *words; i++)
        if (bits & words[i].bit) {
            size_t n = strlen(out);
            snprintf(out + n, cap - n, "%s%s", n ? ", " : "", words[i].word);
        }
}
