#!/usr/bin/env python3
"""Programs that share files, on two mounts of one volume: a database of SQLite, a Maildir, and a
log that all append to.

    shared.py A B [--seconds N]

A and B are two mounts of one volume. Two processes on each mount do each of the three for so long,
while somebody else kills what serves them. No call may fail for that. Then both mounts have to show
everything that was acknowledged, once. Prints a line for each test and "N passed, N failed".
"""

import argparse
import errno
import multiprocessing
import os
import sqlite3
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from suite import run_all  # noqa: E402

RECORD = 64


def until(seconds):
    """The numbers from 0 on, for so long."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1


def database(home, who, seconds):
    """Transactions that add a row and count it. How many there were."""
    done = 0
    base = sqlite3.connect(f"{home}/base", timeout=120, isolation_level=None)
    for number in until(seconds):
        base.execute("BEGIN IMMEDIATE")
        base.execute("INSERT INTO entries VALUES (?, ?)", (who, number))
        base.execute("UPDATE total SET count = count + 1")
        base.execute("COMMIT")
        done += 1
    base.close()
    return done


def mailbox(home, who, seconds):
    """Delivers messages as a mail server does, and takes what it finds as a reader does. How many
    were delivered."""
    done = 0
    for number in until(seconds):
        name = f"{who}.{number}"
        with open(f"{home}/tmp/{name}", "x") as file:
            file.write(name * 100)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{home}/tmp/{name}", f"{home}/new/{name}")
        done += 1
        for found in os.listdir(f"{home}/new")[:3]:
            try:
                os.rename(f"{home}/new/{found}", f"{home}/cur/{found}")
            except FileNotFoundError:
                pass
    return done


def log(home, who, seconds):
    """Appends records, each synced. How many there were."""
    done = 0
    fd = os.open(f"{home}/log", os.O_WRONLY | os.O_APPEND)
    for number in until(seconds):
        record = f"{who} {number}".ljust(RECORD - 1).encode() + b"\n"
        if os.write(fd, record) != RECORD:
            raise OSError(errno.EIO, "a short write")
        os.fsync(fd)
        done += 1
    os.close(fd)
    return done


def everything_is_in_the_database(home, done):
    """SQLite: every transaction is in the database, and it is sound"""
    base = sqlite3.connect(f"{home}/base", timeout=60)
    assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    rows = sorted(base.execute("SELECT who, number FROM entries").fetchall())
    count = base.execute("SELECT count FROM total").fetchone()[0]
    base.close()
    assert rows == sorted((who, number) for who, times in done.items() for number in range(times))
    assert count == len(rows), f"counted {count}, {len(rows)} rows"


def every_message_is_there_once(home, done):
    """Maildir: every message is there once and whole, and nothing else"""
    found = [(place, name) for place in ("new", "cur") for name in os.listdir(f"{home}/{place}")]
    assert os.listdir(f"{home}/tmp") == []
    assert sorted(name for _, name in found) == sorted(
        f"{who}.{number}" for who, times in done.items() for number in range(times)
    )
    for place, name in found:
        with open(f"{home}/{place}/{name}") as file:
            assert file.read() == name * 100, name


def every_record_is_in_the_log(home, done):
    """Log: every record is there once and whole, those of each process in their order"""
    with open(f"{home}/log") as file:
        lines = file.read().splitlines(keepends=True)
    assert all(len(line) == RECORD for line in lines), [
        line for line in lines if len(line) != RECORD
    ][:3]
    for who, times in done.items():
        mine = [int(line.split()[1]) for line in lines if line.split()[0] == who]
        assert mine == list(range(times)), f"{who}: {len(mine)} of {times} records"
    assert len(lines) == sum(done.values())


LOADS = (
    (database, everything_is_in_the_database),
    (mailbox, every_message_is_there_once),
    (log, every_record_is_in_the_log),
)


def prepare(home):
    for name in ("tmp", "new", "cur"):
        os.mkdir(f"{home}/{name}")
    open(f"{home}/log", "x").close()
    base = sqlite3.connect(f"{home}/base")
    base.executescript(
        "CREATE TABLE entries (who TEXT, number INTEGER);"
        "CREATE TABLE total (count INTEGER);"
        "INSERT INTO total VALUES (0);"
    )
    base.close()


def work(load, home, who, seconds, answers):
    """What runs in a process: tells how much it has done, or what has failed."""
    try:
        answers.put((load.__name__, who, load(home, who, seconds)))
    except Exception as error:
        answers.put((load.__name__, who, f"{type(error).__name__}: {error}"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    homes = [f"{mount}/shared-{os.getpid()}" for mount in (arguments.a, arguments.b)]
    os.mkdir(homes[0])
    prepare(homes[0])
    answers = multiprocessing.Queue()
    crew = [
        multiprocessing.Process(
            target=work,
            args=(load, homes[number % 2], f"p{number}", arguments.seconds, answers),
            daemon=True,
        )
        for load, _ in LOADS
        for number in range(4)
    ]
    for one in crew:
        one.start()
    done = {load.__name__: {} for load, _ in LOADS}
    for _ in crew:
        load, who, said = answers.get(timeout=arguments.seconds + 300)
        done[load][who] = said

    def call(_, judge):
        mine = next(done[load.__name__] for load, by in LOADS if by is judge)
        failed = [f"{who}: {said}" for who, said in mine.items() if isinstance(said, str)]
        assert not failed, failed
        print(f"     {sum(mine.values())} by {len(mine)} processes")
        for home in homes:
            judge(home, mine)

    run_all([judge for _, judge in LOADS], call)


if __name__ == "__main__":
    main()
