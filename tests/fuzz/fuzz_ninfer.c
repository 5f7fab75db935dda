/* Any bytes as a .ninfer file. The first byte chooses the framing: 2 and 3 make the rest a directory in front of 1 MB of payload, zeros or (with 128
 * added) bytes of 0x3f, so that its JSON is what is fuzzed; anything else makes the rest the file. Rows of what was accepted are decoded and
 * repacked. */
#include "artifact/artifact.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HOLE (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int framed(int fd, const uint8_t *data, size_t size)
{
    static uint8_t threes[HOLE];
    int version = data[0] & 127;
    uint64_t len = size - 1, head = version == 2 ? 16 : 32, at = (head + len + 4095) / 4096 * 4096;
    char magic[8] = {'N', 'I', 'N', 'F', 'E', 'R', 0, (char)version};
    if (version != 2 && version != 3) return write(fd, data + 1, size - 1) == (ssize_t)(size - 1) ? 0 : -1;
    if (pwrite(fd, magic, 8, 0) != 8 || pwrite(fd, &len, 8, 8) != 8 || pwrite(fd, data + 1, len, (off_t)head) != (ssize_t)len) return -1;
    memset(threes, 0x3f, sizeof threes); /* as a float 0.75, as a scale a number */
    return data[0] & 128 ? (int)(pwrite(fd, threes, HOLE, (off_t)at) != HOLE) : ftruncate(fd, (off_t)(at + HOLE));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lk_log_quiet(2);
    if (!size) return 0;
    char path[64], link[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(link, sizeof link, "/tmp/laoka-fuzz-%d.ninfer", (int)getpid());
    unlink(link);
    struct lk_artifact *a = NULL;
    struct lk_err e = {0};
    if (!framed(fd, data, size) && !symlink(path, link) && !lk_artifact_open(&a, link, &e)) {
        for (size_t i = 0; i < lk_artifact_count(a); i++) {
            const struct lk_weight *w = &lk_artifact_at(a, i)->w;
            struct lk_weight ready;
            void *own;
            float out[64];
            int64_t n = w->k < 64 ? w->k : 64;
            lk_weight_row(w, w->n - 1, w->k - n, n, out);
            if (lk_repack(w, &ready, &own, NULL, &e)) continue;
            lk_weight_row(&ready, w->n - 1, w->k - n, n, out);
            lk_free(own);
        }
    }
    lk_artifact_close(a);
    unlink(link);
    close(fd);
    return 0;
}
