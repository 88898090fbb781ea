#!/usr/bin/env python3
"""What changes between the lookup of a name and the operation on it, for a mount that is far from
its server.

    late.py NEAR FAR MS

NEAR and FAR are two mounts of one volume; between FAR and the server every byte takes MS in each
direction, so that there is time for NEAR to change names after FAR's kernel has looked at them.
Prints a line for each test and "N passed, N failed".
"""

import errno
import os
import sys
import threading
import time

from suite import TESTS, run_all, test


def late(call, delay, change):
    """Has `change` made while `call` is under way, `delay` after it began. What the call failed
    with, or 0."""
    said = []

    def run():
        try:
            call()
            said.append(0)
        except OSError as error:
            said.append(error.errno)

    caller = threading.Thread(target=run)
    caller.start()
    time.sleep(delay)
    change()
    caller.join()
    return said[0]


def directories(path):
    """Descriptors of a directory and of x in it, so that a name in it takes one lookup whatever is
    mounted how."""
    return [os.open(one, os.O_RDONLY | os.O_DIRECTORY) for one in (path, f"{path}/x")]


def alive(fd):
    """A directory that nobody has removed has its names, and takes new ones."""
    assert os.listdir(fd) == ["inside"], os.listdir(fd)
    os.stat("inside", dir_fd=fd)
    os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.unlink("new", dir_fd=fd)


def swapped(near, call, delay):
    """`near`/x, which has something inside, is moved away and replaced by an empty directory while
    `call` is under way.

    Whether that came in time is for the caller to judge, by what this returns: what the call failed
    with."""

    def change():
        os.rename(f"{near}/x", f"{near}/moved")
        os.mkdir(f"{near}/x")

    return late(call, delay, change)


@test
def rmdir(near, far, way):
    """rmdir of a name that means another directory by now leaves the one alive that it meant
    before"""
    for turn in range(10):
        os.makedirs(f"{near}/{turn}/x/inside")
        parent, fd = directories(f"{far}/{turn}")
        # The lookup is at the server after one way, the removal after three.
        said = swapped(f"{near}/{turn}", lambda: os.rmdir("x", dir_fd=parent), 2 * way)
        alive(fd)
        os.close(fd)
        os.close(parent)
        assert said in (0, errno.ENOTEMPTY), errno.errorcode[said]
        if said == 0:
            assert os.listdir(f"{near}/{turn}") == ["moved"]
            return
    raise AssertionError("never in time")


@test
def rename_onto(near, far, way):
    """rename onto a name that means another directory by now leaves the one alive that it meant
    before"""
    for turn in range(10):
        os.makedirs(f"{near}/{turn}/x/inside")
        os.mkdir(f"{near}/{turn}/y")
        parent, fd = directories(f"{far}/{turn}")
        # Two lookups, the second of which is at the server after three ways, the rename after five.
        rename = lambda: os.rename("y", "x", src_dir_fd=parent, dst_dir_fd=parent)
        said = swapped(f"{near}/{turn}", rename, 4 * way)
        alive(fd)
        os.close(fd)
        os.close(parent)
        assert said in (0, errno.ENOTEMPTY), errno.errorcode[said]
        if said == 0:
            assert sorted(os.listdir(f"{near}/{turn}")) == ["moved", "x"]
            return
    raise AssertionError("never in time")


def main():
    near, far, way = sys.argv[1], sys.argv[2], int(sys.argv[3]) / 1000

    def call(number, run):
        os.mkdir(f"{near}/late{number}")
        run(f"{near}/late{number}", f"{far}/late{number}", way)

    run_all(TESTS, call)


if __name__ == "__main__":
    main()
