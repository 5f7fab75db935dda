/* Host memory. Every allocation of laoka goes through here, so that tests can make the n-th one
 * fail, a step can be proven to allocate nothing, and sizes are checked before they are multiplied.
 * None of these abort: NULL means no memory (or a product that wraps). */
#ifndef LK_BASE_MEM_H
#define LK_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *lk_malloc(size_t bytes);
void *lk_calloc(size_t n, size_t size); /* zeroed; NULL when n*size wraps */
void *lk_realloc(void *p, size_t bytes);
void *lk_reallocarray(void *p, size_t n, size_t size);
void *lk_aligned(size_t bytes); /* 64-byte aligned, not zeroed; free with lk_free */
char *lk_strdup(const char *s);
char *lk_strndup(const char *s, size_t n);
void lk_free(void *p);

/* Tests: the n-th allocation from now (1 = the next) on this thread fails, once; 0 turns it off. */
void lk_mem_fail_at(int64_t n);
/* Allocations counted on this thread since the last call of lk_mem_fail_at. */
int64_t lk_mem_count(void);
/* Step guard: between begin and end an allocation on this thread aborts with the phase's name
 * in debug builds (LK_DEBUG); release builds count it. Nests. */
void lk_mem_guard_begin(const char *phase);
void lk_mem_guard_end(void);
/* Lets a caller's own code (a grammar) allocate inside a step: pause returns what resume takes. */
int lk_mem_guard_pause(void);
void lk_mem_guard_resume(int depth);

/* Bytes of this process in memory now, mapped files included, freed blocks given back first; 0: the system does not say. */
size_t lk_mem_resident(void);
/* Bytes that may be asked for now without swapping, within the limit of this process's control group; 0: the system does not say. */
size_t lk_mem_available(void);

/* Checked products: 0 and *out set, or -1 when the result does not fit. */
int lk_mul_size(size_t a, size_t b, size_t *out);
int lk_add_size(size_t a, size_t b, size_t *out);

/* An arena: many small objects that die together. Zero-initialised is valid; free accepts it. */
struct lk_arena {
    struct lk_arena_block *head;
    size_t total; /* bytes asked from lk_malloc */
};
void *lk_arena_alloc(struct lk_arena *a, size_t bytes); /* 16-byte aligned, zeroed; NULL: no memory */
char *lk_arena_strndup(struct lk_arena *a, const char *s, size_t n);
void lk_arena_free(struct lk_arena *a);

#endif
