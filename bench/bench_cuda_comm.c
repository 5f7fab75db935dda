/* The all-reduce transports without a second process: two (or more) ranks are threads of this one, on one card or several, each with a stream of
 * its own. Every transport is proven and timed inside a graph, as at a start; then the sweep of `laoka bench tp`.
 *   bench_cuda_comm [DEVICE,DEVICE,...] [--hidden N] */
#include "base/log.h"
#include "base/mem.h"
#include "dev/bridge.h"
#include "tp/sweep.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST ((size_t)20480 * 256)

struct rank {
    pthread_t thread;
    struct lk_group *g;
    int rank, n, device, rc;
    size_t hidden;
    struct lk_sweep s;
    struct lk_err e;
};

static void *run(void *arg)
{
    struct rank *k = arg;
    struct lk_dev *d = NULL;
    struct lk_bridge *b;
    struct lk_comm *c = NULL;
    struct lk_elect el;
    size_t bytes;
    struct lk_elect_opts o = {.hidden = k->hidden, .most = MOST};
    k->rc = lk_group_ready(k->g, 30, &k->e);
    if (!k->rc) k->rc = lk_cuda_open(&d, k->device, NULL, &k->e);
    if (!k->rc) k->rc = lk_cuda_bridge_open(&b, d, k->rank, k->n, lk_group_bridge_area(k->g, &bytes), MOST, &k->e);
    if (!k->rc) k->rc = lk_comm_bridge_open(&c, k->g, b, &k->e);
    if (!k->rc) k->rc = lk_elect(&el, c, d, &o, &k->e);
    if (!k->rc) k->rc = lk_sweep_run(&k->s, c, d, &el, 0.1, &k->e);
    if (k->rc) lk_group_stop(k->g, "rank %d: %.400s", k->rank, k->e.text);
    if (c) c->close(c);
    if (d) d->close(d);
    return NULL;
}

static void print(const struct rank *k)
{
    char line[1024];
    const struct lk_sweep *s = &k->s;
    lk_elect_line(&s->el, line, sizeof line);
    printf("%s\n", line);
    for (int w = 0; w < s->n_ways; w++)
        for (int i = 0; i < LK_SWEEP_SIZES && s->el.way[w].ok; i++)
            printf("%-8s %6zu KB %9.2f us %7.1f GB/s%s\n", s->el.way[w].name, lk_sweep_kb[i], s->us[w][i], (double)lk_sweep_kb[i] * 1.024 / s->us[w][i],
                   lk_sweep_kb[i] <= LK_SWEEP_GRAPH_KB ? " (graph)" : "");
    printf("skew: begin %.1f us, end %.1f us (worst %.1f, %.1f)\n", s->start_skew, s->end_skew, s->start_worst, s->end_worst);
}

int main(int argc, char **argv)
{
    struct rank k[LK_MAX_RANKS] = {0};
    const char *list = argc > 1 && argv[1][0] != '-' ? argv[1] : "0,0";
    size_t hidden = 5120;
    int n = 0;
    struct lk_err e = {0};
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--hidden")) hidden = (size_t)atoi(argv[i + 1]);
    for (const char *p = list; *p && n < LK_MAX_RANKS; p += strcspn(p, ","), p += *p == ',') k[n++].device = atoi(p);
    struct lk_group_opts o = {.n = n, .plan_bytes = 4096, .reduce_bytes = lk_comm_shm_bytes(n, 1 << 16), .bridge_bytes = lk_bridge_shared_bytes(n), .patience_s = 30};
    int rc = lk_group_create(&k[0].g, &o, &e);
    for (int r = 1; r < n && !rc; r++) rc = lk_group_join(&k[r].g, dup(lk_group_fd(k[0].g)), lk_group_nonce(k[0].g), r, &e);
    for (int r = 0; r < n && !rc; r++) {
        k[r].rank = r, k[r].n = n, k[r].hidden = hidden;
        if (pthread_create(&k[r].thread, NULL, run, &k[r])) return 1;
    }
    for (int r = 0; r < n && !rc; r++) {
        pthread_join(k[r].thread, NULL);
        if (k[r].rc) fprintf(stderr, "rank %d: %s\n", r, k[r].e.text);
        rc |= k[r].rc;
    }
    if (!rc) print(&k[0]);
    else if (e.text[0]) fprintf(stderr, "%s\n", e.text);
    return rc ? 1 : 0;
}
