#!/usr/bin/env python3
"""What a change feed costs and how fast it is read: creates below a directory without the policy
`feed`, with it, and with a reader (CPU of the volume's processes); how long after a create its
event comes; how many events a second one `kestrel watch --json` reads, beside the files a second
that four processes create. On a volume in a mount's process, and on one that three nodes share.

    bench/feed.py             5,000 files a round: writes target/bench/feed.json, feed.svg
    bench/feed.py --full      50,000
"""

import json
import os
import statistics
import subprocess
import threading
import time

from common import (
    KESTREL,
    Cluster,
    bars,
    conclude,
    cpu_of,
    mounted,
    options_of,
    run,
    scratch_for,
)

# The bars of the issue: CPU of a create with a reader to that without a feed, 99th percentile of
# the delay in seconds, events a second to files created a second.
RATIO_MAX = 1.1
DELAY_MAX = 0.1
READ_MIN = 0.9
# Creates of which the delay is measured, and the time between two of them, seconds.
DELAYS, PAUSE = 400, 0.005


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def measured(pids, directory, count):
    """CPU and time of a create, microseconds. The files are removed again."""
    used, begun = sum(map(cpu_of, pids)), time.perf_counter()
    for number in range(count):
        create(f"{directory}/{number}")
    found = time.perf_counter() - begun, sum(map(cpu_of, pids)) - used
    for number in range(count):
        os.unlink(f"{directory}/{number}")
    return [seconds / count * 1e6 for seconds in found]


class Reader:
    """`kestrel watch --json` of a directory, from now on."""

    def __init__(self, directory):
        command = [KESTREL, "watch", directory, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.come = {}
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        # Until it answers nobody knows that it has begun.
        number = 0
        while not self.come:
            create(f"{directory}/begin{number}")
            time.sleep(0.05)
            number += 1
        for begun in range(number):
            os.unlink(f"{directory}/begin{begun}")

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "create":
                self.come[event["path"]] = time.perf_counter()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.thread.join()


def delays(directory):
    """Seconds from the return of a create until its event has come."""
    reader, made = Reader(directory), {}
    for number in range(DELAYS):
        create(f"{directory}/{number}")
        made[str(number)] = time.perf_counter()
        time.sleep(PAUSE)
    while str(DELAYS - 1) not in reader.come:
        time.sleep(0.01)
    reader.end()
    for name in made:
        os.unlink(f"{directory}/{name}")
    return [reader.come[name] - at for name, at in made.items()]


def creates_by_four(directory, count):
    """Files a second that four processes create."""
    begun, children = time.perf_counter(), []
    for worker in range(4):
        child = os.fork()
        if child == 0:
            for number in range(count // 4):
                create(f"{directory}/{worker}-{number}")
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return count // 4 * 4 / (time.perf_counter() - begun)


def reads(directory):
    """Events a second of one reader, of all that is kept."""
    begun = time.perf_counter()
    told = run(KESTREL, "watch", directory, "--since", "oldest", "--no-wait", "--json")
    return (told.count("\n") - 1) / (time.perf_counter() - begun)


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
    pids = [mounted(volume) for volume in nodes.volumes]
    rows = rows_of(mount, pids, count, rounds)
    nodes.stop()
    return [{**row, "what": f'{row["what"]}, 3 nodes'} for row in rows]


def rows_of(mount, pids, count, rounds):
    ways = ("no feed", "a feed", "a feed and a reader")
    found = {way: [] for way in ways}
    late, created, read = [], [], []
    try:
        directory = f"{mount}/d"
        os.mkdir(directory)
        measured(pids, directory, count // 4)
        for number in range(rounds):
            found[ways[0]].append(measured(pids, directory, count))
            run(KESTREL, "policy", "set", directory, "feed=1d")
            found[ways[1]].append(measured(pids, directory, count))
            reader = Reader(directory)
            found[ways[2]].append(measured(pids, directory, count))
            reader.end()
            late.extend(delays(directory))
            busy = f"{mount}/busy{number}"
            os.mkdir(busy)
            run(KESTREL, "policy", "set", busy, "feed=1d")
            created.append(creates_by_four(busy, count))
            read.append(reads(busy))
            run(KESTREL, "policy", "unset", directory, "feed")
    finally:
        run(KESTREL, "umount", mount)
    rows = [
        {
            "what": f"create, {way}",
            "cpu_us": statistics.median(cpu for _, cpu in taken),
            "us": statistics.median(time for time, _ in taken),
        }
        for way, taken in found.items()
    ]
    late.sort()
    rows.append({
        "what": "delay",
        "p50_ms": statistics.median(late) * 1e3,
        "p99_ms": late[len(late) * 99 // 100] * 1e3,
    })
    rows.append({"what": "created by four", "per_second": statistics.median(created)})
    rows.append({"what": "read by one", "per_second": statistics.median(read)})
    return [{**row, "files": count, "rounds": rounds} for row in rows]


def judge(rows):
    none, _, reader, delay, created, read = rows[:6]
    ratio = reader["cpu_us"] / none["cpu_us"]
    rate = read["per_second"] / created["per_second"]
    late = delay["p99_ms"] / 1e3
    return [
        (f"CPU of a create with a reader: at most {RATIO_MAX} times ({ratio:.3f})",
         ratio <= RATIO_MAX),
        (f"delay: p99 below {DELAY_MAX} s ({late:.4f})", late < DELAY_MAX),
        (f"events read to files created a second: at least {READ_MIN} ({rate:.2f})",
         rate >= READ_MIN),
    ]


def plot(path, rows):
    shown = [(row["what"], row["cpu_us"], True) for row in rows if "cpu_us" in row]
    bars(path, shown, "µs", left=240)


def main():
    wanted = options_of(__doc__, "feed", 5, "50,000 files a round").parse_args()
    with scratch_for(wanted.out) as scratch:
        count = 50_000 if wanted.full else 5_000
        rows = rows_alone(scratch, count, wanted.rounds)
        rows += rows_of_nodes(scratch, count, wanted.rounds)
        for row in rows:
            figures = {name: round(value, 2) for name, value in row.items() if name != "what"}
            print(f'{row["what"]:38} {figures}')
    conclude(wanted.out, rows, judge(rows), plot)


if __name__ == "__main__":
    main()
