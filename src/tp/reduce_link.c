/* Collectives of GPU ranks: sums on the devices over a link (dev/link.h), everything else in host memory (reduce_shm.c).
 *
 * The device waits for peers by itself and its host thread waits for the device, so nobody on this thread could see that a peer is gone: a
 * watcher thread polls the peers' pidfds and the group's stop word, and raises the link's stop word, which ends the device's waits. */
#include "tp/comm.h"

#include "base/mem.h"
#include "dev/link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOK_MS 50 /* between two looks at the group's stop word: another rank stopped it and lives on */

struct comm_link {
    struct lk_comm base;
    struct lk_comm *host;
    struct lk_link *link;
    enum lk_link_kind small, bulk;
    size_t small_most;
    pthread_t watcher;
    int watching, wake; /* eventfd that ends the watcher */
};

static struct comm_link *of(struct lk_comm *c)
{
    return (struct comm_link *)c;
}

/* ---- the watcher ---- */

static void peer_ended(struct comm_link *c, int r)
{
    struct lk_group *g = c->base.g;
    if (!lk_group_left(g, r)) lk_group_stop(g, "rank %d ended, seen by rank %d", r, c->base.rank);
    c->link->stop(c->link);
}

static void *watch(void *arg)
{
    struct comm_link *c = arg;
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
        if (lk_group_stopped(c->base.g)) c->link->stop(c->link);
    }
    for (int r = 0; r < n; r++)
        if (r != me && p[r].fd >= 0) close(p[r].fd);
    return NULL;
}

static void watch_end(struct comm_link *c)
{
    uint64_t one = 1;
    if (c->watching && write(c->wake, &one, sizeof one) == sizeof one) pthread_join(c->watcher, NULL);
    if (c->wake >= 0) close(c->wake);
    c->watching = 0;
    c->wake = -1;
}

/* ---- collectives ---- */

static int link_reduce_add(struct lk_comm *base, struct lk_dev *d, float *y, const float *partial, size_t count, struct lk_err *e)
{
    struct comm_link *c = of(base);
    c->link->reduce_add(c->link, count <= c->small_most ? c->small : c->bulk, y, partial, count);
    return 0;
}

static int link_settle(struct lk_comm *base, struct lk_dev *d, const float *x, size_t count, uint64_t *digest, struct lk_err *e)
{
    struct comm_link *c = of(base);
    return c->link->settle(c->link, x, count, digest, e);
}

static void link_use(struct lk_comm *base, int small, int bulk, size_t small_most)
{
    struct comm_link *c = of(base);
    c->small = (enum lk_link_kind)small;
    c->bulk = (enum lk_link_kind)bulk;
    c->small_most = small_most;
}

static void link_reset(struct lk_comm *base, double patience_s)
{
    struct comm_link *c = of(base);
    c->link->reset(c->link, patience_s > 0 ? patience_s : lk_group_patience(base->g));
}

static void link_fault(struct lk_comm *base, int way, enum lk_comm_fault kind, uint32_t step)
{
    struct comm_link *c = of(base);
    c->link->fault(c->link, way < 0 ? c->small : (enum lk_link_kind)way, (enum lk_link_fault)kind, step);
}

static int link_gather(struct lk_comm *base, const void *mine, size_t bytes, void *all, struct lk_err *e)
{
    struct lk_comm *h = of(base)->host;
    return h->gather(h, mine, bytes, all, e);
}

static int link_bcast(struct lk_comm *base, void *data, size_t bytes, struct lk_err *e)
{
    struct lk_comm *h = of(base)->host;
    return h->bcast(h, data, bytes, e);
}

static void link_close(struct lk_comm *base)
{
    struct comm_link *c = of(base);
    struct lk_err e = {0};
    char all[LK_MAX_RANKS], mine = 1;
    watch_end(c);
    if (c->link) {
        if (lk_group_stopped(base->g)) c->link->stop(c->link);
        c->link->leave(c->link);
        /* own memory is freed only when nobody maps it any more, or is gone */
        if (c->host && !lk_group_stopped(base->g)) c->host->gather(c->host, &mine, 1, all, &e);
        c->link->close(c->link);
    }
    if (c->host) c->host->close(c->host);
    lk_free(c);
}

/* ---- meeting ---- */

/* A way is ok when every rank can use it; the first rank that cannot says why. */
static int agree_ways(struct comm_link *c, struct lk_err *e)
{
    struct said {
        int usable[LK_LINK_KINDS];
        char why[LK_LINK_KINDS][200];
    } mine, all[LK_MAX_RANKS];
    memcpy(mine.usable, c->link->usable, sizeof mine.usable);
    memcpy(mine.why, c->link->why, sizeof mine.why);
    int rc = c->host->gather(c->host, &mine, sizeof mine, all, e);
    for (int k = 0; k < LK_LINK_KINDS && !rc; k++) {
        struct lk_comm_way *w = &c->base.way[k];
        w->ok = 1;
        w->why[0] = 0;
        for (int r = 0; r < c->base.n && w->ok; r++)
            if (!all[r].usable[k]) {
                w->ok = 0;
                snprintf(w->why, sizeof w->why, "%s", all[r].why[k]);
            }
        c->link->usable[k] = w->ok;
    }
    return rc;
}

static int meet(struct comm_link *c, struct lk_err *e)
{
    char mine[LK_LINK_CARD], all[LK_MAX_RANKS * LK_LINK_CARD];
    c->link->card(c->link, mine);
    int rc = c->host->gather(c->host, mine, sizeof mine, all, e);
    if (!rc) rc = c->link->meet(c->link, all, e);
    if (!rc) rc = agree_ways(c, e);
    if (!rc && c->base.way[LK_LINK_NCCL].ok) {
        rc = c->link->nccl_open(c->link, e);
        if (!rc) rc = agree_ways(c, e);
    }
    return rc;
}

int lk_comm_link_open(struct lk_comm **out, struct lk_group *g, struct lk_link *l, struct lk_err *e)
{
    *out = NULL;
    struct comm_link *c = lk_calloc(1, sizeof *c);
    if (!c) {
        l->close(l);
        return lk_fail(e, LK_ENOMEM, "tensor parallel: no memory");
    }
    c->link = l;
    c->wake = -1;
    c->base = (struct lk_comm){.rank = l->rank, .n = l->n, .g = g, .ways = LK_LINK_KINDS, .reduce_add = link_reduce_add, .settle = link_settle,
                               .use = link_use, .reset = link_reset, .fault = link_fault, .gather = link_gather, .bcast = link_bcast,
                               .close = link_close};
    for (int k = 0; k < LK_LINK_KINDS; k++) c->base.way[k].name = lk_link_name((enum lk_link_kind)k);
    int rc = lk_comm_shm_open(&c->host, g, e);
    c->wake = eventfd(0, EFD_CLOEXEC);
    if (!rc && (c->wake < 0 || pthread_create(&c->watcher, NULL, watch, c))) rc = lk_fail(e, LK_ESYS, "tensor parallel: no watcher: %s", strerror(errno));
    c->watching = !rc;
    if (!rc) rc = meet(c, e);
    if (rc) {
        if (!lk_group_stopped(g)) lk_group_stop(g, "rank %d: %.400s", l->rank, e ? e->text : "no all-reduce");
        link_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return 0;
}
