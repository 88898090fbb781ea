#!/usr/bin/env python3
"""Writers on two mounts of one volume, and snapshots and clones of it meanwhile.

    snapshots.py write STOP DIR OTHER   makes file N in DIR, then file N in OTHER, and so on, until
                                        STOP exists; each is in one of many directories
    snapshots.py take STOP DIR LIST     makes snapshots of DIR until STOP exists; LIST gets the name
                                        of each and how far the writer was before and after
    snapshots.py clone STOP DIR INTO LIST
                                        the same with clones of DIR in INTO
    snapshots.py compare STOP DIR NAME  compares DIR with its snapshot NAME, which has no files,
                                        until STOP exists; each time it is one instant
    snapshots.py judge DIR LIST         each snapshot or clone of LIST, a path below DIR, is one
                                        instant of what was written
    snapshots.py read STOP DIR COPY     compares DIR with COPY again and again until STOP exists

The writer notes how far it is in `done`, beside the directory that holds the files.
"""

import errno
import filecmp
import json
import os
import subprocess
import sys
import time

DIRS = 16
# A call that waits for a node that is away may fail after the deadline of calls: then it is tried
# again, and what it was to make may be there.
AGAIN = (errno.ETIMEDOUT, errno.EAGAIN)


def repeated(call, done_already):
    """Calls until it succeeds; an error that says that it is done counts as success."""
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno == done_already:
                return None
            if error.errno not in AGAIN:
                raise


def progress(top):
    try:
        with open(os.path.join(top, "done")) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0


def make(path, number):
    def call():
        with open(path, "x") as file:
            file.write(str(number))

    repeated(call, errno.EEXIST)


def write(stop, one, other):
    note = os.path.join(os.path.dirname(stop), "done")
    for number in range(1_000_000):
        for top in (one, other):
            make(os.path.join(top, str(number % DIRS), str(number)), number)
        with open(note + ".new", "w") as file:
            file.write(str(number + 1))
        os.rename(note + ".new", note)
        if os.path.exists(stop):
            break


def made_until(stop, listed, make):
    """Calls make(number), which returns a path, until STOP exists; how often it did."""
    work = os.path.dirname(stop)
    with open(listed, "w") as file:
        number = 0
        while not os.path.exists(stop):
            before = progress(work)
            path = make(number)
            print(path, before, progress(work), file=file, flush=True)
            number += 1
            time.sleep(0.2)
    return number


def take(stop, top, listed):
    def make_snapshot(number):
        path = f".snap/s{number}"
        # The snapshot may be there by an attempt of which the answer was lost.
        repeated(lambda: os.mkdir(os.path.join(top, path)), errno.EEXIST)
        return path

    print(made_until(stop, listed, make_snapshot), "snapshots were made")


def clone(stop, top, into, listed):
    def make_clone(number):
        path = os.path.join(into, f"c{number}")
        done = subprocess.run(
            [os.environ["KESTREL"], "clone", top, path], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return f"c{number}"

    print(made_until(stop, listed, make_clone), "clones were made")


def numbers(top):
    found = set()
    for number in range(DIRS):
        for name in os.listdir(os.path.join(top, str(number))):
            path = os.path.join(top, str(number), name)
            # Some of them: a listing tells the names, and a look takes a request.
            if int(name) % DIRS == int(name) // DIRS % DIRS:
                size = os.stat(path).st_size
                assert size in (0, len(name)), f"{path} has {size} bytes"
            found.add(int(name))
    return found


def judge_instant(name, one, other, before, after):
    # Each file was made after the one before was there: so an instant has all up to some file.
    for found in (one, other):
        assert found == set(range(len(found))), f"{name}: a file is missing, later ones are not"
    assert len(one) - len(other) in (0, 1), f"{name}: {len(one)} and {len(other)} files"
    assert before <= len(other), f"{name}: {len(other)} files of {before}"
    assert len(one) <= after + 2, f"{name}: {len(one)} files, {after} when it was there"


def compare(stop, top, base):
    work, rounds = os.path.dirname(stop), 0
    command = [os.environ["KESTREL"], "snapshot", "diff", "--json", top, base]
    while not os.path.exists(stop):
        before = progress(work)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = {"one": set(), "other": set()}
        for told in json.loads(done.stdout)["differences"]:
            if told["type"] == "file":
                assert told["what"] == "created", told
                half, _, name = told["path"].split("/")
                found[half].add(int(name))
        judge_instant(f"diff {rounds}", found["one"], found["other"], before, progress(work))
        rounds += 1
        # A minute has less than 64 of them, which is the most that may be there.
        time.sleep(1)
    assert rounds > 0
    print(rounds, "diffs with now are one instant each")


def judge(top, listed):
    count = 0
    with open(listed) as file:
        lines = [line.split() for line in file]
    for name, before, after in lines:
        snapshot = os.path.join(top, name)
        one = numbers(os.path.join(snapshot, "one"))
        other = numbers(os.path.join(snapshot, "other"))
        judge_instant(name, one, other, int(before), int(after))
        count += 1
    assert count > 0
    print(count, "are one instant each")


def equal(one, other):
    found = sorted(os.listdir(one))
    assert found == sorted(os.listdir(other)), one
    for name in found:
        here, there = os.path.join(one, name), os.path.join(other, name)
        if os.path.isdir(here) and not os.path.islink(here):
            equal(here, there)
        elif os.path.isfile(here) and not os.path.islink(here):
            assert filecmp.cmp(here, there, shallow=False), here


def read(stop, one, other):
    rounds = 0
    while True:
        equal(one, other)
        rounds += 1
        if os.path.exists(stop):
            break
    print(rounds, "comparisons")


COMMANDS = {
    "write": write,
    "take": take,
    "clone": clone,
    "compare": compare,
    "judge": judge,
    "read": read,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
