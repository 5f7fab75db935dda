/* Costs: see forecast.h. */
#include "model/forecast.h"

#include <string.h>

static int name_is(const char *name, const char *what)
{
    return !strcmp(name, what);
}

void lk_forecast_make(struct lk_forecast *f, const struct lk_artifact *a, enum lk_kv_kind kv)
{
    const struct lk_config *c = lk_artifact_config(a);
    *f = (struct lk_forecast){.n_kv = (int)c->n_kv};
    double head = 0, draft_head = 0, embed = 0;
    for (size_t i = 0; i < lk_artifact_count(a); i++) {
        const struct lk_tensor *t = lk_artifact_at(a, i);
        double b = (double)t->bytes;
        f->weights += b;
        if (t->w.n == 1 || name_is(t->name, "embed_tokens")) f->replicated += b;
        if (name_is(t->name, "embed_tokens"))
            embed = b;
        else if (name_is(t->name, "lm_head"))
            head = b;
        else if (name_is(t->name, "draft_head"))
            draft_head = b;
        else if (!strncmp(t->name, "mtp.", 4))
            f->mtp += b;
        else
            f->step += b;
    }
    if (lk_artifact_ranks(a)) f->replicated = f->weights;
    if (c->tied) head = embed;
    f->step += head;
    if (f->mtp > 0) f->mtp += draft_head > 0 ? draft_head : head;
    int full = 0;
    for (int64_t i = 0; i < c->layers && i < LK_MAX_LAYERS; i++) full += c->full[i];
    f->n_full = full;
    f->n_gdn = (int)c->layers - full;
    double layer = (double)lk_kv_page_bytes(kv, (int)c->n_kv) / LK_PAGE;
    f->kv_token = layer * full;
    f->kv_token_mtp = f->mtp > 0 ? layer : 0;
    double ch = (double)(2 * c->hk * c->gdn_k_dim + c->hv * c->gdn_v_dim);
    f->gdn = 4.0 * (double)(c->layers - full) * ((double)(c->hv * c->gdn_k_dim * c->gdn_v_dim) + (double)(c->conv_k - 1) * ch);
}

/* KV share of one rank: heads are not split further than one a rank */
static double kv_share(const struct lk_forecast *f, int n)
{
    return n <= f->n_kv ? 1.0 / n : 1.0 / f->n_kv;
}

double lk_forecast_memory(const struct lk_forecast *f, double ctx, int n, int extra_slots)
{
    double kv = (f->kv_token + f->kv_token_mtp) * ctx * kv_share(f, n);
    return f->replicated + (f->weights - f->replicated) / n + kv + f->gdn * (1 + extra_slots) / n;
}

double lk_forecast_round(const struct lk_forecast *f, double ctx, int draft, int n)
{
    double kv = f->kv_token * ctx * kv_share(f, n);
    if (draft <= 0) return f->step / n + kv + 2 * f->gdn / n; /* the state is read and written */
    double mtp = draft * (f->mtp / n + f->kv_token_mtp * ctx * kv_share(f, n));
    return f->step / n + kv + 3 * f->gdn / n + mtp; /* verify reads the state, the fold reads and writes it */
}

/* A full layer: four linears, attention in three kernels; a delta net: four linears and one kernel, and all folds one; around them look-up, first norm, last norm, head and
 * argmax; a draft pass: a full layer and six around it. On several ranks the norms behind a sum, two a layer, are kernels too. As the profile
 * counts them: 357 a round of the 27B without drafts, 397 with three. */
double lk_forecast_kernels(const struct lk_forecast *f, int draft, int n)
{
    double norms = n > 1 ? 2 : 0, plain = (7 + norms) * f->n_full + (5 + norms) * f->n_gdn + 5;
    return draft > 0 ? plain + 1 + (13 + norms) * draft : plain;
}

double lk_forecast_reduces(const struct lk_forecast *f, int draft)
{
    return 2.0 * (f->n_full + f->n_gdn) + 1 + 3.0 * draft;
}
