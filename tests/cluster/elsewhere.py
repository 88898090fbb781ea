#!/usr/bin/env python3
"""What is open and locked over moves of nodes: elsewhere.py DIR SECONDS.

Holds files open, some of them without names, and locks on them; writes and reads them, makes and
looks up others all the time, and tells the longest pause. In the end everything has to be as it was
made, and the locks still held. Every call has to succeed. The last line is "N passed, N failed"."""

import fcntl
import os
import sys
import time

FILES = 24

passed = failed = 0


def check(text, good):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print("ok  " if good else "FAIL", text)


def is_locked(path):
    """Whether somebody else has a lock: asked in a process of its own, since locks of one do not
    exclude each other."""
    child = os.fork()
    if child == 0:
        try:
            with open(path, "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os._exit(0)
        except BlockingIOError:
            os._exit(1)
        except OSError as error:
            print(path, error, flush=True)
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def main():
    top, seconds = os.path.join(sys.argv[1], "held"), float(sys.argv[2])
    os.mkdir(top)
    held = []
    for number in range(FILES):
        path = os.path.join(top, f"file{number}")
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if number % 3 == 0:
            os.unlink(path)
            path = None
        else:
            fcntl.lockf(file, fcntl.LOCK_EX)
        held.append((path, file))
    begun, rounds, pause, errors = time.monotonic(), 0, 0.0, []
    while time.monotonic() - begun < seconds:
        rounds += 1
        for number, (_, file) in enumerate(held):
            since = time.monotonic()
            try:
                os.pwrite(file, b"%16d" % rounds, 16 * number)
                os.fsync(file)
                made = os.path.join(top, f"made-{rounds % 50}-{number}")
                with open(made, "wb") as other:
                    other.write(b"x" * number)
                if os.stat(made).st_size != number:
                    errors.append(f"{made}: {os.stat(made).st_size} bytes, not {number}")
                os.unlink(made)
            except OSError as error:
                errors.append(f"file {number}, after {time.monotonic() - begun:.1f} s: {error}")
            pause = max(pause, time.monotonic() - since)
        time.sleep(0.02)
    for error in errors[:20]:
        print(error)
    check(
        f"{rounds} rounds without an error; the longest pause was {pause:.2f} s",
        not errors and rounds > 3,
    )
    wrong = [
        n for n, (_, file) in enumerate(held) if os.pread(file, 16, 16 * n) != b"%16d" % rounds
    ]
    check(
        f"{FILES} files have what was written last" + (f", but not {wrong}" if wrong else ""),
        not wrong,
    )
    free = [path for path, _ in held if path and not is_locked(path)]
    check("the locks are still held" + (f", but not {free}" if free else ""), not free)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
