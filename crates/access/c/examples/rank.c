/*
 * rank NUMBER: what one process of a job makes, logged at the speed of memory. Volume and job are
 * those of the environment:
 *
 *     eval "$(kestrel job start VOLUME --publish made@1 --log)"
 *     ./rank 0 & ./rank 1 & wait
 *     kestrel job publish VOLUME made@1
 */
#include <stdio.h>
#include <stdlib.h>

#include <kestrel.h>

int main(int count, char **arguments) {
    unsigned rank = count == 2 ? (unsigned)atoi(arguments[1]) : 0;
    kestrel_log log = kestrel_log_open(NULL, NULL, rank, NULL);
    int result = log < 0 ? -1 : 0;
    for (int number = 0; result == 0 && number < 1000; number++) {
        char path[64];
        snprintf(path, sizeof path, "/out/%u/%04d", rank, number);
        result = kestrel_log_create(log, path, 0666, path, 8);
    }
    if (result == 0 && kestrel_log_finish(log) >= 0) return 0;
    fprintf(stderr, "rank %u: %s\n", rank, kestrel_error());
    return 1;
}
