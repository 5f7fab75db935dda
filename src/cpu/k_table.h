/* The struct cpu_kern of an instruction set; the file that includes this names it and says when it
 * is usable. */
#ifndef LK_CPU_K_TABLE_H
#define LK_CPU_K_TABLE_H

#include "cpu/k_attn.h"
#include "cpu/k_gdn.h"
#include "cpu/k_linear.h"
#include "cpu/k_vector.h"

/* to_act, gather and edit are copies or a handful of numbers: the oracle's do. */
static void k_ops(struct lk_ops *o)
{
    cpu_ref_ops(o);
    o->embed = k_embed;
    o->norm = k_norm;
    o->norm_f32 = k_norm_f32;
    o->linear = k_linear;
    o->gate_up = k_gate_up;
    o->attn = k_attn;
    o->gdn = k_gdn;
    o->gdn_fold = k_gdn_fold;
    o->add = k_add;
    o->argmax = k_argmax;
    o->topk = k_topk;
}

static int k_order(int kern)
{
    const struct shape *f = fmts[kern].f;
    return (int)f->perm + 16 * f->xexp + 8 * f->ints;
}

static size_t k_most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t k_work(const struct lk_dev_need *n, int threads)
{
    size_t bytes = k_most(attn_work_bytes(n, threads), gdn_work_bytes(n->max_rows, n->hk, n->hv));
    return k_most(bytes, top_work_bytes(n->vocab));
}

static size_t k_worker(const struct lk_dev_need *n)
{
    size_t bytes = k_most(lin_worker_bytes(n->max_rows), sizeof(struct attn_scratch));
    bytes = k_most(bytes, sizeof(struct gdn_scratch));
    return (bytes + 4095) / 4096 * 4096 + 192; /* odd lines: threads do not share cache sets */
}

#define KERN_TABLE(label, test)                                                                    \
    {                                                                                              \
        .name = label, .usable = test, .ops = k_ops, .pick = lin_pick,                             \
        .rough_row = k_rough_row,                                                                  \
        .order = k_order, .linear_work = lin_work_bytes, .work = k_work, .worker = k_worker,       \
    }

#endif
