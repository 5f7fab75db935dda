/* laoka follower: one rank of several, started by rank 0. Not for people: it needs the group that its leader made. */
#include "main/commands.h"

#include "runtime/ranks.h"

#include <stdlib.h>

int cmd_follower(struct lk_opts *o, struct lk_err *e)
{
    if (!o->engine.model || o->follower.fd < 3 || !o->follower.nonce || o->follower.rank < 1 || o->follower.rank >= o->engine.dev.n)
        return lk_fail(e, LK_EUSAGE, "follower is started by laoka itself: use run, score or serve with --devices cpu,cpu");
    struct lk_follower_opts f = {o->follower.rank, o->follower.fd, strtoull(o->follower.nonce, NULL, 16)};
    return lk_follower_run(&o->engine, &f, e);
}
