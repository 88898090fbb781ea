#!/usr/bin/env python3
"""What goes on, what waits and what fails while links of three metadata nodes are cut for longer.

    cut.py A B --network NAME --deadline SECONDS

A and B are two mounts of one volume, each in a network of its own (tests/cluster/network.sh):
NAME1, NAME2, NAME3 are those of the nodes, NAMEa and NAMEb those of the mounts. B's calls fail
after the deadline, A's wait for longer than any of this. Prints a line for each test and "N passed,
N failed".
"""

import argparse
import errno
import fcntl
import os
import subprocess
import threading
import time

from suite import TESTS, read, run_all, test, write

MACHINES = "123ab"
DIRECTORIES = 24
# A call that fails does so at most this much after its deadline, seconds.
SLACK = 6


class Network:
    def __init__(self, name):
        self.name = name

    def iptables(self, machine, *words):
        subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.name}{machine}", "iptables", "-w", *words],
            check=True,
        )

    def cut(self, one, *others):
        for other in others:
            for machine, source in ((one, other), (other, one)):
                address = f"10.99.0.{MACHINES.index(source) + 1}"
                self.iptables(machine, "-A", "INPUT", "-i", "eth0", "-s", address, "-j", "DROP")

    def heal(self):
        for machine in MACHINES:
            self.iptables(machine, "-F")


