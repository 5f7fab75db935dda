/* Lists of words: see words.h. */
#include "bench/words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int lk_words_split(struct lk_words *w, const char *list, const char *flag, struct lk_err *e)
{
    w->n = 0;
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (!len || len > 15 || w->n == LK_WORDS_MAX) return lk_fail(e, LK_EUSAGE, "%s %s: expected up to %d words with commas between", flag, list, LK_WORDS_MAX);
        memcpy(w->at[w->n], p, len);
        w->at[w->n++][len] = 0;
        p += len + (p[len] == ',');
    }
    return w->n ? 0 : lk_fail(e, LK_EUSAGE, "%s: expected at least one word", flag);
}

int lk_size_read(const char *word, const char *flag, int *tokens, struct lk_err *e)
{
    char *end;
    double v = strtod(word, &end);
    int c = toupper((unsigned char)*end);
    if (c == 'K') v *= 1024, end++;
    if (*end || !(v >= 16 && v <= 16777216)) return lk_fail(e, LK_EUSAGE, "%s %s: expected tokens, like 512 or 8K", flag, word);
    *tokens = (int)v;
    return 0;
}
