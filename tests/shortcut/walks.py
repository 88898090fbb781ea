"""Walks through directories that the kernel was told of without asking: every kind of call,
symbolic links, `..`, absent names and names of the wrong type."""

import ctypes
import os
import socket
import stat
import struct

from harness import USER, case, open_and_close, read, write

LIBC = ctypes.CDLL(None, use_errno=True)
DEEP = "a/b/c/d/e"
CREATE = os.O_CREAT | os.O_RDWR
EXCL = CREATE | os.O_EXCL


def mode(path, **options):
    return oct(os.stat(path, **options).st_mode)


def checked(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def openat2(fd, path, flags, resolve):
    how = struct.pack("QQQ", flags, 0, resolve)
    while True:
        try:
            return os.close(checked(LIBC.syscall(437, fd, path.encode(), how, len(how))))
        except (
            BlockingIOError
        ):  # somebody renamed something somewhere meanwhile: the kernel wants to be asked again
            pass


@case
def opens(run):
    """open, stat and lstat of a deep file, cold and again: one request each"""
    run.do("open", open_and_close, run.path(DEEP, "file"), requests=1, plain=7)
    run.do("open again", open_and_close, run.path(DEEP, "file"), requests=1, plain=7)
    run.do("read", read, run.path(DEEP, "n0"), requests=1)
    run.do("stat", mode, run.path(DEEP, "n1"), requests=1)
    run.do("lstat", lambda: oct(os.lstat(run.path(DEEP, "n2")).st_mode), requests=1)
    run.do("odd spelling", open_and_close, run.path("/a//b/./c///d/e/n3"), requests=1)
    run.do(
        "through a number of points",
        open_and_close,
        run.path("./" * 300 + DEEP + "/n4"),
        requests=1,
    )


@case
def stats_of_what_was_faked(run):
    """a directory that was passed on the way has its own attributes when it is asked for"""
    run.do("walk through", mode, run.path("a/real/x"), requests=1)
    run.do("stat", mode, run.path("a/real"))
    run.do("nlink", lambda: os.stat(run.path("a")).st_nlink)
    run.do(
        "inode by two ways",
        lambda: os.stat(run.path("a/real")).st_ino == os.stat(run.path("a/real/sub/..")).st_ino,
    )
    run.do(
        "inode as listed",
        lambda: {e.name: e.inode() for e in os.scandir(run.path("a"))}["b"]
        == os.stat(run.path("a/b")).st_ino,
    )
    run.do("statfs", lambda: os.statvfs(run.path("a/b/c")).f_namemax, unlike="local")
    run.do("trailing slash", mode, run.path("a/b/c/"))
    run.do("trailing slash on a file", mode, run.path("a/b/file/"))
    run.do("trailing point", mode, run.path("a/b/c/."))
    run.do("list", lambda: sorted(os.listdir(run.path("a/b/c"))))
    run.do("list cold", lambda: sorted(os.listdir(run.path("secret/in"))))


@case
def working_directory(run):
    """chdir to a faked directory, getcwd, names relative to it and .. out of it"""

    def moves():
        os.chdir(run.path("a/b/c"))
        here = os.getcwd()
        open_and_close("d/e/file")
        return here[len(run.here) :], read("../file"), read("../../file"), sorted(os.listdir("."))

    run.child("chdir", moves)

    def makes():
        os.chdir(run.path("pub"))
        os.mkdir("k")
        write("k/z", b"1")
        os.rename("k", "l")
        os.chdir("l")
        return os.stat("z").st_size, os.listdir(".."), os.path.basename(os.getcwd())

    run.child("makes and renames", makes)

    def removes():
        os.mkdir(run.path("pub/gone"))
        os.chdir(run.path("pub/gone"))
        os.rmdir(run.path("pub/gone"))
        open_and_close("new", CREATE)

    run.child("own removal", removes)


@case
def descriptors_of_directories(run):
    """O_DIRECTORY, O_PATH and openat below what was faked"""

    def relative(flags):
        fd = os.open(run.path("a/b/c"), flags)
        try:
            open_and_close("d/file", dir_fd=fd)
            return mode("d/e/file", dir_fd=fd), mode("..", dir_fd=fd), oct(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    run.do("opened", relative, os.O_RDONLY | os.O_DIRECTORY)
    run.do("by path", relative, os.O_PATH)
    run.do("O_DIRECTORY on a file", open_and_close, run.path("a/b/file"), os.O_DIRECTORY)
    run.do(
        "O_PATH of a real one",
        lambda: oct(os.fstat(os.open(run.path("a/real"), os.O_PATH)).st_mode),
    )
    run.do("O_PATH of a link", open_and_close, run.path("a/link"), os.O_PATH | os.O_NOFOLLOW)
    run.do("O_TMPFILE", open_and_close, run.path("a/b/c"), os.O_TMPFILE | os.O_RDWR)
    run.do("write to a directory", open_and_close, run.path("a/b/c"), os.O_WRONLY)


@case
def absent_on_the_way(run):
    """a name on the way that does not exist: ENOENT for every call, and it is not there
    afterwards"""
    for label, call in [
        ("open", lambda: open_and_close(run.path("a/nope/x/y"))),
        ("create", lambda: open_and_close(run.path("a/nope/x/y"), CREATE)),
        ("exclusive", lambda: open_and_close(run.path("a/nope/x/y"), EXCL)),
        ("stat", lambda: os.stat(run.path("a/nope/x/y"))),
    ]:
        run.do(label, call, requests=1)
    run.do("mkdir", os.mkdir, run.path("a/nope/x/y"))
    run.do("unlink", os.unlink, run.path("a/nope/x/y"))
    run.do("rmdir", os.rmdir, run.path("a/nope/x/y"))
    run.do("symlink", os.symlink, "t", run.path("a/nope/x/y"))
    run.do("rename from", os.rename, run.path("a/nope/x/y"), run.path("pub/y"))
    run.do("rename to", os.rename, run.path("a/file"), run.path("a/nope/x/y"))
    run.do("link", os.link, run.path("a/file"), run.path("a/nope/x/y"))
    run.do("readlink", os.readlink, run.path("a/nope/x/y"))
    run.child("chdir", os.chdir, run.path("a/nope/x"))
    run.do("list", os.listdir, run.path("a/nope/x"))
    run.do("statfs", os.statvfs, run.path("a/nope/x"))
    run.do("xattr", os.getxattr, run.path("a/nope/x/y"), "user.k")
    run.do("stat it", os.stat, run.path("a/nope"))
    run.do("lstat it", os.lstat, run.path("a/nope"))
    run.do("access it", os.access, run.path("a/nope"), os.F_OK)
    run.do("listed", lambda: sorted(os.listdir(run.path("a"))))
    run.do("make it", os.mkdir, run.path("a/nope"))
    run.do("then below", os.stat, run.path("a/nope/x"))


@case
def absent_and_back(run):
    """`..` after what does not exist, is a link or a file does not climb out of it"""
    run.do("absent", mode, run.path("a/absent/../file"))
    run.do("absent again", mode, run.path("a/absent/../file"))
    run.do("absent, deeper", mode, run.path("a/absent/x/../../file"))
    run.do("walk in first", open_and_close, run.path("a/absent2/y"))
    run.do("then back", mode, run.path("a/absent2/../file"))
    run.do("create after", open_and_close, run.path("a/absent/../new"), CREATE)
    run.do("link", mode, run.path("a/coldlink/../x"))
    run.do("link, a name of the link's own directory", mode, run.path("a/coldlink/../file"))
    run.do("link walked first", mode, run.path("a/link/sub/y"))
    run.do("then back", mode, run.path("a/link/../file"))
    run.do("file", mode, run.path("a/file/../file"))
    run.do("directories", mode, run.path("a/b/c/../../real"))
    run.do("directories and back down", read, run.path("a/b/c/../c/d/../../file"))
    run.do(
        "removed",
        lambda: (
            os.mkdir(run.path("pub/r")),
            open_and_close(run.path("pub/r/x"), CREATE),
            os.unlink(run.path("pub/r/x")),
            os.rmdir(run.path("pub/r")),
        )[3],
    )
    run.do("removed and back", mode, run.path("pub/r/../../a"))


@case
def file_on_the_way(run):
    """a file on the way: ENOTDIR for every call, and it is still a file afterwards"""
    run.do("open", open_and_close, run.path("a/file/x"))
    run.do("create", open_and_close, run.path("a/b/file/x"), CREATE)
    run.do("deeper", open_and_close, run.path("a/b/c/file/x/y/z"))
    run.do("stat", os.stat, run.path("a/file/x"))
    run.do("mkdir", os.mkdir, run.path("a/file/x"))
    run.do("unlink", os.unlink, run.path("a/file/x"))
    run.do("rename to", os.rename, run.path("a/b/file"), run.path("a/file/x"))
    run.child("chdir", os.chdir, run.path("a/file"))
    run.do("list", os.listdir, run.path("a/file"))
    run.do("stat it", mode, run.path("a/file"))
    run.do("open it", read, run.path("a/file"))
    run.do("read the deeper one", read, run.path("a/b/c/file"))


@case
def links_on_the_way(run):
    """symbolic links on the way, cold, again and of all kinds"""
    run.do("open", read, run.path("a/link/sub/y"))
    run.do("again", read, run.path("a/link/sub/y"))
    run.do("stat", mode, run.path("a/link/x"))
    run.do("link itself", lambda: oct(os.lstat(run.path("a/link")).st_mode))
    run.do("readlink", os.readlink, run.path("a/link"))
    run.do("readlink cold, deep", os.readlink, run.path("a/b/../dangling"))
    run.do("upwards", read, run.path("a/uplink/d/file"))
    run.do("two links", read, run.path("a/link2/sub/y"))
    run.do("loop", read, run.path("a/loop/x"))
    run.do("loop last", read, run.path("a/loop"))
    run.do("dangling", read, run.path("a/dangling/x"))
    run.do("dangling last", read, run.path("a/dangling"))
    run.do("create through", open_and_close, run.path("a/link/sub/new"), EXCL)
    run.do("create over a dangling link", write, run.path("a/dangling"), b"made")
    run.do("what that made", read, run.path("a/nowhere"))
    run.do("exclusive over a link", open_and_close, run.path("a/link"), EXCL)
    run.do("mkdir through", os.mkdir, run.path("a/link/sub/newd"))
    run.do("rename through", os.rename, run.path("a/link/sub/new"), run.path("a/uplink/moved"))
    run.do("unlink through", os.unlink, run.path("a/uplink/moved"))
    run.do("O_NOFOLLOW", open_and_close, run.path("a/link"), os.O_NOFOLLOW)
    run.do("O_NOFOLLOW on the way", open_and_close, run.path("a/link/x"), os.O_NOFOLLOW)
    run.do("O_CREAT to an existing file", open_and_close, run.path("a/link/x"), CREATE)
    run.do(
        "links made here",
        lambda: (os.symlink("b/c", run.path("a/new")), read(run.path("a/new/d/file")))[1],
    )


@case
def replaced_by_link(run):
    """what was a directory on the way becomes a link, a file, a directory again"""
    run.do(
        "make",
        lambda: (
            os.mkdir(run.path("pub/sw")),
            write(run.path("pub/sw/f"), b"1"),
            read(run.path("pub/sw/f")),
        )[2],
    )
    run.do(
        "empty",
        lambda: (
            os.unlink(run.path("pub/sw/f")),
            os.rmdir(run.path("pub/sw")),
            os.symlink("../a/real", run.path("pub/sw")),
        )[2],
    )
    run.do("through the link", read, run.path("pub/sw/sub/y"))
    run.do(
        "to file",
        lambda: (
            os.unlink(run.path("pub/sw")),
            write(run.path("pub/sw"), b"2"),
            read(run.path("pub/sw")),
        )[2],
    )
    run.do("below the file", read, run.path("pub/sw/sub/y"))
    run.do(
        "to directory",
        lambda: (
            os.unlink(run.path("pub/sw")),
            os.mkdir(run.path("pub/sw")),
            os.listdir(run.path("pub/sw")),
        )[2],
    )
    run.do("create in it", open_and_close, run.path("pub/sw/f"), CREATE)


@case
def resolve_flags(run):
    """openat2 with restrictions sees links and .. as they are"""
    no_xdev, no_magic, no_symlinks, beneath, in_root = 1, 2, 4, 8, 16
    fd = os.open(run.here, os.O_PATH)
    for name, path in [
        ("plain", "a/b/c/file"),
        ("link", "a/link2/x"),
        ("cold link", "a/coldlink/y"),
        ("up", "a/uplink/file"),
        ("absent", "a/zz/y"),
        ("back", "a/b/../file"),
    ]:
        for flag, resolve in [
            ("no symlinks", no_symlinks),
            ("beneath", beneath),
            ("no xdev", no_xdev),
            ("in root", in_root),
            ("no magic", no_magic),
        ]:
            run.do(f"{name}, {flag}", openat2, fd, path, os.O_RDONLY, resolve)
    os.close(fd)


@case
def permissions(run):
    """an ordinary user is stopped at the component that stops him, root is not"""
    run.user("open", open_and_close, run.path("secret/in/file"))
    run.user("stat", os.stat, run.path("secret/in/file"))
    run.user("create", open_and_close, run.path("secret/in/z"), CREATE)
    run.user("absent below", os.stat, run.path("secret/zz/file"))
    run.user("mkdir", os.mkdir, run.path("secret/in/d"))
    run.user("chdir", os.chdir, run.path("secret/in"))
    run.user("chdir into", os.chdir, run.path("secret"))
    run.user("access", os.access, run.path("a/real"), os.X_OK)
    run.user("access of what may", os.access, run.path("a/b"), os.X_OK)
    run.user("read", read, run.path("a/real/x"))
    run.user("through a link", os.stat, run.path("a/link/sub/y"))
    run.user("write where not allowed", open_and_close, run.path("a/b/new"), CREATE)
    run.user("write where allowed", open_and_close, run.path("pub/mine"), CREATE)
    run.do("owner", lambda: os.stat(run.path("pub/mine")).st_uid == USER)
    run.do("root", read, run.path("secret/in/file"))
    run.user("after root was there", open_and_close, run.path("secret/in/file"))
    run.do("chmod on the way", os.chmod, run.path("a/b/c"), 0o700)
    run.user("then", os.stat, run.path("a/b/c/d/file"))
    run.user("then, other", open_and_close, run.path("a/b/c/d/file"))
    run.do("back", os.chmod, run.path("a/b/c"), 0o755)
    run.user("then again", read, run.path("a/b/c/d/file"))


@case
def names_too_long(run):
    """a name of more than 255 bytes, in a directory that is there, not there, a file, or closed to
    the caller"""
    long = "n" * 256
    for where in ("a/b", "a/zz", "a/zz/b", "a/real/x", "secret/in"):
        path = run.path(where, long)
        for who in (run.do, run.user):
            who(f"{where}: stat", os.stat, path)
            who(f"{where}: open", open_and_close, path)
            who(f"{where}: create", open_and_close, path, CREATE)
            who(f"{where}: exclusive", open_and_close, path, EXCL)
            who(f"{where}: mkdir", os.mkdir, path)
            who(f"{where}: mknod", os.mknod, path)
            who(f"{where}: symlink", os.symlink, "target", path)
            who(f"{where}: link", os.link, run.path("a/b/c/d/file"), path)
            who(f"{where}: unlink", os.unlink, path)
            who(f"{where}: rmdir", os.rmdir, path)
            who(f"{where}: in mid-path", os.stat, f"{path}/below")
    run.do("rename to", os.rename, run.path("a/real/x"), run.path("a/b", long))
    run.do("rename to where nothing is", os.rename, run.path("a/real/x"), run.path("a/zz", long))
    run.do("rename from", os.rename, run.path("a/b", long), run.path("pub/new"))


@case
def permission_taken_away(run):
    """what the kernel lets anybody pass without asking (O_PATH, watches) is refused as soon as
    chmod or rename has its answer"""

    def look(names, label):
        run.user(f"{label}, O_PATH", open_and_close, run.path(names), os.O_PATH)
        run.user(f"{label}, statfs", lambda path: os.statvfs(path).f_namemax, run.path(names))

    os.mkdir(run.path("private"), 0o700)
    for turn in range(5):
        # Walked twice, so that the names are proved and believed where they may be.
        for _ in range(2):
            run.user(f"{turn}: walked", read, run.path("a/b/c/d/file"))
        look("a/b/c/d", f"{turn}: held")
        closed = ("a/b", "a", "a/b", "a", "a/b")[turn]
        run.do(
            f"{turn}: closed", os.chmod, run.path(closed), (0o700, 0o710, 0o766, 0o754, 0o0)[turn]
        )
        look("a/b/c/d", f"{turn}: refused")
        look("a/b/c", f"{turn}: refused above")
        run.do(f"{turn}: root is not", read, run.path("a/b/c/d/file"))
        run.do(f"{turn}: opened", os.chmod, run.path(closed), 0o755)
        look("a/b/c/d", f"{turn}: not refused")
        run.user(f"{turn}: walked again", read, run.path("a/b/c/d/file"))
        run.do(f"{turn}: moved", os.rename, run.path("a/b/c"), run.path("private/c"))
        look("private/c/d", f"{turn}: refused there")
        look("a/b/c/d", f"{turn}: gone here")
        for _ in range(3):
            run.do(f"{turn}: root goes there", read, run.path("private/c/d/file"))
        look("private/c/d", f"{turn}: refused below what is private")
        run.do(f"{turn}: moved back", os.rename, run.path("private/c"), run.path("a/b/c"))
        run.user(f"{turn}: walked there", read, run.path("a/b/c/d/file"))


@case
def held_while_the_way_closes(run):
    """a process that has hold of a directory (O_PATH) goes on from there when search permission
    above it is taken away, or it is moved"""
    os.mkdir(run.path("private"), 0o700)
    for turn in range(4):
        for _ in range(3):
            run.user(f"{turn}: walked", read, run.path("a/b/c/d/file"))
        held = {
            name: os.open(run.path(name), os.O_PATH) for name in ("a", "a/b", "a/b/c", "a/b/c/d")
        }
        try:
            if turn % 2:
                run.do(f"{turn}: moved", os.rename, run.path("a"), run.path("private/a"))
            else:
                run.do(f"{turn}: closed", os.chmod, run.path("a"), 0o700)
            for name, fd in held.items():
                below = os.path.relpath("a/b/c/d/file", name)
                run.user(
                    f"{turn}: from {name}, which is held",
                    lambda below=below, fd=fd: os.close(os.open(below, os.O_RDONLY, dir_fd=fd)),
                )
                run.user(f"{turn}: not there, from {name}", lambda fd=fd: os.stat("h/x", dir_fd=fd))
                run.user(
                    f"{turn}: listed, from {name}",
                    lambda fd=fd: os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)),
                )
            run.user(f"{turn}: by path", read, run.path("a/b/c/d/file"))
            if turn % 2:
                run.do(f"{turn}: moved back", os.rename, run.path("private/a"), run.path("a"))
            else:
                run.do(f"{turn}: opened", os.chmod, run.path("a"), 0o755)
            run.user(f"{turn}: by path again", read, run.path("a/b/c/d/file"))
        finally:
            for fd in held.values():
                os.close(fd)


