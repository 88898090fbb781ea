/*
 * threads URL SECONDS: threads that use the same handles while others close them. Every call
 * succeeds or says that the handle is not open, one of several closes succeeds, and the memory of
 * the process stays whole.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"

enum { THREADS = 6, PLACES = 4 };

static const char *url;
static atomic_llong files[PLACES], volumes[PLACES];
static atomic_long opened, closed;
static time_t until;

/* What a call may come to that uses a handle which another thread closes. */
static int64_t usual(int64_t result, const char *what) {
    if (result < 0 && result != -EBADF && result != -ENOENT) FAIL("%s: %lld", what,
                                                                  (long long)result);
    return result;
}
#define USUAL(expression) usual((expression), #expression)

static void *of_thread(void *argument) {
    unsigned seed = (unsigned)(intptr_t)argument * 7919u + 1;
    char buffer[4096] = {0};
    kestrel_attributes st;
    kestrel_dirent entry;
    while (time(NULL) < until) {
        seed = seed * 1103515245u + 12345u;
        int place = (int)(seed >> 16) % PLACES;
        int64_t volume = atomic_load(&volumes[place]), file = atomic_load(&files[place]);
        char path[32];
        snprintf(path, sizeof path, "/p/%d", place);
        switch ((seed >> 20) % 10) {
        case 0: {
            int64_t fresh = USUAL(kestrel_open(volume, path, O_RDWR | O_CREAT, 0666));
            if (fresh <= 0) break;
            atomic_fetch_add(&opened, 1);
            int64_t old = atomic_exchange(&files[place], fresh);
            /* The close of its volume may have closed it. */
            if (old > 0) USUAL(kestrel_close(old));
            break;
        }
        case 1:
            USUAL(kestrel_close(file));
            break;
        case 2:
            if ((seed >> 24) % 8) break;
            if (USUAL(kestrel_volume_close(volume)) == 0) {
                atomic_fetch_add(&closed, 1);
                atomic_store(&volumes[place], GOOD(kestrel_volume_open(url, NULL)));
            }
            break;
        case 3:
            USUAL(kestrel_pwrite(file, buffer, sizeof buffer, (int64_t)(seed >> 22) * 512));
            break;
        case 4:
            USUAL(kestrel_write(file, buffer, 100));
            break;
        case 5:
            USUAL(kestrel_fsync(file));
            break;
        case 6: {
            int64_t dir = USUAL(kestrel_opendir(volume, "/p", KESTREL_DIR_ATTRIBUTES));
            while (USUAL(kestrel_readdir(dir, &entry)) > 0) continue;
            USUAL(kestrel_closedir(dir));
            break;
        }
        case 7: {
            const char *paths[] = {"/p/0", "/p/1", "/p/2", "/p/3"};
            kestrel_content contents[4];
            if (USUAL(kestrel_read_many(volume, paths, 4, contents)) >= 0)
                kestrel_contents_free(contents, 4);
            break;
        }
        case 8:
            USUAL(kestrel_stat(volume, path, 0, &st));
            USUAL(kestrel_fstat(file, &st));
            break;
        default:
            USUAL(kestrel_pread(file, buffer, sizeof buffer, 0));
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    url = arguments[1];
    for (int at = 0; at < PLACES; at++) volumes[at] = GOOD(kestrel_volume_open(url, NULL));
    IS(0, kestrel_mkdirs(volumes[0], "/p", 0777, KESTREL_EXIST_OK));
    until = time(NULL) + atoi(arguments[2]);
    pthread_t threads[THREADS];
    for (intptr_t at = 0; at < THREADS; at++) {
        IS(0, pthread_create(&threads[at], NULL, of_thread, (void *)at));
    }
    for (int at = 0; at < THREADS; at++) IS(0, pthread_join(threads[at], NULL));
    for (int at = 0; at < PLACES; at++) IS(0, kestrel_volume_close(volumes[at]));
    printf("%ld opened, %ld volumes closed\n", atomic_load(&opened), atomic_load(&closed));
    CHECK(opened > 0 && closed > 0);
    return 0;
}
