/*
 * libkestrel: KestrelFS volumes in C, without a mount, without root and without FUSE.
 *
 *     kestrel_volume volume = kestrel_volume_open("kestrel://meta1/photos", NULL);
 *     if (volume < 0) {
 *         fprintf(stderr, "%s\n", kestrel_error());
 *         return 1;
 *     }
 *     kestrel_file file = kestrel_open(volume, "/a", O_WRONLY | O_CREAT, 0666);
 *     kestrel_write(file, "hello", 5);
 *     kestrel_close(file);
 *     kestrel_volume_close(volume);
 *
 * Build with `cc program.c $(pkg-config --cflags --libs kestrel)`. docs/operations/c.md is the
 * guide, docs/semantics.md says what a volume promises.
 *
 * What holds for every call
 * -------------------------
 * Results. A call returns 0, a count or a handle; below zero it is -errno (Linux's numbers), and
 * kestrel_error() says what failed, why and what to do. errno itself is not set. What a call says
 * below of its errors is in addition to those of the system call of the same name, and to: -EBADF
 * (a handle is not open, or is of something else), -EFAULT (a pointer is NULL), -EINVAL (unknown
 * flags, a negative offset), -EIO and -ETIMEDOUT (the store or a server does not answer in time),
 * -EOWNERDEAD (after fork). A call that failed with one of the first three has changed nothing.
 *
 * Handles are numbers above zero, which are not used twice: a call with a handle that was closed,
 * also by another thread at this moment, fails with -EBADF and touches nothing. If several threads
 * close one handle, one of them succeeds.
 *
 * Threads. Every call may be made by any thread at any time, also with one handle, except where it
 * is said. Calls block until they are answered; a signal handler runs and the call goes on. It may
 * run on a thread of the library. The library makes no SIGPIPE.
 *
 * Memory. What a program passes is not used after the call, except by kestrel_submit_read, _write
 * and _stat. What the library returns is said to be given back by a kestrel_..._free, or is the
 * library's. Pointers must point to what is said here; only NULL is found out.
 *
 * Paths are bytes that end with a NUL, 1 to 4095 of them, of any encoding; each begins at the root
 * of the volume, with or without "/". A symbolic link at the end is followed except by calls that
 * make, move or remove names, and with KESTREL_NOFOLLOW. A link to an absolute path leads to that
 * path in the volume.
 *
 * fork. A child can use nothing of its parent's library: its calls fail with -EOWNERDEAD, and free
 * nothing. A child that executes a program is free, and so is one that was forked before the
 * parent's first call. The library starts threads, and is never unloaded (dlclose keeps it).
 *
 * A defect of the library does not end the program: a call in which it panics returns -EIO with a
 * text that says so, and then the volume takes no calls but kestrel_volume_close.
 *
 * Versions. Functions and structs stay as they are within one SONAME, libkestrel.so.0. A newer
 * library may give a meaning to `reserved` fields, which are 0 until then (pass 0), and may have
 * longer options, which begin with their size. It may return other errno values for one failure.
 */
#ifndef KESTREL_H
#define KESTREL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles: above zero they are open, below zero they are -errno, 0 is none. */
typedef int64_t kestrel_volume;
typedef int64_t kestrel_file;
typedef int64_t kestrel_dir;
typedef int64_t kestrel_queue;
typedef int64_t kestrel_log;

/* ---- Errors and versions ---- */

/*
 * The text of this thread's last call that failed: one line of UTF-8, "" if none has. It stays
 * until the thread's next call that fails. Never NULL.
 */
const char *kestrel_error(void);

/* The version of the library, as "0.1.0". Static memory. */
const char *kestrel_version(void);

/* ---- Volumes ---- */

/* Nothing will be changed: changes fail with -EROFS. Snapshots and versions always are so. */
#define KESTREL_READ_ONLY 1u

