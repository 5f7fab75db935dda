/* Host memory: see mem.h. The fail counter and the guard are per thread, so that a test that starves
 * one thread does not starve the worker pool. */
#include "base/mem.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local int64_t mem_fail_left; /* 0: off */
static _Thread_local int64_t mem_counted;
static _Thread_local const char *mem_phase;
static _Thread_local int mem_depth;

/* 1: this allocation must fail. */
static int mem_gate(void)
{
    mem_counted++;
#ifdef LK_DEBUG
    if (mem_depth > 0) {
        fprintf(stderr, "laoka: allocation inside %s: a step must not allocate\n", mem_phase);
        abort();
    }
#endif
    return mem_fail_left > 0 && --mem_fail_left == 0;
}

void *lk_malloc(size_t bytes)
{
    return mem_gate() ? NULL : malloc(bytes ? bytes : 1);
}

void *lk_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (lk_mul_size(n, size, &bytes) || mem_gate()) return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *lk_realloc(void *p, size_t bytes)
{
    return mem_gate() ? NULL : realloc(p, bytes ? bytes : 1);
}

void *lk_reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes;
    return lk_mul_size(n, size, &bytes) ? NULL : lk_realloc(p, bytes);
}

void *lk_aligned(size_t bytes)
{
    void *p = NULL;
    if (mem_gate() || bytes > SIZE_MAX - 64) return NULL;
    return posix_memalign(&p, 64, bytes ? bytes : 1) ? NULL : p;
}

char *lk_strndup(const char *s, size_t n)
{
    char *p = n == SIZE_MAX ? NULL : lk_malloc(n + 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *lk_strdup(const char *s)
{
    return lk_strndup(s, strlen(s));
}

void lk_free(void *p)
{
    free(p);
}

void lk_mem_fail_at(int64_t n)
{
    mem_fail_left = n;
    mem_counted = 0;
}

int64_t lk_mem_count(void)
{
    return mem_counted;
}

void lk_mem_guard_begin(const char *phase)
{
    mem_phase = phase;
    mem_depth++;
}

void lk_mem_guard_end(void)
{
    mem_depth--;
}

int lk_mem_guard_pause(void)
{
    int depth = mem_depth;
    mem_depth = 0;
    return depth;
}

void lk_mem_guard_resume(int depth)
{
    mem_depth = depth;
}

size_t lk_mem_resident(void)
{
    size_t all, resident;
    malloc_trim(0);
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    int n = fscanf(f, "%zu %zu", &all, &resident);
    fclose(f);
    return n == 2 ? resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

/* The number behind `key` in a file of lines; 0: not there ("max" of a control group is no number). */
static size_t number_find(const char *file, const char *key)
{
    char line[256];
    size_t v = 0;
    FILE *f = fopen(file, "re");
    while (f && !v && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), " %zu", &v) != 1) v = 0;
    if (f) fclose(f);
    return v;
}

size_t lk_mem_available(void)
{
    size_t free = number_find("/proc/meminfo", "MemAvailable:") << 10, most = number_find("/sys/fs/cgroup/memory.max", "");
    size_t used = most ? number_find("/sys/fs/cgroup/memory.current", "") : 0;
    if (most && most - (used < most ? used : most) < free) free = most - (used < most ? used : most);
    return free;
}

int lk_mul_size(size_t a, size_t b, size_t *out)
{
    return __builtin_mul_overflow(a, b, out) ? -1 : 0;
}

int lk_add_size(size_t a, size_t b, size_t *out)
{
    return __builtin_add_overflow(a, b, out) ? -1 : 0;
}

struct lk_arena_block {
    struct lk_arena_block *next;
    size_t used, cap;
    _Alignas(16) unsigned char data[];
};

void *lk_arena_alloc(struct lk_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    struct lk_arena_block *b = a->head;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = bytes > 16384 ? bytes : 16384;
        b = lk_malloc(sizeof *b + cap);
        if (!b) return NULL;
        b->used = 0;
        b->cap = cap;
        b->next = a->head;
        a->head = b;
        a->total += sizeof *b + cap;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return memset(p, 0, bytes);
}

char *lk_arena_strndup(struct lk_arena *a, const char *s, size_t n)
{
    char *p = n == SIZE_MAX ? NULL : lk_arena_alloc(a, n + 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

void lk_arena_free(struct lk_arena *a)
{
    while (a->head) {
        struct lk_arena_block *b = a->head;
        a->head = b->next;
        lk_free(b);
    }
    a->total = 0;
}
