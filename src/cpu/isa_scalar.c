/* The kernels for any processor: four lanes in the compiler's own vectors. */
#include "cpu/k_table.h"

static int usable(void)
{
    return 1;
}

const struct cpu_kern cpu_kern_scalar = KERN_TABLE("scalar", usable);
