/* Files that the text tests share: stored vectors, and the demo vocabulary (the bundled model's, or
 * the master's). */
#ifndef LK_TESTS_TEXT_FILES_H
#define LK_TESTS_TEXT_FILES_H

#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

static inline void file_load(const char *path, struct lk_buf *b)
{
    struct lk_err e = {0};
    if (lk_file_read(b, path, 64 << 20, &e)) fail_msg("%s", e.text);
}

static inline json_t *vector_load(const char *name)
{
    char path[512];
    struct lk_buf b = {0};
    json_error_t je;
    snprintf(path, sizeof path, "%s/tests/vectors/text/%s", LK_SOURCE_DIR, name);
    file_load(path, &b);
    json_t *j = json_loadb(b.data, b.len, JSON_ALLOW_NUL, &je);
    if (!j) fail_msg("%s:%d: %s", path, je.line, je.text);
    lk_buf_free(&b);
    return j;
}

static inline void demo_tokenizer_json(struct lk_buf *b)
{
    const char *path = LK_SOURCE_DIR "/models/demo/tokenizer.json";
    file_load(lk_file_exists(path) == 1 ? path : LK_SHARED_DIR "/demo-model/tokenizer.json", b);
}

static inline struct lk_tokenizer *tokenizer_from(const char *json, size_t len)
{
    struct lk_tokenizer *t = NULL;
    struct lk_err e = {0};
    if (lk_tokenizer_open(&t, json, len, &e)) fail_msg("%s", e.text);
    return t;
}

static inline struct lk_tokenizer *demo_tokenizer(void)
{
    struct lk_buf b = {0};
    demo_tokenizer_json(&b);
    struct lk_tokenizer *t = tokenizer_from(b.data, b.len);
    lk_buf_free(&b);
    return t;
}

#endif
