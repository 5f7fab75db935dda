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
/* What our kernels make of a card: the share of its read rate while bytes flow, and the cost of a kernel besides its bytes, against that of a plain read in the
 * same chain. Fitted to `bench rounds` of the 27B's shapes on one and two H200 when a round was 583 kernels; with the 357 it is now (397 with drafts), six figures of
 * bench_27b on one H200, 8K to 256K, lie within 5.1 %. */
#define EFFICIENCY    0.83
#define KERNEL_FACTOR 2.43
#define REDUCE_PEER 3.0  /* us a sum over two H200, peers proven, in the same fit */
#define REDUCE_HOST 16.0 /* us through pinned host memory, as the field measures it */
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

void lk_probe_machine_of(const struct lk_probe *p, struct lk_probe_machine *w)
{
    *w = (struct lk_probe_machine){.mem = p->cpu.mem_total, .gbs = lk_cpu_facts_read_gbs(&p->cpu)};
    if (p->nvml.n < 1) return;
    const struct lk_gpu_measure *m = &p->measure[0];
    w->mem = p->nvml.gpu[0].mem_total;
    w->gbs = m->read_gbs > 0 ? m->read_gbs : p->variant[0].read_gbs;
    w->kernel_us = m->chain_us * KERNEL_FACTOR;
    w->reduce_us = p->peer[0][1].proven ? REDUCE_PEER : REDUCE_HOST;
}

static struct lk_tokens tokens_of(double plain_s, double spec_s, int has_mtp)
{
    struct lk_tokens t = {1 / plain_s, 1 / plain_s, 1 / plain_s};
    if (has_mtp) t.code = (1 + DRAFT * ACCEPT_CODE) / spec_s, t.zh = (1 + DRAFT * ACCEPT_ZH) / spec_s;
    return t;
}

void lk_probe_cell(const struct lk_probe_model *m, double ctx, int n, const struct lk_probe_machine *w, struct lk_forecast_cell *c)
{
    *c = (struct lk_forecast_cell){.bytes = m->memory(m->f, ctx, n) + WORKSPACE};
    c->fits = c->bytes <= w->mem;
    if (!c->fits || w->gbs <= 0) return;
    double s[2];
    for (int d = 0; d < 2; d++) s[d] = m->round(m->f, ctx, d * DRAFT, n) / (w->gbs * 1e9);
    c->most = tokens_of(s[0], s[1], m->has_mtp);
    if (w->kernel_us <= 0) return;
    for (int d = 0; d < 2; d++) s[d] = s[d] / EFFICIENCY + (m->kernels(m->f, d * DRAFT, n) * w->kernel_us + (n > 1 ? m->reduces(m->f, d * DRAFT) * w->reduce_us : 0)) * 1e-6;
    c->expected = tokens_of(s[0], s[1], m->has_mtp);
}
