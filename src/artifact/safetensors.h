/* One safetensors file: u64 header length, JSON header, data. Private to src/artifact. */
#ifndef LK_ARTIFACT_SAFETENSORS_H
#define LK_ARTIFACT_SAFETENSORS_H

#include "artifact/store.h"

/* Header bytes that are read at most: 27 B with every quantiser's extras needs under 1 MB. */
#define LK_ST_HEADER_MAX (16u << 20)

/* Checks the whole header against the file (`size` bytes at `data`, called `file` in messages) and appends its tensors. Names are
 * copied to `mem`; data pointers go into `data`. Refuses lengths outside the file, unknown types, shapes that do not give the stated
 * bytes, and ranges that overlap, leave holes or end elsewhere than the file does (the format allows none of these). */
int lk__safetensors_read(struct raw_table *t, struct lk_arena *mem, const unsigned char *data, size_t size, const char *file,
                         struct lk_err *e);

#endif
