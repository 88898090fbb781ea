"""Load while the coordinator's role moves: processes that move directories from one into another
through two mounts, and one that makes and reads files. No call may fail; in the end each directory
is in one place, with what it held. Called by roles.sh."""

import argparse
import os
import random
import sys
import threading
import time

DIRS, PLACES, MOVERS = 12, 4, 3
# Longest time that a call may take: the role moves in a moment, and a node that was killed is back
# within seconds.
CALL_SECONDS_MAX = 40


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("one")
    parser.add_argument("two")
    parser.add_argument("--stop")
    given = parser.parse_args()
    base = os.path.join(given.one, "load")
    os.mkdir(base)
    for place in range(PLACES):
        os.mkdir(f"{base}/place{place}")
    for number in range(DIRS):
        os.mkdir(f"{base}/place0/dir{number}")
        with open(f"{base}/place0/dir{number}/file", "w") as file:
            file.write(str(number))
    roots = [os.path.join(mount, "load") for mount in (given.one, given.two)]
    places = [
        {number: 0 for number in range(DIRS) if number % MOVERS == index} for index in range(MOVERS)
    ]
    counts, wrong, longest = [0] * (MOVERS + 1), [], [0.0]

    def timed(call, *arguments):
        begun = time.monotonic()
        try:
            return call(*arguments)
        finally:
            longest[0] = max(longest[0], time.monotonic() - begun)

    def move(index):
        # Each mover has directories of its own, so it knows where they are; the places are
        # everybody's. It keeps to one mount: a kernel that finds a directory in another place than
        # it knew, while it renames something itself, answers ESTALE.
        dice, at = random.Random(index), places[index]
        root = roots[index % 2]
        while not os.path.exists(given.stop):
            number, to = dice.choice(list(at)), dice.randrange(PLACES)
            if to == at[number]:
                continue
            timed(
                os.rename, f"{root}/place{at[number]}/dir{number}", f"{root}/place{to}/dir{number}"
            )
            at[number] = to
            counts[index] += 1

    def look():
        for number, place in ((number, place) for at in places for number, place in at.items()):
            for root in roots:
                found = [p for p in range(PLACES) if os.path.isdir(f"{root}/place{p}/dir{number}")]
                if found != [place] or open(f"{root}/place{place}/dir{number}/file").read() != str(
                    number
                ):
                    wrong.append(f"dir{number} is in {found}, not in {place}")

    def make():
        while not os.path.exists(given.stop):
            name = f"file{counts[MOVERS]}"
            with open(f"{base}/{name}", "w") as file:
                timed(file.write, name)
            if timed(lambda: open(f"{given.two}/load/{name}").read()) != name:
                wrong.append(name)
            counts[MOVERS] += 1

    def guarded(call, *arguments):
        try:
            call(*arguments)
        except Exception as why:
            wrong.append(f"{call.__name__}: {why!r}")

    threads = [threading.Thread(target=guarded, args=(move, index)) for index in range(MOVERS)]
    threads.append(threading.Thread(target=guarded, args=(make,)))
    for thread in threads:
        thread.start()
    os.mkdir(f"{base}/ready")
    for thread in threads:
        thread.join()
    guarded(look)
    if longest[0] > CALL_SECONDS_MAX:
        wrong.append(f"a call took {longest[0]:.1f} s")
    if min(counts) < 3:
        wrong.append("hardly anything was done")
    print(
        f"{sum(counts[:MOVERS])} directories moved, {counts[MOVERS]} files made and read; the "
        f"longest call took {longest[0]:.1f} s"
    )
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


main()
