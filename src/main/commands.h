/* The subcommands: argv[0] is the subcommand's name; the return value is the exit status. */
#ifndef LK_MAIN_COMMANDS_H
#define LK_MAIN_COMMANDS_H

struct lk_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
};

int cmd_run(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_probe(int argc, char **argv);

#endif
