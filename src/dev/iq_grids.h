/* Codebooks of the GGUF IQ2 and IQ3 types: entry idx, value j. See iq_grids.c for the packing. */
#ifndef LK_DEV_IQ_GRIDS_H
#define LK_DEV_IQ_GRIDS_H

#include <stdint.h>

extern const uint16_t lk_iq2xxs_grid[256], lk_iq2xs_grid[512], lk_iq2s_grid[1024], lk_iq3xxs_grid[256], lk_iq3s_grid[512];

static inline int lk__iq2_value(uint16_t entry, int j)
{
    static const uint8_t v[4] = {0x08, 0x19, 0x2b, 0};
    return v[entry >> j * 2 & 3];
}

static inline int lk_iq2xxs_value(int idx, int j)
{
    return lk__iq2_value(lk_iq2xxs_grid[idx], j);
}

static inline int lk_iq2xs_value(int idx, int j)
{
    return lk__iq2_value(lk_iq2xs_grid[idx], j);
}

static inline int lk_iq2s_value(int idx, int j)
{
    return lk__iq2_value(lk_iq2s_grid[idx], j);
}

static inline int lk_iq3xxs_value(int idx, int j)
{
    static const uint8_t v[8] = {0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e};
    return v[lk_iq3xxs_grid[idx] >> j * 3 & 7];
}

static inline int lk_iq3s_value(int idx, int j)
{
    return 1 + 2 * (lk_iq3s_grid[idx] >> j * 3 & 7);
}

#endif
