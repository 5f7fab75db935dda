/* Plans and records: see plan.h. */
#include "tp/plan.h"

#include "base/mem.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct plan_area {
    struct lk_word seq;
    struct {
        struct lk_word done;
        struct lk_record rec[2];
    } rank[LK_MAX_RANKS];
    uint32_t kind;
    uint64_t bytes, sum;
    _Alignas(64) unsigned char payload[];
};

struct lk_plan {
    struct lk_group *g;
    struct plan_area *a;
    size_t cap;
    uint32_t seq, kind;
    enum lk_plan_fault fault;
    uint32_t fault_at;
    FILE *log;
    struct {
        uint32_t at;
        void (*fn)(struct lk_comm *c, int kind);
        struct lk_comm *c;
        int kind;
    } arm;
};

size_t lk_plan_bytes(size_t payload)
{
    return sizeof(struct plan_area) + payload;
}

int lk_plan_open(struct lk_plan **out, struct lk_group *g, struct lk_err *e)
{
    size_t bytes;
    struct lk_plan *p = lk_calloc(1, sizeof *p);
    if (!p) return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    p->g = g;
    p->a = lk_group_plan_area(g, &bytes);
    p->cap = bytes - sizeof *p->a;
    *out = p;
    return 0;
}

void lk_plan_close(struct lk_plan *p)
{
    lk_free(p);
}

void *lk_plan_payload(struct lk_plan *p, size_t *cap)
{
    *cap = p->cap;
    return p->a->payload;
}

void lk_plan_fault(struct lk_plan *p, enum lk_plan_fault kind, uint32_t seq)
{
    p->fault = kind;
    p->fault_at = seq;
}

void lk_plan_log(struct lk_plan *p, FILE *f)
{
    p->log = f;
}

void lk_plan_arm(struct lk_plan *p, uint32_t seq, void (*fn)(struct lk_comm *c, int kind), struct lk_comm *c, int kind)
{
    p->arm.at = seq, p->arm.fn = fn, p->arm.c = c, p->arm.kind = kind;
}

static void step_begins(struct lk_plan *p)
{
    if (!p->arm.fn || p->arm.at != p->seq) return;
    p->arm.fn(p->arm.c, p->arm.kind);
    p->arm.fn = NULL;
}

int lk_plan_publish(struct lk_plan *p, uint32_t kind, size_t bytes, struct lk_err *e)
{
    if (lk_group_stopped(p->g)) return lk_group_error(p->g, e);
    p->seq++;
    p->kind = kind;
    step_begins(p);
    p->a->kind = kind;
    p->a->bytes = bytes;
    p->a->sum = XXH3_64bits(p->a->payload, bytes);
    lk_word_set(&p->a->seq, p->seq);
    return 0;
}

int lk_plan_next(struct lk_plan *p, uint32_t *kind, const void **data, size_t *bytes, struct lk_err *e)
{
    if (lk_word_wait(p->g, &p->a->seq, p->seq + 1, 1, 0, "the next plan", e)) return LK_EDEVICE;
    uint32_t seq = lk_word_get(&p->a->seq);
    if (seq != p->seq + 1) {
        lk_group_stop(p->g, "rank %d is at step %u, the leader at step %u: a step was skipped", lk_group_rank(p->g),
                      p->seq + 1, seq);
        return lk_group_error(p->g, e);
    }
    p->seq = seq;
    p->kind = *kind = p->a->kind;
    step_begins(p);
    *bytes = p->a->bytes;
    *data = p->a->payload;
    if (*bytes > p->cap || XXH3_64bits(*data, *bytes) != p->a->sum) {
        lk_group_stop(p->g, "step %u: rank %d read a damaged plan", seq, lk_group_rank(p->g));
        return lk_group_error(p->g, e);
    }
    return 0;
}

/* 1 when this rank must not publish its record at all. */
static int record_fault(struct lk_plan *p, struct lk_record *r)
{
    if (p->fault == LK_PLAN_FAULT_NONE || p->fault_at != p->seq) return 0;
    enum lk_plan_fault kind = p->fault;
    p->fault = LK_PLAN_FAULT_NONE;
    if (kind == LK_PLAN_FAULT_KILL) raise(SIGKILL);
    if (kind == LK_PLAN_FAULT_STOP) raise(SIGSTOP);
    if (kind == LK_PLAN_FAULT_TOKEN) r->hash_out ^= 0x9e3779b97f4a7c15ull;
    if (kind == LK_PLAN_FAULT_POSITION) r->hash_in ^= 0x9e3779b97f4a7c15ull;
    return kind == LK_PLAN_FAULT_SKIP;
}

static int record_compare(struct lk_plan *p, const struct lk_record *a, int peer, struct lk_err *e)
{
    const struct lk_record *b = &p->a->rank[peer].rec[p->seq & 1];
    if (!memcmp(a, b, sizeof *a)) return 0;
    lk_group_stop(p->g,
                  "step %u: rank %d has (kind %u, count %u, in %016llx, out %016llx), rank %d has (step %u, kind %u, count %u, in %016llx, out %016llx)",
                  a->seq, lk_group_rank(p->g), a->kind, a->count, (unsigned long long)a->hash_in, (unsigned long long)a->hash_out,
                  peer, b->seq, b->kind, b->count, (unsigned long long)b->hash_in, (unsigned long long)b->hash_out);
    return lk_group_error(p->g, e);
}

int lk_plan_done(struct lk_plan *p, struct lk_record *mine, struct lk_err *e)
{
    int me = lk_group_rank(p->g), n = lk_group_n(p->g);
    mine->seq = p->seq;
    mine->kind = p->kind;
    mine->pad = 0;
    if (!record_fault(p, mine)) {
        p->a->rank[me].rec[p->seq & 1] = *mine;
        lk_word_set(&p->a->rank[me].done, p->seq);
    }
    if (p->log)
        fprintf(p->log, "%u kind %u count %u in %016llx out %016llx\n", mine->seq, mine->kind, mine->count, (unsigned long long)mine->hash_in,
                (unsigned long long)mine->hash_out);
    char what[64];
    snprintf(what, sizeof what, "the record of step %u (kind %u)", p->seq, p->kind);
    for (int r = 0; r < n; r++)
        if (r != me && (lk_word_wait(p->g, &p->a->rank[r].done, p->seq, 0, r, what, e) || record_compare(p, mine, r, e)))
            return LK_EDEVICE;
    return 0;
}