@case
def names_come_and_go(run):
    """create, exclusive create, mkdir, unlink, rename, link, and what is left"""
    run.do("create", open_and_close, run.path("pub/f1"), CREATE, requests=1)
    run.do("create what exists", open_and_close, run.path("pub/f1"), CREATE, requests=1)
    run.do("exclusive", open_and_close, run.path("pub/f1"), EXCL)
    run.do("truncate", open_and_close, run.path("a/b/c/d/file"), os.O_WRONLY | os.O_TRUNC)
    run.do("truncated", read, run.path("a/b/c/d/file"))
    run.do("O_CREAT on a directory", open_and_close, run.path("a/b"), CREATE)
    run.do("O_CREAT with a slash", open_and_close, run.path("pub/slash/"), CREATE)
    run.do("mkdir", os.mkdir, run.path("a/b/c/d/e/dir"), requests=2)
    run.do("mkdir again", os.mkdir, run.path("a/b/c/d/e/dir"))
    run.do("mkdir with a slash", os.mkdir, run.path("a/b/c/d/e/dir2/"))
    run.do(
        "absent, then there",
        lambda: (
            os.path.exists(run.path("pub/neg")),
            open_and_close(run.path("pub/neg"), CREATE),
            mode(run.path("pub/neg")),
        ),
    )
    run.do(
        "rename a file", os.rename, run.path("a/b/c/d/e/n0"), run.path("a/b/c/d/e/m0"), requests=3
    )
    run.do("the old name", os.stat, run.path("a/b/c/d/e/n0"))
    run.do("the new one", read, run.path("a/b/c/d/e/m0"))
    run.do("unlink", os.unlink, run.path("a/b/c/d/e/n1"), requests=2)
    run.do("unlink again", os.unlink, run.path("a/b/c/d/e/n1"))
    run.do("link", os.link, run.path("a/b/c/d/e/n2"), run.path("pub/hard"))
    run.do(
        "nlink",
        lambda: (
            os.stat(run.path("pub/hard")).st_nlink,
            os.path.samefile(run.path("pub/hard"), run.path(DEEP, "n2")),
        ),
    )
    run.do("rmdir not empty", os.rmdir, run.path("a/b/c"))
    run.do("rmdir of a file", os.rmdir, run.path("a/b/file"))
    run.do("unlink of a directory", os.unlink, run.path("a/b/c"), unlike="local")
    run.do("255", open_and_close, run.path("pub", "n" * 255), CREATE)
    run.do("256", open_and_close, run.path("pub", "n" * 256), CREATE)
    run.do("256 on the way", os.stat, run.path("pub", "n" * 256, "x"))
    run.do("256 after an absent name", os.stat, run.path("pub/absent", "n" * 256, "x"))


