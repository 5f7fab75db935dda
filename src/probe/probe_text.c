/* The report for people: see probe.h. */
#include "probe/probe.h"

#include <stdio.h>
#include <string.h>

static void bytes_put(struct lk_buf *b, double v)
{
    if (v >= 1 << 20)
        lk_buf_fmt(b, "%.0f MB", v / (1 << 20));
    else
        lk_buf_fmt(b, "%.0f KB", v / 1024);
}

static void cpu_put(const struct lk_cpu_facts *c, struct lk_buf *b)
{
    lk_buf_fmt(b, "CPU   %s, %d cores, %d NUMA node%s, %s\n", c->name, c->cores, c->numa_nodes, c->numa_nodes == 1 ? "" : "s", c->isa);
    lk_buf_fmt(b, "      memory %.1f GB, %.1f GB available\n", c->mem_total * 1e-9, c->mem_available * 1e-9);
    for (int i = 0; i < c->n_points; i++) {
        const struct lk_bandwidth *w = &c->points[i].bw;
        lk_buf_fmt(b, "      bandwidth, %d thread%s: read %.1f GB/s, copy %.1f GB/s (read + written); medians of %d passes over %zu MB: %.1f and %.1f\n",
                   c->points[i].threads, c->points[i].threads == 1 ? "" : "s", w->read_best_gbs, w->copy_best_gbs, w->passes, w->bytes >> 20, w->read_gbs,
                   w->copy_gbs);
        if (w->read_gbs < 0.8 * w->read_best_gbs || w->copy_gbs < 0.8 * w->copy_best_gbs)
            lk_buf_str(b, "      (something else used the memory meanwhile: the median is more than a fifth below the fastest pass)\n");
    }
}

static void value_put(struct lk_buf *b, const char *fmt, int v)
{
    if (v < 0)
        lk_buf_str(b, "?");
    else
        lk_buf_fmt(b, fmt, v);
}

static void facts_put(const struct lk_gpu_facts *g, struct lk_buf *b)
{
    lk_buf_fmt(b, "      sm_%d%d, ", g->sm_major, g->sm_minor);
    value_put(b, "%d units, core ", g->units);
    value_put(b, "%d", g->core_mhz);
    value_put(b, " of %d MHz, memory ", g->core_mhz_max);
    value_put(b, "%d", g->mem_mhz);
    value_put(b, " of %d MHz", g->mem_mhz_max);
    lk_buf_fmt(b, ", %.1f of %.1f GB used, ECC %s\n      ", g->mem_used * 1e-9, g->mem_total * 1e-9, g->ecc < 0 ? "?" : g->ecc ? "on" : "off");
    value_put(b, "%d C, ", g->temperature);
    value_put(b, "%d of ", g->power_w);
    value_put(b, "%d W, PCIe ", g->power_limit_w);
    value_put(b, "gen %d", g->pcie_gen);
    value_put(b, " of %d, x", g->pcie_gen_max);
    value_put(b, "%d", g->pcie_width);
    value_put(b, " of %d, ", g->pcie_width_max);
    lk_buf_fmt(b, "%d NVLinks\n", g->nvlinks);
    if (g->missing[0]) lk_buf_fmt(b, "      not told by the driver: %s\n", g->missing);
}

static void links_put(struct lk_buf *b, const char *what, const struct lk_link_measure *l)
{
    lk_buf_fmt(b, "      %s:", what);
    for (int i = 0; i < LK_LINK_SIZES; i++) {
        lk_buf_str(b, i ? ", " : " ");
        bytes_put(b, (double)lk_link_bytes[i]);
        if (!l[i].ok)
            lk_buf_str(b, " WRONG DATA");
        else if (lk_link_bytes[i] < 1 << 20)
            lk_buf_fmt(b, " %.1f us", l[i].us);
        else
            lk_buf_fmt(b, " %.1f GB/s", l[i].gbs);
    }
    lk_buf_chr(b, '\n');
}

static void gpu_put(const struct lk_probe *p, int i, struct lk_buf *b)
{
    const struct lk_gpu_facts *g = &p->nvml.gpu[i];
    const struct lk_gpu_measure *m = &p->measure[i];
    lk_buf_fmt(b, "GPU %d %s, %s\n", i, g->name[0] ? g->name : "(no name)", g->pci);
    facts_put(g, b);
    lk_buf_fmt(b, "      %s\n", p->variant[i].verdict);
    if (p->not_measured[i][0]) {
        lk_buf_fmt(b, "      not measured: %s\n", p->not_measured[i]);
        return;
    }
    lk_buf_fmt(b, "      measured: read %.0f GB/s, copy %.0f GB/s, FP16 %.0f TFLOP/s, launch %.1f us, graph node %.2f us, %.1f us in a chain besides its bytes, code: %s\n",
               m->read_gbs, m->copy_gbs, m->fp16_tflops, m->launch_us, m->graph_us, m->chain_us, m->has_code ? m->image : "none for this card");
    if (p->variant[i].read_gbs > 0 && m->read_gbs < 0.93 * p->variant[i].read_gbs)
        lk_buf_fmt(b, "      that is %.0f %% of what this card should read: look at clocks, temperature and ECC\n",
                   100 * m->read_gbs / p->variant[i].read_gbs);
    links_put(b, "host to device", m->h2d);
    links_put(b, "device to host", m->d2h);
    links_put(b, "within the card", m->d2d);
}

