/* Forecast of memory: see need.h. */
#include "runtime/need.h"

#include "base/file.h"
#include "runtime/ranks.h"
#include "runtime/sizes.h"

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* Rows of the embedding table that ctx tokens read; a row brings its surroundings. */
static double embed_bytes(const struct lk_model_need *m, int ctx)
{
    return least((double)m->embed, ctx * ((double)m->embed_row + LK_FILE_AROUND));
}

/* States in the device's slots, the sequence's own and a spare among them; those that find no slot are the leader's, in host memory, and
 * so are the token ids of every stored prefix, half a context long on average. */
static double snapshot_bytes(const struct lk_sizes *z, const struct lk_need_of *of)
{
    int snaps = lk_core_snapshots(z->ctx), all = 2 + snaps, slots = all < z->state.n_slots ? all : z->state.n_slots;
    double held = slots * (double)z->slot_bytes;
    if (of->rank) return held;
    return held + least((double)z->ram, (double)(all - slots) * (double)z->slot_bytes * of->n) + snaps * 0.5 * z->ctx * 4;
}

static void sum(struct lk_need *x, const struct lk_sizes *z, const struct lk_model_need *m, const struct lk_shape *s,
                const struct lk_need_of *of)
{
    double tokens = of->rank ? 0 : 6.0 * 4 * z->ctx; /* token ids of request, sequence, mailbox and reader, grown by halves */
    x->copied = (double)m->copied;
    x->mapped = (double)m->mapped + embed_bytes(m, z->ctx);
    x->buffers += (double)m->step + (double)lk_state_record_bytes(s, &z->state) + tokens;
    x->kv = (double)((z->ctx + LK_PAGE - 1) / LK_PAGE) * (double)z->page_bytes;
    x->snapshots = snapshot_bytes(z, of);
    x->loaded = x->process + x->copied;
    x->peak = x->loaded + x->mapped + x->buffers + x->kv + x->snapshots;
    x->session = x->kv + tokens + x->snapshots - (double)z->slot_bytes;
}

int lk_need_make(struct lk_need *x, const struct lk_artifact *a, const struct lk_opts_engine *o, const struct lk_need_of *of, struct lk_err *e)
{
    struct lk_opts_engine one = *o;
    struct lk_shape shape;
    struct lk_model_need m;
    struct lk_dev_info info;
    struct lk_sizes z;
    struct lk_dev *d;
    *x = (struct lk_need){.process = of->process};
    one.ctx = of->ctx, one.dev.n = of->n, one.parallel = 1;
    for (int i = 0; i < of->n; i++) one.dev.at[i].is_cuda = 0;
    int rc = lk_shape_read(&shape, lk_artifact_config(a), e);
    if (!rc) rc = lk_rank_device(&d, &one.dev, of->rank, e);
    if (rc) return rc;
    lk_sizes_free(&z, a, d, &shape, &one, of->vocab);
    z.state.rank = of->rank;
    struct lk_model_opts mo = lk_sizes_model(&z, &one);
    struct lk_core_opts co = lk_sizes_core(&z, &one);
    if (!(rc = lk_model_need(&m, a, d, &mo, of->rank, of->n, e))) {
        d->info(d, &info);
        x->buffers = (double)info.work + (double)lk_ranks_bytes(of->n, &mo, shape.hidden);
        if (!of->rank) x->buffers += (double)lk_core_bytes(&co, shape.vocab, d);
        sum(x, &z, &m, &shape, of);
    }
    d->close(d);
    return rc;
}