typedef struct kestrel_options {
    uint32_t size;        /* sizeof(kestrel_options) */
    uint32_t flags;       /* KESTREL_READ_ONLY or 0 */
    const char *token;    /* what servers are shown; NULL: the file that KESTREL_TOKEN_FILE names */
    const char *who;      /* for people who look at the server; NULL: the number of the process */
    uint64_t deadline_ms; /* how long a call waits for a server, ms; 0: the default of a mount */
} kestrel_options;

#define KESTREL_OPTIONS_INIT {(uint32_t)sizeof(kestrel_options), 0, NULL, NULL, 0}

/*
 * Opens the volume that `url` names, as `kestrel mount` does: kestrel://HOST/NAME, s3://…, a
 * directory, VOLUME@SNAPSHOT, VOLUME:/DIR@SNAPSHOT, VOLUME//VERSION. `options` may be NULL. Calls
 * are made with the effective user and groups that the process has now, new files with its umask.
 * Opens of one URL with one token share connections and caches; each is closed for itself.
 *
 * -ENOENT: there is no such volume. -EBUSY: a directory that another process has open. -EINVAL: not
 * a URL, token or option. -E2BIG: the options are of a newer version of the library.
 */
kestrel_volume kestrel_volume_open(const char *url, const kestrel_options *options);

/*
 * Closes a volume, with its files, directories and queues: waits for calls and submitted operations
 * that are under way, stores what was written, and makes it durable. Other threads' calls fail with
 * -EBADF meanwhile. The first error of storing is returned; it is closed all the same. At the end
 * of a process that has not closed it, what was written and not flushed is lost.
 */
int kestrel_volume_close(kestrel_volume volume);

/* 1 if nothing can be changed by it, else 0. */
int kestrel_volume_is_read_only(kestrel_volume volume);

typedef struct kestrel_room {
    uint64_t block_bytes; /* unit of the blocks, bytes */
    uint64_t blocks;      /* in all */
    uint64_t blocks_free; /* not used */
    uint64_t files;       /* files and directories that there are */
    uint64_t name_max;    /* longest name, bytes */
    uint64_t reserved[3];
} kestrel_room;

/* How much room there is, as statvfs(3). Quotas of directories are not counted. */
int kestrel_volume_room(kestrel_volume volume, kestrel_room *room);

/* Makes all that is committed durable. What open files have not flushed is not. */
int kestrel_volume_sync(kestrel_volume volume);

/* ---- Attributes ---- */

typedef struct kestrel_attributes {
    uint64_t ino;      /* inode number; of one volume no two files have the same */
    uint64_t size;     /* bytes */
    uint32_t mode;     /* type and permission bits, as st_mode of stat(2) */
    uint32_t nlink;    /* names of a file; of a directory it says nothing */
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev;     /* of a device */
    uint32_t reserved0;
    int64_t atime_ns;  /* all times: nanoseconds since 1970-01-01 00:00 UTC */
    int64_t mtime_ns;
    int64_t ctime_ns;
    int64_t btime_ns;  /* when it was made */
    uint64_t data_version; /* another number whenever the committed content is another one */
    uint64_t reserved[6];
} kestrel_attributes;

/* Not of what a symbolic link at the end leads to, but of the link. */
#define KESTREL_NOFOLLOW 1

/* stat(2); with KESTREL_NOFOLLOW lstat(2). What this process has written counts. */
int kestrel_stat(kestrel_volume volume, const char *path, int flags, kestrel_attributes *out);

/* access(2), with the effective user: `mask` of R_OK, W_OK and X_OK, or 0. */
int kestrel_access(kestrel_volume volume, const char *path, int mask);

/* chmod(2): `mode` is permission bits, at most 07777. */
int kestrel_chmod(kestrel_volume volume, const char *path, uint32_t mode, int flags);

/* For kestrel_chown: this one stays as it is. */
#define KESTREL_KEEP_ID UINT32_MAX

