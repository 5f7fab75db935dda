/* Private to src/artifact: the object behind struct lk_artifact, and the two tables every loader fills.
 *
 * A loader maps files, lists what lies in them as raw tensors (name, type, shape and bytes proven), and binds those to logical tensors.
 * Nothing below the raw table reads a byte outside raw->data[0..bytes). All names and small arrays live in the artifact's arena. */
#ifndef LK_ARTIFACT_STORE_H
#define LK_ARTIFACT_STORE_H

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/mem.h"

/* Name -> index, open addressing. Keys are borrowed. Zero-initialised is empty. */
struct name_map {
    struct name_slot { const char *key; uint32_t value; } *slots;
    size_t n, cap;
};
/* 0 inserted; 1 the key was there, *value receives its value; LK_ENOMEM. */
int lk__names_put(struct name_map *m, const char *key, uint32_t *value);
int lk__names_get(const struct name_map *m, const char *key, uint32_t *value); /* 1 found, 0 not */
void lk__names_free(struct name_map *m);

struct raw_tensor {
    const char *name, *file;
    enum lk_dtype dtype;
    enum lk_fmt fmt; /* GGUF: the whole tensor's format; else NONE */
    int n_dims;
    int64_t dims[8];
    const unsigned char *data;
    size_t bytes;
    int in_index; /* the shard index lists it */
};

struct raw_table {
    struct raw_tensor *v;
    size_t n, cap;
    struct name_map names;
};
/* Refuses a name that is there already, naming both files. */
int lk__raw_add(struct raw_table *t, const struct raw_tensor *r, struct lk_err *e);
struct raw_tensor *lk__raw_find(const struct raw_table *t, const char *name);
void lk__raw_free(struct raw_table *t);
int64_t lk__raw_count(const struct raw_tensor *r); /* elements */
/* "[2, 3]" for messages; buf of 160 bytes is enough. */
const char *lk__raw_shape(const struct raw_tensor *r, char *buf, size_t cap);

#define LK_MAX_TEXTS 16

struct lk_artifact {
    struct lk_arena mem;
    const char *path, *kind;
    struct lk_config cfg;
    struct lk_gen_defaults gen;
    struct lk_map *maps;
    size_t n_maps, cap_maps;
    struct lk_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct name_map names;
    struct { const char *name, *data; size_t len; } texts[LK_MAX_TEXTS];
    int n_texts;
    struct lk_buf made_text; /* a tokenizer.json written from what the file holds */
    const int32_t *draft_map;
    size_t n_draft;
    int ranks; /* 0: whole; N: the part of one of N ranks */
};

/* Maps a file; the artifact keeps it. *file: its path in the arena. */
int lk__artifact_map(struct lk_artifact *a, const char *path, struct lk_map *out, const char **file, struct lk_err *e);
/* Adds a logical tensor; name, stored, file must live in the arena. Refuses a second one of the same name. */
int lk__artifact_add(struct lk_artifact *a, const struct lk_tensor *t, struct lk_err *e);
int lk__artifact_text_add(struct lk_artifact *a, const char *name, const char *data, size_t len, struct lk_err *e);

int lk__hf_open(struct lk_artifact *a, const char *path, struct lk_err *e); /* folder, or one .safetensors file */

/* The side files of a folder that a model keeps: config.json first, then the texts; ends with NULL. */
extern const char *const lk__side_names[];
int lk__hf_sides(struct lk_artifact *a, const char *dir, struct lk_err *e); /* config.json, texts, generation defaults of a folder */
int lk__ranks_in(const char *dir); /* N when the folder holds the rank files of N ranks, else 0 */
int lk__rank_open(struct lk_artifact *a, const char *dir, int of, int rank, int n, struct lk_err *e); /* of: what lk__ranks_in found */

int lk__ninfer_open(struct lk_artifact *a, const char *path, struct lk_err *e);
int lk__gguf_open(struct lk_artifact *a, const char *path, struct lk_err *e);

#endif