static void peers_put(const struct lk_probe *p, struct lk_buf *b)
{
    for (int i = 0; i < p->nvml.n; i++)
        for (int j = 0; j < p->nvml.n; j++) {
            const struct lk_peer_measure *m = &p->peer[i][j];
            if (i == j) continue;
            if (p->no_peer[0]) {
                lk_buf_fmt(b, "LINK  not measured: %s\n", p->no_peer);
                return;
            }
            lk_buf_fmt(b, "LINK  %d to %d: peer access %s by the driver, %s by measurement\n", i, j, m->claimed ? "claimed" : "not claimed",
                       m->proven ? "proven" : m->claimed ? "BROKEN" : "not there");
            links_put(b, "peer copy", m->to);
        }
}

static void nccl_put(const struct lk_probe *p, struct lk_buf *b)
{
    const struct lk_nccl_facts *f = &p->nccl;
    if (!f->found) {
        lk_buf_str(b, "NCCL  not installed (libnccl.so.2): only bulk transfers between several GPUs would use it\n");
        return;
    }
    lk_buf_fmt(b, "NCCL  %d.%d.%d, code for", f->version / 10000, f->version / 100 % 100, f->version % 100);
    for (int i = 0; i < f->n_archs; i++) lk_buf_fmt(b, " sm_%d", f->archs[i]);
    for (int i = 0; i < p->nvml.n; i++)
        lk_buf_fmt(b, "; GPU %d: %s", i,
                   lk_nccl_runs(f, p->nvml.gpu[i].sm_major * 10 + p->nvml.gpu[i].sm_minor) ? "runs" : "NO CODE, cannot be used");
    lk_buf_chr(b, '\n');
}

static void forecast_put(const struct lk_probe *p, struct lk_buf *b)
{
    if (p->no_model[0]) {
        lk_buf_fmt(b, "MODEL no forecast: %s\n", p->no_model);
        return;
    }
    int gpu = p->nvml.n > 0;
    struct lk_probe_machine w;
    lk_probe_machine_of(p, &w);
    lk_buf_fmt(b, "MODEL %s on %s: bytes a device, tokens a second ", p->model.name, gpu ? "these GPUs" : "this CPU");
    if (w.kernel_us > 0)
        lk_buf_fmt(b, "expected (%.1f us a kernel besides its bytes), and in brackets what %.0f GB/s allow at most\n", w.kernel_us, w.gbs);
    else
        lk_buf_fmt(b, "that %.0f GB/s allow at most\n", w.gbs);
    lk_buf_str(b, "      context  devices   GB each  fits            plain  draft 3: code (77 % accepted)   Chinese (46 %)\n");
    for (int c = 0; c < LK_PROBE_CTX; c++)
        for (int d = 0; d < LK_PROBE_DEVS; d++) {
            struct lk_forecast_cell cell;
            if (!gpu && lk_probe_devs[d] > 1) continue;
            lk_probe_cell(&p->model, lk_probe_ctx[c], lk_probe_devs[d], &w, &cell);
            lk_buf_fmt(b, "      %6.0fK  %7d  %8.2f  %4s", lk_probe_ctx[c] / 1024, lk_probe_devs[d], cell.bytes * 1e-9, cell.fits ? "yes" : "no");
            if (cell.expected.plain > 0)
                lk_buf_fmt(b, "  %6.1f (%6.1f)  %20.1f (%6.1f)  %6.1f (%6.1f)", cell.expected.plain, cell.most.plain, cell.expected.code, cell.most.code,
                           cell.expected.zh, cell.most.zh);
            else if (cell.most.plain > 0)
                lk_buf_fmt(b, "  %15.1f  %29.1f  %15.1f", cell.most.plain, cell.most.code, cell.most.zh);
            lk_buf_chr(b, '\n');
        }
}

int lk_probe_text(const struct lk_probe *p, struct lk_buf *b)
{
    cpu_put(&p->cpu, b);
    if (p->no_gpu[0])
        lk_buf_fmt(b, "GPU   none: %s\n", p->no_gpu);
    else
        lk_buf_fmt(b, "      NVIDIA driver %s\n", p->nvml.driver);
    for (int i = 0; i < p->nvml.n; i++) gpu_put(p, i, b);
    peers_put(p, b);
    nccl_put(p, b);
    forecast_put(p, b);
    return b->failed ? LK_ENOMEM : 0;
}
