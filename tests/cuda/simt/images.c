/* The list of images of a program without any: its kernels are found in the libcuda that runs them (simt.c). */
#include "cuda/cuda_dev.h"

static const unsigned char nothing[1];
const struct cu_image cu_images[] = {{"simt", "sm_70", nothing}, {0}};
const char cu_image_kinds[] = "sm_70";
