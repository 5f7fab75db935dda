/* A stand-in for libnvidia-ml.so.1: FAKE_NVML names a scenario, so that card variants, throttling and missing permission are tested without
 * a GPU. Only what src/probe/nvml.c asks for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NO_PERMISSION = 4, NOT_SUPPORTED = 3 };

struct card {
    const char *scenario, *name;
    int major, minor;
    unsigned cores, mem_mhz, core_mhz, bus;
    unsigned long long mem;
    int ecc;
    unsigned temperature, limit_mw;
    unsigned long long throttle;
    unsigned gen, gen_max, width, width_max;
    int nvlinks, silent; /* silent: clocks and power are refused */
};

static const struct card cards[] = {
    {"sxm2", "Tesla V100-SXM2-32GB", 7, 0, 5120, 877, 1530, 4096, 34359738368ull, 1, 45, 300000, 0, 3, 3, 16, 16, 6, 0},
    {"sxm2-16", "Tesla V100-SXM2-16GB", 7, 0, 5120, 877, 1530, 4096, 17179869184ull, 1, 45, 300000, 0, 3, 3, 16, 16, 6, 0},
    {"pg500", "Tesla V100-SXM2-32GB", 7, 0, 4608, 1107, 1380, 4096, 34359738368ull, 1, 45, 250000, 0, 3, 3, 16, 16, 0, 0},
    {"pcie", "Tesla V100-PCIE-32GB", 7, 0, 5120, 877, 1380, 4096, 34359738368ull, 0, 50, 250000, 0, 3, 3, 8, 16, 0, 0},
    {"hot", "Tesla V100-SXM2-32GB", 7, 0, 5120, 877, 1530, 4096, 34359738368ull, 1, 86, 300000, 0x40, 3, 3, 16, 16, 6, 0},
    {"refused", "Tesla V100-SXM2-32GB", 7, 0, 5120, 877, 1530, 4096, 34359738368ull, 1, 45, 300000, 0, 3, 3, 16, 16, 6, 1},
};

static const struct card *card(void)
{
    const char *s = getenv("FAKE_NVML");
    for (size_t i = 0; s && i < sizeof cards / sizeof *cards; i++)
        if (!strcmp(s, cards[i].scenario)) return &cards[i];
    return NULL;
}

static int is(const char *s)
{
    const char *v = getenv("FAKE_NVML");
    return v && !strcmp(v, s);
}

#define PUT(p, v) return card()->silent ? NO_PERMISSION : (*(p) = (v), OK)

int nvmlInit_v2(void);
int nvmlInit_v2(void) { return is("no-permission") ? NO_PERMISSION : is("no-driver") ? 9 : OK; }
int nvmlShutdown(void);
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *s, unsigned n);
int nvmlSystemGetDriverVersion(char *s, unsigned n) { return snprintf(s, n, "535.1"), OK; }
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = is("none") ? 0 : 1, OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { return *d = d, card() ? OK : NO_PERMISSION; }
int nvmlDeviceGetName(void *d, char *s, unsigned n);
int nvmlDeviceGetName(void *d, char *s, unsigned n) { return snprintf(s, n, "%s", card()->name), OK; }
int nvmlDeviceGetPciInfo_v3(void *d, char *p);
int nvmlDeviceGetPciInfo_v3(void *d, char *p) { return strcpy(p + 36, "00000000:3B:00.0"), OK; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b);
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { return *a = card()->major, *b = card()->minor, OK; }
int nvmlDeviceGetNumGpuCores(void *d, unsigned *v);
int nvmlDeviceGetNumGpuCores(void *d, unsigned *v) { return *v = card()->cores, OK; }
int nvmlDeviceGetClockInfo(void *d, int t, unsigned *v);
int nvmlDeviceGetClockInfo(void *d, int t, unsigned *v) { PUT(v, t == 2 ? card()->mem_mhz : card()->core_mhz); }
int nvmlDeviceGetMaxClockInfo(void *d, int t, unsigned *v);
int nvmlDeviceGetMaxClockInfo(void *d, int t, unsigned *v) { PUT(v, t == 2 ? card()->mem_mhz : card()->core_mhz); }
int nvmlDeviceGetMemoryBusWidth(void *d, unsigned *v);
int nvmlDeviceGetMemoryBusWidth(void *d, unsigned *v) { return *v = card()->bus, OK; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m);
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { return m[0] = card()->mem, m[1] = card()->mem - 1000000, m[2] = 1000000, OK; }
int nvmlDeviceGetEccMode(void *d, int *a, int *b);
int nvmlDeviceGetEccMode(void *d, int *a, int *b) { return *a = *b = card()->ecc, OK; }
int nvmlDeviceGetTemperature(void *d, int t, unsigned *v);
int nvmlDeviceGetTemperature(void *d, int t, unsigned *v) { return *v = card()->temperature, OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v);
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { PUT(v, card()->limit_mw); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v);
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) { PUT(v, 60000); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *v);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *v) { PUT(v, card()->throttle); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v);
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { return *v = card()->gen, OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v);
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { return *v = card()->gen_max, OK; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v);
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { return *v = card()->width, OK; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v);
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { return *v = card()->width_max, OK; }
int nvmlDeviceGetNvLinkState(void *d, unsigned i, int *v);
int nvmlDeviceGetNvLinkState(void *d, unsigned i, int *v) { return *v = (int)i < card()->nvlinks, OK; }