/* chown(2); with KESTREL_NOFOLLOW lchown(2). */
int kestrel_chown(kestrel_volume volume, const char *path, uint32_t uid, uint32_t gid, int flags);

/* For kestrel_utimens, in the place of a time: the present one; this one stays. */
#define KESTREL_TIME_NOW INT64_MIN
#define KESTREL_TIME_OMIT (INT64_MIN + 1)

/* utimensat(2): nanoseconds since 1970-01-01 00:00 UTC. */
int kestrel_utimens(kestrel_volume volume, const char *path, int64_t atime_ns, int64_t mtime_ns,
                    int flags);

/* truncate(2): sets the size, in bytes. */
int kestrel_truncate(kestrel_volume volume, const char *path, int64_t size);

/*
 * Extended attributes. The two that read give the size of the value and put it into `buffer`, which
 * has `len` bytes; with `len` 0 they give the size alone. -ERANGE: it has no place there, and the
 * buffer is as it was. -ENODATA: there is no such attribute.
 *
 * kestrel_listxattr gives names, a NUL behind each.
 */
int64_t kestrel_getxattr(kestrel_volume volume, const char *path, const char *name, void *buffer,
                         size_t len, int flags);
int64_t kestrel_listxattr(kestrel_volume volume, const char *path, void *buffer, size_t len,
                          int flags);

/* For kestrel_setxattr: fails if it is there (-EEXIST), if it is not (-ENODATA). */
#define KESTREL_XATTR_CREATE 2
#define KESTREL_XATTR_REPLACE 4

int kestrel_setxattr(kestrel_volume volume, const char *path, const char *name, const void *value,
                     size_t len, int flags);
int kestrel_removexattr(kestrel_volume volume, const char *path, const char *name, int flags);

/* ---- Names ---- */

/* mkdir(2): `mode` is permission bits, of which the umask takes some away. */
int kestrel_mkdir(kestrel_volume volume, const char *path, uint32_t mode);

/* For kestrel_mkdirs: it is no error if the directory is there. */
#define KESTREL_EXIST_OK 1

/* The same, and makes the directories above it that are missing, with 0777 and the umask. */
int kestrel_mkdirs(kestrel_volume volume, const char *path, uint32_t mode, int flags);

/* unlink(2). */
int kestrel_unlink(kestrel_volume volume, const char *path);

/* rmdir(2): of an empty directory. */
int kestrel_rmdir(kestrel_volume volume, const char *path);

/* For kestrel_rename: what is there stays (-EEXIST); the two change places. Not both. */
#define KESTREL_NOREPLACE 1
#define KESTREL_EXCHANGE 2

/* renameat2(2): at once, for all who look. */
int kestrel_rename(kestrel_volume volume, const char *from, const char *to, int flags);

/* symlink(2). */
int kestrel_symlink(kestrel_volume volume, const char *target, const char *path);

/* link(2): `other` becomes a name of what `path` is. A symbolic link is not followed. */
int kestrel_link(kestrel_volume volume, const char *path, const char *other);

/* The target of a symbolic link, without a NUL: buffer and result are as for kestrel_getxattr. */
int64_t kestrel_readlink(kestrel_volume volume, const char *path, void *buffer, size_t len);

/* ---- Files ---- */

/*
 * open(2). `flags`: O_RDONLY, O_WRONLY or O_RDWR; O_CREAT, O_EXCL, O_TRUNC, O_APPEND; O_CLOEXEC,
 * O_NOATIME, O_NOCTTY, O_NONBLOCK and O_LARGEFILE change nothing. Others are refused with -EINVAL:
 * nobody shall believe in an O_SYNC that is not heard. `mode` counts with O_CREAT alone.
 *
 * -EOPNOTSUPP: a device, pipe or socket; open it through a mount.
 */
kestrel_file kestrel_open(kestrel_volume volume, const char *path, int flags, uint32_t mode);