@case
def renamed_directories(run):
    """directories renamed, exchanged and replaced here: the old path is gone, the new one leads to
    all below"""
    os.makedirs(run.path("pub/r1/in"))
    write(run.path("pub/r1/in/f"), b"1")
    os.makedirs(run.path("pub/s1/in"))
    write(run.path("pub/s1/in/f"), b"2")
    run.do("walk", read, run.path("pub/r1/in/f"))
    run.do("rename", os.rename, run.path("pub/r1"), run.path("pub/r2"))
    run.do("old", read, run.path("pub/r1/in/f"))
    run.do("new", read, run.path("pub/r2/in/f"))
    run.do(
        "exchange",
        lambda: checked(
            LIBC.renameat2(-100, run.path("pub/r2").encode(), -100, run.path("pub/s1").encode(), 2)
        ),
    )
    run.do("exchanged", lambda: (read(run.path("pub/r2/in/f")), read(run.path("pub/s1/in/f"))))
    run.do(
        "exchange with a file",
        lambda: checked(
            LIBC.renameat2(-100, run.path("pub/r2").encode(), -100, run.path("a/file").encode(), 2)
        ),
    )
    run.do("the file", read, run.path("pub/r2"))
    run.do("the directory", read, run.path("a/file/in/f"))
    os.makedirs(run.path("pub/empty"))
    run.do("over an empty one", os.rename, run.path("pub/s1"), run.path("pub/empty"))
    run.do("below", read, run.path("pub/empty/in/f"))
    run.do("over a full one", os.rename, run.path("pub/empty"), run.path("a/b"))
    run.do("into itself", os.rename, run.path("a"), run.path("a/b/c/x"))
    run.do("deep to top", os.rename, run.path("a/b/c/d"), run.path("pub/d"))
    run.do("below it", read, run.path("pub/d/e/n1"))
    run.do("from where it was", read, run.path("a/b/c/d/e/n1"))
    run.do(
        "remove and use",
        lambda: (
            os.unlink(run.path("pub/empty/in/f")),
            os.rmdir(run.path("pub/empty/in")),
            read(run.path("pub/empty/in/f")),
        ),
    )
    run.do(
        "again the same name",
        lambda: (os.mkdir(run.path("pub/empty/in")), os.listdir(run.path("pub/empty/in")))[1],
    )


