#!/usr/bin/env python3
"""Pass-through is coherent on one machine: whatever changes a file, all processes that have it open
or mapped see it at once.

    coherence.py KESTREL MOUNT [WORD]

The mount has a cache directory and pass-through is on. Each case makes a file of which there is a
whole copy, opens and maps it so that the kernel reads the copy (checked by the mount's counters),
changes it in one way, and compares every view of it with a model. The random case does so in random
order; its seed is printed and is the first argument of RANDOM_SEED. With WORD only the cases run of
which the name has it.
"""

import ctypes
import fcntl
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import threading
import time

KESTREL, MOUNT, WORD = (*sys.argv[1:], "")[:3]
MIB = 1 << 20
SIZE = 3 * MIB + 4321
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def figure(name):
    out = subprocess.run(
        [KESTREL, "stats", "--once", "--json", MOUNT], check=True, capture_output=True
    ).stdout
    return json.loads(out)[f"passthrough_{name}"]


def eventually(what, test, seconds=20):
    """No view may be stale; this is for what ends by itself: copies out of use, handles of the
    kernel."""
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)


def warm(path):
    subprocess.run([KESTREL, "warmup", "--whole", path], check=True, capture_output=True)


def fallocate(fd, mode, offset, length):
    if LIBC.fallocate(fd, mode, offset, length):
        raise OSError(ctypes.get_errno(), "fallocate")


def differences(found, expected):
    """The first parts that differ, in bytes and in pages, and what was found there."""
    parts = []
    for at, (a, b) in enumerate(zip(found, expected)):
        if a != b:
            if parts and parts[-1][1] == at:
                parts[-1][1] = at + 1
            elif len(parts) < 8:
                parts.append([at, at + 1])
            else:
                break
    return "; ".join(
        f"[{a}, {b}) in page {a // 4096}: {found[a : min(b, a + 8)].hex()}"
        f" for {expected[a : min(b, a + 8)].hex()}"
        for a, b in parts
    )


