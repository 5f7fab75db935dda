/* Loads a linear: chooses the device format of each part, joins neighbours of one format to a segment, sends rows through pinned
 * staging to the device and lets a pack kernel lay them out (pack.h). Owns the packed copy; the source may go away afterwards.
 *
 * Formats with a kernel of their own: BF16, F16, F32 (as f16 under a power of two a row: BF16's 8 bits are exact), FP8 by block,
 * channel or tensor, NVFP4, 8-bit by row or group, 4-bit by group, as files hold them; GGUF blocks, GPTQ and AWQ with a scale for 32 columns or
 * more, laid out anew on the host (cuda_repack.c). Every other format is decoded on the host, row by row (lk_weight_row), and stored as F16:
 * right, but 16 bits a weight. */
#include "cuda/cuda_mat.h"

#include "base/mem.h"

#include <string.h>

#define CHUNK_BYTES ((size_t)48 << 20) /* raw rows on the device at a time */
#define SRC_NONE 0                     /* source is decoded to f32 on the host */

/* How one part will be stored. */
struct plan {
    int fmt;
    enum lk_dtype raw_type;   /* F16 format: type of the raw rows; F32 with `decode`: made on the host */
    int decode, repack;       /* rows are made on the host: values as f32; codes, scales and mins */
    enum lk_dtype scale_type; /* NONE: the weight's own */
    size_t raw_row, scale_row; /* bytes a row in the file */
    int64_t scale_n;           /* scales a row */
    int xor_sign, blk_units;   /* blk_units 0: no block scales */
};

static int unit_bytes(int fmt)
{
    static const int b[CU_FMT_COUNT] = {2048, 1024, 1088, 1024, 576, 576, 640};
    return b[fmt];
}

static int scale_ok(const struct lk_weight *w)
{
    return w->scale_dtype == LK_DT_F32 || w->scale_dtype == LK_DT_F16 || w->scale_dtype == LK_DT_BF16;
}

static int fp8_plan(struct plan *p, const struct lk_weight *w)
{
    int channel = w->block_k >= w->k, rows = w->block_n == 1 || w->block_n >= w->n;
    p->fmt = CU_FP8;
    p->raw_row = (size_t)w->k;
    if (channel && (rows || w->block_n > 0)) return 1; /* one scale a row or a run of rows: epilogue */
    if (w->block_k % CU_KU || w->block_n % CU_TILE) return 0;
    p->blk_units = (int)(w->block_k / CU_KU);
    return 1;
}

static int group_plan(struct plan *p, const struct lk_weight *w, int fmt, size_t raw_row)
{
    if (w->gidx || w->zero || !scale_ok(w) || w->group % CU_KU || w->group <= 0) return 0;
    p->fmt = fmt;
    p->raw_row = raw_row;
    p->scale_n = (w->k + w->group - 1) / w->group;
    p->scale_row = (size_t)p->scale_n * lk_dtype_bytes(w->scale_dtype);
    return 1;
}

static int int8_plan(struct plan *p, const struct lk_weight *w, size_t raw_row, int xor_sign)
{
    p->xor_sign = xor_sign;
    if (w->group < w->k) return group_plan(p, w, CU_I8G, raw_row);
    if (w->gidx || w->zero) return 0;
    p->fmt = CU_I8;
    p->raw_row = raw_row;
    return 1;
}

