/* Source values as a Hugging Face file would hold them (see convert_plan.h): undoes what GGUF does to norms, decay and value heads. */
#include "artifact/convert_plan.h"

#include <math.h>
#include <string.h>

static int ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

/* Element i of a run of value heads of `width` elements each, in the file's tiled order: head kh * r + j of Hugging Face stands at
 * j * hk + kh (r = hv / hk). */
static int64_t tiled(const struct lk_config *c, int64_t i, int64_t width)
{
    int64_t r = c->hv / c->hk, h = i / width;
    return (h % r * c->hk + h / r) * width + i % width;
}

static int64_t source_row_of(const struct lk_config *c, const char *name, int64_t row)
{
    int64_t base = 2 * c->hk * c->gdn_k_dim;
    if (ends(name, ".in_proj_qkv") || ends(name, ".conv1d")) return row < base ? row : base + tiled(c, row - base, c->gdn_v_dim);
    if (ends(name, ".in_proj_z")) return tiled(c, row, c->gdn_v_dim);
    if (ends(name, ".in_proj_a") || ends(name, ".in_proj_b")) return tiled(c, row, 1);
    return row;
}

/* Puts columns [k] into Hugging Face order; width 0: they are. */
static void columns_order(const struct lk_config *c, const struct lk_weight *w, int64_t row, int64_t width, float *out)
{
    for (int64_t k = 0; k < w->k; k += width) lk_weight_row(w, row, tiled(c, k, width), width, out + k);
}

void lk__source_row(const struct lk_artifact *a, const struct lk_tensor *t, int64_t row, float *out)
{
    const struct lk_config *c = lk_artifact_config(a);
    const struct lk_weight *w = &t->w;
    int linear = strstr(t->name, ".linear_attn.") != NULL, one = ends(t->name, ".A_log") || ends(t->name, ".dt_bias");
    if (c->gdn_tiled && linear && (one || ends(t->name, ".out_proj")))
        columns_order(c, w, row, one ? 1 : c->gdn_v_dim, out);
    else
        lk_weight_row(w, c->gdn_tiled && linear ? source_row_of(c, t->name, row) : row, 0, w->k, out);
    if (c->a_is_coef && ends(t->name, ".A_log"))
        for (int64_t k = 0; k < w->k; k++) out[k] = logf(-out[k]);
    if (!c->norm_plus_one && ends(t->name, "norm") && !ends(t->name, ".linear_attn.norm"))
        for (int64_t k = 0; k < w->k; k++) out[k] -= 1.0f;
}
