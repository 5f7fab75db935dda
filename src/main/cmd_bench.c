/* laoka bench: matrix and users measure any OpenAI-compatible server, or our own started for the purpose; rounds and ops measure in
 * this process; compare pairs two results; synthetic writes a model of random weights to measure with. */
#include "main/commands.h"

#include "base/bandwidth.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/grid.h"
#include "bench/op_times.h"
#include "bench/rounds.h"
#include "bench/synthetic.h"
#include "bench/tp_run.h"
#include "dev/measure.h"
#include "model/forecast.h"
#include "probe/cpu_facts.h"
#include "probe/nvml.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#define STALL_S 900 /* a cold 256K prefill on one old card takes minutes */
#define START_S 900

struct bench {
    struct lk_target target;
    struct lk_table table;
    struct lk_tokenizer *tok;
    struct lk_forecast forecast;
    int n_ranks;
    struct lk_buf text;
    struct lk_grid grid;
};

static double round_bytes(const void *arg, double ctx, int draft)
{
    const struct bench *b = arg;
    return lk_forecast_round(&b->forecast, ctx, draft, b->n_ranks);
}

/* Names, sizes, first and last 64 KB of every file: enough to tell two models apart, and instant for 55 GB. */
static void fingerprint_file(XXH3_state_t *h, const char *path)
{
    struct lk_map m;
    if (lk_map_open(&m, path, NULL)) return;
    size_t k = m.size < 65536 ? m.size : 65536;
    XXH3_64bits_update(h, &m.size, sizeof m.size);
    XXH3_64bits_update(h, m.data, k);
    XXH3_64bits_update(h, m.data + m.size - k, k);
    lk_map_close(&m);
}

static int dir_entry(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static void fingerprint(const char *path, char out[24])
{
    XXH3_state_t *h = XXH3_createState();
    struct dirent **list = NULL;
    if (!h) return;
    XXH3_64bits_reset(h);
    int n = lk_file_exists(path) == 2 ? scandir(path, &list, dir_entry, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        struct lk_buf p = {0};
        lk_path_join(&p, path, list[i]->d_name);
        XXH3_64bits_update(h, list[i]->d_name, strlen(list[i]->d_name));
        if (p.data) fingerprint_file(h, p.data);
        lk_buf_free(&p);
        free(list[i]);
    }
    free(list);
    if (!n) fingerprint_file(h, path);
    snprintf(out, 24, "%016llx", (unsigned long long)XXH3_64bits_digest(h));
    XXH3_freeState(h);
}

static int tokenizer_read(struct bench *b, const struct lk_artifact *a, const char *path, struct lk_err *e)
{
    struct lk_buf own = {0};
    size_t len = 0;
    const char *json = a ? lk_artifact_text(a, "tokenizer.json", &len) : NULL;
    int rc = 0;
    if (path && lk_file_exists(path) == 1 && strstr(path, ".json")) {
        rc = lk_file_read(&own, path, (size_t)256 << 20, e);
        json = own.data, len = own.len;
    }
    if (!rc && json) rc = lk_tokenizer_open(&b->tok, json, len, e);
    lk_buf_free(&own);
    return rc;
}

/* The model beside the server: sizes prompts and feeds the physics check. With --url it is optional. */
static int model_read(struct bench *b, struct lk_opts *o, struct lk_err *e)
{
    struct lk_artifact *a = NULL;
    char print[24] = "";
    const char *path = o->bench.url ? o->engine.model : lk_model_path(o, e);
    if (!path && !o->bench.url) return LK_EINPUT;
    int rc = path ? lk_artifact_open(&a, path, e) : 0;
    if (!rc && a) {
        lk_forecast_make(&b->forecast, a, o->engine.kv == LK_OPT_KV_AUTO ? LK_KV_I8 : (enum lk_kv_kind)o->engine.kv);
        fingerprint(path, print);
        json_object_set_new(b->table.head, "model", json_string(path));
        json_object_set_new(b->table.head, "model_fingerprint", json_string(print));
    }
    if (!rc) rc = tokenizer_read(b, a, o->bench.tokenizer, e);
    lk_artifact_close(a);
    if (!rc && !b->tok) lk_log_warn("no tokenizer (-m or --tokenizer): prompt sizes are guessed from bytes");
    return rc;
}

/* The bandwidth a cell is held against, as read_best_gbs: given, or measured where the device is ours; 0: not known. On the CPU that is the fastest read of
 * half a second: a neighbour of this machine slows the median by a third, and a bound that true speeds pass is none. */
static struct lk_bandwidth bandwidth_of(const struct lk_opts *o)
{
    struct lk_bandwidth bw = {.read_best_gbs = o->bench.gbs};
    struct lk_err ignored = {0};
    if (o->bench.gbs > 0 || o->bench.url || o->bench.cpu_time) return bw; /* processor time does not go with a bandwidth by the clock */
    if (o->engine.dev.at[0].is_cuda) {
        lk_cuda_measure_read(o->engine.dev.at[0].index, &bw.read_best_gbs, &ignored);
        return bw;
    }
    struct lk_pool *p = lk_pool_new(o->engine.dev.threads);
    if (p) lk_bandwidth_measure(p, 0.5, &bw);
    lk_pool_free(p);
    return bw;
}

static void physics_set(struct bench *b, const struct lk_opts *o)
{
    double gbs = bandwidth_of(o).read_best_gbs;
    /* a model smaller than the caches is read from them: no bound by DRAM */
    if (o->bench.gbs <= 0 && b->forecast.step < 256e6) gbs = 0;
    if (b->forecast.step > 0) b->grid.physics = (struct lk_physics){gbs, round_bytes, b};
    json_object_set_new(b->table.head, "physics_gbs", gbs > 0 ? json_real(gbs) : json_string("not checked (give --gbs; a model in the caches has no memory bound)"));
}

static void head_make(struct bench *b, const struct lk_opts *o)
{
    struct lk_cpu_facts cpu;
    struct lk_nvml *nv = lk_calloc(1, sizeof *nv);
    char when[40], line[256];
    time_t now = time(NULL);
    struct tm tm;
    json_t *h = b->table.head;
    lk_cpu_facts_read(&cpu);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &tm));
    json_object_set_new(h, "date", json_string(when));
    snprintf(line, sizeof line, "%s, %d cores, %.0f GB", cpu.name, cpu.cores, cpu.mem_total * 1e-9);
    json_object_set_new(h, "cpu", json_string(line));
    if (nv && !lk_nvml_read(nv, NULL, NULL))
        for (int i = 0; i < nv->n; i++) {
            char key[16];
            snprintf(key, sizeof key, "gpu%d", i);
            snprintf(line, sizeof line, "%s, driver %s, memory %d MHz, core %d MHz at most", nv->gpu[i].name, nv->driver, nv->gpu[i].mem_mhz_max, nv->gpu[i].core_mhz_max);
            json_object_set_new(h, key, json_string(line));
        }
    lk_free(nv);
    if (b->target.url[0]) {
        json_object_set_new(h, "server", json_string(b->target.server[0] ? b->target.server : b->target.url));
        json_object_set_new(h, "served_model", json_string(b->target.model));
    }
    struct lk_buf flags = {0};
    lk_opts_print(o, LK_CMD_BENCH, &flags);
    for (size_t i = 0; i < flags.len; i++)
        if (flags.data[i] == '\n') flags.data[i] = ' ';
    json_object_set_new(h, "flags", json_string(flags.data ? flags.data : ""));
    lk_buf_free(&flags);
}

