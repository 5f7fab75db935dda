/* The plain answer to a request over fake_model.h: one token after another from the logits' definition, knowing nothing of lanes,
 * drafts, pages or stored prefixes. */
#ifndef LK_TESTS_FAKE_ORACLE_H
#define LK_TESTS_FAKE_ORACLE_H

#include "runtime/engine.h"
#include "runtime/fake_model.h"
#include "runtime/sampler.h"

/* Returns tokens made. */
static inline int plain(const struct lk_request *r, int ctx, int32_t *out)
{
    struct lk_cand cands[FV];
    int32_t ids[2048];
    int n = (int)r->n_ids, made = 0, count[FV] = {0}, in_prompt[FV] = {0};
    memcpy(ids, r->ids, r->n_ids * 4);
    uint64_t h = 0;
    for (int i = 0; i < n; i++) {
        h = fake_next(h, ids[i]);
        in_prompt[ids[i]] = 1;
    }
    while (n < ctx && (r->max_tokens <= 0 || made < r->max_tokens)) {
        float row[FV];
        fake_logits(h, n > 1 ? ids[n - 2] : -1, ids[n - 1], row);
        for (int v = 0; v < FV_USED; v++) {
            float rep = count[v] || in_prompt[v] ? r->sampling.repetition : 1;
            float add = count[v] ? -r->sampling.presence - r->sampling.frequency * (float)count[v] : 0;
            row[v] = lk_sample_edit(row[v], rep, add);
        }
        for (int i = 0; i < r->sampling.n_bias; i++) row[r->sampling.bias[i].id] += r->sampling.bias[i].add;
        int32_t id = lk_sample_row(&r->sampling, row, FV_USED, (uint64_t)n, cands);
        out[made++] = ids[n++] = id;
        count[id]++;
        h = fake_next(h, id);
        for (int i = 0; i < r->n_stop_ids; i++)
            if (r->stop_ids[i] == id) return made;
    }
    return made;
}

#define N_KINDS 6
static const struct lk_sampling kinds[N_KINDS] = {
    {.temp = 0, .top_p = 1, .repetition = 1},
    {.temp = 0.8f, .top_p = 0.9f, .top_k = 20, .repetition = 1},
    {.temp = 1, .top_p = 1, .repetition = 1},
    {.temp = 0, .top_p = 1, .repetition = 1.2f, .presence = 0.5f, .frequency = 0.3f},
    {.temp = 1.2f, .top_p = 0.95f, .top_k = 10, .repetition = 1.1f, .presence = 1.5f},
    {.temp = 0.7f, .top_p = 0.8f, .min_p = 0.05f, .repetition = 1, .frequency = 0.2f},
};

static inline void prompt_make(int32_t *ids, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(fake_mix(seed * 1000 + (uint64_t)i / 3) % FV_USED);
}


#endif
