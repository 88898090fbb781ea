#!/usr/bin/env python3
"""Locks seen by two mounts of one volume, or by two directories that are the same one (then the
kernel's own are tested).

    locks.py A B [--kill-server COMMAND --start-server COMMAND] [--mount-a-pid PID --lease SECONDS]

A and B are the same directory of the volume, on two mounts. Prints a line for each test and "N
passed, N failed".
"""

import argparse
import errno
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from locker import Locker, eventually  # noqa: E402
from suite import TESTS, refused, run_all, test  # noqa: E402

LATER = []


def last(function):
    """Tests that kill things, in this order, after the others."""
    LATER.append(function)
    return function


class Pair:
    """Two mounts, and the lockers made on them."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.two = arguments.a != arguments.b
        self.lockers = []
        self.files = 0

    def new_file(self):
        self.files += 1
        self.name = f"lock-{self.files}"
        with open(f"{self.arguments.a}/{self.name}", "w"):
            pass

    def on(self, mount):
        locker = Locker(f"{mount}/{self.name}")
        self.lockers.append(locker)
        return locker

    def a(self):
        return self.on(self.arguments.a)

    def b(self):
        return self.on(self.arguments.b)

    def end(self):
        for locker in self.lockers:
            if locker.process.poll() is None:
                locker.kill()
        self.lockers = []


@test
def exclusive_and_shared(p):
    """byte ranges exclude each other as their modes say, across mounts"""
    a, b = p.a(), p.b()
    a.posix("s", 0, 9)
    b.posix("s", 5, 14)
    refused(errno.EAGAIN, b.posix, "x", 5, 14)
    refused(errno.EAGAIN, a.posix, "x", 0, 9)
    a.posix("x", 20, None)
    refused(errno.EAGAIN, b.posix, "s", 1 << 40, None)
    b.posix("x", 15, 19)
    assert a.test("s", 0, 0) is None
    assert a.test("x", 0, 100)[:3] == ["s", 5, 14]


@test
def splitting_and_joining(p):
    """unlocking the middle splits, locking between joins, changing a part changes only that"""
    a, b = p.a(), p.b()
    a.posix("x", 0, 99)
    a.posix("u", 40, 59)
    assert b.test("x", 0, 99)[:3] == ["x", 0, 39]
    assert b.test("x", 40, 99)[:3] == ["x", 60, 99]
    b.posix("x", 40, 59)
    b.posix("u", 40, 59)
    a.posix("x", 40, 59)
    assert b.test("s", 50, 50)[:3] == ["x", 0, 99]
    a.posix("s", 10, 19)
    assert b.test("x", 10, 15)[:3] == ["s", 10, 19]
    b.posix("s", 12, 13)
    assert b.test("s", 0, 99)[:3] == ["x", 0, 9]


@test
def who_holds(p):
    """F_GETLK names the process on the same mount, and nobody's process elsewhere"""
    a, same, b = p.a(), p.a(), p.b()
    a.posix("x", 0, 0)
    assert same.test("x", 0, 0)[3] == a.pid
    if p.two:
        assert b.test("x", 0, 0)[3] == 0


@test
def waiting(p):
    """F_SETLKW waits and is served in order when the lock goes; readers together"""
    a, b, c, d = p.a(), p.b(), p.a(), p.b()
    a.posix("x", 0, 9)
    calls = []
    for locker, kind in ((b, "s"), (c, "x"), (d, "s")):
        calls.append(locker.start("posixw", kind, 0, 9))
        time.sleep(0.3)
    a.posix("u", 0, 4)
    assert not any(call.done(0.2) for call in calls)
    a.posix("u", 5, 9)
    calls[0].result()
    calls[2].result()
    assert not calls[1].done(0.2)
    b.posix("u")
    d.end()
    calls[1].result()


@test
def downgrade(p):
    """an exclusive lock that becomes a shared one lets readers in"""
    a, b = p.a(), p.b()
    a.posix("x", 0, 9)
    call = b.start("posixw", "s", 0, 9)
    assert not call.done(0.3)
    a.posix("s", 0, 9)
    call.result()
    refused(errno.EAGAIN, a.posix, "x", 0, 9)
    b.end()
    a.posix("x", 0, 9)


