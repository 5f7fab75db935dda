/* Is there an NCCL, and does it hold code for this card? Distributions ship builds that dropped old cards. */
#ifndef LK_PROBE_NCCL_H
#define LK_PROBE_NCCL_H

#include <stddef.h>

struct lk_nccl_facts {
    int found, version;     /* 22105 = 2.21.5 */
    char path[256];
    int n_archs, archs[32]; /* compute capability x 10 of the machine code inside, sorted */
    int n_ptx, ptx[32];     /* and of PTX, which newer cards can compile */
};
/* lib: NULL for libnccl.so.2. */
void lk_nccl_read(struct lk_nccl_facts *f, const char *lib);
/* 1: machine code of the card's major version and at most its minor, or PTX not newer than it. */
int lk_nccl_runs(const struct lk_nccl_facts *f, int sm);
/* The architectures in the CUDA fat binaries of a file's bytes (documented container: magic 0xBA55ED50, then entries with
 * kind, header size, payload size and architecture). Bounded by n; damaged containers end the search. */
void lk_fatbin_archs(struct lk_nccl_facts *f, const unsigned char *p, size_t n);

#endif
