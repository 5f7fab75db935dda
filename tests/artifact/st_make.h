/* Test helper: small model folders made by hand, whole or broken on purpose. */
#ifndef TESTS_ARTIFACT_ST_MAKE_H
#define TESTS_ARTIFACT_ST_MAKE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY_CONFIG \
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":4,\"vocab_size\":64," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":256,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2," \
    "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"tie_word_embeddings\":true}"

static inline void file_put(const char *dir, const char *name, const void *data, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) abort();
}

static inline void text_put(const char *dir, const char *name, const char *text)
{
    file_put(dir, name, text, strlen(text));
}

/* A safetensors file: length (-1: that of the header), header text, `data` zero bytes. */
static inline void st_put(const char *dir, const char *name, int64_t length, const char *header, size_t data)
{
    size_t h = strlen(header), n = 8 + h + data;
    unsigned char *b = calloc(1, n);
    uint64_t len = length < 0 ? h : (uint64_t)length;
    if (!b) abort();
    memcpy(b, &len, 8);
    memcpy(b + 8, header, h);
    file_put(dir, name, b, n);
    free(b);
}

static inline char *dir_new(char *buf)
{
    strcpy(buf, "/tmp/laoka-st-XXXXXX");
    if (!mkdtemp(buf)) abort();
    return buf;
}

static inline void dir_remove(const char *dir)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, "rm -rf -- '%s'", dir);
    if (system(cmd)) abort();
}

#endif
