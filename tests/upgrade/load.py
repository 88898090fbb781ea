#!/usr/bin/env python3
"""Programs that use a mount while the process behind it is replaced: none of their calls may fail.

    load.py DIR STOP [SEED]

Each worker is a process of its own with a model of what must be there, and ends when the file STOP
exists. What a worker holds from the beginning (open files, files without a name, locks, maps, a
directory half listed, a working directory) it still has in the end. The last line is "N passed, M
failed".
"""

import fcntl
import mmap
import os
import random
import sqlite3
import sys
import time
import traceback

DIR, STOP = sys.argv[1], sys.argv[2]
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
PAGE = mmap.PAGESIZE


def going_on():
    return not os.path.exists(STOP)


def content(fd, size):
    return os.pread(fd, size, 0)


def names(where, rng):
    """Names made exclusively, renamed, linked and removed are those of the model, each once."""
    present, serial, rounds = {}, 0, 0
    while going_on():
        rounds += 1
        act = rng.random()
        name = f"n{serial}"
        path = os.path.join(where, name)
        if act < 0.4 or not present:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.write(fd, name.encode())
            os.close(fd)
            present[name] = name
            serial += 1
        elif act < 0.55:
            old = rng.choice(sorted(present))
            os.rename(os.path.join(where, old), path)
            present[name] = present.pop(old)
            serial += 1
        elif act < 0.65:
            old = rng.choice(sorted(present))
            os.link(os.path.join(where, old), path)
            present[name] = present[old]
            serial += 1
        elif act < 0.85:
            old = rng.choice(sorted(present))
            os.unlink(os.path.join(where, old))
            del present[old]
        else:
            sub = os.path.join(where, "d")
            os.mkdir(sub)
            os.rmdir(sub)
        if rounds % 50 == 0:
            assert set(os.listdir(where)) == set(present), "the names are others"
    assert set(os.listdir(where)) == set(present), "the names are others"
    for name, text in present.items():
        with open(os.path.join(where, name), "rb") as file:
            assert file.read() == text.encode(), f"{name} has another content"
    return f"{rounds} changes, {len(present)} names"


def appends(where, rng):
    """Every record that was appended is there once, in order."""
    path, records = os.path.join(where, "log"), 0
    fds = [os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644) for _ in range(2)]
    reader = os.open(path, os.O_RDONLY)
    while going_on():
        line = f"{records:08d} {rng.randbytes(rng.randrange(200)).hex()}\n".encode()
        assert os.write(fds[records % 2], line) == len(line)
        records += 1
        if records % 500 == 0:
            os.fsync(fds[0])
            assert content(reader, 8) == b"00000000"
    size = os.fstat(reader).st_size
    found = [int(line.split()[0]) for line in content(reader, size).splitlines()]
    assert found == list(range(records)), f"{len(found)} records of {records}"
    return f"{records} records"


def bytes_at_random(where, rng):
    """Reads, writes, cuts and holes of an open file give what the model gives."""
    model, most, calls = bytearray(), 600_000, 0
    fd = os.open(os.path.join(where, "random"), os.O_CREAT | os.O_RDWR, 0o644)
    while going_on():
        calls += 1
        at, length = rng.randrange(most), rng.randrange(1, 50_000)
        act = rng.random()
        if act < 0.5:
            data = rng.randbytes(length)
            assert os.pwrite(fd, data, at) == length
            if len(model) < at:
                model.extend(bytes(at - len(model)))
            model[at : at + length] = data
        elif act < 0.9:
            assert os.pread(fd, length, at) == bytes(model[at : at + length]), f"at {at}"
        elif act < 0.95:
            os.ftruncate(fd, at)
            del model[at:]
            model.extend(bytes(at - len(model)))
        else:
            os.fsync(fd)
        assert os.fstat(fd).st_size == len(model), "another size"
    assert content(fd, most * 2) == bytes(model), "another content in the end"
    return f"{calls} calls"


def orphans(where, rng):
    """A file without a name keeps its bytes, and one made without a name can get one."""
    fds, rounds = {}, 0
    for number in range(8):
        path = os.path.join(where, f"orphan{number}")
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        os.unlink(path)
        fds[fd] = bytearray()
    nameless = os.open(where, os.O_TMPFILE | os.O_RDWR, 0o644)
    os.write(nameless, b"still to be named")
    while going_on():
        rounds += 1
        fd = rng.choice(list(fds))
        data = rng.randbytes(rng.randrange(1, 8000))
        os.pwrite(fd, data, len(fds[fd]))
        fds[fd] += data
        if len(fds[fd]) > 1_000_000:
            os.ftruncate(fd, 0)
            fds[fd] = bytearray()
        assert os.fstat(fd).st_nlink == 0
        assert content(fd, 2_000_000) == bytes(fds[fd]), "another content"
    assert os.listdir(where) == [], "a name came back"
    # With a descriptor beside it Python follows the link, by linkat(2).
    beside = os.open("/", os.O_RDONLY)
    os.link(f"/proc/self/fd/{nameless}", os.path.join(where, "named"), src_dir_fd=beside)
    with open(os.path.join(where, "named"), "rb") as file:
        assert file.read() == b"still to be named"
    return f"{rounds} writes"