/*
 * Commits what was written, so that other clients see it, and closes the file. An error is that of
 * storing it; the file is closed all the same. Calls of other threads that use the file end as if
 * it was open; what they write meanwhile may be committed later.
 */
int kestrel_close(kestrel_file file);

/*
 * pread(2) and pwrite(2): at an offset, in bytes; the position stays. A read is shorter than `len`
 * only at the end of the file, and 0 there. A write is of all bytes. At most 0x7ffff000 bytes are
 * transferred by one call, as by Linux. With O_APPEND kestrel_pwrite writes at the end.
 *
 * Where a write fails, some bytes before may be written. -ENOSPC and -EDQUOT may come as late as
 * kestrel_flush, kestrel_fsync and kestrel_close.
 */
int64_t kestrel_pread(kestrel_file file, void *buffer, size_t len, int64_t offset);
int64_t kestrel_pwrite(kestrel_file file, const void *buffer, size_t len, int64_t offset);

/* The same at the position, which they move. Threads that share a file take turns. */
int64_t kestrel_read(kestrel_file file, void *buffer, size_t len);
int64_t kestrel_write(kestrel_file file, const void *buffer, size_t len);

/* lseek(2), with SEEK_DATA and SEEK_HOLE: the new position. */
int64_t kestrel_lseek(kestrel_file file, int64_t offset, int whence);

/* ftruncate(2): sets the size, in bytes. */
int kestrel_ftruncate(kestrel_file file, int64_t size);

/* Commits what was written: other clients see it, and a crash of this process keeps it. */
int kestrel_flush(kestrel_file file);

/* The same, and makes it durable: a crash of machines keeps it. */
int kestrel_fsync(kestrel_file file);

/* fstat(2). */
int kestrel_fstat(kestrel_file file, kestrel_attributes *out);

/*
 * copy_file_range(2) between files of one volume, by reference where they are large: how many bytes
 * were copied, fewer than `len` only at the end of the source. UINT64_MAX: all there is.
 *
 * -EXDEV: the files are those of two volumes.
 */
int64_t kestrel_copy_range(kestrel_file from, int64_t from_offset, kestrel_file to,
                           int64_t to_offset, uint64_t len);

/* ---- Directories ---- */

/* For kestrel_opendir: attributes come with the names, with one burst for up to 4096 of them. */
#define KESTREL_DIR_ATTRIBUTES 1

typedef struct kestrel_dirent {
    uint64_t ino;
    uint32_t type;     /* DT_REG, DT_DIR, … of <dirent.h> */
    uint32_t name_len; /* bytes of the name without its NUL */
    int32_t error;     /* 0, or -errno: there are no attributes of this one */
    uint32_t reserved0;
    kestrel_attributes attributes; /* with KESTREL_DIR_ATTRIBUTES, not of what links lead to */
    char name[256];    /* ends with a NUL */
} kestrel_dirent;

/*
 * Begins to list a directory. Names come in the order of their bytes, without "." and "..". What is
 * made or removed meanwhile may or may not come; every other name comes once.
 */
kestrel_dir kestrel_opendir(kestrel_volume volume, const char *path, int flags);

/* The next name: 1, or 0 at the end. Threads that share a directory take turns. */
int kestrel_readdir(kestrel_dir dir, kestrel_dirent *out);

int kestrel_closedir(kestrel_dir dir);

/* ---- Many files with one call ---- */

/*
 * All look-ups of a batch leave together, and small files come with the answers. These calls give
 * how many of the batch have failed, each of them with an `error`; kestrel_error() is that of the
 * first one. Below zero nothing was done, and nothing is to be given back. At most 16,777,216 paths.
 */

typedef struct kestrel_content {
    const void *data;  /* the bytes; NULL with an error */
    uint64_t len;      /* how many */
    int32_t error;     /* 0 or -errno */
    uint32_t reserved0;
    void *owner;       /* the library's */
} kestrel_content;