class Call(threading.Thread):
    """A call under way: how it ended, and when."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.what, self.error, self.seconds = (function, *arguments), None, None
        self.start()

    def run(self):
        begun = time.monotonic()
        try:
            self.what[0](*self.what[1:])
            self.error = 0
        except OSError as error:
            self.error = error.errno
        self.seconds = time.monotonic() - begun

    def ended(self, patience):
        self.join(patience)
        assert not self.is_alive(), f"{self.what} does not end"
        return self


class Tree:
    """Directories that all nodes know, open on one mount: the kernel makes one name after the other
    in a directory, so that each call that may have to wait is on one of its own."""

    def __init__(self, path, others):
        self.fds = []
        for number in range(DIRECTORIES):
            directory = f"{path}/d{number}"
            if not os.path.isdir(directory):
                os.mkdir(directory)
            # Names are spread over the nodes, so each of them has had to look for the directory.
            for name in range(8):
                write(f"{directory}/{others}{name}", b"known")
            self.fds.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))

    def create(self, kind):
        """Calls that make a file in each directory. Its name says which node leads them, so each
        has another one."""
        return [Call(create, f"{kind}{number}", fd) for number, fd in enumerate(self.fds)]

    def chmod(self, mode):
        """Calls that change each directory, which all nodes must hear of before."""
        return [Call(os.fchmod, fd, mode) for fd in self.fds]

    def names(self):
        """What is in all of them."""
        return [sorted(os.listdir(fd)) for fd in self.fds]


def create(name, fd):
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=fd))


def sorted_out(calls, deadline):
    """Which calls ended well before their deadline, and which failed with EIO, at it; no other end
    is allowed."""
    quick, failed = [], []
    for call in calls:
        call.ended(deadline + SLACK + 20)
        if call.error == 0 and call.seconds < deadline:
            quick.append(call)
        else:
            assert call.error in (errno.EIO, errno.ETIMEDOUT), (call.what, call.error, call.seconds)
            assert call.seconds < deadline + SLACK, (call.what, call.seconds)
            failed.append(call)
    return quick, failed


def same_names(one, two):
    """Both see the same, once calls that failed and were on their way are done or lost."""
    end = time.monotonic() + 15
    while one.names() != two.names():
        assert time.monotonic() < end, (one.names(), two.names())
        time.sleep(0.5)


def some_of_each(quick, others):
    """Names are spread over three nodes, one of which is out of reach: none of both is as good as
    impossible."""
    assert len(quick) >= 6 and others, (len(quick), len(others))


@test
def a_node_away(a, b, net, deadline):
    """a node cut off from all: what the others lead goes on, the rest fails at its deadline or is
    done when it is back"""
    one, two = Tree(a, "a"), Tree(b, "b")
    net.cut("3", "1", "2", "a", "b")
    waiting = one.create("patient")
    quick, failed = sorted_out(two.create("made"), deadline)
    some_of_each(quick, failed)
    quick_too = [call for call in waiting if call.error == 0]
    some_of_each(quick_too, [call for call in waiting if call.seconds is None])
    net.heal()
    for call in waiting:
        assert call.ended(40).error == 0, (call.what, call.error)
    for number, names in enumerate(two.names()):
        assert f"patient{number}" in names
    for call in quick:
        number = int(call.what[1].removeprefix("made"))
        assert call.what[1] in one.names()[number]
    same_names(one, two)


@test
def nodes_apart(a, b, net, deadline):
    """two nodes that do not hear each other: clients are served by both; what needs both waits, and
    is done when they do"""
    one, two = Tree(a, "a"), Tree(b, "b")
    net.cut("1", "2")
    quick, failed = sorted_out(two.create("made"), deadline)
    assert not failed, [(call.what, call.error, call.seconds) for call in failed]
    waiting = one.chmod(0o701)
    # Some are led by the node that hears both.
    quick, failed = sorted_out(two.chmod(0o750), deadline)
    assert failed, "directories changed though a node may know them as they were"
    still = [call for call in waiting if call.seconds is None]
    assert still, "directories changed though a node may know them as they were"
    renames = [
        Call(os.rename, f"{a}/d{number}/a0", f"{a}/d{number}/renamed{number}")
        for number in range(DIRECTORIES)
    ]
    time.sleep(1)
    net.heal()
    for call in waiting + renames:
        assert call.ended(40).error == 0, (call.what, call.error)
    for number in range(DIRECTORIES):
        assert read(f"{b}/d{number}/renamed{number}") == b"known"
        assert os.stat(f"{a}/d{number}").st_mode == os.stat(f"{b}/d{number}").st_mode
    same_names(one, two)


@test
def a_client_apart(a, b, net, deadline):
    """a client that cannot reach one of the nodes: it goes on with the others, and the other client
    with all"""
    one, two = Tree(a, "a"), Tree(b, "b")
    held = open(f"{b}/d0/b0", "r+b")
    net.cut("b", "2")
    quick, failed = sorted_out(two.create("made"), deadline)
    some_of_each(quick, failed)
    quick, failed = sorted_out(one.create("near") + one.chmod(0o700), deadline)
    assert not failed, [(call.what, call.error, call.seconds) for call in failed]
    net.heal()
    held.write(b"held")
    held.close()
    assert read(f"{a}/d0/b0") == b"heldn", read(f"{a}/d0/b0")
    same_names(one, two)


@test
def locks_of_one_node(a, b, net, deadline):
    """a client cut off from one node for longer than its lease: locks there are others', said with
    EIO; those of other nodes stay"""
    paths = [f"lock{number}" for number in range(9)]
    for path in paths:
        write(f"{a}/{path}", b"")
    held = [open(f"{b}/{path}", "r+b") for path in paths]
    for file in held:
        fcntl.lockf(file, fcntl.LOCK_EX)
    net.cut("b", "2")
    end, taken = time.monotonic() + 45, []
    others = [open(f"{a}/{path}", "r+b") for path in paths]
    while time.monotonic() < end and not (taken and time.monotonic() > taken[0][0] + 3):
        for number, file in enumerate(others):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken.append((time.monotonic(), number))
            except OSError as error:
                assert error.errno == errno.EAGAIN, error
        time.sleep(0.2)
    net.heal()
    lost = {number for _, number in taken}
    assert 0 < len(lost) < 9, lost
    end = time.monotonic() + 30
    for number in lost:
        while True:
            try:
                held[number].write(b"x")
                held[number].flush()
                os.fsync(held[number].fileno())
            except OSError as error:
                assert error.errno == errno.EIO, error
                break
            assert (
                time.monotonic() < end
            ), f"{paths[number]}: written under a lock that is another's"
            time.sleep(0.1)
    for number in set(range(9)) - lost:
        held[number].write(b"y")
        held[number].close()
        assert read(f"{a}/{paths[number]}") == b"y"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--network", required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--only")
    options = parser.parse_args()
    net = Network(options.network)

    def call(number, run):
        os.mkdir(f"{options.a}/t{number}")
        try:
            run(f"{options.a}/t{number}", f"{options.b}/t{number}", net, options.deadline)
        finally:
            net.heal()

    run_all([one for one in TESTS if options.only in (None, one.__name__)], call)


if __name__ == "__main__":
    main()
