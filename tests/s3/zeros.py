"""Zeros where data should be: zeros.py MOUNT KESTREL. No byte that is written here is zero, so that
none may be read.

A reader follows a file that grows; another reads one that is overwritten in small pieces and
compacted; files that are still dirty are copied by SEEK_DATA and SEEK_HOLE, by copy_file_range and
through memory maps.
"""

import mmap
import os
import random
import subprocess
import sys
import threading

MOUNT, KESTREL = sys.argv[1:3]
DIR = f"{MOUNT}/zeros-{os.getpid()}"
RANDOM = random.Random(11)


def data(size):
    return RANDOM.randbytes(size).replace(b"\0", b"\1")


def no_zeros(what, found):
    if b"\0" in found:
        at = found.index(b"\0")
        raise AssertionError(f"{what}: zero at byte {at} of {len(found)}, {found.count(0)} zeros")


def in_threads(*actions):
    """Runs them side by side; raises what any of them raised."""
    errors = []

    def guarded(action):
        try:
            action()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def append_and_follow(name, piece, count, sync):
    """A reader with the file open all the time reads what another appends, up to the size that it
    sees."""
    path, done, whole = f"{DIR}/{name}", threading.Event(), bytearray()
    pieces = [data(piece) for _ in range(count)]
    open(path, "wb").close()

    def append():
        try:
            for one in pieces:
                with open(path, "ab") as file:
                    file.write(one)
                    if sync:
                        file.flush()
                        os.fsync(file.fileno())
        finally:
            done.set()

    def follow():
        with open(path, "rb", buffering=0) as file:
            while True:
                last = done.is_set()
                while found := file.read(1 << 17):
                    no_zeros(f"{name} at {len(whole)}", found)
                    whole.extend(found)
                if last:
                    return

    in_threads(append, follow)
    assert bytes(whole) == b"".join(
        pieces
    ), f"{name}: the follower read something else, {len(whole)} bytes"


def compact(path):
    done = subprocess.run([KESTREL, "compact", path], capture_output=True, text=True)
    # One compaction of a volume at a time: the other thread's is going on.
    assert (
        done.returncode == 0 or "already" in done.stderr
    ), f"kestrel compact {path}: {done.stdout}{done.stderr}"


def overwrite_and_compact(name, size):
    """Small overwrites pile up slices, compaction folds them, readers look all the time."""
    path, done, wanted = f"{DIR}/{name}", threading.Event(), bytearray(data(size))
    with open(path, "wb") as file:
        file.write(wanted)

    def overwrite():
        try:
            for turn in range(60):
                at, piece = RANDOM.randrange(size - 5000), data(5000)
                with open(path, "r+b", buffering=0) as file:
                    file.seek(at)
                    file.write(piece)
                wanted[at : at + 5000] = piece
                if turn % 30 == 29:
                    compact(path)
        finally:
            done.set()

    def read():
        while not done.is_set():
            with open(path, "rb") as file:
                no_zeros(name, file.read())

    in_threads(overwrite, read)
    with open(path, "rb") as file:
        assert file.read() == wanted, f"{name}: not what was written"


def copy_by_holes(source, target):
    """As cp --sparse does: only what SEEK_DATA shows is copied."""
    size, at = os.fstat(source).st_size, 0
    os.ftruncate(target, size)
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(source, begin, os.SEEK_HOLE)
        at = begin
        while at < end:
            at += os.pwrite(target, os.pread(source, min(1 << 20, end - at), at), at)


def copy_by_range(source, target):
    size, at = os.fstat(source).st_size, 0
    while at < size:
        count = os.copy_file_range(source, target, size - at, at, at)
        assert count > 0, "copy_file_range copied nothing"
        at += count


def copy_by_map(source, target):
    with mmap.mmap(source, 0, prot=mmap.PROT_READ) as mapped:
        at = 0
        while at < len(mapped):
            at += os.pwrite(target, mapped[at : at + (1 << 20)], at)


def copy_of_dirty(number):
    """Written a moment ago, not synced: a copy has every byte."""
    for size in (4096, 20_000, 130_000, 1_000_000, 6_000_000):
        wanted = data(size)
        for copy in (copy_by_holes, copy_by_range, copy_by_map):
            name = f"{DIR}/dirty-{number}-{size}-{copy.__name__}"
            source = os.open(name, os.O_CREAT | os.O_RDWR, 0o644)
            target = os.open(f"{name}.copy", os.O_CREAT | os.O_RDWR, 0o644)
            for at in range(0, size, 65_536):
                os.pwrite(source, wanted[at : at + 65_536], at)
            if number % 2:  # another descriptor, as another program has
                os.close(source)
                source = os.open(name, os.O_RDONLY)
            copy(source, target)
            os.close(source)
            os.close(target)
            for path in (name, f"{name}.copy"):
                with open(path, "rb") as file:
                    found = file.read()
                no_zeros(path, found)
                assert found == wanted, f"{path}: {len(found)} bytes of {size}"
                os.unlink(path)


def main():
    os.mkdir(DIR)
    in_threads(
        lambda: append_and_follow("lines", 700, 150, False),
        lambda: append_and_follow("synced", 40_000, 40, True),
        lambda: append_and_follow("large", 1_500_000, 8, False),
        lambda: overwrite_and_compact("small", 200_000),
        lambda: overwrite_and_compact("blocks", 9_000_000),
        lambda: copy_of_dirty(0),
        lambda: copy_of_dirty(1),
    )
    subprocess.run(["rm", "-r", DIR], check=True)


main()
