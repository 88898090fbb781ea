/* files URL: writes a file, reads it back, lists its directory. */
#include <fcntl.h>
#include <stdio.h>

#include <kestrel.h>

/* The text of what failed, which has the reason and what to do. */
static int failed(void) {
    fprintf(stderr, "files: %s\n", kestrel_error());
    return 1;
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: files URL\n");
        return 2;
    }
    kestrel_options options = KESTREL_OPTIONS_INIT;
    options.who = "the example of the C library";
    kestrel_volume volume = kestrel_volume_open(arguments[1], &options);
    if (volume < 0) return failed();

    if (kestrel_mkdirs(volume, "/greetings", 0777, KESTREL_EXIST_OK) < 0) return failed();
    kestrel_file file = kestrel_open(volume, "/greetings/hello", O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (file < 0) return failed();
    if (kestrel_write(file, "hello, world", 12) < 0) return failed();
    char bytes[64];
    int64_t len = kestrel_pread(file, bytes, sizeof bytes, 7);
    if (len < 0) return failed();
    printf("%.*s\n", (int)len, bytes);
    /* What was written is stored when this returns 0. */
    if (kestrel_close(file) < 0) return failed();

    kestrel_dir dir = kestrel_opendir(volume, "/greetings", KESTREL_DIR_ATTRIBUTES);
    if (dir < 0) return failed();
    kestrel_dirent entry;
    int more;
    while ((more = kestrel_readdir(dir, &entry)) > 0) {
        printf("%s: %llu bytes\n", entry.name, (unsigned long long)entry.attributes.size);
    }
    kestrel_closedir(dir);
    if (more < 0 || kestrel_volume_close(volume) < 0) return failed();
    return 0;
}
