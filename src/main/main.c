/* laoka: one binary. Each subcommand is one file of src/main; this one picks it and is the only place that exits. */
#include "main/commands.h"

#include <stdio.h>
#include <string.h>

static const struct lk_command commands[] = {
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    for (const struct lk_command *c = commands; argc > 1 && c->name; c++)
        if (!strcmp(argv[1], c->name)) return c->run(argc - 1, argv + 1);
    fprintf(stderr, "usage: laoka COMMAND ...\n");
    return 2;
}
