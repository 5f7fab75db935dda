/* Collectives of GPU ranks: sums on the devices over a bridge (dev/bridge.h), everything else in host memory (reduce_shm.c).
 *
 * The device waits for peers by itself and its host thread waits for the device, so nobody on this thread could see that a peer is gone: a
 * watcher thread polls the peers' pidfds and the group's stop word, and raises the bridge's stop word, which ends the device's waits. */
#include "tp/comm.h"

#include "base/mem.h"
#include "dev/bridge.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOK_MS 50 /* between two looks at the group's stop word: another rank stopped it and lives on */

struct comm_bridge {
    struct lk_comm base;
    struct lk_comm *host;
    struct lk_bridge *bridge;
    enum lk_bridge_kind small, bulk;
    size_t small_most;
    pthread_t watcher;
    int watching, wake; /* eventfd that ends the watcher */
};

static struct comm_bridge *of(struct lk_comm *c)
{
    return (struct comm_bridge *)c;
}

/* ---- the watcher ---- */

static void peer_ended(struct comm_bridge *c, int r)
{
    struct lk_group *g = c->base.g;
    if (!lk_group_left(g, r)) lk_group_stop(g, "rank %d ended, seen by rank %d", r, c->base.rank);
    c->bridge->stop(c->bridge);
}

static void *watch(void *arg)
{
    struct comm_bridge *c = arg;
    struct pollfd p[LK_MAX_RANKS];
    int n = c->base.n, me = c->base.rank;
    for (int r = 0; r < n; r++) {
        p[r] = (struct pollfd){.fd = r == me ? c->wake : lk_group_pidfd(c->base.g, r), .events = POLLIN};
        if (r != me && p[r].fd < 0) peer_ended(c, r);
    }
    for (;;) {
        int got = poll(p, (nfds_t)n, LOOK_MS);
        if (got > 0 && p[me].revents) break;
        for (int r = 0; r < n && got > 0; r++)
            if (r != me && p[r].revents) {
                peer_ended(c, r);
                close(p[r].fd);
                p[r] = (struct pollfd){.fd = -1};
            }
        if (lk_group_stopped(c->base.g)) c->bridge->stop(c->bridge);
    }
    for (int r = 0; r < n; r++)
        if (r != me && p[r].fd >= 0) close(p[r].fd);
    return NULL;
}

static void watch_end(struct comm_bridge *c)
{
    uint64_t one = 1;
    if (c->watching && write(c->wake, &one, sizeof one) == sizeof one) pthread_join(c->watcher, NULL);
    if (c->wake >= 0) close(c->wake);
    c->watching = 0;
    c->wake = -1;
}

/* ---- collectives ---- */

static int bridge_reduce_add(struct lk_comm *base, struct lk_dev *d, float *y, const float *partial, size_t count, struct lk_err *e)
{
    struct comm_bridge *c = of(base);
    c->bridge->reduce_add(c->bridge, count <= c->small_most ? c->small : c->bulk, y, partial, count);
    return 0;
}

static int bridge_settle(struct lk_comm *base, struct lk_dev *d, const float *x, size_t count, uint64_t *digest, struct lk_err *e)
{
    struct comm_bridge *c = of(base);
    return c->bridge->settle(c->bridge, x, count, digest, e);
}

static void bridge_use(struct lk_comm *base, int small, int bulk, size_t small_most)
{
    struct comm_bridge *c = of(base);
    c->small = (enum lk_bridge_kind)small;
    c->bulk = (enum lk_bridge_kind)bulk;
    c->small_most = small_most;
}

static void bridge_reset(struct lk_comm *base, double patience_s)
{
    struct comm_bridge *c = of(base);
    c->bridge->reset(c->bridge, patience_s > 0 ? patience_s : lk_group_patience(base->g));
}

_Static_assert((int)LK_FAULT_LATE == (int)LK_BRIDGE_LATE && LK_COMM_WAYS >= LK_BRIDGE_KINDS, "comm.h and bridge.h name the same faults and ways");

static void bridge_fault(struct lk_comm *base, int way, enum lk_comm_fault kind, uint32_t step)
{
    struct comm_bridge *c = of(base);
    c->bridge->fault(c->bridge, way < 0 ? c->small : (enum lk_bridge_kind)way, (enum lk_bridge_fault)kind, step);
}

