#!/usr/bin/env python3
"""What depends on where things lie among several metadata nodes, on two mounts of their volume.

    nodes.py A B

A and B are two mounts of one volume. Prints a line for each test and "N passed, N failed".
"""

import errno
import fcntl
import os
import random
import sys
import threading
import time

from suite import TESTS, read, refused, run_all, test, write


@test
def many_directories(a, b):
    """files of many names in many directories are where they were put, on both mounts, and are
    listed once"""
    for d in range(12):
        os.mkdir(f"{a}/d{d}")
        for f in range(12):
            write(f"{(a, b)[f % 2]}/d{d}/file-{f}.jpg", b"%d %d" % (d, f))
    for d in range(12):
        assert sorted(os.listdir(f"{b}/d{d}")) == sorted(f"file-{f}.jpg" for f in range(12))
        for f in range(12):
            assert read(f"{b}/d{d}/file-{f}.jpg") == b"%d %d" % (d, f)
        assert os.stat(f"{b}/d{d}").st_nlink == 2
    assert os.stat(b).st_nlink == 14


@test
def long_listing(a, b):
    """a directory of 3,000 names is listed whole and in one piece, and its names differ"""
    for number in range(3000):
        os.close(os.open(f"{a}/{number:05}.bin", os.O_CREAT | os.O_WRONLY))
    names = [entry.name for entry in os.scandir(b)]
    assert sorted(names) == [f"{number:05}.bin" for number in range(3000)]
    for number in range(0, 3000, 2):
        os.unlink(f"{b}/{number:05}.bin")
    assert len(os.listdir(a)) == 1500


@test
def renames_over_nodes(a, b):
    """a file renamed from name to name keeps its number, content, attributes and extended
    attributes, open or not"""
    write(f"{a}/n0", b"content")
    os.chmod(f"{a}/n0", 0o640)
    os.setxattr(f"{a}/n0", "user.key", b"value")
    ino = os.stat(f"{a}/n0").st_ino
    fd = os.open(f"{b}/n0", os.O_RDWR)
    for turn in range(40):
        os.rename(f"{(a, b)[turn % 2]}/n{turn}", f"{(a, b)[turn % 2]}/n{turn + 1}")
    at = os.stat(f"{b}/n40")
    assert (at.st_ino, at.st_mode & 0o777, os.getxattr(f"{a}/n40", "user.key")) == (
        ino,
        0o640,
        b"value",
    )
    os.pwrite(fd, b"changed", 0)
    os.fsync(fd)
    assert read(f"{a}/n40") == b"changed"
    os.close(fd)
    assert os.listdir(a) == ["n40"]


@test
def directories_move(a, b):
    """a tree moved elsewhere is found there, from both mounts, and nowhere else; loops are
    refused"""
    os.makedirs(f"{a}/x/y/z")
    write(f"{b}/x/y/z/f", b"deep")
    os.mkdir(f"{a}/other")
    os.rename(f"{a}/x/y", f"{a}/other/y")
    assert read(f"{b}/other/y/z/f") == b"deep"
    refused(errno.ENOENT, os.stat, f"{b}/x/y")
    refused(errno.EINVAL, os.rename, f"{a}/other", f"{a}/other/y/inside")
    refused(errno.ENOTEMPTY, os.rmdir, f"{b}/other")


@test
def replaced_by_rename(a, b):
    """the way careful programs write: a new file renamed over the old one, read by the other mount
    at every moment"""
    write(f"{a}/state", b"0" * 100)
    stop, wrong = threading.Event(), []

    def look():
        while not stop.is_set():
            content = read(f"{b}/state")
            if len(content) != 100 or len(set(content)) != 1:
                wrong.append(content)

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(60):
        write(f"{a}/state.{turn}", b"%d" % (turn % 10) * 100)
        os.rename(f"{a}/state.{turn}", f"{a}/state")
    stop.set()
    reader.join()
    assert not wrong, wrong[0]
    assert os.listdir(b) == ["state"]


@test
def hard_links(a, b):
    """names of one file on several nodes are one file; the last of them takes it away"""
    write(f"{a}/one", b"shared")
    for number in range(10):
        d = (a, b)[number % 2]
        os.link(f"{d}/one", f"{d}/link{number}")
    assert os.stat(f"{b}/one").st_nlink == 11
    with open(f"{b}/link3", "r+b") as file:
        file.write(b"SHARED")
    assert read(f"{a}/link9") == b"SHARED"
    os.unlink(f"{a}/one")
    for number in range(9):
        os.unlink(f"{a}/link{number}")
    assert os.stat(f"{b}/link9").st_nlink == 1 and read(f"{b}/link9") == b"SHARED"


@test
def removed_while_open_everywhere(a, b):
    """files renamed, removed and open on both mounts stay until both have closed them"""
    for number in range(12):
        write(f"{a}/f{number}", b"%d" % number * 9000)
        here, there = os.open(f"{a}/f{number}", os.O_RDONLY), os.open(f"{b}/f{number}", os.O_RDWR)
        os.rename(f"{b}/f{number}", f"{b}/g{number}")
        os.unlink(f"{a}/g{number}")
        assert os.pread(here, 1, 0) == (b"%d" % number)[:1]
        os.pwrite(there, b"!", 0)
        os.fsync(there)
        assert os.pread(there, 2, 0)[:1] == b"!"
        os.close(there)
        # Attributes of what is open may be two ticks old in shortcut mode, and its pages as old as
        # the open.
        time.sleep(0.02)
        assert os.fstat(here).st_nlink == 0 and len(os.pread(here, 9000, 0)) == min(
            9000, os.fstat(here).st_size
        )
        os.close(here)
    assert os.listdir(a) == []


