#!/usr/bin/env python3
"""What quotas cost: creates and writes of 64 KiB below ten nested directories with quotas, and by a
user with one, beside the same without any.

The same mount makes files in a directory ten levels down and removes them again, in turn with and
without quotas. CPU is that of the mount's process, and on a volume that three nodes share that of
the nodes.

    bench/quotas.py             2,000 files a round: writes target/bench/quotas.json, quotas.svg
    bench/quotas.py --full      20,000
"""

import os
import statistics
import time

from common import (
    KESTREL, Cluster, bars, conclude, cpu_of, mounted, options_of, run, scratch_for,
)

# CPU with quotas to CPU without.
RATIO_MAX = 1.1
DEPTH = 10
DATA = b"q" * (64 << 10)


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def write(path):
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(file, DATA)
    os.close(file)


def measured(pids, directory, count, call):
    """CPU and time for one call, microseconds."""
    used, begun = sum(map(cpu_of, pids)), time.perf_counter()
    for number in range(count):
        call(f"{directory}/{number}")
    found = sum(map(cpu_of, pids)) - used, time.perf_counter() - begun
    for number in range(count):
        os.unlink(f"{directory}/{number}")
    return [seconds / count * 1e6 for seconds in found]


def levels(mount):
    """The nested directories, the outermost first."""
    return ["/".join([mount] + [f"d{at}" for at in range(depth + 1)]) for depth in range(DEPTH)]


def switch(mount, on):
    for directory in levels(mount):
        if on:
            run(KESTREL, "quota", "set", directory, "--size", "1T", "--files", "10M")
        else:
            run(KESTREL, "quota", "remove", directory)
    user = ("--user", str(os.getuid()))
    limit = ("--size", "1T") if on else ()
    run(KESTREL, "quota", "set" if on else "remove", mount, *user, *limit)


def rows_alone(scratch, count, rounds):
    volume, mount = f"{scratch}/volume", f"{scratch}/mount"
    os.mkdir(mount)
    run(KESTREL, "format", volume)
    run(KESTREL, "mount", volume, mount)
    return rows_of(mount, [mounted(volume)], count, rounds)


def rows_of_nodes(scratch, count, rounds):
    nodes, mount = Cluster(scratch, 3), f"{scratch}/shared"
    os.mkdir(mount)
    run(KESTREL, "mount", nodes.url, mount)
    rows = rows_of(mount, [mounted(volume) for volume in nodes.volumes], count, rounds)
    nodes.stop()
    return [{**row, "what": f'{row["what"]}, 3 nodes'} for row in rows]


def rows_of(mount, pids, count, rounds):
    try:
        directory = levels(mount)[-1]
        os.makedirs(directory)
        calls = {"create": create, "write 64 KiB": write}
        found = {(what, on): [] for what in calls for on in (False, True)}
        for call in calls.values():
            measured(pids, directory, count // 4, call)
        for _ in range(rounds):
            for on in (False, True):
                if on:
                    switch(mount, True)
                for what, call in calls.items():
                    found[what, on].append(measured(pids, directory, count, call))
                if on:
                    switch(mount, False)
    finally:
        run(KESTREL, "umount", mount)
    return [
        {
            "what": what,
            "quotas": DEPTH + 1 if on else 0,
            "files": count,
            "rounds": rounds,
            "cpu_us": statistics.median(cpu for cpu, _ in taken),
            "us": statistics.median(time for _, time in taken),
        }
        for (what, on), taken in found.items()
    ]


def judge(rows):
    said = []
    for without, with_quotas in zip(rows[::2], rows[1::2]):
        ratio = with_quotas["cpu_us"] / without["cpu_us"]
        text = f"CPU of {without['what']} with quotas: at most {RATIO_MAX} times ({ratio:.3f})"
        said.append((text, ratio <= RATIO_MAX))
    return said


def plot(path, rows):
    """CPU of each row."""
    lines = [
        (f"{row['what']}, {row['quotas']} quotas", row["cpu_us"], row["quotas"]) for row in rows
    ]
    bars(path, lines, "µs")


def main():
    wanted = options_of(__doc__, "quotas", 7).parse_args()
    with scratch_for(wanted.out) as scratch:
        count = 20_000 if wanted.full else 2_000
        rows = rows_alone(scratch, count, wanted.rounds)
        rows += rows_of_nodes(scratch, count, wanted.rounds)
        for row in rows:
            print(f'{row["what"]:22} {row["quotas"]:3} quotas {row["cpu_us"]:8.1f} µs of CPU '
                  f'{row["us"]:8.1f} µs')
    conclude(wanted.out, rows, judge(rows), plot)


if __name__ == "__main__":
    main()