@test
def released_by_any_close(p):
    """closing any descriptor of the file gives up all byte-range locks of the process, read-only
    ones too"""
    a, b = p.a(), p.b()
    for opener in (a.open, a.open_readonly):
        a.posix("x", 0, 9)
        other = opener()
        refused(errno.EAGAIN, b.posix, "s", 0, 9)
        a.close(other)
        b.posix("x", 0, 9)
        b.posix("u")
    a.posix("x", 0, 9)
    a.close(a.dup())
    b.posix("x", 0, 9)


@test
def released_by_the_end_of_the_process(p):
    """exit and kill -9 of a holder give its locks up"""
    b = p.b()
    for how in ("end", "kill"):
        a = p.a()
        a.posix("x", 0, 9)
        a.flock("x")
        refused(errno.EAGAIN, b.posix, "s", 0, 0)
        call = b.start("posixw", "x", 0, 0)
        assert not call.done(0.2)
        getattr(a, how)()
        call.result()
        b.flockw("x")
        b.posix("u")
        b.flock("u")


@test
def a_child_does_not_inherit(p):
    """byte-range locks are the process's: a child has none, its end changes nothing"""
    a, b = p.a(), p.b()
    a.posix("x", 0, 9)
    child = a.child()
    a.reap(child)
    refused(errno.EAGAIN, b.posix, "s", 0, 0)


@test
def flock_modes(p):
    """flock: shared with shared, exclusive with none, conversion both ways"""
    a, b = p.a(), p.b()
    a.flock("s")
    b.flock("s")
    refused(errno.EAGAIN, b.flock, "x")
    # The lock that could not be converted is lost (flock(2)).
    a.flock("x")
    refused(errno.EAGAIN, b.flock, "s")
    a.flock("s")
    b.flock("s")
    call = a.start("flockw", "x")
    assert not call.done(0.3)
    b.flock("u")
    call.result()


@test
def flock_belongs_to_the_description(p):
    """flock: duplicates and children share the lock, which goes with the last of them; another open
    does not have it"""
    a, b = p.a(), p.b()
    a.flock("x")
    other = a.open()
    refused(errno.EAGAIN, a.flock, "s", fd=other)
    a.close(other)
    refused(errno.EAGAIN, b.flock, "s")
    child = a.child()
    a.close(0)
    refused(errno.EAGAIN, b.flock, "s")
    a.reap(child)
    b.flockw("x")


@test
def flock_and_posix_do_not_meet(p):
    """flock and byte ranges do not see each other"""
    a, b = p.a(), p.b()
    a.flock("x")
    b.posix("x", 0, None)
    refused(errno.EAGAIN, b.flock, "s")
    refused(errno.EAGAIN, a.posix, "s", 0, 0)


@test
def ofd_locks(p):
    """locks of the open file description: conflict within a process, stay when another descriptor
    is closed, go with theirs"""
    a, b = p.a(), p.b()
    a.ofd("x", 0, 9)
    second = a.open()
    refused(errno.EAGAIN, a.ofd, "x", 0, 9, fd=second)
    refused(errno.EAGAIN, b.posix, "s", 0, 9)
    a.ofd("x", 20, 29, fd=second)
    a.close(second)
    refused(errno.EAGAIN, b.posix, "s", 0, 9)
    b.posixw("x", 20, 29)
    call = b.start("ofdw", "x", 0, 9)
    assert not call.done(0.3)
    a.close(0)
    call.result()


@test
def deadlock(p):
    """EDEADLK for the wait that would close a circle; afterwards all goes on"""
    a, b = p.a(), p.b()
    a.posix("x", 0, 0)
    b.posix("x", 1, 1)
    call = a.start("posixw", "x", 1, 1)
    assert not call.done(0.3)
    refused(errno.EDEADLK, b.posixw, "x", 0, 0)
    b.posix("u", 1, 1)
    call.result()


