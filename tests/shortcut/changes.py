"""What another mount changes meanwhile: directories renamed, replaced, removed and made
inaccessible under walks, working directories and open handles."""

import ctypes
import os
import time

from harness import USER, case, in_child, open_and_close, read, write

LIBC = ctypes.CDLL(None, use_errno=True)
CREATE = os.O_CREAT | os.O_RDWR


def exchange(one, other):
    if LIBC.renameat2(-100, one.encode(), -100, other.encode(), 2) < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@case(remote=True)
def moved_elsewhere(run):
    """a directory renamed on another mount: the old path is gone at once, the new one leads to
    everything"""
    run.do("walk", read, run.path("a/b/c/file"))
    os.rename(f"{run.there}/a/b", f"{run.there}/a/moved")
    run.do("old", read, run.path("a/b/c/file"))
    run.do("old, create", open_and_close, run.path("a/b/c/new"), CREATE)
    run.do("old, mkdir", os.mkdir, run.path("a/b/c/new"))
    run.do("old, list", os.listdir, run.path("a/b"))
    run.do("new", read, run.path("a/moved/c/file"))
    run.do("new, list", lambda: sorted(os.listdir(run.path("a/moved/c"))))
    os.rename(f"{run.there}/a/moved", f"{run.there}/a/b")
    run.do("back", read, run.path("a/b/c/file"))
    run.do("no longer", read, run.path("a/moved/c/file"))


@case(remote=True)
def replaced_elsewhere(run):
    """a directory on the way replaced on another mount by another directory, a file, a link,
    nothing"""
    run.do("walk", read, run.path("a/b/c/file"))
    run.do("stat", lambda: oct(os.stat(run.path("a/b")).st_mode))
    os.rename(f"{run.there}/a/b", f"{run.there}/pub/old")
    os.makedirs(f"{run.there}/a/b/c")
    write(f"{run.there}/a/b/c/file", b"another")
    run.do("another directory", read, run.path("a/b/c/file"))
    run.do("what it lacks", read, run.path("a/b/c/d/file"))
    exchange(f"{run.there}/a/b", f"{run.there}/pub/old")
    run.do("exchanged", read, run.path("a/b/c/file"))
    run.do("the other", read, run.path("pub/old/c/file"))
    os.rename(f"{run.there}/a/b", f"{run.there}/pub/b")
    write(f"{run.there}/a/b", b"a file")
    run.do("a file", read, run.path("a/b/c/file"))
    run.do("itself", read, run.path("a/b"))
    os.unlink(f"{run.there}/a/b")
    os.symlink("../pub/b", f"{run.there}/a/b")
    run.do("a link", read, run.path("a/b/c/d/file"))
    run.do("create through it", open_and_close, run.path("a/b/c/new"), CREATE)
    run.do("lstat", lambda: oct(os.lstat(run.path("a/b")).st_mode))
    os.unlink(f"{run.there}/a/b")
    run.do("nothing", read, run.path("a/b/c/file"))
    run.do("stat of nothing", os.stat, run.path("a/b"))
    os.mkdir(f"{run.there}/a/b")
    run.do("an empty one", read, run.path("a/b/c/file"))
    run.do("its list", os.listdir, run.path("a/b"))
    run.do("mkdir in it", os.mkdir, run.path("a/b/c"))


@case(remote=True)
def working_directory_moved(run):
    """a working directory that another mount renames stays the same directory; what then has its
    name is another"""

    def inside():
        os.chdir(run.path("a/b/c"))
        said = [read("file")]
        os.rename(f"{run.there}/a/b/c", f"{run.there}/pub/elsewhere")
        said += [read("file"), read("d/file"), sorted(os.listdir("."))]
        open_and_close("made", CREATE)
        os.mkdir("made.d")
        said += [
            os.path.exists(f"{run.there}/pub/elsewhere/made"),
            os.stat(".").st_ino == os.stat(run.path("pub/elsewhere")).st_ino,
        ]
        os.makedirs(f"{run.there}/a/b/c/d")
        write(f"{run.there}/a/b/c/file", b"new")
        write(f"{run.there}/a/b/c/d/file", b"new, deeper")
        said += [
            read("file"),
            read("d/file"),
            read(run.path("a/b/c/file")),
            read(run.path("a/b/c/d/file")),
        ]
        os.rename("d/file", "d/gone")
        said += [read(run.path("a/b/c/d/file")), read(run.path("pub/elsewhere/d/gone"))]
        return said

    run.child("as working directory", inside)


