/* What a rank owns: see shard.h. Everything here is a pure function of its arguments. */
#include "tp/shard.h"

#include <stddef.h>

static void range_add(struct lk_ranges *out, int64_t at, int64_t count)
{
    if (!count) return;
    if (out->n && out->r[out->n - 1].at + out->r[out->n - 1].count == at) {
        out->r[out->n - 1].count += count;
    } else {
        out->r[out->n].at = at;
        out->r[out->n++].count = count;
    }
    out->total += count;
}

/* One rank's share of `heads`: heads/n of them, or one that n/heads ranks hold together. */
static void share(int heads, int i, int n, int *at, int *count)
{
    if (heads % n == 0) {
        *count = heads / n;
        *at = i * *count;
    } else {
        *count = 1;
        *at = i / (n / heads);
    }
}

/* Value heads that use the rank's key heads: head r of key head k lies at k*ratio + r, or r*hk + k when tiled.
 * Ranks that share a key head split its ratio. */
static void add_value_heads(struct lk_ranges *out, const struct lk_shard_dims *d, int64_t base,
                            int64_t size, int i, int n)
{
    int k0, nk, ratio = d->hv / d->hk, r0 = 0, nr = ratio;
    share(d->hk, i, n, &k0, &nk);
    if (d->hk % n) {
        int sharers = n / d->hk;
        nr = ratio / sharers;
        r0 = (i % sharers) * nr;
    }
    if (!d->tiled) { /* nk > 1 means all ratios of each: one run either way */
        range_add(out, base + ((int64_t)k0 * ratio + r0) * size, (int64_t)nk * nr * size);
        return;
    }
    for (int r = r0; r < r0 + nr; r++)
        range_add(out, base + ((int64_t)r * d->hk + k0) * size, (int64_t)nk * size);
}

static void vocab_share(int64_t vocab, int i, int n, int64_t *at, int64_t *count)
{
    int64_t step = n == 1 ? vocab : ((vocab + n - 1) / n + 31) / 32 * 32;
    *at = i * step < vocab ? i * step : vocab;
    *count = vocab - *at < step ? vocab - *at : step;
}

static int refuse(struct lk_err *e, const char *what, int64_t found, int n)
{
    return lk_fail(e, LK_EINPUT,
                   "%d devices: expected %s that %d divides, found %lld; use a number of devices "
                   "that fits",
                   n, what, n, (long long)found);
}

int lk_shard_check(const struct lk_shard_dims *d, int n, struct lk_err *e)
{
    if (n < 1 || n > LK_MAX_RANKS)
        return lk_fail(e, LK_EINPUT, "devices: expected 1 to %d, found %d", LK_MAX_RANKS, n);
    if (d->n_q % n) return refuse(e, "a number of query heads", d->n_q, n);
    if (d->n_kv % n && n % d->n_kv) return refuse(e, "a number of KV heads", d->n_kv, n);
    if (d->hk % n && n % d->hk) return refuse(e, "a number of GDN key heads", d->hk, n);
    if (d->hv % n) return refuse(e, "a number of GDN value heads", d->hv, n);
    if (d->hk % n && (d->hv / d->hk) % (n / d->hk))
        return refuse(e, "a number of GDN value heads", d->hv, n);
    if (d->inter % n) return refuse(e, "an intermediate size", d->inter, n);
    int64_t at, count;
    vocab_share(d->vocab, n - 1, n, &at, &count);
    if (count < 1) return refuse(e, "a vocabulary of at least 32 rows a device", d->vocab, n);
    if (n > 1 && d->tiled && d->hv / d->hk > LK_SHARD_RANGES - 2)
        return refuse(e, "fewer GDN value heads", d->hv, n);
    return 0;
}

void lk_shard_local(const struct lk_shard_dims *d, int i, int n, struct lk_shard_dims *out)
{
    int at;
    int64_t at64;
    *out = *d;
    out->n_q = d->n_q / n;
    share(d->n_kv, i, n, &at, &out->n_kv);
    share(d->hk, i, n, &at, &out->hk);
    out->hv = d->hv / n;
    out->inter = d->inter / n;
    vocab_share(d->vocab, i, n, &at64, &out->vocab);
}

void lk_shard(const struct lk_shard_dims *d, enum lk_part part, int64_t whole, int i, int n,
              struct lk_ranges *out)
{
    int at, count;
    int64_t head = d->head_dim, g = d->gdn_dim, v0, vn;
    out->axis = part == LK_PART_O || part == LK_PART_OUT || part == LK_PART_DOWN;
    out->n = 0, out->total = 0;
    switch (part) {
    case LK_PART_WHOLE: range_add(out, 0, whole); return;
    case LK_PART_Q: head *= 2; /* fall through */
    case LK_PART_O:
        range_add(out, (int64_t)i * (d->n_q / n) * head, (int64_t)(d->n_q / n) * head);
        return;
    case LK_PART_KV:
        share(d->n_kv, i, n, &at, &count);
        range_add(out, at * head, count * head);
        return;
    case LK_PART_QKV:
        share(d->hk, i, n, &at, &count);
        range_add(out, at * g, count * g);
        range_add(out, ((int64_t)d->hk + at) * g, count * g);
        add_value_heads(out, d, 2 * d->hk * g, g, i, n);
        return;
    case LK_PART_V:
    case LK_PART_OUT: add_value_heads(out, d, 0, g, i, n); return;
    case LK_PART_VHEAD: add_value_heads(out, d, 0, 1, i, n); return;
    case LK_PART_INTER:
    case LK_PART_DOWN: range_add(out, i * (d->inter / n), d->inter / n); return;
    case LK_PART_VOCAB:
        vocab_share(whole, i, n, &v0, &vn);
        range_add(out, v0, vn);
        return;
    }
}
