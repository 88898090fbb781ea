/* log RANK: logs files into the job that the environment names, and finishes the rank. */
#include <errno.h>

#include "check.h"

int main(int count, char **arguments) {
    CHECK(count == 2);
    uint32_t rank = (uint32_t)atoi(arguments[1]);
    char path[64], text[64];
    kestrel_log_options options = KESTREL_LOG_OPTIONS_INIT;
    options.sync_every_ms = 50;
    IS(-EINVAL, kestrel_log_open(NULL, "4711", rank, NULL));
    SAYS("4711");
    IS(-EINVAL, kestrel_log_open(NULL, NULL, 900, NULL));
    kestrel_log log = GOOD(kestrel_log_open(NULL, NULL, rank, &options));
    IS(0, kestrel_log_mkdirs(log, "/out/empty", 0750));
    static char large[3 << 20];
    memset(large, 'l', sizeof large);
    for (int at = 0; at < 500; at++) {
        snprintf(path, sizeof path, "/out/%u/%d", rank, at);
        int len = snprintf(text, sizeof text, "%u %d", rank, at);
        IS(0, kestrel_log_create(log, path, 0640, text, (size_t)len));
    }
    snprintf(path, sizeof path, "/out/large%u", rank);
    IS(0, kestrel_log_create(log, path, 0666, large, sizeof large));
    snprintf(path, sizeof path, "/out/link%u", rank);
    IS(0, kestrel_log_symlink(log, "empty", path));
    IS(-EINVAL, kestrel_log_create(log, "/out/empty", 0666, "", 0));
    SAYS("/out/empty");
    IS(-EFAULT, kestrel_log_create(log, "/out/x", 0666, NULL, 4));
    IS(-EINVAL, kestrel_log_create(log, "/out/", 0666, NULL, 0));
    IS(0, kestrel_log_sync(log));
    if (rank == 0) {
        /* The rank goes on later. */
        IS(0, kestrel_log_close(log));
        IS(-EBADF, kestrel_log_sync(log));
        log = GOOD(kestrel_log_open(NULL, NULL, rank, NULL));
        IS(0, kestrel_log_create(log, "/out/later", 0666, NULL, 0));
    }
    CHECK(kestrel_log_finish(log) > 500);
    IS(-EBADF, kestrel_log_finish(log));
    IS(-EINVAL, kestrel_log_open(NULL, NULL, rank, NULL));
    return 0;
}
