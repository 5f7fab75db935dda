/* The report for scripts: see probe.h. Numbers that are unknown are null. */
#include "probe/probe.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *int_or_null(int v)
{
    return v < 0 ? json_null() : json_integer(v);
}

static json_t *pos_or_null(double v)
{
    return v > 0 ? json_real(v) : json_null();
}

static json_t *cpu_json(const struct lk_cpu_facts *c)
{
    json_t *pts = json_array();
    for (int i = 0; i < c->n_points; i++) {
        const struct lk_bandwidth *w = &c->points[i].bw;
        json_array_append_new(pts, json_pack("{s:i, s:f, s:f, s:f, s:f, s:I, s:i}", "threads", c->points[i].threads, "read_gbs", w->read_best_gbs, "copy_gbs",
                                             w->copy_best_gbs, "read_median_gbs", w->read_gbs, "copy_median_gbs", w->copy_gbs, "bytes", (json_int_t)w->bytes,
                                             "passes", w->passes));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name", c->name, "isa", c->isa, "cores", c->cores, "numa_nodes", c->numa_nodes,
                     "mem_total", c->mem_total, "mem_available", c->mem_available, "bandwidth", pts);
}

static json_t *links_json(const struct lk_link_measure *l)
{
    json_t *a = json_array();
    for (int i = 0; i < LK_LINK_SIZES; i++)
        json_array_append_new(a, json_pack("{s:I, s:f, s:f, s:b}", "bytes", (json_int_t)lk_link_bytes[i], "us", l[i].us, "gbs", l[i].gbs, "data_right", l[i].ok));
    return a;
}

static json_t *measure_json(const struct lk_gpu_measure *m)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:s, s:o, s:o, s:o}", "read_gbs", m->read_gbs, "copy_gbs", m->copy_gbs, "fp16_tflops",
                     m->fp16_tflops, "launch_us", m->launch_us, "graph_node_us", m->graph_us, "chain_us", m->chain_us, "has_code", m->has_code, "image", m->image,
                     "host_to_device", links_json(m->h2d), "device_to_host", links_json(m->d2h), "within_the_card", links_json(m->d2d));
}

static json_t *gpu_json(const struct lk_probe *p, int i)
{
    const struct lk_gpu_facts *g = &p->nvml.gpu[i];
    const struct lk_variant *v = &p->variant[i];
    char why[160], sm[16];
    lk_throttle_words(g->throttle, why, sizeof why);
    snprintf(sm, sizeof sm, "sm_%d%d", g->sm_major, g->sm_minor);
    json_t *o = json_pack("{s:i, s:s, s:s, s:s, s:f, s:f, s:s, s:s, s:s, s:s, s:i}", "index", i, "name", g->name, "pci", g->pci, "arch", sm,
                          "mem_total", g->mem_total, "mem_used", g->mem_used, "throttle", why, "missing", g->missing, "what", v->what,
                          "verdict", v->verdict, "nvlinks", g->nvlinks);
    const struct {
        const char *key;
        int v;
    } ints[] = {{"units", g->units}, {"core_mhz", g->core_mhz}, {"core_mhz_max", g->core_mhz_max}, {"mem_mhz", g->mem_mhz},
                {"mem_mhz_max", g->mem_mhz_max}, {"bus_bits", g->bus_bits}, {"ecc", g->ecc}, {"temperature", g->temperature},
                {"power_w", g->power_w}, {"power_limit_w", g->power_limit_w}, {"pcie_gen", g->pcie_gen},
                {"pcie_gen_max", g->pcie_gen_max}, {"pcie_width", g->pcie_width}, {"pcie_width_max", g->pcie_width_max}};
    for (size_t k = 0; k < sizeof ints / sizeof *ints; k++) json_object_set_new(o, ints[k].key, int_or_null(ints[k].v));
    json_object_set_new(o, "expected_read_gbs", pos_or_null(v->read_gbs));
    json_object_set_new(o, "peak_gbs", pos_or_null(v->peak_gbs));
    json_object_set_new(o, "measured", p->not_measured[i][0] ? json_null() : measure_json(&p->measure[i]));
    json_object_set_new(o, "not_measured", json_string(p->not_measured[i]));
    return o;
}