static struct plan plan_of(const struct lk_weight *w)
{
    struct plan p = {0};
    int ok = 0;
    switch (w->fmt) {
    case LK_FMT_F32: p.raw_type = LK_DT_F32, p.raw_row = (size_t)w->k * 4, ok = 1; break;
    case LK_FMT_F16: p.raw_type = LK_DT_F16, p.raw_row = (size_t)w->k * 2, ok = 1; break;
    case LK_FMT_BF16: p.raw_type = LK_DT_BF16, p.raw_row = (size_t)w->k * 2, ok = 1; break;
    case LK_FMT_FP8: ok = fp8_plan(&p, w); break;
    case LK_FMT_NVFP4:
        p.fmt = CU_NVFP4, p.raw_row = (size_t)w->k / 2, p.scale_n = w->k / 16, p.scale_row = (size_t)w->k / 16;
        ok = w->k % 16 == 0;
        break;
    case LK_FMT_I8: ok = int8_plan(&p, w, (size_t)w->k, 0x80); break;
    case LK_FMT_CT8: ok = int8_plan(&p, w, (size_t)((w->k + 3) / 4 * 4), 0); break;
    case LK_FMT_Q4: ok = group_plan(&p, w, CU_Q4, (size_t)w->k / 2) && w->k % 2 == 0; break;
    case LK_FMT_CT4: ok = group_plan(&p, w, CU_Q4, (size_t)((w->k + 7) / 8 * 4)); break;
    default: break;
    }
    if (ok) return p;
    int fmt = cu_repack_fmt(w);
    if (fmt >= 0) {
        size_t scales = (size_t)(w->k / CU_KU);
        return (struct plan){.fmt = fmt, .repack = 1, .raw_row = (size_t)(fmt == CU_I8G ? w->k : w->k / 2), .scale_n = (int64_t)scales,
                             .scale_type = LK_DT_F32, .scale_row = scales * sizeof(float) * (fmt == CU_Q4M ? 2 : 1)};
    }
    return (struct plan){.fmt = CU_F16, .raw_type = LK_DT_F32, .raw_row = (size_t)w->k * 4, .decode = 1};
}

static int same_segment(const struct plan *a, const struct plan *b)
{
    return a->fmt == b->fmt && a->blk_units == b->blk_units;
}

/* Everything one load carries about. */
struct job {
    struct cu_dev *d;
    struct cu_mat *m;
    const struct lk_weight *w;
    struct plan plan[CU_MAX_PARTS];
    void *tmp;          /* device: raw rows of a chunk, then their scales */
    float *decoded;     /* host: rows made there (decode, repack), and one row of values behind them */
    size_t decoded_bytes;
    float *row_scale[CU_MAX_PARTS]; /* host image, a segment */
    struct lk_err *e;
};

static void *own(struct job *j, size_t bytes)
{
    void *p = cu_alloc(j->d, bytes, "weights");
    if (!p) {
        if (!j->d->failed) lk_fail(j->e, LK_ENOMEM, "cuda:%d: no room for %zu bytes of weights", j->d->index, bytes);
        return NULL;
    }
    j->m->owned[j->m->n_owned++] = p;
    return p;
}

static float nvfp4_global(const struct lk_weight *w)
{
    return (w->global_div ? 1.0f / w->global : w->global) * 128.0f; /* codes hold scale * 2^7 * e2m1 * 2^-14 */
}

/* The row scale the host knows: of formats whose epilogue carries it. */
static float host_row_scale(const struct lk_weight *w, const struct plan *p, int64_t row)
{
    switch (p->fmt) {
    case CU_NVFP4: return nvfp4_global(w);
    case CU_I8: return lk_dtype_get(w->scale_dtype, w->scale, row);
    case CU_FP8: return 256.0f * (p->blk_units ? 1.0f : lk_dtype_get(w->scale_dtype, w->scale, row / w->block_n));
    default: return 1.0f;
    }
}

/* Rows that the host makes: codes first, then, as on the device, scales and mins. */
static void make_rows(struct job *j, const struct lk_weight *w, const struct plan *p, int64_t row0, int64_t rows, size_t bytes)
{
    if (p->decode) {
        for (int64_t r = 0; r < rows; r++) lk_weight_row(w, row0 + r, 0, w->k, j->decoded + r * w->k);
        return;
    }
    float *values = j->decoded + j->decoded_bytes / sizeof(float), *scale = j->decoded + bytes / sizeof(float);
    float *min = p->fmt == CU_Q4M ? scale + rows * p->scale_n : NULL;
    for (int64_t r = 0; r < rows; r++)
        cu_repack_row(w, row0 + r, p->fmt, values, (uint8_t *)j->decoded + (size_t)r * p->raw_row, scale + r * p->scale_n,
                      min ? min + r * p->scale_n : NULL);
}