static int run_grid(struct bench *b, struct lk_opts *o, int users, struct lk_err *e)
{
    int rc = 0;
    if (o->bench.out) mkdir(o->bench.out, 0777);
    if (o->bench.out && o->bench.resume) {
        struct lk_err ignored = {0};
        lk_table_load(&b->table, o->bench.out, &ignored);
    }
    json_decref(b->table.head);
    b->table.head = json_object();
    rc = model_read(b, o, e);
    if (!rc && o->bench.text_file) rc = lk_file_read(&b->text, o->bench.text_file, (size_t)1 << 30, e);
    if (!rc) rc = lk_target_open(&b->target, o, START_S, e);
    if (rc) return rc;
    head_make(b, o);
    b->n_ranks = o->engine.dev.n;
    b->grid.o = o, b->grid.target = &b->target, b->grid.tok = b->tok, b->grid.text = b->text.data;
    b->grid.stall_s = o->bench.stall_s > 0 ? o->bench.stall_s : STALL_S;
    b->grid.offset = o->bench.offset >= 0 ? o->bench.offset : (long long)time(NULL) % 100000 * 10000000ll;
    physics_set(b, o);
    rc = users ? lk_grid_users(&b->grid, &b->table, e) : lk_grid_matrix(&b->grid, &b->table, e);
    if (!rc && o->bench.out) rc = lk_table_save(&b->table, o->bench.out, 1, e);
    return rc;
}

