/* NCCL facts: see nccl.h. */
#include "probe/nccl.h"

#include "base/file.h"
#include "base/num.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static void arch_add(int *list, int *n, int arch)
{
    int at = 0;
    while (at < *n && list[at] < arch) at++;
    if ((at < *n && list[at] == arch) || *n == 32) return;
    memmove(list + at + 1, list + at, (size_t)(*n - at) * sizeof *list);
    list[at] = arch;
    (*n)++;
}

/* Entries of one container of `size` bytes after its header. */
static void entries_read(struct lk_nccl_facts *f, const unsigned char *p, size_t size)
{
    enum { PTX = 1, ELF = 2, ENTRY_MIN = 32 };
    for (size_t at = 0; at + ENTRY_MIN <= size;) {
        unsigned kind = lk_get16(p + at), head = lk_get32(p + at + 4), arch = lk_get32(p + at + 28);
        uint64_t payload = lk_get64(p + at + 8);
        if ((kind != PTX && kind != ELF) || head < ENTRY_MIN || head > size - at || payload > size - at - head) return;
        if (arch >= 20 && arch < 1000) {
            if (kind == ELF)
                arch_add(f->archs, &f->n_archs, (int)arch);
            else
                arch_add(f->ptx, &f->n_ptx, (int)arch);
        }
        at += head + (size_t)payload;
    }
}

void lk_fatbin_archs(struct lk_nccl_facts *f, const unsigned char *p, size_t n)
{
    static const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
    for (size_t at = 0; at + 16 <= n;) {
        const unsigned char *q = memmem(p + at, n - at, magic, 4);
        if (!q || (size_t)(p + n - q) < 16) return;
        size_t room = (size_t)(p + n - q), head = lk_get16(q + 6);
        uint64_t size = lk_get64(q + 8);
        at = (size_t)(q - p) + 4;
        if (head < 16 || head > room || size > room - head) continue;
        entries_read(f, q + head, (size_t)size);
        at = (size_t)(q - p) + head + (size_t)size;
    }
}

void lk_nccl_read(struct lk_nccl_facts *f, const char *lib)
{
    memset(f, 0, sizeof *f);
    void *h = dlopen(lib ? lib : "libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (!h) return;
    f->found = 1;
    int (*version)(int *) = NULL;
    void *sym = dlsym(h, "ncclGetVersion");
    memcpy(&version, &sym, sizeof sym);
    if (version) version(&f->version);
    struct link_map *map = NULL;
    struct lk_map m;
    if (!dlinfo(h, RTLD_DI_LINKMAP, &map) && map) {
        snprintf(f->path, sizeof f->path, "%s", map->l_name);
        if (!lk_map_open(&m, f->path, NULL)) {
            lk_fatbin_archs(f, m.data, m.size);
            lk_map_close(&m);
        }
    }
    dlclose(h);
}

int lk_nccl_runs(const struct lk_nccl_facts *f, int sm)
{
    for (int i = 0; i < f->n_archs; i++)
        if (f->archs[i] / 10 == sm / 10 && f->archs[i] <= sm) return 1;
    for (int i = 0; i < f->n_ptx; i++)
        if (f->ptx[i] <= sm) return 1;
    return 0;
}
