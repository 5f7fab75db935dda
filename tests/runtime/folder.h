/* A scratch folder for tests: made, emptied, counted, removed. */
#ifndef LK_TESTS_FOLDER_H
#define LK_TESTS_FOLDER_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Paths of what is in it, up to max; returns how many. */
static inline int folder_list(const char *dir, char (*paths)[512], int max)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *t; d && (t = readdir(d)) && n < max;)
        if (t->d_name[0] != '.') snprintf(paths[n++], sizeof *paths, "%s/%s", dir, t->d_name);
    if (d) closedir(d);
    return n;
}

static inline void folder_empty(const char *dir)
{
    static char paths[64][512];
    for (int n; (n = folder_list(dir, paths, 64)) > 0;)
        for (int i = 0; i < n; i++)
            if (remove(paths[i])) return;
}

static inline void folder_remove(const char *dir)
{
    folder_empty(dir);
    rmdir(dir);
}

#endif