/*
 * The whole contents of files: `out` has room for `count` of them. They take memory, all at a time,
 * until kestrel_contents_free gives it back, by any thread and also when the volume is closed.
 */
int64_t kestrel_read_many(kestrel_volume volume, const char *const *paths, size_t count,
                          kestrel_content *out);

/* Gives contents back; their fields are NULL and 0 then, and they may be given back once more. */
void kestrel_contents_free(kestrel_content *contents, size_t count);

/* Attributes: `out` and `errors` (0 or -errno) have room for `count` each. */
int64_t kestrel_stat_many(kestrel_volume volume, const char *const *paths, size_t count, int flags,
                          kestrel_attributes *out, int *errors);

typedef struct kestrel_name {
    const char *name;  /* ends with a NUL */
    uint64_t ino;
    uint32_t name_len; /* bytes of the name without its NUL */
    uint32_t type;     /* DT_REG, DT_DIR, … of <dirent.h> */
} kestrel_name;

typedef struct kestrel_listing {
    const kestrel_name *names; /* in the order of their bytes */
    uint64_t count;
    int32_t error;     /* 0 or -errno */
    uint32_t reserved0;
    void *owner;       /* the library's */
} kestrel_listing;

/* The names in directories; kestrel_listings_free gives them back. */
int64_t kestrel_list_many(kestrel_volume volume, const char *const *paths, size_t count,
                          kestrel_listing *out);
void kestrel_listings_free(kestrel_listing *listings, size_t count);

/* ---- Operations that are submitted ---- */

/*
 * A queue takes operations of one volume and gives their completions. kestrel_submit_… returns at
 * once: 0, or -errno if nothing was submitted (-EAGAIN: the queue is full; -EXDEV: the file is one
 * of another volume). `user` comes back with the completion.
 *
 * Order. Operations that are under way at a time happen in any order, and complete in any order. An
 * operation that needs another one is submitted when the other one's completion was taken: so a
 * kestrel_submit_fsync covers the writes whose completions were taken before. Each completes once.
 *
 * Memory. `buffer` and `out` belong to the operation until its completion is taken, or the queue is
 * closed. Paths are copied.
 *
 * An operation that was submitted is not cancelled. Where a server was killed, it ends as the call
 * that waits does: when the server is back, or with an error after the deadline of the volume.
 */

#define KESTREL_OP_READ 1u
#define KESTREL_OP_WRITE 2u
#define KESTREL_OP_FLUSH 3u
#define KESTREL_OP_FSYNC 4u
#define KESTREL_OP_OPEN 5u
#define KESTREL_OP_CLOSE 6u
#define KESTREL_OP_STAT 7u
#define KESTREL_OP_MKDIR 8u
#define KESTREL_OP_UNLINK 9u
#define KESTREL_OP_RENAME 10u

typedef struct kestrel_completion {
    uint64_t user;      /* as it was submitted */
    int64_t result;     /* what the call of the same name returns: 0, a count, a handle, -errno */
    uint32_t operation; /* KESTREL_OP_… */
    uint32_t reserved0;
    uint64_t reserved;
} kestrel_completion;

/* For up to `depth` operations, 1 to 65536, that are submitted and whose completion is not taken. */
kestrel_queue kestrel_queue_open(kestrel_volume volume, uint32_t depth);

/*
 * Waits for the operations that are under way, and drops the completions that nobody has taken; a
 * file of an open among them is closed. Submits and takes of other threads fail with -EBADF.
 */
int kestrel_queue_close(kestrel_queue queue);

/*
 * A descriptor that is readable as long as there are completions to take: for poll and epoll. It is
 * the queue's; do not read or close it.
 */
int kestrel_queue_fd(kestrel_queue queue);

/*
 * Takes up to `max` completions: how many. Waits for the first one `timeout_ms` milliseconds, not at
 * all with 0, without a limit below 0; then it gives 0. If some have failed, kestrel_error() is that
 * of the first one of them: take one at a time to have each.
 */
