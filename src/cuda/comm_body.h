/* The two exchanges of an all-reduce as one block of threads runs them: with a flag a block (mailbox, push), and with words that carry
 * their step (LL). comm.cu makes kernels of them; tests/tp/bridge_emu.h compiles the very same text for host threads, so that the protocol
 * is tested where there is no GPU. Memory ordering: docs/tp.md.
 *
 * Steps count a block of each transport for itself, in device memory: a replayed graph needs no new parameter. Every call gives block c the
 * slices c, c + blocks, ...; every slice is a step. A block that has no slice makes no step, on no rank.
 * Who includes this defines: COMM_FN, comm_tid() comm_threads() comm_cta() comm_ctas() comm_barrier() comm_fence() comm_now() and the loads and
 * stores below. */
#ifndef LK_CUDA_COMM_BODY_H
#define LK_CUDA_COMM_BODY_H

#include "cuda/comm_shared.h"

/* 1 when waiting is over: too long, stopped, or another wait of this rank was given up. The first reason is kept. */
COMM_FN int comm_gave_up(const struct comm_args *a, uint64_t *t0, uint32_t step, int peer)
{
    uint64_t now = comm_now();
    if (!*t0) *t0 = now;
    uint32_t why = comm_ld32(a->stop) ? COMM_STOPPED : now - *t0 > a->limit_ns ? COMM_LATE : 0;
    if (!why) return comm_ld32(&a->state->bad) != 0;
    if (comm_cas32(&a->state->bad, 0, why) == 0) {
        a->state->bad_peer = (uint32_t)peer;
        a->state->bad_step = step;
    }
    return 1;
}

/* Damage for tests. Returns 1 when nothing is to be sent. */
COMM_FN int comm_damage(const struct comm_args *a, uint32_t step, uint32_t *zero, uint32_t *flip)
{
    const struct comm_cta *c = a->cta + comm_cta();
    *zero = *flip = 0;
    if (!c->fault || (c->fault_at && c->fault_at != step)) return 0;
    if (c->fault == COMM_FAULT_LATE)
        for (uint64_t t0 = comm_now(); comm_now() - t0 < COMM_LATE_NS;) comm_pause();
    *zero = c->fault == COMM_FAULT_ZERO;
    *flip = c->fault == COMM_FAULT_FLIP;
    return c->fault == COMM_FAULT_SKIP;
}

/* The step this block is at, in every thread; 0: this rank gave up before. */
COMM_FN int comm_enter(const struct comm_args *a, struct comm_scratch *sh, uint32_t *step)
{
    if (comm_tid() == 0) {
        sh->step = a->cta[comm_cta()].step;
        sh->bad = comm_ld32(&a->state->bad);
    }
    comm_barrier(); /* thread 0's reads -> everybody's use */
    *step = sh->step;
    return !sh->bad;
}

COMM_FN void comm_leave(const struct comm_args *a, uint32_t step, uint64_t hash)
{
    comm_hash_add(&a->state->digest, hash);
    if (comm_tid() == 0) a->cta[comm_cta()].step = step; /* read again by the next call, behind this one in the stream */
}

/* One value of the digest: where it stands counts, the order of additions does not. */
COMM_FN uint64_t comm_mix(float v, uint64_t at)
{
    return (uint64_t)(comm_bits(v) ^ 0x5bd1e995u) * (at * 0x9e3779b97f4a7c15ull | 1);
}

/* y[i] += p0[i] + p1[i] + ... with own data from `partial`, peers' through src(r) */
COMM_FN uint64_t comm_add4(const struct comm_args *a, size_t at, struct comm_f4 s)
{
    struct comm_f4 y = *(const struct comm_f4 *)(a->y + at);
    y.x += s.x, y.y += s.y, y.z += s.z, y.w += s.w;
    *(struct comm_f4 *)(a->y + at) = y;
    return comm_mix(s.x, at) + comm_mix(s.y, at + 1) + comm_mix(s.z, at + 2) + comm_mix(s.w, at + 3);
}

