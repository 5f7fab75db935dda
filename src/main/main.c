/* laoka: one binary. Picks the subcommand, parses its flags, prints its error; the only place that exits. */
#include "main/commands.h"

#include "base/log.h"
#include "runtime/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    enum lk_cmd bit;
    int (*run)(struct lk_opts *o, struct lk_err *e);
    const char *words, *help; /* help NULL: hidden */
};

/* A subcommand gets its line here when its file lands. */
static const struct command commands[] = {
    {"run", LK_CMD_RUN, cmd_run, "[-m MODEL] [-p TEXT]", "answer a prompt; on a terminal without one, chat"},
    {"score", LK_CMD_SCORE, cmd_score, "[-m MODEL] --ids FILE.json", "likelihood of token ids, and every number on the way"},
    {"tokenize", LK_CMD_TOKENIZE, cmd_tokenize, "[-m MODEL] --text TEXT | --file F | --messages F.json",
     "the token ids of a text, or of a conversation as the model's template renders it"},
    {"inspect", LK_CMD_INSPECT, cmd_inspect, "[MODEL]", "what a model holds, and what running it will need"},
    {"convert", LK_CMD_CONVERT, cmd_convert, "IN OUT", "write a model in other formats, as a Hugging Face folder"},
    {"bench", LK_CMD_BENCH, cmd_bench, "matrix | users | rounds | ops | tp | compare A B | synthetic SHAPE DIR", "measure a server, ours or another, and check that numbers can be true"},
    {"probe", LK_CMD_PROBE, cmd_probe, "[-m MODEL]", "what this machine can do, and for a model"},
    {"follower", LK_CMD_FOLLOWER, cmd_follower, "", NULL},
    {"serve", LK_CMD_SERVE, cmd_serve, "[-m MODEL]", "an HTTP server: OpenAI and Anthropic APIs, and a chat page"},
    {"worker", LK_CMD_WORKER, cmd_worker, "", NULL},
    {NULL, 0, NULL, NULL, NULL},
};

static void help_all(FILE *f)
{
    fprintf(f, "laoka runs Qwen3.5-family models on old data-centre GPUs and on any CPU.\n\n");
    for (const struct command *c = commands; c->name; c++)
        if (c->help) fprintf(f, "  laoka %-9s %-16s %s\n", c->name, c->words, c->help);
    fprintf(f, "\nlaoka COMMAND --help shows a command's flags.\n");
}

static void help_command(const struct command *c)
{
    struct lk_buf b = {0};
    lk_opts_help(c->bit, &b);
    printf("laoka %s %s\n%s\n\n%s", c->name, c->words, c->help ? c->help : "", b.data ? b.data : "");
    lk_buf_free(&b);
}

static int command_run(const struct command *c, int argc, char **argv)
{
    struct lk_err e = {0};
    struct lk_opts o;
    lk_opts_init(&o);
    int rc = lk_opts_parse(&o, c->bit, argc, argv, &e);
    if (rc == 1) {
        help_command(c);
        return 0;
    }
    if (!rc && o.print_config) {
        struct lk_buf b = {0};
        lk_opts_print(&o, c->bit, &b);
        fputs(b.data ? b.data : "", stdout);
        lk_buf_free(&b);
        return 0;
    }
    lk_log_quiet(o.quiet || o.json);
    if (!rc && c->bit & (LK_CMD_RUN | LK_CMD_SCORE | LK_CMD_BENCH | LK_CMD_WORKER)) lk_rank_devices_choose(&o.engine.dev);
    if (!rc) rc = c->run(&o, &e);
    if (!rc && fflush(stdout)) rc = lk_fail(&e, LK_ESYS, "stdout: cannot write the answer");
    if (rc < 0) lk_log_error("%s", e.text[0] ? e.text : "failed without a reason: please report this");
    return lk_err_exit(rc);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help_all(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help_all(stdout);
        return 0;
    }
    for (const struct command *c = commands; c->name; c++)
        if (!strcmp(argv[1], c->name)) return command_run(c, argc - 1, argv + 1);
    lk_log_error("%s: unknown command; see laoka --help", argv[1]);
    return 2;
}
