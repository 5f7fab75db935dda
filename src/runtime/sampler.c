/* Sampling: see sampler.h. Sums and the noise are f64 in a fixed order, so a draw has the same bits whoever computed
 * the candidates, the device's top-k or the host's walk over a whole row. */
#include "runtime/sampler.h"

#include <math.h>
#include <stdlib.h>

void lk_sampling_init(struct lk_sampling *s)
{
    *s = (struct lk_sampling){.top_p = 1, .repetition = 1};
}

static int sampling_range(const char *name, double v, double lo, double hi, struct lk_err *e)
{
    if (v >= lo && v <= hi) return 0;
    return lk_fail(e, LK_EREQUEST, "%s: expected %g to %g, found %g", name, lo, hi, v);
}

int lk_sampling_check(const struct lk_sampling *s, int vocab, struct lk_err *e)
{
    int rc;
    if ((rc = sampling_range("temperature", s->temp, 0, 100, e))) return rc;
    if ((rc = sampling_range("top_p", s->top_p, 0, 1, e))) return rc;
    if ((rc = sampling_range("min_p", s->min_p, 0, 1, e))) return rc;
    if ((rc = sampling_range("top_k", s->top_k, 0, 1 << 30, e))) return rc;
    if ((rc = sampling_range("presence_penalty", s->presence, -100, 100, e))) return rc;
    if ((rc = sampling_range("frequency_penalty", s->frequency, -100, 100, e))) return rc;
    if ((rc = sampling_range("repetition_penalty", s->repetition, 0.01, 100, e))) return rc;
    if (s->n_bias < 0 || s->n_bias > vocab)
        return lk_fail(e, LK_EREQUEST, "logit_bias: %d entries, the vocabulary has %d", s->n_bias, vocab);
    for (int i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab)
            return lk_fail(e, LK_EREQUEST, "logit_bias: token %d is outside the vocabulary of %d",
                           (int)s->bias[i].id, vocab);
        if (isnan(s->bias[i].add)) return lk_fail(e, LK_EREQUEST, "logit_bias: token %d: not a number",
                                                  (int)s->bias[i].id);
    }
    return 0;
}

int lk_sampling_wants_row(const struct lk_sampling *s)
{
    return s->temp > 0 && (s->top_k <= 0 || s->top_k > LK_TOPK_MAX);
}

/* the finaliser of SplitMix64 */
static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t noise_key(uint64_t seed, uint64_t pos)
{
    return mix64(mix64(seed + 0x9e3779b97f4a7c15u) + (pos + 1) * 0x9e3779b97f4a7c15u);
}

static uint64_t noise_bits(uint64_t key, int32_t id)
{
    return mix64(key + ((uint64_t)(uint32_t)id + 1) * 0xd1342543de82ef95u) >> 11;
}

static double noise_uniform(uint64_t key, int32_t id)
{
    return ((double)noise_bits(key, id) + 0.5) * 0x1p-53;
}

/* 1: noise of these bits cannot lift a candidate over one that is `gap` ahead. It would need -log u <= e^-gap, and so
 * 1 - u <= 2^-k for every whole k <= gap / log 2. Spares two logarithms for nearly all of a 248,320-token row. */
static int noise_falls_short(uint64_t bits, double gap)
{
    double halvings = gap * 1.4426950 - 1e-3;
    int k = !(halvings >= 1) ? 0 : halvings < 52 ? (int)halvings : 52; /* no number: infinite logits */
    return ((uint64_t)1 << 53) - bits > ((uint64_t)1 << (53 - k)) + 1;
}

double lk_sample_uniform(uint64_t seed, uint64_t pos, int32_t id)
{
    return noise_uniform(noise_key(seed, pos), id);
}

/* How many of the sorted candidates pass top-p (a candidate stays while the mass before it is below top_p) and min-p.
 * total: mass of all candidates the filter speaks about, relative to the first. */
static int cands_cut(const struct lk_sampling *s, const struct lk_cand *c, int n, double total)
{
    double cum = 0;
    int i = 0;
    for (; i < n && c[i].val > -INFINITY; i++) {
        double w = exp(((double)c[i].val - c[0].val) / s->temp);
        if (i > 0 && ((s->top_p < 1 && cum >= s->top_p * total) || w < s->min_p)) break;
        cum += w;
    }
    return i;
}

static double cands_total(const struct lk_sampling *s, const struct lk_cand *c, int n)
{
    double total = 0;
    for (int i = 0; i < n && c[i].val > -INFINITY; i++)
        total += exp(((double)c[i].val - c[0].val) / s->temp);
    return total;
}

static int32_t cands_draw(const struct lk_sampling *s, const struct lk_cand *c, int n, uint64_t pos)
{
    uint64_t key = noise_key(s->seed, pos);
    double best = -INFINITY, inv = 1 / (double)s->temp;
    int32_t id = -1;
    for (int i = 0; i < n; i++) {
        if (id >= 0 && noise_falls_short(noise_bits(key, c[i].id), best - c[i].val * inv)) continue;
        double v = c[i].val / (double)s->temp - log(-log(noise_uniform(key, c[i].id)));
        if (id < 0 || v > best || (v == best && c[i].id < id)) {
            best = v;
            id = c[i].id;
        }
    }
    return id;
}

