/* Container 3: components with their configs, objects, and bindings from parameters to ranges of objects. What the text, mtp and proposal
 * components name must be whole and fit the config; other components (vision, dflash, dflash2) are skipped, their objects checked. */
#include "artifact/ninfer.h"

#include "artifact/hf.h"
#include "artifact/json_read.h"

#include <stdio.h>
#include <string.h>

static int read_components(struct nf_file *f, const json_t *components)
{
    static const char *const must[] = {"config"}, *const may[] = {"target", "resources", "proposal"};
    const char *id, *role;
    json_t *c, *r;
    int rc = 0;
    if (!json_object_size(components)) return lk__nf_fail(f, "components", "expected an object of components, found %s", lk__json_kind(components));
    json_object_foreach((json_t *)components, id, c)
    {
        rc = lk__nf_members(f, c, id, must, 1, may, 3);
        if (!rc && !json_is_object(json_object_get(c, "config"))) rc = lk__nf_fail(f, id, "config: expected an object, found %s", lk__json_kind(json_object_get(c, "config")));
        const json_t *target = json_object_get(c, "target");
        if (!rc && target && (!json_is_string(target) || !json_object_get(components, json_string_value(target))))
            rc = lk__nf_fail(f, id, "target: expected another component, found %s", json_is_string(target) ? json_string_value(target) : lk__json_kind(target));
        if (rc) return rc;
        json_object_foreach(json_object_get(c, "resources"), role, r)
        {
            const struct nf_object *o = json_is_string(r) ? lk__nf_find(f, json_string_value(r)) : NULL;
            if (!o || o->fmt != NF_RESOURCE) return lk__nf_fail(f, id, "resources.%.60s: expected the id of a resource, found %.60s", role, json_is_string(r) ? json_string_value(r) : lk__json_kind(r));
        }
    }
    return 0;
}

static int read_config(struct nf_file *f, const json_t *components)
{
    const json_t *text = json_object_get(json_object_get(components, "text"), "config");
    struct hf_quant q = {0};
    if (!text) return lk__nf_fail(f, "components", "expected a text component, found none");
    char *json = json_dumps(text, JSON_COMPACT);
    if (!json) return lk_fail(f->e, LK_ENOMEM, "%s: no memory for the config", f->file);
    int rc = lk__hf_config(&f->a->cfg, &q, json, strlen(json), f->file, f->e);
    free(json);
    f->a->cfg.norm_plus_one = 1;
    f->a->cfg.tied = 0;
    f->a->cfg.mtp_layers = json_object_get(components, "mtp") != NULL;
    f->a->cfg.has_vision = json_object_get(components, "vision") != NULL;
    return rc;
}

/* Permissions to round activations: none is used, but a value that is none is a broken file. */
static int check_uses(struct nf_file *f, const json_t *uses)
{
    static const char *const must[] = {"parameter", "input"}, *const may[] = {"activation_policy", "auxiliaries"};
    static const char *const policies[] = {"A16Only", "AllowA8", "AllowA4"};
    const json_t *u;
    size_t i;
    char where[32];
    if (!json_is_array(uses)) return lk__nf_fail(f, "uses", "expected an array, found %s", lk__json_kind(uses));
    json_array_foreach(uses, i, u)
    {
        snprintf(where, sizeof where, "uses[%zu]", i);
        int rc = lk__nf_members(f, u, where, must, 2, may, 2);
        if (rc) return rc;
        const char *p = json_string_value(json_object_get(u, "activation_policy")), *param = json_string_value(json_object_get(u, "parameter"));
        int known = !json_object_get(u, "activation_policy");
        for (int k = 0; k < 3 && p; k++) known |= !strcmp(p, policies[k]);
        if (!known) return lk__nf_fail(f, where, "activation_policy: expected A16Only, AllowA8 or AllowA4, found %.60s", p ? p : "no string");
        if (!param || !json_object_get(json_object_get(f->root, "bindings"), param)) return lk__nf_fail(f, where, "parameter: expected one that is bound, found %.60s", param ? param : "no string");
    }
    return 0;
}

