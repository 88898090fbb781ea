#!/usr/bin/env python3
"""Access times (docs/semantics.md, A2), call by call, and how many messages they cost.

    access_times.py compare DIR LOCAL          a mount beside a local file system with the same
                                               options
    access_times.py rules DIR MODE             what no local file system shows
    access_times.py count DIR MODE STATS…      STATS prints the mount's figures as JSON
    access_times.py follows FILE OTHER         a read here is seen by the other mount

As root, in directories without files. Each check prints a line; the last line is "N passed, N
failed".
"""

import errno
import fcntl
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import time

# A read waits 5 s before it is sent; the rest is for a busy machine.
HEARD_WITHIN = 120
OLD = 1_000_000_000_000_000_000
passed, failed = 0, 0


def check(what, good, found=""):
    global passed, failed
    if good:
        passed += 1
        print(f"ok   {what}")
    else:
        failed += 1
        print(f"FAIL {what}: {found}")


def write(path, data=b"content\n" * 100):
    with open(path, "wb") as file:
        file.write(data)


def read(path, flags=0):
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def age(path):
    """An old access time, older than the last change."""
    os.utime(path, ns=(OLD, OLD + 1), follow_symlinks=False)


def as_user(uid, call):
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            call()
            os._exit(0)
        except BaseException as error:
            print(f"uid {uid}: {error!r}")
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, f"as uid {uid}"