int32_t lk_sample_sorted(const struct lk_sampling *s, const int32_t *ids, const float *vals, int n, uint64_t pos)
{
    struct lk_cand c[LK_TOPK_MAX];
    if (n > LK_TOPK_MAX) n = LK_TOPK_MAX;
    if (n < 1 || !(vals[0] > -INFINITY)) return -1;
    if (s->temp <= 0) return ids[0];
    if (s->top_k > 0 && s->top_k < n) n = s->top_k;
    for (int i = 0; i < n; i++) c[i] = (struct lk_cand){vals[i], ids[i]};
    return cands_draw(s, c, cands_cut(s, c, n, cands_total(s, c, n)), pos);
}

int32_t lk_sample_argmax(const float *row, int n)
{
    int32_t best = -1;
    float v = -INFINITY;
    for (int i = 0; i < n; i++)
        if (row[i] > v) {
            v = row[i];
            best = i;
        }
    return best;
}

/* 1: a stands before b */
static int cand_before(struct lk_cand a, struct lk_cand b)
{
    return a.val > b.val || (a.val == b.val && a.id < b.id);
}

static int cand_order(const void *a, const void *b)
{
    return cand_before(*(const struct lk_cand *)a, *(const struct lk_cand *)b) ? -1 : 1;
}

/* h[0] is the worst of the n kept */
static void heap_sift(struct lk_cand *h, int n, int i)
{
    for (;;) {
        int w = i, l = 2 * i + 1, r = l + 1;
        if (l < n && cand_before(h[w], h[l])) w = l;
        if (r < n && cand_before(h[w], h[r])) w = r;
        if (w == i) return;
        struct lk_cand t = h[i];
        h[i] = h[w];
        h[w] = t;
        i = w;
    }
}

int lk_sample_top(const float *row, int n, int k, struct lk_cand *out)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        struct lk_cand c = {row[i], i};
        if (!(c.val > -INFINITY)) continue; /* -infinity and NaN */
        if (m < k) {
            out[m++] = c;
            if (m == k)
                for (int j = k / 2; j >= 0; j--) heap_sift(out, k, j);
        } else if (k > 0 && cand_before(c, out[0])) {
            out[0] = c;
            heap_sift(out, k, 0);
        }
    }
    qsort(out, (size_t)m, sizeof *out, cand_order);
    return m;
}

/* Candidates that pass all filters, into c; returns how many. */
static int row_filter(const struct lk_sampling *s, const float *row, int n, struct lk_cand *c)
{
    if (s->top_k > 0 && s->top_k < n) {
        int m = lk_sample_top(row, n, s->top_k, c);
        return cands_cut(s, c, m, cands_total(s, c, m));
    }
    int best = lk_sample_argmax(row, n);
    if (best < 0) return 0;
    if (s->top_p >= 1) { /* no order needed: min-p is a threshold on the logit */
        double least = s->min_p > 0 ? row[best] + log(s->min_p) * s->temp : -INFINITY;
        int m = 0;
        for (int i = 0; i < n; i++)
            if (row[i] > -INFINITY && (row[i] >= least || i == best)) c[m++] = (struct lk_cand){row[i], i};
        return m;
    }
    double total = 0;
    for (int i = 0; i < n; i++)
        if (row[i] > -INFINITY) total += exp(((double)row[i] - row[best]) / s->temp);
    for (int k = n < 1024 ? n : 1024;; k = n) { /* the nucleus is nearly always in the first thousand */
        int m = lk_sample_top(row, n, k, c), cut = cands_cut(s, c, m, total);
        if (cut < m || k == n || m < k) return cut;
    }
}

int32_t lk_sample_row(const struct lk_sampling *s, const float *row, int n, uint64_t pos, struct lk_cand *scratch)
{
    if (s->temp <= 0) return lk_sample_argmax(row, n);
    return cands_draw(s, scratch, row_filter(s, row, n, scratch), pos);
}

void lk_sample_probs(const struct lk_sampling *s, const float *row, int n, float *prob, struct lk_cand *scratch)
{
    for (int i = 0; i < n; i++) prob[i] = 0;
    if (s->temp <= 0) {
        int32_t id = lk_sample_argmax(row, n);
        if (id >= 0) prob[id] = 1;
        return;
    }
    int m = row_filter(s, row, n, scratch);
    double top = -INFINITY, total = 0;
    for (int i = 0; i < m; i++) top = fmax(top, scratch[i].val);
    for (int i = 0; i < m; i++) total += exp((scratch[i].val - top) / s->temp);
    for (int i = 0; i < m; i++) prob[scratch[i].id] = (float)(exp((scratch[i].val - top) / s->temp) / total);
}

double lk_sample_lse(const float *row, int n)
{
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        if (row[i] > top) top = row[i];
    if (top == -INFINITY) return top;
    for (int i = 0; i < n; i++)
        if (row[i] > -INFINITY) sum += exp(row[i] - top);
    return top + log(sum);
}