/* Rows [row0, row0 + rows) of a part to the device; returns where their codes and scales lie there. */
static int send_rows(struct job *j, int part, int64_t row0, int64_t rows, char *at, const void **raw, const void **scale)
{
    const struct lk_weight *w = &j->w[part];
    const struct plan *p = &j->plan[part];
    size_t bytes = (size_t)rows * p->raw_row, sbytes = (size_t)rows * p->scale_row;
    const char *src = (const char *)w->data + (size_t)row0 * p->raw_row, *ssrc = (const char *)w->scale + (size_t)row0 * p->scale_row;
    if (p->decode || p->repack) {
        make_rows(j, w, p, row0, rows, bytes);
        src = (const char *)j->decoded;
        ssrc = src + bytes;
    }
    j->d->dev.upload(&j->d->dev, at, src, bytes);
    *raw = at;
    *scale = at + (bytes + 255) / 256 * 256;
    if (sbytes) j->d->dev.upload(&j->d->dev, (void *)(uintptr_t)*scale, ssrc, sbytes);
    return j->d->failed;
}

static void launch_pack(struct job *j, struct cu_pack_par *q, const struct plan *p)
{
    int of_scale = p->fmt != CU_F16, e0 = of_scale ? 6 : 13;
    if (p->fmt == CU_F16 || p->fmt == CU_I8G || p->fmt == CU_Q4 || p->fmt == CU_Q4M)
        cu_launch(j->d, "pack_rowmax", (struct cu_grid){.gx = (unsigned)q->tiles * CU_TILE, .bx = 128},
                  CU_ARGS(q, &of_scale, &e0));
    int fmt = p->fmt;
    cu_launch(j->d, "pack_units", (struct cu_grid){.gx = cu_div(q->units, 8), .gy = (unsigned)q->tiles, .bx = 32, .by = 8},
              CU_ARGS(q, &fmt));
}

/* Packs one part (or, for gate_up, both) chunk by chunk. */
static int pack_part(struct job *j, int part, int gate_up)
{
    const struct lk_weight *w = &j->w[part];
    const struct plan *p = &j->plan[part];
    struct cu_part *cp = &j->m->parts[part];
    struct cu_seg *s = &j->m->segs[cp->seg];
    int rows_tile = gate_up ? 16 : CU_TILE, tiles = (int)((w->n + rows_tile - 1) / rows_tile);
    size_t per_row = p->raw_row + p->scale_row, per_tile = per_row * CU_TILE;
    int step = (int)(CHUNK_BYTES / per_tile);
    if (step < 1) step = 1;
    if (step > 32768) step = 32768;
    for (int t0 = 0; t0 < tiles && !j->d->failed; t0 += step) {
        int n_tiles = tiles - t0 < step ? tiles - t0 : step;
        int64_t row0 = (int64_t)t0 * rows_tile, rows = (int64_t)n_tiles * rows_tile;
        if (row0 + rows > w->n) rows = w->n - row0;
        struct cu_pack_par q = {.dst = (unsigned char *)(uintptr_t)s->data, .row_scale = (float *)(uintptr_t)s->row_scale,
                                .raw_stride = (int64_t)p->raw_row, .scale_stride = p->scale_n, .gate_up = gate_up,
                                .src_row0 = (int32_t)row0, .n = {(int32_t)w->n, (int32_t)w->n}, .k = (int32_t)w->k,
                                .tile0 = t0, .tiles = n_tiles, .units = s->units, .part_tile0 = cp->tile0,
                                .unit_bytes = s->unit_bytes, .src_type = p->raw_type, .scale_type = p->scale_type ? p->scale_type : w->scale_dtype,
                                .group = p->repack ? CU_KU : (int32_t)w->group, .xor_sign = p->xor_sign};
        if (p->fmt == CU_F16) q.raw_stride = w->k;
        if (send_rows(j, part, row0, rows, j->tmp, &q.raw[0], &q.scale[0])) return -1;
        size_t half = (CHUNK_BYTES + per_tile) / 2 / 256 * 256 + 4096;
        if (gate_up && send_rows(j, part + 1, row0, rows, (char *)j->tmp + half, &q.raw[1], &q.scale[1])) return -1;
        for (int i = 0; i < 2 && p->fmt == CU_Q4M; i++)
            if (q.scale[i]) q.zero[i] = (const float *)q.scale[i] + rows * p->scale_n;
        launch_pack(j, &q, p);
    }
    return 0;
}

