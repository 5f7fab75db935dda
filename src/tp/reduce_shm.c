/* Collectives over shared memory, for CPU ranks.
 *
 * Area: for each rank one flag word, then two parities of {count, checksum, data}. Step s of a rank:
 *   1. copy the partial into parity s & 1, write count and checksum (seeded with s) (data)
 *   2. flag = s                                                              (release: 1 before 2)
 *   3. for every peer: wait until its flag >= s                              (acquire: before 4)
 *   4. check count and checksum of each, sum in rank order
 * Two parities suffice: a rank writes parity s & 1 again at s + 2, which it reaches only after every peer's flag showed s + 1, and a peer
 * sets s + 1 only after it has finished reading step s. Messages larger than a parity are cut into pieces, each a step.
 * The checksum is taken from the sender's own buffer and verified on the data as read: zeroed, torn or stale data cannot pass. */
#include "tp/comm.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

struct piece {
    uint64_t count, sum; /* bytes, and XXH3 of them seeded with the step */
    _Alignas(64) unsigned char data[];
};

struct comm_shm {
    struct lk_comm base;
    char *area;
    size_t block, parity, cap; /* bytes a rank, a parity, of data in a parity */
    uint32_t step;
    enum lk_comm_fault fault;
    uint32_t fault_at; /* 0: every step */
};

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t lk_comm_shm_bytes(int n, size_t floats)
{
    return (size_t)n * (sizeof(struct lk_word) + 2 * up(sizeof(struct piece) + floats * 4, 4096));
}

static struct lk_word *flag_of(struct comm_shm *c, int rank)
{
    return (struct lk_word *)(c->area + (size_t)rank * c->block);
}

static struct piece *piece_of(struct comm_shm *c, int rank, uint32_t step)
{
    return (struct piece *)(c->area + (size_t)rank * c->block + sizeof(struct lk_word) + (step & 1) * c->parity);
}

static void piece_write(struct comm_shm *c, struct piece *p, const void *mine, size_t bytes)
{
    enum lk_comm_fault fault = !c->fault_at || c->step == c->fault_at ? c->fault : LK_FAULT_NONE;
    if (fault == LK_FAULT_SKIP) return; /* the parity keeps what it held two steps ago */
    memcpy(p->data, mine, bytes);
    p->count = bytes;
    p->sum = XXH3_64bits_withSeed(mine, bytes, c->step);
    if (fault == LK_FAULT_ZERO) memset(p->data, 0, bytes);
    if (fault == LK_FAULT_FLIP) p->data[bytes / 2] ^= 0x40;
    if (fault == LK_FAULT_LATE) nanosleep(&(struct timespec){0, c->fault_at ? 300000000 : 60000000}, NULL);
}

/* Step 4's check of what rank r announced: `bytes` of it, whole and of this step. */
static int piece_check(struct comm_shm *c, int r, size_t bytes, struct lk_err *e)
{
    struct piece *q = piece_of(c, r, c->step);
    uint64_t sum = q->count == bytes ? XXH3_64bits_withSeed(q->data, bytes, c->step) : 0;
    if (q->count == bytes && sum == q->sum) return 0;
    lk_group_stop(c->base.g, "all-reduce step %u: rank %d reads %llu bytes of rank %d with checksum %016llx, expected %zu with %016llx", c->step,
                  c->base.rank, (unsigned long long)q->count, r, (unsigned long long)sum, bytes, (unsigned long long)q->sum);
    return lk_group_error(c->base.g, e);
}

/* Steps 1 to 3 for one piece, and the checks of 4: afterwards every rank's piece may be read. only_root: rank 0 alone sends data. */
static int piece_exchange(struct comm_shm *c, const void *mine, size_t bytes, int only_root, struct lk_err *e)
{
    c->step++;
    piece_write(c, piece_of(c, c->base.rank, c->step), mine, only_root && c->base.rank ? 0 : bytes);
    lk_word_set(flag_of(c, c->base.rank), c->step);
    for (int r = 0; r < c->base.n; r++) {
        char what[64];
        snprintf(what, sizeof what, "all-reduce %u", c->step);
        if (r != c->base.rank && lk_word_wait(c->base.g, flag_of(c, r), c->step, 0, r, what, e)) return LK_EDEVICE;
        if (piece_check(c, r, only_root && r ? 0 : bytes, e)) return LK_EDEVICE;
    }
    return 0;
}

