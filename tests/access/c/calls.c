/* calls URL [OTHER URL]: each call of the library, and bad input. The other volume is another one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static kestrel_volume volume;

/* A file with this content. */
static void put(const char *path, const void *bytes, size_t len) {
    kestrel_file file = GOOD(kestrel_open(volume, path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    IS(len, kestrel_write(file, bytes, len));
    IS(0, kestrel_close(file));
}

static void names_and_attributes(void) {
    kestrel_attributes st, other;
    IS(0, kestrel_mkdirs(volume, "/t/a/b", 0755, 0));
    IS(-EEXIST, kestrel_mkdirs(volume, "/t/a/b", 0755, 0));
    IS(0, kestrel_mkdirs(volume, "t/a/b/", 0755, KESTREL_EXIST_OK));
    IS(-EEXIST, kestrel_mkdir(volume, "/t/a", 0755));
    put("/t/f", "12345", 5);
    memset(&st, 0xff, sizeof st);
    IS(0, kestrel_stat(volume, "/t/f", 0, &st));
    IS(5, st.size);
    CHECK(S_ISREG(st.mode) && st.nlink == 1 && st.uid == geteuid() && st.gid == getegid());
    CHECK(st.reserved[0] == 0 && st.reserved[5] == 0 && st.reserved0 == 0 && st.mtime_ns > 0);
    IS(0, kestrel_link(volume, "/t/f", "/t/g"));
    IS(0, kestrel_stat(volume, "/t/g", 0, &other));
    CHECK(other.ino == st.ino && other.nlink == 2);
    IS(0, kestrel_symlink(volume, "f", "/t/l"));
    IS(0, kestrel_stat(volume, "/t/l", 0, &other));
    CHECK(other.ino == st.ino);
    IS(0, kestrel_stat(volume, "/t/l", KESTREL_NOFOLLOW, &other));
    CHECK(S_ISLNK(other.mode) && other.size == 1);
    char target[8];
    IS(1, kestrel_readlink(volume, "/t/l", NULL, 0));
    IS(1, kestrel_readlink(volume, "/t/l", target, sizeof target));
    CHECK(target[0] == 'f');
    IS(-EINVAL, kestrel_readlink(volume, "/t/f", target, sizeof target));
    IS(0, kestrel_symlink(volume, "a/very/long/target", "/t/m"));
    IS(-ERANGE, kestrel_readlink(volume, "/t/m", target, sizeof target));

    IS(-EEXIST, kestrel_rename(volume, "/t/g", "/t/f", KESTREL_NOREPLACE));
    put("/t/h", "h", 1);
    IS(0, kestrel_rename(volume, "/t/h", "/t/g", KESTREL_EXCHANGE));
    IS(0, kestrel_stat(volume, "/t/g", 0, &other));
    IS(1, other.size);
    IS(0, kestrel_rename(volume, "/t/h", "/t/g", 0));
    IS(-ENOENT, kestrel_stat(volume, "/t/h", 0, &other));
    SAYS("/t/h");
    IS(-ENOTEMPTY, kestrel_rmdir(volume, "/t/a"));
    IS(-EISDIR, kestrel_unlink(volume, "/t/a"));
    IS(-ENOTDIR, kestrel_rmdir(volume, "/t/f"));
    IS(0, kestrel_unlink(volume, "/t/g"));
    IS(0, kestrel_rmdir(volume, "/t/a/b"));

    IS(0, kestrel_chmod(volume, "/t/f", 0640, 0));
    IS(0, kestrel_utimens(volume, "/t/f", KESTREL_TIME_OMIT, 1500000000123456789, 0));
    IS(0, kestrel_chown(volume, "/t/f", KESTREL_KEEP_ID, KESTREL_KEEP_ID, KESTREL_NOFOLLOW));
    IS(0, kestrel_truncate(volume, "/t/f", 3));
    IS(0, kestrel_stat(volume, "/t/f", 0, &st));
    CHECK((st.mode & 07777) == 0640 && st.size == 3);
    IS(0, kestrel_utimens(volume, "/t/f", -1, 1500000000123456789, 0));
    IS(0, kestrel_stat(volume, "/t/f", 0, &st));
    CHECK(st.mtime_ns == 1500000000123456789 && st.atime_ns == -1);
    IS(0, kestrel_utimens(volume, "/t/f", KESTREL_TIME_NOW, KESTREL_TIME_NOW, 0));
    IS(0, kestrel_access(volume, "/t/f", R_OK | W_OK));
    IS(-ENOENT, kestrel_access(volume, "/t/none", 0));
    /* Root has a file's right to be executed if anybody has it. */
    IS(-EACCES, kestrel_access(volume, "/t/f", X_OK));

    char value[16];
    IS(-ENODATA, kestrel_getxattr(volume, "/t/f", "user.a", value, sizeof value, 0));
    IS(0, kestrel_setxattr(volume, "/t/f", "user.a", "va\0l", 4, KESTREL_XATTR_CREATE));
    IS(-EEXIST, kestrel_setxattr(volume, "/t/f", "user.a", "x", 1, KESTREL_XATTR_CREATE));
    IS(-ENODATA, kestrel_setxattr(volume, "/t/f", "user.b", "x", 1, KESTREL_XATTR_REPLACE));
    IS(0, kestrel_setxattr(volume, "/t/f", "user.e", NULL, 0, 0));
    IS(4, kestrel_getxattr(volume, "/t/f", "user.a", NULL, 0, 0));
    IS(-ERANGE, kestrel_getxattr(volume, "/t/f", "user.a", value, 3, 0));
    IS(4, kestrel_getxattr(volume, "/t/f", "user.a", value, sizeof value, 0));
    CHECK(!memcmp(value, "va\0l", 4));
    IS(14, kestrel_listxattr(volume, "/t/f", value, sizeof value, 0));
    CHECK(!memcmp(value, "user.a\0user.e", 14));
    IS(0, kestrel_removexattr(volume, "/t/f", "user.a", 0));
    IS(-ENODATA, kestrel_removexattr(volume, "/t/f", "user.a", 0));
}

static void files(void) {
    char buffer[64];
    kestrel_attributes st;
    kestrel_file file = GOOD(kestrel_open(volume, "/t/file", O_RDWR | O_CREAT | O_EXCL, 0600));
    IS(-EEXIST, kestrel_open(volume, "/t/file", O_RDWR | O_CREAT | O_EXCL, 0600));
    IS(5, kestrel_write(file, "hello", 5));
    IS(6, kestrel_pwrite(file, " world", 6, 5));
    IS(5, kestrel_lseek(file, 0, SEEK_CUR));
    IS(6, kestrel_read(file, buffer, sizeof buffer));
    IS(0, kestrel_read(file, buffer, sizeof buffer));
    IS(11, kestrel_pread(file, buffer, sizeof buffer, 0));
    CHECK(!memcmp(buffer, "hello world", 11));
    IS(0, kestrel_pread(file, buffer, sizeof buffer, INT64_MAX));
    IS(0, kestrel_fstat(file, &st));
    IS(11, st.size);
    IS(9, kestrel_lseek(file, -2, SEEK_END));
    IS(0, kestrel_ftruncate(file, 1 << 20));
    CHECK(kestrel_lseek(file, 0, SEEK_HOLE) > 0);
    IS(-EINVAL, kestrel_lseek(file, -1, SEEK_SET));
    IS(-EINVAL, kestrel_lseek(file, 0, 77));
    IS(-ENXIO, kestrel_lseek(file, 1 << 21, SEEK_DATA));
    IS(0, kestrel_ftruncate(file, 11));
    IS(0, kestrel_flush(file));
    IS(0, kestrel_fsync(file));
    kestrel_file copy = GOOD(kestrel_open(volume, "/t/copy", O_RDWR | O_CREAT, 0600));
    IS(6, kestrel_copy_range(file, 5, copy, 0, UINT64_MAX));
    IS(6, kestrel_pread(copy, buffer, sizeof buffer, 0));
    CHECK(!memcmp(buffer, " world", 6));
    IS(0, kestrel_close(copy));
    /* Bad input. */
    IS(-EINVAL, kestrel_pread(file, buffer, 1, -1));
    IS(-EINVAL, kestrel_pwrite(file, buffer, 1, INT64_MIN));
    IS(-EFAULT, kestrel_pread(file, NULL, 1, 0));
    IS(0, kestrel_pread(file, NULL, 0, 0));
    IS(-EFAULT, kestrel_write(file, NULL, SIZE_MAX));
    IS(-EFBIG, kestrel_pwrite(file, buffer, 1, INT64_MAX));
    IS(-EINVAL, kestrel_ftruncate(file, -1));
    IS(-EFAULT, kestrel_fstat(file, NULL));
    IS(0, kestrel_close(file));
    IS(-EBADF, kestrel_close(file));
    SAYS("it is not open");
    IS(-EBADF, kestrel_read(file, buffer, 1));
    IS(-EBADF, kestrel_fsync(file));
    kestrel_file reader = GOOD(kestrel_open(volume, "/t/file", O_RDONLY, 0));
    IS(-EBADF, kestrel_write(reader, "x", 1));
    IS(-EINVAL, kestrel_ftruncate(reader, 0));
    IS(0, kestrel_flush(reader));
    IS(0, kestrel_close(reader));
    kestrel_file end = GOOD(kestrel_open(volume, "/t/file", O_WRONLY | O_APPEND, 0));
    IS(1, kestrel_write(end, "!", 1));
    IS(1, kestrel_pwrite(end, "!", 1, 0));
    IS(-EBADF, kestrel_read(end, buffer, 1));
    IS(0, kestrel_close(end));
    IS(0, kestrel_stat(volume, "/t/file", 0, &st));
    IS(13, st.size);
    IS(-EISDIR, kestrel_open(volume, "/t", O_WRONLY, 0));
    IS(-EISDIR, kestrel_open(volume, "/t", O_RDONLY, 0));
    IS(-EINVAL, kestrel_open(volume, "/t/file", O_RDWR | O_SYNC, 0));
    SAYS("kestrel_fsync");
    IS(-EINVAL, kestrel_open(volume, "/t/file", O_ACCMODE, 0));
    IS(-ENOENT, kestrel_open(volume, "/t/none", O_RDONLY, 0));

    /* Larger than what one request has. */
    size_t large = (9u << 20) + 7;
    char *bytes = malloc(large), *back = malloc(large);
    for (size_t at = 0; at < large; at++) bytes[at] = (char)(at * 31 >> 8);
    put("/t/large", bytes, large);
    file = GOOD(kestrel_open(volume, "/t/large", O_RDONLY, 0));
    IS(large, kestrel_pread(file, back, large, 0));
    CHECK(!memcmp(bytes, back, large));
    IS(0, kestrel_close(file));
    free(bytes);
    free(back);
}

static void directories_and_batches(void) {
    enum { MANY = 300 };
    char path[64], texts[MANY][64];
    const char *paths[MANY + 3];
    IS(0, kestrel_mkdir(volume, "/t/dir", 0777));
    IS(0, kestrel_mkdir(volume, "/t/dir/sub", 0777));
    for (int at = 0; at < MANY; at++) {
        snprintf(path, sizeof path, "/t/dir/%04d", at);
        put(path, path, strlen(path));
        strcpy(texts[at], path);
        paths[at] = texts[at];
    }
    for (int flags = 0; flags < 2; flags++) {
        kestrel_dir dir = GOOD(kestrel_opendir(volume, "/t/dir", flags));
        kestrel_dirent entry;
        for (int at = 0; at < MANY; at++) {
            IS(1, kestrel_readdir(dir, &entry));
            snprintf(path, sizeof path, "%04d", at);
            CHECK(!strcmp(entry.name, path) && entry.name_len == 4 && entry.type == DT_REG);
            CHECK(entry.error == 0);
            IS(flags ? strlen("/t/dir/0000") : 0, entry.attributes.size);
        }
        IS(1, kestrel_readdir(dir, &entry));
        CHECK(!strcmp(entry.name, "sub") && entry.type == DT_DIR);
        IS(0, kestrel_readdir(dir, &entry));
        IS(0, kestrel_readdir(dir, &entry));
        IS(-EFAULT, kestrel_readdir(dir, NULL));
        IS(-EBADF, kestrel_close(dir));
        SAYS("something else");
        IS(0, kestrel_closedir(dir));
        IS(-EBADF, kestrel_closedir(dir));
        IS(-EBADF, kestrel_readdir(dir, &entry));
    }
    IS(-ENOTDIR, kestrel_opendir(volume, "/t/dir/0000", 0));
    IS(-ENOENT, kestrel_opendir(volume, "/t/none", 0));

    paths[MANY] = "/t/none";
    paths[MANY + 1] = "/t/large";
    paths[MANY + 2] = "/t/dir";
    kestrel_content contents[MANY + 3];
    IS(2, kestrel_read_many(volume, paths, MANY + 3, contents));
    SAYS("/t/none");
    for (int at = 0; at < MANY; at++) {
        CHECK(contents[at].error == 0 && contents[at].len == strlen(paths[at]));
        CHECK(!memcmp(contents[at].data, paths[at], contents[at].len));
    }
    CHECK(contents[MANY].error == -ENOENT && contents[MANY].data == NULL);
    CHECK(contents[MANY + 1].len == (9u << 20) + 7);
    CHECK(contents[MANY + 2].error == -EISDIR);
    kestrel_contents_free(contents, MANY + 3);
    kestrel_contents_free(contents, MANY + 3);
    CHECK(contents[0].data == NULL && contents[0].len == 0);

    kestrel_attributes all[MANY + 3];
    int errors[MANY + 3];
    IS(1, kestrel_stat_many(volume, paths, MANY + 3, 0, all, errors));
    CHECK(errors[0] == 0 && all[0].size == strlen(paths[0]) && S_ISDIR(all[MANY + 2].mode));
    CHECK(errors[MANY] == -ENOENT && all[MANY].ino == 0);

    const char *dirs[] = {"/t/dir", "/t/none", "/t/dir/sub"};
    kestrel_listing lists[3];
    IS(1, kestrel_list_many(volume, dirs, 3, lists));
    CHECK(lists[0].count == MANY + 1 && lists[1].error == -ENOENT && lists[2].count == 0);
    CHECK(!strcmp(lists[0].names[7].name, "0007") && lists[0].names[7].name_len == 4);
    CHECK(lists[0].names[MANY].type == DT_DIR);
    kestrel_listings_free(lists, 3);
    kestrel_listings_free(lists, 3);

    IS(0, kestrel_read_many(volume, NULL, 0, NULL));
    IS(-EFAULT, kestrel_read_many(volume, NULL, 1, contents));
    IS(-EFAULT, kestrel_read_many(volume, paths, 1, NULL));
    IS(-EFAULT, kestrel_stat_many(volume, paths, 1, 0, all, NULL));
    IS(-E2BIG, kestrel_read_many(volume, paths, SIZE_MAX, contents));
    paths[1] = NULL;
    IS(-EFAULT, kestrel_read_many(volume, paths, 3, contents));
    kestrel_contents_free(NULL, 5);
    kestrel_listings_free(NULL, 5);
}

static void bad_input(const char *url, const char *other_url) {
    kestrel_attributes st;
    kestrel_room room;
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    IS(-EFAULT, kestrel_stat(volume, NULL, 0, &st));
    IS(-EFAULT, kestrel_stat(volume, "/t", 0, NULL));
    IS(-EFAULT, kestrel_rename(volume, "/t", NULL, 0));
    IS(-EFAULT, kestrel_unlink(volume, NULL));
    IS(-EFAULT, kestrel_volume_open(NULL, NULL));
    IS(-ENOENT, kestrel_stat(volume, "", 0, &st));
    IS(-ENAMETOOLONG, kestrel_mkdir(volume, longest, 0777));
    longest[300] = 0;
    IS(-ENAMETOOLONG, kestrel_mkdir(volume, longest, 0777));
    /* Not UTF-8. */
    IS(0, kestrel_mkdir(volume, "/t/\xff\xfe", 0777));
    IS(0, kestrel_stat(volume, "/t/\xff\xfe", 0, &st));
    IS(-EEXIST, kestrel_mkdir(volume, "/t/\xff\xfe", 0777));
    SAYS("/t/\xef\xbf\xbd");
    IS(-EINVAL, kestrel_mkdir(volume, "/t/m2", 010000));
    IS(-EINVAL, kestrel_stat(volume, "/t", 2, &st));
    SAYS("0x2");
    IS(-EINVAL, kestrel_rename(volume, "/t", "/u", 3));
    IS(-EINVAL, kestrel_access(volume, "/t", 64));
    IS(-EINVAL, kestrel_truncate(volume, "/t/f", -1));
    IS(-ELOOP, (kestrel_symlink(volume, "loop", "/t/loop"), kestrel_stat(volume, "/t/loop", 0, &st)));
    int64_t handles[] = {0, -1, -EBADF, INT64_MIN, INT64_MAX, 1, volume + 1, volume ^ (1LL << 40)};
    for (size_t at = 0; at < sizeof handles / sizeof *handles; at++) {
        IS(-EBADF, kestrel_stat(handles[at], "/t", 0, &st));
        IS(-EBADF, kestrel_read(handles[at], longest, 1));
        IS(-EBADF, kestrel_volume_close(handles[at]));
        IS(-EBADF, kestrel_queue_close(handles[at]));
        IS(-EBADF, kestrel_log_close(handles[at]));
        IS(-EBADF, kestrel_closedir(handles[at]));
    }
    IS(-EBADF, kestrel_close(volume));
    IS(0, kestrel_volume_room(volume, &room));
    CHECK(room.block_bytes > 0 && room.name_max == 255 && room.files > 300);
    IS(0, kestrel_volume_sync(volume));
    IS(0, kestrel_volume_is_read_only(volume));

    /* URLs and options. */
    kestrel_options options = KESTREL_OPTIONS_INIT;
    IS(-ENOENT, kestrel_volume_open("/nowhere", NULL));
    SAYS("/nowhere");
    IS(-EINVAL, kestrel_volume_open("kestrel://", NULL));
    IS(-EINVAL, kestrel_volume_open("\xff\xfe", NULL));
    options.token = "no token";
    IS(-EINVAL, kestrel_volume_open(url, &options));
    SAYS("token");
    options.token = NULL;
    options.flags = 128;
    IS(-EINVAL, kestrel_volume_open(url, &options));
    options.flags = 0;
    options.size = 4;
    IS(-EINVAL, kestrel_volume_open(url, &options));
    struct {
        kestrel_options options;
        uint64_t more;
    } newer = {KESTREL_OPTIONS_INIT, 1};
    newer.options.size = sizeof newer;
    IS(-E2BIG, kestrel_volume_open(url, &newer.options));
    newer.more = 0;
    kestrel_volume second = GOOD(kestrel_volume_open(url, &newer.options));
    kestrel_file file = GOOD(kestrel_open(second, "/t/file", O_RDWR, 0));
    IS(0, kestrel_volume_close(second));
    IS(-EBADF, kestrel_fstat(file, &st));
    IS(-EBADF, kestrel_stat(second, "/t", 0, &st));

    /* Handles of another volume. */
    kestrel_volume other = GOOD(kestrel_volume_open(other_url, NULL));
    kestrel_file there = GOOD(kestrel_open(other, "/there", O_RDWR | O_CREAT, 0600));
    kestrel_file here = GOOD(kestrel_open(volume, "/t/file", O_RDWR, 0));
    IS(-EXDEV, kestrel_copy_range(here, 0, there, 0, 5));
    kestrel_queue queue = GOOD(kestrel_queue_open(volume, 4));
    IS(-EXDEV, kestrel_submit_fsync(queue, there, 0));
    IS(0, kestrel_queue_close(queue));
    IS(0, kestrel_close(here));
    /* Written and not closed: closing the volume stores it. */
    IS(3, kestrel_write(there, "abc", 3));
    IS(0, kestrel_volume_close(other));
    options.size = sizeof options;
    options.flags = KESTREL_READ_ONLY;
    options.who = "the tests of the C library";
    options.deadline_ms = 10000;
    other = GOOD(kestrel_volume_open(other_url, &options));
    IS(1, kestrel_volume_is_read_only(other));
    IS(0, kestrel_stat(other, "/there", 0, &st));
    IS(3, st.size);
    IS(-EROFS, kestrel_unlink(other, "/there"));
    IS(-EROFS, kestrel_open(other, "/there", O_RDWR, 0));
    IS(0, kestrel_volume_close(other));
}

/* A child can use nothing, but harms nobody; one that executes a program is free. */
static void fork_and_child(const char *url) {
    kestrel_file file = GOOD(kestrel_open(volume, "/t/file", O_RDWR, 0));
    const char *paths[] = {"/t/file"};
    kestrel_content content;
    IS(0, kestrel_read_many(volume, paths, 1, &content));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        kestrel_attributes st;
        IS(-EOWNERDEAD, kestrel_stat(volume, "/t", 0, &st));
        SAYS("forked");
        IS(-EOWNERDEAD, kestrel_write(file, "x", 1));
        IS(-EOWNERDEAD, kestrel_volume_open(url, NULL));
        IS(-EOWNERDEAD, kestrel_close(file));
        IS(-EOWNERDEAD, kestrel_volume_close(volume));
        kestrel_contents_free(&content, 1);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    IS(0, status);
    kestrel_contents_free(&content, 1);
    IS(1, kestrel_pwrite(file, "J", 1, 0));
    IS(0, kestrel_close(file));
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    CHECK(!strcmp(kestrel_error(), "") && kestrel_version()[0] == '0');
    volume = GOOD(kestrel_volume_open(arguments[1], NULL));
    names_and_attributes();
    files();
    directories_and_batches();
    bad_input(arguments[1], arguments[2]);
    fork_and_child(arguments[1]);
    kestrel_file left = GOOD(kestrel_open(volume, "/t/left", O_WRONLY | O_CREAT, 0600));
    IS(4, kestrel_write(left, "left", 4));
    IS(0, kestrel_volume_close(volume));
    IS(-EBADF, kestrel_volume_close(volume));
    IS(-EBADF, kestrel_close(left));
    volume = GOOD(kestrel_volume_open(arguments[1], NULL));
    kestrel_attributes st;
    IS(0, kestrel_stat(volume, "/t/left", 0, &st));
    IS(4, st.size);
    IS(0, kestrel_volume_close(volume));
    return 0;
}
