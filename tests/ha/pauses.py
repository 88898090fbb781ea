#!/usr/bin/env python3
"""What an application sees of a pause: a loop of small operations in a directory, and how long each
takes.

  pauses.py run DIR LOG [SECONDS]   creates, writes, reads, lists and removes files until SIGTERM,
                                    or for so long; LOG gets a line for each call that took 20 ms or
                                    more, or failed: its begin and end (seconds, monotonic), its
                                    name, its error; and one of all calls at the end
  pauses.py longest LOG FROM [TO]   the longest of them between two times in milliseconds, and how
                                    many failed: "MS ERRORS"
  pauses.py now                     the time
"""

import os
import signal
import sys
import time


def run(place, log, seconds):
    ends = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
    until = time.monotonic() + seconds
    calls = 0
    with open(log, "w", buffering=1) as out:

        def timed(name, call):
            nonlocal calls
            calls += 1
            error, begun = "-", time.monotonic()
            try:
                got = call()
            except OSError as why:
                error, got = os.strerror(why.errno).replace(" ", "_"), None
            took = time.monotonic() - begun
            if took >= 0.02 or error != "-":
                out.write(f"{begun:.4f} {begun + took:.4f} {name} {error}\n")
            return got

        number = 0
        while not ends and time.monotonic() < until:
            # Names that lie at all nodes: which one has a file is a matter of its name.
            name = f"{place}/f{number}"
            number += 1
            fd = timed("create", lambda: os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR))
            if fd is None:
                continue
            timed("write", lambda: os.write(fd, b"0123456789"))
            timed("fsync", lambda: os.fsync(fd))
            timed("close", lambda: os.close(fd))
            timed("stat", lambda: os.stat(name))
            if number % 50 == 0:
                timed("list", lambda: os.listdir(place))
            timed("rename", lambda: os.rename(name, name + "x"))
            timed("unlink", lambda: os.unlink(name + "x"))
            time.sleep(0.002)
        out.write(f"0 0 {calls}_calls -\n")


def longest(log, begin, end):
    most, errors = 0.0, 0
    for line in open(log):
        begun, ended, _, error = line.split()
        begun, ended = float(begun), float(ended)
        if ended >= begin and begun <= end:
            most = max(most, ended - max(begun, begin))
            errors += error != "-"
    print(round(most * 1000), errors)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "run":
        run(rest[0], rest[1], float(rest[2]) if len(rest) > 2 else 1e9)
    elif what == "longest":
        longest(rest[0], float(rest[1]), float(rest[2]) if len(rest) > 2 else 1e18)
    else:
        print(f"{time.monotonic():.4f}")