/* FP8 block scales as [tiles][n_blk][2]. */
static int block_scales(struct job *j, struct cu_seg *s, int seg)
{
    if (!s->n_blk) return 0;
    size_t bytes = (size_t)s->tiles * (size_t)s->n_blk * 2 * sizeof(float);
    float *h = lk_calloc(1, bytes), *dst = own(j, bytes);
    if (!h || !dst) {
        lk_free(h);
        return h ? -1 : lk_fail(j->e, LK_ENOMEM, "cuda: out of memory");
    }
    for (int i = 0; i < j->m->head.n_parts; i++) {
        const struct lk_weight *w = &j->w[i];
        const struct cu_part *cp = &j->m->parts[i];
        if (cp->seg != seg) continue;
        int glu = j->m->head.kind == LK_MAT_GATE_UP, per = glu ? 16 : 32;
        for (int64_t r = 0; r < w->n; r += 16) {
            int64_t tile = cp->tile0 + r / per, half = glu ? i : r / 16 % 2, brow = r / w->block_n;
            for (int b = 0; b < s->n_blk; b++)
                h[(tile * s->n_blk + b) * 2 + half] = lk_dtype_get(w->scale_dtype, w->scale, brow * s->n_blk + b);
        }
    }
    j->d->dev.upload(&j->d->dev, dst, h, bytes);
    s->blk_scale = dst;
    lk_free(h);
    return 0;
}

/* Sizes, row scales and column table of segment `seg`, whose parts are [p0, p1). */
static int segment_make(struct job *j, int seg, int p0, int p1)
{
    struct cu_mat *m = j->m;
    struct cu_seg *s = &m->segs[seg];
    const struct lk_weight *w = &j->w[p0];
    int glu = m->head.kind == LK_MAT_GATE_UP;
    s->fmt = j->plan[p0].fmt;
    s->k = (int32_t)w->k;
    s->units = (int32_t)((w->k + 2 * CU_KU - 1) / (2 * CU_KU) * 2); /* even: a stage of a 4-bit format is two */
    s->unit_bytes = unit_bytes(s->fmt);
    s->blk_units = j->plan[p0].blk_units;
    s->n_blk = s->blk_units ? (int32_t)((w->k + w->block_k - 1) / w->block_k) : 0;
    for (int i = p0; i < p1; i++) {
        m->parts[i].seg = seg;
        m->parts[i].tile0 = glu ? 0 : s->tiles;
        if (!glu || i == p0) s->tiles += (int32_t)((j->w[i].n + (glu ? 16 : CU_TILE) - 1) / (glu ? 16 : CU_TILE));
        s->n += (int32_t)j->w[i].n;
    }
    if ((int64_t)s->tiles * s->units > INT32_MAX)
        return lk_fail(j->e, LK_EINPUT, "cuda: a linear of %d x %d has more than 2^31 pieces of 32 x 32", s->n, s->k);
    size_t rows = (size_t)s->tiles * CU_TILE, bytes = (size_t)s->tiles * (size_t)s->units * (size_t)s->unit_bytes;
    float *rs = j->row_scale[seg] = lk_calloc(rows, sizeof(float));
    int32_t *tc = lk_calloc((size_t)s->tiles * 2, sizeof(int32_t));
    s->data = own(j, bytes);
    s->row_scale = s->data ? own(j, rows * sizeof(float)) : NULL;
    s->tile_col = s->row_scale ? own(j, (size_t)s->tiles * 8) : NULL;
    if (!rs || !tc || !s->tile_col) {
        lk_free(tc);
        return lk_fail(j->e, LK_ENOMEM, "cuda:%d: no room for a linear of %zu bytes", j->d->index, bytes);
    }
    for (int i = p0; i < p1; i++) {
        const struct cu_part *cp = &m->parts[i];
        for (int64_t r = 0; r < j->w[i].n; r++) {
            int64_t at = glu ? r / 16 * 32 + (i - p0) * 16 + r % 16 : cp->tile0 * CU_TILE + r;
            rs[at] = host_row_scale(&j->w[i], &j->plan[i], r);
        }
        for (int64_t t = 0; !glu && t * CU_TILE < j->w[i].n; t++) {
            tc[2 * (cp->tile0 + t)] = (int32_t)(cp->col + t * CU_TILE);
            tc[2 * (cp->tile0 + t) + 1] = (int32_t)(j->w[i].n - t * CU_TILE < CU_TILE ? j->w[i].n - t * CU_TILE : CU_TILE);
        }
    }
    j->d->dev.upload(&j->d->dev, (void *)(uintptr_t)s->row_scale, rs, rows * sizeof(float));
    j->d->dev.upload(&j->d->dev, (void *)(uintptr_t)s->tile_col, tc, (size_t)s->tiles * 8);
    lk_free(tc);
    m->head.bytes += bytes + rows * sizeof(float);
    return block_scales(j, s, seg);
}

