/* The shape of the family, judged once: every number is checked for itself and against its neighbours before anything
 * is sized by it. Refuses, naming the number, what was expected and what was found. Afterwards nobody asks again. */
#include "model/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Limits far above the family's largest member, low enough that no product below overflows. */
enum { HEAD = 256, GDN = 128, CONV_K = 4 };
#define MAX_HIDDEN 65536
#define MAX_INTER (1 << 20)
#define MAX_VOCAB (1 << 24)
#define MAX_HEADS 1024
#define MAX_CTX (1 << 28)

struct number {
    const char *name;
    int64_t found, lo, hi;
};

static int bad(struct lk_err *e, const char *name, const char *expected, int64_t found)
{
    return lk_fail(e, LK_EINPUT,
                   "config: %s: expected %s, found %" PRId64
                   "; this is not a model of the qwen3_5 dense family that laoka can run",
                   name, expected, found);
}

static int check_ranges(const struct lk_config *c, struct lk_err *e)
{
    const struct number n[] = {
        {"hidden_size", c->hidden, 1, MAX_HIDDEN},
        {"intermediate_size", c->inter, 1, MAX_INTER},
        {"num_hidden_layers", c->layers, 1, LK_MAX_LAYERS},
        {"vocab_size", c->vocab, 1, MAX_VOCAB},
        {"num_attention_heads", c->n_q, 1, MAX_HEADS},
        {"num_key_value_heads", c->n_kv, 1, MAX_HEADS},
        {"head_dim", c->head_dim, HEAD, HEAD},
        {"rotary dimensions (head_dim x partial_rotary_factor)", c->rope_dim, 2, HEAD},
        {"linear_num_key_heads", c->hk, 1, MAX_HEADS},
        {"linear_num_value_heads", c->hv, 1, MAX_HEADS},
        {"linear_key_head_dim", c->gdn_k_dim, GDN, GDN},
        {"linear_value_head_dim", c->gdn_v_dim, GDN, GDN},
        {"linear_conv_kernel_dim", c->conv_k, CONV_K, CONV_K},
        {"max_position_embeddings", c->max_ctx, 1, MAX_CTX},
        {"mtp_num_hidden_layers", c->mtp_layers, 0, 1},
    };
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) {
        if (n[i].found >= n[i].lo && n[i].found <= n[i].hi) continue;
        char want[64];
        if (n[i].lo == n[i].hi)
            snprintf(want, sizeof want, "%" PRId64, n[i].lo);
        else
            snprintf(want, sizeof want, "%" PRId64 " to %" PRId64, n[i].lo, n[i].hi);
        return bad(e, n[i].name, want, n[i].found);
    }
    return 0;
}

static int check_relations(const struct lk_config *c, struct lk_err *e)
{
    char want[96];
    if (c->n_q % c->n_kv) {
        snprintf(want, sizeof want, "a multiple of num_key_value_heads %" PRId64, c->n_kv);
        return bad(e, "num_attention_heads", want, c->n_q);
    }
    if (c->hv % c->hk) {
        snprintf(want, sizeof want, "a multiple of linear_num_key_heads %" PRId64, c->hk);
        return bad(e, "linear_num_value_heads", want, c->hv);
    }
    if (c->rope_dim % 2) return bad(e, "rotary dimensions", "an even number", c->rope_dim);
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        if (c->section[i] < 0 || c->section[i] > HEAD)
            return bad(e, "mrope_section", "three numbers of 0 to 256", c->section[i]);
        sum += c->section[i];
    }
    if (sum != 0 && sum != c->rope_dim / 2) {
        snprintf(want, sizeof want, "a sum of %" PRId64 " (half the rotary dimensions)",
                 c->rope_dim / 2);
        return bad(e, "mrope_section", want, sum);
    }
    if (!(c->eps > 0 && c->eps < 1))
        return lk_fail(e, LK_EINPUT, "config: rms_norm_eps: expected above 0 and below 1, found %g",
                       c->eps);
    if (!(c->rope_theta >= 1 && c->rope_theta < 1e15))
        return lk_fail(e, LK_EINPUT, "config: rope_theta: expected 1 to 1e15, found %g",
                       c->rope_theta);
    return 0;
}

int lk_shape_read(struct lk_shape *s, const struct lk_config *c, struct lk_err *e)
{
    /* nested and flat Hugging Face configs, and GGUF */
    if (strcmp(c->arch, "qwen3_5") && strcmp(c->arch, "qwen3_5_text") && strcmp(c->arch, "qwen35"))
        return lk_fail(e, LK_EINPUT,
                       "config: architecture: expected qwen3_5 (Qwen3.5, 3.6, 3.8 dense), found "
                       "'%.60s'; laoka runs this family only",
                       c->arch);
    int rc = check_ranges(c, e);
    if (!rc) rc = check_relations(c, e);
    if (rc) return rc;
    memset(s, 0, sizeof *s);
    s->hidden = (int)c->hidden, s->inter = (int)c->inter;
    s->layers = (int)c->layers, s->vocab = (int)c->vocab;
    s->n_q = (int)c->n_q, s->n_kv = (int)c->n_kv;
    s->head_dim = (int)c->head_dim, s->rope_dim = (int)c->rope_dim;
    s->hk = (int)c->hk, s->hv = (int)c->hv, s->gdn_dim = GDN, s->conv_k = CONV_K;
    s->conv_ch = 2 * s->hk * GDN + s->hv * GDN;
    s->tied = c->tied != 0, s->mtp = (int)c->mtp_layers, s->gdn_tiled = c->gdn_tiled != 0;
    s->max_ctx = (int)c->max_ctx;
    s->eps = (float)c->eps, s->rope_theta = c->rope_theta;
    for (int i = 0; i < 3; i++) s->section[i] = c->section[i];
    for (int i = 0; i < s->layers; i++) {
        s->full[i] = c->full[i] != 0;
        s->full[i] ? s->n_full++ : s->n_gdn++;
    }
    return 0;
}
