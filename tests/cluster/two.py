#!/usr/bin/env python3
"""What one mount of a volume does, seen from another mount of it.

    two.py A B

A and B are two mounts of one volume. Prints a line for each test and "N passed, N failed".
"""

import ctypes
import errno
import os
import random
import subprocess
import sys
import threading
import time

import listings  # noqa: F401 (its tests)
from suite import TESTS, read, refused, run_all, test, write

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_NOREPLACE = -100, 1


def rename_to_free(old, new):
    """Renames, unless the new name is taken; that is FileExistsError."""
    if LIBC.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), RENAME_NOREPLACE) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), old)


@test
def close_to_open(a, b):
    """what was closed on one mount is read by every later open on the other, at all sizes"""
    for size in (1, 3000, 70_000, 5_000_000):
        for turn in range(3):
            data = random.Random(size + turn).randbytes(size + turn)
            write(f"{a}/f", data)
            assert read(f"{b}/f") == data, size
            write(f"{b}/f", data[::-1])
            assert read(f"{a}/f") == data[::-1], size


@test
def pages_of_a_file_renamed_over_another(a, b):
    """a file that was read here, rewritten there with the same size and renamed there over one that
    was read here"""
    for turn, size in enumerate((100, 5000, 60_000, 3_000_000)):
        old, new, other = (random.Random(10 * size + seed).randbytes(size) for seed in range(3))
        write(f"{a}/{turn}", old)
        assert read(f"{b}/{turn}") == old, size
        os.rename(f"{a}/{turn}", f"{a}/{turn}-moved")
        write(f"{a}/{turn}-target", other)
        write(f"{a}/{turn}-moved", new)
        assert read(f"{b}/{turn}-target") == other, size
        os.rename(f"{a}/{turn}-moved", f"{a}/{turn}-target")
        assert read(f"{b}/{turn}-target") == new, size


@test
def pages_after_opens_of_another_kind(a, b):
    """a change there is read here, whatever a stat, a failed open or an open with other flags came
    before"""
    befores = [
        os.stat,
        lambda path: os.open(path, os.O_RDONLY | os.O_DIRECTORY),
        lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL),
        lambda path: os.close(os.open(path, os.O_PATH)),
        lambda path: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)),
        lambda path: os.access(path, os.R_OK),
        lambda path: os.readlink(path),
        lambda path: os.open(f"{path}/below", os.O_RDONLY),
    ]
    for turn, before in enumerate(befores):
        path = f"file-{turn}"
        for seed in range(3):
            data = random.Random(seed).randbytes(60_000)
            write(f"{a}/{path}", data)
            try:
                before(f"{b}/{path}")
            except OSError:
                pass
            assert read(f"{b}/{path}") == data, (turn, seed)


@test
def patches_and_holes(a, b):
    """changes inside a file, appends, truncation and holes"""
    content = bytearray(random.Random(7).randbytes(2_000_000))
    write(f"{a}/f", content)
    for turn in range(20):
        here = (a, b)[turn % 2]
        there = (a, b)[1 - turn % 2]
        with open(f"{here}/f", "r+b") as file:
            at = random.Random(turn).randrange(len(content))
            file.seek(at)
            piece = bytes([turn]) * 5000
            file.write(piece)
            content[at : at + 5000] = piece
            if turn % 5 == 4:
                file.truncate(1_500_000 + turn * 1000)
                size = 1_500_000 + turn * 1000
                content[:] = content[:size] + bytes(max(0, size - len(content)))
        assert read(f"{there}/f") == bytes(content), turn


@test
def names(a, b):
    """names made, renamed and removed on one mount are so on the other at once"""
    os.mkdir(f"{a}/d")
    write(f"{b}/d/f", b"x")
    assert os.listdir(f"{a}/d") == ["f"]
    os.rename(f"{a}/d/f", f"{a}/d/g")
    refused(errno.ENOENT, os.stat, f"{b}/d/f")
    os.link(f"{b}/d/g", f"{b}/d/h")
    assert os.stat(f"{a}/d/g").st_nlink == 2
    refused(errno.ENOTEMPTY, os.rmdir, f"{a}/d")
    os.unlink(f"{a}/d/g")
    os.unlink(f"{b}/d/h")
    os.rmdir(f"{a}/d")
    refused(errno.ENOENT, os.stat, f"{b}/d")


def tick():
    """A mount in shortcut mode shows the attributes of what is open as they were up to two ticks
    ago (docs/shortcut.md)."""
    time.sleep(0.02)


