/* Facts about the host: processor, instruction sets, NUMA nodes, memory; and memory bandwidth by thread count. */
#ifndef LK_PROBE_CPU_FACTS_H
#define LK_PROBE_CPU_FACTS_H

#include "base/bandwidth.h"

#define LK_BW_POINTS 10

struct lk_cpu_facts {
    char name[128], isa[160];
    int cores, numa_nodes;
    double mem_total, mem_available; /* bytes */
    int n_points;
    struct {
        int threads;
        struct lk_bandwidth bw;
    } points[LK_BW_POINTS]; /* 1, 2, 4, ... threads, then all cores */
};
void lk_cpu_facts_read(struct lk_cpu_facts *f);
void lk_cpu_facts_measure(struct lk_cpu_facts *f); /* a few seconds */
/* the best read over the points; 0 before measuring */
double lk_cpu_facts_read_gbs(const struct lk_cpu_facts *f);

#endif
