/* What an instruction set offers: its ops, its decoder for a weight, and the work memory it wants.
 * One struct each in isa_scalar.c, isa_avx2.c and isa_avx512.c. */
#ifndef LK_CPU_KERN_H
#define LK_CPU_KERN_H

#include "cpu/cpu.h"

struct cpu_kern {
    const char *name;
    int (*usable)(void); /* this processor has it */
    void (*ops)(struct lk_ops *o);
    int (*pick)(const struct lk_weight *w);
    /* a row of a weight of whole groups of ROUGH_G, in the codes and F16 scales of a rough mat (cpu_rough.c) */
    void (*rough_row)(const struct cpu_part *p, int64_t row, uint8_t *codes, uint16_t *scales);
    int (*order)(int kern); /* class of column order: gate and up must share one */
    size_t (*linear_work)(int64_t k, int max_rows);
    size_t (*work)(const struct lk_dev_need *n, int threads); /* attention and delta net, a step */
    size_t (*worker)(const struct lk_dev_need *n);            /* scratch a thread */
};

extern const struct cpu_kern cpu_kern_scalar;
#if defined(__x86_64__)
extern const struct cpu_kern cpu_kern_avx2, cpu_kern_avx512;
#endif

#endif
