/* laoka probe: what this machine is, what it measures, and what that means for a model. */
#include "main/commands.h"

#include "base/log.h"
#include "base/mem.h"
#include "model/forecast.h"
#include "probe/probe.h"

#include <stdio.h>

static double model_memory(const void *f, double ctx, int n)
{
    return lk_forecast_memory(f, ctx, n, 1);
}

static double model_round(const void *f, double ctx, int draft, int n)
{
    return lk_forecast_round(f, ctx, draft, n);
}

static double model_kernels(const void *f, int draft, int n)
{
    return lk_forecast_kernels(f, draft, n);
}

static double model_reduces(const void *f, int draft)
{
    return lk_forecast_reduces(f, draft);
}

/* A model that cannot be read is a line in the report, not the end of it. */
static void model_read(struct lk_opts *o, struct lk_probe *p, struct lk_forecast *f)
{
    struct lk_err e = {0};
    struct lk_artifact *a = NULL;
    const char *path = lk_model_path(o, &e);
    if (!path || lk_artifact_open(&a, path, &e)) {
        snprintf(p->no_model, sizeof p->no_model, "%.500s", e.text);
        return;
    }
    lk_forecast_make(f, a, o->engine.kv == LK_OPT_KV_AUTO ? LK_KV_I8 : (enum lk_kv_kind)o->engine.kv);
    p->model = (struct lk_probe_model){path, model_memory, model_round, model_kernels, model_reduces, f, f->mtp > 0};
    lk_artifact_close(a);
}

int cmd_probe(struct lk_opts *o, struct lk_err *e)
{
    struct lk_probe *p = lk_calloc(1, sizeof *p);
    struct lk_forecast f;
    struct lk_buf b = {0};
    if (!p) return lk_fail(e, LK_ENOMEM, "probe: no memory");
    model_read(o, p, &f);
    lk_probe_gather(p, o->nvml);
    int rc = o->json ? lk_probe_json(p, &b) : lk_probe_text(p, &b);
    if (!rc)
        fputs(b.data, stdout);
    else
        lk_fail(e, rc, "probe: no memory");
    lk_buf_free(&b);
    lk_free(p);
    return rc;
}
