/* The engine on the demo model: greedy continuations as transformers gives them, whatever the draft length; events; cancel; deadline. */
#include "runtime/engine_help.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void greedy_as_published(void **state)
{
    json_t *gold = json_load_file(LK_SHARED_DIR "/golden/demo.json", 0, NULL);
    if (!gold || !lk_file_exists(MASTER "/config.json")) {
        printf("skipped: no BF16 master and golden results beside the repo\n");
        json_decref(gold);
        return;
    }
    for (int draft = -1; draft < 4; draft += 2) {
        struct lk_opts_engine o = opts_small(MASTER);
        struct lk_engine *e;
        struct lk_err err = {0};
        o.draft = draft;
        if (lk_engine_open(&e, &o, &err)) fail_msg("%s", err.text);
        const char *key;
        json_t *p;
        json_object_foreach(json_object_get(gold, "prompts"), key, p) {
            size_t n, n_want;
            int32_t *ids = ids_read(json_object_get(p, "ids"), &n);
            int32_t *want = ids_read(json_object_get(p, "greedy"), &n_want);
            if (n_want > 24) n_want = 24;
            struct lk_request r = {.ids = ids, .n_ids = n, .max_tokens = (int)n_want, .draft = -2};
            lk_sampling_init(&r.sampling);
            struct result res = run_one(e, &r);
            assert_int_equal(res.finish, LK_FIN_LENGTH);
            assert_int_equal(res.n, n_want);
            for (size_t i = 0; i < n_want; i++)
                if (res.ids[i] != want[i]) fail_msg("prompt %s, draft %d: token %zu: %d, not %d", key, draft, i, res.ids[i], want[i]);
            lk_free(res.ids);
            lk_free(ids);
            lk_free(want);
        }
        lk_engine_close(e);
    }
    json_decref(gold);
}

int main(void)
{
    lk_log_quiet(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_as_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