/* Step of one slice with a flag: 1 data, 2 flag behind a release fence, 3 peers' flags, 4 acquire fence, sum in rank order. */
COMM_FN int comm_flag_slice(const struct comm_args *a, struct comm_scratch *sh, uint32_t step, size_t at, uint32_t n, uint64_t *hash)
{
    uint32_t tid = comm_tid(), b = comm_cta(), zero, flip;
    size_t data = COMM_FLAG_BYTES + ((size_t)b * 2 + (step & 1)) * COMM_SLICE * 4;
    const struct comm_f4 *mine = (const struct comm_f4 *)(a->partial + at);
    int skip = comm_damage(a, step, &zero, &flip);
    for (int k = 0; k < a->n_dst && !skip; k++)
        for (uint32_t i = tid; i < n / 4; i += comm_threads()) {
            struct comm_f4 v = mine[i];
            if (zero) v.x = v.y = v.z = v.w = 0;
            if (flip && i == 0) v.x = comm_float(comm_bits(v.x) ^ 0x400000u);
            comm_st128((struct comm_f4 *)(a->dst[k] + data) + i, v);
        }
    comm_barrier(); /* all threads' data -> the flag */
    if (tid < (uint32_t)a->n_dst) {
        comm_fence(); /* orders the block's data (1) before this flag (2) */
        comm_st32((uint32_t *)(a->dst[tid] + (size_t)b * COMM_LINE), step);
    }
    if (tid < (uint32_t)a->n && (int)tid != a->rank) {
        const uint32_t *flag = (const uint32_t *)(a->src[tid] + (size_t)b * COMM_LINE);
        uint64_t t0 = 0;
        for (uint32_t spin = 1; (int32_t)(comm_ld32(flag) - step) < 0; spin++) {
            comm_pause();
            if (spin % COMM_LOOK == 0 && comm_gave_up(a, &t0, step, (int)tid)) {
                sh->bad = 1;
                break;
            }
        }
        comm_fence(); /* orders the flag that was read (3) before the peer's data (4) */
    }
    comm_barrier(); /* flags seen -> everybody reads; also: bad */
    if (sh->bad) return -1;
    for (uint32_t i = tid; i < n / 4; i += comm_threads()) {
        struct comm_f4 s = {0, 0, 0, 0};
        for (int r = 0; r < a->n; r++) {
            struct comm_f4 v = r == a->rank ? mine[i] : comm_ld128((const struct comm_f4 *)(a->src[r] + data) + i);
            if (r == 0) {
                s = v;
                continue;
            }
            s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w;
        }
        *hash += comm_add4(a, at + (size_t)i * 4, s);
    }
    return 0;
}

COMM_FN void comm_flag_body(const struct comm_args *a, struct comm_scratch *sh)
{
    uint32_t step;
    uint64_t hash = 0;
    if (!comm_enter(a, sh, &step)) return;
    for (size_t at = (size_t)comm_cta() * a->slice; at < a->count; at += (size_t)comm_ctas() * a->slice) {
        uint32_t n = a->count - at < a->slice ? (uint32_t)(a->count - at) : a->slice;
        if (comm_flag_slice(a, sh, ++step, at, n, &hash)) return;
    }
    comm_leave(a, step, hash);
}

/* Word pair i of a slice from rank r, when both words are of this step. */
COMM_FN int comm_ll_get(const struct comm_args *a, const struct comm_ll *p, uint32_t step, int r, struct comm_ll *v)
{
    uint64_t t0 = 0;
    for (uint32_t spin = 1;; spin++) {
        *v = comm_ldll(p);
        if (v->f0 == step && v->f1 == step) return 0;
        comm_pause();
        if (spin % COMM_LOOK == 0 && comm_gave_up(a, &t0, step, r)) return -1;
    }
}

/* Step of one slice of words: each 16-byte store holds two floats and twice the step. */
COMM_FN void comm_ll_slice(const struct comm_args *a, struct comm_scratch *sh, uint32_t step, size_t at, uint32_t n, uint64_t *hash)
{
    uint32_t tid = comm_tid(), zero, flip;
    size_t words = ((size_t)comm_cta() * 2 + (step & 1)) * COMM_SLICE * 8;
    const struct comm_f2 *mine = (const struct comm_f2 *)(a->partial + at);
    int skip = comm_damage(a, step, &zero, &flip);
    for (uint32_t i = tid; i < n / 2 && !skip; i += comm_threads()) {
        struct comm_ll v = {comm_bits(mine[i].x), step, comm_bits(mine[i].y), step};
        if (zero) v.d0 = v.d1 = 0;
        if (flip && i == 0) v.d0 ^= 0x400000u;
        for (int k = 0; k < a->n_dst; k++) comm_stll((struct comm_ll *)(a->dst[k] + words) + i, v);
    }
    for (uint32_t i = tid; i < n / 2; i += comm_threads()) {
        struct comm_f2 *to = (struct comm_f2 *)(a->y + at) + i, y = *to, s = {0, 0};
        for (int r = 0; r < a->n; r++) {
            struct comm_f2 v = mine[i];
            if (r != a->rank) {
                struct comm_ll w;
                if (comm_ll_get(a, (const struct comm_ll *)(a->src[r] + words) + i, step, r, &w)) {
                    sh->bad = step; /* the other threads find state->bad and end as well */
                    return;
                }
                v.x = comm_float(w.d0), v.y = comm_float(w.d1);
            }
            s.x = r ? s.x + v.x : v.x, s.y = r ? s.y + v.y : v.y;
        }
        y.x += s.x, y.y += s.y;
        *to = y;
        *hash += comm_mix(s.x, at + 2 * (size_t)i) + comm_mix(s.y, at + 2 * (size_t)i + 1);
    }
}

COMM_FN void comm_ll_body(const struct comm_args *a, struct comm_scratch *sh)
{
    uint32_t step;
    uint64_t hash = 0;
    if (!comm_enter(a, sh, &step)) return;
    for (size_t at = (size_t)comm_cta() * a->slice; at < a->count; at += (size_t)comm_ctas() * a->slice) {
        uint32_t n = a->count - at < a->slice ? (uint32_t)(a->count - at) : a->slice;
        comm_ll_slice(a, sh, ++step, at, n, &hash);
        comm_barrier(); /* all words of this step read -> the next is sent: its arrival frees this parity at the peer */
        /* A quick thread may already have given up the next step: only this step's word counts, so that all threads leave together. */
        if (sh->bad && (int32_t)(sh->bad - step) <= 0) return;
    }
    comm_leave(a, step, hash);
}

#endif
