/* One .ninfer model: the object directory of container 2 or 3, and the parameters found in it. Private to src/artifact.
 *
 * Both containers end in the same two tables: objects (name, format, shape, bytes proven), and for a logical parameter
 * ("text/layers/3/attention/query") the rows of the object that hold it. Container 2 names objects of several parameters by convention and
 * lists no sizes of the model, so those come from the shapes and the whole inventory of its profile is then demanded; container 3 says
 * everything in its JSON. */
#ifndef LK_ARTIFACT_NINFER_H
#define LK_ARTIFACT_NINFER_H

#include "artifact/store.h"

#include <jansson.h>

#define NF_MAX_FILES 1024

enum nf_fmt { NF_BF16, NF_FP32, NF_I32, NF_Q4, NF_Q5, NF_Q6, NF_W8, NF_NVFP4, NF_FP8, NF_FMTS, NF_RESOURCE };

struct nf_object {
    const char *name;
    enum nf_fmt fmt;
    int n_dims;
    int64_t dims[4], divisors;
    uint64_t offset, bytes; /* of the logical payload */
    const unsigned char *data;
    int used;
};

struct nf_segment { /* a run of the logical payload that lies in one mapping */
    const unsigned char *data;
    uint64_t at, bytes;
};

struct nf_file {
    struct lk_artifact *a;
    const char *file;
    int version;
    struct nf_object *objects;
    size_t n_objects;
    struct name_map names;
    struct nf_segment *segments;
    size_t n_segments;
    uint64_t payload;
    json_t *root;           /* container 3: bindings */
    const struct nf_profile *profile; /* container 2 */
    int pieces;             /* parameters found so far */
    struct lk_err *e;
};

/* Rows of an object that hold a parameter; o NULL: the file has none. */
struct nf_piece {
    struct nf_object *o;
    int64_t row, rows;
};

/* ninfer_open.c: "FILE: object NAME: expected ..., found ..." */
int lk__nf_fail(const struct nf_file *f, const char *object, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
struct nf_object *lk__nf_find(const struct nf_file *f, const char *name);
const char *lk__nf_fmt_name(enum nf_fmt fmt);
/* Reads a non-negative integer member; absent, real or out of range is an error. */
int lk__nf_uint(const struct nf_file *f, const json_t *o, const char *where, const char *key, uint64_t hi, uint64_t *out);
/* must: members that are there and not null; may: others that may be. No more: the schema is closed. */
int lk__nf_members(const struct nf_file *f, const json_t *o, const char *where, const char *const *must, size_t n_must, const char *const *may,
                   size_t n_may);
/* The objects array of either container: fills f->objects, proves bytes, order and overlap. */
int lk__nf_objects(struct nf_file *f, const json_t *list);
/* ninfer_v2.c, ninfer_v3.c: directory -> config; and where a parameter lies. */
int lk__nf2_read(struct nf_file *f, const json_t *root);
int lk__nf2_piece(struct nf_file *f, const char *param, struct nf_piece *out);
int lk__nf3_read(struct nf_file *f, json_t *root);
int lk__nf3_piece(struct nf_file *f, const char *param, struct nf_piece *out);
int lk__nf3_all_used(struct nf_file *f); /* after binding: no text, mtp or proposal parameter is left over */
/* ninfer_bind.c */
int lk__nf_bind(struct nf_file *f);

#endif