static json_t *peers_json(const struct lk_probe *p)
{
    json_t *a = json_array();
    for (int i = 0; !p->no_peer[0] && i < p->nvml.n; i++)
        for (int j = 0; j < p->nvml.n; j++)
            if (i != j)
                json_array_append_new(a, json_pack("{s:i, s:i, s:b, s:b, s:o}", "from", i, "to", j, "claimed", p->peer[i][j].claimed, "proven",
                                                   p->peer[i][j].proven, "copy", links_json(p->peer[i][j].to)));
    return a;
}

static json_t *nccl_json(const struct lk_probe *p)
{
    const struct lk_nccl_facts *f = &p->nccl;
    if (!f->found) return json_null();
    json_t *archs = json_array(), *runs = json_array();
    for (int i = 0; i < f->n_archs; i++) json_array_append_new(archs, json_integer(f->archs[i]));
    for (int i = 0; i < p->nvml.n; i++)
        json_array_append_new(runs, json_boolean(lk_nccl_runs(f, p->nvml.gpu[i].sm_major * 10 + p->nvml.gpu[i].sm_minor)));
    return json_pack("{s:i, s:s, s:o, s:o}", "version", f->version, "path", f->path, "archs", archs, "runs", runs);
}

static json_t *tokens_json(const struct lk_tokens *t)
{
    return json_pack("{s:o, s:o, s:o}", "plain", pos_or_null(t->plain), "code", pos_or_null(t->code), "zh", pos_or_null(t->zh));
}

static json_t *forecast_json(const struct lk_probe *p)
{
    if (p->no_model[0]) return json_null();
    int gpu = p->nvml.n > 0;
    struct lk_probe_machine w;
    lk_probe_machine_of(p, &w);
    json_t *rows = json_array();
    for (int c = 0; c < LK_PROBE_CTX; c++)
        for (int d = 0; d < LK_PROBE_DEVS; d++) {
            struct lk_forecast_cell cell;
            if (!gpu && lk_probe_devs[d] > 1) continue;
            lk_probe_cell(&p->model, lk_probe_ctx[c], lk_probe_devs[d], &w, &cell);
            json_t *o = json_pack("{s:f, s:i, s:f, s:b}", "ctx", lk_probe_ctx[c], "devices", lk_probe_devs[d], "bytes", cell.bytes, "fits", cell.fits);
            json_object_set_new(o, "most", tokens_json(&cell.most));
            json_object_set_new(o, "expected", tokens_json(&cell.expected));
            json_array_append_new(rows, o);
        }
    return json_pack("{s:s, s:f, s:f, s:o}", "model", p->model.name, "gbs", w.gbs, "kernel_us", w.kernel_us, "rows", rows);
}

int lk_probe_json(const struct lk_probe *p, struct lk_buf *b)
{
    json_t *gpus = json_array();
    for (int i = 0; i < p->nvml.n; i++) json_array_append_new(gpus, gpu_json(p, i));
    json_t *o = json_pack("{s:o, s:o, s:s, s:s, s:o, s:s, s:o, s:o, s:s}", "cpu", cpu_json(&p->cpu), "gpus", gpus, "driver", p->nvml.driver,
                          "no_gpu", p->no_gpu, "peers", peers_json(p), "no_peer", p->no_peer, "nccl", nccl_json(p), "forecast",
                          forecast_json(p), "no_model", p->no_model);
    char *s = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    if (!s) return LK_ENOMEM;
    lk_buf_str(b, s);
    lk_buf_chr(b, '\n');
    free(s);
    return b->failed ? LK_ENOMEM : 0;
}
