/* How the next token is chosen: plain numbers, shared by requests and the sampler. */
#ifndef LK_RUNTIME_SAMPLING_H
#define LK_RUNTIME_SAMPLING_H

#include <stdint.h>

struct lk_bias {
    int32_t id;
    float add;
};

/* Order of processing: repetition, presence, frequency penalty and bias on logits; temperature; top-k; top-p; min-p; draw. */
struct lk_sampling {
    float temp;        /* 0: greedy */
    float top_p, min_p;/* 1 and 0: off */
    int top_k;         /* 0: off */
    float presence, frequency, repetition; /* 0, 0, 1: off; over generated tokens; repetition over prompt too */
    uint64_t seed;     /* counter-based generator: draw i of a request depends on (seed, position) only */
    const struct lk_bias *bias;
    int n_bias;
};

#endif
