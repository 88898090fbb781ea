/*
 * queue URL ROUNDS [PIPE]: operations that are submitted, by several threads, with poll. With the
 * name of a pipe it says there when its operations are under way, for the script that kills the
 * server; none of them may fail then. It goes on until there is a file PIPE.end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 3, FILES = 24, BYTES = 30000, DEPTH = 64 };

static kestrel_volume volume;
static int rounds;
/* More rounds follow until this file is there. */
static char until[4096];

/* The content of a file in a round. */
static void content(unsigned char *bytes, int thread, int file, int round) {
    for (int at = 0; at < BYTES; at++) {
        bytes[at] = (unsigned char)((at >> 3) + thread * 7 + file * 13 + round * 29);
    }
}

/* Takes the completion of each of so many operations; results go by `user`. */
static void take_all(kestrel_queue queue, int count, int64_t *results) {
    kestrel_completion taken[8];
    while (count > 0) {
        struct pollfd ready = {kestrel_queue_fd(queue), POLLIN, 0};
        CHECK(poll(&ready, 1, 120000) == 1);
        int64_t got = kestrel_queue_take(queue, taken, 8, 0);
        CHECK(got > 0 && got <= count);
        for (int64_t at = 0; at < got; at++) {
            if (taken[at].result < 0) FAIL("%u: %lld", taken[at].operation,
                                           (long long)taken[at].result);
            results[taken[at].user] = taken[at].result;
        }
        count -= (int)got;
    }
    IS(0, kestrel_queue_take(queue, taken, 8, 0));
}

/* Whether the script wants another round. */
static int goes_on(void) {
    return until[0] != 0 && access(until, F_OK) != 0;
}

static void *of_thread(void *argument) {
    int thread = (int)(intptr_t)argument;
    static unsigned char written[THREADS][FILES][BYTES], back[THREADS][FILES][BYTES];
    kestrel_queue queue = GOOD(kestrel_queue_open(volume, DEPTH));
    int64_t files[FILES], results[FILES];
    kestrel_attributes st[FILES];
    char path[FILES][64], other[64];
    snprintf(other, sizeof other, "/q/%d", thread);
    IS(0, kestrel_submit_mkdir(queue, other, 0777, 0));
    take_all(queue, 1, results);
    for (int round = 0; round < rounds || goes_on(); round++) {
        for (int at = 0; at < FILES; at++) {
            snprintf(path[at], sizeof path[at], "/q/%d/%d.%d", thread, at, round);
            content(written[thread][at], thread, at, round);
            IS(0, kestrel_submit_open(queue, path[at], O_RDWR | O_CREAT | O_EXCL, 0666,
                                      (uint64_t)at));
        }
        take_all(queue, FILES, files);
        for (int at = 0; at < FILES; at++) {
            IS(0, kestrel_submit_write(queue, files[at], written[thread][at], BYTES, 0,
                                       (uint64_t)at));
        }
        take_all(queue, FILES, results);
        for (int at = 0; at < FILES; at++) {
            IS(BYTES, results[at]);
            if (at % 2) IS(0, kestrel_submit_fsync(queue, files[at], (uint64_t)at));
            else IS(0, kestrel_submit_flush(queue, files[at], (uint64_t)at));
        }
        take_all(queue, FILES, results);
        for (int at = 0; at < FILES; at++) {
            memset(back[thread][at], 0, BYTES);
            IS(0, kestrel_submit_read(queue, files[at], back[thread][at], BYTES, 0, (uint64_t)at));
            IS(0, kestrel_submit_stat(queue, path[at], 0, &st[at], (uint64_t)at));
        }
        take_all(queue, 2 * FILES, results);
        for (int at = 0; at < FILES; at++) {
            CHECK(!memcmp(written[thread][at], back[thread][at], BYTES) && st[at].size == BYTES);
            IS(0, kestrel_submit_close(queue, files[at], (uint64_t)at));
            IS(-EBADF, kestrel_close(files[at]));
        }
        take_all(queue, FILES, results);
        for (int at = 0; at < FILES; at++) {
            snprintf(other, sizeof other, "/q/%d/last.%d", thread, at);
            if (at % 3) IS(0, kestrel_submit_rename(queue, path[at], other, 0, (uint64_t)at));
            else IS(0, kestrel_submit_unlink(queue, path[at], (uint64_t)at));
        }
        take_all(queue, FILES, results);
    }
    IS(0, kestrel_queue_close(queue));
    return NULL;
}

static void *takes_for_ever(void *argument) {
    kestrel_completion taken;
    IS(-EBADF, kestrel_queue_take(*(kestrel_queue *)argument, &taken, 1, -1));
    return NULL;
}