@case
def attributes(run):
    """chmod, chown, times, truncate, extended attributes and access by deep path, and of
    directories that were faked"""
    file, directory = run.path(DEEP, "n0"), run.path("a/b/c")
    for name, path in [("file", file), ("directory", directory)]:
        run.do(f"chmod {name}", os.chmod, path, 0o711)
        run.do(f"chown {name}", os.chown, path, USER, USER)
        run.do(f"utime {name}", os.utime, path, ns=(1_000_000_000, 2_000_000_000))
        run.do(f"setxattr {name}", os.setxattr, path, "user.k", b"v")
        run.do(f"getxattr {name}", os.getxattr, path, "user.k")
        run.do(f"listxattr {name}", os.listxattr, path)
        run.do(
            f"stat {name}",
            lambda path=path: tuple(os.stat(path)[:6][i] for i in (0, 3, 4, 5))
            + (os.stat(path).st_mtime_ns,),
            unlike=None,
        )
        run.do(f"access {name}", os.access, path, os.R_OK | os.W_OK | os.X_OK)
        run.user(f"access {name} as its owner", os.access, path, os.W_OK)
        run.do(f"removexattr {name}", os.removexattr, path, "user.k")
    run.do("truncate", os.truncate, file, 1)
    run.do("size", lambda: os.stat(file).st_size)
    run.do("truncate a directory", os.truncate, directory, 1)
    run.do("chmod absent", os.chmod, run.path("a/zz/x"), 0o700)
    run.do("below still there", read, run.path("a/b/c/d/file"))


