/* queue URL: writes many files at a time, by one thread that waits in poll(2). */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>

#include <kestrel.h>

enum { FILES = 100 };

static kestrel_queue queue;
static const char text[] = "one of many\n";

static void stop(const char *what) {
    fprintf(stderr, "queue: %s: %s\n", what, kestrel_error());
}

/* What comes next for a file: it is open, written, closed. Returns 1 at its end, -1 if it failed. */
static int next(const kestrel_completion *done) {
    static kestrel_file files[FILES];
    uint64_t number = done->user;
    switch (done->operation) {
    case KESTREL_OP_OPEN:
        files[number] = done->result;
        return kestrel_submit_write(queue, files[number], text, sizeof text - 1, 0, number);
    case KESTREL_OP_WRITE:
        return kestrel_submit_close(queue, files[number], number);
    default:
        return 1;
    }
}

int main(int count, char **arguments) {
    kestrel_volume volume = count == 2 ? kestrel_volume_open(arguments[1], NULL) : -1;
    if (volume < 0) return stop("open"), 1;
    if (kestrel_mkdirs(volume, "/many", 0777, KESTREL_EXIST_OK) < 0) return stop("mkdirs"), 1;
    queue = kestrel_queue_open(volume, FILES);
    if (queue < 0) return stop("queue"), 1;
    for (uint64_t number = 0; number < FILES; number++) {
        char path[32];
        snprintf(path, sizeof path, "/many/%llu", (unsigned long long)number);
        if (kestrel_submit_open(queue, path, O_WRONLY | O_CREAT, 0666, number) < 0) {
            return stop("submit"), 1;
        }
    }
    int written = 0;
    while (written < FILES) {
        struct pollfd ready = {kestrel_queue_fd(queue), POLLIN, 0};
        poll(&ready, 1, -1);
        kestrel_completion done;
        if (kestrel_queue_take(queue, &done, 1, 0) < 1) continue;
        int step = done.result < 0 ? -1 : next(&done);
        if (step < 0) return stop("a file"), 1;
        written += step;
    }
    printf("%d files\n", written);
    kestrel_queue_close(queue);
    return kestrel_volume_close(volume) < 0 ? (stop("close"), 1) : 0;
}