class File:
    """A file that the kernel reads from a whole copy, with a model of its content."""

    number = 0

    def __init__(self, size=SIZE):
        File.number += 1
        self.path = f"{MOUNT}/file{File.number}"
        self.model = bytearray(random.Random(File.number).randbytes(size))
        with open(self.path, "wb") as file:
            file.write(self.model)
        warm(self.path)
        before = figure("opens_total")
        self.reader = os.open(self.path, os.O_RDONLY)
        assert figure("opens_total") == before + 1, "not opened in pass-through"
        self.map = mmap.mmap(self.reader, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.fds = [self.reader]

    def open(self, flags):
        fd = os.open(self.path, flags)
        self.fds.append(fd)
        return fd

    def check(self, what=""):
        """Every view: read, map, processes that opened for writing, and one that opens now."""
        views = {"new open": self.open(os.O_RDONLY)}
        views |= {
            f"fd {fd}": fd
            for fd in self.fds
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
        }
        for name, fd in views.items():
            found = b"".join(iter(lambda fd=fd, at=[0]: self._piece(fd, at), b""))
            self.same(found, bytes(self.model), f"{what}: {name}")
            assert os.fstat(fd).st_size == len(self.model), f"{what}: size through {name}"
        os.close(self.fds.pop())
        end = min(len(self.map), len(self.model))
        self.same(self.map[:end], bytes(self.model[:end]), f"{what}: map")
        assert os.stat(self.path).st_size == len(self.model), f"{what}: size by path"

    @staticmethod
    def _piece(fd, at):
        piece = os.pread(fd, MIB, at[0])
        at[0] += len(piece)
        return piece

    @staticmethod
    def same(found, expected, what):
        if found != expected:
            at = next(
                (i for i, (a, b) in enumerate(zip(found, expected)) if a != b),
                min(len(found), len(expected)),
            )
            raise AssertionError(
                f"{what}: {len(found)} bytes, {len(expected)} expected, first difference at {at}: "
                + differences(found, expected)
            )

    def write(self, fd, offset, data):
        assert os.pwrite(fd, data, offset) == len(data)
        if offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset : offset + len(data)] = data

    def resized(self, size):
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    def close(self):
        """All are closed: the volume itself has what was seen."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.map.close()
        eventually("the end of the copy's life", lambda: figure("live") == 0)
        fd = os.open(self.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found = b"".join(iter(lambda at=[0]: self._piece(fd, at), b""))
        os.close(fd)
        self.same(found, bytes(self.model), "the volume")
        os.unlink(self.path)


def case_write(file):
    fd = file.open(os.O_RDWR)
    for offset, data in [
        (0, b"head"),
        (SIZE - 3, b"over the end"),
        (MIB - 2, b"chunks"),
        (5 * MIB, b"hole before"),
    ]:
        file.write(fd, offset, data)
        file.check(f"write at {offset}")
    other = file.open(os.O_WRONLY | os.O_APPEND)
    os.write(other, b"appended")
    file.model += b"appended"
    file.check("append")


def case_truncate_by_path_and_handle(file):
    os.truncate(file.path, MIB + 7)
    file.resized(MIB + 7)
    file.check("shrunk by path")
    os.truncate(file.path, 2 * MIB)
    file.resized(2 * MIB)
    file.check("grown by path")
    fd = file.open(os.O_WRONLY)
    os.ftruncate(fd, 100)
    file.resized(100)
    file.check("shrunk by handle")
    file.write(fd, 2 * MIB, b"again")
    file.check("grown by a write")


def case_open_that_truncates(file):
    fd = file.open(os.O_RDWR | os.O_TRUNC)
    file.resized(0)
    file.check("O_TRUNC")
    file.write(fd, 10, b"new")
    file.check("written after O_TRUNC")
    shutil.copyfile("/bin/sh", file.path)
    with open("/bin/sh", "rb") as source:
        file.model[:] = source.read()
    file.check("copied over")


def case_fallocate(file):
    fd = file.open(os.O_RDWR)
    for mode, offset, length in [
        (KEEP_SIZE | PUNCH_HOLE, 4096, 8192),
        (KEEP_SIZE | PUNCH_HOLE, MIB - 100, MIB + 200),
        (ZERO_RANGE, 50, 60),
        (ZERO_RANGE, SIZE - 10, 5000),
        (0, SIZE, 2 * MIB),
    ]:
        fallocate(fd, mode, offset, length)
        end = offset + length
        if mode & KEEP_SIZE == 0 and end > len(file.model):
            file.resized(end)
        if mode:
            file.model[offset:end] = bytes(min(end, len(file.model)) - offset)
        file.check(f"fallocate({mode}, {offset}, {length})")


def case_copy_file_range(file):
    source = f"{MOUNT}/source"
    data = random.Random(7).randbytes(2 * MIB)
    with open(source, "wb") as out:
        out.write(data)
    fd, from_fd = file.open(os.O_RDWR), os.open(source, os.O_RDONLY)
    for size, offset in [(1000, 77), (2 * MIB, MIB), (512 * 1024, 4 * MIB)]:
        done = 0
        while done < size:
            copied = os.copy_file_range(from_fd, fd, size - done, done, offset + done)
            assert copied > 0
            done += copied
        file.resized(max(len(file.model), offset + size))
        file.model[offset : offset + size] = data[:size]
        file.check(f"copy_file_range of {size}")
    os.close(from_fd)
    os.unlink(source)


def case_writable_map(file):
    fd = file.open(os.O_RDWR)
    stores = mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for offset in (0, MIB + 5, SIZE - 1):
        stores[offset] ^= 0xFF
        file.model[offset] ^= 0xFF
        file.check(f"store at {offset}")
    file.write(fd, 100, b"written beside")
    file.check("write beside a map")
    os.fsync(fd)
    stores[200] ^= 0xFF
    file.model[200] ^= 0xFF
    # Reaches the volume although nobody has it open when it is stored, and when the last map goes.
    for each in file.fds:
        os.close(each)
    file.fds = []
    stores[300] ^= 0xFF
    file.model[300] ^= 0xFF
    file.check("stores after the last close")
    stores.close()


def case_stores_beside_commits(file):
    """What was stored through a map stays, however opens and commits of other writes meet: an open
    may answer with the content before a commit or after it, whichever the mount knows of by then.
    """
    fd = file.open(os.O_RDWR)
    stores = mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    written, ended = 2 * MIB, threading.Event()

    def commit():
        # utimes(2) commits what was written before, and asks for no stores.
        while not ended.is_set():
            os.pwrite(fd, b"w", written)
            os.utime(file.path)

    file.model[written : written + 1] = b"w"
    threads = [threading.Thread(target=commit) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for step in range(300):
            offset = step * 4096 + 5
            stores[offset] = file.model[offset] = step % 251
            new = os.open(file.path, os.O_RDONLY)
            file.same(os.pread(new, MIB, 0), bytes(file.model[:MIB]), f"step {step}: new open")
            file.same(stores[:MIB], bytes(file.model[:MIB]), f"step {step}: map")
            os.close(new)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    file.check("stores beside commits")
    stores.close()


def case_stores_beside_changes_of_size(file):
    """A truncation, a hole or a copied range changes what it names, and no store elsewhere in the
    file or in the same page before it."""
    fd = file.open(os.O_RDWR)
    stores = mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    source = f"{MOUNT}/source-of-stores"
    with open(source, "wb") as out:
        out.write(bytes(MIB))
    from_fd = os.open(source, os.O_RDONLY)

    def store(*offsets):
        for offset in offsets:
            stores[offset] ^= 0xFF
            file.model[offset] ^= 0xFF

    for size in (2 * MIB + 99, 2 * MIB + 50, SIZE, MIB + 1, SIZE):
        store(7, MIB - 1, MIB)
        os.ftruncate(fd, size)
        file.resized(size)
        store(9, MIB)
        file.write(fd, 4096 + 11, b"beside a store")
        store(4096 + 3, 4096 + 40)
        file.check(f"truncated to {size}")
    for offset, length in ((4096 + 20, 9), (4097, 100_000)):
        store(4096 + 3, offset - 1, offset + length)
        fallocate(fd, KEEP_SIZE | PUNCH_HOLE, offset, length)
        file.model[offset : offset + length] = bytes(length)
        store(4096 + 3, offset - 1, offset + length)
        file.check(f"hole of {length}")
        store(offset + 1)
        fallocate(fd, 0, offset, length)
        file.check(f"allocated {length}")
    for length in (1000, 512 * 1024):
        store(4096 + 3, 8191 + length)
        assert os.copy_file_range(from_fd, fd, length, 0, 8191) == length
        file.model[8191 : 8191 + length] = bytes(length)
        store(4096 + 3, 8191 + length)
        file.check(f"copied {length}")
    os.close(from_fd)
    os.unlink(source)
    stores.close()


def case_map_outlives_its_descriptor(file):
    os.close(file.reader)
    file.fds.remove(file.reader)
    with open(file.path, "r+b", buffering=0) as writer:
        writer.write(b"after the reader's close")
    file.model[:24] = b"after the reader's close"
    file.check("a map without a descriptor")
    os.truncate(file.path, 2 * MIB)
    file.resized(2 * MIB)
    file.check("truncated under it")


def case_removed_and_renamed(file):
    fd = file.open(os.O_RDWR)
    os.rename(file.path, file.path + ".renamed")
    file.path += ".renamed"
    file.write(fd, 9, b"renamed")
    file.check("renamed")
    os.link(file.path, file.path + ".link")
    with open(file.path + ".link", "r+b", buffering=0) as writer:
        writer.write(b"by another name")
    file.model[:15] = b"by another name"
    file.check("written by another name")
    os.unlink(file.path)
    os.rename(file.path + ".link", file.path)
    held = os.open(file.path, os.O_RDONLY)
    os.unlink(file.path)
    file.write(fd, 5, b"removed")
    for view in (held, file.reader, fd):
        file.same(os.pread(view, len(file.model), 0), bytes(file.model), "removed")
    file.same(file.map[:], bytes(file.model[:SIZE]), "removed: map")
    os.close(held)
    # For what follows the case.
    with open(file.path, "wb") as new:
        new.write(file.model)


def case_other_ways_to_read(file):
    fd = file.open(os.O_RDWR)
    file.write(fd, MIB, b"spliced")
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDONLY | os.O_DIRECT, os.O_RDONLY | os.O_NOATIME):
        view = file.open(flags)
        private = mmap.mmap(view, SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
        file.same(private[:], bytes(file.model), f"private map, flags {flags:o}")
        private.close()
        if flags & os.O_DIRECT:
            buffer = mmap.mmap(-1, MIB)
            assert os.preadv(view, [buffer], MIB) == MIB
            file.same(buffer[:], bytes(file.model[MIB : 2 * MIB]), "O_DIRECT")
            assert os.preadv(view, [memoryview(buffer)[:77]], 13) == 77, "no alignment is asked for"
            continue
        sink, out = os.pipe()
        found = bytearray()
        offset = 0
        while offset < SIZE:
            sent = os.sendfile(out, view, offset, 65536)
            found += os.read(sink, sent)
            offset += sent
        file.same(bytes(found), bytes(file.model), f"sendfile, flags {flags:o}")
        os.close(sink)
        os.close(out)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(file.reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 0 and os.lseek(fd, 0, os.SEEK_HOLE) == len(file.model)


CASES = [value for name, value in sorted(globals().items()) if name.startswith("case_")]


def programs_run_from_copies():
    path = f"{MOUNT}/program"
    shutil.copy("/bin/bash" if os.path.getsize("/bin/bash") >= MIB else sys.executable, path)
    warm(path)
    before = figure("opens_total")
    for _ in range(3):
        subprocess.run([path, "--version"], check=True, capture_output=True)
    assert figure("opens_total") > before, "not run in pass-through"
    running = subprocess.Popen([path, "-c", "read x"], stdin=subprocess.PIPE)
    try:
        os.close(os.open(path, os.O_WRONLY))
        raise AssertionError("a running program was opened for writing")
    except OSError as error:
        assert error.errno == 26, error
    finally:
        running.communicate(b"\n")
    eventually("the end of its use", lambda: figure("live") == 0)
    os.unlink(path)


def ordinary_opens_stay_ordinary():
    """The process that comes first decides: beside a writer, readers are ordinary, and nobody gets
    EIO."""
    path = f"{MOUNT}/ordinary"
    with open(path, "wb") as out:
        out.write(bytes(SIZE))
    warm(path)
    before = figure("opens_total")
    writer = os.open(path, os.O_WRONLY)
    reader = os.open(path, os.O_RDONLY)
    os.pwrite(writer, b"seen", 0)
    assert os.pread(reader, 4, 0) == b"seen" and figure("opens_total") == before
    os.close(writer)
    again = os.open(path, os.O_RDONLY)
    assert os.pread(again, 4, 0) == b"seen"
    os.close(reader)
    os.close(again)
    assert (
        os.pread(os.open(path, os.O_RDONLY), 4, 0) == b"seen"
    ), "the copy is of another content now"
    os.unlink(path)


def read_once_opened_directly():
    """A file that was read to its end gets a copy by itself."""
    path = f"{MOUNT}/read-once"
    with open(path, "wb") as out:
        out.write(random.Random(3).randbytes(SIZE))
    made = figure("copies_total")
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    content = os.pread(fd, SIZE, 0)
    os.close(fd)
    # A copy of an earlier test may be finished meanwhile, too.
    eventually("a copy", lambda: figure("copies_total") > made)
    before = figure("opens_total")
    eventually(
        "an open in pass-through",
        lambda: open(path, "rb").read() == content and figure("opens_total") > before,
    )
    os.unlink(path)


def random_changes(seed, steps=250):
    rng = random.Random(seed)
    file = File()
    fds = [file.open(os.O_RDWR)]
    stores = mmap.mmap(fds[0], SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    done = []
    for step in range(steps):
        act = rng.choice(
            ["write", "write", "store", "truncate", "punch", "open", "close", "fsync", "reopen"]
        )
        size = len(file.model)
        offset = rng.randrange(size + 1)
        done.append(f"{step} {act} {offset} of {size}")
        if act == "write":
            fd, offset = rng.choice(fds), rng.randrange(4 * MIB)
            data = rng.randbytes(rng.choice([1, 5000, 300_000]))
            done[-1] = f"{step} write {offset} to {offset + len(data)} of {size}"
            file.write(fd, offset, data)
        elif act == "store" and offset < min(size, SIZE):
            stores[offset] = rng.randrange(256)
            file.model[offset] = stores[offset]
        elif act == "truncate":
            size = rng.choice([0, 1, 4096, MIB, rng.randrange(4 * MIB)])
            os.truncate(file.path, size) if rng.random() < 0.5 else os.ftruncate(fds[0], size)
            file.resized(size)
            done[-1] += f" to {size}"
        elif act == "punch":
            length = rng.choice([1, 4096, 2 * MIB])
            done[-1] += f", {length} bytes"
            fallocate(fds[0], KEEP_SIZE | PUNCH_HOLE, offset, length)
            end = min(offset + length, size)
            file.model[offset:end] = bytes(max(end - offset, 0))
        elif act == "open" and len(fds) < 5:
            fds.append(file.open(os.O_RDWR))
        elif act == "close" and len(fds) > 1:
            fd = fds.pop()
            file.fds.remove(fd)
            os.close(fd)
        elif act == "fsync":
            os.fsync(rng.choice(fds))
        elif act == "reopen":
            try:
                file.check(f"seed {seed}, step {step}")
            except AssertionError as error:
                raise AssertionError(f"{error}; before: {', '.join(done[-25:])}") from None
    file.check(f"seed {seed}, end")
    stores.close()
    file.close()


def main():
    failed = 0
    jobs = [(case.__name__[5:].replace("_", " "), case) for case in CASES]

    def run_case(case):
        file = File()
        file.check("before")
        case(file)
        file.close()

    todo = [(name, lambda case=case: run_case(case)) for name, case in jobs]
    todo += [
        (f.__name__.replace("_", " "), f)
        for f in (programs_run_from_copies, ordinary_opens_stay_ordinary, read_once_opened_directly)
    ]
    seed = int(os.environ.get("RANDOM_SEED", "1"))
    todo += [
        (f"random changes, seed {n}", lambda n=n: random_changes(n)) for n in range(seed, seed + 4)
    ]
    todo = [(name, job) for name, job in todo if WORD in name]
    for name, job in todo:
        try:
            job()
            print(f"ok   {name}", flush=True)
        except (AssertionError, OSError, subprocess.CalledProcessError) as error:
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(failed > 0)


main()
