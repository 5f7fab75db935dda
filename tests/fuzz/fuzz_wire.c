/* Messages of the wire: the first byte picks the kind, the rest is a payload that nobody vouches for. */
#include "runtime/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct lk_arena a = {0};
    struct lk_wire_submit s;
    struct lk_wire_ready r;
    struct lk_wire_beat b;
    struct lk_event ev;
    const char *text;
    int code;
    if (!n) return 0;
    switch (data[0] % 5) {
    case 0: lk_wire_get_submit(&a, data + 1, n - 1, &s); break;
    case 1: lk_wire_get_ready(&a, data + 1, n - 1, &r); break;
    case 2: lk_wire_get_beat(data + 1, n - 1, &b); break;
    case 3: lk_wire_get_event(&a, data + 1, n - 1, &ev); break;
    case 4: lk_wire_get_failed(&a, data + 1, n - 1, &code, &text); break;
    }
    lk_arena_free(&a);
    return 0;
}
