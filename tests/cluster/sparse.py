#!/usr/bin/env python3
"""Files with objects that are hardly in use any more, for compactions.

sparse.py make DIR          many files, of which most are removed, and large ones that small writes
                            cut to pieces
sparse.py churn DIR UNTIL   writes, renames, clones and removes files there until the file UNTIL
                            exists
sparse.py hold DIR UNTIL    opens files and reads some of each; when the file UNTIL exists reads the
                            rest, all of it as it was
sparse.py judge DIR         whether every file holds what its name says
"""

import os
import random
import sys
import time

SIZES = (9_000, 40_000, 200_000)


def content(name):
    """What a file holds: the number that its name begins with says it."""
    number = int(name.split("-")[0])
    return random.Random(number).randbytes(SIZES[number % len(SIZES)])


def pieces(number):
    """What a large file holds after its small writes, and the writes."""
    chance = random.Random(number)
    data = bytearray(chance.randbytes(5_000_000))
    writes = []
    for _ in range(150):
        at = chance.randrange(len(data) - 3000)
        piece = chance.randbytes(3000)
        data[at : at + 3000] = piece
        writes.append((at, piece))
    return bytes(data), writes


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def make(top):
    for number in range(600):
        write(f"{top}/{number}-file", content(f"{number}-file"))
    os.sync()
    for number in range(600):
        if number % 10:
            os.unlink(f"{top}/{number}-file")
    # Of some the name is another node's than that of their number, some have two names.
    os.mkdir(f"{top}/below")
    for number in range(0, 600, 20):
        os.rename(f"{top}/{number}-file", f"{top}/below/{number}-renamed")
    for number in range(10, 600, 40):
        os.link(f"{top}/{number}-file", f"{top}/below/{number}-link")
    for number in range(3):
        chance = random.Random(number)
        with open(f"{top}/{number}.large", "wb") as file:
            file.write(chance.randbytes(5_000_000))
        writes = pieces(number)[1]
        # Fewer at a time than those after which a mount folds the file by itself.
        for some in range(0, len(writes), 50):
            with open(f"{top}/{number}.large", "r+b", buffering=0) as file:
                for at, piece in writes[some : some + 50]:
                    file.seek(at)
                    file.write(piece)
                    os.fsync(file.fileno())
    os.rename(f"{top}/1.large", f"{top}/below/1.large")


def all_files(top):
    for path, _, names in os.walk(top):
        for name in names:
            yield os.path.join(path, name), name


def expected(name):
    return pieces(int(name.split(".")[0]))[0] if name.endswith(".large") else content(name)


def judge(top):
    count = 0
    for path, name in all_files(top):
        if name.startswith("new-"):
            continue
        with open(path, "rb") as file:
            assert file.read() == expected(name), f"{path} is not what was written"
        count += 1
    assert count > 60, count


def churn(top, until):
    """Only changes that keep the promise of every name."""
    chance, steps = random.Random(5), 0
    os.mkdir(f"{top}/churn")
    while not os.path.exists(until):
        number = chance.randrange(0, 600, 10)
        names = [path for path, name in all_files(top) if name.split("-")[0] == str(number)]
        path = chance.choice(names)
        act = chance.randrange(4)
        if act == 0:
            write(f"{top}/churn/new-{number}", content(f"{number}-"))
            os.rename(f"{top}/churn/new-{number}", path)
        elif act == 1:
            os.rename(path, f"{top}/churn/{number}-{steps}")
        elif act == 2:
            with open(path, "r+b") as file:
                data = content(os.path.basename(path))
                at = chance.randrange(len(data))
                file.seek(at)
                file.write(data[at : at + 5000])
        elif len(names) > 1:
            os.unlink(path)
        steps += 1
    print(f"{steps} steps")


def hold(top, until):
    held = []
    for path, name in sorted(all_files(top)):
        file = open(path, "rb", buffering=0)
        data = file.read(1000)
        assert data == expected(name)[:1000], path
        held.append((file, path, name))
    print("holding", flush=True)
    while not os.path.exists(until):
        time.sleep(0.1)
    for file, path, name in held:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        data = b""
        while piece := file.read(1 << 20):
            data += piece
        assert data == expected(name), f"{path} is not what it was when it was opened"


if __name__ == "__main__":
    {"make": make, "churn": churn, "hold": hold, "judge": judge}[sys.argv[1]](*sys.argv[2:])
