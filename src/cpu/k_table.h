/* The struct cpu_kern of an instruction set; the file that includes this names it in KERN and says
 * when it is usable. */
#ifndef LK_CPU_K_TABLE_H
#define LK_CPU_K_TABLE_H

#include "cpu/k_linear.h"

static void k_ops(struct lk_ops *o)
{
    cpu_ref_ops(o);
    o->linear = k_linear;
    o->gate_up = k_gate_up;
}

static int k_order(int kern)
{
    return (int)fmts[kern].perm;
}

static size_t k_work(const struct lk_dev_need *n, int threads)
{
    return cpu_ref_work(n, threads);
}

static size_t k_worker(const struct lk_dev_need *n)
{
    return (lin_worker_bytes(n->max_rows) + 4095) / 4096 * 4096 +
           192; /* odd lines: threads do not share cache sets */
}

#define KERN_TABLE(label, test)                                                                    \
    {                                                                                              \
        .name = label, .usable = test, .init = lin_init, .ops = k_ops, .pick = lin_pick,           \
        .order = k_order, .linear_work = lin_work_bytes, .work = k_work, .worker = k_worker,       \
    }

#endif