@case(remote=True)
def above_working_directory_moved(run):
    """the same when a directory above the working directory is renamed"""

    def inside():
        os.chdir(run.path("a/b/c"))
        os.rename(f"{run.there}/a/b", f"{run.there}/pub/b")
        said = [read("file"), read("d/e/n1")]
        open_and_close("d/made", CREATE)
        said += [os.path.exists(run.path("pub/b/c/d/made")), os.path.exists(run.path("a/b"))]
        return said

    run.child("above", inside)


@case(remote=True)
def open_directory_moved(run):
    """a directory held open is the same one after another mount renamed and replaced it; listing
    goes on"""
    fd = os.open(run.path("a/b/c"), os.O_RDONLY | os.O_DIRECTORY)
    os.rename(f"{run.there}/a/b/c", f"{run.there}/pub/elsewhere")
    run.do("openat", open_and_close, "d/file", dir_fd=fd)
    run.do("list", lambda: sorted(os.listdir(fd)))
    os.makedirs(f"{run.there}/a/b/c/x")
    run.do("path is another", lambda: sorted(os.listdir(run.path("a/b/c"))))
    run.do("handle is not", lambda: sorted(os.listdir(fd)))
    run.do("create", open_and_close, "made", CREATE, dir_fd=fd)
    run.do("seen there", lambda: os.path.exists(f"{run.there}/pub/elsewhere/made"))
    run.do("mkdirat", os.mkdir, "made.d", dir_fd=fd)
    run.do("renameat", os.rename, "made", "made2", src_dir_fd=fd, dst_dir_fd=fd)
    run.do("unlinkat", os.unlink, "made2", dir_fd=fd)
    run.do("fstat", lambda: os.fstat(fd).st_ino == os.stat(run.path("pub/elsewhere")).st_ino)
    run.do("fchmod", os.fchmod, fd, 0o711)
    run.do(
        "chmod seen",
        lambda: (
            oct(os.stat(run.path("pub/elsewhere")).st_mode),
            oct(os.stat(run.path("a/b/c")).st_mode),
        ),
    )
    os.close(fd)
    run.do("path after", lambda: sorted(os.listdir(run.path("a/b/c"))))


@case(remote=True)
def removed_elsewhere(run):
    """a working directory and a handle of a directory that another mount removed: nothing can be
    made in it"""
    os.mkdir(f"{run.there}/pub/gone")
    fd = os.open(run.path("pub/gone"), os.O_RDONLY | os.O_DIRECTORY)

    def inside():
        os.chdir(run.path("pub/gone"))
        os.rmdir(f"{run.there}/pub/gone")
        return attempts()

    def attempts():
        from harness import attempt

        return [
            attempt(open_and_close, "x", CREATE),
            attempt(os.mkdir, "x"),
            attempt(os.stat, "x"),
            attempt(read, "x"),
        ]

    # Linux says ENOENT; a FUSE file system may say ESTALE: which, is compared with the plain mount.
    run.child("working directory", inside, unlike="local")
    run.do("openat", open_and_close, "x", CREATE, dir_fd=fd, unlike="local")
    run.do("stat", os.stat, run.path("pub/gone"))
    os.mkdir(f"{run.there}/pub/gone")
    write(f"{run.there}/pub/gone/x", b"of the new one")
    run.do("a new one of its name", read, run.path("pub/gone/x"))
    run.do("not by the handle", open_and_close, "x", dir_fd=fd, unlike="local")
    os.close(fd)


