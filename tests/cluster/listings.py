"""What a thread that lists a directory and looks at its names is told of changes meanwhile. Tests
of two.py."""

import ctypes
import fcntl
import multiprocessing
import os
import subprocess
import sys
import time

from suite import test, write

NAMES = [f"f{number:02}" for number in range(20)]


def fill(directory):
    for name in NAMES:
        write(f"{directory}/{name}", b"one")


class Listing:
    """A directory that is open, of which this thread has the names and attributes."""

    def __init__(self, directory):
        self.fd = os.open(directory, os.O_RDONLY)

    def __enter__(self):
        with os.scandir(self.fd) as entries:
            found = sorted(entry.name for entry in entries)
        assert found == NAMES, found
        for name in NAMES[:10]:
            assert self.stat(name).st_size == 3
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def stat(self, name):
        return os.stat(name, dir_fd=self.fd)


def eventually(holds):
    """Waits until something holds; fails if it never does."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


@test
def listed_and_changed_here(a, b):
    """a process that looks at names it has listed sees what anybody changed through the same
    mount"""
    fill(a)
    script = (
        "import os, sys; os.chmod(sys.argv[1] + '/f11', 0o600); os.truncate(sys.argv[1] + '/f12', "
        "77)"
    )
    with Listing(a) as listing:
        subprocess.run([sys.executable, "-c", script, a], check=True)
        assert (listing.stat("f11").st_mode & 0o777, listing.stat("f12").st_size) == (0o600, 77)
        with open(f"{a}/f13", "ab") as file:
            file.write(b"more")
        assert listing.stat("f13").st_size == 7
        os.rename(f"{a}/f14", f"{a}/f15")
        os.unlink(f"{a}/f16")
        os.setxattr(f"{a}/f17", "user.a", b"b")
        assert not os.access("f14", os.F_OK, dir_fd=listing.fd) and not os.access(
            "f16", os.F_OK, dir_fd=listing.fd
        )
        assert os.listxattr(f"{a}/f17") == ["user.a"]
        os.link(f"{a}/f18", f"{a}/other")
        assert listing.stat("f18").st_nlink == 2


def touch(directory, numbers, stop, acknowledged):
    """Sets the time of files to higher and higher numbers, and tells them."""
    turn = 0
    while not stop.value:
        turn += 1
        for number in numbers:
            os.utime(f"{directory}/{NAMES[number]}", ns=(turn, turn))
            acknowledged[number] = turn


@test
def changed_while_the_listing_begins(a, b):
    """what was under way when a thread began to look at names is seen too, once it is
    acknowledged"""
    fill(a)
    stop, acknowledged = multiprocessing.RawValue(ctypes.c_int), multiprocessing.RawArray(
        ctypes.c_longlong, len(NAMES)
    )
    arguments = [(a, range(first, len(NAMES), 2), stop, acknowledged) for first in range(2)]
    writers = [multiprocessing.Process(target=touch, args=each, daemon=True) for each in arguments]
    for writer in writers:
        writer.start()
    try:
        eventually(lambda: all(acknowledged))
        for _ in range(400):
            fd = os.open(a, os.O_RDONLY)
            os.listdir(fd)
            for number, name in enumerate(NAMES):
                least = acknowledged[number]
                seen = os.stat(name, dir_fd=fd).st_mtime_ns
                assert seen >= least, f"{name} is of {seen}, and {least} was acknowledged"
            os.close(fd)
    finally:
        stop.value = 1
        for writer in writers:
            writer.join()


LOOKS = """
import os, sys
os.setgroups([]), os.setgid(1234), os.setuid(1234)
with os.scandir(sys.argv[1]) as entries:
    names = [next(entries).name for _ in range(18)]
    for name in names[:8]:
        os.stat(f"{sys.argv[1]}/{name}")
    print("looked", flush=True)
    sys.stdin.readline()
    for name in names[8:]:
        print(os.path.exists(f"{sys.argv[1]}/{name}"), flush=True)
"""


@test
def listed_and_refused(a, b):
    """a user that may not search a directory any more looks at nothing in it, though it has listed
    it"""
    os.chmod(a, 0o755)
    os.makedirs(f"{a}/above/dir")
    fill(f"{a}/above/dir")
    for place in ["above/dir", "above"]:
        command = [sys.executable, "-c", LOOKS, f"{a}/above/dir"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as user:
            assert user.stdout.readline() == "looked\n"
            os.chmod(f"{a}/{place}", 0o700)
            assert user.communicate("\n")[0].split() == ["False"] * 10, place
        os.chmod(f"{a}/{place}", 0o755)


@test
def listed_and_changed_elsewhere(a, b):
    """what another mount changes is seen some time after, by a process that has the directory open,
    and at once by others"""
    fill(a)
    with Listing(a) as listing:
        os.chmod(f"{b}/f11", 0o600)
        os.unlink(f"{b}/f12")
        write(f"{b}/f13", b"three")
        with open(f"{a}/f13", "rb") as file:
            assert file.read() == b"three", "who opens a file reads what was closed before"
        script = (
            "import os, sys; print(oct(os.stat(sys.argv[1] + '/f11').st_mode & 0o777), "
            "os.path.exists(sys.argv[1] + '/f12'))"
        )
        said = subprocess.run(
            [sys.executable, "-c", script, a], check=True, capture_output=True, text=True
        ).stdout
        assert said == "0o600 False\n", said
        eventually(lambda: listing.stat("f11").st_mode & 0o777 == 0o600)
        eventually(lambda: not os.access("f12", os.F_OK, dir_fd=listing.fd))


@test
def listed_and_closed(a, b):
    """after the directory was closed nothing of its listing is believed"""
    fill(a)
    for turn in range(20):
        with Listing(a):
            pass
        mode = 0o600 + turn
        os.chmod(f"{b}/f05", mode)
        # The kernel keeps attributes for a tick or two.
        time.sleep(0.05)
        assert os.stat(f"{a}/f05").st_mode & 0o777 == mode


@test
def listed_and_locked(a, b):
    """a process that gets a lock sees what was changed before, listed or not"""
    fill(a)
    with Listing(a) as listing, open(f"{a}/f00", "r+b") as locked:
        os.chmod(f"{b}/f11", 0o600)
        fcntl.lockf(locked, fcntl.LOCK_EX)
        assert listing.stat("f11").st_mode & 0o777 == 0o600


@test
def listed_and_replaced(a, b):
    """a name that was replaced on the other mount opens as what it is now"""
    fill(a)
    with Listing(a) as listing:
        for name in NAMES[10:]:
            listing.stat(name)
            write(f"{b}/new", b"new " + name.encode())
            os.rename(f"{b}/new", f"{b}/{name}")
            fd = os.open(name, os.O_RDONLY, dir_fd=listing.fd)
            assert os.read(fd, 100) == b"new " + name.encode()
            os.close(fd)