/* The largest weight a part can hold, from its row scales: sets the power of two that a wide product uses. */
static int part_range(struct job *j, int seg, int p0, int p1)
{
    struct cu_seg *s = &j->m->segs[seg];
    static const float top[CU_FMT_COUNT] = {16384, 127, 127 * 128, 1.75f, 21, 8 * 128, 31 * 128}; /* Q4M: a min is at most 16 * 128 */
    size_t rows = (size_t)s->tiles * CU_TILE;
    if (j->d->dev.download(&j->d->dev, j->row_scale[seg], s->row_scale, rows * sizeof(float), j->e)) return LK_EDEVICE;
    float most = 0, blk = 1;
    for (size_t r = 0; r < rows; r++) most = j->row_scale[seg][r] > most ? j->row_scale[seg][r] : most;
    if (s->n_blk) {
        blk = 0;
        for (int i = p0; i < p1; i++) {
            int64_t n = (j->w[i].n + j->w[i].block_n - 1) / j->w[i].block_n * s->n_blk;
            for (int64_t b = 0; b < n; b++) {
                float v = lk_dtype_get(j->w[i].scale_dtype, j->w[i].scale, b);
                blk = v > blk ? v : blk;
            }
        }
    }
    most *= top[s->fmt] * blk;
    float mul = 1;
    while (most > 0 && most * mul < 4096 && mul < 0x1p60f) mul *= 2;
    while (most * mul > 16384 && mul > 0x1p-60f) mul /= 2;
    for (int i = p0; i < p1; i++) {
        const struct plan *p = &j->plan[i];
        const struct lk_weight *w = &j->w[i];
        int one = p->fmt == CU_NVFP4 || (p->fmt == CU_FP8 && !p->blk_units && w->block_n >= w->n);
        j->m->parts[i].mul = one ? 0 : mul;
        j->m->parts[i].one_scale = one ? host_row_scale(w, p, 0) : 1;
    }
    return 0;
}

static int refuse(const struct lk_weight *parts, int n_parts, enum lk_mat_kind kind, struct lk_err *e)
{
    if (n_parts < 1 || n_parts > CU_MAX_PARTS) return lk_fail(e, LK_EINPUT, "cuda: a linear of %d parts (1 to %d)", n_parts, CU_MAX_PARTS);
    int64_t n = 0;
    for (int i = 0; i < n_parts; i++) {
        const struct lk_weight *w = &parts[i];
        n += w->n;
        if (w->k != parts[0].k) return lk_fail(e, LK_EINPUT, "cuda: parts of one linear have %lld and %lld columns", (long long)parts[0].k, (long long)w->k);
        if (w->n < 1 || w->k < 1 || n > 1 << 30 || w->k > 1 << 20)
            return lk_fail(e, LK_EINPUT, "cuda: a linear of %lld x %lld is out of range", (long long)w->n, (long long)w->k);
        if (w->k % (2 * CU_KU) && w->k > CU_ODD_K)
            return lk_fail(e, LK_EINPUT, "cuda: a linear of %lld columns: above %d the kernels take multiples of 64", (long long)w->k, CU_ODD_K);
    }
    if (kind == LK_MAT_GATE_UP && (n_parts != 2 || parts[0].n != parts[1].n))
        return lk_fail(e, LK_EINPUT, "cuda: gate and up must be two matrices of one shape");
    return 0;
}

