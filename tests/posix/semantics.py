#!/usr/bin/env python3
"""Executes docs/semantics.md on a mount: one test for each numbered statement.

    semantics.py DIR [--doc docs/semantics.md]

DIR is a directory on the mount, as root. Statements about crashes are tested by tests/crash, those
about snapshots by tests/posix/snapshots.sh, those about ACLs by tests/posix/acls.sh; they are
listed in ELSEWHERE. Fails if a statement has no test or a test no statement.
"""

import argparse
import ctypes
import errno
import fcntl
import mmap
import os
import random
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import block_map
import direct

ELSEWHERE = {
    "N10": "tests/posix/large-dirs.sh",
    "D3": "tests/crash/power.sh",
    "D4": "tests/crash/full-disk.sh",
    "D5": "tests/crash/corrupt.sh",
    "D6": "tests/upgrade/upgrade.sh",
    **{f"S{number}": "tests/posix/snapshots.sh" for number in range(1, 10)},
    "S10": "tests/cluster/snapshots.sh",
    "S11": "tests/posix/snapshot_verbs.sh",
    **{f"C{number}": "tests/posix/clones.sh" for number in range(1, 6)},
    "C6": "tests/crash/full-disk.sh",
    "C7": "tests/cluster/snapshots.sh",
    **{f"ACL{number}": "tests/posix/acls.sh" for number in range(1, 6)},
    **{f"Q{number}": "tests/posix/quotas.sh" for number in range(1, 11)},
    **{f"R{number}": "tests/posix/remove.sh" for number in range(1, 9)},
    **{f"T{number}": "tests/posix/trash.sh" for number in range(1, 9)},
    **{f"W{number}": "tests/posix/watch.sh" for number in range(1, 9)},
    "W9": "tests/cluster/leave.sh",
    "Q11": "tests/cluster/quotas.sh",
    **{f"B{number}": "tests/bucket/follow.sh" for number in range(1, 6)},
    **{f"K{number}": "tests/s3/tiers.sh" for number in range(1, 7)},
    **{f"V{number}": "tests/versions/publish.sh" for number in (1, 2, 4, 5)},
    **{f"V{number}": "tests/versions/curators.sh" for number in (3, 6, 7, 8)},
    "V9": "tests/versions/compact.sh",
    **{f"J{number}": "tests/jobs/jobs.sh" for number in range(1, 10)},
    **{f"J{number}": "tests/jobs/servers.sh" for number in (10, 11)},
    **{f"J{number}": "tests/jobs/ranks.sh" for number in range(12, 15)},
}
TESTS = {}
libc = ctypes.CDLL(None, use_errno=True)


def statement(number):
    def register(function):
        TESTS[number] = function
        return function

    return register