@test
def upgrades_deadlock(p):
    """two readers that both want to write: the second is told"""
    a, b = p.a(), p.b()
    a.posix("s", 0, 9)
    b.posix("s", 0, 9)
    call = a.start("posixw", "x", 0, 9)
    assert not call.done(0.3)
    refused(errno.EDEADLK, b.posixw, "x", 0, 9)
    b.posix("u")
    call.result()


@test
def interrupted(p):
    """a signal ends a wait with EINTR, and the lock is not taken later"""
    a, b, c = p.a(), p.b(), p.b()
    for wait in ("posixw", "flockw", "ofdw"):
        take = {"posixw": "posix", "flockw": "flock", "ofdw": "ofd"}[wait]
        getattr(a, take)("x")
        b.alarm(0.3)
        refused(errno.EINTR, getattr(b, wait), "x")
        getattr(a, take)("u")
        getattr(c, take)("x")
        getattr(c, take)("u")


@test
def killed_while_waiting(p):
    """a process that is killed while it waits goes away, and gets no lock"""
    a, b, c = p.a(), p.b(), p.b()
    a.posix("x", 0, 9)
    b.start("posixw", "x", 0, 9)
    time.sleep(0.3)
    b.kill()
    a.posix("u")
    c.posixw("x", 0, 9)


@test
def what_was_written_is_seen(p):
    """what a holder wrote is seen by the next one through a descriptor that was open all the
    time"""
    a, b = p.a(), p.b()
    a.posix("x", 0, 0)
    a.write(0, "first " * 3000)
    a.posix("u", 0, 0)
    b.posix("s", 0, 0)
    assert b.read(0, 5) == "first" and b.read(17900, 200).endswith("first ")
    b.posix("u", 0, 0)
    a.posix("x", 0, 0)
    a.write(0, "second")
    a.write(1 << 20, "far")
    a.posix("u", 0, 0)
    b.posix("s", 0, 0)
    assert b.read(0, 6) == "second" and b.read(1 << 20, 10) == "far"
    b.posix("u")
    a.flock("x")
    a.write(3, "X" * 5000)
    a.flock("u")
    b.flock("s")
    assert b.read(0, 8) == "secXXXXX"


@test
def counting(p):
    """four processes on two mounts count together under locks, and lose nothing"""
    for method in ("count", "count_flock"):
        p.new_file()
        crew = [p.a(), p.b(), p.a(), p.b()]
        calls = [one.start(method, 60) for one in crew]
        assert [call.result(120) for call in calls] == [60] * 4
        # Without a lock the first to finish would see what it has cached.
        crew[0].posixw("s", 1000, 1000)
        assert crew[0].read(0, 20) == "240", f"{method}: {crew[0].read(0, 20)}"


def check_records(text, wanted, length=50):
    """The file consists of the records that each of `wanted`, pairs of mark and number, has
    appended, each once, in its order."""
    lines = text.splitlines(keepends=True)
    torn = [f"{len(line)} bytes: {line[:20]}" for line in lines if len(line) != length]
    assert not torn, f"{len(torn)} of {len(lines)} records of {length} bytes are torn: {torn[:4]}"
    for mark, times in wanted:
        mine = [int(line.split()[1]) for line in lines if line.split()[0] == mark]
        assert mine == list(range(times)), f"{mark}: {len(mine)} of {times} records"
    assert len(lines) == sum(times for _, times in wanted)


def content(p):
    """The whole file, by a new open."""
    with open(f"{p.arguments.b}/{p.name}", encoding="latin-1") as file:
        return file.read()


@test
def appends_under_locks(p):
    """records appended by two mounts, each under a lock of the file, are all there: flock, byte
    ranges, OFD"""
    for how in ("flock", "posix", "ofd"):
        p.new_file()
        calls = [p.a().start("records", how, "a", 200), p.b().start("records", how, "b", 200)]
        assert [call.result(120) for call in calls] == [200, 200]
        check_records(content(p), [("a", 200), ("b", 200)])


