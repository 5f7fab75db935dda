/* What the device contract needs without any backend: the answers of a build that has no GPU code. */
#include "dev/dev.h"
#include "dev/bridge.h"
#include "dev/measure.h"
#include "dev/prof.h"

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

int lk_cuda_profile_on(struct lk_dev *d, struct lk_err *e)
{
    return lk_fail(e, LK_EINPUT, "this program was built without GPU code");
}

int lk_cuda_profile_read(struct lk_dev *d, struct lk_prof_row *rows, int cap)
{
    return 0;
}

void lk_cuda_profile_off(struct lk_dev *d)
{
}

int lk_cuda_measure_read(int index, double *gbs, struct lk_err *e)
{
    *gbs = 0;
    return lk_fail(e, LK_EINPUT, "this program was built without GPU code; build it with `make CUDA=1` to measure");
}

int lk_cuda_measure(int index, struct lk_gpu_measure *m, struct lk_err *e)
{
    *m = (struct lk_gpu_measure){0};
    return lk_fail(e, LK_EINPUT, "this program was built without GPU code; build it with `make CUDA=1` to measure");
}

int lk_cuda_bridge_open(struct lk_bridge **out, struct lk_dev *d, int rank, int n, void *shared, size_t most, struct lk_err *e)
{
    *out = NULL;
    return lk_fail(e, LK_EINPUT, "this program was built without GPU code; build it with `make CUDA=1`");
}

int lk_cuda_measure_peer(int from, int to, struct lk_peer_measure *m, struct lk_err *e)
{
    *m = (struct lk_peer_measure){0};
    return lk_fail(e, LK_EINPUT, "this program was built without GPU code; build it with `make CUDA=1` to measure");
}
#endif
