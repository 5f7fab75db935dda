/* Lists on the command line: words with commas between, and sizes in tokens (512, 8K). */
#ifndef LK_BENCH_WORDS_H
#define LK_BENCH_WORDS_H

#include "base/err.h"

#define LK_WORDS_MAX 16

struct lk_words {
    int n;
    char at[LK_WORDS_MAX][16];
};
/* LK_EUSAGE naming the flag. At least one word. */
int lk_words_split(struct lk_words *w, const char *list, const char *flag, struct lk_err *e);
int lk_size_read(const char *word, const char *flag, int *tokens, struct lk_err *e);

#endif