def expect_errno(wanted, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except OSError as error:
        codes = wanted if isinstance(wanted, tuple) else (wanted,)
        assert error.errno in codes, f"errno {errno.errorcode[error.errno]}, wanted {codes}"
        return
    raise AssertionError("succeeded")


def write(path, data, mode="wb"):
    with open(path, mode) as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def linkat(fd, new):
    """Names the file behind a descriptor (AT_SYMLINK_FOLLOW through /proc)."""
    if libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, os.fsencode(new), 0x400) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def fallocate(fd, mode, offset, length):
    call = libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, mode, offset, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def as_user(uid, gid, groups, function):
    """Runs a function as somebody else in a child; its assertion errors count."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, f"as uid {uid} gid {gid} groups {groups}"


@statement("N1")
def names(d):
    for name in (b"x" * 255, b"\xff\x01 \n\\*", b"..."):
        write(os.path.join(os.fsencode(d), name), b"")
        assert name in os.listdir(os.fsencode(d))
    expect_errno(errno.ENAMETOOLONG, write, f"{d}/{'x' * 256}", b"")


@statement("N2")
def directory_attributes(d):
    assert os.stat(d).st_nlink == 2
    before = os.stat(d).st_mtime_ns
    os.mkdir(f"{d}/a")
    os.mkdir(f"{d}/b")
    write(f"{d}/f", b"")
    after = os.stat(d)
    assert (
        after.st_nlink == 4
        and after.st_mtime_ns > before
        and after.st_ctime_ns >= after.st_mtime_ns
    )
    time.sleep(0.01)
    os.rename(f"{d}/f", f"{d}/g")
    assert os.stat(d).st_mtime_ns > after.st_mtime_ns
    os.rmdir(f"{d}/a")
    assert os.stat(d).st_nlink == 3


@statement("N3")
def atomic_replace(d):
    write(f"{d}/f", b"0" * 1000)
    stop = threading.Event()
    wrong = []

    def look():
        while not stop.is_set():
            content = read(f"{d}/f")
            if len(content) != 1000 or len(set(content)) != 1:
                wrong.append(content[:10])

    reader = threading.Thread(target=look)
    reader.start()
    for i in range(300):
        write(f"{d}/new", bytes([i % 256]) * 1000)
        os.rename(f"{d}/new", f"{d}/f")
    stop.set()
    reader.join()
    assert not wrong, wrong[:3]


@statement("N4")
def rename_flags(d):
    write(f"{d}/a", b"a")
    os.mkdir(f"{d}/b")
    expect_errno(errno.EEXIST, renameat2, f"{d}/a", f"{d}/b", 1)
    renameat2(f"{d}/a", f"{d}/b", 2)
    assert read(f"{d}/b") == b"a" and os.path.isdir(f"{d}/a")
    renameat2(f"{d}/b", f"{d}/c", 1)
    assert read(f"{d}/c") == b"a"
    expect_errno(errno.EINVAL, renameat2, f"{d}/c", f"{d}/d", 4)


@statement("N5")
def no_cycles(d):
    os.makedirs(f"{d}/a/b/c")
    os.makedirs(f"{d}/x/y")
    expect_errno(errno.EINVAL, os.rename, f"{d}/a", f"{d}/a/b/c/d")
    expect_errno((errno.ENOTEMPTY, errno.EEXIST), os.rename, f"{d}/a/b", f"{d}/x")


@statement("N6")
def listings(d):
    for i in range(3000):
        write(f"{d}/stable{i:05}", b"")
    stop = threading.Event()

    def disturb():
        i = 0
        while not stop.is_set():
            i += 1
            write(f"{d}/extra{i % 50}", b"")
            os.rename(f"{d}/extra{i % 50}", f"{d}/moved{i % 50}")
            os.unlink(f"{d}/moved{i % 50}")

    other = threading.Thread(target=disturb)
    other.start()
    try:
        for _ in range(5):
            seen = [name for name in os.listdir(d) if name.startswith("stable")]
            assert len(seen) == 3000 and len(set(seen)) == 3000, len(seen)
    finally:
        stop.set()
        other.join()
    libc.opendir.restype = ctypes.c_void_p
    libc.telldir.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.readdir.argtypes = [ctypes.c_void_p]
    libc.readdir.restype = ctypes.c_void_p
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    libc.closedir.argtypes = [ctypes.c_void_p]
    random_cookies(d, 1000, changing=False)
    random_cookies(d, 500, changing=True)


def random_cookies(d, rounds, changing):
    """seekdir to random cookies of one handle, the start among them, each followed by a readdir;
    `changing`: while another thread creates, renames and removes other names."""
    stop = threading.Event()

    def disturb():
        i = 0
        while not stop.is_set():
            i += 1
            write(f"{d}/stable{i * 37 % 3000:05}-{i % 7}", b"")
            os.rename(f"{d}/stable{i * 37 % 3000:05}-{i % 7}", f"{d}/moved{i % 50}")
            os.unlink(f"{d}/moved{i % 50}")

    other = threading.Thread(target=disturb)
    handle = libc.opendir(os.fsencode(d))
    try:
        if changing:
            other.start()
        draw = random.Random(14)
        cookies, names = [], []
        while True:
            cookies.append(libc.telldir(handle))
            entry = libc.readdir(handle)
            if not entry:
                break
            names.append(ctypes.string_at(entry + 19))
        stable = [
            at
            for at, name in enumerate(names)
            if len(name) == len("stable00000") or name in (b".", b"..")
        ]
        assert len(stable) == 3002, len(stable)
        for i in range(rounds):
            at = 0 if i % 50 == 0 else draw.choice(stable)
            libc.seekdir(handle, cookies[at])
            seen = []
            # Names that come and go may come before it.
            while len(seen) < 100 and (not seen or seen[-1] != names[at]):
                entry = libc.readdir(handle)
                if not entry:
                    break
                seen.append(ctypes.string_at(entry + 19))
            passed = [name for name in seen[:-1] if not changing or len(name) == len("stable00000")]
            assert (
                seen and seen[-1] == names[at] and not passed
            ), f"seek {i}: {seen[:3]} for {names[at]}"
    finally:
        stop.set()
        if changing:
            other.join()
        libc.closedir(handle)


@statement("N7")
def directory_times(d):
    os.utime(d, ns=(1, 5_000_000_001))
    assert os.stat(d).st_mtime_ns == 5_000_000_001
    os.utime(d, ns=(1, 4_000_000_000))
    assert os.stat(d).st_mtime_ns == 4_000_000_000
    write(f"{d}/f", b"")
    assert os.stat(d).st_mtime_ns > 5_000_000_001


@statement("N8")
def removed(d):
    os.mkdir(f"{d}/sub")
    os.mkdir(f"{d}/sub/cwd")
    os.mkdir(f"{d}/sub/replaced")
    os.mkdir(f"{d}/sub/new")
    write(f"{d}/sub/file", b"bytes")
    os.symlink("target", f"{d}/sub/link")
    os.mkfifo(f"{d}/sub/fifo")
    held = {
        name: os.open(f"{d}/sub/{name}", os.O_PATH | os.O_NOFOLLOW)
        for name in ("file", "link", "fifo", "replaced")
    }
    inodes = {name: os.fstat(fd).st_ino for name, fd in held.items()}
    opened = os.open(f"{d}/sub/file", os.O_RDWR)
    fifo = os.open(f"{d}/sub/fifo", os.O_RDWR)
    back = os.open(".", os.O_RDONLY)
    cwd = os.open(f"{d}/sub/cwd", os.O_RDONLY)
    os.chdir(cwd)
    try:
        os.rename(f"{d}/sub/new", f"{d}/sub/replaced")
        for name in ("file", "link", "fifo"):
            os.unlink(f"{d}/sub/{name}")
        os.rmdir(f"{d}/sub/cwd")
        for name, fd in held.items():
            found = os.fstat(fd)
            assert (found.st_nlink, found.st_ino) == (0, inodes[name]), name
        assert os.readlink(b"", dir_fd=held["link"]) == b"target"
        # Open elsewhere, then only held: attributes stay those of the last moment.
        os.write(opened, b"more bytes")
        os.fchmod(opened, 0o640)
        os.close(opened)
        found = os.fstat(held["file"])
        assert (found.st_size, found.st_mode & 0o7777) == (10, 0o640)
        os.fchmod(fifo, 0o604)
        os.fchown(fifo, 12, 13)
        found = os.fstat(fifo)
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o604, 12, 13)
        assert os.stat(".").st_nlink == 0 and os.fstat(cwd).st_nlink == 0
        os.fchdir(cwd)
        os.utime(".", (10, 20))
        os.chmod(".", 0o711)
        found = os.fstat(cwd)
        assert (found.st_atime, found.st_mtime, found.st_mode & 0o7777) == (10, 20, 0o711)
        assert os.access(".", os.W_OK) and os.listxattr(".") == []
        expect_errno(errno.ENOENT, write, "new", b"")
        expect_errno(errno.ENOENT, os.mkdir, "new")
        expect_errno(errno.ENOENT, os.stat, "anything")
        os.close(os.open(".", os.O_RDONLY))

        def unprivileged():
            assert not os.access(".", os.R_OK) and os.access(".", os.X_OK)
            expect_errno(errno.EACCES, os.open, ".", os.O_RDONLY)
            expect_errno(errno.EPERM, os.chmod, ".", 0o777)
            os.fchdir(cwd)

        as_user(1000, 1000, [], unprivileged)
    finally:
        os.fchdir(back)
    for fd in (*held.values(), fifo, cwd, back):
        os.close(fd)


@statement("N9")
def file_handles(d):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "handles.py")
    with tempfile.NamedTemporaryFile() as state:
        for what in ("make", "open"):
            done = subprocess.run(
                [sys.executable, script, what, d, state.name], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout


@statement("F1")
def coherent(d):
    with open(f"{d}/f", "wb", buffering=0) as writer, open(f"{d}/f", "rb", buffering=0) as reader:
        for i in range(50):
            writer.write(bytes([i]) * 5000)
            assert os.stat(f"{d}/f").st_size == 5000 * (i + 1)
            assert reader.read(5000) == bytes([i]) * 5000


@statement("F2")
def unlinked(d):
    for size in (10, 100_000, 10_000_000):
        with open(f"{d}/f", "w+b", buffering=0) as file:
            file.write(b"x" * size)
            os.unlink(f"{d}/f")
            assert os.fstat(file.fileno()).st_nlink == 0
            file.write(b"y" * size)
            file.seek(0)
            content = b""
            while part := file.read(1 << 20):
                content += part
            assert content == b"x" * size + b"y" * size


@statement("F3")
def holes(d):
    with open(f"{d}/f", "w+b", buffering=0) as file:
        fd = file.fileno()
        os.pwrite(fd, b"a" * 4096, 8 << 20)
        os.pwrite(fd, b"b" * 4096, 200 << 20)
        assert os.pread(fd, 100, 1 << 20) == b"\0" * 100
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
        assert os.lseek(fd, 0, os.SEEK_DATA) <= 8 << 20
        assert os.lseek(fd, 9 << 20, os.SEEK_DATA) <= 200 << 20
        assert os.lseek(fd, 200 << 20, os.SEEK_HOLE) == (200 << 20) + 4096
        expect_errno(errno.ENXIO, os.lseek, fd, (200 << 20) + 4096, os.SEEK_DATA)
        data = os.lseek(fd, 1, os.SEEK_DATA)
        assert set(os.pread(fd, 1000, data)) <= {0, ord("a")}
    for seed in range(3):
        block_map.check(d, seed)
    # A hole costs nothing, however large it is: neither to look for what is behind it nor to punch
    # it again.
    with open(f"{d}/g", "w+b", buffering=0) as file:
        fd, last = file.fileno(), (1 << 63) - 4
        os.pwrite(fd, b"abc", last)
        assert last - 4096 < os.lseek(fd, 0, os.SEEK_DATA) <= last
        assert os.lseek(fd, 1 << 43, os.SEEK_HOLE) == 1 << 43
        fallocate(fd, 3, 0, last)
        assert os.pread(fd, 3, last) == b"abc"
        fallocate(fd, 3, 0, last + 3)
        expect_errno(errno.ENXIO, os.lseek, fd, 0, os.SEEK_DATA)


@statement("F4")
def allocation(d):
    with open(f"{d}/f", "w+b", buffering=0) as file:
        fd = file.fileno()
        fallocate(fd, 0, 0, 10000)
        assert os.fstat(fd).st_size == 10000
        os.pwrite(fd, b"x" * 10000, 0)
        fallocate(fd, 3, 1000, 2000)
        assert os.pread(fd, 10000, 0) == b"x" * 1000 + b"\0" * 2000 + b"x" * 7000
        fallocate(fd, 0x10, 9000, 3000)
        assert os.fstat(fd).st_size == 12000 and os.pread(fd, 3000, 9000) == b"\0" * 3000
        expect_errno(errno.EOPNOTSUPP, fallocate, fd, 8, 0, 4096)
        expect_errno(errno.EOPNOTSUPP, fallocate, fd, 0x20, 0, 4096)
    room = os.statvfs(d)
    free = room.f_bavail * room.f_frsize
    with open(f"{d}/g", "w+b", buffering=0) as file:
        fd = file.fileno()
        # What is allocated counts, and writing into it changes nothing.
        fallocate(fd, 0, 0, 1 << 20)
        blocks = os.fstat(fd).st_blocks
        assert blocks >= 2048, blocks
        os.pwrite(fd, b"x" * 5000, 100_000)
        os.fsync(fd)
        assert os.fstat(fd).st_blocks == blocks
        assert os.lseek(fd, 0, os.SEEK_DATA) == 98304
        # An object store has no end.
        if free < 1 << 60:
            for mode in (0, 1, 0x10):
                expect_errno(errno.ENOSPC, fallocate, fd, mode, 0, free + (1 << 40))
            expect_errno(errno.ENOSPC, fallocate, fd, 0, 1 << 62, free + (1 << 40))
            assert os.fstat(fd).st_size == 1 << 20 and os.fstat(fd).st_blocks == blocks
        fallocate(fd, 3, 0, 1 << 61)


@statement("F5")
def appends(d):
    children = []
    for who in range(4):
        child = os.fork()
        if child == 0:
            fd = os.open(f"{d}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            for i in range(200):
                os.write(fd, b"%d %06d\n" % (who, i))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    lines = read(f"{d}/log").splitlines()
    assert len(lines) == 800 and len(set(lines)) == 800
    for who in range(4):
        mine = [line for line in lines if line.startswith(b"%d " % who)]
        assert mine == sorted(mine)


@statement("F6")
def large(d):
    with open(f"{d}/f", "w+b", buffering=0) as file:
        fd = file.fileno()
        # On both sides of every power of two, and the last bytes.
        places = {(1 << power) - 2: b"%04d" % power for power in range(12, 63)}
        places[(1 << 63) - 5] = b"last"
        for offset, content in places.items():
            os.pwrite(fd, content, offset)
            assert os.fstat(fd).st_size == offset + 4
            assert os.pread(fd, 4, offset) == content
        expect_errno((errno.EFBIG, errno.EINVAL), os.pwrite, fd, b"x" * 10, (1 << 63) - 2)
        os.fsync(fd)
        # What the kernel keeps goes, so that the volume is asked.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for offset, content in places.items():
            assert os.pread(fd, 7, offset - 3) == b"\0\0\0" + content
            assert os.lseek(fd, offset - offset % 4096, os.SEEK_DATA) <= offset
        os.truncate(fd, 1 << 58)
        assert os.pread(fd, 10, (1 << 58) - 2) == b"00"


@statement("F7")
def copies(d):
    for size in (100, 100_000, 20_000_000):
        original = os.urandom(size)
        write(f"{d}/a", original)
        with open(f"{d}/a", "rb") as source, open(f"{d}/b", "wb") as target:
            left = size
            while left:
                left -= os.copy_file_range(source.fileno(), target.fileno(), left)
        assert read(f"{d}/b") == original
        with open(f"{d}/b", "r+b") as file:
            file.seek(size // 2)
            file.write(b"changed")
        assert read(f"{d}/a") == original and read(f"{d}/b") != original


@statement("F8")
def mapped(d):
    write(f"{d}/f", b"a" * 100_000)
    with open(f"{d}/f", "r+b", buffering=0) as file:
        shared = mmap.mmap(file.fileno(), 0)
        private = mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        shared[50_000:50_005] = b"hello"
        private[10:15] = b"hidden"[:5]
        assert os.pread(file.fileno(), 5, 50_000) == b"hello"
        os.pwrite(file.fileno(), b"world", 60_000)
        assert shared[60_000:60_005] == b"world"
        shared.flush()
        shared.close()
        private.close()
    content = read(f"{d}/f")
    assert (
        content[50_000:50_005] == b"hello"
        and content[10:15] == b"aaaaa"
        and len(content) == 100_000
    )


@statement("F9")
def nameless(d):
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"nameless")
    assert os.listdir(d) == []
    linkat(fd, f"{d}/named")
    os.close(fd)
    assert read(f"{d}/named") == b"nameless" and os.stat(f"{d}/named").st_nlink == 1
    fd = os.open(d, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    expect_errno(errno.ENOENT, linkat, fd, f"{d}/never")
    os.close(fd)


@statement("F10")
def truncation(d):
    for size in (1000, 100_000, 9_000_000):
        write(f"{d}/f", b"x" * size)
        os.truncate(f"{d}/f", size // 3)
        os.truncate(f"{d}/f", size)
        assert read(f"{d}/f") == b"x" * (size // 3) + b"\0" * (size - size // 3)


@statement("F11")
def direct_writes(d):
    assert direct.run(d, 3), "a read gave older bytes than were acknowledged"


@statement("A1")
def permissions(d):
    os.chmod(d, 0o755)
    os.makedirs(f"{d}/a/b")
    write(f"{d}/a/b/f", b"secret")
    os.chmod(f"{d}/a/b/f", 0o644)
    os.chmod(f"{d}/a", 0o750)
    os.chown(f"{d}/a", 0, 4242)
    as_user(1234, 1234, [], lambda: expect_errno(errno.EACCES, read, f"{d}/a/b/f"))
    as_user(1234, 1234, [4242], lambda: read(f"{d}/a/b/f"))
    as_user(1234, 4242, [], lambda: read(f"{d}/a/b/f"))
    as_user(1234, 4242, [], lambda: expect_errno(errno.EACCES, write, f"{d}/a/b/g", b""))


@statement("A2")
def access_times(d):
    write(f"{d}/f", b"x")
    os.utime(f"{d}/f", ns=(7, 9))
    read(f"{d}/f")
    assert os.stat(f"{d}/f").st_atime_ns == 7


@statement("A3")
def times(d):
    write(f"{d}/f", b"")
    for ns in (-1_000_000_001, 0, 1, 4_102_444_800_123_456_789, -9_000_000_000_000_000_000):
        os.utime(f"{d}/f", ns=(ns, ns))
        assert os.stat(f"{d}/f").st_mtime_ns == ns, ns
    fd = os.open(f"{d}/f", os.O_RDWR)
    for size in (10, 100_000, 9_000_000):
        os.pwrite(fd, b"x" * size, 0)
        written = os.fstat(fd)
        assert abs(time.time_ns() - written.st_mtime_ns) < 10**9
        time.sleep(0.05)
        os.fsync(fd)
        flushed = os.stat(f"{d}/f")
        assert (flushed.st_mtime_ns, flushed.st_ctime_ns) == (
            written.st_mtime_ns,
            written.st_ctime_ns,
        ), size
        os.pwrite(fd, b"y", 5)
        written = os.fstat(fd)
        time.sleep(0.05)
        os.fchmod(fd, 0o640)
        changed = os.fstat(fd)
        assert (
            changed.st_mtime_ns == written.st_mtime_ns and changed.st_ctime_ns > written.st_ctime_ns
        ), size
    os.close(fd)


@statement("A4")
def attributes(d):
    write(f"{d}/f", b"")
    os.setxattr(f"{d}/f", "user.a", b"x" * 65536)
    os.setxattr(d, "user.b", b"")
    os.setxattr(f"{d}/f", "trusted.c", b"t")
    assert os.getxattr(f"{d}/f", "user.a") == b"x" * 65536 and os.getxattr(d, "user.b") == b""
    assert sorted(os.listxattr(f"{d}/f")) == ["trusted.c", "user.a"]
    expect_errno(errno.EEXIST, os.setxattr, f"{d}/f", "user.a", b"", os.XATTR_CREATE)
    expect_errno(errno.ENODATA, os.setxattr, f"{d}/f", "user.z", b"", os.XATTR_REPLACE)
    os.removexattr(f"{d}/f", "user.a")
    expect_errno(errno.ENODATA, os.getxattr, f"{d}/f", "user.a")
    for name in ("user.a/b", "user./", "user.//..", "user." + "/" * 250):
        os.setxattr(f"{d}/f", name, name.encode())
        assert os.getxattr(f"{d}/f", name) == name.encode() and name in os.listxattr(f"{d}/f")
        os.removexattr(f"{d}/f", name)
        expect_errno(errno.ENODATA, os.getxattr, f"{d}/f", name)
    # Names of exactly 64 KiB are listed; one more, and the list is refused while each attribute is
    # still there.
    write(f"{d}/many", b"")
    names = [f"user.{number:0250}" for number in range(256)]
    for name in names:
        os.setxattr(f"{d}/many", name, b"v")
    assert sorted(os.listxattr(f"{d}/many")) == names
    os.setxattr(f"{d}/many", "user.more", b"m")
    expect_errno(errno.E2BIG, os.listxattr, f"{d}/many")
    assert (
        os.getxattr(f"{d}/many", "user.more") == b"m" and os.getxattr(f"{d}/many", names[7]) == b"v"
    )
    os.removexattr(f"{d}/many", names[0])
    assert len(os.listxattr(f"{d}/many")) == 256
    expect_errno(errno.EOPNOTSUPP, os.setxattr, f"{d}/f", "system.other", b"")


@statement("A5")
def set_id_bits(d):
    os.chmod(d, 0o777)
    write(f"{d}/f", b"x")
    os.chmod(f"{d}/f", 0o6777)
    as_user(1234, 1234, [], lambda: write(f"{d}/f", b"y", "r+b"))
    assert stat.S_IMODE(os.stat(f"{d}/f").st_mode) == 0o777
    # Without group execution set-group-ID stays for members of the group only.
    for groups, left in [([77], 0o2766), ([78], 0o766)]:
        for change in [lambda: write(f"{d}/f", b"y", "r+b"), lambda: os.truncate(f"{d}/f", 0)]:
            os.chown(f"{d}/f", 0, 77)
            os.chmod(f"{d}/f", 0o6766)
            as_user(1234, 1234, groups, change)
            assert stat.S_IMODE(os.stat(f"{d}/f").st_mode) == left
    os.chmod(f"{d}/f", 0o6766)
    os.chown(f"{d}/f", 0, 78)
    assert stat.S_IMODE(os.stat(f"{d}/f").st_mode) == 0o2766


@statement("A6")
def inode_numbers(d):
    write(f"{d}/a", b"")
    os.link(f"{d}/a", f"{d}/b")
    first = os.stat(f"{d}/a").st_ino
    assert os.stat(f"{d}/b").st_ino == first and os.stat(f"{d}/b").st_nlink == 2
    assert {entry.inode() for entry in os.scandir(d)} == {first}
    os.rename(f"{d}/b", f"{d}/c")
    assert os.stat(f"{d}/c").st_ino == first
    os.unlink(f"{d}/a")
    os.unlink(f"{d}/c")
    write(f"{d}/a", b"")
    assert os.stat(f"{d}/a").st_ino > first


@statement("A7")
def stat_after_each_call(d):
    os.chmod(d, 0o755)
    a, b = f"{d}/a", f"{d}/b"
    write(a, b"x" * 10_000)
    os.link(a, b)
    look = os.open(a, os.O_RDONLY)
    other = os.open(b, os.O_RDWR)
    mapped = mmap.mmap(other, 4096)

    def changed(call, fields, *arguments):
        """What the descriptor's stat says after a call differs from before in these fields, and
        what a name says is the same."""
        before = os.fstat(look)
        # The times of two calls are to differ.
        time.sleep(0.002)
        call(*arguments)
        after = os.fstat(look)
        found = {field for field in ("mode", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns")
                 if getattr(before, "st_" + field) != getattr(after, "st_" + field)}
        assert found == set(fields.split()), f"{call.__name__}{arguments}: {found}, wanted {fields}"
        named = os.stat(b if os.path.exists(b) else a)
        assert named == after, f"{call.__name__}{arguments}: {named}, by descriptor {after}"

    def map_write():
        mapped[0:3] = b"abc"
        mapped.flush()

    for _ in range(2):
        changed(os.pwrite, "size mtime_ns ctime_ns", other, b"y", os.fstat(look).st_size + 50)
        changed(os.pwrite, "mtime_ns ctime_ns", other, b"y", 10)
        changed(map_write, "mtime_ns ctime_ns")
        changed(os.truncate, "size mtime_ns ctime_ns", b, 7_000)
        changed(os.ftruncate, "size mtime_ns ctime_ns", other, 8_000)
        changed(fallocate, "size mtime_ns ctime_ns", other, 0, 0, 20_000)
        changed(fallocate, "mtime_ns ctime_ns", other, 3, 0, 4096)
        changed(os.copy_file_range, "size mtime_ns ctime_ns", other, other, 5_000, 0, 30_000)
        changed(os.chmod, "mode ctime_ns", b, 0o640)
        changed(os.fchmod, "mode ctime_ns", other, 0o600)
        changed(os.chown, "uid gid ctime_ns", b, 12, 13)
        changed(os.fchown, "uid gid ctime_ns", other, 0, 0)
        changed(os.utime, "mtime_ns ctime_ns", b, (5, 6))
        changed(os.setxattr, "ctime_ns", b, "user.x", b"1")
        changed(os.removexattr, "ctime_ns", b, "user.x")
        changed(os.link, "nlink ctime_ns", b, f"{d}/c")
        changed(os.rename, "ctime_ns", f"{d}/c", f"{d}/e")
        write(f"{d}/over", b"")
        changed(renameat2, "ctime_ns", f"{d}/e", f"{d}/over", 2)
        changed(os.rename, "nlink ctime_ns", f"{d}/e", f"{d}/over")
        os.chmod(b, 0o4755)
        changed(
            lambda: as_user(65534, 65534, [], lambda: expect_errno(errno.EACCES, open, b, "r+b")),
            "",
        )
        os.chmod(b, 0o4777)
        changed(
            lambda: as_user(65534, 65534, [], lambda: write(b, b"z", "r+b")),
            "mode mtime_ns ctime_ns",
        )
        changed(os.chmod, "mode ctime_ns", b, 0o600)
        changed(write, "size mtime_ns ctime_ns", b, b"short")
        changed(os.read, "", look, 100)
        changed(os.pwrite, "size mtime_ns ctime_ns", other, b"x" * 10_000, 0)
    changed(os.unlink, "nlink ctime_ns", b)
    changed(os.rename, "ctime_ns", a, b)
    os.unlink(b)
    assert os.fstat(look).st_nlink == 0
    mapped.close()
    os.close(look)
    os.close(other)


class Protection:
    """Sets fs.protected_* of this machine for a while: scripts that need another setting wait
    (hardening.sh), and are waited for."""

    NAMES = ("symlinks", "regular", "fifos", "hardlinks")

    def __enter__(self):
        self.lock = open("/run/lock/kestrel-compare", "a")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.before = {name: read(f"/proc/sys/fs/protected_{name}") for name in self.NAMES}
        return self

    def set(self, name, value):
        write(f"/proc/sys/fs/protected_{name}", b"%d" % value)

    def __exit__(self, *_):
        for name, value in self.before.items():
            write(f"/proc/sys/fs/protected_{name}", value)
        self.lock.close()


@statement("A8")
def protected_in_sticky_directories(d):
    # Without walk hints the mount does not hear that an open would create, nor that a link is
    # followed.
    enforced = (
        os.environ.get("KESTREL_SHORTCUT") != "off"
        and os.environ.get("KESTREL_WALK_HINTS") != "none"
    )
    owner, other = 40001, 40002
    os.chmod(d, 0o755)

    def made(mode):
        where = tempfile.mkdtemp(dir=d)
        write(f"{where}/file", b"content")
        os.mkfifo(f"{where}/fifo")
        write(f"{d}/target", b"target")
        os.mkdir(f"{where}/dir")
        write(f"{where}/dir/below", b"below")
        os.symlink(f"{d}/target", f"{where}/link")
        os.symlink("dir", f"{where}/to-dir")
        for name in ("file", "fifo"):
            os.chmod(f"{where}/{name}", 0o666)
        for name in ("file", "fifo", "link", "to-dir"):
            os.chown(f"{where}/{name}", owner, owner, follow_symlinks=False)
        os.chmod(where, mode)
        os.chown(where, 0, other)
        return where

    def opens(path, flags):
        os.close(os.open(path, flags, 0o600))

    def expect(refused, uid, call, *arguments):
        def attempt():
            for _ in range(2):
                if refused and enforced:
                    expect_errno(errno.EACCES, call, *arguments)
                else:
                    call(*arguments)

        as_user(uid, uid, [], attempt) if uid else attempt()

    creating = (
        os.O_CREAT | os.O_WRONLY,
        os.O_CREAT | os.O_RDWR | os.O_TRUNC,
        os.O_CREAT | os.O_RDONLY,
    )
    with Protection() as protection:
        for value in (0, 1, 2):
            for name in Protection.NAMES[:3]:
                protection.set(name, min(value, 1) if name == "symlinks" else value)
            for mode, refused in (
                (0o1777, value >= 1),
                (0o1775, value >= 2),
                (0o777, False),
                (0o1755, False),
            ):
                where = made(mode)
                for flags in creating:
                    # Without O_CREAT.
                    write(f"{where}/file", b"content", "r+b")
                    for uid in (other, 0):
                        expect(refused, uid, opens, f"{where}/file", flags)
                    kept = read(f"{where}/file")
                    assert kept == (
                        b"" if flags & os.O_TRUNC and not (refused and enforced) else b"content"
                    ), (oct(mode), kept)
                    expect(False, owner, opens, f"{where}/file", flags)
                expect(False, other, opens, f"{where}/file", os.O_WRONLY)
                expect(refused, other, opens, f"{where}/fifo", os.O_CREAT | os.O_RDWR)
                expect(False, owner, opens, f"{where}/fifo", os.O_CREAT | os.O_RDWR)
                expect(False, other, opens, f"{where}/fifo", os.O_RDWR)
                follows = value >= 1 and mode == 0o1777
                expect(follows, other, os.stat, f"{where}/link")
                expect(follows, other, opens, f"{where}/link", os.O_RDONLY)
                expect(False, other, os.lstat, f"{where}/link")
                expect(False, owner, os.stat, f"{where}/link")
                # Only the last name of a path is protected, and what belongs to the directory's
                # owner is not.
                expect(False, other, opens, f"{where}/to-dir/below", os.O_RDONLY)
                os.chown(f"{where}/file", 0, 0)
                expect(False, other, opens, f"{where}/file", os.O_CREAT | os.O_WRONLY)
        protection.set("hardlinks", 1)
        where = made(0o1777)
        os.chmod(f"{where}/file", 0o644)
        as_user(
            other,
            other,
            [],
            lambda: expect_errno(errno.EPERM, os.link, f"{where}/file", f"{where}/mine"),
        )
        as_user(owner, owner, [], lambda: os.link(f"{where}/file", f"{where}/mine"))


def map_and_change(fd):
    with mmap.mmap(fd, 4096) as shared:
        shared[0:1] = b"m"
        shared.flush()


@statement("A10")
def capabilities(d):
    write(f"{d}/other", os.urandom(1 << 20))
    value = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    other = os.open(f"{d}/other", os.O_RDONLY)
    changes = {
        "write": lambda fd: os.pwrite(fd, b"y", 3),
        "append": lambda fd: os.pwrite(fd, b"y", os.fstat(fd).st_size),
        "truncate": lambda fd: os.ftruncate(fd, 100),
        "truncate to the same size": lambda fd: os.ftruncate(fd, os.fstat(fd).st_size),
        "open with O_TRUNC": lambda fd: os.close(os.open(f"{d}/f", os.O_WRONLY | os.O_TRUNC)),
        "allocate": lambda fd: fallocate(fd, 0, 0, 10_000),
        "allocate behind the end": lambda fd: fallocate(fd, 1, 1 << 20, 10_000),
        "punch": lambda fd: fallocate(fd, 3, 0, 50),
        "zero": lambda fd: fallocate(fd, 0x10, 0, 50),
        "copy_file_range": lambda fd: os.copy_file_range(other, fd, 1 << 20, 0, 0),
        "shared mapping": map_and_change,
        "chown": lambda fd: os.chown(f"{d}/f", 0, 0),
    }
    for size in (4096, 300_000):
        for name, change in changes.items():
            write(f"{d}/f", b"x" * size)
            with open(f"{d}/f", "r+b", buffering=0) as file:
                os.setxattr(f"{d}/f", "security.capability", value)
                os.setxattr(f"{d}/f", "user.kept", b"kept")
                change(file.fileno())
                names = os.listxattr(f"{d}/f")
                assert "security.capability" not in names and "user.kept" in names, (
                    name,
                    size,
                    names,
                )
                expect_errno(errno.ENODATA, os.getxattr, f"{d}/f", "security.capability")
    os.close(other)


@statement("L1")
def locks(d):
    write(f"{d}/f", b"x")
    for lock in (fcntl.flock, fcntl.lockf):
        with open(f"{d}/f", "r+b") as holder:
            lock(holder, fcntl.LOCK_EX)

            def refused():
                with open(f"{d}/f", "r+b") as other:
                    expect_errno(
                        (errno.EAGAIN, errno.EACCES), lock, other, fcntl.LOCK_EX | fcntl.LOCK_NB
                    )

            as_user(0, 0, [], refused)
        with open(f"{d}/f", "r+b") as free:
            lock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


@statement("D1")
def close_to_open(d):
    for i in range(20):
        content = os.urandom(3000 * (i + 1))
        child = os.fork()
        if child == 0:
            write(f"{d}/f{i}", content)
            os._exit(0)
        os.waitpid(child, 0)
        assert read(f"{d}/f{i}") == content


@statement("D2")
def flushed_in_the_background(d):
    """That it is gone from the writer's memory shows in `kestrel info`; here: nothing is lost by
    waiting."""
    with open(f"{d}/f", "wb", buffering=0) as file:
        file.write(b"x" * 10_000)
        time.sleep(2.5)
        file.write(b"y" * 10_000)
        assert read(f"{d}/f") == b"x" * 10_000 + b"y" * 10_000
    assert read(f"{d}/f") == b"x" * 10_000 + b"y" * 10_000


@statement("X1")
def blocks(d):
    write(f"{d}/f", b"x" * 1000)
    assert os.stat(f"{d}/f").st_blocks == 2


@statement("A9")
def inode_flags(d):
    get_flags, set_flags, get_xattr, set_xattr = 0x80086601, 0x40086602, 0x801C581F, 0x401C5820
    immutable, append, no_dump = 0x10, 0x20, 0x40

    def chattr(path, flags):
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, set_flags, struct.pack("l", flags))
        finally:
            os.close(fd)

    def lsattr(path):
        fd = os.open(path, os.O_RDONLY)
        try:
            # Flags that belong to other file systems' layouts are theirs.
            return struct.unpack("l", fcntl.ioctl(fd, get_flags, b"\0" * 8))[0] & 0xF0
        finally:
            os.close(fd)

    def changes(path):
        return {
            "write": lambda: os.close(os.open(path, os.O_WRONLY)),
            "truncate": lambda: os.truncate(path, 1),
            "create over": lambda: os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)),
            "chmod": lambda: os.chmod(path, 0o600),
            "chown": lambda: os.chown(path, 1, 1),
            "utimes": lambda: os.utime(path, (5, 5)),
            "setxattr": lambda: os.setxattr(path, "user.x", b""),
            "link": lambda: os.link(path, f"{path}.link"),
            "rename": lambda: os.rename(path, f"{path}.moved"),
            "unlink": lambda: os.unlink(path),
        }

    f = f"{d}/f"
    write(f, b"content")
    before = os.stat(f)
    held = os.open(f, os.O_RDWR)
    try:
        assert lsattr(f) == 0
        chattr(f, immutable | no_dump)
        assert lsattr(f) == immutable | no_dump and os.stat(f).st_ctime_ns > before.st_ctime_ns
        for what, change in changes(f).items():
            try:
                change()
            except PermissionError as why:
                assert why.errno == errno.EPERM, (what, why)
                continue
            raise AssertionError(f"{what} of an immutable file")
        expect_errno(errno.EPERM, os.utime, f)
        expect_errno(errno.EPERM, os.pwrite, held, b"x", 0)
        expect_errno(errno.EPERM, os.ftruncate, held, 0)
        expect_errno(errno.EPERM, os.posix_fallocate, held, 0, 100)
        assert read(f) == b"content" and os.stat(f).st_nlink == 1
        chattr(f, append)
        for what, change in changes(f).items():
            try:
                change()
            except PermissionError as why:
                assert why.errno == errno.EPERM, (what, why)
                continue
            raise AssertionError(f"{what} of a file that is append only")
        os.utime(f)
        write(f, b", more", "ab")
        assert read(f) == b"content, more"
        chattr(f, 0)
        os.pwrite(held, b"C", 0)
        assert read(f) == b"Content, more"
    finally:
        os.close(held)
        chattr(f, 0)

    os.mkdir(f"{d}/dir")
    write(f"{d}/dir/f", b"")
    try:
        chattr(f"{d}/dir", immutable)
        expect_errno(errno.EPERM, write, f"{d}/dir/new", b"")
        expect_errno(errno.EPERM, os.unlink, f"{d}/dir/f")
        expect_errno(errno.EPERM, os.rename, f"{d}/dir", f"{d}/moved")
        write(f"{d}/dir/f", b"changed")
        chattr(f"{d}/dir", append)
        write(f"{d}/dir/new", b"")
        expect_errno(errno.EPERM, os.unlink, f"{d}/dir/new")
        expect_errno(errno.EPERM, os.rename, f"{d}/dir/new", f"{d}/dir/other")
    finally:
        chattr(f"{d}/dir", no_dump)
    os.mkdir(f"{d}/dir/sub")
    assert lsattr(f"{d}/dir/sub") == no_dump, "new ones have it from their directory"

    # The other interface, and what is not allowed.
    with open(f, "rb") as file:
        attributes = bytearray(fcntl.ioctl(file, get_xattr, b"\0" * 28))
        attributes[0:4] = struct.pack(
            "I", struct.unpack("I", attributes[0:4])[0] & 0x80000000 | 0x80
        )
        fcntl.ioctl(file, set_xattr, bytes(attributes))
    assert lsattr(f) == no_dump
    os.chown(f, 1000, 1000)
    os.chmod(d, 0o777)
    as_user(1000, 1000, [], lambda: chattr(f, 0))
    as_user(1000, 1000, [], lambda: expect_errno(errno.EPERM, chattr, f, immutable))
    as_user(1001, 1001, [], lambda: expect_errno(errno.EPERM, chattr, f, no_dump))


CONSISTENCY = "kestrel.consistency"


@statement("A11")
def policies(d):
    def effective(path):
        return os.getxattr(path, "kestrel.policy").decode()

    os.makedirs(f"{d}/top/mid/low")
    write(f"{d}/top/f", b"")
    expect_errno(errno.ENODATA, os.getxattr, f"{d}/top", CONSISTENCY)
    expect_errno(errno.ENODATA, os.removexattr, f"{d}/top", CONSISTENCY)
    before = os.stat(f"{d}/top").st_ctime_ns
    os.setxattr(f"{d}/top", CONSISTENCY, b"close-to-open")
    assert os.stat(f"{d}/top").st_ctime_ns > before
    assert os.getxattr(f"{d}/top", CONSISTENCY) == b"close-to-open"
    assert os.listxattr(f"{d}/top") == [CONSISTENCY] and os.listxattr(f"{d}/top/mid") == []
    inode = os.stat(f"{d}/top").st_ino
    for path, above in ((f"{d}/top", 0), (f"{d}/top/mid", 1), (f"{d}/top/mid/low", 2)):
        assert effective(path) == f"consistency=close-to-open above={above} inode={inode}\n"
    # The nearest directory's word counts, and that of the new place after a rename.
    os.setxattr(f"{d}/top/mid", CONSISTENCY, b"strict")
    assert effective(f"{d}/top/mid/low").startswith("consistency=strict above=1 ")
    os.rename(f"{d}/top/mid/low", f"{d}/low")
    assert effective(f"{d}/low") == ""
    os.rename(f"{d}/low", f"{d}/top/low")
    assert effective(f"{d}/top/low").startswith("consistency=close-to-open above=1 ")
    expect_errno(errno.EEXIST, os.setxattr, f"{d}/top", CONSISTENCY, b"strict", os.XATTR_CREATE)
    os.removexattr(f"{d}/top", CONSISTENCY)
    assert effective(f"{d}/top/low") == "" and os.listxattr(f"{d}/top") == []
    expect_errno(
        errno.ENODATA, os.setxattr, f"{d}/top", CONSISTENCY, b"strict", os.XATTR_REPLACE
    )
    for value in (b"", b"Strict", b"strict\n", b"none", b"x" * 65536):
        expect_errno(errno.EINVAL, os.setxattr, f"{d}/top", CONSISTENCY, value)
    expect_errno(errno.EOPNOTSUPP, os.setxattr, f"{d}/top", "kestrel.none", b"strict")
    expect_errno(errno.ENODATA, os.getxattr, f"{d}/top", "kestrel.none")
    expect_errno(errno.EPERM, os.setxattr, f"{d}/top", "kestrel.policy", b"strict")
    expect_errno(errno.EOPNOTSUPP, os.setxattr, f"{d}/top/f", CONSISTENCY, b"strict")
    expect_errno(errno.ENODATA, os.getxattr, f"{d}/top/f", "kestrel.policy")
    # Its owner sets it, and nobody else but root does.
    os.chmod(d, 0o777)
    os.mkdir(f"{d}/own")
    os.chown(f"{d}/own", 1000, 1000)
    as_user(1000, 1000, [], lambda: os.setxattr(f"{d}/own", CONSISTENCY, b"immutable"))

    def stranger():
        expect_errno(errno.EPERM, os.setxattr, f"{d}/own", CONSISTENCY, b"strict")
        expect_errno(errno.EPERM, os.removexattr, f"{d}/own", CONSISTENCY)
        assert os.getxattr(f"{d}/own", CONSISTENCY) == b"immutable"

    as_user(1001, 1001, [], stranger)
    as_user(1000, 1000, [], lambda: os.removexattr(f"{d}/own", CONSISTENCY))


@statement("A12")
def immutable_trees(d):
    top, sub, f = f"{d}/top", f"{d}/top/sub", f"{d}/top/sub/f"
    os.makedirs(f"{sub}/empty")
    write(f, b"content")
    write(f"{d}/outside", b"")
    os.symlink("f", f"{sub}/link")
    held = os.open(f, os.O_RDWR)
    before = os.stat(f)
    os.setxattr(top, CONSISTENCY, b"immutable")
    changes = {
        "create": lambda: write(f"{sub}/new", b""),
        "mkdir": lambda: os.mkdir(f"{sub}/new"),
        "mknod": lambda: os.mkfifo(f"{sub}/new"),
        "symlink": lambda: os.symlink("f", f"{sub}/new"),
        "link in": lambda: os.link(f"{d}/outside", f"{sub}/new"),
        "link out": lambda: os.link(f, f"{d}/new"),
        "O_TMPFILE": lambda: os.open(sub, os.O_TMPFILE | os.O_RDWR),
        "unlink": lambda: os.unlink(f),
        "unlink of a link": lambda: os.unlink(f"{sub}/link"),
        "rmdir": lambda: os.rmdir(f"{sub}/empty"),
        "rename": lambda: os.rename(f, f"{sub}/g"),
        "rename out": lambda: os.rename(f, f"{d}/g"),
        "rename in": lambda: os.rename(f"{d}/outside", f"{sub}/g"),
        "replace": lambda: os.rename(f"{d}/outside", f),
        "rename of a directory": lambda: os.rename(sub, f"{d}/g"),
        "exchange": lambda: renameat2(f"{d}/outside", f, 2),
        "open for writing": lambda: os.open(f, os.O_WRONLY),
        "open to append": lambda: os.open(f, os.O_WRONLY | os.O_APPEND),
        "open to truncate": lambda: os.open(f, os.O_RDWR | os.O_TRUNC),
        "truncate": lambda: os.truncate(f, 1),
        "ftruncate": lambda: os.ftruncate(held, 1),
        "chmod": lambda: os.chmod(f, 0o600),
        "chmod of a directory": lambda: os.chmod(sub, 0o700),
        "chmod of its own": lambda: os.chmod(top, 0o700),
        "chown": lambda: os.chown(f, 1, 1),
        "utimes": lambda: os.utime(f, (5, 5)),
        "touch": lambda: os.utime(f),
        "setxattr": lambda: os.setxattr(f, "user.x", b""),
        "setxattr of a directory": lambda: os.setxattr(sub, "user.x", b""),
        "policy below": lambda: os.setxattr(sub, CONSISTENCY, b"strict"),
    }
    for what, change in changes.items():
        try:
            change()
        except PermissionError as why:
            assert why.errno == errno.EPERM, (what, why)
            continue
        raise AssertionError(f"{what} in an immutable tree")
    assert not os.access(f, os.W_OK) and os.access(f, os.R_OK)

    # What a descriptor of before brings is refused when it is stored, at the latest by close.
    def late():
        os.pwrite(held, b"C", 0)
        os.fsync(held)

    expect_errno(errno.EPERM, late)
    # The kernel is told of the write, and may keep what it is told of an immutable tree.
    os.stat(f)
    try:
        os.close(held)
    except OSError as why:
        assert why.errno == errno.EPERM, why
    # The kernel tells of the close when it has returned; until then the mount shows the write.
    shown = lambda found: (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_nlink)
    end = time.monotonic() + 10
    while shown(os.stat(f)) != shown(before) and time.monotonic() < end:
        time.sleep(0.01)
    assert shown(os.stat(f)) == shown(before) and before.st_nlink == 1
    assert read(f) == b"content" and os.readlink(f"{sub}/link") == "f"
    assert sorted(os.listdir(sub)) == ["empty", "f", "link"] and not os.path.exists(f"{d}/g")
    # Copies of it are not immutable. The directory itself has its name in another one.
    assert os.getxattr(top, CONSISTENCY) == b"immutable" and os.listxattr(top) == []
    os.rename(top, f"{d}/moved")
    expect_errno(errno.EPERM, os.unlink, f"{d}/moved/sub/f")
    os.removexattr(f"{d}/moved", CONSISTENCY)
    write(f"{d}/moved/sub/f", b"changed")
    os.unlink(f"{d}/moved/sub/link")
    os.chmod(f"{d}/moved/sub", 0o700)
    assert read(f"{d}/moved/sub/f") == b"changed"
    assert os.stat(f"{d}/moved/sub").st_mode & 0o777 == 0o700
    assert sorted(os.listdir(f"{d}/moved/sub")) == ["empty", "f"]


@statement("A13")
def close_to_open_trees(d):
    os.mkdir(f"{d}/top")
    os.setxattr(f"{d}/top", CONSISTENCY, b"close-to-open")
    # Through one mount every change is seen at once.
    for number in range(20):
        write(f"{d}/top/f", b"x" * number)
        assert os.stat(f"{d}/top/f").st_size == number
        os.chmod(f"{d}/top/f", 0o600 + number % 8)
        assert os.stat(f"{d}/top/f").st_mode & 0o777 == 0o600 + number % 8
        os.rename(f"{d}/top/f", f"{d}/top/g")
        assert not os.path.exists(f"{d}/top/f") and os.listdir(f"{d}/top") == ["g"]
        os.rename(f"{d}/top/g", f"{d}/top/f")
        os.link(f"{d}/top/f", f"{d}/top/h")
        write(f"{d}/top/h", b"y" * (number + 1))
        assert os.stat(f"{d}/top/f").st_size == number + 1 and os.stat(f"{d}/top/f").st_nlink == 2
        os.unlink(f"{d}/top/h")
        assert os.stat(f"{d}/top/f").st_nlink == 1


@statement("A14")
def compressed_trees(d):
    compression = "kestrel.compression"
    os.makedirs(f"{d}/top/sub")
    for value, shown in ((b"none", b"none"), (b"lz4", b"lz4"), (b"zstd", b"zstd:3")):
        os.setxattr(f"{d}/top", compression, value)
        assert os.getxattr(f"{d}/top", compression) == shown
        assert os.listxattr(f"{d}/top") == [compression] and os.listxattr(f"{d}/top/sub") == []
        inode = os.stat(f"{d}/top").st_ino
        effective = os.getxattr(f"{d}/top/sub", "kestrel.policy").decode()
        assert effective == f"compression={shown.decode()} above=1 inode={inode}\n"
    for value in (b"", b"gzip", b"LZ4", b"lz4:1", b"zstd:0", b"zstd:20", b"zstd:x"):
        expect_errno(errno.EINVAL, os.setxattr, f"{d}/top", compression, value)
    # Whatever the policy was when parts of it were written, a file reads as it was written.
    content, f = bytearray(), f"{d}/top/sub/f"
    for number, value in enumerate((b"zstd:1", b"none", b"lz4", b"zstd:19")):
        os.setxattr(f"{d}/top", compression, value)
        with open(f, "ab") as file:
            content += bytes([number]) * 3_000_000
            file.write(bytes([number]) * 3_000_000)
        with open(f, "r+b") as file:
            at = number * 2_000_000 + 12_345
            file.seek(at)
            file.write(b"between" * 1000)
            content[at : at + 7000] = b"between" * 1000
            os.fsync(file.fileno())
        assert read(f) == content
    os.link(f, f"{d}/outside")
    os.rename(f, f"{d}/moved")
    os.removexattr(f"{d}/top", compression)
    assert read(f"{d}/moved") == content and read(f"{d}/outside") == content
    with open(f"{d}/moved", "rb") as source, open(f"{d}/top/copy", "wb") as copy:
        assert os.copy_file_range(source.fileno(), copy.fileno(), len(content)) > 0
    copied = read(f"{d}/top/copy")
    assert copied == content[: len(copied)]


@statement("X2")
def inode_versions(d):
    write(f"{d}/f", b"")
    with open(f"{d}/f", "rb") as file:
        expect_errno((errno.ENOTTY, errno.ENOSYS), fcntl.ioctl, file, 0x80087601, b"\0" * 8)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir")
    parser.add_argument(
        "--doc", default=os.path.join(os.path.dirname(__file__), "../../docs/semantics.md")
    )
    parser.add_argument("--only", help="number of one statement")
    arguments = parser.parse_args()
    with open(arguments.doc, encoding="utf-8") as doc:
        promised = set(re.findall(r"^- \*\*([A-Z]+\d+)\*\*", doc.read(), re.MULTILINE))
    passed, failed = 0, []
    for number in sorted(promised - TESTS.keys() - ELSEWHERE.keys()):
        failed.append(f"{number}: the document promises it, no test executes it")
    for number in sorted(TESTS.keys() - promised):
        failed.append(f"{number}: tested, but not in the document")
    for number, test in TESTS.items():
        if arguments.only and number != arguments.only:
            continue
        where = tempfile.mkdtemp(prefix=f"semantics-{number}-", dir=arguments.dir)
        try:
            test(where)
            passed += 1
            print(f"ok   {number} {test.__name__}")
        except BaseException as error:
            failed.append(f"{number}: {test.__name__}: {error!r}")
            print(f"FAIL {number} {test.__name__}")
            traceback.print_exc()
        finally:
            shutil.rmtree(where, ignore_errors=True)
    for failure in failed:
        print(f"FAIL {failure}")
    print(f"{passed} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