int64_t kestrel_queue_take(kestrel_queue queue, kestrel_completion *out, size_t max,
                           int64_t timeout_ms);

int kestrel_submit_read(kestrel_queue queue, kestrel_file file, void *buffer, size_t len,
                        int64_t offset, uint64_t user);
int kestrel_submit_write(kestrel_queue queue, kestrel_file file, const void *buffer, size_t len,
                         int64_t offset, uint64_t user);
int kestrel_submit_flush(kestrel_queue queue, kestrel_file file, uint64_t user);
int kestrel_submit_fsync(kestrel_queue queue, kestrel_file file, uint64_t user);
int kestrel_submit_open(kestrel_queue queue, const char *path, int flags, uint32_t mode,
                        uint64_t user);

/* The handle is closed at once, the completion says whether what was written is stored. */
int kestrel_submit_close(kestrel_queue queue, kestrel_file file, uint64_t user);

int kestrel_submit_stat(kestrel_queue queue, const char *path, int flags, kestrel_attributes *out,
                        uint64_t user);
int kestrel_submit_mkdir(kestrel_queue queue, const char *path, uint32_t mode, uint64_t user);
int kestrel_submit_unlink(kestrel_queue queue, const char *path, uint64_t user);
int kestrel_submit_rename(kestrel_queue queue, const char *from, const char *to, int flags,
                          uint64_t user);

/* ---- Jobs ---- */

/*
 * A process of a job logs what it makes for itself, at the speed of memory, without a server
 * (docs/operations/jobs.md): new directories, files with their content, symbolic links. It sees
 * nothing of other processes until the job is published. `kestrel job start`, `publish` and `abort`
 * begin and end jobs; `kestrel job log -- COMMAND` is for processes that change or remove what is
 * there.
 *
 * Errors of these calls are -EINVAL for all that the log refuses (a name is taken, a rank has
 * finished, there is no such job); the text says which.
 */

/* For kestrel_log_open: another process that has this log open can write nothing any more. */
#define KESTREL_TAKE_OVER 1u

typedef struct kestrel_log_options {
    uint32_t size;          /* sizeof(kestrel_log_options) */
    uint32_t flags;         /* KESTREL_TAKE_OVER or 0 */
    uint64_t sync_every_ms; /* how long what was made waits in memory, ms; 0: 5000 */
} kestrel_log_options;

#define KESTREL_LOG_OPTIONS_INIT {(uint32_t)sizeof(kestrel_log_options), 0, 0}

/*
 * Opens the log of a rank of a job: a number, 0 to 899, that no other process has. `volume` and
 * `job` may be NULL: then KESTREL_JOB_VOLUME and KESTREL_JOB_NUMBER name them, as `kestrel job
 * start` prints them. A process whose rank was killed goes on with what was synced. The token is
 * that of the file that KESTREL_TOKEN_FILE names.
 */
kestrel_log kestrel_log_open(const char *volume, const char *job, uint32_t rank,
                             const kestrel_log_options *options);

/* Make what is missing of the path's directories, too. `mode`: permission bits; the umask counts. */
int kestrel_log_mkdirs(kestrel_log log, const char *path, uint32_t mode);
int kestrel_log_create(kestrel_log log, const char *path, uint32_t mode, const void *content,
                       size_t len);
int kestrel_log_symlink(kestrel_log log, const char *target, const char *path);

/* Returns when all that was made is in the store. */
int kestrel_log_sync(kestrel_log log);

/* Syncs and closes the log; the rank may go on later. It is closed also with an error. */
int kestrel_log_close(kestrel_log log);

/*
 * Syncs and closes the log, and makes it a part of the job: the rank has logged all. How many rows
 * the part has. After an error `kestrel job log --rank N --list /dev/null` finishes the rank.
 */
int64_t kestrel_log_finish(kestrel_log log);

#ifdef __cplusplus
}
#endif

#endif /* KESTREL_H */
