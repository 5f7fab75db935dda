/* Host facts: see cpu_facts.h. */
#include "probe/cpu_facts.h"

#include "base/mem.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define MEASURE_SECONDS 2.0 /* of all points together, without the first touch of the buffers */

/* First line of `file` that begins with key: what follows ':' , trimmed, into out. */
static void line_find(const char *file, const char *key, char *out, size_t cap)
{
    char line[512];
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f)) {
        char *p = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) || !p) continue;
        for (p++; isspace((unsigned char)*p); p++) {}
        size_t n = strlen(p);
        while (n && isspace((unsigned char)p[n - 1])) p[--n] = 0;
        snprintf(out, cap, "%s", p);
        break;
    }
    if (f) fclose(f);
}

static int numa_count(void)
{
    int n = 0;
    DIR *d = opendir("/sys/devices/system/node");
    for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, "node", 4) && isdigit((unsigned char)e->d_name[4]);
    if (d) closedir(d);
    return n ? n : 1;
}

static void isa_words(char *out, size_t cap)
{
    out[0] = 0;
#if defined(__x86_64__)
    unsigned a, b, c = 0, d; /* F16C by its CPUID bit: clang 14's builtin does not know the word */
    __get_cpuid(1, &a, &b, &c, &d);
    const struct {
        int have;
        const char *word;
    } isa[] = {
        {__builtin_cpu_supports("avx2"), "avx2"},
        {__builtin_cpu_supports("fma"), "fma"},
        {c >> 29 & 1, "f16c"},
        {__builtin_cpu_supports("avx512f"), "avx512f"},
        {__builtin_cpu_supports("avx512bw"), "avx512bw"},
        {__builtin_cpu_supports("avx512vnni"), "avx512vnni"},
        {__builtin_cpu_supports("avx512bf16"), "avx512bf16"},
    };
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++) {
        size_t n = strlen(out);
        if (isa[i].have) snprintf(out + n, cap - n, "%s%s", n ? " " : "", isa[i].word);
    }
#endif
    if (!out[0]) snprintf(out, cap, "scalar");
}

void lk_cpu_facts_read(struct lk_cpu_facts *f)
{
    char text[64] = "";
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "unknown processor");
    line_find("/proc/cpuinfo", "model name", f->name, sizeof f->name);
    isa_words(f->isa, sizeof f->isa);
    f->cores = lk_cores();
    f->numa_nodes = numa_count();
    line_find("/proc/meminfo", "MemTotal", text, sizeof text);
    f->mem_total = atof(text) * 1024;
    f->mem_available = (double)lk_mem_available();
}

static int threads_next(int t, int cores)
{
    return t * 2 < cores ? t * 2 : cores;
}

void lk_cpu_facts_measure(struct lk_cpu_facts *f)
{
    int points = 1;
    for (int t = 1; t < f->cores; t = threads_next(t, f->cores)) points++;
    for (int t = 1; f->n_points < LK_BW_POINTS; t = threads_next(t, f->cores)) {
        struct lk_pool *p = lk_pool_new(t);
        if (!p) return;
        f->points[f->n_points].threads = t;
        if (!lk_bandwidth_measure(p, MEASURE_SECONDS / points / 2, &f->points[f->n_points].bw)) f->n_points++;
        lk_pool_free(p);
        if (t == f->cores) return;
    }
}

double lk_cpu_facts_read_gbs(const struct lk_cpu_facts *f)
{
    double best = 0;
    for (int i = 0; i < f->n_points; i++)
        if (f->points[i].bw.read_best_gbs > best) best = f->points[i].bw.read_best_gbs;
    return best;
}
