/* A folder that is written whole or not at all: everything goes to OUT.tmp-PID, which is renamed to OUT at the end. */
#ifndef LK_ARTIFACT_OUT_FOLDER_H
#define LK_ARTIFACT_OUT_FOLDER_H

#include "artifact/artifact.h"
#include "base/buf.h"

struct lk_out_folder {
    const char *out;
    struct lk_buf tmp; /* its path */
    int made;
};
/* OUT without the slashes at its end: how many bytes, for names beside it. */
int lk_out_name_len(const char *out);
/* Refuses an OUT that exists unless force. */
int lk_out_folder_check(const char *out, int force, struct lk_err *e);
/* The same refusal; then OUT is replaced only when the new one is whole. */
int lk_out_folder_begin(struct lk_out_folder *f, const char *out, int force, struct lk_err *e);
/* rc 0: renames; else removes what was written. Returns rc, or the error of renaming. */
int lk_out_folder_end(struct lk_out_folder *f, int rc, struct lk_err *e);
void lk_out_folder_remove(const char *dir); /* its files and itself; nothing deeper */

int lk_out_side_write(const char *dir, const char *name, const char *data, size_t n, struct lk_err *e);
/* tokenizer.json, chat_template.jinja, generation_config.json and so on: what the model has of them, without config.json. */
int lk_out_texts_write(const char *dir, const struct lk_artifact *a, struct lk_err *e);
/* config.json as the source has it, or written from its numbers. */
int lk_out_config_write(const char *dir, const struct lk_artifact *a, struct lk_err *e);

#endif
