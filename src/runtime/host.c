/* Opening in order, sizing once: see host.h. */
#include "runtime/host.h"

#include "base/log.h"
#include "base/mem.h"
#include "runtime/sizes.h"

#include <stdio.h>

static int text_open(struct lk_host *h, struct lk_err *e)
{
    size_t len;
    const char *json = lk_artifact_text(h->artifact, "tokenizer.json", &len);
    if (!json) {
        lk_log_warn("%s: no tokenizer.json: token ids only", lk_artifact_path(h->artifact));
        return 0;
    }
    int rc = lk_tokenizer_open(&h->tok, json, len, e);
    return rc ? lk_err_prefix(e, "%s: tokenizer.json", lk_artifact_path(h->artifact)) : 0;
}

/* Followers load while this rank does. */
static int model_open(struct lk_host *h, const struct lk_opts_engine *o, struct lk_sizes *z, const struct lk_shape *shape,
                      struct lk_err *e)
{
    struct lk_model_opts mo = lk_sizes_model(z, o);
    int rc = lk_ranks_start(&h->ranks, o, h->dev, &mo, &z->state, shape->hidden, e);
    if (!rc) rc = lk_model_open(&h->model, h->artifact, h->dev, &mo, e);
    if (!rc) rc = lk_state_open(&h->state, h->dev, lk_model_shape(h->model), &z->state, e);
    return rc ? rc : lk_ranks_ready(h->ranks, h->model, h->state, e);
}

static void about_make(struct lk_host *h, const struct lk_sizes *z)
{
    static const char *const kinds[] = {"int8", "bf16", "f32"};
    struct lk_dev_info info;
    h->dev->info(h->dev, &info);
    const struct lk_shape *s = lk_model_shape(h->model);
    snprintf(h->about, sizeof h->about,
             "%s on %d x %s: %d layers, context %d, %d at once, KV %s %.1f KB a token, %d pages (%zu MB), %d state slots of "
             "%.1f MB, drafts %s",
             lk_artifact_path(h->artifact), z->state.n_ranks, info.name, s->layers, z->ctx, z->parallel, kinds[z->state.kv],
             (double)z->page_bytes / LK_PAGE / 1024, z->state.n_pages, (size_t)z->state.n_pages * z->page_bytes >> 20, z->state.n_slots,
             (double)z->slot_bytes / (1 << 20), h->core.mtp ? "by the MTP layer" : "by look-up only");
}

static int newline_id(const struct lk_tokenizer *t)
{
    struct lk_ids ids = {0};
    int id = t && !lk_tokenizer_encode(t, "\n", 1, LK_SPECIALS_NONE, &ids, NULL) && ids.n == 1 ? ids.v[0] : -1;
    lk_ids_free(&ids);
    return id;
}

static int core_open(struct lk_host *h, const struct lk_opts_engine *o, const struct lk_sizes *z, struct lk_err *e)
{
    struct lk_core_opts co = lk_sizes_core(z, o);
    if (h->tok) co.turn_id = lk_tokenizer_find(h->tok, "<|im_start|>");
    co.newline_id = newline_id(h->tok);
    return lk_core_init(&h->core, h->model, h->state, h->tok, &co, e);
}

int lk_host_open(struct lk_host *h, const struct lk_opts_engine *o, struct lk_err *e)
{
    struct lk_sizes z = {0};
    struct lk_shape shape;
    int rc = lk_artifact_open_rank(&h->artifact, o->model, 0, o->dev.n > 1 ? o->dev.n : 1, e);
    if (!rc) rc = text_open(h, e);
    if (!rc) rc = lk_shape_read(&shape, lk_artifact_config(h->artifact), e);
    if (!rc) rc = lk_rank_device(&h->dev, &o->dev, 0, e);
    if (rc) goto out;
    if ((rc = lk_sizes_make(&z, h->artifact, h->dev, &shape, o, h->tok ? lk_tokenizer_vocab(h->tok) : 0, e))) goto out;
    if ((rc = model_open(h, o, &z, &shape, e))) goto out;
    if ((rc = core_open(h, o, &z, e))) goto out;
    if (o->draft > 0 && !h->core.mtp)
        lk_log_warn("%s: no MTP layer in the file: --draft %d drafts nothing", lk_artifact_path(h->artifact), o->draft);
    about_make(h, &z);
out:
    if (rc) lk_host_close(h);
    return rc;
}

void lk_host_close(struct lk_host *h)
{
    lk_core_fini(&h->core);
    lk_ranks_stop(h->ranks);
    lk_state_close(h->state);
    lk_model_close(h->model);
    lk_tokenizer_close(h->tok);
    lk_artifact_close(h->artifact);
    if (h->dev) h->dev->close(h->dev);
    *h = (struct lk_host){.core.spare_slot = -1};
}

int lk_host_alive(const struct lk_host *h, double idle_s, struct lk_err *e)
{
    return lk_ranks_alive(h->ranks, idle_s, e);
}
