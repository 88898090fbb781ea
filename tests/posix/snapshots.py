#!/usr/bin/env python3
"""Snapshots through a mount: executes the statements S1 to S9 of docs/semantics.md.

    snapshots.py test DIR          the statements, in a directory of a mount, as root
    snapshots.py make DIR SEED     a tree with files of all kinds
    snapshots.py churn DIR SEED    changes everything in it heavily
    snapshots.py compare A B       fails if two trees differ in anything that can be seen
    snapshots.py quiet MOUNT DIR   fails if a second walk of DIR, on the mount, sends a request
    snapshots.py numbers DIR       fails if two inodes below DIR show one number
"""

import errno
import fcntl
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback
from collections import Counter

TESTS = []
SHOWN = 1 << 63


def statement(number):
    def register(function):
        TESTS.append((number, function))
        return function

    return register


def expect_errno(wanted, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except OSError as error:
        codes = wanted if isinstance(wanted, tuple) else (wanted,)
        assert error.errno in codes, f"{errno.errorcode[error.errno]}, wanted {codes}"
        return
    raise AssertionError("succeeded")


def write(path, data, mode="wb"):
    with open(path, mode) as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def as_user(uid, call):
    """Runs a call as another user; its exception is raised here."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"as user {uid}"


@statement("S1")
def made_listed_renamed_and_removed(d):
    write(f"{d}/f", b"one")
    os.mkdir(f"{d}/.snap/first")
    write(f"{d}/f", b"two, longer")
    os.mkdir(f"{d}/.snap/second")
    os.unlink(f"{d}/f")
    assert os.listdir(d) == [], "it is not listed"
    own = [name for name in os.listdir(f"{d}/.snap") if not name.startswith("_")]
    assert own == ["first", "second"], own
    assert read(f"{d}/.snap/first/f") == b"one"
    assert read(f"{d}/.snap/second/f") == b"two, longer"
    os.rename(f"{d}/.snap/first", f"{d}/.snap/renamed")
    assert not os.path.exists(f"{d}/.snap/first")
    assert read(f"{d}/.snap/renamed/f") == b"one"
    os.rmdir(f"{d}/.snap/renamed")
    assert not os.path.exists(f"{d}/.snap/renamed")
    assert read(f"{d}/.snap/second/f") == b"two, longer"
    # A working directory has it, too.
    before = os.getcwd()
    os.chdir(d)
    assert read(".snap/second/f") == b"two, longer"
    os.chdir(f"{d}/.snap/second")
    assert read("f") == b"two, longer" and os.listdir("..") != []
    assert os.getcwd() == f"{d}/.snap/second"
    os.chdir(before)


@statement("S1")
def name_is_taken_by_the_file_system(d):
    for make in (os.mkdir, lambda path: os.symlink("x", path), os.mkfifo):
        expect_errno(errno.EEXIST, make, f"{d}/.snap")
    expect_errno((errno.EISDIR, errno.EEXIST), os.open, f"{d}/.snap", os.O_CREAT | os.O_WRONLY)
    expect_errno(errno.EBUSY, os.rmdir, f"{d}/.snap")
    os.mkdir(f"{d}/sub")
    expect_errno((errno.EBUSY, errno.EXDEV), os.rename, f"{d}/.snap", f"{d}/sub/other")
    expect_errno((errno.EBUSY, errno.ENOTEMPTY), os.rename, f"{d}/sub", f"{d}/.snap")
    write(f"{d}/.snapshot", b"")
    os.mkdir(f"{d}/.snap2")
    expect_errno(errno.ENOTDIR, os.stat, f"{d}/.snapshot/.snap")
    expect_errno(errno.ENOENT, os.stat, f"{d}/absent/.snap/x")


@statement("S2")
def names_of_snapshots(d):
    os.mkdir(f"{d}/.snap/{'n' * 255}")
    assert "n" * 255 in os.listdir(f"{d}/.snap")
    os.mkdir(f"{d}/.snap/a")
    expect_errno(errno.EEXIST, os.mkdir, f"{d}/.snap/a")
    expect_errno(errno.EINVAL, os.mkdir, f"{d}/.snap/_a")
    expect_errno(errno.EINVAL, os.mkdir, f"{d}/.snap/a@b")
    expect_errno(errno.ENAMETOOLONG, os.mkdir, f"{d}/.snap/{'n' * 256}")
    expect_errno((errno.ENOENT, errno.EINVAL), os.rename, f"{d}/.snap/absent", f"{d}/.snap/b")
    os.mkdir(f"{d}/.snap/b")
    expect_errno((errno.EEXIST, errno.ENOTEMPTY), os.rename, f"{d}/.snap/a", f"{d}/.snap/b")
    expect_errno(errno.EINVAL, os.rename, f"{d}/.snap/a", f"{d}/.snap/c@d")
    expect_errno(errno.ENOENT, os.rmdir, f"{d}/.snap/absent")
    expect_errno(errno.ENOENT, os.stat, f"{d}/.snap/absent")
    # Nothing else can be made there.
    expect_errno(errno.EROFS, os.open, f"{d}/.snap/file", os.O_CREAT | os.O_WRONLY)
    expect_errno(errno.EROFS, os.symlink, "x", f"{d}/.snap/link")


@statement("S3")
def snapshots_of_directories_above(d):
    os.makedirs(f"{d}/top/sub/deep")
    write(f"{d}/top/sub/deep/f", b"old")
    os.mkdir(f"{d}/top/.snap/s")
    os.mkdir(f"{d}/top/sub/later")
    write(f"{d}/top/sub/deep/f", b"new")
    above = f"_s_{os.stat(d + '/top').st_ino}"
    for sub in ("sub", "sub/deep"):
        names = os.listdir(f"{d}/top/{sub}/.snap")
        assert above in names and "s" not in names, names
    assert read(f"{d}/top/sub/.snap/{above}/deep/f") == b"old"
    assert read(f"{d}/top/sub/deep/.snap/{above}/f") == b"old"
    # A directory that was not there has none of it.
    assert above not in os.listdir(f"{d}/top/sub/later/.snap")
    expect_errno(errno.ENOENT, os.stat, f"{d}/top/sub/later/.snap/{above}")
    expect_errno(errno.EPERM, os.rmdir, f"{d}/top/sub/.snap/{above}")
    expect_errno(errno.EPERM, os.rename, f"{d}/top/sub/.snap/{above}", f"{d}/top/sub/.snap/x")
    same = [f"{d}/top/.snap/s/sub/deep/f", f"{d}/top/sub/.snap/{above}/deep/f"]
    assert len({os.stat(path).st_ino for path in same}) == 1
    # There is no snapshot of a snapshot.
    expect_errno(errno.ENOENT, os.stat, f"{d}/top/.snap/.snap")
    expect_errno(errno.ENOENT, os.stat, f"{d}/top/.snap/s/.snap")


@statement("S4")
def everything_as_it_was(d):
    make(d, 11)
    copy = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        os.system(f"cp -a {d} {copy}/tree")
        os.mkdir(f"{d}/.snap/s")
        churn(d, 12)
        assert compare(f"{copy}/tree", f"{d}/.snap/s") > 100
    finally:
        shutil.rmtree(copy)


@statement("S4")
def written_and_open_files(d):
    """What this mount has written is in it, closed or not; what is written later is not."""
    with open(f"{d}/f", "wb") as file:
        file.write(b"before")
        file.flush()
        os.mkdir(f"{d}/.snap/s")
        file.write(b", after")
    assert read(f"{d}/.snap/s/f") == b"before"
    assert read(f"{d}/f") == b"before, after"


@statement("S5")
def nothing_changes(d):
    os.mkdir(f"{d}/sub")
    write(f"{d}/f", b"x" * 10000)
    os.link(f"{d}/f", f"{d}/linked")
    os.mkdir(f"{d}/.snap/s")
    s, f = f"{d}/.snap/s", f"{d}/.snap/s/f"
    calls = [
        (os.open, f, os.O_WRONLY),
        (os.open, f, os.O_RDWR),
        (os.open, f, os.O_RDONLY | os.O_TRUNC),
        (os.open, f"{s}/new", os.O_CREAT | os.O_WRONLY),
        (os.open, s, os.O_TMPFILE | os.O_RDWR),
        (os.truncate, f, 1),
        (os.chmod, f, 0o600),
        (os.chown, f, 1, 1),
        (os.utime, f, (1, 1)),
        (os.setxattr, f, "user.a", b"b"),
        (os.removexattr, f, "user.a"),
        (os.unlink, f),
        (os.rmdir, f"{s}/sub"),
        (os.mkdir, f"{s}/new"),
        (os.symlink, "x", f"{s}/new"),
        (os.mkfifo, f"{s}/new"),
        (os.link, f, f"{s}/new"),
        (os.rename, f, f"{s}/new"),
        (os.rename, f"{s}/sub", f"{s}/new"),
    ]
    for call, *arguments in calls:
        expect_errno(errno.EROFS, call, *arguments)
    assert not os.access(f, os.W_OK) and os.access(f, os.R_OK)
    # Between a snapshot and what is live.
    for old, new in ((f, f"{d}/out"), (f"{d}/f", f"{s}/in"), (f"{s}/sub", f"{d}/out")):
        expect_errno(errno.EXDEV, os.rename, old, new)
    expect_errno(errno.EXDEV, os.link, f, f"{d}/out")
    expect_errno(errno.EXDEV, os.link, f"{d}/f", f"{s}/in")
    expect_errno(errno.EXDEV, os.rename, s, f"{d}/out")
    with open(f, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_UN)
        expect_errno((errno.EROFS, errno.EBADF), fcntl.lockf, file, fcntl.LOCK_EX)
        flags = bytearray(8)
        fcntl.ioctl(file, 0x80086601, flags)
        expect_errno(errno.EROFS, fcntl.ioctl, file, 0x40086602, bytes(8))
        # Out of a snapshot a copy works as out of any file.
        with open(f"{d}/copy", "wb") as copy:
            assert os.copy_file_range(file.fileno(), copy.fileno(), 10000, 0) == 10000
    assert read(f"{d}/copy") == b"x" * 10000
    assert os.statvfs(f).f_namemax == 255


@statement("S6")
def inode_numbers(d):
    os.mkdir(f"{d}/sub")
    write(f"{d}/f", b"x")
    os.link(f"{d}/f", f"{d}/sub/linked")
    os.mkdir(f"{d}/.snap/s")
    os.mkdir(f"{d}/.snap/t")
    live = {os.stat(f"{d}/{path}").st_ino for path in ("", "f", "sub")}
    shown = set()
    for name in "st":
        s = f"{d}/.snap/{name}"
        for path in ("", "f", "sub"):
            ino = os.stat(f"{s}/{path}").st_ino
            assert ino & SHOWN and ino not in shown and ino not in live
            shown.add(ino)
        assert os.stat(f"{s}/f").st_nlink == 2
        assert os.stat(f"{s}/f").st_ino == os.stat(f"{s}/sub/linked").st_ino
        for entry in os.scandir(s):
            assert entry.inode() == os.lstat(entry.path).st_ino
    for entry in os.scandir(f"{d}/.snap"):
        if not entry.name.startswith("_"):
            assert entry.inode() == os.lstat(entry.path).st_ino
    assert os.stat(f"{d}/.snap").st_ino & SHOWN


@statement("S7")
def permissions(d):
    os.chmod(d, 0o755)
    os.makedirs(f"{d}/private/below")
    write(f"{d}/private/below/f", b"secret")
    os.chmod(f"{d}/private", 0o700)
    os.mkdir(f"{d}/.snap/s")
    os.chmod(f"{d}/private", 0o755)
    path = f"{d}/.snap/s/private/below/f"
    # The kernel learns of the names, and keeps none that a user may not pass.
    for _ in range(2):
        assert read(path) == b"secret"
        assert os.listdir(f"{d}/.snap/s/private") == ["below"]
    as_user(1000, lambda: expect_errno(errno.EACCES, os.stat, path))
    as_user(1000, lambda: expect_errno(errno.EACCES, open, path))
    as_user(1000, lambda: expect_errno(errno.EACCES, os.listdir, f"{d}/.snap/s/private"))
    as_user(1000, lambda: read(f"{d}/private/below/f"))
    # Snapshots are the owner's business.
    as_user(1000, lambda: expect_errno(errno.EPERM, os.mkdir, f"{d}/.snap/t"))
    as_user(1000, lambda: expect_errno(errno.EPERM, os.rmdir, f"{d}/.snap/s"))
    as_user(1000, lambda: expect_errno(errno.EPERM, os.rename, f"{d}/.snap/s", f"{d}/.snap/t"))
    os.mkdir(f"{d}/own")
    os.chown(f"{d}/own", 1000, 1000)
    as_user(1000, lambda: os.mkdir(f"{d}/own/.snap/t"))
    as_user(1000, lambda: os.rmdir(f"{d}/own/.snap/t"))
    # The way to `.snap` is the live one.
    os.mkdir(f"{d}/own/.snap/u")
    os.chmod(f"{d}/own", 0o700)
    as_user(1001, lambda: expect_errno(errno.EACCES, os.stat, f"{d}/own/.snap"))
    as_user(1001, lambda: expect_errno(errno.EACCES, os.stat, f"{d}/own/.snap/u"))


@statement("S8")
def removed_snapshots(d):
    write(f"{d}/f", b"x")
    os.mkdir(f"{d}/.snap/s")
    directory = os.open(f"{d}/.snap/s", os.O_RDONLY)
    os.rmdir(f"{d}/.snap/s")
    expect_errno(errno.ENOENT, os.stat, f"{d}/.snap/s/f")
    expect_errno((errno.ESTALE, errno.ENOENT), os.open, "f", os.O_RDONLY, dir_fd=directory)
    os.close(directory)
    # The name is free, and means another one.
    write(f"{d}/f", b"y")
    os.mkdir(f"{d}/.snap/s")
    assert read(f"{d}/.snap/s/f") == b"y"


@statement("S9")
def moved_directories(d):
    """A snapshot is of the directory, wherever that goes."""
    os.makedirs(f"{d}/a/sub")
    os.mkdir(f"{d}/b")
    write(f"{d}/a/sub/f", b"1")
    os.mkdir(f"{d}/a/.snap/s")
    os.rename(f"{d}/a", f"{d}/b/moved")
    write(f"{d}/b/moved/sub/f", b"2")
    assert read(f"{d}/b/moved/.snap/s/sub/f") == b"1"
    # What has left the directory is in its snapshot.
    os.rename(f"{d}/b/moved/sub", f"{d}/sub")
    write(f"{d}/sub/f", b"3")
    assert read(f"{d}/b/moved/.snap/s/sub/f") == b"1"
    assert not [name for name in os.listdir(f"{d}/sub/.snap") if name.startswith("_s_")]


def content(random_bytes, size):
    return random_bytes.randbytes(size)


def make(d, seed):
    """A tree with files of all kinds: inline, packed, chunked, with holes and links."""
    rnd = random.Random(seed)
    sizes = [0, 1, 100, 2000, 4096, 5000, 40000, 300000, 5 << 20]
    for sub in range(6):
        parent = f"{d}/dir{sub}"
        os.makedirs(f"{parent}/nested/deeper")
        for number in range(12):
            path = f"{parent}/{'nested/' * (number % 2)}file{number}"
            size = sizes[(number + sub) % len(sizes)] if number < 9 else rnd.randrange(9000)
            write(path, content(rnd, size))
            os.chmod(path, rnd.choice([0o644, 0o600, 0o755, 0o4711]))
            os.chown(path, rnd.randrange(3) * 1000, rnd.randrange(3) * 1000)
            os.utime(path, ns=(10**18 + number, 10**18 + rnd.randrange(10**17)))
            if number % 3 == 0:
                os.setxattr(path, "user.number", b"%d" % number)
                os.setxattr(path, "trusted.long", content(rnd, 1000))
        with open(f"{parent}/sparse", "wb") as file:
            for _ in range(3):
                file.seek(rnd.randrange(64) << 16)
                file.write(content(rnd, 8000))
            file.truncate(5 << 20)
        os.link(f"{parent}/file0", f"{parent}/nested/deeper/linked")
        os.link(f"{parent}/file2", f"{d}/across{sub}")
        os.symlink("nested/file1", f"{parent}/symlink")
        os.symlink("x" * 300, f"{parent}/dangling")
        os.mkfifo(f"{parent}/fifo")
        os.setxattr(parent, "user.directory", b"yes")
    os.mkdir(f"{d}/many")
    for number in range(400):
        write(f"{d}/many/{number:04}-{'n' * (number % 200)}", b"%d" % number)
    os.chmod(f"{d}/dir1", 0o2750)


def churn(d, seed):
    """Changes everything heavily: overwrites, truncates, removes, renames, links, makes new."""
    rnd = random.Random(seed)
    files = [
        os.path.join(parent, name)
        for parent, _, names in os.walk(d)
        for name in names
        if os.path.isfile(os.path.join(parent, name))
        and not os.path.islink(os.path.join(parent, name))
    ]
    rnd.shuffle(files)
    for number, path in enumerate(files):
        choice = number % 8
        if choice == 0:
            os.unlink(path)
        elif choice == 1:
            write(path, content(rnd, rnd.randrange(20000)))
        elif choice == 2:
            os.truncate(path, rnd.randrange(100))
        elif choice == 3:
            os.rename(path, path[:-1] + "~renamed" + str(number))
        elif choice == 4:
            with open(path, "r+b") as file:
                file.seek(rnd.randrange(5000))
                file.write(content(rnd, 3000))
        elif choice == 5:
            os.chmod(path, 0o640)
            os.chown(path, 7, 7)
            os.setxattr(path, "user.number", b"changed")
        elif choice == 6:
            os.link(path, f"{d}/many/churned-link{number}")
            write(path, b"appended", "ab")
        else:
            os.unlink(path)
            os.mkdir(path)
            write(f"{path}/in", b"a directory now")
    os.rename(f"{d}/dir0", f"{d}/many/dir0")
    os.rename(f"{d}/dir2", f"{d}/renamed2")
    os.rename(f"{d}/dir3", f"{d}/dir2")
    shutil.rmtree(f"{d}/dir4")
    write(f"{d}/dir4", b"a file now")
    os.unlink(f"{d}/dir1/symlink")
    os.symlink("elsewhere", f"{d}/dir1/symlink")
    os.removexattr(f"{d}/dir1", "user.directory")
    for number in range(200):
        write(f"{d}/dir1/new{number}", content(rnd, number * 50))


def described(root, path):
    """What can be seen of one name; times of access and numbers left out."""
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    seen = [found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns]
    seen.append(sorted(os.listxattr(path, follow_symlinks=False)))
    for name in seen[-1][:]:
        seen.append(os.getxattr(path, name, follow_symlinks=False))
    if kind == stat.S_IFREG:
        seen += [found.st_size, found.st_nlink, read(path)]
    elif kind == stat.S_IFLNK:
        seen.append(os.readlink(path))
    elif kind == stat.S_IFDIR:
        seen.append(sorted(os.listdir(path)))
    return os.path.relpath(path, root), seen, (found.st_dev, found.st_ino)


def walked(root):
    yield described(root, root)
    for parent, dirs, names in os.walk(root):
        for name in dirs + names:
            yield described(root, os.path.join(parent, name))


def compare(one, other):
    """Compares two trees; how many names each has."""
    trees = [sorted(walked(root), key=lambda item: item[0]) for root in (one, other)]
    assert [item[0] for item in trees[0]] == [item[0] for item in trees[1]], "names"
    for left, right in zip(*trees):
        assert left[1] == right[1], f"{left[0]}: {str(left[1])[:300]} {str(right[1])[:300]}"
    # The same names are links of one file on both sides.
    for tree, mirror in (trees, trees[::-1]):
        links = {}
        for item, image in zip(tree, mirror):
            assert links.setdefault(item[2], image[2]) == image[2], f"links: {item[0]}"
    return len(trees[0])


def numbers(d):
    seen = {}
    for parent, dirs, names in os.walk(d):
        for name in dirs + names:
            path = os.path.join(parent, name)
            found = os.lstat(path)
            if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
                assert found.st_ino not in seen, (path, seen[found.st_ino])
                seen[found.st_ino] = path
    assert seen


def requests(mount):
    """Requests that the mount has sent to the metadata since its start, by kind. (Not those for
    totals, which statfs(2) asks for: find does so, and what is free changes.)"""
    kestrel = os.environ["KESTREL"]
    out = subprocess.check_output([kestrel, "stats", mount, "--once", "--json"])
    kinds = json.loads(out)["metadata_requests"]
    return Counter({kind["kind"]: kind["requests"] for kind in kinds if kind["kind"] != "usage"})


# A kernel that reclaims memory may drop pages between two walks, listings among them, which the
# mount has to fetch again. So one walk of several has to send nothing.
WALKS_MAX = 10


def quiet(mount, d):
    """A second walk by tools: every name, attribute and byte. They begin in the directory, since
    the path to it is live."""
    fd = os.open(d, os.O_RDONLY)
    tools = [
        ["find", ".", "-ls"],
        ["tar", "--xattrs", "-cf", "/dev/stdout", "."],
        ["find", ".", "-type", "f", "-exec", "cat", "{}", "+"],
    ]

    def walk():
        for tool in tools:
            out = subprocess.run(
                tool, stdout=subprocess.PIPE, preexec_fn=lambda: os.fchdir(fd), check=True
            )
            assert len(out.stdout) > 1000

    walk()
    for _ in range(WALKS_MAX):
        begin = requests(mount)
        before = requests(mount)
        walk()
        after = requests(mount)
        # To ask for the figures takes requests, too.
        sent = (after - before) - (before - begin)
        if not sent:
            break
    os.close(fd)
    assert not sent, f"each of {WALKS_MAX} walks sent requests, the last one {dict(sent)}"


def main():
    verb, d = sys.argv[1:3]
    if verb == "quiet":
        quiet(d, sys.argv[3])
        return
    if verb in ("make", "churn"):
        {"make": make, "churn": churn}[verb](d, int(sys.argv[3]))
        return
    if verb == "numbers":
        numbers(d)
        return
    if verb == "compare":
        print(compare(d, sys.argv[3]), "names")
        return
    passed, failed = 0, 0
    for number, test in TESTS:
        where = tempfile.mkdtemp(prefix=f"snapshots-{number}-", dir=d)
        try:
            test(where)
            passed += 1
            print(f"ok   {number} {test.__name__}")
        except BaseException:
            failed += 1
            print(f"FAIL {number} {test.__name__}")
            traceback.print_exc()
        finally:
            for parent, _, _ in os.walk(where):
                for name in os.listdir(f"{parent}/.snap"):
                    if not name.startswith("_"):
                        os.rmdir(f"{parent}/.snap/{name}")
            shutil.rmtree(where, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