static int shm_reduce_add(struct lk_comm *base, struct lk_dev *d, float *y, const float *partial, size_t count, struct lk_err *e)
{
    struct comm_shm *c = (struct comm_shm *)base;
    for (size_t at = 0; at < count;) {
        size_t n = count - at < c->cap / 4 ? count - at : c->cap / 4;
        if (piece_exchange(c, partial + at, n * 4, 0, e)) return LK_EDEVICE;
        const float *p[LK_MAX_RANKS];
        for (int r = 0; r < base->n; r++) p[r] = (const float *)piece_of(c, r, c->step)->data;
        float *out = y + at;
        for (size_t i = 0; i < n; i++) {
            float s = p[0][i];
            for (int r = 1; r < base->n; r++) s += p[r][i];
            out[i] += s;
        }
        at += n;
    }
    return 0;
}

static int shm_gather(struct lk_comm *base, const void *mine, size_t bytes, void *all, struct lk_err *e)
{
    struct comm_shm *c = (struct comm_shm *)base;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < c->cap ? bytes - at : c->cap;
        if (piece_exchange(c, (const char *)mine + at, n, 0, e)) return LK_EDEVICE;
        for (int r = 0; r < base->n; r++)
            memcpy((char *)all + (size_t)r * bytes + at, piece_of(c, r, c->step)->data, n);
        at += n;
    }
    return 0;
}

static int shm_bcast(struct lk_comm *base, void *data, size_t bytes, struct lk_err *e)
{
    struct comm_shm *c = (struct comm_shm *)base;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < c->cap ? bytes - at : c->cap;
        if (piece_exchange(c, (char *)data + at, n, 1, e)) return LK_EDEVICE;
        if (base->rank) memcpy((char *)data + at, piece_of(c, 0, c->step)->data, n);
        at += n;
    }
    return 0;
}

static void shm_close(struct lk_comm *base)
{
    lk_free(base);
}

static int one_reduce_add(struct lk_comm *c, struct lk_dev *d, float *y, const float *partial, size_t count, struct lk_err *e)
{
    for (size_t i = 0; i < count; i++) y[i] += partial[i];
    return 0;
}

static int one_gather(struct lk_comm *c, const void *mine, size_t bytes, void *all, struct lk_err *e)
{
    memcpy(all, mine, bytes);
    return 0;
}

static int one_bcast(struct lk_comm *c, void *data, size_t bytes, struct lk_err *e)
{
    return 0;
}

static void shm_fault(struct lk_comm *base, int way, enum lk_comm_fault kind, uint32_t step)
{
    struct comm_shm *c = (struct comm_shm *)base;
    c->fault = kind;
    c->fault_at = step ? c->step + step : 0;
}

static void shm_use(struct lk_comm *c, int small, int bulk, size_t small_most)
{
}

int lk_comm_shm_open(struct lk_comm **out, struct lk_group *g, struct lk_err *e)
{
    struct comm_shm *c = lk_calloc(1, sizeof *c);
    if (!c) return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    int alone = !g || lk_group_n(g) == 1;
    c->base = (struct lk_comm){.rank = g ? lk_group_rank(g) : 0, .n = g ? lk_group_n(g) : 1, .g = g, .ways = 1,
                               .way = {{.name = alone ? "alone" : "shm", .ok = 1}},
                               .reduce_add = alone ? one_reduce_add : shm_reduce_add, .use = shm_use, .fault = shm_fault,
                               .gather = alone ? one_gather : shm_gather, .bcast = alone ? one_bcast : shm_bcast, .close = shm_close};
    if (!alone) {
        size_t bytes;
        c->area = lk_group_reduce_area(g, &bytes);
        c->block = bytes / (size_t)c->base.n / 128 * 128;
        c->parity = (c->block - sizeof(struct lk_word)) / 2 / 64 * 64;
        c->cap = (c->parity - sizeof(struct piece)) / 4 * 4;
    }
    *out = &c->base;
    return 0;
}
