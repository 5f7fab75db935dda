/* Benchmark prompts: numbered blocks of code or of Chinese and one instruction, after the form the field uses: each block
 * carries its number several times, so nothing repeats, and numbers start at an offset, so that two prompts with different offsets share no prefix. */
#ifndef LK_BENCH_BLOCKS_H
#define LK_BENCH_BLOCKS_H

#include "base/buf.h"
#include "base/err.h"
#include "text/tokenizer.h"

enum lk_block_kind { LK_BLOCK_CODE, LK_BLOCK_ZH, LK_BLOCK_FILE };

/* Appends a prompt of at most `tokens` tokens by t (at least one block), with blocks numbered from `offset`. t NULL: 3.2 bytes a token for code, 3.0 for Chinese
 * are assumed. text: for FILE, cut to size at a character boundary and preceded by the offset. *count: tokens by t, 0 without. */
int lk_blocks_make(enum lk_block_kind kind, const char *text, int tokens, long long offset, const struct lk_tokenizer *t,
                   struct lk_buf *out, int *count, struct lk_err *e);

#endif
