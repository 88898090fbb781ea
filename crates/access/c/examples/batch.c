/* batch URL PATH…: the contents of many files with one burst of requests, to standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kestrel.h>

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: batch URL PATH...\n");
        return 2;
    }
    kestrel_options options = KESTREL_OPTIONS_INIT;
    options.flags = KESTREL_READ_ONLY;
    kestrel_volume volume = kestrel_volume_open(arguments[1], &options);
    if (volume < 0) {
        fprintf(stderr, "batch: %s\n", kestrel_error());
        return 1;
    }
    size_t files = (size_t)count - 2;
    const char *const *paths = (const char *const *)(arguments + 2);
    kestrel_content *contents = calloc(files, sizeof *contents);
    int64_t failed = contents ? kestrel_read_many(volume, paths, files, contents) : -1;
    if (failed != 0) fprintf(stderr, "batch: %s\n", kestrel_error());
    for (size_t at = 0; failed >= 0 && at < files; at++) {
        if (contents[at].error != 0) {
            fprintf(stderr, "batch: %s: %s\n", paths[at], strerror(-contents[at].error));
        } else {
            fwrite(contents[at].data, 1, contents[at].len, stdout);
        }
    }
    if (failed >= 0) kestrel_contents_free(contents, files);
    free(contents);
    kestrel_volume_close(volume);
    return failed == 0 ? 0 : 1;
}