static int load(struct job *j)
{
    struct cu_mat *m = j->m;
    int glu = m->head.kind == LK_MAT_GATE_UP, n = m->head.n_parts;
    for (int i = 0; i < n; i++) j->plan[i] = plan_of(&j->w[i]);
    if (glu && (!same_segment(&j->plan[0], &j->plan[1]) || j->plan[0].raw_type != j->plan[1].raw_type || j->plan[0].scale_row != j->plan[1].scale_row))
        for (int i = 0; i < 2; i++)
            j->plan[i] = (struct plan){.fmt = CU_F16, .raw_type = LK_DT_F32, .raw_row = (size_t)j->w[i].k * 4, .decode = 1};
    size_t most = 0;
    int col = 0, decode = 0;
    for (int i = 0; i < n; i++) {
        size_t per_tile = (j->plan[i].raw_row + j->plan[i].scale_row) * CU_TILE;
        if (per_tile > most) most = per_tile;
        decode |= j->plan[i].decode | j->plan[i].repack;
        m->parts[i].seg = -1; /* until its segment is made */
        m->parts[i].col = col;
        m->parts[i].n = (int)j->w[i].n;
        col += (int)j->w[i].n;
    }
    j->tmp = cu_alloc(j->d, CHUNK_BYTES + 2 * most + 65536, "staging");
    j->decoded_bytes = CHUNK_BYTES + 2 * most;
    if (decode) j->decoded = lk_malloc(j->decoded_bytes + (size_t)j->w[0].k * sizeof(float));
    if (!j->tmp || (decode && !j->decoded)) return lk_fail(j->e, LK_ENOMEM, "cuda:%d: no room for a staging buffer", j->d->index);
    for (int p0 = 0, p1; p0 < n; p0 = p1) {
        for (p1 = p0 + 1; p1 < n && (glu || same_segment(&j->plan[p0], &j->plan[p1])); p1++) {}
        int seg = m->n_segs++;
        int rc = segment_make(j, seg, p0, p1);
        for (int i = p0; i < p1 && !rc; i++)
            if (!glu || i == p0) rc = pack_part(j, i, glu);
        if (!rc) rc = part_range(j, seg, p0, p1);
        if (rc) return rc;
    }
    return j->d->dev.sync(&j->d->dev, j->e);
}

int cu_mat_load(struct lk_dev *ld, enum lk_mat_kind kind, const struct lk_weight *parts, int n_parts, struct lk_mat **out, struct lk_err *e)
{
    *out = NULL;
    int rc = refuse(parts, n_parts, kind, e);
    if (rc) return rc;
    struct job j = {.d = cu_of(ld), .w = parts, .e = e};
    j.m = lk_calloc(1, sizeof *j.m);
    if (!j.m) return lk_fail(e, LK_ENOMEM, "cuda: out of memory");
    j.m->head = (struct lk_mat_head){.kind = kind, .n_parts = n_parts, .k = parts[0].k};
    for (int i = 0; i < n_parts; i++) j.m->head.n += parts[i].n;
    rc = load(&j);
    for (int i = 0; i < CU_MAX_PARTS; i++) lk_free(j.row_scale[i]);
    lk_free(j.decoded);
    cu_free(j.d, j.tmp);
    if (!rc && j.d->failed) rc = ld->sync(ld, e);
    if (rc)
        cu_mat_free(ld, (struct lk_mat *)j.m);
    else
        *out = (struct lk_mat *)j.m;
    return rc;
}

void cu_mat_free(struct lk_dev *ld, struct lk_mat *lm)
{
    struct cu_mat *m = (struct cu_mat *)lm;
    if (!m) return;
    for (int i = 0; i < m->n_owned; i++) cu_free(cu_of(ld), m->owned[i]);
    lk_free(m);
}