@case(remote=True)
def permissions_elsewhere(run):
    """permission changes on any component, made on another mount, hold at once"""
    for part in ("a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e"):
        run.user(f"before, {part}", read, run.path("a/b/c/d/e/n1"))
        os.chmod(f"{run.there}/{part}", 0o600)
        run.user(f"{part}: open", open_and_close, run.path("a/b/c/d/e/n1"))
        run.user(f"{part}: stat", os.stat, run.path("a/b/c/d/e/n1"))
        run.user(f"{part}: absent", os.stat, run.path("a/b/c/d/e/absent"))
        run.user(f"{part}: create", open_and_close, run.path("a/b/c/d/e/new"), CREATE)
        run.user(f"{part}: chdir", os.chdir, run.path("a/b/c/d/e"))
        run.do(f"{part}: root", read, run.path("a/b/c/d/e/n1"))
        os.chmod(f"{run.there}/{part}", 0o755)
    os.chmod(f"{run.there}/a/b/c/d/e/n1", 0o600)
    run.user("the file", open_and_close, run.path("a/b/c/d/e/n1"))
    os.chown(f"{run.there}/a/b/c/d/e/n1", USER, USER)
    run.user("given to him", read, run.path("a/b/c/d/e/n1"))
    os.chown(f"{run.there}/a/b/c", USER, USER)
    run.user("a directory given to him", open_and_close, run.path("a/b/c/new"), CREATE)


@case(remote=True)
def permissions_of_working_directory(run):
    """a working directory loses search permission: names in it are refused, it comes back, they are
    not"""

    def inside():
        from harness import attempt

        os.chdir(run.path("a/b/c"))
        said = [attempt(read, "file")]
        # The parent process is root.
        for mode in (0o600, 0o755):
            os.write(ask, bytes([mode == 0o755]))
            os.read(go, 1)
            said += [attempt(read, "file"), attempt(read, "d/file"), attempt(os.stat, "absent")]
        return said

    ask_read, ask = os.pipe()
    go, go_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        for mode in (0o600, 0o755):
            os.read(ask_read, 1)
            os.chmod(f"{run.there}/a/b/c", mode)
            os.write(go_write, b"x")
        os._exit(0)
    run.do("inside", lambda: in_child(inside, uid=USER))
    os.waitpid(helper, 0)
    for fd in (ask_read, ask, go, go_write):
        os.close(fd)


@case(remote=True)
def absent_then_there(run):
    """what was absent is there as soon as another mount made it, and gone as soon as it removed
    it"""
    for turn in range(3):
        run.do(f"absent {turn}", os.stat, run.path("pub/x/y/z"))
        run.do(f"absent, open {turn}", open_and_close, run.path("pub/x/y/z"))
        os.makedirs(f"{run.there}/pub/x/y")
        write(f"{run.there}/pub/x/y/z", b"%d" % turn)
        run.do(f"there {turn}", read, run.path("pub/x/y/z"))
        run.do(f"list {turn}", os.listdir, run.path("pub/x"))
        run.do(f"exclusive {turn}", open_and_close, run.path("pub/x/y/z"), CREATE | os.O_EXCL)
        os.unlink(f"{run.there}/pub/x/y/z")
        run.do(f"file gone {turn}", read, run.path("pub/x/y/z"))
        os.rmdir(f"{run.there}/pub/x/y")
        run.do(f"directory gone {turn}", read, run.path("pub/x/y/z"))
        os.rmdir(f"{run.there}/pub/x")


@case(remote=True)
def files_change_elsewhere(run):
    """files written, replaced, renamed and removed on another mount are read as they are by the
    next open"""
    path = "a/b/c/d/e/n1"
    for turn in range(3):
        write(f"{run.there}/{path}", b"turn %d" % turn)
        run.do(f"written {turn}", read, run.path(path))
        write(f"{run.there}/pub/new", b"replaced %d" % turn)
        os.rename(f"{run.there}/pub/new", f"{run.there}/{path}")
        run.do(f"replaced {turn}", read, run.path(path))
        run.do(f"size {turn}", lambda: os.stat(run.path(path)).st_size)
    fd = os.open(run.path(path), os.O_RDONLY)
    os.rename(f"{run.there}/a/b/c", f"{run.there}/pub/c")
    run.do("open file of a moved directory", os.pread, fd, 100, 0)
    os.unlink(f"{run.there}/pub/c/d/e/n1")
    run.do("and removed", os.pread, fd, 100, 0)
    # In shortcut mode attributes of a file may be as old as two ticks of the kernel's clock, 20 ms
    # at most (docs/shortcut.md).
    time.sleep(0.03)
    run.do("its links", lambda: os.fstat(fd).st_nlink)
    os.close(fd)
    os.mkdir(f"{run.there}/pub/c/d/e/n1")
    run.do("a directory of its name", lambda: os.listdir(run.path("pub/c/d/e/n1")))
    run.do("open as a file", open_and_close, run.path("pub/c/d/e/n1"), os.O_RDWR)