@test
def appends_without_locks(p):
    """records appended with O_APPEND by four processes on two mounts are all there, however they
    are stored"""
    for length, times, each in (
        (50, 250, "keep"),
        (50, 60, "fsync"),
        (50, 60, "close"),
        (7001, 100, "keep"),
        (7001, 20, "fsync"),
        (100_001, 60, "keep"),
        (100_001, 10, "close"),
    ):
        p.new_file()
        crew = {"a": p.a(), "b": p.b(), "c": p.a(), "d": p.b()}
        calls = [one.start("appends", mark, times, length, each) for mark, one in crew.items()]
        assert [call.result(120) for call in calls] == [times] * 4
        check_records(content(p), [(mark, times) for mark in crew], length)


@test
def appends_slowly(p):
    """what two mounts append over seconds, in turn with the background's flushes, is all there;
    each reads its own mount's tail"""
    a, b = p.a(), p.b()
    for turn in range(12):
        for mark, one in (("a", a), ("b", b)):
            one.appends(mark + str(turn), 2)
        time.sleep(0.2 * (turn % 3))
    wanted = [(f"{mark}{turn}", 2) for turn in range(12) for mark in "ab"]
    check_records(content(p), wanted)
    for one in (a, b):
        eventually(lambda: one.size() == 48 * 50, "both see the size")
        assert one.read(0, 48 * 50) == content(p)


@test
def maps_under_locks(p):
    """a process that has mapped a file and gets a lock sees in the map what earlier holders wrote,
    also where the file has grown"""
    for how in ("flock", "posix", "ofd"):
        p.new_file()
        a, b = p.a(), p.b()
        a.write(0, "0" * 9000)
        a.sync()
        b.map(9000)
        assert b.mapped_at(0, 3) == b.mapped_at(8990, 3) == "000"
        os.truncate(f"{p.arguments.a}/{p.name}", 100)
        eventually(lambda: b.size() == 100, "the other mount hears that the file is shorter")
        getattr(a, how)("x")
        a.write(0, "1" * 9000)
        getattr(a, how)("u")
        getattr(b, how)("s")
        # The kernel decides by the size that it knows whether there is anything in a page: else
        # this is SIGBUS.
        assert b.mapped_at(0, 3) == "111" and b.mapped_at(8990, 10) == "1" * 10
        getattr(b, how)("u")
        getattr(a, how)("x")
        a.write(8995, "2" * 5)
        getattr(a, how)("u")
        getattr(b, how)("s")
        assert b.mapped_at(8990, 10) == "1111122222" and b.size() == 9000


@test
def counting_in_maps(p):
    """four processes on two mounts count together in shared maps, under locks"""
    for how in ("flock", "ofd"):
        p.new_file()
        crew = [p.a(), p.b(), p.a(), p.b()]
        crew[0].write(0, "\0" * 8)
        crew[0].sync()
        for one in crew:
            one.map(8)
        calls = [one.start("count_mapped", how, 40) for one in crew]
        assert [call.result(120) for call in calls] == [40] * 4
        for one in (crew[0], crew[1]):
            one.flockw("s")
            assert int.from_bytes(one.mapped_at(0, 8).encode("latin-1"), "little") == 160
            one.flock("u")


@test
def shorter_under_a_lock(p):
    """a process that gets a lock after another holder has truncated the file appends at its end,
    and reads nothing behind it"""
    a, b = p.a(), p.b()
    b.write(0, "x" * 9000)
    b.sync()
    assert b.read(0, 1) == "x"
    a.flock("x")
    with open(f"{p.arguments.a}/{p.name}", "r+") as file:
        file.truncate(10)
    a.flock("u")
    b.flock("x")
    assert b.read(5, 100) == "x" * 5 and b.size() == 10
    b.flock("u")
    b.records("flock", "b", 3)
    assert content(p)[:10] == "x" * 10
    check_records(content(p)[10:], [("b", 3)])


@test
def shorter_for_the_kernel(p):
    """when a lock is granted after another holder has truncated the file, the kernel knows the
    size, and reads nothing behind it"""
    for how in ("flock", "posix", "ofd"):
        p.new_file()
        a, b = p.a(), p.b()
        b.write(0, "x" * 200_000)
        b.sync()
        assert b.size() == 200_000 and b.read(0, 1) == "x"
        for size in (40_000, 4096, 1):
            getattr(a, how)("x")
            os.truncate(f"{p.arguments.a}/{p.name}", size)
            getattr(a, how)("u")
            getattr(b, how)("s")
            assert b.known_size() == size, f"{how}: {b.known_size()} bytes, not {size}"
            assert len(b.read(0, 500_000)) == size
            getattr(b, how)("u")


