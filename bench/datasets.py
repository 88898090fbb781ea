#!/usr/bin/env python3
"""What a tree holds: `kestrel du` beside du(1) on the mount and on the local file system.

The tree has directories of ten directories each, with a file in each. Each command runs some times;
the caches of names of the mount are dropped before each, by mounting anew.

    bench/datasets.py           10,000 directories: writes target/bench/datasets.json, datasets.svg
    bench/datasets.py --full    100,000
"""

import os
import statistics
import time

from common import KESTREL, Local, bars, conclude, options_of, run, scratch_for

# How long `kestrel du` of 100,000 directories may take, seconds.
SECONDS_MAX = 0.3


def fill(top, count):
    """Makes so many directories below top, level by level, each with a file."""
    level = [top]
    while count > 0:
        made = [f"{above}/d{number}" for above in level for number in range(10)][:count]
        for directory in made:
            os.mkdir(directory)
            os.close(os.open(f"{directory}/f", os.O_CREAT | os.O_WRONLY))
        count -= len(made)
        level = made


def timed(rounds, command, before=lambda: None):
    taken = []
    for _ in range(rounds):
        before()
        begun = time.perf_counter()
        run(*command)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def usage(scratch, count, rounds):
    """Rows of `kestrel du`, of du(1) on the mount, and of du(1) on the local file system."""
    volume, mount = f"{scratch}/volume", f"{scratch}/mount"
    os.mkdir(mount)
    run(KESTREL, "format", volume)
    run(KESTREL, "mount", volume, mount)

    def mount_anew():
        run(KESTREL, "umount", mount)
        run(KESTREL, "mount", volume, mount)

    try:
        fill(mount, count)
        found = {
            "kestrel du": timed(rounds, (KESTREL, "du", mount), mount_anew),
            "kestrel du --top 20": timed(rounds, (KESTREL, "du", mount, "--top", "20"), mount_anew),
            "du -s, mount": timed(rounds, ("du", "-s", mount), mount_anew),
        }
    finally:
        run(KESTREL, "umount", mount)
    local = Local(scratch).dir
    fill(local, count)
    found["du -s, local"] = timed(rounds, ("du", "-s", local))
    return [
        {"what": what, "directories": count, "rounds": rounds, "seconds": seconds}
        for what, seconds in found.items()
    ]


def plot(path, rows):
    """Seconds of each row."""
    lines = [(row["what"], row["seconds"], row["what"].startswith("kestrel")) for row in rows]
    bars(path, lines, "s", digits=3)


def judge(rows):
    row = rows[0]
    seconds = row["seconds"] / row["directories"] * 100_000
    said = f"kestrel du of 100,000 directories: at most {SECONDS_MAX} s ({seconds:.2f} s by "
    return [(f"{said}{row['directories']})", seconds <= SECONDS_MAX)]


def main():
    options = options_of(__doc__, "datasets", 5)
    options.add_argument("--directories", type=int)
    wanted = options.parse_args()
    count = wanted.directories or (100_000 if wanted.full else 10_000)
    with scratch_for(wanted.out) as scratch:
        rows = usage(scratch, count, wanted.rounds)
        for row in rows:
            print(f'{row["what"]:22} {row["directories"]:8} directories {row["seconds"]:9.3f} s')
    conclude(wanted.out, rows, judge(rows), plot)


if __name__ == "__main__":
    main()
