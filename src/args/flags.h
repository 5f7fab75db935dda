/* The one table of flags: private to src/args. */
#ifndef LK_ARGS_FLAGS_H
#define LK_ARGS_FLAGS_H

#include <stddef.h>

enum lk_flag_type {
    LK_FLAG_BOOL,   /* int, set to 1 */
    LK_FLAG_INT,    /* int in [min, max] */
    LK_FLAG_I64,    /* int64_t in [min, max]; bytes may end in K, M, G */
    LK_FLAG_FLOAT,  /* double in [min, max] */
    LK_FLAG_TEXT,   /* const char * */
    LK_FLAG_LIST,   /* const char *[LK_MAX_STOPS] with the count behind it; may be given again */
    LK_FLAG_CHOICE, /* int: value of the word in `words` ("off=1|low=2") */
    LK_FLAG_DRAFT,  /* int: auto = -1, else 0..7 */
    LK_FLAG_DEVICES,
};

struct lk_flag {
    const char *name, *alias, *meta;
    enum lk_flag_type type;
    int cmds;
    size_t at; /* offset in struct lk_opts */
    double min, max;
    const char *words, *help;
};

extern const struct lk_flag lk_flags[];
extern const size_t lk_flags_count;

#endif