@case
def special_files(run):
    """FIFOs and sockets by deep path"""
    run.do("fifo", os.mkfifo, run.path(DEEP, "fifo"), 0o600)
    run.do("its type", lambda: stat.S_ISFIFO(os.stat(run.path(DEEP, "fifo")).st_mode))
    run.do("opened", open_and_close, run.path(DEEP, "fifo"), os.O_RDWR | os.O_NONBLOCK)

    def talk():
        # A socket's address has 108 bytes: the kernel walks a relative path.
        os.chdir(run.here)
        server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        server.bind("a/b/c/d/e/sock")
        server.listen()
        client.connect("a/b/c/d/e/sock")
        client.sendall(b"x")
        return server.accept()[0].recv(1), stat.S_ISSOCK(os.stat("a/b/c/d/e/sock").st_mode)

    run.child("socket", talk)


@case
def very_long_paths(run):
    """paths as long as PATH_MAX allows, and longer ones by working directories"""

    def make(length, depth):
        os.chdir(run.path("pub"))
        name = "n" * length
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
        write("last", b"found")

    run.child("make", make, 200, 18)
    path = "/".join(["n" * 200] * 18 + ["last"])
    run.do("read", read, run.path("pub", path))
    run.do("absent at the end", read, run.path("pub", path) + "x")
    run.do(
        "absent in the middle", read, run.path("pub", path.replace("n" * 200, "n" * 199 + "x", 9))
    )
    run.child("make", make, 1, 1500)
    run.do("1,500 levels", read, run.path("pub", "n/" * 1500 + "last"))
    run.do("one level too many", read, run.path("pub", "n/" * 1501 + "last"))

    def relative():
        os.chdir(run.path("pub", "n/" * 1500))
        return read("last")

    run.child("from there", relative)