@test
def large_files(a, b):
    """files of many chunks, written here and there, cut, copied and renamed"""
    chance = random.Random(3)
    content = bytearray(chance.randbytes(30_000_000))
    write(f"{a}/big", content)
    os.rename(f"{b}/big", f"{b}/renamed")
    for turn in range(10):
        at, piece = chance.randrange(len(content) - 70_000), chance.randbytes(70_000)
        with open(f"{(a, b)[turn % 2]}/renamed", "r+b") as file:
            file.seek(at)
            file.write(piece)
        content[at : at + len(piece)] = piece
    assert read(f"{a}/renamed") == bytes(content)
    os.truncate(f"{b}/renamed", 12_345_678)
    assert read(f"{a}/renamed") == bytes(content[:12_345_678])
    with open(f"{a}/renamed", "rb") as source, open(f"{a}/copy", "wb") as target:
        while os.copy_file_range(source.fileno(), target.fileno(), 1 << 20):
            pass
    os.unlink(f"{a}/renamed")
    assert read(f"{b}/copy") == bytes(content[:12_345_678])


@test
def sparse_and_far(a, b):
    """a byte far out in a file, and holes"""
    with open(f"{a}/sparse", "wb") as file:
        file.seek(5 << 30)
        file.write(b"end")
    assert os.stat(f"{b}/sparse").st_size == (5 << 30) + 3
    with open(f"{b}/sparse", "rb") as file:
        file.seek((5 << 30) - 10)
        assert file.read() == bytes(10) + b"end"


@test
def figures(a, b):
    """statfs counts the files of all nodes"""
    before = os.statvfs(a)
    for number in range(60):
        write(f"{b}/file-{number}", b"x")
    after = os.statvfs(a)
    used = (after.f_files - after.f_ffree) - (before.f_files - before.f_ffree)
    assert used == 60, used


@test
def locks_between(a, b):
    """locks of files on all nodes are seen from the other mount, and passed on"""
    for number in range(9):
        path = f"lock{number}"
        write(f"{a}/{path}", b"")
        with open(f"{a}/{path}", "r+b") as one, open(f"{b}/{path}", "r+b") as other:
            fcntl.lockf(one, fcntl.LOCK_EX)
            refused(errno.EAGAIN, fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waiting = threading.Thread(target=fcntl.lockf, args=(other, fcntl.LOCK_EX))
            waiting.start()
            time.sleep(0.05)
            assert waiting.is_alive()
            fcntl.lockf(one, fcntl.LOCK_UN)
            waiting.join(20)
            assert not waiting.is_alive()


@test
def moves_race(a, b):
    """two mounts move directories and files between the same parents: each is in one place in the
    end"""
    for name in ("p", "q", "r"):
        os.mkdir(f"{a}/{name}")
    for number in range(6):
        os.mkdir(f"{a}/p/d{number}")
        write(f"{a}/p/f{number}", b"%d" % number)

    def shuffle(d, seed):
        chance = random.Random(seed)
        for _ in range(100):
            name = f"{chance.choice('df')}{chance.randrange(6)}"
            source, target = chance.sample(["p", "q", "r"], 2)
            try:
                os.rename(f"{d}/{source}/{name}", f"{d}/{target}/{name}")
            except FileNotFoundError:
                pass

    crew = [threading.Thread(target=shuffle, args=pair) for pair in ((a, 1), (b, 2), (a, 3))]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    for d in (a, b):
        found = sorted(name for parent in ("p", "q", "r") for name in os.listdir(f"{d}/{parent}"))
        assert found == sorted([f"d{n}" for n in range(6)] + [f"f{n}" for n in range(6)]), found


@test
def trees_go(a, b):
    """a tree removed on one mount while the other looks at it is gone on both"""
    for d in range(6):
        os.makedirs(f"{a}/tree/{d}/sub")
        for f in range(10):
            write(f"{a}/tree/{d}/sub/{f}", b"x" * 5000)

    def walk():
        for _ in range(10):
            for _ in os.walk(f"{b}/tree"):
                pass

    looker = threading.Thread(target=walk)
    looker.start()
    for top, dirs, files in os.walk(f"{a}/tree", topdown=False):
        for name in files:
            os.unlink(f"{top}/{name}")
        for name in dirs:
            os.rmdir(f"{top}/{name}")
    os.rmdir(f"{a}/tree")
    looker.join()
    assert os.listdir(a) == [] and os.listdir(b) == []


def main():
    a, b = sys.argv[1:3]

    def call(number, run):
        os.mkdir(f"{a}/n{number}")
        run(f"{a}/n{number}", f"{b}/n{number}")

    run_all(TESTS, call)


if __name__ == "__main__":
    main()