@last
def appends_while_the_server_is_killed(p):
    """records appended by two mounts under locks are all there, though the server is killed and
    started again meanwhile"""
    if not p.arguments.kill_server:
        return "skipped"
    for how in ("flock", "posix"):
        p.new_file()
        calls = [p.a().start("records", how, "a", 150), p.b().start("records", how, "b", 150)]
        for _ in range(2):
            time.sleep(0.2)
            subprocess.run(p.arguments.kill_server, shell=True, check=True)
            subprocess.run(p.arguments.start_server, shell=True, check=True)
        assert [call.result(120) for call in calls] == [150, 150]
        check_records(content(p), [("a", 150), ("b", 150)])


@last
def server_killed(p):
    """kill -9 of the server: holders keep their locks, a process that waits goes on waiting and
    gets its turn"""
    if not p.arguments.kill_server:
        return "skipped"
    a, b, c = p.a(), p.b(), p.b()
    a.posix("x", 0, 9)
    a.posix("s", 100, 199)
    a.ofd("x", 300, 309)
    a.flock("s")
    a.write(500, "kept")
    call = b.start("posixw", "x", 0, 9)
    assert not call.done(0.5)
    subprocess.run(p.arguments.kill_server, shell=True, check=True)
    subprocess.run(p.arguments.start_server, shell=True, check=True)
    refused(errno.EAGAIN, c.posix, "s", 5, 5)
    refused(errno.EAGAIN, c.posix, "x", 100, 100)
    refused(errno.EAGAIN, c.posix, "s", 300, 300)
    refused(errno.EAGAIN, c.flock, "x")
    c.posix("s", 150, 150)
    c.flock("s")
    assert not call.done(0.5)
    assert a.read(500, 4) == "kept"
    a.posix("u", 0, 9)
    call.result()
    assert b.read(500, 4) == "kept"


@last
def cut_off(p):
    """a mount that stood still for longer than its lease: others get its locks, and its holder gets
    EIO, not wrong data"""
    if not p.arguments.mount_a_pid:
        return "skipped"
    a, b = p.a(), p.b()
    a.posix("x", 0, 9)
    a.write(0, "mine")
    a.sync()
    os.kill(p.arguments.mount_a_pid, signal.SIGSTOP)
    try:
        b.start("posixw", "x", 0, 9).result(p.arguments.lease * 4 + 30)
        b.write(0, "other")
        b.posix("u")
    finally:
        os.kill(p.arguments.mount_a_pid, signal.SIGCONT)
    eventually(lambda: fails(a.read, 0, 4), "the holder of a lost lock gets EIO")
    refused(errno.EIO, a.write, 0, "x")
    fresh = p.a()
    fresh.posix("x", 0, 9)
    assert fresh.read(0, 5) == "other"


def fails(call, *arguments):
    try:
        call(*arguments)
        return False
    except OSError as error:
        return error.errno == errno.EIO


@last
def client_killed(p):
    """kill -9 of a mount: its locks go when its session does"""
    if not p.arguments.mount_a_pid:
        return "skipped"
    a, b = p.a(), p.b()
    a.posix("x", 0, 9)
    a.flock("x")
    os.kill(p.arguments.mount_a_pid, signal.SIGKILL)
    b.start("posixw", "x", 0, 9).result(p.arguments.lease * 4 + 30)
    b.start("flockw", "x").result(p.arguments.lease * 4 + 30)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--kill-server")
    parser.add_argument("--start-server")
    parser.add_argument("--mount-a-pid", type=int)
    parser.add_argument("--lease", type=float, default=30)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    pair = Pair(arguments)

    def call(_, run):
        try:
            pair.new_file()
            return run(pair)
        finally:
            pair.end()

    wanted = [run for run in TESTS + LATER if arguments.only in (None, run.__name__)]
    run_all(wanted, call)


if __name__ == "__main__":
    main()
