/* Faults: see faults.h. */
#include "tp/faults.h"

#include <stdlib.h>
#include <string.h>

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
    return lk_fail(e, LK_EUSAGE, "--fault %s: expected KIND:STEP[@RANK] with token, position, skip, kill, stop, zero, flip, stale or late, or WAY:KIND[@RANK]", text);
}

int lk_fault_plant(const char *text, enum lk_fault_when when, struct lk_comm *c, struct lk_plan *p, struct lk_err *e)
{
    if (!text) return 0;
    const char *at = strchr(text, '@'), *colon = strchr(text, ':'), *end = at ? at : text + strlen(text);
    if (!colon || colon >= end) return bad(text, e);
    int rank = at ? atoi(at + 1) : c->n - 1, way = -1;
    for (int k = 0; k < c->ways; k++)
        if (strlen(c->way[k].name) == (size_t)(colon - text) && !memcmp(c->way[k].name, text, (size_t)(colon - text))) way = k;
    const char *word = way >= 0 ? colon + 1 : text;
    int kind = kind_find(word, (size_t)((way >= 0 ? end : colon) - word));
    if (kind < 0 || (way >= 0 && !kinds[kind].comm)) return bad(text, e);
    if (rank != c->rank || (way >= 0) != (when == LK_FAULT_AT_START)) return 0;
    uint32_t step = way >= 0 ? 0 : (uint32_t)strtoul(colon + 1, NULL, 10);
    if (way < 0 && !step) return bad(text, e);
    if (kinds[kind].comm)
        c->fault(c, way, (enum lk_comm_fault)kinds[kind].comm, step);
    else
        lk_plan_fault(p, (enum lk_plan_fault)kinds[kind].plan, step);
    return 0;
}
