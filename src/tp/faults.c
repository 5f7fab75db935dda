/* Faults: see faults.h. */
#include "tp/faults.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *word;
    int comm, plan;
} kinds[] = {{"token", 0, LK_PLAN_FAULT_TOKEN}, {"position", 0, LK_PLAN_FAULT_POSITION}, {"skip", 0, LK_PLAN_FAULT_SKIP},
             {"kill", 0, LK_PLAN_FAULT_KILL}, {"stop", 0, LK_PLAN_FAULT_STOP}, {"zero", LK_FAULT_ZERO, 0},
             {"flip", LK_FAULT_FLIP, 0}, {"stale", LK_FAULT_SKIP, 0}, {"late", LK_FAULT_LATE, 0}};

static int kind_find(const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i].word) == n && !memcmp(kinds[i].word, word, n)) return (int)i;
    return -1;
}

static int bad(const char *text, struct lk_err *e)
{
    return lk_fail(e, LK_EUSAGE, "--fault %s: expected KIND:STEP[@RANK][,FILE] with token, position, skip, kill, stop, zero, flip, stale or late, or WAY:KIND[@RANK][,FILE]", text);
}

static void arm(struct lk_comm *c, int kind)
{
    c->fault(c, -1, (enum lk_comm_fault)kind, 1);
}

/* 1 when the fault's turn is over: FILE is there already. */
static int had_its_turn(const char *file)
{
    if (!file) return 0;
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0) close(fd);
    return fd < 0;
}

int lk_fault_plant(const char *text, enum lk_fault_when when, struct lk_comm *c, struct lk_plan *p, struct lk_err *e)
{
    if (!text) return 0;
    const char *comma = strchr(text, ','), *end = comma ? comma : text + strlen(text), *at = memchr(text, '@', (size_t)(end - text));
    const char *stop = at ? at : end, *colon = memchr(text, ':', (size_t)(stop - text));
    if (!colon) return bad(text, e);
    int rank = at ? atoi(at + 1) : c->n - 1, way = -1;
    for (int k = 0; k < c->ways; k++)
        if (strlen(c->way[k].name) == (size_t)(colon - text) && !memcmp(c->way[k].name, text, (size_t)(colon - text))) way = k;
    const char *word = way >= 0 ? colon + 1 : text;
    int kind = kind_find(word, (size_t)((way >= 0 ? stop : colon) - word));
    uint32_t step = way >= 0 ? 0 : (uint32_t)strtoul(colon + 1, NULL, 10);
    if (kind < 0 || (way >= 0 ? !kinds[kind].comm : !step)) return bad(text, e);
    if (rank != c->rank || (way >= 0) != (when == LK_FAULT_AT_START) || had_its_turn(comma ? comma + 1 : NULL)) return 0;
    if (way >= 0)
        c->fault(c, way, (enum lk_comm_fault)kinds[kind].comm, 0);
    else if (kinds[kind].comm)
        lk_plan_arm(p, step, arm, c, kinds[kind].comm);
    else
        lk_plan_fault(p, (enum lk_plan_fault)kinds[kind].plan, step);
    return 0;
}