/* Bounds, errors with their texts, and closes with operations under way. */
static void edges(void) {
    kestrel_completion taken;
    kestrel_attributes st;
    char buffer[64];
    IS(-EINVAL, kestrel_queue_open(volume, 0));
    IS(-EINVAL, kestrel_queue_open(volume, 65537));
    kestrel_queue queue = GOOD(kestrel_queue_open(volume, 2));
    struct pollfd ready = {kestrel_queue_fd(queue), POLLIN, 0};
    IS(0, poll(&ready, 1, 0));
    IS(0, kestrel_queue_take(queue, &taken, 1, 5));
    IS(-EINVAL, kestrel_queue_take(queue, &taken, 0, 0));
    IS(-EFAULT, kestrel_queue_take(queue, NULL, 1, 0));
    IS(-EFAULT, kestrel_submit_stat(queue, "/q", 0, NULL, 0));
    IS(-EFAULT, kestrel_submit_open(queue, NULL, O_RDONLY, 0, 0));
    IS(-EINVAL, kestrel_submit_open(queue, "/q", O_SYNC, 0, 0));
    IS(0, kestrel_submit_stat(queue, "/q/none", 0, &st, UINT64_MAX));
    IS(0, kestrel_submit_stat(queue, "/q", 0, &st, 5));
    IS(-EAGAIN, kestrel_submit_stat(queue, "/q", 0, &st, 6));
    int seen = 0;
    for (int at = 0; at < 2; at++) {
        IS(1, kestrel_queue_take(queue, &taken, 1, -1));
        CHECK(taken.operation == KESTREL_OP_STAT && taken.reserved0 == 0 && taken.reserved == 0);
        if (taken.user == 5) IS(0, taken.result);
        else {
            IS(-ENOENT, taken.result);
            CHECK(taken.user == UINT64_MAX);
            SAYS("/q/none");
        }
        seen += 1;
    }
    IS(2, seen);
    kestrel_file file = GOOD(kestrel_open(volume, "/q/file", O_RDWR | O_CREAT, 0666));
    IS(5, kestrel_write(file, "12345", 5));
    IS(-EFAULT, kestrel_submit_read(queue, file, NULL, 1, 0, 0));
    IS(-EINVAL, kestrel_submit_read(queue, file, buffer, 1, -1, 0));
    IS(0, kestrel_submit_read(queue, file, buffer, sizeof buffer, 2, 1));
    IS(1, kestrel_queue_take(queue, &taken, 1, -1));
    IS(3, taken.result);
    CHECK(!memcmp(buffer, "345", 3));
    IS(0, kestrel_close(file));
    IS(-EBADF, kestrel_submit_read(queue, file, buffer, 1, 0, 0));
    IS(-EBADF, kestrel_submit_close(queue, file, 0));
    /* Larger than what one request has. */
    size_t large = (5u << 20) + 3;
    char *bytes = malloc(large), *back = malloc(large);
    memset(bytes, 'b', large);
    file = GOOD(kestrel_open(volume, "/q/file", O_RDWR | O_CREAT, 0666));
    IS(0, kestrel_submit_write(queue, file, bytes, large, 0, 1));
    IS(1, kestrel_queue_take(queue, &taken, 1, -1));
    IS(large, taken.result);
    IS(0, kestrel_submit_read(queue, file, back, large, 0, 1));
    IS(1, kestrel_queue_take(queue, &taken, 1, -1));
    IS(large, taken.result);
    CHECK(!memcmp(bytes, back, large));
    /* A close waits for what is under way: the memory is ours again. */
    IS(0, kestrel_submit_read(queue, file, back, large, 0, 1));
    IS(0, kestrel_submit_open(queue, "/q/file", O_RDONLY, 0, 2));
    pthread_t waiting;
    kestrel_queue idle = GOOD(kestrel_queue_open(volume, 1));
    IS(0, pthread_create(&waiting, NULL, takes_for_ever, &idle));
    IS(0, kestrel_queue_close(queue));
    free(bytes);
    free(back);
    IS(-EBADF, kestrel_queue_fd(queue));
    IS(-EBADF, kestrel_submit_stat(queue, "/q", 0, &st, 0));
    IS(-EBADF, kestrel_queue_take(queue, &taken, 1, 0));
    usleep(1000);
    IS(0, kestrel_queue_close(idle));
    IS(0, pthread_join(waiting, NULL));
    IS(0, kestrel_close(file));
}

int main(int count, char **arguments) {
    CHECK(count >= 3);
    rounds = atoi(arguments[2]);
    volume = GOOD(kestrel_volume_open(arguments[1], NULL));
    IS(0, kestrel_mkdirs(volume, "/q", 0777, KESTREL_EXIST_OK));
    edges();
    if (count > 3) snprintf(until, sizeof until, "%s.end", arguments[3]);
    pthread_t threads[THREADS];
    for (intptr_t at = 0; at < THREADS; at++) {
        IS(0, pthread_create(&threads[at], NULL, of_thread, (void *)at));
    }
    if (count > 3) {
        int told = open(arguments[3], O_WRONLY);
        CHECK(told >= 0 && write(told, "under way\n", 10) == 10);
        close(told);
    }
    for (int at = 0; at < THREADS; at++) IS(0, pthread_join(threads[at], NULL));
    /* The volume is closed with operations under way, whose completions nobody takes. */
    kestrel_queue queue = GOOD(kestrel_queue_open(volume, DEPTH));
    static kestrel_attributes st[DEPTH];
    for (int at = 0; at < DEPTH; at++) {
        if (at % 2) IS(0, kestrel_submit_stat(queue, "/q", 0, &st[at], 0));
        else IS(0, kestrel_submit_open(queue, "/q/file", O_RDONLY, 0, 0));
    }
    IS(0, kestrel_volume_close(volume));
    IS(-EBADF, kestrel_queue_fd(queue));
    return 0;
}