/* In this process: rounds of a model, or the op cases. */
static int run_here(struct bench *b, struct lk_opts *o, int ops, struct lk_err *e)
{
    char print[24] = "";
    struct lk_opts own = *o;
    if (o->bench.url) return lk_fail(e, LK_EUSAGE, "bench %s measures in this process: --url has no meaning here", o->args[0]);
    if (o->bench.cpu_time && (o->engine.dev.at[0].is_cuda || o->engine.dev.n > 1))
        return lk_fail(e, LK_EUSAGE, "--cpu-time counts one thread of one CPU: it does not go with --devices");
    if (o->bench.cpu_time) own.engine.dev.threads = 1;
    own.engine.model = ops ? NULL : lk_model_path(&own, e);
    if (!ops && !own.engine.model) return LK_EINPUT;
    if (o->bench.out) mkdir(o->bench.out, 0777);
    struct lk_bandwidth bw = bandwidth_of(&own); /* before the model takes the memory */
    double gbs = bw.read_best_gbs;
    b->table.head = json_object();
    if (bw.read_gbs > 0) json_object_set_new(b->table.head, "read_gbs", json_real(bw.read_gbs)); /* the median */
    if (!ops) {
        fingerprint(own.engine.model, print);
        json_object_set_new(b->table.head, "model", json_string(own.engine.model));
        json_object_set_new(b->table.head, "model_fingerprint", json_string(print));
    }
    head_make(b, o);
    int rc = ops ? lk_ops_run(&own, gbs, &b->table, e) : lk_rounds_run(&own, gbs, &b->table, e);
    if (!rc && o->bench.out) rc = lk_table_save(&b->table, o->bench.out, 1, e);
    return rc;
}

static int print_table(const struct bench *b, const struct lk_opts *o, struct lk_err *e)
{
    struct lk_buf out = {0};
    int rc = lk_table_markdown(&b->table, &out), bad = lk_grid_marked(&b->table);
    if (!rc && !o->json) fputs(out.data, stdout);
    if (!rc && o->json) printf("{\"cells\": %d, \"marked\": %d}\n", b->table.n, bad);
    lk_buf_free(&out);
    if (rc) return lk_fail(e, rc, "no memory for the table");
    return bad ? lk_fail(e, LK_EINPUT, "%d of %d cells are marked: their notes say why", bad, b->table.n) : 0;
}

static int run_compare(const struct lk_opts *o, struct lk_err *e)
{
    struct lk_table a = {0}, b = {0};
    struct lk_buf out = {0};
    if (o->n_args != 3) return lk_fail(e, LK_EUSAGE, "bench compare needs two results: laoka bench compare A B");
    int rc = lk_table_load(&a, o->args[1], e);
    if (!rc) rc = lk_table_load(&b, o->args[2], e);
    if (!rc && lk_table_compare(&a, &b, &out)) rc = lk_fail(e, LK_ENOMEM, "no memory for the comparison");
    if (!rc) fputs(out.data, stdout);
    lk_buf_free(&out);
    lk_table_free(&a);
    lk_table_free(&b);
    return rc;
}

/* A model of random weights for rounds: laoka bench synthetic 27b DIR. */
static int run_synthetic(const struct lk_opts *o, struct lk_err *e)
{
    if (o->n_args != 3) return lk_fail(e, LK_EUSAGE, "bench synthetic needs a shape and a folder: laoka bench synthetic 27b DIR (%s)", lk_synthetic_names);
    return lk_synthetic_write(o->args[1], o->args[2], 0, e);
}

/* Between ranks: the link, or the layers. */
static int run_tp(const struct lk_opts *o, struct lk_err *e)
{
    struct lk_opts own = *o;
    if (o->bench.url) return lk_fail(e, LK_EUSAGE, "bench tp measures in this process: --url has no meaning here");
    own.engine.model = lk_model_path(&own, e);
    if (!own.engine.model) return LK_EINPUT;
    return o->bench.layers ? lk_tp_layers(&own, e) : lk_tp_run(&own, bandwidth_of(&own).read_best_gbs, e);
}

int cmd_bench(struct lk_opts *o, struct lk_err *e)
{
    struct bench *b;
    const char *what = o->n_args ? o->args[0] : "";
    int users = !strcmp(what, "users");
    if (!strcmp(what, "compare")) return run_compare(o, e);
    if (!strcmp(what, "synthetic")) return run_synthetic(o, e);
    if (!strcmp(what, "tp")) return run_tp(o, e);
    int ops = !strcmp(what, "ops"), here = ops || !strcmp(what, "rounds");
    if (strcmp(what, "matrix") && !users && !here) return lk_fail(e, LK_EUSAGE, "bench %s: expected matrix, users, rounds, ops, tp, compare or synthetic", what);
    if (!(b = lk_calloc(1, sizeof *b))) return lk_fail(e, LK_ENOMEM, "bench: no memory");
    int rc = here ? run_here(b, o, ops, e) : run_grid(b, o, users, e);
    if (!rc) rc = print_table(b, o, e);
    lk_target_close(&b->target);
    lk_table_free(&b->table);
    lk_tokenizer_close(b->tok);
    lk_buf_free(&b->text);
    lk_free(b);
    return rc;
}