@test
def attributes(a, b):
    """chmod, times, sizes and extended attributes are seen, also through what is open"""
    write(f"{a}/f", b"x" * 10)
    fd = os.open(f"{b}/f", os.O_RDONLY)
    os.chmod(f"{a}/f", 0o600)
    os.utime(f"{a}/f", ns=(1, 2_000_000_000))
    os.setxattr(f"{a}/f", "user.k", b"v")
    tick()
    assert os.fstat(fd).st_mode & 0o777 == 0o600 and os.fstat(fd).st_mtime_ns == 2_000_000_000
    assert os.getxattr(f"{b}/f", "user.k") == b"v"
    with open(f"{a}/f", "ab") as file:
        file.write(b"more")
    tick()
    assert os.fstat(fd).st_size == 14 and os.stat(f"{b}/f").st_size == 14
    os.close(fd)


@test
def removed_while_open(a, b):
    """a file removed on one mount stays readable and writable where it is open"""
    write(f"{a}/f", b"still here" * 1000)
    fd = os.open(f"{b}/f", os.O_RDWR)
    os.unlink(f"{a}/f")
    refused(errno.ENOENT, os.stat, f"{b}/f")
    assert os.pread(fd, 10, 9990) == b"still here"
    os.pwrite(fd, b"changed", 0)
    os.fsync(fd)
    assert os.pread(fd, 7, 0) == b"changed" and os.fstat(fd).st_nlink == 0
    os.close(fd)


@test
def renamed_while_open(a, b):
    """a file renamed, and its directory too, is still written to by the process that had it open"""
    os.mkdir(f"{a}/one")
    fd = os.open(f"{b}/one/f", os.O_RDWR | os.O_CREAT)
    os.rename(f"{a}/one/f", f"{a}/one/g")
    os.rename(f"{a}/one", f"{a}/two")
    os.write(fd, b"arrived")
    os.close(fd)
    assert read(f"{a}/two/g") == b"arrived"


@test
def working_directory(a, b):
    """a process keeps its working directory when another mount renames it"""
    os.mkdir(f"{a}/w")
    shell = subprocess.Popen(["sh"], cwd=f"{b}/w", stdin=subprocess.PIPE, text=True)
    print("echo one > first", file=shell.stdin, flush=True)
    while not os.path.exists(f"{a}/w/first"):
        assert shell.poll() is None
    os.rename(f"{a}/w", f"{a}/v")
    print("echo two > second; exit", file=shell.stdin, flush=True)
    assert shell.wait(60) == 0
    assert read(f"{a}/v/second") == b"two\n"


@test
def exclusive_creation(a, b):
    """of many processes that create one name with O_EXCL, on two mounts, one succeeds"""
    for turn in range(40):
        won = []

        def create(d):
            try:
                os.close(os.open(f"{d}/lock{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                won.append(d)
            except FileExistsError:
                pass

        crew = [threading.Thread(target=create, args=(d,)) for d in (a, b, a, b)]
        for one in crew:
            one.start()
        for one in crew:
            one.join()
        assert len(won) == 1, won


@test
def renames_race(a, b):
    """two mounts rename the same files around: none is lost or doubled"""
    os.mkdir(f"{a}/r")
    for number in range(20):
        write(f"{a}/r/{number}", b"%d" % number)

    def shuffle(d, seed):
        chance = random.Random(seed)
        for _ in range(300):
            old, new = chance.randrange(40), chance.randrange(40)
            try:
                rename_to_free(f"{d}/r/{old}", f"{d}/r/{new}")
            except (FileNotFoundError, FileExistsError):
                pass

    crew = [threading.Thread(target=shuffle, args=pair) for pair in ((a, 1), (b, 2))]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    contents = {read(f"{b}/r/{name}") for name in os.listdir(f"{b}/r")}
    assert sorted(os.listdir(f"{a}/r")) == sorted(os.listdir(f"{b}/r"))
    assert contents == {b"%d" % number for number in range(20)}


@test
def appends_race(a, b):
    """both append to one file, each under flock: nothing is overwritten"""
    import fcntl

    write(f"{a}/log", b"")

    def append(d, mark):
        for number in range(100):
            with open(f"{d}/log", "ab", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0, 2)
                file.write(b"%s%d\n" % (mark, number))

    crew = [threading.Thread(target=append, args=pair) for pair in ((a, b"a"), (b, b"b"))]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    lines = read(f"{b}/log").split()
    assert sorted(lines) == sorted(
        b"%s%d" % (mark, number) for mark in (b"a", b"b") for number in range(100)
    )


def main():
    a, b = sys.argv[1:3]

    def call(number, run):
        os.mkdir(f"{a}/t{number}")
        run(f"{a}/t{number}", f"{b}/t{number}")

    run_all(TESTS, call)


if __name__ == "__main__":
    main()
