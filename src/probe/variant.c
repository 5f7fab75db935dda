/* Known cards: see variant.h. Two V100 with the same name differ by 20 % in memory speed; the memory clock and the number of units tell
 * them apart (877 MHz and 80 units against 1,107 MHz and 72). Expected reads are a 1-GB read kernel's. */
#include "probe/variant.h"

#include <stdio.h>
#include <string.h>

struct known {
    const char *in_name;      /* part of the NVML name; NULL: any */
    int sm;                   /* compute capability x 10 */
    int mem_mhz, units;       /* 0: any */
    const char *what;
    double read_gbs;
};

/* first match wins */
static const struct known table[] = {
    {NULL, 70, 1107, 72, "PG500-216, a V100 of 72 units with faster memory (1,107 MHz)", 1058},
    {"SXM3", 70, 0, 0, "V100 SXM3 (958 MHz memory)", 940},
    {"SXM2", 70, 877, 80, "V100 SXM2 (877 MHz memory)", 878},
    {"PCIE", 70, 877, 80, "V100 PCIe (877 MHz memory, 250 W)", 810},
    {"FHHL", 70, 0, 0, "V100 FHHL (half length, 150 W: slower memory)", 720},
    {"TITAN V", 70, 0, 0, "TITAN V (3 of 4 memory stacks, 12 GB)", 580},
    {NULL, 70, 0, 0, "a Volta card that is not in the list", 0},
    {"P100", 60, 0, 0, "P100: no tensor cores, no code in this program", 0},
    {NULL, 75, 0, 0, "a Turing card", 0},
    {"A100", 80, 0, 0, "A100", 0},
    {"H200", 90, 0, 0, "H200 SXM", 4700},
    {"H100", 90, 0, 0, "H100", 0},
};

static const struct known *known_find(const struct lk_gpu_facts *g)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct known *k = &table[i];
        if (k->sm != g->sm_major * 10 + g->sm_minor) continue;
        if (k->in_name && !strcasestr(g->name, k->in_name)) continue;
        if (k->mem_mhz && k->mem_mhz != g->mem_mhz_max) continue;
        if (k->units && g->units > 0 && k->units != g->units) continue;
        return k;
    }
    return NULL;
}

static void say(struct lk_variant *v, const char *fmt, const char *text, double a, double b)
{
    size_t n = strlen(v->verdict);
    if (n) v->verdict[n++] = ' ';
    snprintf(v->verdict + n, sizeof v->verdict - n, fmt, text, a, b);
}

void lk_variant_judge(const struct lk_gpu_facts *g, struct lk_variant *v)
{
    memset(v, 0, sizeof *v);
    const struct known *k = known_find(g);
    v->what = k ? k->what : "a card that is not in the list";
    v->read_gbs = k ? k->read_gbs : 0;
    if (g->mem_mhz_max > 0 && g->bus_bits > 0) v->peak_gbs = g->mem_mhz_max * 2e6 * g->bus_bits / 8 * 1e-9;
    say(v, "This is %s.", v->what, 0, 0);
    if (v->read_gbs > 0)
        say(v, "%sExpect %.0f GB/s from a 1-GB read.", "", v->read_gbs, 0);
    else if (v->peak_gbs > 0)
        say(v, "%sBus peak %.0f GB/s; a read reaches 85 to 96 %% of that.", "", v->peak_gbs, 0);
    if (g->mem_total > 0 && g->mem_total < 20e9)
        say(v, "%s%.0f GB: the 27B in NVFP4 (21.5 GB) needs two of them.", "", g->mem_total * 1e-9, 0);
    if (g->temperature >= 83) say(v, "%s%.0f C: throttles; both ranks run at the slow card's pace.", "", g->temperature, 0);
    char why[160];
    lk_throttle_words(g->throttle, why, sizeof why);
    if (why[0]) say(v, "Held back now: %s.", why, 0, 0);
    if (g->pcie_width > 0 && g->pcie_width_max > g->pcie_width)
        say(v, "%sPCIe runs at %.0f of %.0f lanes: check the slot or riser.", "", g->pcie_width, g->pcie_width_max);
    if (g->ecc == 0) say(v, "%sECC is off.", "", 0, 0);
}