@case(remote=True)
def files_become_directories(run):
    """last components change their type on another mount"""
    run.do("file", read, run.path("a/b/file"))
    for turn in range(2):
        os.unlink(f"{run.there}/a/b/file")
        os.makedirs(f"{run.there}/a/b/file/in")
        run.do(f"directory {turn}", lambda: oct(os.stat(run.path("a/b/file")).st_mode))
        run.do(f"below {turn}", os.listdir, run.path("a/b/file/in"))
        run.do(f"open {turn}", open_and_close, run.path("a/b/file"), os.O_RDWR)
        os.rmdir(f"{run.there}/a/b/file/in")
        os.rmdir(f"{run.there}/a/b/file")
        os.symlink("c/file", f"{run.there}/a/b/file")
        run.do(f"link {turn}", read, run.path("a/b/file"))
        run.do(f"create on the link {turn}", open_and_close, run.path("a/b/file"), CREATE)
        run.do(f"readlink {turn}", os.readlink, run.path("a/b/file"))
        os.unlink(f"{run.there}/a/b/file")
        write(f"{run.there}/a/b/file", b"again")
        run.do(f"file {turn}", read, run.path("a/b/file"))
        run.do(f"below a file {turn}", read, run.path("a/b/file/in"))
        run.do(f"create what exists {turn}", open_and_close, run.path("a/b/file"), CREATE)


@case(remote=True)
def two_way_moves(run):
    """both mounts rename the same directories in turn"""
    for turn in range(4):
        os.rename(f"{run.there}/a/b", f"{run.there}/pub/b")
        run.do(f"there {turn}", read, run.path("pub/b/c/file"))
        run.do(f"not here {turn}", read, run.path("a/b/c/file"))
        run.do(f"back {turn}", os.rename, run.path("pub/b"), run.path("a/b"))
        run.do(f"seen {turn}", read, f"{run.there}/a/b/c/file")
        run.do(f"read {turn}", read, run.path("a/b/c/file"))
        run.do(f"again {turn}", os.rename, run.path("pub/b"), run.path("a/b"))


@case(remote=True)
def free_again_elsewhere(run):
    """names in a directory that another mount removed are free at once for every call that makes
    one"""
    for label, call in [
        ("mkdir", os.mkdir),
        ("create", lambda path: open_and_close(path, CREATE)),
        ("exclusive", lambda path: open_and_close(path, CREATE | os.O_EXCL)),
        ("symlink", lambda path: os.symlink("t", path)),
        ("mknod", os.mknod),
        ("link", lambda path: os.link(run.path("a/file"), path)),
        ("rename a file", lambda path: os.rename(run.path("a/b/file"), path)),
        ("rename a directory", lambda path: os.rename(run.path("a/b/c/d"), path)),
        ("unlink", os.unlink),
        ("rmdir", os.rmdir),
    ]:
        os.makedirs(f"{run.there}/pub/free/in")
        write(f"{run.there}/pub/free/in/file", b"1")
        run.do(f"{label}: walk", read, run.path("pub/free/in/file"))
        os.unlink(f"{run.there}/pub/free/in/file")
        os.rmdir(f"{run.there}/pub/free/in")
        os.rmdir(f"{run.there}/pub/free")
        run.do(label, call, run.path("pub/free"))
        run.do(f"{label}: is there", lambda: oct(os.lstat(f"{run.there}/pub/free").st_mode))
        if os.path.lexists(f"{run.there}/pub/free"):
            os.rename(f"{run.there}/pub/free", f"{run.there}/pub/{label}")


@case(remote=True, local=False)
def back_out_of_a_moved_directory(run):
    """`..` of a working directory with a parent that was renamed elsewhere: in shortcut mode it
    goes by the name the kernel remembers (docs/shortcut.md), in plain mode to the directory that
    was the parent"""

    def inside():
        os.chdir(run.path("a/b/c"))
        os.rename(f"{run.there}/a/b", f"{run.there}/pub/b")
        os.mkdir(f"{run.there}/a/b")
        write(f"{run.there}/a/b/file", b"another's")
        return read("../file") == (b"another's" if run.side.name == "shortcut" else b"a/b")

    run.child("back", inside)
