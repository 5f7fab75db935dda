/* One GGUF file: header, key-value pairs, tensor directory. Private to src/artifact. */
#ifndef LK_ARTIFACT_GGUF_H
#define LK_ARTIFACT_GGUF_H

#include "artifact/store.h"

enum gguf_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64,
    GGUF_TYPES
};

struct gguf_value {
    const char *key;
    enum gguf_type type, of; /* of: element type of an array */
    uint64_t n;              /* string: bytes; array: elements; else 1 */
    const unsigned char *at; /* string bytes, first element, or the value */
};

struct gguf_file {
    const char *file;
    struct gguf_value *kv;
    size_t n_kv;
    struct name_map keys;
    uint64_t n_tensors;
};

/* Proves the whole directory against the file's bytes and appends its tensors (fmt set; dims in row-major order). Names go to `mem`.
 * Refuses: versions other than 2 and 3, alignment that is no power of two from 8 to 65536, strings and arrays past the end, nested arrays,
 * duplicate keys and tensors, 0 or more than 4 dims, products that wrap, unknown types, rows that are no whole blocks, ranges that
 * overlap or leave the file. */
int lk__gguf_read(struct gguf_file *g, struct raw_table *t, struct lk_arena *mem, const unsigned char *data, size_t size, const char *file,
                  struct lk_err *e);
void lk__gguf_free(struct gguf_file *g);

const struct gguf_value *lk__gguf_find(const struct gguf_file *g, const char *key); /* NULL: not there */
/* A key of another type than asked is an error; a missing one leaves *out. An array gives its largest element (counts a layer). */
int lk__gguf_int(const struct gguf_file *g, const char *key, int64_t lo, int64_t hi, int64_t *out, struct lk_err *e);
int lk__gguf_real(const struct gguf_file *g, const char *key, double *out, struct lk_err *e);
/* NULL when missing or no array of that type. */
const struct gguf_value *lk__gguf_array(const struct gguf_file *g, const char *key, enum gguf_type of, struct lk_err *e);
/* Next string of a string array that was proven by lk__gguf_read. */
const char *lk__gguf_string(const unsigned char **at, uint64_t *len);

/* tokenizer.ggml.* -> the bytes of a tokenizer.json. */
int lk__gguf_tokenizer(const struct gguf_file *g, struct lk_buf *out, struct lk_err *e);
int lk__gguf_config(struct lk_config *c, const struct gguf_file *g, struct lk_err *e);
/* Raw tensors of arch qwen35 -> logical tensors; cfg.layers must be known. */
int lk__gguf_bind(struct lk_artifact *a, const struct raw_table *t, struct lk_err *e);

#endif