def maps(where, rng):
    """Maps, shared and private, show what was written through them and through the file."""
    pages, rounds = 64, 0
    path = os.path.join(where, "map")
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    os.truncate(path, pages * PAGE)
    shared = mmap.mmap(fd, pages * PAGE)
    model = bytearray(pages * PAGE)
    text = os.path.join(where, "text")
    with open(text, "wb") as file:
        file.write(bytes(range(256)) * 64)
    with open(text, "rb") as file:
        # The map outlives the descriptor.
        private = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    while going_on():
        rounds += 1
        at, data = rng.randrange(pages * PAGE - 100), rng.randbytes(rng.randrange(1, 100))
        shared[at : at + len(data)] = data
        model[at : at + len(data)] = data
        if rounds % 20 == 0:
            shared.flush()
            assert content(fd, pages * PAGE) == bytes(model), "the file has another content"
        page = rng.randrange(64) * 256
        assert private[page : page + 256] == bytes(range(256))
        time.sleep(0.0005)
    shared.flush()
    assert content(fd, pages * PAGE) == bytes(model), "another content in the end"
    return f"{rounds} changes"


def directories(where, rng):
    """A directory that is listed in parts shows each name once; a working directory stays."""
    listed = os.path.join(where, "listed")
    os.mkdir(listed)
    wanted = {f"name-{number:05d}" for number in range(3000)}
    for name in wanted:
        os.close(os.open(os.path.join(listed, name), os.O_CREAT | os.O_EXCL, 0o644))
    deep = os.path.join(where, *(["deep"] * 20))
    os.makedirs(deep)
    gone = os.path.join(where, "gone")
    os.mkdir(gone)
    held = os.open(gone, os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(gone)
    os.chdir(deep)
    rounds = 0
    while going_on():
        rounds += 1
        found = []
        with os.scandir(listed) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) % 300 == 0:
                    time.sleep(0.02)
        assert len(found) == len(set(found)) and set(found) == wanted, f"{len(found)} names"
        with open("here", "w") as file:
            file.write("x")
        os.unlink("here")
        assert os.getcwd() == deep
        assert os.stat(".").st_ino == os.stat(deep).st_ino
        assert os.fstat(held).st_nlink == 0 and os.listdir(held) == []
    return f"{rounds} listings"


def holder(where, _):
    """Locks that are held keep others out, and one that waits for them gets its turn."""
    path = os.path.join(where, "locked")
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, bytes(100))
    fcntl.lockf(fd, fcntl.LOCK_EX, 50, 0)
    flocked = os.open(path + ".flock", os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.flock(flocked, fcntl.LOCK_EX)
    waiter = os.fork()
    if waiter == 0:
        other = os.open(path, os.O_RDWR)
        fcntl.lockf(other, fcntl.LOCK_EX, 10, 20)
        # Granted when the holder has written that it lets go.
        os._exit(0 if os.pread(other, 4, 90) == b"free" else 7)
    tries = 0
    prober = os.fork()
    if prober == 0:
        other = os.open(path, os.O_RDWR)
        second = os.open(path + ".flock", os.O_RDWR)
        while going_on():
            for probe in (
                lambda: fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 30),
                lambda: fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB),
            ):
                try:
                    probe()
                    os._exit(8)
                except BlockingIOError:
                    pass
            fcntl.lockf(other, fcntl.LOCK_EX, 1, 80)
            fcntl.lockf(other, fcntl.LOCK_UN, 1, 80)
        os._exit(0)
    while going_on():
        tries += 1
        os.pwrite(fd, b"held", 0)
        time.sleep(0.01)
    assert os.waitpid(prober, 0)[1] == 0, "a lock that is held was granted to another process"
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0), "the waiting process did not wait"
    os.pwrite(fd, b"free", 90)
    fcntl.lockf(fd, fcntl.LOCK_UN, 50, 0)
    status = os.waitpid(waiter, 0)[1]
    assert status == 0, f"the waiting process ended with {status}"
    return f"{tries} rounds"


def database(where, rng):
    """Transactions of SQLite that were committed are there."""
    base = sqlite3.connect(os.path.join(where, "base.db"), isolation_level=None)
    base.execute("create table t (k integer primary key, v blob)")
    count = 0
    while going_on():
        base.execute("begin immediate")
        for _ in range(5):
            base.execute("insert into t values (?, ?)", (count, rng.randbytes(500)))
            count += 1
        base.execute("commit")
    found = base.execute("select count(*), max(k) from t").fetchone()
    assert found == (count, count - 1), f"{found} of {count} rows"
    assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    return f"{count} rows"


def small_files(where, _):
    """Small files are made, written, read through another descriptor and removed."""
    rounds = 0
    while going_on():
        path = os.path.join(where, f"f{rounds % 7}")
        data = f"{rounds}".encode() * 50
        with open(path, "wb") as file:
            file.write(data)
        with open(path, "rb") as file:
            assert file.read() == data
        assert os.stat(path).st_size == len(data)
        os.setxattr(path, "user.round", str(rounds).encode())
        assert os.getxattr(path, "user.round") == str(rounds).encode()
        rounds += 1
    return f"{rounds} files"


def main():
    workers = {}
    for number, work in enumerate(
        (names, appends, bytes_at_random, orphans, maps, directories, holder, database, small_files)
    ):
        where = os.path.join(DIR, work.__name__)
        os.makedirs(where)
        child = os.fork()
        if child == 0:
            try:
                print(f"ok   {work.__doc__} ({work(where, random.Random(SEED * 100 + number))})")
                code = 0
            except BaseException:
                traceback.print_exc()
                print(f"FAIL {work.__doc__} (seed {SEED})")
                code = 1
            sys.stdout.flush()
            os._exit(code)
        workers[child] = work
    failed = 0
    while workers:
        child, status = os.wait()
        if workers.pop(child, None) is not None and status != 0:
            failed += 1
    print(f"{9 - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
