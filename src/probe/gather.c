/* Gathering: see probe.h. */
#include "probe/probe.h"

#include <stdio.h>
#include <string.h>

const double lk_probe_ctx[LK_PROBE_CTX] = {32768, 131072, 262144};
const int lk_probe_devs[LK_PROBE_DEVS] = {1, 2, 4};

/* Draft 3; accepted / drafted on code and on Chinese as the field measured them on the 27B at 186K. */
enum { DRAFT = 3 };
#define ACCEPT_CODE 0.77
#define ACCEPT_ZH   0.46
#define WORKSPACE   1.2e9 /* activations, logits, de-quantised tiles of a 4,096-row prefill chunk */

static void gpus_measure(struct lk_probe *p)
{
    for (int i = 0; i < p->nvml.n; i++) {
        struct lk_err e = {0};
        lk_variant_judge(&p->nvml.gpu[i], &p->variant[i]);
        if (lk_cuda_measure(i, &p->measure[i], &e)) snprintf(p->not_measured[i], sizeof p->not_measured[i], "%.255s", e.text);
    }
    for (int i = 0; i < p->nvml.n; i++)
        for (int j = 0; j < p->nvml.n; j++) {
            struct lk_err e = {0};
            if (i != j && lk_cuda_measure_peer(i, j, &p->peer[i][j], &e)) snprintf(p->no_peer, sizeof p->no_peer, "%.255s", e.text);
        }
}

void lk_probe_gather(struct lk_probe *p, const char *nvml_lib)
{
    struct lk_err e = {0};
    lk_cpu_facts_read(&p->cpu);
    lk_cpu_facts_measure(&p->cpu);
    if (lk_nvml_read(&p->nvml, nvml_lib, &e))
        snprintf(p->no_gpu, sizeof p->no_gpu, "%.255s", e.text);
    else if (!p->nvml.n)
        snprintf(p->no_gpu, sizeof p->no_gpu, "the NVIDIA driver is there and sees no card");
    gpus_measure(p);
    lk_nccl_read(&p->nccl, NULL);
}

void lk_probe_cell(const struct lk_probe_model *m, double ctx, int n, double mem, double gbs, struct lk_forecast_cell *c)
{
    *c = (struct lk_forecast_cell){.bytes = m->memory(m->f, ctx, n) + WORKSPACE};
    c->fits = c->bytes <= mem;
    if (!c->fits || gbs <= 0) return;
    double plain = m->round(m->f, ctx, 0, n), spec = m->round(m->f, ctx, DRAFT, n);
    c->plain = gbs * 1e9 / plain;
    c->code = m->has_mtp ? gbs * 1e9 / spec * (1 + DRAFT * ACCEPT_CODE) : c->plain;
    c->zh = m->has_mtp ? gbs * 1e9 / spec * (1 + DRAFT * ACCEPT_ZH) : c->plain;
}
