#!/usr/bin/env python3
"""Many writers at the limit of a quota, for cluster/quotas.sh.

  quotas.py race WRITERS LIMIT MOUNT…   WRITERS processes, over the mounts by turns, create files
                                        until the quota is used up: exactly LIMIT of them succeed
  quotas.py churn SECONDS LIMIT MOUNT…  processes create and remove files; there are never more than
                                        LIMIT names, whenever they are listed

Calls that fail because a node is away are made again. Prints what was done, or "FAIL …" and exits
with 1.
"""
import errno
import multiprocessing
import os
import sys
import time

FULL = (errno.EDQUOT, errno.ENOSPC)
AWAY = (errno.ETIMEDOUT, errno.EIO, errno.EAGAIN)
PATIENCE = 120


def create(path):
    """Whether it fits."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return True
        except FileExistsError:
            # Made by a call of which the answer was lost.
            return True
        except OSError as why:
            if why.errno in FULL:
                return False
            if why.errno not in AWAY or time.monotonic() > until:
                raise


def race_writer(mount, number, counts):
    made = 0
    while create(f"{mount}/w{number}-{made}"):
        made += 1
    counts.put(made)


def race(writers, limit, mounts):
    counts = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=race_writer, args=(mounts[n % len(mounts)], n, counts))
        for n in range(writers)
    ]
    begun = time.monotonic()
    for process in processes:
        process.start()
    made = sum(counts.get() for _ in processes)
    for process in processes:
        process.join()
    listed = len(os.listdir(mounts[0]))
    print(f"{made} files by {writers} writers in {time.monotonic() - begun:.1f} s")
    if made != limit or listed != limit:
        print(f"FAIL {made} calls succeeded and {listed} names are there, not {limit}")
        sys.exit(1)


def churn_writer(mount, number, until):
    kept = []
    made = 0
    while time.monotonic() < until:
        path = f"{mount}/c{number}-{made}"
        if create(path):
            kept.append(path)
            made += 1
        elif kept:
            try:
                os.unlink(kept.pop(0))
            except OSError as why:
                if why.errno not in AWAY + (errno.ENOENT,):
                    raise


def churn(seconds, limit, mounts):
    until = time.monotonic() + seconds
    processes = [
        multiprocessing.Process(target=churn_writer, args=(mounts[n % len(mounts)], n, until))
        for n in range(6)
    ]
    for process in processes:
        process.start()
    most = looks = 0
    while time.monotonic() < until:
        try:
            names = len(os.listdir(mounts[looks % len(mounts)]))
        except OSError as why:
            if why.errno not in AWAY:
                raise
            continue
        most, looks = max(most, names), looks + 1
        # A listing of many pages is no instant: the directory is one page.
        if names > limit:
            print(f"FAIL {names} names where {limit} fit")
            sys.exit(1)
    for process in processes:
        process.join()
        if process.exitcode:
            print("FAIL a writer has failed")
            sys.exit(1)
    print(f"at most {most} of {limit} names in {looks} listings")


if __name__ == "__main__":
    {"race": race, "churn": churn}[sys.argv[1]](
        int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    )
