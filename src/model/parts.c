/* Which rule of tp/shard.h cuts a tensor, by its logical name: the one list, asked by the binder and by `convert --tp`. */
#include "model/inside.h"

#include <string.h>

static const struct {
    const char *suffix;
    enum lk_part part;
} parts[] = {
    {"self_attn.q_proj", LK_PART_Q},          {"self_attn.k_proj", LK_PART_KV},         {"self_attn.v_proj", LK_PART_KV},
    {"self_attn.o_proj", LK_PART_O},          {"linear_attn.in_proj_qkv", LK_PART_QKV}, {"linear_attn.in_proj_z", LK_PART_V},
    {"linear_attn.in_proj_b", LK_PART_VHEAD}, {"linear_attn.in_proj_a", LK_PART_VHEAD}, {"linear_attn.out_proj", LK_PART_OUT},
    {"linear_attn.conv1d", LK_PART_QKV},      {"linear_attn.A_log", LK_PART_VHEAD},     {"linear_attn.dt_bias", LK_PART_VHEAD},
    {"mlp.gate_proj", LK_PART_INTER},         {"mlp.up_proj", LK_PART_INTER},           {"mlp.down_proj", LK_PART_DOWN},
    {"lm_head", LK_PART_VOCAB},               {"draft_head", LK_PART_VOCAB},
};

enum lk_part lk__part_of(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t m = strlen(parts[i].suffix);
        if (n >= m && !strcmp(name + n - m, parts[i].suffix) && (n == m || name[n - m - 1] == '.')) return parts[i].part;
    }
    return LK_PART_WHOLE; /* norms, embedding, mtp.fc */
}
