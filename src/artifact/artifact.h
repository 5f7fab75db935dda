/* An artifact: a model on disk (Hugging Face folder, .safetensors, .gguf, .ninfer) opened, mapped and checked.
 *
 * What comes out is the same whatever the file was: a shape config, a directory of logical tensors under one set of names,
 * and the text parts (tokenizer.json bytes or GGUF tokenizer arrays, chat template, generation defaults). Weight bytes stay in the mapping.
 * The artifact owns mappings and names; weights handed out point into it and die with it. Read-only and thread-safe after open.
 *
 * Logical names (HF names without prefix): "embed_tokens", "norm", "lm_head", "layers.N.input_layernorm",
 * "layers.N.self_attn.q_proj", "layers.N.linear_attn.in_proj_qkv", ".conv1d", ".A_log", ".dt_bias", ".norm",
 * "layers.N.mlp.gate_proj", "mtp.fc", "mtp.layers.0.…", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "draft_head". */
#ifndef LK_ARTIFACT_ARTIFACT_H
#define LK_ARTIFACT_ARTIFACT_H

#include "base/err.h"
#include "dev/format.h"

#include <stddef.h>
#include <stdint.h>

#define LK_MAX_LAYERS 512
#define LK_MAX_EOS 8

/* The text model's numbers as the file states them; model/shape.c judges whether they make sense together. */
struct lk_config {
    char arch[64];          /* "qwen3_5", "qwen35" */
    int64_t hidden, inter, layers, vocab;
    int64_t n_q, n_kv, head_dim, rope_dim; /* rope_dim = head_dim * partial_rotary_factor */
    int64_t hk, hv, gdn_k_dim, gdn_v_dim, conv_k;
    int64_t max_ctx;
    double rope_theta, eps;
    int section[3];         /* mrope_section t, h, w */
    int tied;               /* lm_head = embed_tokens */
    int mtp_layers;         /* 0 or 1 */
    int has_vision;         /* a vision tower is in the file (ignored for now) */
    int norm_plus_one;      /* 1: zero-centred norms stored raw (HF); 0: already 1+w (GGUF) */
    int a_is_coef;          /* 1: "A_log" tensors hold -exp(A_log) already (GGUF) */
    int gdn_tiled;          /* 1: v heads in tiled order (GGUF) */
    uint8_t full[LK_MAX_LAYERS]; /* 1: full attention, 0: linear attention */
    int n_eos;
    int32_t eos[LK_MAX_EOS]; /* from generation_config.json, then config.json */
};

/* Sampling defaults of generation_config.json; have_* say what the file states. */
struct lk_gen_defaults {
    int have, do_sample, top_k;
    double temperature, top_p, min_p, presence_penalty, repetition_penalty;
};

struct lk_tensor {
    const char *name;       /* logical */
    const char *stored;     /* the name in the file, for messages */
    const char *file;       /* which file, for messages */
    int n_dims;
    int64_t dims[4];        /* as stored; a linear is [n, k] */
    struct lk_weight w;     /* a 1-D tensor is n = 1, k = length */
    size_t bytes;           /* all parts */
    int is_part;            /* from a rank file: cut already, w is the rank's own */
};

struct lk_artifact;

/* path: folder or file. Errors name file, tensor, expected and found. progress on a terminal. */
int lk_artifact_open(struct lk_artifact **out, const char *path, struct lk_err *e);
/* The same for rank `rank` of n: a folder of rank files (convert --tp) gives that rank's file, anything else is opened whole. n = 0: any rank
 * files, rank 0's part. */
int lk_artifact_open_rank(struct lk_artifact **out, const char *path, int rank, int n, struct lk_err *e);
void lk_artifact_close(struct lk_artifact *a); /* NULL is fine */
/* 0: the whole model; N: what one of N ranks needs of it (struct lk_tensor.is_part). */
int lk_artifact_ranks(const struct lk_artifact *a);
/* Lets mapped pages of a weight go (lk_map_forget); bytes that lie in no mapping stay. */
void lk_artifact_forget(const struct lk_artifact *a, const struct lk_weight *w);

const struct lk_config *lk_artifact_config(const struct lk_artifact *a);
const struct lk_gen_defaults *lk_artifact_gen(const struct lk_artifact *a);
const char *lk_artifact_path(const struct lk_artifact *a);
const char *lk_artifact_kind(const struct lk_artifact *a); /* "huggingface", "safetensors", "gguf", "ninfer" */

size_t lk_artifact_count(const struct lk_artifact *a);
const struct lk_tensor *lk_artifact_at(const struct lk_artifact *a, size_t i);
/* NULL when there is none. */
const struct lk_tensor *lk_artifact_find(const struct lk_artifact *a, const char *name);

/* Bytes of a side file by its HF name ("tokenizer.json", "chat_template.jinja", "config.json", ...) or NULL. For GGUF and .ninfer the loader
 * makes "tokenizer.json" and "chat_template.jinja" from what the file holds, so that src/text has one input. */
const char *lk_artifact_text(const struct lk_artifact *a, const char *name, size_t *len);

/* Id map of a shortlist ("draft_head") or NULL: draft row i is token map[i]. */
const int32_t *lk_artifact_draft_map(const struct lk_artifact *a, size_t *n);

/* Which model this is: differs when any tensor's name, format, size or sampled bytes, or the configuration differ (identity.c). */
uint64_t lk_artifact_identity(const struct lk_artifact *a);

#endif
