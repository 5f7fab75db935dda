/* Facts about GPUs from NVML, opened at run time. Every value may be missing (old card, no permission): then it is -1 or empty and
 * `missing` names it. */
#ifndef LK_PROBE_NVML_H
#define LK_PROBE_NVML_H

#include "base/err.h"

#include <stddef.h>

#define LK_MAX_GPUS 16

struct lk_gpu_facts {
    char name[96], pci[32], missing[256];
    unsigned pci_device;             /* device << 16 | vendor */
    int sm_major, sm_minor, units;   /* compute capability, multiprocessors */
    int core_mhz, core_mhz_max, mem_mhz, mem_mhz_max, bus_bits;
    double mem_total, mem_used;      /* bytes */
    int ecc, temperature, power_limit_w, power_w;
    long long throttle;              /* NVML bits, -1 unknown */
    int pcie_gen, pcie_gen_max, pcie_width, pcie_width_max, nvlinks;
};

struct lk_nvml {
    int n;
    char driver[80];
    struct lk_gpu_facts gpu[LK_MAX_GPUS];
};

/* lib: NULL for libnvidia-ml.so.1. LK_ESYS with a plain reason when there is none; n = 0 when it sees no card. */
int lk_nvml_read(struct lk_nvml *out, const char *lib, struct lk_err *e);
/* Throttle bits in words, "" when nothing holds the card back. */
void lk_throttle_words(long long bits, char *out, size_t cap);

#endif
