/* Which model this is, as one number: two files that differ in any tensor's name, format, sizes, or sampled bytes, or in what the
 * configuration says, differ in it. Not a digest of the whole file (20 GB of a 27B would be read at every start): each part of a tensor gives
 * 256 bytes of its beginning, middle and end, which training, merging and re-quantising all change. Independent of path and time. */
#include "artifact/artifact.h"

#include <string.h>
#include <xxhash.h>

#define SAMPLE 256

static uint64_t add(uint64_t h, const void *p, size_t bytes)
{
    return XXH3_64bits_withSeed(p, bytes, h);
}

static uint64_t add_part(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    if (!p || !bytes) return h;
    h = add(h, &bytes, sizeof bytes);
    if (bytes <= 3 * SAMPLE) return add(h, p, bytes);
    h = add(h, p, SAMPLE);
    h = add(h, p + (bytes - SAMPLE) / 2, SAMPLE);
    return add(h, p + bytes - SAMPLE, SAMPLE);
}

uint64_t lk_artifact_identity(const struct lk_artifact *a)
{
    uint64_t h = 0;
    for (size_t i = 0; i < lk_artifact_count(a); i++) {
        const struct lk_tensor *t = lk_artifact_at(a, i);
        const struct lk_weight *w = &t->w;
        int64_t v[] = {w->fmt, w->n, w->k, w->scale_dtype, w->block_n, w->block_k, w->group, w->global_div, w->zero_plus1};
        h = add(h, t->name, strlen(t->name));
        h = add(h, v, sizeof v);
        h = add(h, &w->global, sizeof w->global);
        h = add_part(h, w->data, lk_weight_data_bytes(w));
        h = add_part(h, w->scale, lk_weight_scale_bytes(w));
    }
    size_t n = 0;
    const char *config = lk_artifact_text(a, "config.json", &n);
    if (config) h = add(h, config, n);
    const int32_t *map = lk_artifact_draft_map(a, &n);
    return map ? add(h, map, n * sizeof *map) : h;
}
