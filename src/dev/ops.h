/* The ops: what each means, whoever computes it. src/cpu/ref.c is the naive scalar answer and the oracle.
 *
 * Notation: T = batch rows; f32 unless said; act = device activation type (f32 on CPU, f16 on CUDA), row-major, no
 * padding between rows unless a stride (ld, in elements) is given. All pointers are device pointers. No argument may
 * alias another unless said. Accumulation is f32 (or wider); for T <= dev->small_rows a row's result has the same bits
 * whatever T, the lane order, the other rows and the number of threads ("batch-invariant"). */
#ifndef LK_DEV_OPS_H
#define LK_DEV_OPS_H

#include "dev/batch.h"
#include "dev/dev.h"
#include "dev/kv.h"

/* A norm made with the sum it belongs to: h = norm(y), as op norm would, act [T, n]. A device may leave h unfinished (CUDA: the factor of a row
 * is still missing), so only a linear or gate_up of the same T that says `normed` may read it; op norm's h may be read either way. One such h
 * a device at a time: it lives until the next norm. The rows must be those of the norm before it (a residual stream): their size is guessed
 * from it. */
struct lk_next_norm {
    const float *w; /* f32 [n]; NULL: none is wanted */
    float eps;
    void *h;
};

/* y[t,:] = sum_k x[t,k] W[n,k]. STACK parts side by side: y [T, n_all], row stride ldy >= n_all.
 * add: y += instead of y =. bytes: mat + T*k*act + T*n*4. */
struct lk_linear_args {
    const struct lk_mat *w;
    const void *x; /* act [T, k] */
    float *y;      /* f32 [T, ldy] */
    int T, ldy, add;
    int normed;               /* x is h of the last norm */
    struct lk_next_norm next; /* of y; ldy = n then, and x not normed */
};

/* out[t,i] = silu(g) * u with g = x Wg^T, u = x Wu^T; mat of kind GATE_UP. out act [T, inter]. */
struct lk_gate_up_args {
    const struct lk_mat *w;
    const void *x;
    void *out;
    int T;
    int normed; /* as in lk_linear_args */
};

/* Input of a draft layer: h[t,:] = [norm(table[ids[t]]) by embed_norm | norm(hidden[rows[t]]) by hidden_norm], act [T, 2n].
 * Ids outside the table count as zeros. */
struct lk_draft_in_args {
    const struct lk_mat *table;
    const int32_t *ids, *rows;
    const float *hidden, *embed_norm, *hidden_norm; /* hidden f32 [.., n] */
    float eps;
    int T, n;
    void *h;
};

/* y = norm(x), f32 [T, n] each (y may equal x); and of the rows listed h[i,:] = y[rows[i],:], act [n_out, n]. */
struct lk_norm_out_args {
    const float *x, *w;
    float eps;
    int T, n, n_out;
    float *y;
    const int32_t *rows;
    void *h;
};

/* Gated attention of one layer for all lanes, cache append included.
 * In: proj f32 [T, ld]: per query head 256 q | 256 gate (n_q heads), then k [n_kv*256], then v [n_kv*256].
 * Steps: q,k: RMS norm a head with q_norm/k_norm (weights already 1+w), eps; rotate the first rope_dim (64) dims: pairs (i, i+rope_dim/2),
 * angle = pos_s(i) * theta^(-2i/rope_dim), rounded to f32 as transformers does, where s(i) in {t,h,w} = section[i] (0,1,2; interleaved M-RoPE, text has all equal);
 * append k, v of each row to its lane's pages (kv.h; I8: Hadamard on k and q); row at position p attends to 0..p of its lane;
 * score scale 1/16, softmax f32; head j uses kv head j / (n_q/n_kv); out = attn * sigmoid(gate).
 * window > 0: a row at p attends to p-window..p only (the draft layer's --draft-window).
 * The key axis is cut at fixed absolute positions, so that the result of a row does not depend on T. */
struct lk_attn_args {
    const struct lk_batch *b;
    const float *proj;
    int ld;
    const float *q_norm, *k_norm; /* f32 [256] */
    float eps;
    int n_q, n_kv, rope_dim;
    const float *inv_freq;    /* device f32 [rope_dim/2] */
    const uint8_t *section;   /* device u8 [rope_dim/2]: 0 t, 1 h, 2 w */
    enum lk_kv_kind kv_kind;
    void *kv;                 /* this layer's pages */
    int window;
    void *out;                /* act [T, n_q*256] */
};

/* Gated delta net of one layer: convolution, gates, recurrence, gated norm.
 * In: proj f32 [T, ld]: qkv [2*hk*128 + hv*128] (pre-convolution: q | k | v), then z [hv*128], then b [hv], then a [hv].
 *   c = silu(causal depthwise conv over the lane's last 4 qkv rows; w[ch][3] times the current row; before the lane's
 *   first row stand the 3 rows of the conv state, zero for a new sequence)
 *   q,k: x * rsqrt(sum x^2 + 1e-6) a head; q *= 128^-0.5
 *   beta = sigmoid(b); g = a_coef * softplus(a + dt_bias), softplus(x) = x for x > 20; a_coef = -exp(A_log)
 *   v head j uses k head j / (hv/hk), or j % hk when tiled (GGUF order)
 *   S[128 k][128 v] per v head: S *= e^g; m = S^T k; S += k (beta (v - m))^T; o = S^T q
 *   out[j] = norm_w * o * rsqrt(mean o^2 + eps) * silu(z[j])   -> act [T, hv*128]
 * mode RUN: state and conv state advance by each lane's rows (recurrent for few rows, chunked for many).
 * mode RECORD: outputs as in RUN with bits equal to one-by-one decode, state and conv state NOT changed; what fold needs goes to `record`.
 * State of slot s: S at state + s*hv*128*128 (f32 [hv][128 k][128 v]; a backend may transpose inside, but must be consistent: snapshots are opaque
 * bytes of the same backend), conv state at conv + s*3*C (f32 [3][C], oldest first, C = 2*hk*128 + hv*128). */