int lk__nf3_read(struct nf_file *f, json_t *root)
{
    static const char *const must[] = {"components", "objects", "bindings", "uses", "files"}, *const may[] = {"metadata", "provenance"};
    int rc = lk__nf_members(f, root, "directory", must, 5, may, 2);
    if (!rc) rc = lk__nf_objects(f, json_object_get(root, "objects"));
    if (!rc) rc = read_components(f, json_object_get(root, "components"));
    if (!rc && !json_is_object(json_object_get(root, "bindings"))) rc = lk__nf_fail(f, "bindings", "expected an object, found %s", lk__json_kind(json_object_get(root, "bindings")));
    if (!rc) rc = check_uses(f, json_object_get(root, "uses"));
    return rc ? rc : read_config(f, json_object_get(root, "components"));
}

/* One part: an object, or a range of its values that is whole rows. */
static int read_part(struct nf_file *f, const char *param, const json_t *p, int ranged, struct nf_piece *out)
{
    const char *id = json_string_value(json_object_get(p, "object"));
    struct nf_object *o = id ? lk__nf_find(f, id) : NULL;
    if (!o || o->fmt == NF_RESOURCE) return lk__nf_fail(f, param, "object: expected the id of a tensor, found %.60s", id ? id : lk__json_kind(json_object_get(p, "object")));
    int64_t rows = o->n_dims ? o->dims[0] : 1, width = 1;
    for (int i = 1; i < o->n_dims; i++) width *= o->dims[i];
    *out = (struct nf_piece){o, 0, rows};
    if (!ranged) return 0;
    const json_t *r = json_object_get(p, "range");
    int64_t b = json_integer_value(json_array_get(r, 0)), e = json_integer_value(json_array_get(r, 1));
    if (json_array_size(r) != 2 || !json_is_integer(json_array_get(r, 0)) || !json_is_integer(json_array_get(r, 1)) || b < 0 || e <= b || e > rows * width)
        return lk__nf_fail(f, param, "range: expected [begin, end) inside %lld values, found another", (long long)(rows * width));
    if (b % width || e % width) return lk__nf_fail(f, param, "range: expected whole rows of %lld values, found [%lld, %lld)", (long long)width, (long long)b, (long long)e);
    out->row = b / width, out->rows = (e - b) / width;
    return 0;
}

int lk__nf3_piece(struct nf_file *f, const char *param, struct nf_piece *out)
{
    const json_t *b = json_object_get(json_object_get(f->root, "bindings"), param), *parts = json_object_get(b, "parts"), *p;
    size_t i;
    *out = (struct nf_piece){0};
    if (!b) return 0;
    if (!json_is_object(b) || json_object_size(b) != 1 || (!parts && !json_object_get(b, "object")) || (parts && !json_array_size(parts)))
        return lk__nf_fail(f, param, "binding: expected an object or a list of parts, found %s", lk__json_kind(b));
    if (!parts) return read_part(f, param, b, 0, out);
    json_array_foreach(parts, i, p)
    {
        struct nf_piece one;
        int rc = read_part(f, param, p, 1, &one);
        if (rc) return rc;
        if (!i) *out = one;
        else if (one.o == out->o && one.row == out->row + out->rows) out->rows += one.rows;
        else return lk__nf_fail(f, param, "binding: expected parts that follow each other in one object, found others");
    }
    return 0;
}

int lk__nf3_all_used(struct nf_file *f)
{
    const char *param;
    json_t *b;
    int n = 0;
    json_object_foreach(json_object_get(f->root, "bindings"), param, b)
    {
        struct nf_piece p;
        if (strncmp(param, "text/", 5) && strncmp(param, "mtp/", 4) && strncmp(param, "proposal/", 9)) continue;
        n++;
        int rc = lk__nf3_piece(f, param, &p);
        if (!rc && !p.o->used) rc = lk__nf_fail(f, param, "found a parameter that the model does not have");
        if (rc) return rc;
    }
    return n == f->pieces ? 0 : lk__nf_fail(f, "bindings", "expected %d parameters of text, mtp and proposal, found %d", f->pieces, n);
}