static int bridge_gather(struct lk_comm *base, const void *mine, size_t bytes, void *all, struct lk_err *e)
{
    struct lk_comm *h = of(base)->host;
    return h->gather(h, mine, bytes, all, e);
}

static int bridge_bcast(struct lk_comm *base, void *data, size_t bytes, struct lk_err *e)
{
    struct lk_comm *h = of(base)->host;
    return h->bcast(h, data, bytes, e);
}

static void bridge_close(struct lk_comm *base)
{
    struct comm_bridge *c = of(base);
    struct lk_err e = {0};
    char all[LK_MAX_RANKS], mine = 1;
    watch_end(c);
    if (c->bridge) {
        if (lk_group_stopped(base->g)) c->bridge->stop(c->bridge);
        c->bridge->leave(c->bridge);
        /* own memory is freed only when nobody maps it any more, or is gone */
        if (c->host && !lk_group_stopped(base->g)) c->host->gather(c->host, &mine, 1, all, &e);
        c->bridge->close(c->bridge);
    }
    if (c->host) c->host->close(c->host);
    lk_free(c);
}

/* ---- meeting ---- */

/* A way is ok when every rank can use it; the first rank that cannot says why. */
static int agree_ways(struct comm_bridge *c, struct lk_err *e)
{
    struct said {
        int usable[LK_BRIDGE_KINDS];
        char why[LK_BRIDGE_KINDS][200];
    } mine, all[LK_MAX_RANKS];
    memcpy(mine.usable, c->bridge->usable, sizeof mine.usable);
    memcpy(mine.why, c->bridge->why, sizeof mine.why);
    int rc = c->host->gather(c->host, &mine, sizeof mine, all, e);
    for (int k = 0; k < LK_BRIDGE_KINDS && !rc; k++) {
        struct lk_comm_way *w = &c->base.way[k];
        w->ok = 1;
        w->why[0] = 0;
        for (int r = 0; r < c->base.n && w->ok; r++)
            if (!all[r].usable[k]) {
                w->ok = 0;
                snprintf(w->why, sizeof w->why, "%s", all[r].why[k]);
            }
        c->bridge->usable[k] = w->ok;
    }
    return rc;
}

static int meet(struct comm_bridge *c, struct lk_err *e)
{
    char mine[LK_BRIDGE_CARD], all[LK_MAX_RANKS * LK_BRIDGE_CARD];
    c->bridge->card(c->bridge, mine);
    int rc = c->host->gather(c->host, mine, sizeof mine, all, e);
    if (!rc) rc = c->bridge->meet(c->bridge, all, e);
    if (!rc) rc = agree_ways(c, e);
    if (!rc && c->base.way[LK_BRIDGE_NCCL].ok) {
        rc = c->bridge->nccl_open(c->bridge, e);
        if (!rc) rc = agree_ways(c, e);
    }
    return rc;
}

int lk_comm_bridge_open(struct lk_comm **out, struct lk_group *g, struct lk_bridge *l, struct lk_err *e)
{
    *out = NULL;
    struct comm_bridge *c = lk_calloc(1, sizeof *c);
    if (!c) {
        l->close(l);
        return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    }
    c->bridge = l;
    c->wake = -1;
    c->base = (struct lk_comm){.rank = l->rank, .n = l->n, .g = g, .ways = LK_BRIDGE_KINDS, .reduce_add = bridge_reduce_add, .settle = bridge_settle,
                               .use = bridge_use, .reset = bridge_reset, .fault = bridge_fault, .gather = bridge_gather, .bcast = bridge_bcast,
                               .close = bridge_close};
    for (int k = 0; k < LK_BRIDGE_KINDS; k++) c->base.way[k].name = lk_bridge_name((enum lk_bridge_kind)k);
    int rc = lk_comm_shm_open(&c->host, g, e);
    c->wake = eventfd(0, EFD_CLOEXEC);
    if (!rc && (c->wake < 0 || pthread_create(&c->watcher, NULL, watch, c))) rc = lk_fail(e, LK_ESYS, "tensor parallel: no watcher: %s", strerror(errno));
    c->watching = !rc;
    if (!rc) rc = meet(c, e);
    if (rc) {
        if (!lk_group_stopped(g)) lk_group_stop(g, "rank %d: %.400s", l->rank, e ? e->text : "no all-reduce");
        bridge_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return 0;
}
