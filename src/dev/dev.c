/* What the device contract needs without any backend: the answers of a build that has no GPU code. */
#include "dev/dev.h"

#ifndef LK_CUDA
int lk_cuda_open(struct lk_dev **out, int index, const char *image, struct lk_err *e)
{
    *out = NULL;
    return lk_fail(e, LK_EINPUT, "cuda:%d: this program was built without GPU code; build it with `make CUDA=1`", index);
}

int lk_cuda_count(void)
{
    return 0;
}
#endif
