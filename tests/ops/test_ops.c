/* Every op of every case against the oracle, on a device named on the command line:
 *   test_ops [--device cpu|ref|scalar|avx2|avx512|cuda:N] [--image NAME] [--threads N] [--only
 * TEXT] [--long] [--list] [-v] Without arguments: each instruction set this machine has. Each case runs
 * twice and must give the same bits; the share of the tolerance that was used is printed for the
 * worst case of an op. Then the batch-invariance tests, and on the CPU the same bits for 1, 2 and 4
 * threads. Closes with "N passed, N failed". */
#include "cases/cases.h"

#include <stdlib.h>
#include <string.h>

struct opts {
    const char *device, *image, *only;
    int threads, verbose, use;
};

static struct op_table table;
static int n_passed, n_failed;

static void verdict(int bad)
{
    if (bad)
        n_failed++;
    else
        n_passed++;
}

static double check_case(const struct op_case *c, struct lk_dev *ref, struct lk_dev *d,
                         struct lk_dev *other, int *bad)
{
    struct op_run a, b, again;
    ot_run_begin(&a, c, ref);
    ot_run_do(&a);
    ot_run_begin(&b, c, d);
    ot_run_do(&b);
    ot_run_begin(&again, c, other ? other : d);
    ot_run_do(&again);
    double share = ot_compare(&a, &b);
    int same = ot_same_bits(&b, &again);
    if (!same)
        printf("  %s: a second run%s gives other bits\n", c->name,
               other ? " with another number of threads" : "");
    *bad = !(share <= 1) || !same;
    ot_run_end(&a);
    ot_run_end(&b);
    ot_run_end(&again);
    return share;
}

static void check_table(const struct opts *o, struct lk_dev *ref, struct lk_dev *d,
                        struct lk_dev *other)
{
    const char *op = "", *worst_name = "";
    double worst = 0;
    int n = 0;
    for (int i = 0; i <= table.n; i++) {
        const struct op_case *c = table.v + i;
        if (i == table.n || strcmp(op, c->f->op)) {
            if (n)
                printf("%-9s %3d cases, largest share of tolerance %.3f  %s\n", op, n, worst,
                       worst_name);
            if (i == table.n) break;
            op = c->f->op;
            worst = n = 0;
            worst_name = "";
        }
        if (!(c->use & o->use) || (o->only && !strstr(c->name, o->only))) continue;
        int bad;
        double share = check_case(c, ref, d, other, &bad);
        if (o->verbose) printf("  %-70s share %.3f of %.0e (%s)\n", c->name, share, c->tol, c->why);
        if (bad) printf("  FAILED %s (share %.3g of %.0e: %s)\n", c->name, share, c->tol, c->why);
        if (share >= worst) {
            worst = share;
            worst_name = c->name;
        }
        n++;
        verdict(bad);
    }
}

static void invariance(const struct opts *o, struct lk_dev *d)
{
    static const struct {
        const char *op;
        int (*fn)(struct lk_dev *d);
    } t[] = {{"linear", invariant_linear}, {"attn", invariant_attn}, {"gdn", invariant_gdn}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        if (o->only && !strstr(t[i].op, o->only)) continue;
        int bad = t[i].fn(d);
        printf("%-9s batch-invariant: %s\n", t[i].op, bad ? "NO" : "yes");
        verdict(bad);
    }
}

static int open_or_say(struct lk_dev **d, const char *name, const char *image, int threads)
{
    struct lk_err e = {0};
    int rc = ot_open(d, name, image, threads, &e);
    if (rc) printf("%s: %s\n", name, e.text);
    return rc;
}

static int run_device(const struct opts *o, const char *name)
{
    struct lk_dev *ref = NULL, *d = NULL, *other = NULL;
    struct lk_dev_info info;
    int rc = open_or_say(&ref, "ref", NULL, 0);
    if (!rc) rc = open_or_say(&d, name, o->image, o->threads);
    if (!rc) {
        d->info(d, &info);
        printf("== %s\n", info.name);
        /* the second run of each case takes another number of threads: more than there are parts to
         * some ops */
        if (!info.is_cuda) rc = open_or_say(&other, name, NULL, o->threads == 3 ? 1 : 3);
    }
    if (!rc) {
        check_table(o, ref, d, other);
        if (o->use == OP_CHECK) invariance(o, d);
        if (!info.is_cuda && (!o->only || strstr("linear", o->only))) {
            int bad = nan_linear(d);
            printf("%-9s NaN codes answer NaN: %s\n", "linear", bad ? "NO" : "yes");
            verdict(bad);
            bad = odd_x_linear(d);
            printf("%-9s zero, tiny, infinite and NaN rows of x: %s\n", "linear", bad ? "NO" : "yes");
            verdict(bad);
        }
    }
    if (other) other->close(other);
    if (d) d->close(d);
    if (ref) ref->close(ref);
    return rc;
}

static void list(void)
{
    for (int i = 0; i < table.n; i++)
        printf("%-9s %s%s %s (tolerance %.0e: %s)\n", table.v[i].f->op,
               table.v[i].use & OP_CHECK ? "check" : "", table.v[i].use & OP_BENCH ? " bench" : "",
               table.v[i].name, table.v[i].tol, table.v[i].why);
}

static int parse(struct opts *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "-v")) {
            o->verbose = 1;
            continue;
        }
        if (!strcmp(argv[i], "--long")) {
            o->use = OP_LONG;
            continue;
        }
        if (!strcmp(argv[i], "--list")) {
            list();
            return 1;
        }
        if (!v) return -1;
        i++;
        if (!strcmp(argv[i - 1], "--device"))
            o->device = v;
        else if (!strcmp(argv[i - 1], "--image"))
            o->image = v;
        else if (!strcmp(argv[i - 1], "--only"))
            o->only = v;
        else if (!strcmp(argv[i - 1], "--threads"))
            o->threads = atoi(v);
        else
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    struct opts o = {.use = OP_CHECK};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (ot_table_all(&table) < 1) return 1;
    int rc = parse(&o, argc, argv);
    if (rc > 0) return 0;
    if (rc < 0) {
        fprintf(stderr, "usage: test_ops [--device NAME] [--image NAME] [--threads N] [--only "
                        "TEXT] [--long] [--list] [-v]\n");
        return 2;
    }
    if (o.device) {
        rc = run_device(&o, o.device);
    } else {
        for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
            struct lk_dev *probe;
            struct lk_err e = {0};
            if (lk_cpu_open(&probe, 1, sets[i], &e)) {
                printf("== %s left out: %s\n", sets[i], e.text);
                continue;
            }
            probe->close(probe);
            rc |= run_device(&o, sets[i]);
        }
    }
    ot_table_free(&table);
    if (rc) n_failed++;
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed || !n_passed;
}
