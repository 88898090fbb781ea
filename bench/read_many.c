/*
 * read_many URL DIR ROUNDS BATCH: reads the files whose names stand on standard input, in batches,
 * and prints the median microseconds a file on the clock and of processor time. The URL "local" is
 * open, fstat, read and close of files of the machine. For bench/access.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <kestrel.h>

static double on_the_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double of_the_processor(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int by_number(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void stop(const char *what) {
    fprintf(stderr, "read_many: %s: %s\n", what, kestrel_error());
    exit(1);
}

static void read_local(const char *path) {
    struct stat known;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &known) != 0) stop(path);
    char *bytes = malloc((size_t)known.st_size);
    if (!bytes || read(file, bytes, (size_t)known.st_size) != known.st_size) stop(path);
    free(bytes);
    close(file);
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    int is_local = !strcmp(arguments[1], "local");
    size_t rounds = (size_t)atoi(arguments[3]), batch = (size_t)atoi(arguments[4]);
    size_t files = 0, room = 0;
    char **paths = NULL, name[256];
    while (scanf("%255s", name) == 1) {
        if (files == room) paths = realloc(paths, (room = room * 2 + 1024) * sizeof *paths);
        if (!paths || asprintf(&paths[files++], "%s/%s", arguments[2], name) < 0) return 1;
    }
    kestrel_volume volume = is_local ? 0 : kestrel_volume_open(arguments[1], NULL);
    kestrel_content *contents = calloc(batch, sizeof *contents);
    double *wall = calloc(rounds, sizeof *wall), *used = calloc(rounds, sizeof *used);
    if (volume < 0) stop("open");
    if (!contents || !wall || !used || files == 0 || batch == 0) return 1;
    /* The first round only warms. */
    for (size_t round = 0; round <= rounds; round++) {
        double begun = on_the_clock(), before = of_the_processor();
        for (size_t at = 0; at < files; at += batch) {
            size_t some = files - at < batch ? files - at : batch;
            if (is_local) {
                for (size_t each = 0; each < some; each++) read_local(paths[at + each]);
                continue;
            }
            const char *const *wanted = (const char *const *)&paths[at];
            if (kestrel_read_many(volume, wanted, some, contents) != 0) stop("read_many");
            kestrel_contents_free(contents, some);
        }
        if (round == 0) continue;
        wall[round - 1] = (on_the_clock() - begun) / (double)files;
        used[round - 1] = (of_the_processor() - before) / (double)files;
    }
    qsort(wall, rounds, sizeof *wall, by_number);
    qsort(used, rounds, sizeof *used, by_number);
    printf("%.3f %.3f\n", wall[rounds / 2], used[rounds / 2]);
    return volume > 0 ? -kestrel_volume_close(volume) : 0;
}
