#!/usr/bin/env python3
"""Directories that are renamed while metadata nodes are away, and what is found at their old names
afterwards.

    fence.py A B --pids PREFIX --start SCRIPT --status COMMAND

A and B are two mounts of one volume; A's kernel keeps names and attributes. PREFIX1, PREFIX2 and
PREFIX3 are files with the process numbers of the nodes; `sh SCRIPT NODE` starts one. Prints a line
for each test and "N passed, N failed".
"""

import argparse
import json
import os
import signal
import subprocess
import threading
import time

from suite import TESTS, run_all, test, write

DIRECTORIES = 24
FILES = 8
# Fencing takes a node's lease, promises about it, and the patience before; seconds.
FENCED = 8


class Call(threading.Thread):
    """A call under way: how it ended."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.what, self.error = (function, *arguments), None
        self.start()

    def run(self):
        try:
            self.what[0](*self.what[1:])
            self.error = 0
        except OSError as error:
            self.error = error.errno

    def ended(self, patience):
        self.join(patience)
        assert not self.is_alive(), f"{self.what} does not end"
        assert self.error == 0, (self.what, os.strerror(self.error))


class Nodes:
    def __init__(self, pids, start, status):
        self.pids, self.script, self.command = pids, start, status.split()

    def pid(self, node):
        with open(f"{self.pids}{node}") as file:
            return int(file.read())

    def stop(self, *nodes):
        for node in nodes:
            os.kill(self.pid(node), signal.SIGSTOP)

    def go_on(self, *nodes):
        for node in nodes:
            os.kill(self.pid(node), signal.SIGCONT)

    def kill(self, node):
        os.kill(self.pid(node), signal.SIGKILL)

    def start(self, node):
        for _ in range(20):
            if (
                subprocess.run(["sh", self.script, str(node)], stdout=subprocess.DEVNULL).returncode
                == 0
            ):
                break
            time.sleep(0.3)
        told = subprocess.run(self.command, capture_output=True, text=True).stdout
        process = next(one["process"] for one in json.loads(told)["nodes"] if one["node"] == node)
        with open(f"{self.pids}{node}", "w") as file:
            file.write(str(process))

    def leases(self):
        """What of leases each node says."""
        told = subprocess.run(self.command, capture_output=True, text=True).stdout
        return {one["node"]: one["lease"] for one in json.loads(told)["nodes"]}


class Dirs:
    """A directory in each of many, since the kernel changes one name of a directory after the
    other, with files of names that all nodes own, so that each has resolved its path."""

    def __init__(self, a, b):
        self.a, self.b, self.now = a, b, {}
        for number in range(DIRECTORIES):
            os.makedirs(f"{a}/p{number}/d{number}")
            self.now[number] = f"d{number}"
            for file in range(FILES):
                write(f"{b}/p{number}/d{number}/f{file}", b"known")
        for number in range(DIRECTORIES):
            os.stat(f"{a}/p{number}/d{number}")
            self.found(number, f"d{number}")

    def found(self, number, name):
        for file in range(FILES):
            os.stat(f"{self.b}/p{number}/{name}/f{file}")

    def is_nowhere(self, number, name):
        for file in range(FILES):
            path = f"{self.b}/p{number}/{name}/f{file}"
            try:
                os.stat(path)
            except FileNotFoundError:
                continue
            raise AssertionError(f"{path} is found after its directory was renamed")

    def renames(self, kind):
        """Calls that rename all of them."""
        calls = {}
        for number, name in self.now.items():
            new = f"{kind}{number}"
            calls[number] = Call(
                os.rename, f"{self.a}/p{number}/{name}", f"{self.a}/p{number}/{new}"
            )
        return calls

    def go_on_without(self, kind, come_back):
        """Renames all; those that end before `come_back` are nowhere else after it, and all end."""
        before, calls = dict(self.now), self.renames(kind)
        time.sleep(FENCED)
        quick = [number for number, call in calls.items() if call.error == 0]
        # Two of three nodes own each of its two names.
        assert (
            len(quick) >= 3
        ), f"{len(quick)} of {DIRECTORIES} directories were renamed without the node"
        come_back()
        for number in quick:
            self.is_nowhere(number, before[number])
            self.found(number, f"{kind}{number}")
        for number, call in calls.items():
            call.ended(60)
            self.now[number] = f"{kind}{number}"
        for number in calls:
            self.is_nowhere(number, before[number])
            self.found(number, self.now[number])


@test
def a_node_that_stops(a, b, nodes):
    """directories are renamed while a node is stopped; when it goes on it finds none of them where
    they were"""
    dirs = Dirs(a, b)
    nodes.stop(3)
    dirs.go_on_without("e", lambda: nodes.go_on(3))
    assert sum(lease["fenced"] for lease in nodes.leases().values()) > 0, nodes.leases()


@test
def a_node_that_is_killed(a, b, nodes):
    """directories are renamed while a node is down"""
    dirs = Dirs(a, b)
    nodes.kill(2)
    dirs.go_on_without("g", lambda: nodes.start(2))


@test
def alone_of_three(a, b, nodes):
    """a node that is alone of three serves no path, and goes on when another one is back"""
    dirs = Dirs(a, b)
    nodes.stop(2, 3)
    # What it has is still its lease's for a while.
    time.sleep(3)
    calls = [Call(dirs.found, number, f"d{number}") for number in range(DIRECTORIES)]
    time.sleep(2)
    assert not any(call.error == 0 for call in calls), "a path was served without a lease"
    nodes.go_on(3)
    ends = time.monotonic() + 10
    while True:
        one = Call(os.stat, f"{b}/p0/d0/f0")
        one.join(2)
        if one.error == 0 or time.monotonic() > ends:
            break
    nodes.go_on(2)
    for call in calls:
        call.ended(60)
    assert nodes.leases()[1]["lapses"] > 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--pids", required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--status", required=True)
    parser.add_argument("--only")
    options = parser.parse_args()
    nodes = Nodes(options.pids, options.start, options.status)

    def call(number, run):
        os.mkdir(f"{options.a}/t{number}")
        run(f"{options.a}/t{number}", f"{options.b}/t{number}", nodes)

    run_all([one for one in TESTS if options.only in (None, one.__name__)], call)


if __name__ == "__main__":
    main()
