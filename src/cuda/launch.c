/* Images and launches: picks the embedded image for the card, finds kernels by name, launches them on the device's stream.
 * Owns the table of functions; knows nothing of what a kernel computes. A missing kernel, a refused launch: sticky error. */
#include "cuda/cuda_dev.h"

#include "base/log.h"

#include <string.h>

/* Which images to load. The Volta image on a Volta card is its cubin; forced elsewhere it is its PTX, compiled by the driver. */
static const char *image_kind(struct cu_dev *d, const char *image, struct lk_err *e)
{
    int has70 = 0, has_ptx = 0, has_fat = 0;
    for (const struct cu_image *i = cu_images; i->name; i++) {
        has70 |= !strcmp(i->kind, "sm_70");
        has_ptx |= !strcmp(i->kind, "ptx_70");
        has_fat |= !strcmp(i->kind, "fat");
    }
    if (image && strcmp(image, "sm_70")) {
        lk_fail(e, LK_EINPUT, "cuda image \"%s\": only sm_70 can be asked for", image);
        return NULL;
    }
    d->arch = image || d->sm < 75 ? 70 : d->sm;
    if (d->arch == 70 && d->sm == 70 && has70) return "sm_70";
    if (d->arch == 70 && d->sm >= 70 && has_ptx) return "ptx_70";
    if (d->arch >= 75 && has_fat) return "fat";
    if (d->arch >= 75 && has_ptx) {
        d->arch = 70;
        lk_log_warn("cuda:%d: no code for sm_%d in this program, running its Volta code (slow): rebuild with CUDA 12 or 13",
                    d->index, d->sm);
        return "ptx_70";
    }
    lk_fail(e, LK_EINPUT, "cuda:%d: %s is sm_%d and this program holds code for %s; build it with `%smake CUDA=1`", d->index,
            d->name, d->sm, cu_image_kinds, d->sm < 75 ? "tools/setup cuda70 && " : "");
    return NULL;
}

int cu_modules_load(struct cu_dev *d, const char *image, struct lk_err *e)
{
    const char *kind = image_kind(d, image, e);
    if (!kind) return e ? e->code : LK_EINPUT;
    for (const struct cu_image *i = cu_images; i->name; i++) {
        int own = d->arch == 90 && !strcmp(i->kind, "sm_90a"); /* what only this card has comes on top */
        if (strcmp(i->kind, kind) && !own) continue;
        if (d->n_modules == CU_MAX_MODULES) return lk_fail(e, LK_EINPUT, "cuda: more than %d images", CU_MAX_MODULES);
        CUresult r = d->drv->module_load(&d->modules[d->n_modules], i->data);
        if (r != CU_OK)
            return lk_fail(e, LK_EINPUT, "cuda:%d: image %s of %s does not load: %s", d->index, i->kind, i->name,
                           cu_error_text(d->drv, r));
        d->n_modules++;
    }
    return 0;
}

void cu_modules_free(struct cu_dev *d)
{
    for (int i = 0; i < d->n_modules; i++) d->drv->module_unload(d->modules[i]);
    d->n_modules = 0;
}

static CUfunction find(struct cu_dev *d, const char *name)
{
    CUfunction f = NULL;
    for (int i = 0; i < d->n_modules; i++)
        if (d->drv->module_function(&f, d->modules[i], name) == CU_OK) return f;
    return NULL;
}

int cu_fn_exists(struct cu_dev *d, const char *name)
{
    return find(d, name) != NULL;
}

struct cu_fn *cu_fn(struct cu_dev *d, const char *name)
{
    uint32_t h = 2166136261u; /* FNV-1a over the name: two files may hold the same literal at different addresses */
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 16777619u;
    for (unsigned i = 0; i < CU_FN_SLOTS; i++) {
        struct cu_fn *f = &d->fns[(h + i) % CU_FN_SLOTS];
        if (f->name && !strcmp(f->name, name)) return f;
        if (f->name) continue;
        CUfunction fn = find(d, name);
        if (!fn) {
            cu_refuse(d, "kernel %s is not in the image for this card", name);
            return NULL;
        }
        *f = (struct cu_fn){.name = name, .fn = fn, .max_smem = 48 << 10};
        return f;
    }
    cu_refuse(d, "more than %d kernels", CU_FN_SLOTS);
    return NULL;
}

static CUresult launch_ex(struct cu_dev *d, struct cu_fn *f, const struct cu_grid *g, void **args)
{
    struct cu_launch_attr at[2];
    memset(at, 0, sizeof at);
    unsigned n = 0;
    if (g->flags & CU_PDL) {
        at[n].id = CU_LAUNCH_PDL;
        at[n++].v.flag = 1;
    }
    if (g->cluster > 1) {
        at[n].id = CU_LAUNCH_CLUSTER;
        at[n].v.cluster.x = g->cluster;
        at[n].v.cluster.y = at[n].v.cluster.z = 1;
        n++;
    }
    struct cu_launch_config c = {g->gx, g->gy, g->gz, g->bx, g->by, 1, g->smem, d->stream, at, n};
    return d->drv->launch_ex(&c, f->fn, args, NULL);
}

void cu_launch(struct cu_dev *d, const char *name, struct cu_grid g, void **args)
{
    if (d->failed) return;
    struct cu_fn *f = cu_fn(d, name);
    if (!f) return;
    g.gy += !g.gy;
    g.gz += !g.gz;
    g.gx += !g.gx;
    g.by += !g.by;
    if ((int)g.smem > f->max_smem) {
        if (cu_bad(d, d->drv->func_set(f->fn, CU_FUNC_MAX_DYN_SMEM, (int)g.smem), name)) return;
        f->max_smem = (int)g.smem;
    }
    d->drv->ctx_set(d->ctx);
    if (d->prof) cu_prof_launch_begin(d, f->name, g.bytes);
    CUresult r;
    if (d->arch >= 90 && d->drv->launch_ex && (g.cluster > 1 || (g.flags & CU_PDL && !d->prof)))
        r = launch_ex(d, f, &g, args);
    else
        r = d->drv->launch(f->fn, g.gx, g.gy, g.gz, g.bx, g.by, 1, g.smem, d->stream, args, NULL);
    cu_bad(d, r, name);
    if (d->prof) cu_prof_launch_end(d);
}
