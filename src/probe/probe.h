/* Everything `laoka probe` knows, gathered once and written as text for people or JSON for scripts. What is missing (no GPU, no NVML, no
 * permission, no model) is a line, never an end. */
#ifndef LK_PROBE_PROBE_H
#define LK_PROBE_PROBE_H

#include "base/buf.h"
#include "dev/measure.h"
#include "probe/cpu_facts.h"
#include "probe/nccl.h"
#include "probe/nvml.h"
#include "probe/variant.h"

/* What the model costs, as model/forecast.h says; probe itself knows no model. */
struct lk_probe_model {
    const char *name;
    double (*memory)(const void *f, double ctx, int n);             /* bytes a rank */
    double (*round)(const void *f, double ctx, int draft, int n);   /* bytes a round a rank */
    double (*kernels)(const void *f, int draft, int n);             /* a round on each of n, one after the other */
    double (*reduces)(const void *f, int draft);                    /* sums over ranks a round */
    const void *f;
    int has_mtp;
};

struct lk_probe {
    struct lk_cpu_facts cpu;
    struct lk_nvml nvml;
    char no_gpu[256];         /* why there is none; "" when there is */
    struct lk_variant variant[LK_MAX_GPUS];
    struct lk_gpu_measure measure[LK_MAX_GPUS];
    char not_measured[LK_MAX_GPUS][256];
    struct lk_peer_measure peer[LK_MAX_GPUS][LK_MAX_GPUS];
    char no_peer[256];
    struct lk_nccl_facts nccl;
    char no_model[512];
    struct lk_probe_model model;
};

/* nvml_lib: NULL for the system's. Takes some seconds. */
void lk_probe_gather(struct lk_probe *p, const char *nvml_lib);
int lk_probe_text(const struct lk_probe *p, struct lk_buf *out); /* 0 or LK_ENOMEM */
int lk_probe_json(const struct lk_probe *p, struct lk_buf *out);

/* Forecast rows: context sizes, device counts, drafts with the acceptance the field reports for code and Chinese. */
#define LK_PROBE_CTX 3
#define LK_PROBE_DEVS 3
extern const double lk_probe_ctx[LK_PROBE_CTX];
extern const int lk_probe_devs[LK_PROBE_DEVS];
struct lk_tokens {
    double plain, code, zh; /* a second; 0 when it does not fit */
};
struct lk_forecast_cell {
    double bytes; /* a rank */
    int fits;
    struct lk_tokens most, expected; /* at 100 % of the bandwidth; with what kernels and sums cost besides bytes (a GPU that was measured, else 0) */
};
/* What a forecast needs of a machine. */
struct lk_probe_machine {
    double mem, gbs;               /* bytes and read bandwidth of one device */
    double kernel_us, reduce_us;   /* a kernel besides its bytes (0: not measured, nothing is expected); a sum over ranks */
};
void lk_probe_machine_of(const struct lk_probe *p, struct lk_probe_machine *w);
void lk_probe_cell(const struct lk_probe_model *m, double ctx, int n, const struct lk_probe_machine *w, struct lk_forecast_cell *c);

#endif