def steps(d):
    """Each call with the path of the file that may get another access time."""
    f, link, sub = f"{d}/file", f"{d}/link", f"{d}/dir"
    write(f)
    os.mkdir(sub)
    os.symlink("nowhere", link)

    def map_it():
        with open(f, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            assert memory[:1]

    def send_it():
        target = os.open(f"{d}/copy", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(f, "rb") as source:
            os.sendfile(target, source.fileno(), 0, 100)
        os.close(target)

    def append():
        with open(f, "ab") as file:
            file.write(b"more")

    yield "create", f, lambda: write(f)
    yield "first read", f, lambda: read(f)
    yield "second read", f, lambda: read(f)
    yield "stat, access, getxattr", f, lambda: (os.stat(f), os.access(f, os.R_OK), os.listxattr(f))
    yield "write", f, append
    yield "read after a write", f, lambda: read(f)
    yield "chmod", f, lambda: os.chmod(f, 0o640)
    yield "read after chmod", f, lambda: read(f)
    yield "an old time is set", f, lambda: age(f)
    yield "read with O_NOATIME", f, lambda: read(f, os.O_NOATIME)
    yield "read after that", f, lambda: read(f)
    yield "an old time is set", f, lambda: age(f)
    yield "map", f, map_it
    yield "an old time is set", f, lambda: age(f)
    yield "sendfile", f, send_it
    yield "times are set", f, lambda: os.utime(f)
    yield "rename", f, lambda: (os.rename(f, f + "2"), os.rename(f + "2", f))
    yield "link, unlink", f, lambda: (os.link(f, f + "2"), os.unlink(f + "2"))
    yield "read after link", f, lambda: read(f)
    os.chmod(f, 0o444)
    yield "read by who may not write", f, lambda: as_user(1234, lambda: read(f))
    yield "read again", f, lambda: as_user(1234, lambda: read(f))
    yield "first listing", sub, lambda: os.listdir(sub)
    yield "second listing", sub, lambda: os.listdir(sub)
    yield "create in it", sub, lambda: write(f"{sub}/new")
    yield "listing after that", sub, lambda: os.listdir(sub)
    yield "a walk through it", sub, lambda: os.stat(f"{sub}/new")
    yield "first readlink", link, lambda: os.readlink(link)
    yield "second readlink", link, lambda: os.readlink(link)
    yield "lstat", link, lambda: os.lstat(link)


def trace(d):
    out = []
    for what, path, call in steps(d):
        before = os.lstat(path)
        # Local file systems count in ticks of the kernel's clock.
        time.sleep(0.03)
        call()
        after = os.lstat(path)
        moved = (after.st_atime_ns > before.st_atime_ns) - (after.st_atime_ns < before.st_atime_ns)
        told = {1: "later", 0: "the same", -1: "earlier"}[moved]
        changed = after.st_ctime_ns != before.st_ctime_ns
        out.append((what, f"{told}, ctime {'another' if changed else 'the same'}"))
    return out


def compare(d, local):
    for (what, ours), (_, theirs) in zip(trace(d), trace(local)):
        check(f"{what}: {theirs}", ours == theirs, ours)


def chattr(path, flags):
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    fcntl.ioctl(fd, 0x40086602, struct.pack("l", flags))
    os.close(fd)


def rules(d, mode):
    f, sub = f"{d}/flags", f"{d}/flags-dir"
    atime = lambda path: os.stat(path).st_atime_ns
    os.mkdir(sub)
    write(f)
    for name, flag in (("+i", 0x10), ("+A", 0x80)):
        for path, look in ((f, read), (sub, os.listdir)):
            age(path)
            # To set flags the kernel opens the file.
            chattr(path, flag)
            before = atime(path)
            look(path)
            check(
                f"chattr {name}: {look.__name__} of {os.path.basename(path)} moves nothing",
                atime(path) == before,
            )
            chattr(path, 0)
    time.sleep(0.01)
    read(f)
    check("without flags it moves", (atime(f) > OLD) == (mode != "none"), atime(f))
    # A read that the node has not heard of is shown, and a flag does not take it back.
    age(f)
    read(f)
    seen = atime(f)
    chattr(f, 0x10)
    check("chattr +i after a read keeps its time", atime(f) >= seen, f"{seen} {atime(f)}")
    chattr(f, 0)
    # Never backwards, and a time that is set hides reads of before at once and for good.
    read(f)
    ahead = time.time_ns() + 10**15
    os.utime(f, ns=(ahead, ahead - 1))
    read(f)
    check("a time in the future stays", atime(f) == ahead, atime(f))
    age(f)
    read(f)
    age(f)
    fd = os.open(f, os.O_RDONLY | os.O_NOATIME)
    os.fsync(fd)
    os.close(fd)
    check("a time that is set after a read stays", atime(f) == OLD, atime(f))
    # The second read is answered from the kernel's pages: the open stands for it.
    read(f)
    before = atime(f)
    time.sleep(0.03)
    read(f)
    check(
        "an open whose reads the kernel answers counts",
        (atime(f) > before) == (mode == "strict"),
        atime(f),
    )
    fd = os.open(f, os.O_RDWR)
    os.unlink(f)
    os.utime(fd, ns=(OLD, OLD + 1))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pread(fd, 100, 0)
    os.fsync(fd)
    check(
        "a file without names",
        (os.fstat(fd).st_atime_ns > OLD) == (mode != "none"),
        os.fstat(fd).st_atime_ns,
    )
    os.close(fd)


def count(d, mode, stats):
    def figures():
        out = json.loads(subprocess.run(stats, check=True, capture_output=True).stdout)
        return [out[f"access_times_{name}_total"] for name in ("noted", "sent")]

    files, rounds = 50, 20
    paths = [f"{d}/count{number}" for number in range(files)]
    for path in paths:
        write(path)
    os.listdir(d)
    fd = os.open(d, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    noted, sent = figures()
    begun = time.monotonic()
    for _ in range(rounds):
        for path in paths:
            read(path)
    # What was read last is sent within 5 s.
    before, told = (noted, sent), (0, 0)
    least = {"none": (0, 0), "relatime": (files, files), "strict": (files * rounds, files)}[mode]
    while any(a < b for a, b in zip(told, least)) and time.monotonic() - begun < HEARD_WITHIN:
        time.sleep(0.5)
        told = tuple(after - earlier for after, earlier in zip(figures(), before))
    noted, sent = told
    # One a file in 5 s. (Opens count by themselves, and so do reads.)
    spans = 2 + int((time.monotonic() - begun) / 5)
    most = {
        "none": (0, 0),
        "relatime": (files, files),
        "strict": (4 * files * rounds, files * spans),
    }[mode]
    what = f"{files * rounds} reads of {files} files: {noted} count, {sent} messages"
    check(f"{what}, at most {most[0]} and {most[1]}", noted <= most[0] and sent <= most[1])
    check(f"{mode}: at least {least[0]} and {least[1]}", noted >= least[0] and sent >= least[1])


def follows(path, other):
    age(path)
    assert os.stat(other).st_atime_ns == OLD
    read(path)
    here = os.stat(path).st_atime_ns
    check("a read is shown at once", here > OLD, here)
    end = time.monotonic() + HEARD_WITHIN
    while os.stat(other).st_atime_ns != here and time.monotonic() < end:
        time.sleep(0.1)
    check("another mount sees it", os.stat(other).st_atime_ns == here, os.stat(other).st_atime_ns)
    time.sleep(0.03)
    # The newest of both counts.
    os.utime(other, ns=(OLD, OLD + 1))
    read(path), read(other)
    for mounted in (path, other):
        fd = os.open(mounted, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    end = time.monotonic() + HEARD_WITHIN
    both = lambda: [os.stat(mounted).st_atime_ns for mounted in (path, other)]
    while (both()[0] != both()[1] or min(both()) <= here) and time.monotonic() < end:
        time.sleep(0.1)
    check(
        "reads of both: the newest counts for both",
        both()[0] == both()[1] and min(both()) > here,
        both(),
    )


def main():
    command, d, *rest = sys.argv[1:]
    if command == "follows":
        follows(d, *rest)
    else:
        os.makedirs(d, exist_ok=True)
        if command == "compare":
            os.makedirs(rest[0], exist_ok=True)
            compare(d, rest[0])
        elif command == "rules":
            rules(d, rest[0])
        else:
            count(d, rest[0], rest[1:])
        shutil.rmtree(d)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        print(f"FAIL {errno.errorcode.get(error.errno)}: {error}")
        print(f"{passed} passed, {failed + 1} failed")
        raise
