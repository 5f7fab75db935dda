/* What is known of a card: a verdict in words and what to expect, from its facts alone. */
#ifndef LK_PROBE_VARIANT_H
#define LK_PROBE_VARIANT_H

#include "probe/nvml.h"

struct lk_variant {
    const char *what;   /* which card this really is */
    double read_gbs;    /* expected measured 1-GB read, 0 unknown */
    double peak_gbs;    /* memory clock x 2 x bus width, 0 unknown */
    char verdict[512];  /* words for people: what it is, what holds it back now */
};
void lk_variant_judge(const struct lk_gpu_facts *g, struct lk_variant *v);

#endif