enum lk_gdn_mode { LK_GDN_RUN = 0, LK_GDN_RECORD = 1 };
struct lk_gdn_args {
    const struct lk_batch *b;
    const float *proj;
    int ld;
    int hk, hv, tiled;
    const float *conv_w;  /* f32 [C][4] */
    const float *a_coef;  /* f32 [hv] */
    const float *dt_bias; /* f32 [hv] */
    const float *norm_w;  /* f32 [128], plain */
    float eps;
    float *state, *conv;
    enum lk_gdn_mode mode;
    void *record;         /* lk_gdn_record_bytes(hk, hv) * T, indexed by batch row */
    void *out;
};
/* Bytes a row: qkv pre-conv C floats, then k normalised hk*128, v hv*128 (post-conv), g hv, beta hv, all f32; whole 16 bytes,
 * so that vector loads fit whatever hv is. */
static inline size_t lk_gdn_record_bytes(int hk, int hv)
{
    size_t c = (size_t)2 * hk * 128 + (size_t)hv * 128;
    return (4 * (c + (size_t)hk * 128 + (size_t)hv * 128 + 2 * (size_t)hv) + 15) / 16 * 16;
}
/* Folds the first lanes[l].keep recorded rows of each lane into state and conv state of each layer; bit-identical to RUN row by row. */
struct lk_gdn_fold_args {
    const struct lk_batch *b; /* the recorded step's batch, keep filled in */
    int hk, hv, tiled, n_layers;
    float *const *state, *const *conv; /* host arrays [n_layers] */
    void *const *record;
};

/* Best candidates of each row of logits [T, ld] over columns [0, n): the k largest, ties to the smaller id, sorted; and
 * m = largest, lse = log sum exp over all n columns (f32, fixed order). k <= 256; beyond n columns ids are -1, vals -inf. */
struct lk_topk_args {
    const float *logits;
    int T, n, ld, k;
    int32_t id0;    /* added to ids (vocabulary shard) */
    int32_t *ids;   /* [T, k] */
    float *vals;    /* [T, k] */
    float *lse;     /* [T] */
};

/* A sparse edit of logits: rows[i], ids[i]: l = l > 0 ? l / rep[i] : l * rep[i]; l += add[i] (rep 1: none). In order, one edit a (row, id). */
struct lk_edit_args {
    float *logits;
    int ld, n_edits;
    const int32_t *rows, *ids;
    const float *rep, *add;
};

struct lk_ops {
    /* x[t,:] = table[ids[t],:] as f32. ids outside the table give zeros. */
    void (*embed)(struct lk_dev *d, const struct lk_mat *table, const int32_t *ids, int T, float *x);
    /* h = x * rsqrt(mean(x^2)+eps) * w (w = 1+w already added where the format stores it zero-centred); act out. */
    void (*norm)(struct lk_dev *d, const float *x, const float *w, float eps, int T, int n, void *h);
    /* the same, f32 out; y may equal x. ldx, ldy: row strides. */
    void (*norm_f32)(struct lk_dev *d, const float *x, int ldx, const float *w, float eps, int T, int n, float *y, int ldy);
    void (*norm_out)(struct lk_dev *d, const struct lk_norm_out_args *a);
    void (*draft_in)(struct lk_dev *d, const struct lk_draft_in_args *a);
    /* f32 [T, ldx] -> act [T, n] */
    void (*to_act)(struct lk_dev *d, const float *x, int ldx, int T, int n, void *h);
    void (*linear)(struct lk_dev *d, const struct lk_linear_args *a);
    void (*gate_up)(struct lk_dev *d, const struct lk_gate_up_args *a);
    void (*attn)(struct lk_dev *d, const struct lk_attn_args *a);
    void (*gdn)(struct lk_dev *d, const struct lk_gdn_args *a);
    void (*gdn_fold)(struct lk_dev *d, const struct lk_gdn_fold_args *a);
    /* y += x, n elements */
    void (*add)(struct lk_dev *d, float *y, const float *x, size_t n);
    /* y[i,:] = x[rows[i],:], n_out rows of n f32 */
    void (*gather)(struct lk_dev *d, const float *x, int ldx, const int32_t *rows, int n_out, int n, float *y);
    /* ids[t] = index of the largest of logits[t, 0..n), ties to the smaller; val[t] its value (may be NULL) */
    void (*argmax)(struct lk_dev *d, const float *logits, int T, int n, int ld, int32_t id0, int32_t *ids, float *val);
    void (*topk)(struct lk_dev *d, const struct lk_topk_args *a);
    void (*edit)(struct lk_dev *d, const struct lk_edit_args *a);
};

#endif
